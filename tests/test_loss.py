import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphgpo_jax.loss import (
  AGGREGATIONS,
  ESTIMATORS,
  aggregation_weights,
  clipped_policy_loss,
  kl_penalty,
)

# Steps of 2, 1, 3 and 1 own tokens: two in the first row, none in the third.
LENGTH = jnp.array(
  [[0, 2, 2, 0, 1], [3, 3, 3, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
)
MASK = LENGTH > 0


def weigh(length, aggregation):
  fixed = 5 if aggregation == 'fixed_length' else None
  return aggregation_weights(
    length, aggregation=aggregation, fixed_length=fixed
  )


@pytest.mark.parametrize(
  'aggregation, two, three, one',
  [
    ('token_mean', 1 / 7, 1 / 7, 1 / 7),
    ('sequence_mean', 1 / 8, 1 / 12, 1 / 4),
    ('fixed_length', 1 / 20, 1 / 20, 1 / 20),
  ],
)
def test_weights_typed_in(aggregation, two, three, one):
  weights = weigh(LENGTH, aggregation)
  assert weights.dtype == jnp.float32
  expected = np.array([0, one, two, three])[LENGTH]
  np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize('aggregation', AGGREGATIONS)
def test_weights_of_no_responses_are_zero(aggregation):
  np.testing.assert_array_equal(weigh(0 * LENGTH, aggregation), 0)


def test_many_steps_are_counted_exactly():
  """Lengths whose parts of 1 do not add up to 1 in float32."""
  lengths = np.array([3, 7, 11, 49, 103, 410])
  length = np.repeat(lengths, lengths)  # one step of each
  length = jnp.tile(length, 200)
  weights = weigh(length, 'fixed_length')
  np.testing.assert_allclose(weights, 1 / (5 * 1200), rtol=1e-6)


def test_unknown_names_list_the_valid_ones():
  with pytest.raises(ValueError, match=r"token_mean.*got 'mean'"):
    aggregation_weights(LENGTH, aggregation='mean')
  with pytest.raises(ValueError, match='fixed_length must be > 0'):
    aggregation_weights(LENGTH, aggregation='fixed_length')
  ones = jnp.ones((1, 1))
  with pytest.raises(ValueError, match=r"k1.*got 'k4'"):
    kl_penalty(ones, ones, ones, estimator='k4')


@jax.jit
def policy_loss(logp, behaviour_logp, advantage, weights):
  return clipped_policy_loss(
    logp, behaviour_logp, advantage, weights, clip_low=0.2, clip_high=0.3
  )


@jax.jit
def all_losses(logp, other, advantage, weights):
  loss, metrics = policy_loss(logp, other, advantage, weights)
  penalties = [
    kl_penalty(logp, other, weights, estimator=name) for name in ESTIMATORS
  ]
  return loss + sum(penalties), metrics


policy_gradient = jax.jit(jax.value_and_grad(policy_loss, has_aux=True))
all_gradients = jax.jit(jax.value_and_grad(all_losses, has_aux=True))
kl_gradient = jax.jit(
  jax.value_and_grad(kl_penalty), static_argnames='estimator'
)


@pytest.mark.parametrize(
  'ratio, advantage, objective, gradient, low, high',
  [
    (1.5, 2.0, 2.6, 0.0, 0, 1),  # above 1.3, wanted: clipped
    (1.5, -2.0, -3.0, -3.0, 0, 0),  # above 1.3, unwanted: not clipped
    (0.5, 2.0, 1.0, 1.0, 0, 0),  # below 0.8, unwanted: not clipped
    (0.5, -2.0, -1.6, 0.0, 1, 0),  # below 0.8, wanted: clipped
    (1.25, 2.0, 2.5, 2.5, 0, 0),  # inside the upper width only
    (1.0, -3.0, -3.0, -3.0, 0, 0),  # the first update
  ],
)
def test_clipping_typed_in(ratio, advantage, objective, gradient, low, high):
  logp = jnp.array([[np.log(ratio) - 1.5]], jnp.float32)
  weights = jnp.array([[0.5]])
  (loss, metrics), slope = policy_gradient(
    logp, jnp.array([[-1.5]]), jnp.array([[advantage]]), weights
  )
  np.testing.assert_allclose(loss, -0.5 * objective, rtol=1e-5)
  np.testing.assert_allclose(slope, [[-0.5 * gradient]], rtol=1e-5)
  np.testing.assert_allclose(metrics['clip_fraction_low'], 0.5 * low)
  np.testing.assert_allclose(metrics['clip_fraction_high'], 0.5 * high)
  np.testing.assert_allclose(
    metrics['approximate_kl'], 0.5 * (ratio - 1 - np.log(ratio)), atol=1e-6
  )
  np.testing.assert_allclose(metrics['ratio_error'], abs(ratio - 1), atol=1e-6)


@pytest.mark.parametrize('junk', [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_masked_junk_has_exactly_zero_gradient(junk):
  weights = weigh(LENGTH, 'sequence_mean')
  logp = jnp.where(MASK, -1.0, junk)
  credit = jnp.array([[1.0, 1, 1, 1, -1], [-2] * 5, [3] * 5, [0.5] * 5])
  advantage = jnp.where(MASK, credit, junk)

  for other in (jnp.where(MASK, -1.2, 0.0), jnp.where(MASK, -1.2, junk)):
    # Not compiled: XLA may turn a product with a mask into a select.
    with jax.disable_jit():
      (loss, metrics), gradient = all_gradients(logp, other, advantage, weights)
    assert np.isfinite(loss)
    assert all(np.isfinite(value) for value in metrics.values())
    np.testing.assert_array_equal(gradient[~MASK], 0.0)
    assert (np.abs(gradient[MASK]) > 0.01).all()
    np.testing.assert_allclose(metrics['ratio_error'], np.exp(0.2) - 1, 1e-5)


@pytest.mark.parametrize('log_ratio', [89.0, -89.0, 1000.0])
@pytest.mark.parametrize('advantage', [1.0, -1.0])
def test_huge_log_ratio_stays_finite(log_ratio, advantage):
  one = jnp.ones((1, 1))
  (loss, metrics), gradient = policy_gradient(
    log_ratio * one, 0 * one, advantage * one, one
  )
  assert np.isfinite([loss, gradient.item(), *metrics.values()]).all()
  for estimator in ESTIMATORS:
    value, gradient = kl_gradient(
      log_ratio * one, 0 * one, one, estimator=estimator
    )
    assert np.isfinite([value, gradient.item()]).all()
    # Never pushes away from the reference (k1 pushes one way only).
    assert estimator == 'k1' or gradient.item() * log_ratio >= 0


@pytest.mark.parametrize('aggregation', AGGREGATIONS)
def test_micro_batch_splits_agree(aggregation):
  generator = np.random.default_rng(0)
  logp, other = generator.normal(-1, 0.3, (2, 4, 5)).astype(np.float32)
  advantage = generator.normal(0, 1, (4, 5)).astype(np.float32)
  weights = weigh(LENGTH, aggregation)

  results = []
  for splits in (1, 2, 4):
    values, gradients = [], []
    for rows in np.split(np.arange(4), splits):
      (value, _), gradient = all_gradients(
        logp[rows], other[rows], advantage[rows], weights[rows]
      )
      values.append(value)
      gradients.append(gradient)
    results.append((sum(values), np.concatenate(gradients)))
  assert abs(results[0][0]) > 0.01
  for value, gradient in results[1:]:
    np.testing.assert_allclose(value, results[0][0], rtol=1e-6)
    np.testing.assert_allclose(gradient, results[0][1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize('estimator', ['k1', 'k2', 'k3'])
def test_kl_on_a_two_token_softmax(estimator):
  """Expectation over the sampled token, current p against reference q.

  With p = (0.6, 0.4), q = (0.3, 0.7) and a the first logit:
    d1, d2 = log(0.6 / 0.3), log(0.4 / 0.7);  dp1/da = p1 * p2 = 0.24
    KL(p||q) = 0.6 d1 + 0.4 d2,  d KL(p||q) / da = 0.24 (d1 - d2)
    d KL(q||p) / da = p1 - q1 = 0.3
  """
  first, second = np.log(0.6 / 0.3), np.log(0.4 / 0.7)
  divergence = 0.6 * first + 0.4 * second
  value, slope = {
    'k1': (divergence, 0.0),
    'k2': (0.3 * first**2 + 0.2 * second**2, 0.24 * (first - second)),
    'k3': (divergence, 0.3),
  }[estimator]
  probabilities = jnp.array([[0.6], [0.4]])  # one row for each sampled token
  reference = jnp.log(jnp.array([[0.3], [0.7]]))

  def penalty(logit):
    logp = jax.nn.log_softmax(jnp.stack([logit, jnp.float32(0)]))[:, None]
    return kl_penalty(logp, reference, probabilities, estimator=estimator)

  result = jax.value_and_grad(penalty)(jnp.log(jnp.float32(1.5)))
  np.testing.assert_allclose(result, (value, slope), rtol=1e-5, atol=1e-6)
