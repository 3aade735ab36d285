"""Pretrained weights: Hugging Face folders, read and written, and GGUF files.

Tensors are read one by one and only in the parts that this host owns, and
written one file at a time, so that no host ever holds a model twice.
"""

import functools
import json
import math
import pathlib
import shutil
import uuid

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from safetensors.numpy import save_file

from graphgpo_jax.models import families, gguf_tensors, sources
from graphgpo_jax.models.decoder import DecoderConfig
from graphgpo_jax.models.parameters import (
  ADAPTERS,
  abstract_params,
  init_params,
)

_DTYPES = ('float32', 'bfloat16')
# What users of a folder want beside the weights.
_COPIED = (
  'tokenizer.json',
  'tokenizer_config.json',
  'tokenizer.model',
  'vocab.json',
  'merges.txt',
  'special_tokens_map.json',
  'added_tokens.json',
  'chat_template.jinja',
  'chat_template.json',
  'generation_config.json',
)
_COPIED_KEYS = (
  'max_position_embeddings',
  'bos_token_id',
  'eos_token_id',
  'pad_token_id',
)


def read_config(path, **overrides) -> DecoderConfig:
  """The sizes and switches of a pretrained model.

  Args:
    path: a Hugging Face folder, or a .gguf file.
    overrides: fields of DecoderConfig that the file does not decide, such as
      dtype, param_dtype (float32 whatever is on disk), remat or lora_rank.

  Raises:
    ValueError: no such file, or a model that a Decoder can't be.
  """
  if sources.is_gguf(path):
    fields = gguf_tensors.read_fields(path)
  else:
    file = sources.config_path(path)
    fields = families.decoder_fields(sources.read_json(file), str(file))
  return DecoderConfig(**(fields | overrides))


def load(path, config, *, placement=None, seed: int = 0):
  """Parameters of a Decoder from a pretrained model.

  Args:
    path: a Hugging Face folder, or a .gguf file.
    config: a DecoderConfig, of `read_config`; its param_dtype is the result's.
    placement: NamedShardings in the structure of the parameters, as of
      `sharding.shardings(abstract_params(config), mesh)`; each host then reads
      only what its devices hold. None: numpy arrays.
    seed: of new adapters, as `init_params` draws them.

  Returns:
    A nested dict in the paths of Decoder; kernels [in, out], layers stacked.

  Raises:
    ValueError: tensors are missing, unknown or of another shape, or files are
      cut short; all of them are listed.
  """
  source = sources.open_source(path)
  params, new = abstract_params(config), {}
  if config.lora_rank:
    new = init_params(config, seed=seed, adapters_only=True)
  new = {_path(key): leaf for key, leaf in _leaves(new)}
  expected = {
    name: shape for name, _, _, shape in tensors(params, source.names)
  }
  sources.check_tensors(path, source, expected, tied=config.tie_embeddings)

  def place(key, leaf, sharding=None):
    path = _path(key)
    if path in new:
      read = new[path].__getitem__
    else:
      read = functools.partial(_read, source, path, leaf)
    if sharding is None:
      return read((slice(None),) * leaf.ndim)
    array = jax.make_array_from_callback(leaf.shape, sharding, _once(read))
    return array.block_until_ready()  # so the host holds one leaf at a time

  trees = (params,) if placement is None else (params, placement)
  return jax.tree_util.tree_map_with_path(place, *trees)


_leaves = jax.tree_util.tree_leaves_with_path


def _path(key):
  return jax.tree_util.keystr(key, simple=True, separator='/')


def tensors(params, names):
  """(tensor name, parameter path, layer or None, shape on disk) of each.

  Args:
    params: of `abstract_params`; adapters have no tensors.
    names: parameter path to tensor name, as in `families`.
  """
  for key, leaf in _leaves(params):
    path = _path(key)
    if path.endswith(ADAPTERS):
      continue
    name = names.get(path, path)
    stacked = path.startswith('layers/')
    shape = leaf.shape[1:] if stacked else leaf.shape
    if path.endswith('kernel'):
      shape = shape[::-1]
    for layer in range(leaf.shape[0]) if stacked else [None]:
      yield name.format(layer), path, layer, shape


