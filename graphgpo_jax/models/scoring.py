"""Log-probs of given tokens under a Decoder.

Axes: R rows, L tokens, V vocabulary.
"""

import chex
import jax
import jax.numpy as jnp
from jax import lax

from graphgpo_jax.models.slices import from_slices, to_slices


def token_logps(
  decoder,
  ids,
  *,
  segment=None,
  position=None,
  scored=None,
  temperature=1.0,
  chunk=None,
):
  """Log-prob and entropy of tokens given those before them in their segment.

    logp[:, t] = log softmax(logits(ids[:, :t]) / temperature)[ids[:, t]]

  The entropy at t is that of the same distribution, -sum_v p_v log p_v.

  Args:
    decoder: a Decoder.
    ids: [R, L] int32.
    segment: [R, L] int32; tokens see the earlier ones of their own number. None
      takes a row as one segment. The first token of a segment has no
      prediction: do not score it.
    position: [R, L] int32, in the segment, or None: 0 .. L - 1.
    scored: [R, L] bool, the tokens that are wanted; None: all but the first.
    temperature: scalar > 0.
    chunk: tokens per row and slice of the vocabulary projection, recomputed in
      the backward pass: [R, L, V] never exists, and slices with nothing to
      score cost nothing. None projects all tokens in one piece.

  Returns:
    (logp, entropy), each [R, L] float32, in nats; 0 where not scored.
  """
  chex.assert_rank(ids, 2)
  steps = jnp.arange(ids.shape[1])
  if segment is None:
    segment = jnp.ones_like(ids)
  if position is None:
    position = jnp.broadcast_to(steps, ids.shape)
  if scored is None:
    scored = jnp.broadcast_to(steps > 0, ids.shape)
  mask = segment[:, :, None] == segment[:, None, :]
  mask &= steps[:, None] >= steps
  hidden, _ = decoder.hidden(ids, position, mask)
  # The activation at t - 1 predicts the token at t.
  inputs = hidden[:, :-1], ids[:, 1:], scored[:, 1:]

  def score(hidden, targets):
    return _score(decoder, hidden, targets, temperature)

  if chunk is None:
    scores = score(*inputs[:2])
  else:
    scores = _in_chunks(score, *inputs, chunk)
  return tuple(
    jnp.pad(jnp.where(inputs[2], values, 0.0), ((0, 0), (1, 0)))
    for values in scores
  )


def _score(decoder, hidden, targets, temperature):
  logits = decoder.logits(hidden) / temperature
  total = jax.nn.logsumexp(logits, axis=-1)
  chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
  mean = jnp.sum(jnp.exp(logits - total[..., None]) * logits, axis=-1)
  return chosen - total, total - mean


def _in_chunks(score, hidden, targets, scored, chunk):
  """score(hidden, targets), over slices of `chunk` tokens of axis 1."""
  # Scored tokens move to the left of their row, so that the slices after the
  # longest have nothing to do.
  order = jnp.argsort(~scored, axis=1, stable=True)

  def cut(x):
    index = order.reshape(*order.shape, *[1] * (x.ndim - 2))
    return to_slices(jnp.take_along_axis(x, index, axis=1), chunk)

  def score_slice(slices):
    hidden, targets, scored = slices
    nothing = (jnp.zeros(targets.shape, jnp.float32),) * 2
    return lax.cond(scored.any(), score, lambda *_: nothing, hidden, targets)

  # Around the condition: inside, the projection would be kept once per slice.
  score_slice = jax.checkpoint(score_slice, prevent_cse=False)
  scores = lax.map(score_slice, tuple(map(cut, (hidden, targets, scored))))
  back = jnp.argsort(order, axis=1)
  return [
    jnp.take_along_axis(from_slices(values, targets.shape[1]), back, axis=1)
    for values in scores
  ]
