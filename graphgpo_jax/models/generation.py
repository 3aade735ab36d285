"""Sampling from a Decoder: prefill by length, then one cached decode loop.

Axes: n rows of this process, N new tokens. This is the host's side: which row
lies where, and in which shapes `sampling` runs. Shapes are powers of two of
rows and the given prompt lengths, so compilations are bounded however many rows
and lengths there are.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import AxisType

from graphgpo_jax import sharding
from graphgpo_jax.models import sampling
from graphgpo_jax.states import power_of_two

SMALLEST = 16  # rows; fewer are padded, to bound compilations


@struct.dataclass
class Samples:
  """Responses, as sampled; numpy.

  Attributes:
    ids: [n, N] int32, 0 after the end.
    logps: [n, N] float32, log-prob of each id under the distribution it was
      drawn from, in nats; 0 after the end.
    lengths: [n] int32, in tokens, the stop token included.
  """

  ids: np.ndarray
  logps: np.ndarray
  lengths: np.ndarray


def make_sampler(
  config,
  *,
  max_new_tokens: int,
  buckets: Sequence[int],
  stop_tokens: Sequence[int] = (),
  top_k: int = 0,
  top_p: float = 1.0,
  mesh=None,
  prefill_tokens: int = 4096,
) -> Callable:
  """A function that samples from the Decoder of a config.

  Token t of a row is drawn with fold_in(key of the row, t) from
  softmax(logits / temperature), cut to the top_k likeliest tokens and then to
  the fewest that hold top_p of the mass. A row does not depend on its batch
  mates, on the order of rows or on padding (up to float rounding). Equal
  prompts are prefilled once. Rows that stop leave: when half of them have,
  the others go on in a smaller batch.

  Args:
    config: a DecoderConfig.
    max_new_tokens: N, >= 1.
    buckets: prompt lengths to pad to; the largest is the limit.
    stop_tokens: ids that end a row.
    top_k, top_p: 0 and 1 for the whole distribution.
    mesh: of `sharding.make_mesh`; None for one device.
    prefill_tokens: of one prefill call and part, to bound its memory.

  Returns:
    fn(params, prompts, keys, temperature=1.0, greedy=False, limits=None)
    -> Samples, with
      params: of the decoder.
      prompts: n sequences of ids, none empty; those of this process.
      keys: [n or more] threefry keys, as of jax.random.key; the first n count.
      temperature: > 0, for greedy rows too, whose log-probs it scales.
      greedy: take the likeliest token.
      limits: [n] most new tokens of a row, 1 to N; None: N.

  Raises:
    ValueError: a setting out of range; or, by fn, a prompt that is empty or
      longer than all buckets, or keys that are too few or not threefry.
  """
  _check_settings(max_new_tokens, buckets, top_k, top_p)
  if mesh is None:
    mesh = jax.make_mesh(
      (1, 1, 1), sharding.AXES, (AxisType.Auto,) * 3, devices=jax.devices()[:1]
    )
  buckets = tuple(sorted(buckets))
  settings = sampling.Settings(
    config, mesh, max_new_tokens, tuple(map(int, stop_tokens)), top_k, top_p
  )
  whole = settings._replace(top_k=0, top_p=1.0)  # one prefill for all cuts
  parts = settings.parts // jax.process_count()  # of this process

  def sampler(
    params, prompts, keys, temperature=1.0, greedy=False, limits=None
  ):
    keys = _checked(prompts, buckets, keys)
    # A Python number and an array would be two compilations.
    chance = jnp.float32(temperature), jnp.bool_(greedy)
    plan = _make_plan(prompts, buckets, parts)
    if not plan.counts:  # of no process
      return _nothing(0, max_new_tokens)
    total = max(plan.counts) + max_new_tokens - 1
    batch = _start(settings, plan, total, keys, limits)
    for block in _blocks(plan, prefill_tokens):
      ids, lengths, source = sharding.put_rows(block, mesh)
      logits, cache = sampling.prefill(whole, params, ids, lengths)
      batch = sampling.admit(
        settings, batch, logits, cache, lengths, source, *chance
      )
    return _finish(settings, params, batch, plan, chance)

  return sampler


def _check_settings(max_new_tokens, buckets, top_k, top_p):
  if max_new_tokens < 1:
    raise ValueError(f'max_new_tokens must be >= 1, got {max_new_tokens}')
  if top_k < 0 or not 0 < top_p <= 1:
    raise ValueError(f'top_k and top_p out of range, got {top_k} and {top_p}')
  if not buckets or min(buckets) < 1:
    raise ValueError(f'buckets must be integers >= 1, got {tuple(buckets)}')


def _checked(prompts, buckets, keys):
  """Key data [n, 2] of sane inputs."""
  for row, prompt in enumerate(prompts):
    if not 1 <= len(prompt) <= buckets[-1]:
      raise ValueError(
        f'prompts must have 1 to {buckets[-1]} tokens, got {len(prompt)} in '
        f'row {row}'
      )
  implementation = str(jax.random.key_impl(keys))
  if implementation != 'threefry2x32':
    raise ValueError(f'keys must be threefry2x32, got {implementation}')
  if len(keys) < len(prompts):
    raise ValueError(
      f'{len(prompts)} prompts need as many keys, got {len(keys)}'
    )
  return np.asarray(jax.random.key_data(keys))[: len(prompts)]


def _start(settings, plan, total, keys, limits):
  """A Batch without tokens, with keys and limits in the slots of the rows."""
  slots = np.zeros((plan.parts * plan.size, 2), np.uint32)
  slots[plan.place] = keys
  slots = sharding.put_rows(slots, settings.mesh)
  batch = sampling.empty(settings, total, slots)
  if limits is None:
    return batch
  slots = np.zeros(plan.parts * plan.size, np.int32)
  slots[plan.place] = limits
  return batch.replace(limits=sharding.put_rows(slots, settings.mesh))


class Plan(NamedTuple):
  """Which row is where.

  Attributes:
    parts: of this process.
    size: slots of a part.
    place: [n] slot of each row, over all parts.
    groups: bucket -> for each part, prompt as bytes -> slots that start with
      it, counted inside the part.
    counts: bucket -> distinct prompts, in the fullest part of all processes.
  """

  parts: int
  size: int
  place: np.ndarray
  groups: dict
  counts: dict


def _make_plan(prompts, buckets, parts):
  each = max(1, -(-len(prompts) // parts))
  groups = {bucket: [{} for _ in range(parts)] for bucket in buckets}
  for row, prompt in enumerate(prompts):
    part, slot = divmod(row, each)
    bucket = next(b for b in buckets if b >= len(prompt))
    ids = np.asarray(prompt, np.int32).tobytes()
    groups[bucket][part].setdefault(ids, []).append(slot)
  most = [max(map(len, groups[b])) for b in buckets]
  each_everywhere, *most = map(int, sharding.most([each, *most]))
  size = max(power_of_two(each_everywhere), -(-SMALLEST // parts))
  rows = np.arange(len(prompts))
  return Plan(
    parts=parts,
    size=size,
    place=rows // each * size + rows % each,
    groups=groups,
    counts={b: count for b, count in zip(buckets, most) if count},
  )


def _blocks(plan, prefill_tokens):
  """Padded blocks of distinct prompts: ids, lengths, and the rows they serve.

  Yields:
    ids [parts * u, P] and lengths [parts * u] int32; source [parts * size]
    int32, the prompt in the part's block that a row starts with, or -1.
  """
  for bucket, count in plan.counts.items():
    block = max(power_of_two(count), -(-SMALLEST // plan.parts))
    while block > 1 and block * bucket > prefill_tokens:
      block //= 2
    for start in range(0, count, block):
      ids = np.zeros((plan.parts, block, bucket), np.int32)
      lengths = np.ones((plan.parts, block), np.int32)
      source = np.full((plan.parts, plan.size), -1, np.int32)
      for part, distinct in enumerate(plan.groups[bucket]):
        some = list(distinct.items())[start : start + block]
        for i, (key, slots) in enumerate(some):
          prompt = np.frombuffer(key, np.int32)
          ids[part, i, : len(prompt)] = prompt
          lengths[part, i] = len(prompt)
          source[part, slots] = i
      yield ids.reshape(-1, bucket), lengths.reshape(-1), source.reshape(-1)


def _finish(settings, params, batch, plan, chance):
  """Decodes until all rows of all processes have stopped; Samples."""
  parts, most = plan.parts, settings.max_new_tokens
  rows = np.full(parts * plan.size, -1)  # of the caller, in each slot
  rows[plan.place] = np.arange(len(plan.place))
  results = _nothing(len(plan.place), most)
  t, smallest = 1, -(-SMALLEST // parts)
  while True:
    size = len(rows) // parts
    if most > 1:
      enough = size // 2 if size > smallest else 0
      t, batch = sampling.decode(settings, params, batch, t, enough, *chance)
      t = int(t)  # an array from a device would be another compilation
    found = sharding.local_rows(
      (batch.ids, batch.logps, batch.lengths, batch.stopped)
    )
    for kept, values in zip(
      (results.ids, results.logps, results.lengths), found
    ):
      kept[rows[rows >= 0]] = values[rows >= 0]
    active = (~found[3] & (t < most)).reshape(parts, -1)
    (left,) = sharding.most([active.sum(axis=1).max()])
    if not left:
      return results
    size = max(power_of_two(int(left)), smallest)
    index, padding = _survivors(active, size)
    rows = np.take_along_axis(rows.reshape(parts, -1), index, 1)
    rows = np.where(padding, -1, rows).reshape(-1)
    moved = sharding.put_rows(
      (index.reshape(-1), padding.reshape(-1)), settings.mesh
    )
    batch = sampling.compact(settings, batch, *moved)


def _nothing(rows, length):
  """Samples [rows, length] without tokens."""
  return Samples(
    ids=np.zeros((rows, length), np.int32),
    logps=np.zeros((rows, length), np.float32),
    lengths=np.zeros(rows, np.int32),
  )


def _survivors(active, size):
  """Slots [parts, size] of active rows, and which are only padding."""
  index = np.zeros((len(active), size), np.int32)
  padding = np.ones((len(active), size), bool)
  for part, flags in enumerate(active):
    slots = np.flatnonzero(flags)
    index[part, : len(slots)] = slots
    padding[part, : len(slots)] = False
  return index, padding
