"""HGPO: comparisons of steps with ever longer common histories."""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import segments
from graphgpo_jax.credit import grpo
from graphgpo_jax.types import Rollouts

USES_GRAPH = False
NEAR = 5e-7  # of the largest return of a group: what float32 returns round


def advantages(
  rollouts: Rollouts,
  graph: jraph.GraphsTuple,
  *,
  history: int = 2,
  length_weight_alpha: float = 1.0,
  base_group: bool = False,
  gamma: float = 0.95,
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
  invalid_action_penalty_in_step: bool = False,
  episode_statistics: str = 'trajectories',
) -> jax.Array:
  """A = sum_k w_k A_k / sum_k w_k over the levels k with A_k != 0.

    A_k = z(G_t | steps of the task with the same last k states), ddof = 0
    w_k = (k + 1)^length_weight_alpha,  k = 1 .. history + 1
    G_t = sum over k of gamma^k r_{t+k}, inside the attempt

  Source: arXiv:2602.22817. No episode term. Groups of one step have A_k = 0;
  steps with fewer than k states behind them are left out of level k. A return
  that equals the mean of its group has A_k = 0 too, and weighs nothing there;
  equal is up to 5e-7 of the group's largest return, since float32 rounds.

  Args:
    rollouts: arrays [B, M, T].
    graph: not used.
    history: states before the step's own that the longest key holds, >= 0.
    length_weight_alpha: 0 weighs all levels alike.
    base_group: add the episode term as level 0, with weight 1 (an option of the
      published code, rebuilt from its description).
    gamma: discount of step returns, in [0, 1].
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviation.
    reward_source: 'log', or 'success': success_reward where a step succeeded.
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    invalid_action_penalty_in_step: subtract it from G_t of an invalid step.
    episode_statistics: of level 0: 'trajectories' or 'rows'.

  Returns:
    [B, M, T] float32, 0 on padding.
  """
  source = {'reward_source': reward_source, 'success_reward': success_reward}
  penalty = invalid_action_penalty if invalid_action_penalty_in_step else 0.0
  returns = segments.step_returns(
    rollouts, gamma=gamma, penalty=penalty, **source
  )
  levels = [
    segments.standardise(
      returns, mode=mode, eps=eps, ddof=0, near=NEAR, **level
    )
    for level in segments.history_segments(rollouts, longest=history + 1)
  ]
  weights = [(k + 2.0) ** length_weight_alpha for k in range(len(levels))]
  if base_group:
    weights.append(1.0)
    episode = grpo.advantages(
      rollouts,
      graph,
      mode=mode,
      eps=eps,
      invalid_action_penalty=invalid_action_penalty,
      episode_statistics=episode_statistics,
      **source,
    )
    size = jnp.abs(episode)
    rounding = 1e-5 * size.max((1, 2), keepdims=True)
    levels.append(jnp.where(size <= rounding, 0.0, episode))
  levels, weights = jnp.stack(levels, -1), jnp.array(weights)
  total = jnp.where(levels != 0, weights, 0.0).sum(-1)
  weighted = (levels * weights).sum(-1)
  return weighted / jnp.where(total > 0, total, 1.0)
