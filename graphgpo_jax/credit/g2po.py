"""G2PO: the value of the next state, against its state's and its task's."""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import segments
from graphgpo_jax.credit import grpo
from graphgpo_jax.graph import node_values
from graphgpo_jax.types import Rollouts
from graphgpo_jax.values import values_after

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
  episode_statistics: str = 'trajectories',
  episode_weight: float = 1.0,
  step_weight: float = 1.0,
) -> jax.Array:
  """A = episode_weight * A_E + step_weight * (C1 + C2).

    C1 = z(V(s') - invalid_action_penalty * invalid | steps from one state)
    C2 = z(V(s') - V(s) | steps of the task)
    V(s) = mean over visits of gamma^(T_i - t) R_i

  T_i is the number of steps of the attempt, t counts from 0, R_i is its return
  without penalty. After a last step V is success_reward, or 0 without success.
  Source: arXiv:2606.22995. A_E is `grpo.advantages`. Gains V(s') - V(s) tie
  within 1e-6 of the task's largest V, not of the largest gain: float32 rounds
  the two values, however little they differ.

  Args:
    rollouts: arrays [B, M, T].
    graph: not used.
    gamma: discount per step, in [0, 1].
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviations.
    reward_source: 'log', or 'success': success_reward where a step succeeded.
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    episode_statistics: 'trajectories' or 'rows'.
    episode_weight: of A_E.
    step_weight: of C1 + C2.

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
  scores = segments.episode_returns(rollouts, **source)[..., None]
  left = rollouts.mask.sum(-1, keepdims=True)
  left = jnp.maximum(left - jnp.arange(rollouts.mask.shape[-1]), 1)
  groups = segments.state_segments(rollouts)
  everyone = groups | {'mask': rollouts.mask}
  values = segments.means(gamma**left * scores, **everyone)
  after = values_after(values, rollouts, success=success_reward, failure=0.0)
  here = node_values(values, rollouts.state)
  first = segments.standardise(
    segments.subtract_penalty(after, invalid_action_penalty * ~rollouts.valid),
    mode=mode,
    eps=eps,
    **groups,
  )
  second = segments.standardise(
    after - here,
    mode=mode,
    eps=eps,
    unit=segments.task_magnitude(here, after, rollouts.mask),
    **segments.task_segments(rollouts.mask & rollouts.credited),
  )
  return episode_weight * episode + step_weight * (first + second)
