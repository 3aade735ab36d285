"""Log-probs of given tokens under a Decoder.

Axes: R rows, L tokens, V vocabulary.
"""

import chex
import jax
import jax.numpy as jnp
from jax import lax


def token_logps(
  decoder,
  ids,
  *,
  lengths=None,
  positions=None,
  mask=None,
  temperature=1.0,
  chunk=None,
  with_entropy=False,
):
  """Log-prob of every token given the tokens before it in its row.

    logp[:, t] = log softmax(logits(ids[:, :t]) / temperature)[ids[:, t]]

  and 0 at t = 0 and at t >= lengths. The entropy at t is that of the same
  distribution, -sum_v p_v log p_v, in nats.

  Args:
    decoder: a Decoder.
    ids: [R, L] int32, right-padded rows (prompt, response, padding).
    lengths: [R] int32, prompt and response together, or None: all of L.
    positions: [R, L] int32, or None: 0 .. L - 1.
    mask: [R, L, L] bool, or None: causal. With packed segments the first
      token of a segment is scored by its neighbour: give it no weight.
    temperature: scalar > 0.
    chunk: tokens per slice of the vocabulary projection, recomputed in the
      backward pass, so that [R, L, V] never exists; None does it in one piece.
    with_entropy: also return the entropy.

  Returns:
    [R, L] float32, in nats; with_entropy: a pair of them.
  """
  chex.assert_rank(ids, 2)
  rows, length = ids.shape
  steps = jnp.arange(length)
  if positions is None:
    positions = jnp.broadcast_to(steps, ids.shape)
  if mask is None:
    mask = jnp.broadcast_to(steps[:, None] >= steps, (rows, length, length))
  hidden, _ = decoder.hidden(ids, positions, mask)

  def score(hidden, targets):
    logits = decoder.logits(hidden) / temperature
    total = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    if not with_entropy:
      return (chosen - total,)
    mean = jnp.sum(jnp.exp(logits - total[..., None]) * logits, axis=-1)
    return chosen - total, total - mean

  # The activation at t - 1 predicts the token at t.
  scores = _in_chunks(score, hidden[:, :-1], ids[:, 1:], chunk)
  kept = steps[1:] < (length if lengths is None else lengths[:, None])
  scores = [
    jnp.pad(jnp.where(kept, values, 0.0), ((0, 0), (1, 0))) for values in scores
  ]
  return tuple(scores) if with_entropy else scores[0]


def _in_chunks(score, hidden, targets, chunk):
  """score(hidden, targets), over slices of `chunk` tokens of axis 1."""
  if chunk is None:
    return score(hidden, targets)
  rows, length = targets.shape
  count = -(-length // chunk)

  def cut(x):
    padding = [(0, 0), (0, count * chunk - length)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, padding).reshape(rows, count, chunk, *x.shape[2:])
    return jnp.moveaxis(x, 1, 0)

  # Recomputed one slice at a time, the logits need chunk / L of the memory.
  scores = lax.map(
    lambda slices: jax.checkpoint(score, prevent_cse=False)(*slices),
    (cut(hidden), cut(targets)),
  )
  return [
    jnp.moveaxis(values, 0, 1).reshape(rows, -1)[:, :length]
    for values in scores
  ]
