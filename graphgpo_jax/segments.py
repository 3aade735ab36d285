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
  tie: float = TIE,
  unit: jax.Array | float = 0.0,
  near: float = 0.0,
) -> jax.Array:
  """z-score of every value among the values of its segment.

    z(x) = (x - mean) / (std + eps), or x - mean under 'mean_norm'

  A segment with fewer than two values, or with equal ones (max - min at most
  1e-6 of the largest magnitude), gives exactly 0. Values are taken relative to
  the segment's largest one and in units of its spread before any sum, so that
  neither a common offset nor the scale costs digits; then come two passes. The
  result is a constant to automatic differentiation.

  Args:
    values: float32, any shape.
    segments: int32, same shape, in [0, num_segments).
    mask: bool, same shape; masked values enter nothing and get 0.
    num_segments: static.
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: >= 0, in units of values, added to the standard deviation.
    ddof: 1 divides the sum of squares by count - 1, 0 by count.
    tie: how much equal values may differ, relative to the largest magnitude or
      to unit, if that is more.
    unit: of the terms that values are differences of, shape of values or [].
    near: a value that differs from the mean by no more than this part of the
      largest magnitude equals it, and gives exactly 0.

  Returns:
    float32, shape of values.
  """
  shape, unit = values.shape, jnp.broadcast_to(unit, values.shape).reshape(-1)
  values = jax.lax.stop_gradient(values)
  values, segments, mask = (x.reshape(-1) for x in (values, segments, mask))

  def total(columns):
    return jax.ops.segment_sum(columns, segments, num_segments)[segments]

  bounds = jnp.stack([values, -values], -1)
  bounds = jnp.where(mask[:, None], bounds, -jnp.inf)
  bounds = jax.ops.segment_max(bounds, segments, num_segments)[segments]
  largest, smallest = bounds[:, 0], -bounds[:, 1]
  spread = largest - smallest
  size = jnp.maximum(jnp.abs(largest), jnp.abs(smallest))
  varies = mask & (spread > tie * jnp.maximum(size, unit))
  spread = jnp.where(varies, spread, 1.0)
  centred = jnp.where(varies, (values - largest) / spread, 0.0)
  sums = total(jnp.stack([centred, mask.astype(jnp.float32)], -1))
  count = jnp.maximum(sums[:, 1], 2.0)
  centred = jnp.where(varies, centred - sums[:, 0] / count, 0.0)
  if near:
    centred = jnp.where(jnp.abs(centred) * spread > near * size, centred, 0.0)
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


def task_segments(mask: jax.Array) -> dict:
  """Segments 'of the same task', as `state_segments`, of a mask [B, ...]."""
  task = jnp.arange(mask.shape[0], dtype=jnp.int32)
  task = task.reshape(-1, *(1,) * (mask.ndim - 1))
  return {
    'segments': jnp.broadcast_to(task, mask.shape),
    'mask': mask,
    'num_segments': mask.shape[0],
  }


def history_segments(rollouts: Rollouts, *, longest: int) -> list[dict]:
  """Segments 'steps with the same last k states', k = 1..longest, of a task.

  The last k states of a step are the last k - 1 of the step before and its own
  state. Steps with fewer than k states behind them are masked.

  Returns:
    One dict per k, as `state_segments`.
  """
  levels = [state_segments(rollouts)]
  for _ in range(1, longest):
    shorter, mask = levels[-1]['segments'], levels[-1]['mask']
    before = jnp.roll(shorter, 1, -1)
    mask = (mask & jnp.roll(mask, 1, -1)).at[..., 0].set(False)
    pairs = pair_segments(before, levels[0]['segments'], mask)
    size = mask.size
    levels.append({'segments': pairs, 'mask': mask, 'num_segments': size})
  return levels


