"""Rollouts of other frameworks as a rollout log.

verl-agent: see `verl_agent`.

Tunix: JSON Lines, one trajectory a line. A trajectory is what its
`Trajectory.to_dict()` gives (collect mode 'Trajectory'), or a `TrajectoryItem`
as a dictionary with that as `traj`. Of its fields these are read:

  task: the first observation, so the state of step 0.
  steps: a list of objects with `observation` (what came after the action),
    `action` (also as an object {"action": ...}) and `reward`, all required;
    `done` and `info` where there.
  status: tells an attempt that was cut off from one that ended; if there, one
    of Tunix's own.
  group_id, pair_index: task and attempt, on either level. Without group_id,
    trajectories of equal `task` are attempts at one task; without pair_index,
    the attempts at a task are numbered.

States and actions: a text as it is; {"prompts": text} and {"prompts": [text]}
as that text, since Tunix wraps a first observation so; anything else as JSON.

Success: Tunix records none; its status SUCCEEDED says that the episode ended.
With `success_reward` X an attempt succeeds whose rewards sum to X or more.
Without, the last step must have `info["success"]`.

Ends: a success, or a last step that is `done`, is `terminal`, unless the status
says `truncated`. `info["valid"]` is `valid`, true if left out.

Left out are trajectories without steps, and the last step of an attempt that
was cut off if the environment never answered it (observation null): the reward
of the whole that Tunix adds to it goes to the step before. Any other state that
is null is refused.
"""

import collections
import json
import math
import os
from collections.abc import Mapping

from graphgpo_jax import fields, states, verl_agent
from graphgpo_jax import log as logs
from graphgpo_jax.commands import check_out

LINE_LIMIT = 1 << 28  # bytes of a trajectory; a longer line is no such file
CUT_OFF = {
  'MAX_STEPS_REACHED',
  'MAX_CONTEXT_LIMIT_REACHED',
  'TIMEOUT',
  'ENV_TIMEOUT',
  'FAILED',
}
STATUSES = CUT_OFF | {'SUCCEEDED', 'RUNNING'}


def convert(
  path: str | os.PathLike,
  source: str,
  out: str | os.PathLike,
  *,
  success_reward: float | None = None,
) -> str:
  """Writes a rollout log of another framework's file.

  Args:
    source: 'verl-agent' or 'tunix'.
    out: path of the log.
    success_reward: the sum of rewards from which on an attempt is a success;
      None for what the file says.

  Returns:
    One line: what was written, and what the file does not hold.

  Raises:
    ValueError: names the file, the row or line, and the field.
    OSError: a file can't be read or written.
  """
  if success_reward is not None and not math.isfinite(success_reward):
    raise ValueError(
      f'success reward: found {success_reward}, allowed: a finite number'
    )
  if os.path.exists(out) and os.path.samefile(path, out):
    raise ValueError(f'{out}: found the file to read, allowed: another one')
  check_out(out)
  try:
    places, rows, notes = SOURCES[source](path, success_reward)
    states.index_steps(logs.columns(rows))
    _check_lengths(places, rows)
  except logs.LogError as problem:
    words = f'{places[problem.row]}: field {problem.field!r}: {problem.reason}'
    raise ValueError(f'{path}: {words}') from None
  except ValueError as problem:
    words = str(problem).removeprefix(f'{path}: ')
    raise ValueError(f'{path}: {words}') from None
  logs.write_log(out, rows, meta={'source': source})
  return '; '.join([_counts(rows), *notes])


def _check_lengths(places, rows):
  """Raises ValueError for a row that is too long for a line of the log."""
  names = (*logs.TEXTS, *logs.IDS)
  for place, row in zip(places, rows):
    characters = sum(len(str(row[name])) for name in names)
    # One may take 12 bytes, all other fields together take less than 1000.
    if 12 * characters + 1000 <= logs.LINE_LIMIT:
      continue
    if len(json.dumps(row)) >= logs.LINE_LIMIT:
      raise ValueError(
        f'{place}: found {characters} characters in {", ".join(names)}, '
        f'allowed: a line of {logs.LINE_LIMIT >> 20} MiB'
      )


def _counts(rows):
  attempts = len({(row['task'], row['attempt']) for row in rows})
  tasks = len({row['task'] for row in rows})
  won = sum(row['success'] for row in rows)
  words = f'{len(rows)} steps, {attempts} attempts, {won} successful'
  return f'{words}, tasks: {tasks}'


def _read_tunix(path, success_reward):
  """(places, rows, notes); see the top of this file."""
  places, rows, empty = [], [], 0
  numbers = collections.Counter()
  with open(path, 'rb') as file:
    lines = iter(lambda: file.readline(LINE_LIMIT + 1), b'')
    for number, line in enumerate(lines, 1):
      place = f'line {number}'
      record = _parse(line, place)
      found = tunix_rows(record, success_reward=success_reward, place=place)
      if found and found[0]['attempt'] is None:
        task = found[0]['task']
        for row in found:
          row['attempt'] = numbers[task]
        numbers[task] += 1
      empty += not found
      rows += found
      places += [f'{place}, step {row["step"]}' for row in found]
  notes = [f'trajectories without a step, left out: {empty}'] if empty else []
  return places, rows, notes


