"""GraphGPO: credit for how much a step shortens the way to the goal."""

import functools

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import graph as graphs
from graphgpo_jax import segments, values
from graphgpo_jax.credit import grpo
from graphgpo_jax.types import Rollouts


def advantages(
  rollouts: Rollouts,
  graph: jraph.GraphsTuple,
  *,
  omega: float = 0.1,
  exponent: str = 'paper',
  backup: str = 'min',
  power: float = 1.0,
  failed_ends: str = 'state',
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
  invalid_action_penalty_in_step: bool = False,
  episode_statistics: str = 'trajectories',
  episode_attempts: str = 'credited',
  episode_weight: float = 1.0,
  step_weight: float = 1.0,
) -> jax.Array:
  """A = episode_weight * A_E + step_weight * A_G.

    A_G = z(R_G | edges that leave the same state, repeats counted)
    R_G(s -> s') = success_reward * omega^(d(s') + c)

  with d the distance to the goal on the pooled graph and c the edge's cost.
  Source: arXiv:2605.26684. A_E is `grpo.advantages`. Attempts of an earlier
  visit (credited False) shape d and nothing else of A_G; with them and
  episode_attempts 'all' this is TIGPO (arXiv:2609.03383).

  Args:
    rollouts: arrays [B, M, T].
    graph: of `build_graph(rollouts)`.
    omega: in (0, 1).
    exponent: 'paper' d(s') + c, and A_G = 0 in a task without a success;
      'next_distance' d(s') (published code); 'relative' d(s') - d(s) + c. With
      eps = 0 and equal costs the three agree under 'mean_std_norm', since the
      factor cancels (where no penalty is subtracted in the step).
    backup: d(s) from the edges of s: 'min' as in the paper; 'soft', omega^d(s)
      is a power mean over edges; 'expected', for stochastic environments: an
      action has a length l, omega^l is the mean of omega^(d(s') + c) over its
      edges (0 for those without a way to the goal), d(s) is the least l, and
      R_G takes l for d(s') + c. An action of which no edge has a way is longer
      than all that have one.
    power: p >= 1 of 'soft'. 1 is the mean (GraphHCA's Phi with discount omega,
      where failed_ends is 'nothing'), large ones come to 'min'.
    failed_ends: a failed or truncated last step leads to its next 'state', as
      in the paper, or to 'nothing': no way to the goal continues there.
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviation.
    reward_source: of A_E: 'log', or 'success' (success_reward at a success).
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    invalid_action_penalty_in_step: subtract it from R_G of an invalid step.
    episode_statistics: 'trajectories' or 'rows'.
    episode_attempts: attempts that A_E is normalised over, 'credited' or 'all'.
    episode_weight: of A_E.
    step_weight: of A_G.

  Returns:
    [B, M, T] float32, 0 on padding.
  """
  episode = grpo.advantages(
    rollouts,
    graph,
    mode=mode,
    eps=eps,
    reward_source=reward_source,
    success_reward=success_reward,
    invalid_action_penalty=invalid_action_penalty,
    episode_statistics=episode_statistics,
    episode_attempts=episode_attempts,
  )
  groups = segments.state_segments(rollouts)
  penalty = None
  if invalid_action_penalty_in_step:
    penalty = invalid_action_penalty / success_reward * ~rollouts.valid
  exponents, distance = _exponents(
    rollouts,
    graph,
    omega=omega,
    exponent=exponent,
    backup=backup,
    power=power,
    failed_ends=failed_ends,
  )
  reward = success_reward * _rewards(
    exponents,
    distance,
    penalty,
    groups,
    omega=omega,
    rescale=mode == 'mean_std_norm' and eps == 0,
    # Softened distances are means of float32 powers, to 1e-6 per round.
    tie=segments.TIE if backup == 'min' else values.TIE,
  )
  step = segments.standardise(reward, mode=mode, eps=eps, **groups)
  if exponent == 'paper':
    solved = rollouts.success.any((1, 2), keepdims=True)
    step = jnp.where(solved, step, 0.0)
  return episode_weight * episode + step_weight * step


def _exponents(rollouts, graph, *, omega, exponent, backup, power, failed_ends):
  """Exponent of omega and d(s) for every step, [B, M, T] each."""
  ways = graph
  if failed_ends == 'nothing':
    ways = graphs.without_failed_ends(graph)
  if backup == 'min':
    raw = graphs.goal_distances(ways, steps=rollouts.state.shape[-1])
  elif backup == 'soft':
    raw = values.soft_distances(ways, omega=omega, power=power)
  else:
    raw = values.expected_distances(ways, omega=omega)
  distance = graphs.fill_unreachable(raw, graph)
  here = graphs.node_values(distance, rollouts.state)
  after = graphs.node_values(distance, rollouts.next_state)
  beyond = graphs.unreachable_distance(raw, graph)[:, None, None]
  if failed_ends == 'nothing':
    failed = graphs.last_steps(rollouts) & ~rollouts.success
    after = jnp.where(failed, beyond, after)
  if backup == 'expected':
    means = functools.partial(values.action_means, graph, omega=omega)
    lengths = means(ways.edges['cost'] + raw[graph.receivers])
    lengths = graphs.step_values(lengths, rollouts)
    found = jnp.isfinite(lengths)
    longest = jnp.where(found, lengths, 0.0).max((1, 2), keepdims=True)
    lost = jnp.maximum(beyond, longest) + rollouts.cost
    lost = graphs.step_values(means(graphs.edge_values(lost)), rollouts)
    after = jnp.where(found, lengths, lost) - rollouts.cost
  if exponent == 'next_distance':
    return after, here
  if exponent == 'paper':
    return after + rollouts.cost, here
  return after + rollouts.cost - here, here


def _rewards(exponents, distance, penalty, groups, *, omega, rescale, tie):
  """omega^exponents - penalty, of which path lengths within rounding tie.

  rescale: in units of the state's best reward. A z-score without eps does not
  see a common factor, but float32 does: omega = 0.1 underflows 40 steps from
  the goal. A penalty grows by the unit; beyond 1e12 rewards no longer tell.
  """
  mask = groups['mask']
  best = jnp.where(mask, segments.least(exponents, **groups), 0.0)
  excess = jnp.maximum(exponents - best, 0.0)
  # Exponents are differences of path lengths: they round like d(s).
  rounding = tie * jnp.maximum(1.0, distance)
  excess = jnp.where(excess <= rounding, 0.0, excess)
  reward = omega ** (excess if rescale else best + excess)
  if penalty is None:
    return reward
  if rescale:
    penalty = penalty * jnp.minimum(omega ** (-best), 1e12)
  return reward - jnp.minimum(penalty, 1e12)
