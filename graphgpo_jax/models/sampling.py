"""The jitted parts of sampling: prefill, admit, decode, compact.

Axes: R rows, U x P tokens of a prefill, N new tokens, S key slots,
D embedding, V vocabulary. Rows are divided evenly over `parts`, the `data` and
`fsdp` devices of the mesh; no row ever moves from one part to another.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from graphgpo_jax import sharding
from graphgpo_jax.models.decoder import DecoderConfig, init_cache
from graphgpo_jax.models.parameters import assemble

BLOCK = 128  # tokens that the inverse of a distribution looks at together


class Settings(NamedTuple):
  """What is static in every jitted part; see `generation.make_sampler`."""

  config: DecoderConfig
  mesh: jax.sharding.Mesh
  max_new_tokens: int
  stop_tokens: tuple[int, ...]
  top_k: int
  top_p: float

  @property
  def parts(self) -> int:
    """Devices that rows are divided over."""
    return sharding.parts(self.mesh)


@struct.dataclass
class Batch:
  """Rows on the devices while they are sampled.

  Attributes:
    ids, logps, lengths: as in Samples, [R, ...].
    stopped: [R] bool.
    shift: [R] int32, empty key slots before the prompt. All prompts end in one
      slot, so that every later token is written to the same slot of all rows.
    keys: [R, 2] uint32.
    limits: [R] int32, most new tokens of a row.
    cache: of `decoder.init_cache`, or None where N = 1.
  """

  ids: jax.Array
  logps: jax.Array
  lengths: jax.Array
  stopped: jax.Array
  shift: jax.Array
  keys: jax.Array
  limits: jax.Array
  cache: tuple | None


@functools.partial(jax.jit, static_argnums=(0, 1))
def empty(settings, total, keys):
  """A Batch without rows, for keys [R, 2] and S = total."""
  config, mesh, new = settings.config, settings.mesh, settings.max_new_tokens
  rows, cache = len(keys), None
  if new > 1:
    heads = config.num_kv_heads % mesh.shape['tensor'] == 0
    spec = jax.P(None, sharding.BATCH, None, 'tensor' if heads else None)
    cache = lax.with_sharding_constraint(
      init_cache(config, rows, total), jax.NamedSharding(mesh, spec)
    )
  batch = Batch(
    ids=jnp.zeros((rows, new), jnp.int32),
    logps=jnp.zeros((rows, new), jnp.float32),
    lengths=jnp.zeros(rows, jnp.int32),
    stopped=jnp.ones(rows, bool),
    shift=jnp.zeros(rows, jnp.int32),
    keys=keys,
    limits=jnp.full(rows, new, jnp.int32),
    cache=None,
  )
  batch = lax.with_sharding_constraint(batch, sharding.by_row(mesh))
  return batch.replace(cache=cache)


@functools.partial(jax.jit, static_argnums=0)
def prefill(settings, params, ids, segment, position):
  """Reads prompts, several in a row.

  Args:
    ids, segment, position: [U, P] int32; tokens see the earlier ones of their
      own segment.

  Returns:
    (activations [U, P, D], the cache of these rows or None where N = 1).
  """
  decoder = assemble(settings.config, params, settings.mesh)
  steps = jnp.arange(ids.shape[1])
  mask = segment[:, :, None] == segment[:, None, :]
  mask &= steps[:, None] >= steps
  cache = None
  if settings.max_new_tokens > 1:
    cache = init_cache(settings.config, *ids.shape)
  return decoder.hidden(ids, position, mask, cache=cache, cache_index=0)


def _take(x, index, parts, axis=0):
  """Rows `index` [R] of x, each counted inside its part."""
  x = jnp.moveaxis(x, axis, 0)
  pieces = x.reshape(parts, -1, *x.shape[1:])
  taken = jax.vmap(lambda x, i: x[i])(pieces, index.reshape(parts, -1))
  return jnp.moveaxis(taken.reshape(-1, *x.shape[1:]), 0, axis)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def admit(settings, params, batch, hidden, cache, start, lengths, *chance):
  """Draws the first token of the rows that start with these prompts.

  Args:
    batch: donated.
    hidden, cache: of `prefill`.
    start: [R] int32, where the prompt of a row starts among the U * P tokens,
      counted inside its part, or -1.
    lengths: [R] int32, of the prompts.
    chance: temperature and greedy, scalars.
  """
  parts, new = settings.parts, start >= 0
  last = jnp.maximum(start + lengths - 1, 0)
  decoder = assemble(settings.config, params, settings.mesh)
  hidden = _take(hidden.reshape(-1, hidden.shape[-1]), last, parts)
  logits = decoder.logits(hidden)
  token, logp = _draw(settings, logits, batch.keys, 0, *chance)
  if cache is not None:
    width = cache[0].shape[2]
    shift = width - lengths
    # Moved against the right edge, all prompts end in one slot.
    index = (start - shift)[:, None] + jnp.arange(width)
    index = jnp.maximum(index, 0).reshape(-1)

    def fill(old, fresh):
      tail = fresh.shape[3:]
      fresh = fresh.reshape(len(fresh), -1, *tail)
      fresh = _take(fresh, index, parts, axis=1)
      fresh = fresh.reshape(len(fresh), -1, width, *tail)
      kept = old[:, :, :width]
      fresh = jnp.where(new[:, None, None, None], fresh, kept)
      return lax.dynamic_update_slice_in_dim(old, fresh, 0, axis=2)

    batch = batch.replace(
      cache=jax.tree.map(fill, batch.cache, cache),
      shift=jnp.where(new, shift, batch.shift),
    )
  ended = _ends(settings, token) | (batch.limits <= 1)
  return batch.replace(
    ids=batch.ids.at[:, 0].set(jnp.where(new, token, batch.ids[:, 0])),
    logps=batch.logps.at[:, 0].set(jnp.where(new, logp, batch.logps[:, 0])),
    lengths=batch.lengths + new,
    stopped=jnp.where(new, ended, batch.stopped),
  )


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def decode(settings, params, batch, t, enough, *chance):
  """Feeds tokens back, from token t on; batch is donated.

  Stops when no part has more than `enough` rows left; (t, batch) then.
  """
  decoder = assemble(settings.config, params, settings.mesh)
  total, most = batch.cache[0].shape[2], batch.ids.shape[1]
  visible = jnp.arange(total) >= batch.shift[:, None]

  def unfinished(carry):
    t, batch = carry
    going = ~batch.stopped.reshape(settings.parts, -1)
    return (t < most) & (going.sum(axis=1).max() > enough)

  def step(carry):
    t, batch = carry
    slot = total - most + t
    hidden, cache = decoder.hidden(
      lax.dynamic_slice_in_dim(batch.ids, t - 1, 1, axis=1),
      (slot - batch.shift)[:, None],
      (visible & (jnp.arange(total) <= slot))[:, None],
      cache=batch.cache,
      cache_index=slot,
    )
    logits = decoder.logits(hidden[:, 0])
    token, logp = _draw(settings, logits, batch.keys, t, *chance)
    stopped = batch.stopped
    return t + 1, batch.replace(
      ids=batch.ids.at[:, t].set(jnp.where(stopped, 0, token)),
      logps=batch.logps.at[:, t].set(jnp.where(stopped, 0.0, logp)),
      lengths=batch.lengths + ~stopped,
      stopped=stopped | _ends(settings, token) | (batch.limits <= t + 1),
      cache=cache,
    )

  return lax.while_loop(unfinished, step, (t, batch))


@functools.partial(jax.jit, static_argnums=0)
def compact(settings, batch, index, padding):
  """The rows `index` of every part; padding repeats a row and has stopped."""
  parts, mesh = settings.parts, settings.mesh
  cache = jax.tree.map(lambda x: _take(x, index, parts, 1), batch.cache)
  batch = jax.tree.map(
    lambda x: _take(x, index, parts), batch.replace(cache=None)
  )
  batch = lax.with_sharding_constraint(batch, sharding.by_row(mesh))
  return batch.replace(cache=cache, stopped=batch.stopped | padding)


def _ends(settings, token):
  return jnp.isin(token, jnp.array(settings.stop_tokens, jnp.int32))


def _cut(settings, logits):
  """Logits [R, V] with all but the likeliest tokens at -inf."""
  if settings.top_k:
    count = min(settings.top_k, logits.shape[-1])
    least = lax.top_k(logits, count)[0][:, -1:]
    logits = jnp.where(logits >= least, logits, -jnp.inf)
  if settings.top_p < 1:
    order = jnp.sort(logits, axis=-1, descending=True)
    mass = jax.nn.softmax(order)
    kept = jnp.cumsum(mass, axis=-1) - mass < settings.top_p
    least = jnp.min(order, axis=-1, keepdims=True, where=kept, initial=jnp.inf)
    logits = jnp.where(logits >= least, logits, -jnp.inf)
  return logits


def _draw(settings, logits, keys, t, temperature, greedy):
  """Token t of every row and its log-prob, from logits [R, V]."""
  logps = jax.nn.log_softmax(_cut(settings, logits / temperature))
  row_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(
    jax.random.wrap_key_data(keys), t
  )
  uniform = jax.vmap(jax.random.uniform)(row_keys)
  token = jnp.where(
    greedy, jnp.argmax(logits, axis=-1), _invert(jnp.exp(logps), uniform)
  ).astype(jnp.int32)
  return token, jnp.take_along_axis(logps, token[:, None], axis=-1)[:, 0]


def _invert(probabilities, uniform):
  """The token of each row at which its cumulative mass passes `uniform` [R].

  One random number per row in place of one per token. Blocks first, then
  inside one block: little is ever summed up, so rounding stays small.
  """
  rows, vocabulary = probabilities.shape
  padding = ((0, 0), (0, -vocabulary % BLOCK))
  blocks = jnp.pad(probabilities, padding).reshape(rows, -1, BLOCK)

  def pick(mass, target):
    total = jnp.cumsum(mass, axis=-1)
    # Rounding must neither lead to one without mass, nor past the last.
    possible = mass > 0
    passed = possible & (total > target[:, None])
    last = mass.shape[-1] - 1 - jnp.argmax(possible[:, ::-1], axis=-1)
    index = jnp.where(passed.any(axis=-1), jnp.argmax(passed, axis=-1), last)
    index = index[:, None]
    before = jnp.take_along_axis(total - mass, index, axis=-1)[:, 0]
    return index, target - before

  mass = blocks.sum(axis=-1)
  block, rest = pick(mass, uniform * mass.sum(axis=-1))
  inside = jnp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
  token, _ = pick(inside, rest)
  return (block * BLOCK + token)[:, 0]
