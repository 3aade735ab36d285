"""Standardising by segment, ties, and discounted returns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import attempt_rows

from graphgpo_jax import segments, states


def one_group(values, **options):
  values = jnp.asarray(values, jnp.float32)
  return np.asarray(
    segments.standardise(
      values,
      jnp.zeros(values.shape, jnp.int32),
      jnp.ones(values.shape, bool),
      num_segments=1,
      **options,
    )
  )


@pytest.mark.parametrize(
  'values',
  [[0.35] * 7, [9.9] * 8, [-0.1] * 215, [1e-30] * 3, [5.0], [0.0, 0.0]],
)
def test_equal_values_give_exact_zeros(values):
  for mode in segments.MODES:
    assert (one_group(values, mode=mode) == 0).all()


def test_values_within_rounding_are_equal():
  assert (one_group([9.9, np.nextafter(np.float32(9.9), 10)]) == 0).all()


def test_small_real_spread_is_signal():
  np.testing.assert_allclose(
    one_group([1, 1.00001]), [-np.sqrt(0.5), np.sqrt(0.5)], rtol=1e-6
  )


@pytest.mark.parametrize('scale', [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_scale_and_offset_cost_no_digits(scale):
  exact = reference.z([1.0, 2.0, 4.0, 4.0])
  found = one_group(np.array([1.0, 2.0, 4.0, 4.0]) * scale)
  np.testing.assert_allclose(found, exact, rtol=1e-6)
  np.testing.assert_allclose(
    one_group([1001.0, 1002.0, 1004.0, 1004.0]), exact, rtol=1e-6
  )


@settings(max_examples=60, deadline=None)
@given(
  st.lists(
    st.tuples(st.integers(0, 3), st.integers(-40, 40), st.booleans()),
    min_size=1,
    max_size=24,
  ),
  st.sampled_from(segments.MODES),
  st.sampled_from([0.0, 1e-6, 0.1]),
  st.sampled_from([0, 1]),
)
def test_equals_the_slow_oracle_group_by_group(members, mode, eps, ddof):
  members += [(0, 0, False)] * (24 - len(members))  # one compilation
  group, value, mask = (np.array(x) for x in zip(*members))
  value = value / 4
  found = STANDARDISE(
    jnp.asarray(value, jnp.float32),
    jnp.asarray(group, jnp.int32),
    jnp.asarray(mask),
    num_segments=4,
    mode=mode,
    eps=eps,
    ddof=ddof,
  )
  expected = np.zeros(len(value))
  for g in range(4):
    member = mask & (group == g)
    if member.any():
      expected[member] = reference.z(value[member], mode, eps, ddof)
  np.testing.assert_allclose(found, expected, atol=2e-6)


STANDARDISE = jax.jit(
  segments.standardise, static_argnames=('num_segments', 'mode', 'eps', 'ddof')
)


def test_masked_junk_has_no_influence():
  values = jnp.array([1.0, 2.0, jnp.nan, jnp.inf])
  mask = jnp.array([True, True, False, False])
  found = segments.standardise(
    values, jnp.zeros(4, jnp.int32), mask, num_segments=1
  )
  np.testing.assert_allclose(found, [-np.sqrt(0.5), np.sqrt(0.5), 0, 0])


def test_discounted_returns_by_hand():
  found = segments.discounted_returns(jnp.array([1.0, 0.0, 2.0]), gamma=0.5)
  np.testing.assert_allclose(found, [1.5, 1.0, 2.0])
  found = segments.discounted_returns(jnp.array([1.0, 0.0, 2.0]), gamma=0.0)
  np.testing.assert_allclose(found, [1.0, 0.0, 2.0])


def test_undiscounted_returns_do_not_depend_on_the_order_of_rewards():
  rng = np.random.default_rng(0)
  rewards = [-0.1] * 40 + [1.0] * 3 + [-1.0] * 3 + [4.0]  # they cancel
  orders = np.stack([rng.permutation(rewards) for _ in range(8)])
  returns = segments.discounted_returns(
    jnp.asarray(orders, jnp.float32), gamma=1.0
  )
  assert (returns[:, 0] == 0).all()
  returns = segments.discounted_returns(
    jnp.asarray(orders[:, :-1], jnp.float32), gamma=1.0
  )
  # All rewards but the last one of each order: with it, the sums are equal.
  assert np.ptp(returns[:, 0] + orders[:, -1]) < 1e-6


def test_penalty_that_cancels_a_return_leaves_exactly_zero():
  values = jnp.array([0.3, 0.3, 0.7])
  penalty = jnp.float32(0.1) * jnp.array([3, 2, 7])
  found = np.asarray(segments.subtract_penalty(values, penalty))
  assert found[0] == 0 and found[2] == 0
  np.testing.assert_allclose(found[1], 0.1, rtol=1e-6)


def test_near_the_mean_is_the_mean_if_asked_for():
  for mode in segments.MODES:
    middle = [99.0, 100.00002, 101.0]
    assert one_group(middle, mode=mode)[1] != 0
    found = one_group(middle, mode=mode, near=5e-7)
    assert found[1] == 0 and abs(found[[0, 2]]).min() > 0.99
    assert one_group([99.0, 100.001, 101.0], mode=mode, near=5e-7)[1] > 0


def test_segments_of_a_task_for_masks_of_any_rank():
  for shape in ((2, 3), (2, 3, 4)):
    mask = np.arange(np.prod(shape)).reshape(shape) % 5 != 1
    found = segments.task_segments(jnp.asarray(mask))
    assert found['num_segments'] == 2
    np.testing.assert_array_equal(found['mask'], mask)
    assert (found['segments'][0] == 0).all()
    assert (found['segments'][1] == 1).all()
    assert found['segments'].shape == shape


def test_penalty_of_an_invalid_step_is_its_own():
  rows = attempt_rows(['a', 'b', 'c'], rewards=[1.0, 2.0])
  rows[1]['valid'] = False
  found = segments.step_returns(
    states.intern(rows),
    gamma=0.5,
    reward_source='log',
    success_reward=10.0,
    penalty=0.25,
  )
  np.testing.assert_allclose(found[0, 0], [2.0, 1.75])


def test_what_is_not_finite_does_not_become_a_silent_zero():
  for bad in (np.nan, np.inf, -np.inf):
    assert np.isnan(one_group([1.0, bad, 2.0])[1])
