"""GiGPO: the episode term plus a comparison of the steps from one state."""

import jax
import jraph

from graphgpo_jax import segments
from graphgpo_jax.credit import grpo
from graphgpo_jax.types import Rollouts

USES_GRAPH = False


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
  invalid_action_penalty_in_step: bool = False,
  episode_statistics: str = 'trajectories',
  episode_weight: float = 1.0,
  step_weight: float = 1.0,
) -> jax.Array:
  """A = episode_weight * A_E + step_weight * A_S.

    A_S = z(G_t | steps of the task that leave the same state)
    G_t = sum over k of gamma^k r_{t+k}, inside the attempt

  Source: arXiv:2505.10978. A_E is `grpo.advantages`.

  Args:
    rollouts: arrays [B, M, T].
    graph: not used.
    gamma: discount of step returns, in [0, 1].
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviation.
    reward_source: 'log', or 'success': success_reward where a step succeeded.
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    invalid_action_penalty_in_step: subtract it from G_t of an invalid step.
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
  penalty = invalid_action_penalty if invalid_action_penalty_in_step else 0.0
  returns = segments.step_returns(
    rollouts, gamma=gamma, penalty=penalty, **source
  )
  step = segments.standardise(
    returns, mode=mode, eps=eps, **segments.state_segments(rollouts)
  )
  return episode_weight * episode + step_weight * step
