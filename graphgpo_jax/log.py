"""The rollout log: one JSON object per environment step, one per line.

Any framework can write it. This file knows the fields and their types; the
rules between rows are checked where they are interned, in `states`.
"""

import contextlib
import dataclasses
import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping

import numpy as np

FORMAT, VERSION = 'graphgpo-rollouts', 1
LINE_LIMIT = 1 << 24  # bytes; a longer line is a broken file, not a step
TEXTS = ('state', 'action', 'next_state')
NUMBERS = ('reward', 'cost')
FLAGS = ('success', 'terminal', 'truncated', 'valid')
IDS = ('task', 'attempt')
FIELDS = (*IDS, 'step', *TEXTS, 'reward', *FLAGS)  # all of them required
OPTIONAL = {'cost': 1.0, 'credited': True}  # and what they are if left out
KNOWN = (*FIELDS, *OPTIONAL)
RESULTS = ('advantage', 'distance', 'next_distance')  # replaced


class LogError(ValueError):
  """A row that breaks a rule: names the row, field, found and allowed."""

  def __init__(self, row, field, found, allowed):
    self.row, self.field = row, field
    self.reason = f'found {_short(found)}, allowed: {allowed}'
    super().__init__(f'row {row}: field {_short(field)}: {self.reason}')


class Words(str):
  """A description of what was found, as opposed to the value itself."""


def _short(value):
  text = value if isinstance(value, Words) else ascii(value)
  return text if len(text) <= 80 else f'{text[:60]}... ({len(text)} long)'


def columns(rows) -> dict[str, list]:
  """One list per field, types checked; rows or numpy columns in.

  Args:
    rows: a sequence of mappings or records with the fields of the rollout log,
      or one mapping of field -> sequence.

  Raises:
    LogError: a missing or unknown field, or a value of a wrong type.
    ValueError: columns of unequal length.
  """
  if isinstance(rows, Mapping):
    check_fields(rows, 0)
    table = {k: list(rows[k]) for k in KNOWN if k in rows}
    lengths = {k: len(v) for k, v in table.items()}
    if len(set(lengths.values())) > 1:
      raise ValueError(f'columns of unequal length: {lengths}')
    return check_types(table)
  rows = list(rows)
  if not all(issubclass(kind, Mapping) for kind in set(map(type, rows))):
    names = [k for k in KNOWN if hasattr(rows[0], k)]
    check_fields(dict.fromkeys(names), 0)
    return check_types({k: [getattr(row, k) for row in rows] for k in names})
  try:
    table = {k: [row[k] for row in rows] for k in FIELDS}
    extra = max(map(len, rows), default=0) > len(FIELDS)
  except KeyError:
    table, extra = {}, True
  if extra:
    for index, row in enumerate(rows):
      check_fields(row, index)
    for name, default in OPTIONAL.items():
      table[name] = [row.get(name, default) for row in rows]
  return check_types(table)


def check_fields(row: Mapping, index: int) -> None:
  """Raises LogError unless a row has every required and no unknown field."""
  for name in FIELDS:
    if name not in row:
      raise LogError(index, name, Words('nothing'), 'the field is required')
  if len(row) > len(FIELDS):
    unknown = set(row).difference(KNOWN, RESULTS)
    if unknown:
      name = min(unknown, key=str)
      raise LogError(index, name, Words('an unknown field'), ', '.join(KNOWN))


def append(table: dict[str, list], row: Mapping) -> None:
  """Adds a row to the columns."""
  for name in FIELDS:
    table[name].append(row[name])
  for name, default in OPTIONAL.items():
    table[name].append(row.get(name, default))


def check_types(table: dict[str, list]) -> dict[str, list]:
  """Columns with numpy scalars made plain; LogError for a wrong type."""
  kinds = {
    **dict.fromkeys(IDS, ({str, int}, 'a string or an integer')),
    'step': ({int}, 'an integer'),
    **dict.fromkeys(TEXTS, ({str}, 'a string')),
    **dict.fromkeys(NUMBERS, ({float, int}, 'a number')),
    **dict.fromkeys((*FLAGS, 'credited'), ({bool}, 'true or false')),
  }
  size = len(table['task'])
  table = {k: [value] * size for k, value in OPTIONAL.items()} | table
  for name, (types, words) in kinds.items():
    if set(map(type, table[name])) <= types:
      continue
    table[name] = [
      x.item() if isinstance(x, np.generic) else x for x in table[name]
    ]
    if not set(map(type, table[name])) <= types:
      bad = next(i for i, x in enumerate(table[name]) if type(x) not in types)
      raise LogError(bad, name, table[name][bad], words)
  return table


@dataclasses.dataclass(frozen=True)
class RolloutLog:
  """A log read whole.

  Attributes:
    path: where it was read.
    meta: what the header says beyond format and version; empty without one.
    table: columns, types checked.
    lines: the file's lines as bytes, header included.
    first: index in `lines` of the first step.
  """

  path: str
  meta: dict
  table: dict[str, list]
  lines: list[bytes]
  first: int

  def error(self, problem: Exception) -> ValueError:
    """The problem with the file's name, and line instead of row number."""
    if not isinstance(problem, LogError):
      return ValueError(f'{self.path}: {problem}')
    line = problem.row + self.first + 1
    field = f'field {_short(problem.field)}: {problem.reason}'
    return ValueError(f'{self.path}: row {line}: {field}')


