"""RewardFlow: rewards flow back along the best observed way."""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import segments
from graphgpo_jax.credit import grpo
from graphgpo_jax.graph import last_steps, node_ids
from graphgpo_jax.types import Rollouts
from graphgpo_jax.values import best_values, values_after


def advantages(
  rollouts: Rollouts,
  graph: jraph.GraphsTuple,
  *,
  gamma: float = 0.95,
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
  episode_statistics: str = 'trajectories',
  episode_weight: float = 1.0,
  step_weight: float = 1.0,
) -> jax.Array:
  """A = episode_weight * A_E + step_weight * A_S.

    A_S = z(V(s') | steps from one state)
    V(s) = max(r(s), max over edges s -> s' of gamma^cost V(s'))

  with V = success_reward after success and 0 after a failed or truncated last
  step. r(s) is the largest reward of a step that led to s and went on from
  there, at least 0. With a reward at success only, V = success_reward *
  gamma^d. Source: arXiv:2603.18859; deviation: costs discount as that many
  steps, and of a state's edges the dearer ones lose by what they cost more.
  A_E is `grpo.advantages`. Values tie within 1e-5: they are float32 products of
  gamma^cost along a way, and equally long ways multiply in another order.

  Args:
    rollouts: arrays [B, M, T].
    graph: of `build_graph(rollouts)`.
    gamma: discount, in [0, 1].
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviations.
    reward_source: of A_E and r: 'log', or 'success' (success_reward at a
      success, nothing elsewhere).
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    episode_statistics: 'trajectories' or 'rows'.
    episode_weight: of A_E.
    step_weight: of A_S.

  Returns:
    [B, M, T] float32, 0 on padding.
  """
  source = {'reward_source': reward_source, 'success_reward': success_reward}
  episode = grpo.advantages(
    rollouts,
    graph,
    mode=mode,
    eps=eps,
    invalid_action_penalty=invalid_action_penalty,
    episode_statistics=episode_statistics,
    **source,
  )
  values = _state_values(rollouts, graph, gamma=gamma, **source)
  after = values_after(values, rollouts, success=success_reward, failure=0.0)
  groups = segments.state_segments(rollouts)
  extra = rollouts.cost - segments.least(rollouts.cost, **groups)
  step = segments.standardise(
    gamma**extra * after, mode=mode, eps=eps, tie=1e-5, **groups
  )
  return episode_weight * episode + step_weight * step


def _state_values(rollouts, graph, *, gamma, reward_source, success_reward):
  """V of `advantages`, [V]."""
  rewards = segments.step_rewards(
    rollouts, reward_source=reward_source, success_reward=success_reward
  )
  goes_on = rollouts.mask & ~last_steps(rollouts)
  reached = node_ids(rollouts.next_state, rollouts.num_nodes)
  start = jnp.where(graph.nodes['is_goal'], success_reward, 0.0)
  start = start.at[reached].max(jnp.where(goes_on, rewards, 0.0))
  num_steps = rollouts.state.shape[-1]
  return best_values(graph, start=start, discount=gamma, steps=num_steps)
