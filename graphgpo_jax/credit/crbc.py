"""CRBC: Bellman values that are closed over all rollouts of a task."""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import segments
from graphgpo_jax.credit import grpo
from graphgpo_jax.graph import node_ids
from graphgpo_jax.types import Rollouts
from graphgpo_jax.values import TIE, mean_values, values_after


def advantages(
  rollouts: Rollouts,
  graph: jraph.GraphsTuple,
  *,
  beta: float = 0.98,
  sigma_floor: float = 0.1,
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
  episode_statistics: str = 'trajectories',
  episode_weight: float = 1.0,
  step_weight: float = 5.0,
) -> jax.Array:
  """A = episode_weight * A_E + step_weight * A_S.

    A_S = (Q(s, a) - V(s)) / max(sigma(s), sigma_floor)
    Q(s, a) = mean over edges of (s, a) of beta^cost V(s')
    V(s) = mean over edges of s of Q,  sigma^2 the variance of Q over them

  with V = 1 after success and 0 after a failed or truncated last step. With
  counts as frequencies this is V = beta sum_a mu(a|s) sum_x P(x|s, a) V(x).
  States that saw one action have A_S = 0. Source: arXiv:2609.35082; deviation:
  costs other than 1 discount as that many steps. A_E is `grpo.advantages`. The
  Q of a state tie within 1e-4 (of at least 1e-3), since V solves a linear
  system in float32, which is that far from exact.

  Args:
    rollouts: arrays [B, M, T].
    graph: of `build_graph(rollouts)`.
    beta: discount, in [0, 1].
    sigma_floor: > 0.
    mode: 'mean_std_norm', or 'mean_norm': Q - V without division.
    eps: added to the standard deviations.
    reward_source: of A_E: 'log', or 'success' (success_reward at a success).
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    episode_statistics: 'trajectories' or 'rows'.
    episode_weight: of A_E.
    step_weight: of A_S.

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
  )
  values = mean_values(graph, discount=beta)
  after = values_after(values, rollouts, success=1.0, failure=0.0)
  size = rollouts.state[0].size
  action = node_ids(rollouts.action, size).reshape(-1)
  quality = segments.means(
    beta**rollouts.cost * after,
    action,
    rollouts.mask,
    num_segments=rollouts.state.size,
  )[action].reshape(after.shape)
  groups = segments.state_segments(rollouts)
  # Centred on the mean of Q over the state's credited edges: V if all are.
  step = segments.standardise(
    quality, mode='mean_norm', tie=TIE, unit=1e-3, **groups
  )
  if mode == 'mean_std_norm':
    variance = segments.means(step**2, **groups)
    sigma = jnp.sqrt(variance)[groups['segments']]
    step /= jnp.maximum(sigma, sigma_floor) + eps
  return episode_weight * episode + step_weight * step
