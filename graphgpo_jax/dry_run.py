"""What a config takes on a mesh: memory, work, traffic. Nothing is allocated.

The programs of a run are traced on shapes alone and compiled ahead of time for
as many devices as the mesh has. These may be virtual devices of the CPU.
"""

import math
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from graphgpo_jax import checks, hlo, setup, sharding
from graphgpo_jax import config as configs
from graphgpo_jax.models import generation, sampling
from graphgpo_jax.models.decoder import DecoderConfig
from graphgpo_jax.models.flops import count_flops
from graphgpo_jax.models.parameters import abstract_params, divide, join
from graphgpo_jax.types import TokenRows
from graphgpo_jax.update import TrainState, init_state, make_optimizer


class Program(NamedTuple):
  """One program of a run; sizes in bytes per device.

  Attributes:
    name: what it does.
    held: all arrays of the run that live meanwhile, its inputs included.
    gradients: a part of the temporaries that no compiler can do without.
    made, temporaries, traffic, largest: see `hlo.Compiled`.
  """

  name: str
  held: int
  gradients: int
  made: int
  temporaries: int
  traffic: list[hlo.Traffic]
  largest: list[hlo.Result]

  @property
  def peak(self) -> int:
    """All that is taken at once."""
    return self.held + self.made + self.temporaries

  @property
  def least(self) -> int:
    """What is taken whatever the compiler does."""
    return self.held + self.made + self.gradients


class Report(NamedTuple):
  """What `dry_run` found.

  Attributes:
    mesh: axis -> devices.
    platform: what the programs were compiled for.
    trainable, frozen: numbers of parameters.
    sizes: name of a part -> bytes per device.
    flops: of one update at the most, all devices together: rows and length of
      what is computed, and the counts of `flops.count_flops`.
    programs: in the order of a run.
  """

  mesh: dict
  platform: str
  trainable: int
  frozen: int
  sizes: dict
  flops: dict
  programs: list[Program]


class _Held(NamedTuple):
  """Abstract arrays that live from program to program."""

  state: TrainState
  frozen: dict
  copy: dict  # of the weights, for sampling; {} if they serve themselves
  reference: dict  # {} without KL
  waits: dict  # the reference, if it stays on the devices

  @property
  def always(self):
    return self.state, self.frozen, self.waits


def dry_run(config, *, mesh: dict | None = None, devices=None) -> Report:
  """Compiles the programs of a run and adds up what they take.

  Args:
    config: see `config.SCHEMA`; config.model may give vocab_size in place of a
      checkpoint, and then nothing is asked of environment or tokenizer.
    mesh: axis -> devices, of all axes; None for config.mesh.
    devices: to compile for; None for those of this process. Devices that are
      not there, of jax.experimental.topologies, do as well.

  Raises:
    ValueError: a config or a mesh that can't be.
  """
  configs.check(config)
  mesh = _make_mesh(mesh or config.mesh.to_dict(), devices)
  decoder_config = _decoder_config(config, mesh)
  with jax.default_matmul_precision(setup.PRECISION):
    held = _hold(config, decoder_config, mesh)
    cache, sampler = _sampler(config, decoder_config, mesh, held)
    trainer = _trainer(config, decoder_config, mesh, held)
  return Report(
    mesh=dict(mesh.shape),
    platform=mesh.devices.flat[0].platform,
    trainable=_count(held.state.params),
    frozen=_count(held.frozen),
    sizes={
      'trained weights': _bytes(held.state.params),
      'frozen weights': _bytes(held.frozen),
      'optimizer state': _bytes(held.state.opt_state),
      'gradients, float32': _bytes(held.state.params, 4),
      'weights for sampling': _bytes(held.copy),
      'reference weights': _bytes(held.reference),
      'KV cache': _bytes(cache),
    },
    flops=_update_flops(config, decoder_config),
    programs=[_start(config, held), *sampler, *trainer],
  )


