"""Values of states on the pooled graph, and distances softened by frequency.

Pure functions on arrays, shared by the schemes that look beyond the least path.
"""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax.graph import (
  backward_sweep,
  last_steps,
  node_values,
  settle,
)
from graphgpo_jax.types import Rollouts

SOLVERS = ('auto', 'dense', 'iteration')
DENSE_NODES = 512  # of a task; beyond, 'auto' iterates
DENSE_ENTRIES = 1 << 25  # of the matrices that are solved at a time
MOST_ROUNDS = 10_000  # where sums in another order keep the last bit moving
TIE = 1e-4  # relative; equal values of a linear system differ by less


def values_after(
  values: jax.Array, rollouts: Rollouts, *, success: float, failure: float
) -> jax.Array:
  """Value of where every step led: of its next state, or of the end.

  Args:
    values: [V].
    rollouts: arrays [B, M, T].
    success: value of the goal.
    failure: value after a failed or truncated last step.

  Returns:
    [B, M, T].
  """
  after = node_values(values, rollouts.next_state)
  after = jnp.where(last_steps(rollouts), failure, after)
  return jnp.where(rollouts.success, success, after)


def soft_distances(
  graph: jraph.GraphsTuple, *, omega: float, power: float
) -> jax.Array:
  """Distances d of which omega^d is a power mean over the edges of a state.

    omega^d(s) = (mean over edges s -> s' of omega^(p (cost + d(s'))))^(1 / p)

  p = 1 is the mean (`mean_values`, where failed ends lead nowhere), p ->
  infinity the best edge (`goal_distances`). Lengths, so nothing underflows.

  Args:
    graph: of `build_graph` or `without_failed_ends`.
    omega: in (0, 1).
    power: p >= 1.

  Returns:
    [V] float32, in units of cost, to 1e-6 per round; inf where no path was
    observed.
  """
  goal, rate = graph.nodes['is_goal'], -power * jnp.log(omega)

  def backup(distance):
    lengths = graph.edges['cost'] + distance[graph.receivers]
    mask, size = graph.edges['mask'], goal.shape[0]
    means = _mean_length(lengths, graph.senders, mask, size, rate)
    return jnp.where(goal, 0.0, means)

  return _approach(backup, jnp.where(goal, 0.0, jnp.inf), 1e-6, graph)


def expected_distances(graph: jraph.GraphsTuple, *, omega: float) -> jax.Array:
  """Distances where an action leads to its outcomes as often as observed.

    d(s) = min over edges s -> s' of l(s, a)
    omega^l(s, a) = mean over edges (s, a) -> s' of omega^(cost + d(s'))

  Where the environment is stochastic the least path follows lucky outcomes
  only; here luck counts by its frequency. Where it is deterministic both are
  `goal_distances`.

  Args:
    graph: of `build_graph` or `without_failed_ends`.
    omega: in (0, 1).

  Returns:
    [V] float32, in units of cost, to 1e-6 per round; inf where no path was
    observed.
  """
  goal, mask = graph.nodes['is_goal'], graph.edges['mask']

  def backup(distance):
    lengths = graph.edges['cost'] + distance[graph.receivers]
    lengths = action_means(graph, lengths, omega=omega)
    lengths = jnp.where(mask, lengths, jnp.inf)
    best = jraph.segment_min(lengths, graph.senders, goal.shape[0])
    return jnp.where(goal, 0.0, best)

  return _approach(backup, jnp.where(goal, 0.0, jnp.inf), 1e-6, graph)


def action_means(
  graph: jraph.GraphsTuple, lengths: jax.Array, *, omega: float
) -> jax.Array:
  """Length of an edge's (state, action): omega^length averaged over its edges.

  Args:
    graph: of `build_graph`.
    lengths: [E], of the edges themselves.
    omega: in (0, 1).

  Returns:
    [E], in units of lengths.
  """
  action, mask = graph.edges['action'], graph.edges['mask']
  rate = -jnp.log(omega)
  return _mean_length(lengths, action, mask, action.shape[0], rate)[action]


def _mean_length(lengths, segments, mask, num_segments, rate):
  """-log(mean of exp(-rate * length)) / rate by segment, inf for none."""
  lengths = jnp.where(mask, lengths, jnp.inf)
  least = jraph.segment_min(lengths, segments, num_segments)
  excess = jnp.where(jnp.isfinite(lengths), lengths - least[segments], jnp.inf)
  columns = jnp.stack([jnp.exp(-rate * excess), mask.astype(jnp.float32)], -1)
  total, count = jraph.segment_sum(columns, segments, num_segments).T
  return least - jnp.log(total / jnp.maximum(count, 1.0)) / rate