def read_log(path: str | os.PathLike) -> RolloutLog:
  """Reads and checks a rollout log.

  Raises:
    ValueError: names the file, the row (line number from 1) and the field.
    OSError: the file can't be read.
  """
  table = {k: [] for k in KNOWN}
  lines, meta, first = [], {}, 0
  texts = {}  # one object per distinct text: states repeat all the time
  with open(path, 'rb') as file:
    while line := file.readline(LINE_LIMIT + 1):
      number = len(lines) + 1
      try:
        row = _parse(line)
        if number == 1 and 'format' in row:
          meta, first = _header(row), 1
        else:
          check_fields(row, number - 1 - first)
          for name in TEXTS:
            if isinstance(row[name], str):
              row[name] = texts.setdefault(row[name], row[name])
          append(table, row)
      except LogError as problem:
        raise RolloutLog(str(path), meta, table, lines, first).error(
          problem
        ) from None
      except ValueError as problem:
        raise ValueError(f'{path}: row {number}: {problem}') from None
      lines.append(line)
  log = RolloutLog(str(path), meta, table, lines, first)
  if not table['task']:
    raise log.error(ValueError('no steps: a log has one line per step'))
  try:
    return dataclasses.replace(log, table=check_types(table))
  except LogError as problem:
    raise log.error(problem) from None


def _parse(line):
  if len(line) > LINE_LIMIT:
    raise ValueError(f'longer than {LINE_LIMIT >> 20} MiB, the limit of a line')
  try:
    row = json.loads(
      line.decode(), object_pairs_hook=json_object, parse_int=_integer
    )
  except UnicodeDecodeError:
    raise ValueError('found bytes that are not UTF-8 text') from None
  except json.JSONDecodeError as problem:
    words = 'an empty line' if not line.strip() else f'no JSON ({problem.msg})'
    raise ValueError(
      f'found {words}, allowed: one whole JSON object per line'
    ) from None
  except RecursionError:
    raise ValueError(
      'found too deep a nesting, allowed: one flat JSON object per line'
    ) from None
  if not isinstance(row, dict):
    raise ValueError(f'found {_short(row)}, allowed: a JSON object')
  return row


def _integer(digits):
  if len(digits) > 400:
    raise ValueError(
      f'found an integer of {len(digits)} digits, allowed: up to 400'
    )
  return int(digits)


def json_object(
  pairs: list[tuple], words: str = 'field {!r}: found twice, allowed: once'
) -> dict:
  """An object of JSON; of two values for one name the first would be lost.

  Raises:
    ValueError: with these words, about the first name that is there twice.
  """
  found = dict(pairs)
  if len(found) < len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in found if names.count(name) > 1)
    raise ValueError(words.format(twice))
  return found


def _header(row):
  for name, allowed in (('format', FORMAT), ('version', VERSION)):
    found = row.get(name, Words('nothing'))
    if found != allowed or type(found) is not type(allowed):
      found = _short(found)
      raise ValueError(f'field {name!r}: found {found}, allowed: {allowed!r}')
  steps = [name for name in FIELDS if name in row]
  if steps:
    raise ValueError(
      f'field {steps[0]!r}: found in the header, allowed: in steps only'
    )
  return {k: v for k, v in row.items() if k not in ('format', 'version')}


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike, mode: str = 'w'):
  """A file that appears whole or not at all, replacing one of its name."""
  real = os.path.realpath(path)
  folder, name = os.path.split(real)
  if not os.path.isdir(folder):
    raise FileNotFoundError(errno.ENOENT, 'no such folder', folder)
  wanted = str(path)
  plain = os.path.isfile(real) or not os.path.lexists(real)
  if not plain or not name or wanted in ('', '.') or wanted.endswith('/'):
    raise OSError(errno.EINVAL, 'not a plain file', wanted)
  handle, temporary = tempfile.mkstemp(prefix='.graphgpo-', dir=folder)
  try:
    encoding = None if 'b' in mode else 'utf-8'
    with os.fdopen(handle, mode, encoding=encoding) as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    umask = os.umask(0)
    os.umask(umask)
    mode_bits = 0o666 & ~umask
    if os.path.exists(real):
      mode_bits = stat.S_IMODE(os.stat(real).st_mode)
    os.chmod(temporary, mode_bits)
    os.replace(temporary, real)
  except BaseException:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(temporary)
    raise


def write_log(path: str | os.PathLike, rows: Iterable, *, meta=None) -> None:
  """Writes a log: the header, then one line per mapping or `Transition`."""
  header = {'format': FORMAT, 'version': VERSION, **(meta or {})}
  with atomic_write(path) as file:
    file.write(json.dumps(header) + '\n')
    for row in rows:
      if not isinstance(row, Mapping):
        row = {k: getattr(row, k) for k in KNOWN}
        if row['credited']:  # left out, as most logs have no other
          del row['credited']
      file.write(json.dumps(row, default=_plain) + '\n')


def _plain(value):
  """A number of numpy as JSON knows it, for `json.dumps`."""
  if isinstance(value, np.generic):
    return value.item()
  raise TypeError(f'{type(value).__name__} can not be written as JSON')


def write_results(
  path: str | os.PathLike, log: RolloutLog, results: dict[str, np.ndarray]
) -> None:
  """Writes the lines of a log with results added to every step.

  Args:
    results: name in `RESULTS` -> one number per step, in row order.
  """
  with atomic_write(path, 'wb') as file:
    for line in log.lines[: log.first]:
      file.write(line.rstrip() + b'\n')
    values = zip(*(column.tolist() for column in results.values()))
    for line, row_values in zip(log.lines[log.first :], values):
      row = json.loads(line)
      row = {k: v for k, v in row.items() if k not in RESULTS}
      row.update(zip(results, row_values))
      file.write(json.dumps(row).encode() + b'\n')
