"""Sampling from a Decoder: prefill, then a cached decode loop, in one jit.

Axes: R rows, P prompt tokens, N new tokens, V vocabulary.
"""

import functools

import chex
import jax
import jax.numpy as jnp
from flax import nnx, struct
from jax import lax

from graphgpo_jax.models.decoder import init_cache


@struct.dataclass
class Samples:
  """Responses, as sampled.

  Attributes:
    ids: [R, N] int32, 0 after the end.
    logps: [R, N] float32, log-prob of each id under the distribution it was
      drawn from, in nats; 0 after the end.
    lengths: [R] int32, in tokens, the stop token included.
  """

  ids: jax.Array
  logps: jax.Array
  lengths: jax.Array


def make_sampler(graphdef, *, max_new_tokens, stop_tokens=()):
  """A pure, jitted function that samples from the decoder of a graphdef.

  Token t of a row is drawn with fold_in(key of the row, t) from
  softmax(logits / temperature), so a row does not depend on its batch mates,
  on the order of rows or on the padding of prompts (up to float rounding).
  All samplers of one graphdef, with the same keywords, share a compilation;
  temperature and greedy never cause a new one.

  Args:
    graphdef: of `nnx.split(decoder)`.
    max_new_tokens: N, >= 1.
    stop_tokens: ids that end a row.

  Returns:
    fn(state, prompts, prompt_lengths, keys, temperature=1.0, greedy=False)
    -> Samples, with
      state: of `nnx.split(decoder)`.
      prompts: [R, P] int32, right-padded.
      prompt_lengths: [R] int32, >= 1.
      keys: [R] typed threefry keys, as of jax.random.key.
      temperature: scalar > 0, for greedy rows too, whose log-probs it scales.
      greedy: scalar bool, take the likeliest token.

  Raises:
    ValueError: max_new_tokens < 1; or, by fn, keys that are not threefry
      (vmap would draw all rows from the first key).
  """
  if max_new_tokens < 1:
    raise ValueError(f'max_new_tokens must be >= 1, got {max_new_tokens}')
  settings = (graphdef, max_new_tokens, tuple(map(int, stop_tokens)))

  def sampler(
    state, prompts, prompt_lengths, keys, temperature=1.0, greedy=False
  ):
    implementation = str(jax.random.key_impl(keys))
    if implementation != 'threefry2x32':
      raise ValueError(f'keys must be threefry2x32, got {implementation}')
    # A Python number and an array would be two compilations.
    temperature = jnp.asarray(temperature, jnp.float32)
    greedy = jnp.asarray(greedy, bool)
    return _generate(
      *settings, state, prompts, prompt_lengths, keys, temperature, greedy
    )

  return sampler


def sample(
  decoder,
  prompts,
  prompt_lengths,
  keys,
  *,
  max_new_tokens,
  temperature=1.0,
  stop_tokens=(),
  greedy=False,
):
  """Samples from a Decoder; see `make_sampler` for shapes and guarantees."""
  graphdef, state = nnx.split(decoder)
  sampler = make_sampler(
    graphdef, max_new_tokens=max_new_tokens, stop_tokens=stop_tokens
  )
  return sampler(state, prompts, prompt_lengths, keys, temperature, greedy)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(
  graphdef,
  max_new_tokens,
  stop_tokens,
  state,
  prompts,
  prompt_lengths,
  keys,
  temperature,
  greedy,
):
  chex.assert_rank(prompts, 2)
  rows, width = prompts.shape
  chex.assert_shape([prompt_lengths, keys], (rows,))
  decoder = nnx.merge(graphdef, state)
  shift = width - prompt_lengths
  # The last token is never fed back, so it needs no slot.
  visible = jnp.arange(width + max_new_tokens - 1) >= shift[:, None]
  cache = None
  if max_new_tokens > 1:
    cache = init_cache(decoder.config, *visible.shape)
  logits, cache = _prefill(decoder, prompts, shift, visible, cache)

  def extend(samples, stopped, logits, t):
    token, logp = _draw(logits, keys, t, temperature, greedy)
    ends = jnp.isin(token, jnp.array(stop_tokens, jnp.int32))
    return _append(samples, stopped, token, logp, t), stopped | ends

  samples = _no_samples(rows, max_new_tokens)
  samples, stopped = extend(samples, jnp.zeros(rows, bool), logits, 0)
  if max_new_tokens == 1:
    return samples
  carry = (jnp.int32(1), samples, stopped, cache)
  return _decode(decoder, extend, carry, shift, visible)


def _decode(decoder, extend, carry, shift, visible):
  """Feeds the last token back until all rows stopped or are full."""
  total = visible.shape[1]
  max_new_tokens = carry[1].ids.shape[1]

  def step(carry):
    t, samples, stopped, cache = carry
    slot = total - max_new_tokens + t
    hidden, cache = decoder.hidden(
      lax.dynamic_slice_in_dim(samples.ids, t - 1, 1, axis=1),
      (slot - shift)[:, None],
      (visible & (jnp.arange(total) <= slot))[:, None],
      cache=cache,
      cache_index=slot,
    )
    logits = decoder.logits(hidden[:, 0])
    return t + 1, *extend(samples, stopped, logits, t), cache

  def unfinished(carry):
    t, _, stopped, _ = carry
    return (t < max_new_tokens) & ~stopped.all()

  return lax.while_loop(unfinished, step, carry)[1]


def _append(samples, stopped, token, logp, t):
  return Samples(
    ids=samples.ids.at[:, t].set(jnp.where(stopped, 0, token)),
    logps=samples.logps.at[:, t].set(jnp.where(stopped, 0.0, logp)),
    lengths=samples.lengths + ~stopped,
  )


def _no_samples(rows, max_new_tokens):
  return Samples(
    ids=jnp.zeros((rows, max_new_tokens), jnp.int32),
    logps=jnp.zeros((rows, max_new_tokens), jnp.float32),
    lengths=jnp.zeros(rows, jnp.int32),
  )


def _prefill(decoder, prompts, shift, visible, cache):
  """Logits [R, V] after right-padded prompts, and the filled cache."""
  # Moved against the right edge, all prompts end in one slot, so that every
  # later token is written to the same slot in all rows.
  steps = jnp.arange(prompts.shape[1])
  positions = jnp.maximum(steps - shift[:, None], 0)
  ids = jnp.take_along_axis(prompts, positions, axis=1)
  causal = steps[:, None] >= jnp.arange(visible.shape[1])
  hidden, cache = decoder.hidden(
    ids, positions, causal & visible[:, None], cache=cache, cache_index=0
  )
  return decoder.logits(hidden[:, -1]), cache


def _draw(logits, keys, t, temperature, greedy):
  """Token t of every row and its log-prob, from logits [R, V]."""
  logps = jax.nn.log_softmax(logits / temperature)
  row_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, t)
  token = jnp.where(
    greedy,
    jnp.argmax(logits, axis=-1),
    jax.vmap(jax.random.categorical)(row_keys, logps),
  ).astype(jnp.int32)
  return token, jnp.take_along_axis(logps, token[:, None], axis=-1)[:, 0]