def best_values(
  graph: jraph.GraphsTuple, *, start: jax.Array, discount: float, steps: int
) -> jax.Array:
  """V(s) = max(start(s), max over edges s -> s' of discount^cost V(s')).

  A failed or truncated last step leads nowhere.

  Args:
    graph: of `build_graph`.
    start: [V], >= 0, the value that a node has by itself.
    discount: in [0, 1].
    steps: T, static.

  Returns:
    [V], in units of start.
  """
  leads = graph.edges['mask'] & ~graph.edges['failed']
  factor = jnp.where(leads, discount ** graph.edges['cost'], 0.0)

  def relax_layer(values, senders, receivers, layer_factor):
    through = values[receivers] * layer_factor
    return values.at[senders].max(through, mode='promise_in_bounds')

  relax = backward_sweep(graph, factor, steps, relax_layer)
  return settle(relax, start, graph)


def mean_values(
  graph: jraph.GraphsTuple,
  *,
  discount: float,
  solver: str = 'auto',
  tolerance: float = 2e-7,
) -> jax.Array:
  """V(s) = mean over edges s -> s' of discount^cost V(s'), repeats counted.

  V = 1 at the goal; a failed or truncated last step counts 0. It is the share
  of successes that the observed frequencies lead to, discounted by their cost.
  No task changes how, and how exactly, another one is solved.

  Args:
    graph: of `build_graph`.
    discount: in [0, 1].
    solver: 'dense' (a linear system per task), 'iteration', or 'auto': dense up
      to 512 node slots per task.
    tolerance: 'iteration' of a task ends when none of its values changes by
      more than this part of itself. On walks of 50 steps both come within 4e-5
      of each value.

  Returns:
    [V] float32, in [0, 1]; without a way to the goal 0, by 'dense' to 1e-8.
  """
  if solver not in SOLVERS:
    raise ValueError(f'solver: found {solver!r}, allowed: {", ".join(SOLVERS)}')
  num_tasks, goal = graph.n_node.shape[0], graph.nodes['is_goal']

  def total(edges):
    return jraph.segment_sum(edges, graph.senders, goal.shape[0])

  count = total(graph.edges['mask'].astype(jnp.float32))
  leads = graph.edges['mask'] & ~graph.edges['failed']
  share = discount ** graph.edges['cost'] / count[graph.senders]
  share = jnp.where(leads, share, 0.0)

  def backup(values):
    return jnp.where(goal, 1.0, total(share * values[graph.receivers]))

  start = goal.astype(jnp.float32)
  if solver == 'auto':
    small = goal.shape[0] // num_tasks <= DENSE_NODES
    solver = 'dense' if small else 'iteration'
  if solver == 'iteration':
    return _approach(backup, start, tolerance, graph)
  return _solve(backup, start, share, graph)


def _solve(backup, start, share, graph):
  """The fixed point of backup, whose weights are share [E]."""
  num_tasks = graph.n_node.shape[0]
  size = start.shape[0] // num_tasks

  def solve_task(task):
    senders, receivers, shares, right = task
    matrix = jnp.eye(size).at[senders, receivers].add(-shares)
    parts, _, order = jax.lax.linalg.lu(matrix)
    left = right[order, None]
    for triangle in ({'lower': True, 'unit_diagonal': True}, {'lower': False}):
      left = jax.lax.linalg.triangular_solve(
        parts, left, left_side=True, **triangle
      )
    return left[:, 0]

  tasks = (graph.senders % size, graph.receivers % size, share)
  tasks = (*tasks, backup(start) - start)
  tasks = [x.reshape(num_tasks, -1) for x in tasks]
  room = max(1, DENSE_ENTRIES // size**2)  # tasks whose matrices fit at a time
  change = jax.lax.map(solve_task, tasks, batch_size=min(room, num_tasks))
  return jnp.clip(start + change.reshape(-1), 0.0, 1.0)


def _approach(backup, start, tolerance, graph):
  """backup(backup(...(start))), by task until its changes are in tolerance."""
  num_tasks, task = graph.n_node.shape[0], graph.nodes['task']

  def improve(carry):
    values, moving, rounds = carry
    better = jnp.where(moving[task], backup(values), values)
    change = jnp.where(better == values, 0.0, jnp.abs(better - values))
    moved = change > tolerance * jnp.abs(better)
    return better, moved.reshape(num_tasks, -1).any(1), rounds + 1

  def unsettled(carry):
    return carry[1].any() & (carry[2] < MOST_ROUNDS)

  start = start, jnp.ones(num_tasks, bool), 0
  return jax.lax.while_loop(unsettled, improve, start)[0]