def _make_mesh(axes, devices):
  if min(axes.values()) < 1:
    raise ValueError(
      f'config.mesh: found {axes}, allowed in a dry run: integers > 0 (--mesh)'
    )
  devices = jax.devices() if devices is None else devices
  count = math.prod(axes.values())
  if len(devices) < count:
    raise ValueError(f'mesh {axes} does not fit {len(devices)} devices')
  return jax.make_mesh(
    tuple(axes[axis] for axis in sharding.AXES),
    sharding.AXES,
    (jax.sharding.AxisType.Auto,) * len(sharding.AXES),
    devices=devices[:count],
  )


def _decoder_config(config, mesh):
  """Sizes of the decoder, after all checks of a run that can be made."""
  settings = config.model.to_dict()
  path = settings.pop('checkpoint', None)
  if path is None and 'vocab_size' in settings:
    try:
      sizes = DecoderConfig(**settings)
    except (TypeError, ValueError) as problem:
      raise ValueError(f'config.model: {problem}') from None
    # Stand-ins: nothing is known of the texts.
    env = types.SimpleNamespace(
      num_tasks=math.inf, reset=list, prompt=lambda *_, hidden=0: ''
    )
    tokenizer = types.SimpleNamespace(encode_prompt=list)
  else:
    env, _ = setup.make_environments(config.env)
    tokenizer, sizes = setup.make_model(config, env)
  checks.check_sizes(config, env, tokenizer, mesh)
  return sizes


