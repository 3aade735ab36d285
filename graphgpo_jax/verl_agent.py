"""Reads a DataProto of verl-agent's recipe GraphGPO as rows of the rollout log.

The file is one of `torch.save(data.__dict__, path)`, of
`data.save_to_disk(path)`, or a pickled dictionary; it is read without torch and
without running anything (see `unpickle`). One row is one step. Columns are
looked for in `non_tensor_batch`, then in `batch`, then at the top.

  uid, traj_uid: `task` and `attempt`.
  anchor_obs, next_obs: `state` and `next_state`; a text as it is, anything else
    (grids, images) as JSON.
  is_action_valid: `valid`.
  episode_rewards: the sum of an attempt's rewards, on each of its rows.
  rewards: the environment's reward of the step. Without this column the whole
    of episode_rewards goes to the last step: exact where only the end is
    rewarded (ALFWorld, WebShop), and said in the answer.
  text_actions: `action`, as saved. Without it every action is '', also said.
  episode_lengths: if there, an attempt must have as many rows. A batch that was
    filled up to a multiple of something holds copies of rows: left out.
  active_masks: if there, rows where it is false are left out.
  step: 0, 1, 2, ...; not in the recipe, for those who save it.

Order. Nothing numbers the steps. The recipe collects them attempt by attempt
and in order; later it may reorder rows. If, in the order of rows, every
next_obs is the anchor_obs of the attempt's next row, that is the order.
Otherwise it is the one order in which this holds. Where there are several (two
loops through one state) the attempt is refused: a column `step` settles it.

Success. Above 0 episode_rewards, the recipe writes 'success' over the last
next_obs: that text, on a last step and with such rewards, is the flag. With
`success_reward` X the flag is episode_rewards >= X instead.

Ends. A successful end is `terminal`. The recipe does not record whether another
end was the environment's or the step limit's: neither flag is set, which counts
as cut off.
"""

import collections

import numpy as np

from graphgpo_jax import fields, unpickle
from graphgpo_jax import log as logs

COLUMNS = {  # name: (key of a row here, how a value is read)
  'uid': ('task', fields.identity),
  'traj_uid': ('attempt', fields.identity),
  'anchor_obs': ('state', fields.text),
  'next_obs': ('next_state', fields.text),
  'is_action_valid': ('valid', fields.flag),
  'episode_rewards': ('total', fields.number),
  'rewards': ('reward', fields.number),
  'text_actions': ('action', fields.text),
  'episode_lengths': ('length', fields.number),
  'active_masks': ('active', fields.flag),
  'step': ('step', fields.number),
}
OPTIONAL = {
  'rewards': 'no rewards: episode_rewards went to the last steps',
  'text_actions': "no text_actions: every action is ''",
  'episode_lengths': None,
  'active_masks': None,
  'step': None,
}


def read(path: str, success_reward: float | None) -> tuple[list, list, list]:
  """Rows of the log; see the top of this file.

  Returns:
    Where each row comes from, the rows, and words on what was not there.

  Raises:
    ValueError: a field is missing, wrong, or can't be derived (rows count from
      0, as in the DataProto); or the file holds what `unpickle` refuses.
    OSError: the file can't be read.
  """
  table = columns(unpickle.read(path))
  attempts = collections.defaultdict(list)
  for index in range(len(table['uid'])):
    place = f'row {index}'
    row = {
      key: kind(table[name][index], place, name)
      for name, (key, kind) in COLUMNS.items()
      if name in table
    }
    if row.pop('active', True):
      attempts[row['task'], row['attempt']].append((place, row))
  steps = []
  for rows in attempts.values():
    steps += _attempt(rows, success_reward)
  notes = [OPTIONAL[name] for name in OPTIONAL if name not in table]
  places, rows = [place for place, _ in steps], [row for _, row in steps]
  return places, rows, list(filter(None, notes))


def columns(data) -> dict[str, list]:
  """Name -> values, one per row, of the columns that are read.

  Raises:
    ValueError: a column is missing or of another length.
  """
  data = unpickle.build(data)
  if not isinstance(data, dict):
    raise ValueError(
      f'found a {type(data).__name__}, allowed: a DataProto or a dictionary'
    )
  groups = [data]
  for name in ('batch', 'non_tensor_batch'):
    try:
      group = unpickle.build(data.get(name))
    except unpickle.Refused:  # packed so that only tensordict can read it
      continue
    groups[:0] = [group] if isinstance(group, dict) else []
  table = {}
  for name in COLUMNS:
    column = next((group[name] for group in groups if name in group), None)
    if column is None and name in OPTIONAL:
      continue
    place = 'the batch'
    column = fields.built(column, place, name)
    if isinstance(column, np.ndarray) and not column.ndim:
      column = column.item()
    if not isinstance(column, list | tuple | np.ndarray):
      words = 'allowed: an array'
      if column is None:
        column, words = logs.Words('nothing'), 'the field is required'
      raise fields.wrong(place, name, column, words)
    table[name] = list(column)
  sizes = {name: len(column) for name, column in table.items()}
  if len(set(sizes.values())) > 1 or not sizes['uid']:
    raise ValueError(f'found columns of the lengths {sizes}, allowed: equal')
  return table


