"""Which invariants a credit scheme keeps, tried on generated rollouts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from graphgpo_jax import graph as graphs
from graphgpo_jax import states
from graphgpo_jax.types import CreditFn

SHAPE = (3, 7, 9, 8)  # tasks, attempts, steps, nodes: compiled once for all
ROUNDING = 2e-4  # of the largest credit: what another order of sums may change


@dataclasses.dataclass(frozen=True)
class Report:
  """What `check` found.

  Attributes:
    holds: by invariant, whether no batch broke it.
    notes: by invariant, what broke it, '' if nothing did.
  """

  holds: dict[str, bool]
  notes: dict[str, str]

  def __str__(self):
    width = max(map(len, self.holds))
    return '\n'.join(
      f'{name:{width}}  holds' if held else f'{name:{width}}  BROKEN  {note}'
      for (name, held), note in zip(self.holds.items(), self.notes.values())
    )


def check(fn: CreditFn, *, seed: int = 0, show: bool = True) -> Report:
  """Runs a scheme over generated rollouts and reports which invariants hold.

    padding       more padding changes nothing, padding gets exactly 0
    order         the order of tasks, attempts and rows changes nothing
    tasks         other tasks in the batch change nothing
    jit           jit equals the plain call
    vmap          vmap over tasks equals the plain batch
    finite        no nan or inf, also at extreme rewards, costs and distances
    ties          attempts that are all alike get exactly 0
    gradient      nothing to differentiate: the gradient is exactly 0
    scale         rewards times 4 change nothing
    monotone      among the steps from one state, less distance left, the own
                  cost included, never has less credit (4.1 of the paper)
    edges         steps with the same state, action, next state and cost have
                  the same credit, whatever became of their attempts (4.2)

  Not every good scheme keeps all: comparisons of returns break the last two.
  These are tried on rollouts whose returns are all equal, so that the episode
  term is 0 under reward_source 'log'; they also fail if no credit differs.

  Args:
    fn: (Rollouts, GraphsTuple) -> [B, M, T], keywords bound, as of `bind`.
    seed: of the rollouts, an integer >= 0.
    show: print the report as a table.

  Returns:
    The report. A scheme that raises, or returns no floats of this shape, breaks
    the invariant; the note says how.

  Raises:
    ValueError: not a function, or no such seed.
  """
  if not callable(fn):
    raise ValueError(f'scheme: found {ascii(fn)[:60]}, allowed: a function')
  if type(seed) is not int or seed < 0:
    raise ValueError(f'seed: found {ascii(seed)[:60]}, allowed: 0, 1, 2, ...')
  scheme = _Scheme(fn, jax.jit(lambda x: fn(x, graphs.build_graph(x))), seed)
  notes = {}
  for name, test in CHECKS.items():
    try:
      notes[name] = test(scheme)
    except (Exception, SystemExit) as problem:  # a user's function may do all
      words = ' '.join(str(problem).split())[:100]
      notes[name] = f'{type(problem).__name__}: {words}'
  report = Report({name: not note for name, note in notes.items()}, notes)
  if show:
    print(report)
  return report


@dataclasses.dataclass(frozen=True)
class _Scheme:
  """The function, the function of Rollouts alone, jitted, and the seed."""

  fn: CreditFn
  run: CreditFn
  seed: int

  def credit(self, rows, shape=SHAPE):
    """Credit in row order; raises where padding is not 0."""
    rollouts = states.intern(rows, shapes=shape)
    return _by_row(rollouts, self.run(rollouts))


def _by_row(rollouts, credit):
  credit, shape = np.asarray(credit), rollouts.mask.shape
  if credit.shape != shape or not jnp.issubdtype(credit.dtype, jnp.floating):
    raise ValueError(
      f'returns {credit.dtype} of shape {credit.shape}, allowed: floats of '
      f'shape {shape}'
    )
  if (credit[~rollouts.mask] != 0).any():
    raise ValueError('padding gets credit')
  result = np.zeros(rollouts.mask.sum())
  result[rollouts.row[rollouts.mask]] = credit[rollouts.mask]
  return result


def _difference(found, expected):
  """'' if equal to rounding, otherwise what differs most."""
  if not np.isfinite(found).all() or not np.isfinite(expected).all():
    return 'not finite'
  worst = abs(found - expected).max()
  if worst <= ROUNDING * max(abs(expected).max(), 1e-6):
    return ''
  return f'differs by {worst:.2g}, largest credit {abs(expected).max():.2g}'


def _rows(
  seed,
  *,
  success=0.5,
  rewards=(0.0, 1.0, -0.1),
  prize=10.0,
  consolation=0.0,
  costs=(1.0,),
  valid=0.8,
):
  """Walks between six places, with outcomes that no action decides."""
  rng = np.random.default_rng(seed)
  rows = []
  for task, attempt in np.ndindex(SHAPE[:2]):
    length = int(rng.integers(1, SHAPE[2] + 1))
    places = rng.integers(6, size=length + 1)
    solved = bool(rng.random() < success)
    final = prize if solved else consolation
    for step in range(length):
      last = step == length - 1
      rows.append(
        {
          'task': task,
          'attempt': attempt,
          'step': step,
          'state': f'place {places[step]}',
          'action': f'move {rng.integers(2)}',
          'next_state': f'place {places[step + 1]}',
          'reward': float(rng.choice(rewards)) + final * last,
          'cost': float(rng.choice(costs)),
          'success': solved and last,
          'terminal': last,
          'truncated': False,
          'valid': bool(rng.random() < valid),
        }
      )
  return rows


def _padding(scheme):
  rows = _rows(scheme.seed)
  larger = tuple(n + m for n, m in zip(SHAPE, (1, 2, 4, 8)))
  return _difference(scheme.credit(rows, larger), scheme.credit(rows))


def _order(scheme):
  rows = _rows(scheme.seed)
  order = np.random.default_rng(scheme.seed).permutation(len(rows))
  other = [
    rows[i] | {'attempt': (3 * rows[i]['attempt'] + 2) % 7} for i in order
  ]
  return _difference(scheme.credit(other), scheme.credit(rows)[order])


def _tasks(scheme):
  other = {'rewards': (0.0, 50.0, -3.0), 'success': 1.0, 'costs': (4.0,)}
  rows, others = _rows(scheme.seed), _rows(scheme.seed + 1, **other)
  kept = [row for row in rows if row['task'] == 0]
  mixed = kept + [row for row in others if row['task']]
  found, expected = scheme.credit(mixed), scheme.credit(rows)
  return _difference(found[: len(kept)], expected[: len(kept)])


def _jit(scheme):
  rollouts = states.intern(_rows(scheme.seed), shapes=SHAPE)
  plain = scheme.fn(rollouts, graphs.build_graph(rollouts))
  return _difference(np.asarray(scheme.run(rollouts)), np.asarray(plain))


def _vmap(scheme):
  rollouts = states.intern(_rows(scheme.seed), shapes=SHAPE)
  single = jax.tree.map(lambda x: x[:, None], rollouts)
  found = np.asarray(jax.jit(jax.vmap(scheme.run))(single))
  return _difference(found[:, 0], np.asarray(scheme.run(rollouts)))


def _finite(scheme):
  cases = {
    'no success': {'success': 0.0},
    'large rewards': {'rewards': (1e6, -1e6, 1e-6)},
    'no rewards': {'rewards': (0.0,), 'prize': 0.0},
    'large costs': {'costs': (1e-3, 1.0, 1e4)},
    'one action invalid': {'valid': 0.0},
  }
  for name, settings in cases.items():
    credit = scheme.credit(_rows(scheme.seed, **settings))
    if not np.isfinite(credit).all():
      return name
  return ''


def _ties(scheme):
  values = (0.35, 9.9, -0.1)
  rows = [
    row | {'reward': values[row['task']], 'state': 'a', 'next_state': 'b'}
    for row in _rows(scheme.seed, valid=1.0)
    if row['step'] == 0
  ]
  for row in rows:
    solved = row['task'] == 1
    row |= {'success': solved, 'terminal': True, 'action': 'move'}
  worst = abs(scheme.credit(rows)).max()
  return '' if worst == 0 else f'found {worst:.2g}'


def _gradient(scheme):
  rollouts = states.intern(_rows(scheme.seed), shapes=SHAPE)
  names = ('reward', 'cost', 'episode_return')
  weights = np.random.default_rng(scheme.seed).normal(size=SHAPE[:3])

  def total(values):
    return (scheme.run(rollouts.replace(**values)) * weights).sum()

  values = {name: jnp.asarray(getattr(rollouts, name)) for name in names}
  found = jax.grad(total)(values)
  moved = [name for name in names if (np.asarray(found[name]) != 0).any()]
  return f'to {", ".join(moved)}' if moved else ''


def _scale(scheme):
  rows = _rows(scheme.seed, valid=1.0)
  larger = [row | {'reward': 4 * row['reward']} for row in rows]
  return _difference(scheme.credit(larger), scheme.credit(rows))


def _equal_returns(scheme):
  """Rows of equal returns, in three settings."""
  quiet = {'rewards': (0.0,), 'valid': 1.0}
  yield _rows(scheme.seed, success=1.0, **quiet)
  yield _rows(scheme.seed, success=1.0, costs=(0.5, 1.0, 3.0), **quiet)
  yield _rows(scheme.seed, consolation=10.0, **quiet)


def _monotone(scheme):
  for rows in _equal_returns(scheme):
    rollouts = states.intern(rows, shapes=SHAPE)
    graph = graphs.build_graph(rollouts)
    distance = graphs.goal_distances(graph, steps=SHAPE[2])
    distance = graphs.fill_unreachable(distance, graph)
    left = graphs.node_values(distance, rollouts.next_state) + rollouts.cost
    left = _by_row(rollouts, left * rollouts.mask)
    credit, rises = scheme.credit(rows), 0
    for members in _groups(rows, 'task', 'state'):
      order = members[np.argsort(left[members], kind='stable')]
      nearer, further = order[:-1], order[1:]
      apart = left[further] - left[nearer] > 1e-4
      gain = (credit[nearer] - credit[further])[apart]
      if (gain < -1e-5).any():
        return f'a nearer step has {-gain.min():.2g} less credit'
      rises += (gain > 0).sum()
    if not rises:
      return 'no credit differs'
  return ''


def _edges(scheme):
  for rows in _equal_returns(scheme):
    credit = scheme.credit(rows)
    fields = ('task', 'state', 'action', 'next_state', 'cost', 'success')
    for members in _groups(rows, *fields):
      if np.ptp(credit[members]) > ROUNDING * abs(credit).max():
        return f'one edge has credits {np.ptp(credit[members]):.2g} apart'
    if not credit.any():
      return 'no credit differs'
  return ''


def _groups(rows, *fields):
  """Row numbers of the rows that agree on fields, as arrays."""
  groups = {}
  for number, row in enumerate(rows):
    groups.setdefault(tuple(row[x] for x in fields), []).append(number)
  return [np.array(members) for members in groups.values()]


CHECKS = {
  'padding': _padding,
  'order': _order,
  'tasks': _tasks,
  'jit': _jit,
  'vmap': _vmap,
  'finite': _finite,
  'ties': _ties,
  'gradient': _gradient,
  'scale': _scale,
  'monotone': _monotone,
  'edges': _edges,
}
