"""GAGPO: generalised advantages from the mean returns of states."""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import segments
from graphgpo_jax.graph import node_values
from graphgpo_jax.types import Rollouts
from graphgpo_jax.values import values_after

USES_GRAPH = False


def advantages(
  rollouts: Rollouts,
  graph: jraph.GraphsTuple,
  *,
  gamma: float = 0.95,
  lam: float = 0.95,
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
) -> jax.Array:
  """A = z(sum over k of (gamma lam)^k delta_{t+k} | steps of the task).

    delta_t = r_t + gamma V(s_{t+1}) - V(s_t), V = 0 after the last step
    V(s) = mean over visits of G_t,  G_t = r_t + gamma G_{t+1}

  where r_t is the reward less invalid_action_penalty if the step is invalid.
  Source: arXiv:2605.13217. The formula is only medium sure: it has not been
  compared with the authors' code. No episode term. Sums tie within 1e-5 of the
  task's largest reward or V: each adds up to T differences of values, with the
  float32 rounding of all of them.

  Args:
    rollouts: arrays [B, M, T].
    graph: not used.
    gamma: discount per step, in [0, 1].
    lam: in [0, 1], 0 for one-step differences, 1 for whole returns.
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviation.
    reward_source: 'log', or 'success': success_reward where a step succeeded.
    success_reward: > 0.
    invalid_action_penalty: >= 0.

  Returns:
    [B, M, T] float32, 0 on padding.
  """
  del graph
  rewards = segments.step_rewards(
    rollouts, reward_source=reward_source, success_reward=success_reward
  )
  penalty = invalid_action_penalty * ~rollouts.valid
  rewards = jnp.where(rollouts.mask, rewards - penalty, 0.0)
  returns = segments.discounted_returns(rewards, gamma=gamma)
  everyone = segments.state_segments(rollouts) | {'mask': rollouts.mask}
  values = segments.means(returns, **everyone)
  after = values_after(values, rollouts, success=0.0, failure=0.0)
  here = node_values(values, rollouts.state)
  delta = jnp.where(rollouts.mask, rewards + gamma * after - here, 0.0)
  return segments.standardise(
    segments.discounted_returns(delta, gamma=gamma * lam),
    mode=mode,
    eps=eps,
    tie=1e-5,
    unit=segments.task_magnitude(here, rewards, rollouts.mask),
    **segments.task_segments(rollouts.mask & rollouts.credited),
  )
