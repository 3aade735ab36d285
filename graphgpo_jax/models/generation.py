"""Sampling from a Decoder: packed prefill, then one cached decode loop.

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
from graphgpo_jax.packing import lay_out
from graphgpo_jax.states import power_of_two

# Fewer are padded, to bound compilations.
SMALLEST = 16  # rows
SMALLEST_PREFILL = 1024  # tokens


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
  prompts are prefilled once, several in a row of tokens. Rows that stop leave:
  when half of them have, the others go on in a smaller batch.

  Args:
    config: a DecoderConfig.
    max_new_tokens: N, >= 1.
    buckets: lengths of rows of prompts, of which the smallest that holds the
      longest prompt is taken; the largest is the limit.
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
    if not plan.rows:  # of no process
      return _nothing(0, max_new_tokens)
    batch = _start(settings, plan, keys, limits)
    for block in _blocks(plan, prefill_tokens):
      *tokens, start, lengths = sharding.put_rows(block, mesh)
      hidden, cache = sampling.prefill(whole, params, *tokens)
      batch = sampling.admit(
        settings, params, batch, hidden, cache, start, lengths, *chance
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


def _start(settings, plan, keys, limits):
  """A Batch without tokens, with keys and limits in the slots of the rows."""
  total = plan.width + settings.max_new_tokens - 1
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
    width: tokens of a row of prompts, the bucket of the longest.
    rows: of prompts, in the fullest part of all processes.
    prompts: for each part, (ids, row and start there, the slots that start
      with it) of the distinct ones; slots are counted inside the part.
  """

  parts: int
  size: int
  place: np.ndarray
  width: int
  rows: int
  prompts: list


def _make_plan(prompts, buckets, parts):
  each = max(1, -(-len(prompts) // parts))
  distinct = [{} for _ in range(parts)]
  for row, prompt in enumerate(prompts):
    part, slot = divmod(row, each)
    ids = np.asarray(prompt, np.int32)
    distinct[part].setdefault(ids.tobytes(), (ids, []))[1].append(slot)
  longest = max(map(len, prompts), default=0)
  each_everywhere, longest = map(int, sharding.most([each, longest]))
  width = next(bucket for bucket in buckets if bucket >= longest)
  laid = []
  for some in distinct:
    places = lay_out([len(ids) for ids, _ in some.values()], width)
    laid.append([(*x, *p) for x, p in zip(some.values(), places)])
  most = max((row + 1 for some in laid for *_, row, _ in some), default=0)
  size = max(power_of_two(each_everywhere), -(-SMALLEST // parts))
  rows = np.arange(len(prompts))
  return Plan(
    parts=parts,
    size=size,
    place=rows // each * size + rows % each,
    width=width,
    rows=int(sharding.most([most])[0]),
    prompts=laid,
  )


def _blocks(plan, prefill_tokens):
  """Blocks of rows of prompts, and the slots that start with them.

  As many rows as a power of two that is not padded, so that little is and
  shapes are few.

  Yields:
    ids, segment and position [parts * u, P] int32; start and lengths
    [parts * size] int32: of a slot's prompt among the u * P tokens of its
    part, or -1 and 1.
  """
  most = max(1, prefill_tokens // plan.width)
  least = min(most, max(1, SMALLEST_PREFILL // (plan.parts * plan.width)))
  first = 0
  while first < plan.rows:
    rows = min(most, max(least, plan.rows - first))
    rows = 1 << rows.bit_length() - 1
    yield _block(plan, first, rows)
    first += rows


def _block(plan, first, rows):
  """Rows `first` and on of every part; see `_blocks`."""
  tokens = np.zeros((3, plan.parts, rows, plan.width), np.int32)
  start = np.full((plan.parts, plan.size), -1, np.int32)
  lengths = np.ones((plan.parts, plan.size), np.int32)
  for part, prompts in enumerate(plan.prompts):
    for number, (ids, slots, row, begin) in enumerate(prompts):
      if first <= row < first + rows:
        place = slice(begin, begin + len(ids))
        steps = np.arange(len(ids))
        for kept, values in zip(tokens, (ids, number + 1, steps)):
          kept[part, row - first, place] = values
        start[part, slots] = (row - first) * plan.width + begin
        lengths[part, slots] = len(ids)
  tokens = tokens.reshape(3, -1, plan.width)
  return *tokens, start.reshape(-1), lengths.reshape(-1)


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
