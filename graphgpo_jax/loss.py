"""Token losses of policy optimisation: PPO clipping, KL penalties, weights.

Arrays are over tokens, of one shape [...]. Every loss is a plain weighted sum
over tokens, with weights made once per mini-batch by `aggregation_weights`: the
sum over micro-batches is then the loss of the mini-batch, however it was split.
"""

import chex
import jax
import jax.numpy as jnp

AGGREGATIONS = ('token_mean', 'sequence_mean', 'fixed_length')
ESTIMATORS = ('k1', 'k2', 'k3')
# float32 exp overflows near 88.7, and its square, as in a norm of gradients,
# near half of that. e^20 is about 5e8, far outside any clip range.
MAX_LOG_RATIO = 20.0


def aggregation_weights(response_length, *, aggregation, fixed_length=None):
  """Weight of every token in the loss of a whole mini-batch.

    token_mean:     1 / tokens
    sequence_mean:  1 / (tokens of the step's response * steps)
    fixed_length:   1 / (fixed_length * steps)

  for the tokens of responses, 0 for all others; tokens and steps are counted
  over the mini-batch. The weights of the first two sum to 1.

  Args:
    response_length: [...] int32, see `types.TokenRows`.
    aggregation: one of the names above.
    fixed_length: in tokens, for 'fixed_length' only.

  Returns:
    [...] float32.

  Raises:
    ValueError: an unknown aggregation, or fixed_length is missing.
  """
  mask = response_length > 0
  length = jnp.maximum(response_length, 1).astype(jnp.float32)
  # Each response adds up to 1, whatever row it lies in.
  steps = jnp.round(jnp.sum(mask / length))
  if aggregation == 'token_mean':
    size = mask.sum()
  elif aggregation == 'sequence_mean':
    size = length * steps
  elif aggregation == 'fixed_length':
    if fixed_length is None or not fixed_length > 0:
      raise ValueError(f'fixed_length must be > 0 tokens, got {fixed_length}')
    size = fixed_length * steps
  else:
    raise ValueError(
      f'aggregation must be one of {AGGREGATIONS}, got {aggregation!r}'
    )
  # Counts are 0 or at least 1, so this only changes 0 / 0.
  return mask / jnp.maximum(size, 1).astype(jnp.float32)


def _log_ratio(logp, other_logp, live):
  """logp - other_logp, exactly 0 in value and gradient where not live."""
  difference = logp.astype(jnp.float32) - other_logp.astype(jnp.float32)
  return jnp.where(live, difference, 0.0)


def clipped_policy_loss(
  logp, behaviour_logp, advantage, weights, *, clip_low, clip_high
):
  """The clipped surrogate of PPO, with one advantage per step.

    ratio = exp(min(logp - behaviour_logp, 20))
    loss  = -sum w * min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)

  Source: arXiv:1707.06347, equation 7. Deviations: two clip widths, the bound
  on the log-ratio (the gradient beyond it is 0), and weights that may sum to
  less than 1. Tokens of weight 0 have exactly zero gradient, whatever they
  hold (nan and inf included).

  Args:
    logp: [...] float, of the current policy, in nats.
    behaviour_logp: [...] float, of the policy that sampled, in nats.
    advantage: [...] float32, of the step that a token belongs to.
    weights: [...] float32 >= 0, from `aggregation_weights`.
    clip_low: the ratio is clipped below 1 - clip_low.
    clip_high: and above 1 + clip_high.

  Returns:
    (loss, metrics), float32 scalars. Weighted sums: 'clip_fraction_low' and
    'clip_fraction_high', where the clip stops the gradient on that side, and
    'approximate_kl', of (ratio - 1) - log(ratio), an estimate of
    KL(behaviour || current) in nats. Maximum: 'ratio_error', of |ratio - 1|.
  """
  chex.assert_equal_shape([logp, behaviour_logp, advantage, weights])
  live = weights > 0
  log_ratio = _log_ratio(logp, behaviour_logp, live)
  ratio = jnp.exp(jnp.minimum(log_ratio, MAX_LOG_RATIO))
  advantage = jnp.where(live, advantage, 0.0)
  clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
  loss = -jnp.sum(weights * jnp.minimum(ratio * advantage, clipped * advantage))
  low = (ratio < 1 - clip_low) & (advantage < 0)
  high = (ratio > 1 + clip_high) & (advantage > 0)
  metrics = {
    'clip_fraction_low': jnp.sum(weights * low),
    'clip_fraction_high': jnp.sum(weights * high),
    'approximate_kl': jnp.sum(weights * (ratio - 1 - log_ratio)),
    'ratio_error': jnp.max(jnp.abs(ratio - 1), initial=0.0),
  }
  return loss, jax.lax.stop_gradient(metrics)


def kl_penalty(logp, reference_logp, weights, *, estimator):
  """Weighted sum of an estimate of KL(current || reference) per token.

    d = logp - reference_logp
    k1 = d,    k2 = d ** 2 / 2,    k3 = exp(min(-d, 20)) - 1 + d

  Source: Schulman, http://joschu.net/blog/kl-approx.html. On tokens sampled
  from the current policy k1 and k3 are unbiased, k2 is not. The gradient is
  that of the expression, not of the expectation: in expectation k1 gives 0 (as
  a loss it does nothing), k2 the gradient of KL(current || reference), k3 that
  of KL(reference || current). Tokens of weight 0 are ignored altogether.

  Args:
    logp: [...] float, of the current policy, in nats.
    reference_logp: [...] float, of the reference policy, in nats.
    weights: [...] float32 >= 0, from `aggregation_weights`.
    estimator: 'k1', 'k2' or 'k3'.

  Returns:
    float32 scalar, in nats.

  Raises:
    ValueError: an unknown estimator.
  """
  chex.assert_equal_shape([logp, reference_logp, weights])
  difference = _log_ratio(logp, reference_logp, weights > 0)
  if estimator == 'k1':
    penalty = difference
  elif estimator == 'k2':
    penalty = difference**2 / 2
  elif estimator == 'k3':
    # The bound holds for both terms, or the gradient would change its sign.
    negative = jnp.minimum(-difference, MAX_LOG_RATIO)
    penalty = jnp.exp(negative) - 1 - negative
  else:
    raise ValueError(
      f'estimator must be one of {ESTIMATORS}, got {estimator!r}'
    )
  return jnp.sum(weights * penalty)