def _bytes(tree, width=None):
  """Bytes per device of abstract arrays, or of such with so many a number."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * (width or x.dtype.itemsize)
    for x in jax.tree.leaves(tree)
  )


def _count(tree):
  return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))


def _hold(config, decoder_config, mesh):
  optimizer = make_optimizer(**config.optimizer)
  params, frozen = divide(abstract_params(decoder_config))
  gather = config.sampling.gather_weights

  def put(tree, **whole):
    return hlo.abstract(tree, sharding.shardings(tree, mesh, **whole))

  def copied(params):
    return setup.for_sampling(decoder_config, params, mesh, gather=gather)

  weights = join(params, frozen)
  copy = jax.eval_shape(copied, weights)
  same = jax.tree.map(lambda x, y: x.dtype == y.dtype, weights, copy)
  if not gather and all(jax.tree.leaves(same)):
    copy = {}
  state = put(jax.eval_shape(lambda x: init_state(x, optimizer, mesh), params))
  reference = state.params if config.loss.kl_coefficient else {}
  return _Held(
    state=state,
    frozen=put(frozen),
    copy=put(copy, whole=('fsdp',) if gather else ()),
    reference=reference,
    waits=reference if config.loss.reference == 'device' else {},
  )


def _program(name, function, arguments, held, *, gradients=0):
  """(Program, abstract outputs) of a jitted function."""
  mesh = jax.tree.leaves(held)[0].sharding.mesh
  *found, outputs = hlo.compile_ahead(
    function, arguments, platform=mesh.devices.flat[0].platform
  )
  return Program(name, _bytes(held), gradients, *found), outputs


def _start(config, held):
  """The first state; after a warm start a fresh one, beside the old."""
  name, old = 'first state', held.state.params
  if config.warm_start.steps:
    name, old = 'fresh state', held.state
  made = _bytes((held.state, held.waits))
  return Program(name, _bytes((old, held.frozen)), 0, made, 0, [], [])


def _sampler(config, decoder_config, mesh, held):
  """(abstract KV cache, the programs of the sampler at their largest)."""
  section, batch = config.sampling, config.batch
  count = max(batch.tasks * batch.attempts, config.evaluation.tasks)
  block, slots, total = _largest_block(section, count, sharding.parts(mesh))
  settings = sampling.Settings(
    decoder_config, mesh, section.max_new_tokens, (0,), 0, 1.0
  )
  weights = held.copy or join(held.state.params, held.frozen)
  held = *held.always, held.copy
  chance = _scalar(mesh, 'float32'), _scalar(mesh, 'bool')
  keys, start = _rows(mesh, slots, 2, dtype='uint32'), _rows(mesh, slots)
  tokens = [_rows(mesh, *block)] * 3
  _, rows = _program('', sampling.empty, (settings, total, keys), keys)
  prefill, (hidden, cache) = _program(
    f'prefill {block[0]} x {block[1]}',
    sampling.prefill,
    (settings, weights, *tokens),
    (held, rows, tokens),
  )
  admit, rows = _program(
    'admit',
    sampling.admit,
    (settings, weights, rows, hidden, cache, start, start, *chance),
    (held, rows, hidden, cache),
  )
  programs = [prefill, admit]
  if section.max_new_tokens > 1:
    programs += _decoding(settings, weights, rows, chance, held)
  return rows.cache, programs


def _decoding(settings, weights, rows, chance, held):
  """The programs of the sampler after the first token."""
  mesh, slots = settings.mesh, len(rows.ids)
  counts = (_scalar(mesh, 'int32'),) * 2
  decode, (_, rows) = _program(
    f'decode {slots} rows',
    sampling.decode,
    (settings, weights, rows, *counts, *chance),
    (held, rows),
  )
  left = max(slots // 2, settings.parts)
  moved = _rows(mesh, left), _rows(mesh, left, dtype='bool')
  compact, _ = _program(
    'compact', sampling.compact, (settings, rows, *moved), (held, rows)
  )
  return decode, compact


def _rows(mesh, *shape, dtype='int32'):
  return ShapeDtypeStruct(
    shape, jnp.dtype(dtype), sharding=sharding.by_row(mesh)
  )


def _scalar(mesh, dtype):
  place = jax.NamedSharding(mesh, jax.P())
  return ShapeDtypeStruct((), jnp.dtype(dtype), sharding=place)


def _largest_block(section, rows, parts):
  """([rows, tokens] of the largest prefill, row slots, key slots)."""
  buckets = sorted(section.prompt_lengths)
  prompts = [np.full(buckets[-1], row) for row in range(rows)]  # all distinct
  plan = generation._make_plan(prompts, buckets, parts)
  ids, *_, start = next(generation._blocks(plan, section.prefill_tokens))
  return ids.shape, len(start), buckets[-1] + section.max_new_tokens - 1


def _trainer(config, decoder_config, mesh, held):
  """The programs of an update: log-probs under the reference, the step."""
  batch = config.batch
  count = -(-batch.mini_batch_steps // batch.micro_batch_rows)
  shape = count, batch.micro_batch_rows, batch.row_length
  place = jax.NamedSharding(mesh, jax.P(None, sharding.BATCH))
  whole = [ShapeDtypeStruct(shape, jnp.int32, sharding=place)] * 4
  real = [ShapeDtypeStruct(shape, jnp.float32, sharding=place)] * 3
  rows = TokenRows(*whole, *real)
  optimizer = make_optimizer(**config.optimizer)
  _, improve, score = setup._updates(
    config, decoder_config, optimizer, held.state
  )
  programs = []
  if held.reference:
    weights = join(held.reference, held.frozen)
    live = held.state, held.frozen, held.reference, rows
    programs += _program('score', score, (weights, rows), live)[:1]
  programs += _program(
    'update',
    improve,
    (held.state, rows, held.frozen),
    (held.always, rows),
    gradients=_bytes(held.state.params, 4),
  )[:1]
  return programs


def _update_flops(config, decoder_config):
  """Of one update at the most: rows full of steps of the greatest length."""
  batch, length = config.batch, config.batch.row_length
  longest = config.sampling.prompt_lengths[-1] + config.sampling.max_new_tokens
  rows = -(-batch.mini_batch_steps // (length // longest))
  rows = -(-rows // batch.micro_batch_rows) * batch.micro_batch_rows
  counted = count_flops(
    decoder_config,
    rows=rows,
    length=length,
    chunked=batch.logit_chunk is not None,
  )
  if config.loss.kl_coefficient:
    counted['reference'] = counted['forward']
  return {'rows': rows, 'length': length} | counted