def _attempt(steps, success_reward):
  """(place, row of the log) of the steps of one attempt, in order."""
  place, first = steps[0]
  for other, row in steps:
    for name in ('episode_rewards', 'episode_lengths'):
      key = COLUMNS[name][0]
      if row.get(key) != first.get(key):
        words = f'allowed: {first[key]}, as in {place}, of the same attempt'
        raise fields.wrong(other, name, row[key], words)
  steps = _in_order(_without_copies(steps, first.get('length')))
  won = _won(*steps[-1], success_reward)
  rows = []
  for number, (place, row) in enumerate(steps):
    last = number == len(steps) - 1
    row = {
      'step': number,
      'action': '',
      'reward': row['total'] if last else 0.0,
      'success': last and won,
      'terminal': last and won,
      'truncated': False,
      **row,
    }
    rows.append((place, {name: row[name] for name in logs.FIELDS}))
  return rows


def _won(place, last, success_reward):
  """Whether the last step reached the goal."""
  total, name = last['total'], 'next_obs'
  marked = total > 0 and last['next_state'] == 'success'
  if success_reward is None:
    if total > 0 and not marked:
      words = f"allowed: 'success', since episode_rewards are {total}; where a "
      words += 'file has no such mark, give a success reward'
      raise fields.wrong(place, name, last['next_state'], words)
    return marked
  won = fields.reaches(total, success_reward)
  if marked and not won:
    words = f'allowed: a state, since episode_rewards {total} are no success; '
    words += 'the mark has covered it: take the mark, without success reward'
    raise fields.wrong(place, name, 'success', words)
  return won


def _content(step):
  return tuple(step[1].values())


def _chains(steps):
  pairs = zip(steps, steps[1:])
  return all(a['next_state'] == b['state'] for (_, a), (_, b) in pairs)


def _without_copies(steps, length):
  """As many steps as the attempt had; the others must be copies of these."""
  if length is None or len(steps) == length:
    return steps
  unique = list({_content(step): step for step in steps[::-1]}.values())[::-1]
  if len(unique) == length:
    return unique
  kept = steps[: int(length)]
  copied = {*map(_content, kept)} == {*map(_content, unique)}
  if len(unique) < length < len(steps) and copied and _chains(kept):
    return kept
  words = f'allowed: {len(steps)}, as many as the attempt has rows'
  raise fields.wrong(steps[0][0], 'episode_lengths', length, words)


def _in_order(steps):
  """By `step`, or else in the only order in which the steps chain."""
  if 'step' in steps[0][1]:
    return sorted(steps, key=lambda step: step[1]['step'])
  if _chains(steps):
    return steps
  balance = collections.Counter()
  leaving = collections.defaultdict(dict)  # state -> content -> steps
  near = collections.defaultdict(collections.Counter)  # of the steps left
  for step in steps:
    row = step[1]
    balance[row['state']] += 1
    balance[row['next_state']] -= 1
    leaving[row['state']].setdefault(_content(step), []).append(step)
    _tally(near, step, 1)
  starts = [state for state, surplus in balance.items() if surplus > 0]
  state, ordered = starts[0] if len(starts) == 1 else None, []
  while len(ordered) < len(steps):
    choices = [same for same in leaving[state].values() if same]
    if len(choices) > 1:
      choices = [same for same in choices if _leaves_a_chain(near, same[-1])]
    if len(choices) != 1:
      words = 'allowed: one that orders the steps of the attempt in one way'
      raise fields.wrong(
        steps[0][0], 'next_obs', logs.Words('none or several orders'), words
      )
    ordered.append(choices[0].pop())
    _tally(near, ordered[-1], -1)
    state = ordered[-1][1]['next_state']
  return ordered


def _tally(near, step, by):
  """Counts a step between its two states in, or out."""
  state, after = step[1]['state'], step[1]['next_state']
  for one, other in ((state, after), (after, state)):
    near[one][other] += by
    if not near[one][other]:
      del near[one][other]


def _leaves_a_chain(near, step):
  """Whether what is left hangs together when a step goes first.

  Looks around its two states in turn, so that a small part is soon known.
  """
  ends = step[1]['state'], step[1]['next_state']
  _tally(near, step, -1)
  seen, borders = [{end} for end in ends], [[end] for end in ends]
  together = ends[0] == ends[1] or not near[ends[0]]
  while not together and all(borders):
    for side in (0, 1):
      new = set(near[borders[side].pop()]) - seen[side]
      together |= not new.isdisjoint(seen[1 - side])
      seen[side] |= new
      borders[side] += new
  _tally(near, step, 1)
  return together