def _parse(line, place):
  if len(line) > LINE_LIMIT:
    raise ValueError(f'{place}: found more than {LINE_LIMIT >> 20} MiB')
  try:
    record = json.loads(line, object_pairs_hook=logs.json_object)
  except (ValueError, RecursionError) as problem:
    raise ValueError(f'{place}: found no JSON ({problem})') from None
  if not isinstance(record, dict):
    raise ValueError(f'{place}: found no JSON object')
  return record


def tunix_rows(
  record: Mapping,
  *,
  success_reward: float | None = None,
  place: str = 'trajectory',
) -> list[dict]:
  """Rows of the log of one Tunix trajectory; see the top of this file.

  Args:
    record: a trajectory or an item with one, as dictionaries.
    success_reward: see `convert`.
    place: what an error calls the trajectory.

  Returns:
    A row per step; `attempt` is None without pair_index.

  Raises:
    ValueError: a field is missing or wrong.
  """
  trajectory = record.get('traj', record)
  if not isinstance(trajectory, dict):
    raise fields.wrong(place, 'traj', trajectory, 'allowed: an object')
  cut = _status(trajectory, place) in CUT_OFF
  steps, left = _steps(trajectory, cut, place)
  if not steps:
    return []
  first = _need(trajectory, 'task', place)
  state = fields.text(first, place, 'task', unwrap='prompts')
  task = _name(record, trajectory, 'group_id', place, state)
  attempt = _name(record, trajectory, 'pair_index', place, None)
  rows = []
  for number, step in enumerate(steps):
    row = {'task': task, 'attempt': attempt, 'step': number, 'state': state}
    rows.append(row | _step(step, f'{place}, step {number}'))
    state = rows[-1]['next_state']
  rows[-1]['reward'] += left
  rows[-1] |= _end(rows, steps[-1], cut, success_reward, place)
  return rows


def _status(trajectory, place):
  found = trajectory.get('status')
  status = str(found).removeprefix('TrajectoryStatus.')
  if found is not None and status not in STATUSES:
    allowed = ', '.join(sorted(STATUSES))
    raise fields.wrong(place, 'status', found, f'allowed: {allowed}')
  return status


def _steps(trajectory, cut, place):
  """The steps that the environment answered, and the reward of the other."""
  steps = _need(trajectory, 'steps', place)
  if not isinstance(steps, list) or not all(isinstance(x, dict) for x in steps):
    raise fields.wrong(place, 'steps', steps, 'allowed: a list of objects')
  if cut and steps and steps[-1].get('observation') is None:
    reward, number = steps[-1].get('reward', 0), len(steps) - 1
    reward = fields.number(reward, f'{place}, step {number}', 'reward')
    return steps[:-1], reward
  return steps, 0


def _name(record, trajectory, field, place, default):
  for level in (record, trajectory):
    if level.get(field) is not None:
      return fields.identity(level[field], place, field)
  return default


def _need(record, name, place):
  if name not in record:
    nothing = logs.Words('nothing')
    raise fields.wrong(place, name, nothing, 'the field is required')
  return record[name]


def _info(step, name):
  info = step.get('info')
  return info.get(name) if isinstance(info, dict) else None


def _step(step, place):
  observation, valid = _need(step, 'observation', place), _info(step, 'valid')
  action, reward = _need(step, 'action', place), _need(step, 'reward', place)
  return {
    'action': fields.text(action, place, 'action', unwrap='action', empty=True),
    'next_state': fields.text(
      observation, place, 'observation', unwrap='prompts'
    ),
    'reward': fields.number(reward, place, 'reward'),
    'success': False,
    'terminal': False,
    'truncated': False,
    'valid': valid is None or fields.flag(valid, place, 'info.valid'),
  }


def _end(rows, last, cut, success_reward, place):
  """The flags of the last step."""
  won = _info(last, 'success')
  if success_reward is not None:
    total = math.fsum(row['reward'] for row in rows)
    won = fields.reaches(total, success_reward)
  elif won is None:
    words = 'required on the last step where no success reward is given'
    raise fields.wrong(place, 'info.success', logs.Words('nothing'), words)
  won = fields.flag(won, place, 'info.success')
  done = fields.flag(last.get('done', False), place, 'done')
  cut = cut and not won
  return {
    'success': won,
    'terminal': won or (done and not cut),
    'truncated': cut,
  }


SOURCES = {'verl-agent': verl_agent.read, 'tunix': _read_tunix}