def _read(source, path, leaf, index):
  """The part of a parameter that a host owns, from its tensors."""
  name = source.names[path]
  turned = path.endswith('kernel')

  def read(name, index):
    values = source.read(name, index[::-1] if turned else index)
    return (values.T if turned else values).astype(leaf.dtype, copy=False)

  if not path.startswith('layers/'):
    return read(name, index)
  lengths = [len(range(*i.indices(n))) for i, n in zip(index, leaf.shape)]
  stack = np.empty(lengths, leaf.dtype)
  layers = range(*index[0].indices(leaf.shape[0]))
  for place, layer in enumerate(layers):
    stack[place] = read(name.format(layer), index[1:])
  return stack


def _once(read):
  """Reads a part once, however many devices of this host hold it."""
  kept = {}

  def read_once(index):
    key = tuple((part.start, part.stop) for part in index)
    if key not in kept:
      kept[key] = read(index)
    return kept[key]

  return read_once


def merge_lora(params, config):
  """Parameters without adapters, which go into the kernels.

    kernel + lora_alpha / lora_rank * lora_a @ lora_b

  Args:
    params: nested dict of numpy or jax arrays; left as it is.
    config: their DecoderConfig; what is returned fits it with lora_rank 0.

  Raises:
    ValueError: there are adapters, but lora_rank is 0.
  """
  layers = {}
  for name, leaves in params['layers'].items():
    kept = {key: x for key, x in leaves.items() if key not in ADAPTERS}
    if 'kernel' in leaves:
      kept['kernel'] = _merged(leaves, config)
    layers[name] = kept
  return params | {'layers': layers}


def _merged(leaves, config):
  kernel = leaves['kernel']
  if 'lora_a' not in leaves:
    return kernel
  if not config.lora_rank:
    raise ValueError('params hold lora_a, but lora_rank of the config is 0')
  # Accelerators round the inputs of a product unless told not to.
  exact = functools.partial(jnp.matmul, precision='highest')
  matmul = np.matmul if isinstance(kernel, np.ndarray) else exact
  low, high = (leaves[name].astype('float32') for name in ADAPTERS)
  change = config.lora_alpha / config.lora_rank * matmul(low, high)
  return (kernel.astype('float32') + change).astype(kernel.dtype)


def save(
  folder,
  params,
  config,
  *,
  like=None,
  dtype: str | None = None,
  shard_bytes: int = 4 * 10**9,
) -> None:
  """Writes a Hugging Face folder, whole or not at all.

  Adapters are merged into their kernels. Every process of a run must call it;
  the first one writes.

  Args:
    folder: a new or an empty one.
    params: nested dict of numpy or jax arrays, sharded or not.
    config: their DecoderConfig.
    like: the folder that the model came from: its tokenizer files,
      generation_config.json and token ids go along.
    dtype: 'float32' or 'bfloat16'; None: param_dtype of the config.
    shard_bytes: a file grows no larger, unless by a single tensor. The host
      holds twice as much at a time.

  Raises:
    FileExistsError: `folder` holds something.
    ValueError: params do not fit the config, or no family has its switches.
  """
  folder, dtype = pathlib.Path(folder), dtype or config.param_dtype
  if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
    raise FileExistsError(f'{folder}: exists and is not an empty folder')
  if dtype not in _DTYPES:
    raise ValueError(f'dtype must be one of {_DTYPES}, got {dtype!r}')
  record = families.config_record(config, dtype=dtype) | _kept_keys(like)
  _check_params(params, config)
  shards = _shards(config, dtype, shard_bytes)
  partial = folder.with_name(f'.{folder.name}.{uuid.uuid4().hex[:8]}')
  try:
    for file, tensors in shards.items():
      values = {
        name: _fetch(params, path, layer, config).astype(jnp.dtype(dtype))
        for name, path, layer, _ in tensors
      }
      if jax.process_index() == 0:
        partial.mkdir(parents=True, exist_ok=True)
        save_file(values, partial / file, metadata={'format': 'pt'})
    if jax.process_index() == 0:
      _write_records(partial, record, shards, like)
      partial.replace(folder)
  finally:
    shutil.rmtree(partial, ignore_errors=True)
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(f'saved {folder}')


