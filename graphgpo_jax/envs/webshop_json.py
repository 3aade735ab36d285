"""Reading the JSON files of WebShop, also those that are larger than memory."""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphgpo_jax.log import json_object

_CHUNK = 1 << 20  # characters
_BLANK = re.compile(r'[ \t\n\r]*')
_object = functools.partial(
  json_object, words='found {!r:.60} twice in one object, allowed: once'
)


def read_object(path: str | Path) -> dict[str, Any]:
  """The JSON object of a file.

  Raises:
    ValueError: the file cannot be read, is no JSON, has a name twice in one
      object, or holds something else.
  """
  try:
    with open(path, encoding='utf-8') as file:
      content = json.load(file, object_pairs_hook=_object)
  except RecursionError:
    raise ValueError(f'{path}: nested too deeply') from None
  except (OSError, ValueError) as problem:
    raise ValueError(f'{path}: {problem}') from None
  if not isinstance(content, dict):
    found = type(content).__name__
    raise ValueError(f'{path}: found a {found}, allowed: object')
  return content


def read_list(path: str | Path) -> Iterator[Any]:
  """Yields the elements of a JSON list, holding little of it at a time.

  Raises:
    ValueError: the file cannot be read, is no JSON, or holds something else;
      names the place of the element and, where known, of the character, both
      from 0.
  """
  number = -1
  try:
    with open(path, encoding='utf-8') as file:
      text = _Text(file)
      text.take('[')
      number, mark = 0, ','
      if text.peek() == ']':
        mark = text.take(']')
      while mark == ',':
        yield text.decode()
        number += 1
        mark = text.take(',]')
      text.take('')
  except RecursionError:
    raise ValueError(f'{path}: product {number}: nested too deeply') from None
  except (OSError, ValueError) as problem:
    at = f' product {number}:' if number >= 0 else ''
    raise ValueError(f'{path}:{at} {problem}') from None


class _Text:
  """A JSON text of which a part is in memory, and a place in it."""

  def __init__(self, file):
    self._file = file
    self._decoder = json.JSONDecoder(object_pairs_hook=_object)
    self._part, self._place = '', 0
    self._before = 0  # characters before the part

  def peek(self) -> str:
    """The next character that is no blank, or '' at the end."""
    while True:
      self._place = _BLANK.match(self._part, self._place).end()
      if self._place < len(self._part) or not self._read():
        return self._part[self._place : self._place + 1]

  def take(self, allowed: str) -> str:
    """Goes past the next character, one of these; '' allows the end only."""
    found = self.peek()
    if found and found in allowed or not (found or allowed):
      self._place += 1
      return found
    if not found:
      raise ValueError('the file ends early')
    if allowed == '[':
      raise ValueError(f'found no list but {found!r}')
    wanted = ' or '.join(map(repr, allowed)) or 'nothing after the list'
    at = self._before + self._place
    raise ValueError(f'found {found!r} at character {at}, allowed: {wanted}')

  def decode(self) -> Any:
    """Goes past the next element and returns it."""
    if not self.peek():
      raise ValueError('the file ends early')
    while True:
      try:
        found, self._place = self._decoder.raw_decode(self._part, self._place)
        return found
      except json.JSONDecodeError as problem:  # perhaps more has to be read
        at = self._before + problem.pos
        if not self._read():
          raise ValueError(f'{problem.msg} at character {at}') from None

  def _read(self):
    """Reads more from the file; whether there was any."""
    more = self._file.read(max(_CHUNK, len(self._part) - self._place))
    self._before += self._place
    self._part, self._place = self._part[self._place :] + more, 0
    return bool(more)
