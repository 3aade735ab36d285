"""GRPO: every step of an attempt gets the attempt's standing in its task."""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import segments
from graphgpo_jax.types import Rollouts

USES_GRAPH = False


def advantages(
  rollouts: Rollouts,
  graph: jraph.GraphsTuple,
  *,
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
  episode_statistics: str = 'trajectories',
  episode_attempts: str = 'credited',
) -> jax.Array:
  """A_E = z(R_i | attempts of the task), the same for all steps of attempt i.

    R_i = sum of rewards - invalid_action_penalty * number of invalid steps

  Source: arXiv:2402.03300; the episode term of GiGPO and GraphGPO. Under
  episode_statistics 'rows' each step votes once and only its own invalid action
  is subtracted from the attempt's sum of rewards (as in published code); a task
  with a single step keeps its raw score.

  Args:
    rollouts: arrays [B, M, T].
    graph: not used.
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviation.
    reward_source: 'log', or 'success': success_reward where a step succeeded.
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    episode_statistics: 'trajectories' or 'rows'.
    episode_attempts: whose R_i the mean and the deviation are taken over: the
      'credited' attempts, or 'all', so that attempts of an earlier visit vote
      too (TIGPO, arXiv:2609.03383). Those get no advantage either way.

  Returns:
    [B, M, T] float32, 0 on padding and on steps that are not credited.
  """
  del graph
  credited = rollouts.mask & rollouts.credited
  voting = rollouts.mask if episode_attempts == 'all' else credited
  invalid = voting & ~rollouts.valid
  scores = segments.episode_returns(
    rollouts, reward_source=reward_source, success_reward=success_reward
  )
  if episode_statistics == 'rows':
    scores = segments.subtract_penalty(
      scores[..., None], invalid_action_penalty * invalid
    )
    result = segments.standardise(
      scores, mode=mode, eps=eps, **segments.task_segments(voting)
    )
    alone = voting.sum((1, 2), keepdims=True) == 1
    result = jnp.where(alone, scores, result)
    return jnp.where(credited, result, 0.0)
  penalty = invalid_action_penalty * invalid.sum(-1)
  result = segments.standardise(
    segments.subtract_penalty(scores, penalty),
    mode=mode,
    eps=eps,
    **segments.task_segments(voting.any(-1)),
  )
  return jnp.where(credited, result[..., None], 0.0)