def _kept_keys(like):
  if like is None:
    return {}
  record = sources.read_json(sources.config_path(like))
  return {key: record[key] for key in _COPIED_KEYS if key in record}


def _check_params(params, config):
  def table(tree):
    shapes = {_path(key): tuple(leaf.shape) for key, leaf in _leaves(tree)}
    return {p: s for p, s in shapes.items() if not p.endswith(ADAPTERS)}

  found, expected = table(params), table(abstract_params(config))
  problems = [
    f'{path} is {found.get(path, "missing")}, expected '
    f'{expected.get(path, "nothing")}'
    for path in sorted(found.keys() | expected.keys())
    if found.get(path) != expected.get(path)
  ]
  if problems:
    raise ValueError(f'params do not fit the config: {"; ".join(problems)}')


def _shards(config, dtype, shard_bytes):
  """File name to the tensors in it, as of `tensors`."""
  names = families.FAMILIES[families.family_name(config)].names
  shards, used = [[]], 0
  for tensor in tensors(abstract_params(config), names):
    size = math.prod(tensor[-1]) * jnp.dtype(dtype).itemsize
    if shards[-1] and used + size > shard_bytes:
      shards.append([])
      used = 0
    shards[-1].append(tensor)
    used += size
  if len(shards) == 1:
    return {sources.WHOLE: shards[0]}
  name = 'model-{:05d}-of-{:05d}.safetensors'
  return {name.format(i, len(shards)): s for i, s in enumerate(shards, 1)}


def _fetch(params, path, layer, config):
  """One tensor as numpy, as it goes to disk, its adapter merged."""
  *parents, last = path.split('/')
  leaves = functools.reduce(lambda tree, key: tree[key], parents, params)
  if last != 'kernel':
    return _local(leaves[last], layer)
  parts = ('kernel', *ADAPTERS)
  leaves = {key: _local(leaves[key], layer) for key in parts if key in leaves}
  return np.ascontiguousarray(_merged(leaves, config).T)


def _local(x, layer):
  """A layer of an array, or all of it, as numpy on every host."""
  if isinstance(x, jax.Array) and not x.is_fully_addressable:
    x = _gather(NamedSharding(x.sharding.mesh, jax.P()))(x, layer)
    return np.asarray(x)
  return np.asarray(x if layer is None else x[layer])


@functools.lru_cache
def _gather(sharding):
  def take(x, layer):
    return x if layer is None else x[layer]

  return jax.jit(take, out_shardings=sharding)


def _write_records(folder, record, shards, like):
  """config.json, the index if there is more than one file, what is copied."""
  records = {'config.json': record}
  if len(shards) > 1:
    homes = {name: file for file, part in shards.items() for name, *_ in part}
    numbers = sum(
      math.prod(shape) for part in shards.values() for *_, shape in part
    )
    total = numbers * jnp.dtype(record['torch_dtype']).itemsize
    records[sources.INDEX] = {
      'metadata': {'total_size': total},
      'weight_map': homes,
    }
  for name, content in records.items():
    text = json.dumps(content, indent=2) + '\n'
    (folder / name).write_text(text, encoding='utf-8')
  for file in shards:  # safetensors lets only the owner read
    (folder / file).chmod((folder / 'config.json').stat().st_mode)
  for name in _COPIED if like is not None else ():
    path = pathlib.Path(like) / name
    if path.is_file():
      shutil.copyfile(path, folder / name)
