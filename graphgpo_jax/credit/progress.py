"""Progress-conditioned: only new states count where no attempt succeeded."""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import segments
from graphgpo_jax.credit import grpo
from graphgpo_jax.graph import last_steps
from graphgpo_jax.types import Rollouts

USES_GRAPH = False


def advantages(
  rollouts: Rollouts,
  graph: jraph.GraphsTuple,
  *,
  weight: float = 0.3,
  all_fail_share: float = 1.0,
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
  episode_statistics: str = 'trajectories',
  episode_weight: float = 1.0,
) -> jax.Array:
  """A = A_P where no attempt at the task succeeded, else episode_weight * A_E.

    A_P = weight * all_fail_share * z(P_i | attempts of the task)
    P_i = (distinct states of attempt i, its end included, - 1) / T_i

  Source: arXiv:2607.22724 for A_P. A_E is `grpo.advantages`; without a success
  partial rewards and invalid actions count for nothing.

  Args:
    rollouts: arrays [B, M, T].
    graph: not used.
    weight: of A_P.
    all_fail_share: share of the batch's tasks without a success, in [0, 1].
      Given from outside, since no task may depend on the others here:
      `credit_steps` and `credit_log` do so, unless it is set.
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviations.
    reward_source: of A_E: 'log', or 'success' (success_reward at a success).
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    episode_statistics: 'trajectories' or 'rows'.
    episode_weight: of A_E.

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
  credited = rollouts.mask & rollouts.credited
  progress = segments.standardise(
    _distinct_states(rollouts) / jnp.maximum(rollouts.mask.sum(-1), 1),
    mode=mode,
    eps=eps,
    **segments.task_segments(credited.any(-1)),
  )[..., None]
  progress = jnp.where(credited, weight * all_fail_share * progress, 0.0)
  solved = rollouts.success.any((1, 2), keepdims=True)
  return jnp.where(solved, episode_weight * episode, progress)


def _distinct_states(rollouts):
  """Distinct states of every attempt but the first, [B, M]."""
  num_tasks, num_attempts, _ = rollouts.state.shape
  seen = jnp.zeros((num_tasks, num_attempts, rollouts.num_nodes), bool)
  b, m = jnp.ogrid[:num_tasks, :num_attempts]
  at = b[..., None], m[..., None]
  last = last_steps(rollouts)
  seen = seen.at[*at, rollouts.state].max(rollouts.mask)
  seen = seen.at[*at, rollouts.next_state].max(last)
  return seen.sum(-1) - 1.0