def pair_segments(
  first: jax.Array, second: jax.Array, mask: jax.Array
) -> jax.Array:
  """Numbers pairs of ids so that equal pairs, and only those, share a number.

  A hash table in rounds: of all open pairs in one slot the first place wins,
  and those that equal it (compared, not only hashed) take its number. The
  others go on to other slots, so hash collisions cost a round and change
  nothing. No sort: that takes ten times as long on a CPU.

  Args:
    first, second: int32 >= 0, any shape.
    mask: bool, same shape; other places get 0.

  Returns:
    int32, same shape, in [0, size).
  """
  shape, size = mask.shape, mask.size
  first, second, mask = (x.reshape(-1) for x in (first, second, mask))
  place = jnp.arange(size, dtype=jnp.int32)
  num_slots = 1 << size.bit_length()

  def insert(carry):
    number, left, turn = carry
    mixed = first.astype(jnp.uint32) * jnp.uint32(2654435761) + turn
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(2246822519)
    mixed = (mixed ^ second.astype(jnp.uint32)) * jnp.uint32(3266489917)
    slot = (mixed ^ (mixed >> 15)) & jnp.uint32(num_slots - 1)
    winners = jnp.where(left, place, size)
    table = jnp.full(num_slots, size, jnp.int32)
    winner = table.at[slot].min(winners, mode='promise_in_bounds')[slot]
    winner = jnp.where(left, winner, place)
    same = (first[winner] == first) & (second[winner] == second) & left
    number = jnp.where(same, winner, number)
    return number, left & ~same, turn + jnp.uint32(0x9E3779B9)

  start = jnp.zeros(size, jnp.int32), mask, jnp.uint32(0)
  number, *_ = jax.lax.while_loop(lambda x: x[1].any(), insert, start)
  return number.reshape(shape)


def means(
  values: jax.Array,
  segments: jax.Array,
  mask: jax.Array,
  *,
  num_segments: int,
) -> jax.Array:
  """Mean value of every segment, [num_segments], 0 for empty ones.

  Sums run over differences from the segment's largest value, so that the mean
  of equal values is that value, to the last bit.
  """
  values, segments, mask = (x.reshape(-1) for x in (values, segments, mask))
  largest = jnp.where(mask, values, -jnp.inf)
  largest = jax.ops.segment_max(largest, segments, num_segments)
  below = jnp.where(mask, values - largest[segments], 0.0)
  columns = jnp.stack([below, mask.astype(jnp.float32)], -1)
  total, count = jax.ops.segment_sum(columns, segments, num_segments).T
  return jnp.where(count > 0, largest + total / jnp.maximum(count, 1.0), 0.0)


def least(
  values: jax.Array,
  segments: jax.Array,
  mask: jax.Array,
  *,
  num_segments: int,
) -> jax.Array:
  """Least value of every place's segment, shape of values, inf for none."""
  kept = jnp.where(mask, values, jnp.inf).reshape(-1)
  result = jax.ops.segment_min(kept, segments.reshape(-1), num_segments)
  return result[segments]


def task_magnitude(
  first: jax.Array, second: jax.Array, mask: jax.Array
) -> jax.Array:
  """Largest magnitude in two arrays [B, M, T] per task, [B, M, T]."""
  size = jnp.maximum(jnp.abs(first), jnp.abs(second))
  size = jnp.where(mask, size, 0.0).max((1, 2), keepdims=True)
  return jnp.broadcast_to(size, mask.shape)


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
    return jax.lax.stop_gradient(rollouts.episode_return)
  return success_reward * rollouts.success.any(-1)


def subtract_penalty(values: jax.Array, penalty: jax.Array) -> jax.Array:
  """values - penalty, exactly 0 where the two cancel to within rounding."""
  difference = values - penalty
  size = jnp.abs(values) + jnp.abs(penalty)
  return jnp.where(jnp.abs(difference) <= TIE * size, 0.0, difference)


def step_returns(
  rollouts: Rollouts,
  *,
  gamma: float,
  reward_source: str,
  success_reward: float,
  penalty: float = 0.0,
) -> jax.Array:
  """G_t = r_t + gamma * G_{t+1}, less penalty if step t is invalid, [B, M, T].

  What an invalid step loses is its own; the steps before it do not see it.
  """
  rewards = step_rewards(
    rollouts, reward_source=reward_source, success_reward=success_reward
  )
  rewards = jnp.where(rollouts.mask, rewards, 0.0)
  returns = discounted_returns(rewards, gamma=gamma)
  return subtract_penalty(returns, penalty * ~rollouts.valid)


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
