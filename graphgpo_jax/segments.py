"""Masked statistics over segments: the steps of a state, attempt or task.

Pure functions on arrays, shared by every credit scheme.
"""

import jax
import jax.numpy as jnp

from graphgpo_jax.graph import node_ids
from graphgpo_jax.types import Rollouts

MODES = ('mean_std_norm', 'mean_norm')
REWARD_SOURCES = ('log', 'success')
TIE = 1e-6  # relative; float32 sums of equal numbers differ by less


def standardise(
  values: jax.Array,
  segments: jax.Array,
  mask: jax.Array,
  *,
  num_segments: int,
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  ddof: int = 1,
) -> jax.Array:
  """z-score of every value among the values of its segment.

    z(x) = (x - mean) / (std + eps), or x - mean under 'mean_norm'

  A segment with fewer than two values, or with equal ones (max - min at most
  1e-6 of the largest magnitude), gives exactly 0. Values are taken relative to
  the segment's largest one and in units of its spread before any sum, so that
  neither a common offset nor the scale costs digits; then come two passes.

  Args:
    values: float32, any shape.
    segments: int32, same shape, in [0, num_segments).
    mask: bool, same shape; masked values enter nothing and get 0.
    num_segments: static.
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: >= 0, in units of values, added to the standard deviation.
    ddof: 1 divides the sum of squares by count - 1, 0 by count.

  Returns:
    float32, shape of values.
  """
  shape = values.shape
  values, segments, mask = (x.reshape(-1) for x in (values, segments, mask))

  def total(columns):
    return jax.ops.segment_sum(columns, segments, num_segments)[segments]

  bounds = jnp.stack([values, -values], -1)
  bounds = jnp.where(mask[:, None], bounds, -jnp.inf)
  bounds = jax.ops.segment_max(bounds, segments, num_segments)[segments]
  largest, smallest = bounds[:, 0], -bounds[:, 1]
  spread = largest - smallest
  size = jnp.maximum(jnp.abs(largest), jnp.abs(smallest))
  varies = mask & (spread > TIE * size)
  spread = jnp.where(varies, spread, 1.0)
  centred = jnp.where(varies, (values - largest) / spread, 0.0)
  sums = total(jnp.stack([centred, mask.astype(jnp.float32)], -1))
  count = jnp.maximum(sums[:, 1], 2.0)
  centred = jnp.where(varies, centred - sums[:, 0] / count, 0.0)
  if mode == 'mean_norm':
    result = centred * spread
  else:
    deviation = jnp.sqrt(total(centred**2) / (count - ddof))
    result = centred / jnp.where(varies, deviation + eps / spread, 1.0)
  # What is not finite compares as a tie: it must not become a silent 0.
  finite = jnp.isfinite(values) & jnp.isfinite(spread)
  return jnp.where(mask & ~finite, jnp.nan, result).reshape(shape)


def state_segments(rollouts: Rollouts) -> dict:
  """Segments 'steps that leave the same state of the same task'.

  Returns:
    Keywords of `standardise`: segments and mask [B, M, T], num_segments.
  """
  num_nodes = rollouts.num_nodes
  return {
    'segments': node_ids(rollouts.state, num_nodes),
    'mask': rollouts.mask & rollouts.credited,
    'num_segments': rollouts.state.shape[0] * num_nodes,
  }


def step_rewards(
  rollouts: Rollouts, *, reward_source: str, success_reward: float
) -> jax.Array:
  """Rewards [B, M, T]: as logged, or success_reward where a step succeeded."""
  if reward_source == 'log':
    return rollouts.reward
  return success_reward * rollouts.success


def episode_returns(
  rollouts: Rollouts, *, reward_source: str, success_reward: float
) -> jax.Array:
  """Undiscounted sum of the rewards of every attempt, [B, M]."""
  if reward_source == 'log':
    return rollouts.episode_return
  return success_reward * rollouts.success.any(-1)


def subtract_penalty(values: jax.Array, penalty: jax.Array) -> jax.Array:
  """values - penalty, exactly 0 where the two cancel to within rounding."""
  difference = values - penalty
  size = jnp.abs(values) + jnp.abs(penalty)
  return jnp.where(jnp.abs(difference) <= TIE * size, 0.0, difference)


def discounted_returns(rewards: jax.Array, *, gamma: float) -> jax.Array:
  """G_t = r_t + gamma * G_{t+1} along the last axis, G beyond the end = 0.

  The rounding error of each sum is carried along (two-sum), and a return that
  cancels to within rounding is exactly 0, so that attempts which collect equal
  rewards in another order tie.

  Args:
    rewards: [..., T] float32, 0 on padding.
    gamma: in [0, 1].

  Returns:
    [..., T] float32, in units of reward.
  """

  def backward(carry, reward):
    total, error, size = (gamma * x for x in carry)
    after = total + reward
    shadow = after - total
    error += (total - (after - shadow)) + (reward - shadow)
    size += jnp.abs(reward)
    value = after + error
    value = jnp.where(jnp.abs(value) <= TIE * size, 0.0, value)
    return (after, error, size), value

  zeros = jnp.zeros(rewards.shape[:-1], rewards.dtype)
  by_step = jnp.moveaxis(rewards, -1, 0)
  _, returns = jax.lax.scan(backward, (zeros,) * 3, by_step, reverse=True)
  return jnp.moveaxis(returns, 0, -1)
