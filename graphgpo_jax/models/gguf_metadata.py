"""Reads what a GGUF file says of itself, without its tensors.

Source: the GGUF specification, versions 2 and 3, little-endian.
"""

import os
import pathlib
import struct
from typing import Any, BinaryIO

_MAGIC = b'GGUF'
_VERSIONS = (2, 3)
# Codes of the types of values; numbers by their struct format.
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), 'BbHhIif?Qqd'))
_STRING, _ARRAY, _COUNT, _LENGTH = 8, 9, 4, 10


def read_gguf_metadata(path: str | pathlib.Path) -> dict[str, Any]:
  """The keys and values in front of the tensors.

  The package gguf spends seconds on a vocabulary of 49,152 tokens; this spends
  a fraction of one, and needs no package.

  Returns:
    Numbers, strings and lists of them by key, such as general.architecture.

  Raises:
    ValueError: no such file, or not a GGUF of a known version, or a broken
      one.
  """
  try:
    with open(path, 'rb') as file:
      magic, version = file.read(4), read_value(file, _COUNT)
      if magic != _MAGIC or version not in _VERSIONS:
        raise ValueError(
          f'found {magic!r} version {version}, allowed: {_MAGIC!r} version '
          f'{" or ".join(map(str, _VERSIONS))}'
        )
      read_value(file, _LENGTH)  # Number of tensors.
      count = read_value(file, _LENGTH)
      return {
        read_value(file, _STRING): read_value(file, read_value(file, _COUNT))
        for _ in range(count)
      }
  except OSError as problem:
    raise ValueError(
      f'{path}: {problem.strerror}; `make smollm2` brings a model'
    ) from None
  except (ValueError, KeyError, struct.error) as problem:
    raise ValueError(f'{path}: no GGUF that can be read: {problem}') from None


def read_value(file: BinaryIO, kind: int) -> Any:
  """The next value, of a type's code; KeyError if there is no such type."""
  if kind == _STRING:
    return _bytes(file, read_value(file, _LENGTH)).decode()
  if kind == _ARRAY:
    of, count = read_value(file, _COUNT), read_value(file, _LENGTH)
    if of in (_STRING, _ARRAY):
      return [read_value(file, of) for _ in range(count)]
    return list(_numbers(file, _NUMBERS[of], count))
  return _numbers(file, _NUMBERS[kind], 1)[0]


def _numbers(file: BinaryIO, code: str, count: int) -> tuple:
  size = struct.calcsize('<' + code)
  return struct.unpack(f'<{count}{code}', _bytes(file, count * size))


def _bytes(file: BinaryIO, count: int) -> bytes:
  # A broken length would ask for all memory.
  if count > os.fstat(file.fileno()).st_size:
    raise ValueError(f'it ends before {count} more bytes')
  return file.read(count)
