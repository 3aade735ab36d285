"""Values on the graph: two solvers, softened and expected distances."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_schemes as oracles
from credited import SHAPE, STEP_TERM, batch, found
from rollouts import attempt_rows, random_rows

from graphgpo_jax import credit as credits
from graphgpo_jax import graph as graphs
from graphgpo_jax import segments, states, values

BENCHMARKS = pathlib.Path(__file__).parents[1] / 'benchmarks'


def test_crbc_without_discount_is_reachability_on_chains():
  rows = attempt_rows(['a', 'b', 'c', 'd', 'goal'])
  rows += attempt_rows(['e', 'f', 'g', 'h'], attempt=1, success=False)
  rollouts = states.intern(rows)
  graph = graphs.build_graph(rollouts)
  reachable = np.isfinite(graphs.goal_distances(graph, steps=4))
  assert reachable.sum() == 5
  for solver in ('dense', 'iteration'):
    value = values.mean_values(graph, discount=1.0, solver=solver)
    np.testing.assert_allclose(value, reachable, atol=1e-6)
    near = values.mean_values(graph, discount=1 - 1e-6, solver=solver)
    np.testing.assert_allclose(near, reachable, atol=1e-5)


@pytest.mark.parametrize('discount', [0.95, 0.98])
def test_dense_equals_iteration(discount):
  for seed in range(3):
    *_, graph = batch(seed)
    dense, iterated = (
      values.mean_values(graph, discount=discount, solver=solver)
      for solver in ('dense', 'iteration')
    )
    assert ((dense > 0.01) & (dense < 0.9)).sum() > 10
    np.testing.assert_allclose(dense, iterated, rtol=2e-5)


def slow_rows(length=30):
  """A task of one way and its setbacks: many rounds until its values settle."""
  rows = attempt_rows([f'p{i}' for i in range(length, -1, -1)], task='slow')
  for i in range(1, length):
    back = [f'p{i}', f'p{min(i + 3, length)}']
    rows += attempt_rows(back, task='slow', attempt=i, success=False)
    rows[-1]['terminal'], rows[-1]['truncated'] = False, True
    rows += attempt_rows([*back, f'p{i}'], task='slow', attempt=99 + i)
    rows[-1]['success'] = False
  return rows


@pytest.mark.parametrize('solver', ['dense', 'iteration'])
def test_a_task_alone_has_the_same_values_to_the_last_bit(solver, monkeypatch):
  monkeypatch.setattr(values, 'DENSE_ENTRIES', 3 * 64**2)  # 3 tasks at a time
  rows = random_rows(20, tasks=1, costs=True)
  others = slow_rows() + random_rows(21, tasks=7, costs=True)
  others = [row | {'task': f'z {row["task"]}'} for row in others]
  run = jax.jit(
    lambda graph: values.mean_values(graph, discount=0.98, solver=solver)
  )
  soft = jax.jit(
    lambda graph: values.soft_distances(graph, omega=0.8, power=2.0)
  )
  alone, among = (
    states.intern(table, shapes=(size, 60, 31, 64))
    for size, table in ((1, rows), (9, rows + others))
  )
  for fn in (run, soft):
    first = np.asarray(fn(graphs.build_graph(alone)))
    both = np.asarray(fn(graphs.build_graph(among)))
    np.testing.assert_array_equal(both[:64], first)
    assert len(set(first)) > 5 and not np.array_equal(both[64:128], first)


def test_nodes_of_a_task_alone_choose_the_solver(monkeypatch):
  chosen = []
  for name in ('_solve', '_approach'):
    monkeypatch.setattr(values, name, lambda *_, name=name: chosen.append(name))
  monkeypatch.setattr(values, 'DENSE_NODES', 16)
  for tasks, nodes in ((1, 16), (40, 16), (1, 32), (40, 32)):
    rollouts = states.intern(random_rows(0), shapes=(tasks + 2, 5, 12, nodes))
    values.mean_values(graphs.build_graph(rollouts), discount=0.9)
  assert chosen == ['_solve', '_solve', '_approach', '_approach']


def test_large_tasks_do_not_pad_small_ones_to_another_solver(monkeypatch):
  monkeypatch.setattr(credits, 'DENSE_NODES', 8)
  sizes = np.array([[4, 5, 6], [4, 5, 20], [2, 3, 8], [3, 9, 9]])
  found = {tuple(tasks): shape for tasks, shape in credits._buckets(sizes)}
  assert found == {(0, 2): (2, 4, 8, 8), (1, 3): (2, 4, 16, 32)}


def test_values_of_both_solvers_keep_their_digits():
  """Down to the smallest value, against a float64 solution."""
  length = 40
  rows = attempt_rows([f'p{i}' for i in range(length, -1, -1)])
  for i in range(1, length + 1):
    rows += attempt_rows([f'p{i}', f'p{min(i + 2, length)}'], attempt=i)
    rows[-1] |= {'success': False}
  exact = oracles.mean_values(rows, 0.95)
  rollouts = states.intern(rows)
  graph = graphs.build_graph(rollouts)
  for solver in ('dense', 'iteration'):
    value = values.mean_values(graph, discount=0.95, solver=solver)
    here = np.asarray(graphs.node_values(value, rollouts.state))
    here = here[0][rollouts.mask[0]]
    expected = np.array([exact['x', row['state']] for row in rows])
    assert 0 < expected.min() < 1e-9
    np.testing.assert_allclose(here, expected, rtol=1e-4)


def test_where_no_way_leads_to_the_goal_no_value_is_left(monkeypatch):
  monkeypatch.syspath_prepend(BENCHMARKS)
  import credit as benchmark  # the script, not graphgpo_jax.credit

  rollouts = states.intern(benchmark.walks(16, 8, 50, seed=1))
  graph = graphs.build_graph(rollouts)
  ways = graphs.without_failed_ends(graph)
  lost = np.isinf(graphs.goal_distances(ways, steps=50))
  lost &= np.asarray(graph.nodes['mask'])
  assert lost.sum() > 20
  solvers = ('dense', 'iteration')
  dense, iterated = (
    np.asarray(values.mean_values(graph, discount=1.0, solver=solver))
    for solver in solvers
  )
  assert dense[lost].max() < 1e-8 and iterated[lost].max() == 0
  np.testing.assert_allclose(dense[~lost], iterated[~lost], rtol=4e-5)


def test_unknown_solver_is_named():
  _, _, graph = batch(0)
  with pytest.raises(ValueError, match="'lu', allowed: auto, dense"):
    values.mean_values(graph, discount=0.9, solver='lu')


def test_power_mean_of_one_is_the_phi_of_graphhca():
  for omega in (0.1, 0.8):
    _, _, graph = batch(9)
    ways = graphs.without_failed_ends(graph)
    soft = values.soft_distances(ways, omega=omega, power=1.0)
    chance = values.mean_values(graph, discount=omega)
    assert (np.asarray(chance) > 0).sum() > 20
    np.testing.assert_allclose(omega**soft, chance, rtol=3e-4)


def test_soft_graphgpo_of_power_one_scores_by_phi():
  settings = STEP_TERM | {'omega': 0.8, 'mode': 'mean_norm'}
  rows, rollouts, graph = batch(9)
  ours = found(
    rows,
    'graphgpo',
    backup='soft',
    power=1.0,
    failed_ends='nothing',
    exponent='next_distance',
    **settings,
  )
  value = oracles.mean_values(rows, 0.8)
  after = oracles.ends(rows)
  solved = {row['task'] for row in rows if row['success']}
  compared = 0
  for members in oracles.groups(rows, 'task', 'state'):
    reward = np.array([10 * value[after[n]] for n in members])
    if rows[members[0]]['task'] in solved and (reward > 0).all():
      expected = reward - reward.mean()
      np.testing.assert_allclose(ours[members], expected, atol=5e-3)
      compared += len(members)
  assert compared > 30


def same_order(credit, other, rows):
  """How many pairs of steps of a state differ; all must in the same way."""
  pairs = 0
  for members in oracles.groups(rows, 'task', 'state'):
    gap = credit[members][:, None] - credit[members]
    theirs = other[members][:, None] - other[members]
    assert (theirs[gap > 1e-3] > 0).all()
    pairs += (gap > 1e-3).sum()
  return pairs


def test_the_other_end_of_the_power_mean_is_the_order_of_graphgpo():
  for seed in (10, 11):
    rows, *_ = batch(seed)
    settings = STEP_TERM | {'omega': 0.8}
    least = found(rows, 'graphgpo', **settings)
    soft = found(rows, 'graphgpo', backup='soft', power=1e5, **settings)
    np.testing.assert_allclose(soft, least, atol=2e-3)
    ends = {'failed_ends': 'nothing'}
    least = found(rows, 'graphgpo', **settings, **ends)
    hca = found(rows, 'graphhca', power=1e4, floor=1e-6, **STEP_TERM)
    assert same_order(least, hca, rows) > 50


def slippery_rows(seed, attempts=40):
  """A shortcut that mostly slips into a pit, beside a way round that holds."""
  rng, rows = np.random.default_rng(seed), []
  for attempt in range(attempts):
    if attempt % 2:
      path = ['start', 'bend', 'bridge', 'goal']
    else:
      path = ['start', 'goal' if rng.random() < 0.1 else 'pit']
    won = path[-1] == 'goal'
    more = attempt_rows(path, attempt=attempt, success=won)
    more[0]['action'] = 'walk' if attempt % 2 else 'jump'
    rows += more
  return rows


def test_expected_backup_does_not_credit_luck():
  rows = slippery_rows(0)
  first = [n for n, row in enumerate(rows) if row['step'] == 0]
  jump = [n for n in first if rows[n]['action'] == 'jump']
  walk = [n for n in first if rows[n]['action'] == 'walk']
  lucky = [n for n in jump if rows[n]['success']]
  assert 1 <= len(lucky) <= 4
  settings = STEP_TERM | {'omega': 0.8}
  shapes = (1, 40, 3, 8)
  least = found(rows, 'graphgpo', shapes, **settings)
  assert least[lucky].min() > 1 > least[walk].max()
  fair = found(rows, 'graphgpo', shapes, backup='expected', **settings)
  assert fair[walk].min() > 0 > fair[jump].max()
  assert np.ptp(fair[jump]) < 1e-6  # luck does not tell them apart
  for row in rows:  # one outcome per action: nothing to average
    row['action'] += row['next_state']
  calm = found(rows, 'graphgpo', shapes, backup='expected', **settings)
  np.testing.assert_allclose(calm, least, atol=1e-5)


def test_expected_credit_follows_expected_distances():
  """An action that wins more often than not, and is still the longer way."""
  rows = attempt_rows(['start', 'bend', 'goal'])
  for attempt in range(1, 6):
    won = attempt < 4
    end = 'goal' if won else 'pit'
    rows += attempt_rows(['start', end], attempt=attempt, success=won)
    rows[-1]['action'] = 'jump'
  rows += attempt_rows(['start', 'ditch'], attempt=6, success=False)
  rows[-1]['action'] = 'dig'
  rollouts = states.intern(rows)
  graph = graphs.build_graph(rollouts)
  distance = values.expected_distances(graph, omega=0.8)
  assert distance[rollouts.state[0, 0, 0]] == 2  # 0.8 ** 2 > 0.6 * 0.8
  credit = found(
    rows, 'graphgpo', (1, 7, 2, 8), backup='expected', omega=0.8, **STEP_TERM
  )
  jump = credit[[2, 3, 4, 5, 6]]
  assert credit[0] > jump.max() == jump.min() > credit[7]
  # omega^length: 0.8 ** 2, 0.6 * 0.8 and, one step more than the longest, that
  # times 0.8.
  reward = np.array([0.64, *[0.48] * 5, 0.48 * 0.8])
  expected = (reward - reward.mean()) / reward.std(ddof=1)
  np.testing.assert_allclose(credit[[0, *range(2, 8)]], expected, rtol=1e-4)


def test_expected_distances_equal_value_iteration():
  rows, rollouts, graph = batch(12)
  for row in rows:  # three actions, so that their outcomes differ
    row['action'] = str(int(row['next_state'][-1]) % 3)
  rollouts = states.intern(rows, shapes=SHAPE)
  graph = graphs.without_failed_ends(graphs.build_graph(rollouts))
  for omega in (0.3, 0.8):
    distance = values.expected_distances(graph, omega=omega)
    here = np.asarray(graphs.node_values(distance, rollouts.state))
    ours = np.zeros(len(rows))
    ours[rollouts.row[rollouts.mask]] = omega ** here[rollouts.mask]
    exact = oracles.expected_values(rows, omega)
    expected = [exact[row['task'], row['state']] for row in rows]
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-12)


def test_distant_states_do_not_underflow_in_soft_distances():
  rows = attempt_rows([f'p{i}' for i in range(80, -1, -1)])
  graph = graphs.build_graph(states.intern(rows))
  for power in (1.0, 10.0, 1e6):
    distance = values.soft_distances(graph, omega=0.1, power=power)
    np.testing.assert_allclose(distance[1:81], np.arange(80, 0, -1), rtol=1e-5)


def test_pairs_share_a_number_if_and_only_if_they_are_equal():
  number = jax.jit(segments.pair_segments)
  for seed, many in ((0, 3), (1, 40), (2, 10**6)):
    rng = np.random.default_rng(seed)
    first, second = rng.integers(0, many, (2, 30, 50)).astype(np.int32)
    mask = rng.random((30, 50)) < 0.9
    ids = np.asarray(number(first, second, mask))
    pairs = list(zip(first[mask], second[mask]))
    assert len(set(zip(pairs, ids[mask]))) == len(set(pairs))
    assert len(set(ids[mask])) == len(set(pairs))
    assert ids.min() >= 0 and ids.max() < ids.size


def test_means_of_equal_values_are_exact():
  value = np.float32(0.35)
  mean = segments.means(
    jnp.full(777, value),
    jnp.zeros(777, int),
    jnp.ones(777, bool),
    num_segments=2,
  )
  np.testing.assert_array_equal(mean, [value, 0])
