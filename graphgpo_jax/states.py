"""Text -> integer: checks the rules between rows, numbers states and actions.

The only host work of credit assignment. Keys are exact (a dict per task, no
hashes kept), so no two texts can be taken for one another, and none for the
goal, which is a node without a text.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from graphgpo_jax.log import FLAGS, TEXTS, LogError, columns
from graphgpo_jax.merging import merge_states
from graphgpo_jax.types import Rollouts

# Sums of rewards and path lengths must stay float32 numbers.
RANGES = {
  'step': (np.int64, 0, 2**31 - 1, 'an integer from 0'),
  'reward': (
    np.float64,
    -1e30,
    1e30,
    'a finite number, up to 1e30 and 0 or at least 1e-30',
  ),
  'cost': (np.float64, 1e-30, 1e30, 'a number > 0, from 1e-30 to 1e30'),
}


@dataclasses.dataclass(frozen=True)
class Steps:
  """Checked, interned steps, sorted by task, attempt and step. Arrays [N].

  Attributes:
    row: index of the host row.
    task, attempt: dense numbers; attempts are numbered inside their task, in
      the order of their ids, so that the order of the rows changes nothing.
    step, state, next_state, action, reward, cost, valid, success: as in
      `Rollouts`; rewards in float64.
    last: bool, last step of its attempt.
    truncated: bool, on the last step of an attempt that was cut off.
    credited: bool, False for steps of earlier visits, that shape the graph
      only.
    tasks: ids of the tasks.
    attempts: per task, ids of attempts 0, 1, ...
    texts: per task, texts of nodes 1, 2, ...
  """

  row: np.ndarray
  task: np.ndarray
  attempt: np.ndarray
  step: np.ndarray
  state: np.ndarray
  next_state: np.ndarray
  action: np.ndarray
  reward: np.ndarray
  cost: np.ndarray
  valid: np.ndarray
  success: np.ndarray
  last: np.ndarray
  truncated: np.ndarray
  credited: np.ndarray
  tasks: list
  attempts: list
  texts: list

  def sizes(self):
    """Attempts, steps of the longest attempt and nodes per task, [tasks, 3]."""
    sizes = np.zeros((len(self.tasks), 3), np.int64)
    np.maximum.at(sizes[:, 0], self.task, self.attempt + 1)
    np.maximum.at(sizes[:, 1], self.task, self.step + 1)
    sizes[:, 2] = [len(texts) + 1 for texts in self.texts]
    return sizes


def intern(
  rows,
  *,
  shapes: Sequence[int | None] = (None,) * 4,
  merge: Callable | None = None,
) -> Rollouts:
  """Rows of any order -> one padded batch.

  Args:
    rows: mappings, `Transition`s, or a mapping of columns; see `columns`.
    shapes: sizes (B, M, T, K) to pad to; None takes the smallest that fits (K:
      the smallest power of two).
    merge: see `index_steps`.

  Returns:
    Rollouts of numpy arrays.

  Raises:
    LogError: a row breaks a rule.
    ValueError: the rows do not fit the shapes.
  """
  return pad(index_steps(columns(rows), merge=merge), shapes=shapes)


def index_steps(
  table: dict[str, list], *, merge: Callable | None = None
) -> Steps:
  """Checks the rules between rows and numbers tasks, attempts, states.

  Args:
    table: of `columns`.
    merge: of `merging.bind`: similar states of a task become one node. The
      rules are checked on the texts as they are.

  Raises:
    LogError: see the rules of the rollout log in the README.
    ValueError: there is no row.
  """
  if not table['task']:
    raise ValueError('no steps: at least one row is needed')
  numbers = _numbers(table)
  task, tasks = _codes(table['task'])
  attempt, pairs = _codes(list(zip(task.tolist(), table['attempt'])))
  rank, attempts = _rank_attempts(pairs, len(tasks))
  attempt = rank[attempt]
  order = np.lexsort((numbers['step'], attempt))
  arrays = {k: v[order] for k, v in numbers.items()}
  task, attempt = task[order], attempt[order]
  last = np.append(attempt[1:] != attempt[:-1], True)
  _check_order(arrays, last, order, attempt)
  keys = _intern_keys(table, task, order, arrays['success'])
  _check_chain(table, keys, last, order, arrays)
  if merge is not None:
    table = merge_states(table, merge)
    keys = _intern_keys(table, task, order, arrays['success'])
  first = np.full(len(tasks), len(pairs))
  np.minimum.at(first, task, attempt)
  cut = arrays.pop('truncated') | ~(arrays.pop('terminal') | arrays['success'])
  return Steps(
    row=order,
    task=task,
    attempt=attempt - first[task],
    last=last,
    truncated=last & cut,
    tasks=tasks,
    attempts=attempts,
    **arrays,
    **keys,
  )


def _codes(column):
  """Dense numbers of the values, and the values in order of number."""
  codes = defaultdict(itertools.count().__next__)
  numbers = np.fromiter(map(codes.__getitem__, column), np.int64, len(column))
  return numbers, list(codes)


def _rank_attempts(pairs, num_tasks):
  """Rank of each (task, id), integers before texts; and the ids per task."""
  ranked = sorted(
    range(len(pairs)),
    key=lambda i: (pairs[i][0], isinstance(pairs[i][1], str), pairs[i][1]),
  )
  rank = np.empty(len(pairs), np.int64)
  rank[ranked] = np.arange(len(pairs))
  attempts = [[] for _ in range(num_tasks)]
  for task, name in (pairs[i] for i in ranked):
    attempts[task].append(name)
  return rank, attempts


def _numbers(table):
  """Numeric columns as arrays; LogError for a value out of range."""
  flags = (*FLAGS, 'credited')
  arrays = {name: np.array(table[name], bool) for name in flags}
  for name, (dtype, low, high, words) in RANGES.items():
    try:
      values = np.array(table[name], dtype)
      fits = (values >= low) & (values <= high)
    except OverflowError:  # an integer beyond any machine number
      fits = np.array([low <= x <= high for x in table[name]])
    if name == 'reward' and fits.all():
      fits = (values == 0) | (abs(values) >= 1e-30)
    if not fits.all():
      bad = int(np.argmin(fits))
      raise LogError(bad, name, table[name][bad], words)
    arrays[name] = values
  both = arrays['terminal'] & arrays['truncated']
  if both.any():
    words = 'only one of terminal and truncated'
    raise LogError(int(np.argmax(both)), 'truncated', True, words)
  return arrays


def _check_order(arrays, last, order, attempt):
  """Steps 0..T_i-1, each once, and nothing after an end."""
  starts = np.append(0, np.flatnonzero(last)[:-1] + 1)
  lengths = np.diff([*starts, len(last)])
  position = np.arange(len(last)) - np.repeat(starts, lengths)
  wrong = arrays['step'] != position
  if wrong.any():
    at = int(np.argmax(wrong))
    words = f'{position[at]}: steps of an attempt are 0, 1, 2, ..., each once'
    raise LogError(int(order[at]), 'step', int(arrays['step'][at]), words)
  for name in ('terminal', 'truncated', 'success'):
    early = arrays[name] & ~last
    if early.any():
      at = int(np.argmax(early))
      words = 'only on the last step of an attempt'
      raise LogError(int(order[at]), name, True, words)
  credited = arrays['credited']
  mixed = (credited[1:] != credited[:-1]) & ~last[:-1]
  if mixed.any():
    at = int(np.argmax(mixed)) + 1
    words = 'one value for all steps of an attempt'
    raise LogError(int(order[at]), 'credited', bool(credited[at]), words)


def _intern_keys(table, task, order, success):
  """Task-local numbers of states and of (state, action) pairs."""
  rows, won = order.tolist(), success.tolist()
  states, actions, nexts = ([table[k][i] for i in rows] for k in TEXTS)
  bounds = np.append(np.flatnonzero(np.diff(task, prepend=-1)), len(task))
  state, after, action = np.zeros((3, len(task)), np.int64)
  texts = []
  for low, high in itertools.pairwise(bounds.tolist()):
    nodes = defaultdict(itertools.count(1).__next__)
    here = list(map(nodes.__getitem__, states[low:high]))
    after[low:high] = [
      0 if goal else nodes[text]
      for goal, text in zip(won[low:high], nexts[low:high])
    ]
    state[low:high] = here
    pairs = defaultdict(itertools.count().__next__)
    both = zip(here, actions[low:high])
    action[low:high] = list(map(pairs.__getitem__, both))
    texts.append(list(nodes))
  return {'state': state, 'next_state': after, 'action': action, 'texts': texts}


def _check_chain(table, keys, last, order, arrays):
  """next_state of step t is the state of step t + 1."""
  broken = (keys['next_state'][:-1] != keys['state'][1:]) & ~last[:-1]
  if broken.any():
    at = int(np.argmax(broken)) + 1
    words = "equal to next_state of the attempt's step before"
    found = table['state'][order[at]]
    raise LogError(int(order[at]), 'state', found, words)


def power_of_two(number: int) -> int:
  """The smallest power of two that is at least number."""
  return 1 << max(int(number) - 1, 0).bit_length()


def select(steps: Steps, tasks: np.ndarray) -> Steps:
  """The steps of some tasks (numbers, ascending), which are renumbered."""
  place = np.full(len(steps.tasks), -1)
  place[tasks] = np.arange(len(tasks))
  fields = _columns(steps, place[steps.task] >= 0)
  return Steps(
    **(fields | {'task': place[fields['task']]}),
    tasks=[steps.tasks[task] for task in tasks],
    attempts=[steps.attempts[task] for task in tasks],
    texts=[steps.texts[task] for task in tasks],
  )


def credited_only(steps: Steps) -> Steps:
  """The steps of this visit, without those that shape the graph only."""
  return dataclasses.replace(steps, **_columns(steps, steps.credited))


def _columns(steps, kept):
  arrays = {k: v for k, v in vars(steps).items() if isinstance(v, np.ndarray)}
  return {name: values[kept] for name, values in arrays.items()}


def pad(
  steps: Steps, *, shapes: Sequence[int | None] = (None,) * 4
) -> Rollouts:
  """Steps as one padded batch.

  Raises:
    ValueError: the steps do not fit the shapes (B, M, T, K).
  """
  need = (len(steps.tasks), *steps.sizes().max(0).tolist())
  smallest = (*need[:3], power_of_two(need[3]))
  shapes = tuple(s if s is not None else n for s, n in zip(shapes, smallest))
  if any(s < n for s, n in zip(shapes, need)):
    raise ValueError(
      'rollouts do not fit: (tasks, attempts, steps, nodes) are '
      f'{need}, the shapes {shapes}'
    )
  at = (steps.task, steps.attempt, steps.step)

  def padded(values, dtype, fill=0):
    array = np.full(shapes[:3], fill, dtype)
    array[at] = values
    return array

  mask = padded(True, bool, False)
  cut = np.zeros(shapes[:2], bool)
  cut[steps.task[steps.truncated], steps.attempt[steps.truncated]] = True
  return Rollouts(
    state=padded(steps.state, np.int32),
    next_state=padded(steps.next_state, np.int32),
    action=padded(steps.action, np.int32),
    reward=padded(steps.reward, np.float32),
    cost=padded(steps.cost, np.float32, 1),
    valid=padded(steps.valid, bool, True),
    success=padded(steps.success, bool),
    mask=mask,
    credited=padded(steps.credited, bool, False),
    truncated=cut,
    episode_return=_sums(steps.reward, at, shapes[:2]),
    row=padded(steps.row, np.int32, -1),
    num_nodes=shapes[3],
  )


def _sums(reward, at, shape):
  """Sum of rewards per attempt in float64; 0 where they cancel."""
  slot = np.ravel_multi_index(at[:2], shape)
  size = np.prod(shape)
  total = np.bincount(slot, reward, size)
  magnitude = np.bincount(slot, abs(reward), size)
  total[abs(total) <= 1e-12 * magnitude] = 0
  return total.reshape(shape).astype(np.float32)
