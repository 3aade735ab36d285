"""Graphs and distances against scipy, jraph's conventions, padding."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.csgraph
from rollouts import attempt_rows, random_rows

from graphgpo_jax import graph as graphs
from graphgpo_jax import states


def random_batch(seed, *, tasks=2, attempts=4, steps=16, nodes=24):
  """Any edges at all, not only walks: random ends, costs, padding."""
  rng = np.random.default_rng(seed)
  shape = (tasks, attempts, steps)
  rollouts = states.intern(
    random_rows(seed, tasks=tasks, attempts=attempts, steps=steps),
    shapes=(*shape, 32),
  )
  used = int(rng.integers(2, nodes))
  return rollouts.replace(
    state=rng.integers(1, used, shape).astype(np.int32),
    next_state=rng.integers(0, used, shape).astype(np.int32)
    * (rng.random(shape) < 0.97),
    cost=rng.uniform(0.01, 20, shape).astype(np.float32),
    mask=rng.random(shape) < rng.uniform(0.1, 1),
  )


def dijkstra(graph):
  """scipy's distances to node 0 of one unbatched graph."""
  keep = np.asarray(graph.edges['mask'])
  size = int(graph.n_node[0])
  best = {}
  for s, r, c in zip(
    np.asarray(graph.senders)[keep],
    np.asarray(graph.receivers)[keep],
    np.asarray(graph.edges['cost'], np.float64)[keep],
  ):
    best[r, s] = min(c, best.get((r, s), np.inf))
  matrix = scipy.sparse.lil_matrix((size, size))
  for (r, s), c in best.items():
    if r != s:
      matrix[r, s] = c
  return scipy.sparse.csgraph.dijkstra(matrix.tocsr(), indices=0)


def test_distances_equal_scipy_on_200_random_graphs():
  run = jax.jit(graphs.goal_distances, static_argnames=('steps', 'method'))
  unreachable = 0
  for seed in range(100):  # two tasks each
    graph = jax.jit(graphs.build_graph)(random_batch(seed))
    expected = np.concatenate([dijkstra(g) for g in jraph.unbatch(graph)])
    unreachable += np.isinf(expected).sum()
    for method in graphs.METHODS:
      found = run(graph, steps=16, method=method)
      np.testing.assert_allclose(found, expected, rtol=2e-6)
  assert unreachable > 100


@pytest.mark.parametrize('method', graphs.METHODS)
def test_path_through_many_attempts_is_longer_than_any_of_them(method):
  # Attempt i makes one step, from place i + 1 to place i.
  rows = []
  for i in range(40):
    rows += attempt_rows([f'p{i + 1}', f'p{i}'], attempt=i, success=i == 0)
  rollouts = states.intern(rows)
  graph = graphs.build_graph(rollouts)
  distance = graphs.goal_distances(graph, steps=1, method=method)
  found = distance[rollouts.state[0, :, 0]]
  np.testing.assert_array_equal(found, np.arange(1, 41))


def test_unknown_method_is_named():
  graph = graphs.build_graph(states.intern(random_rows(0)))
  with pytest.raises(ValueError, match="'dijkstra', allowed: sweep, bellman"):
    graphs.goal_distances(graph, steps=12, method='dijkstra')


def test_graph_follows_jraph_conventions():
  rollouts = states.intern(random_rows(3, tasks=4))
  graph = graphs.build_graph(rollouts)
  parts = jraph.unbatch(graph)
  assert len(parts) == 4
  for b, part in enumerate(parts):
    edges = int(rollouts.mask[b].sum())
    assert int(part.edges['mask'].sum()) == edges
    mask = np.asarray(part.edges['mask'])
    pairs = zip(
      np.asarray(part.senders)[mask], np.asarray(part.receivers)[mask]
    )
    kept = rollouts.mask[b]
    expected = zip(rollouts.state[b][kept], rollouts.next_state[b][kept])
    assert sorted(pairs) == sorted(expected)
    used = set(rollouts.state[b][kept]) | set(rollouts.next_state[b][kept])
    np.testing.assert_array_equal(
      np.flatnonzero(part.nodes['mask']), sorted(used | {0})
    )
    np.testing.assert_array_equal(np.flatnonzero(part.nodes['is_goal']), [0])
  steps = np.asarray(graphs.step_values(graph.edges['step'], rollouts))
  assert (steps == np.arange(rollouts.state.shape[2])).all()


def test_step_values_invert_edge_values():
  rollouts = states.intern(random_rows(4))
  values = np.random.default_rng(0).normal(size=rollouts.state.shape)
  there = graphs.edge_values(jnp.asarray(values))
  back = graphs.step_values(there, rollouts)
  np.testing.assert_array_equal(back, values.astype(np.float32))
  _, attempts, steps = values.shape
  edge = attempts * steps + 3 * attempts + 2  # of task 1, step 3, attempt 2
  assert there[edge] == np.float32(values[1, 2, 3])


def test_unreachable_nodes_lie_one_largest_cost_beyond_the_furthest():
  rows = attempt_rows(['a', 'b', 'goal'])
  rows += attempt_rows(['a', 'c', 'd'], attempt=1, success=False)
  for row, cost in zip(rows, (2.0, 0.5, 3.0, 1.0)):
    row['cost'] = cost
  rollouts = states.intern(rows)
  graph = graphs.build_graph(rollouts)
  raw = graphs.goal_distances(graph, steps=2)
  filled = graphs.fill_unreachable(raw, graph)
  after = filled[rollouts.next_state[0]]
  np.testing.assert_allclose(after, [[0.5, 0.0], [5.5, 5.5]])
  assert np.isinf(raw[rollouts.next_state[0, 1]]).all()


def test_without_success_all_but_the_goal_are_one_cost_away():
  rows = attempt_rows(['a', 'b', 'c'], success=False)
  graph = graphs.build_graph(states.intern(rows))
  raw = graphs.goal_distances(graph, steps=2)
  filled = np.asarray(graphs.fill_unreachable(raw, graph))
  np.testing.assert_array_equal(filled, [0, 1, 1, 1])


@pytest.mark.parametrize('method', graphs.METHODS)
def test_chain_that_runs_backwards_in_time(method):
  # Each attempt jumps back to a state that the next one leaves earlier.
  rows = attempt_rows(['e', 'd', 'x', 'y', 'z'], success=False)
  rows += attempt_rows(['d', 'c', 'x2', 'y2', 'z2'], attempt=1, success=False)
  rows += attempt_rows(['c', 'b'], attempt=2, success=False)
  rows += attempt_rows(['b', 'goal'], attempt=3)
  rollouts = states.intern(rows)
  graph = graphs.build_graph(rollouts)
  distance = graphs.goal_distances(graph, steps=4, method=method)
  first = np.asarray(distance)[rollouts.state[0, :, 0]]
  np.testing.assert_array_equal(first, [4, 3, 2, 1])
