"""Reads pickles and torch.save files without running anything in them.

A pickle is a program that names functions and calls them. Here every name is
looked up in one table, and none of the table's entries does anything: a call
gives a `Part`, a record of the name, the arguments and the state. What the
caller wants of it is then built with `build`, from checked bytes. Neither torch
nor tensordict is needed.
"""

import functools
import io
import math
import mmap
import pickle
import re
import struct
import zipfile

import ml_dtypes
import numpy as np

ZIP, LEGACY_TORCH = b'PK\x03\x04', 0x1950A86A20F9469CFC6C
KINDS = 'numpy arrays, tensors and plain containers'
EMPTY = 1 << 20  # rows of an array without items, which take nothing in a file
STORAGES = {
  'Double': np.float64,
  'Float': np.float32,
  'Half': np.float16,
  'BFloat16': ml_dtypes.bfloat16,
  'Long': np.int64,
  'Int': np.int32,
  'Short': np.int16,
  'Char': np.int8,
  'Byte': np.uint8,
  'Bool': np.bool_,
}


class Refused(ValueError):
  """Something in a file that is not read; says what, and what is allowed."""


class Part:
  """What a pickle asked to have made: arguments and state, unused so far."""

  __slots__ = ('arguments', 'state')
  path = ''
  builder = None

  def __new__(cls, *arguments):
    part = super().__new__(cls)
    part.arguments, part.state = arguments, None
    return part

  def __setstate__(self, state):
    self.state = state


def build(value):
  """The array, number or dictionary that a `Part` stands for.

  Anything else is returned as it is; items of containers are left alone.

  Raises:
    Refused: it is none of these, or broken.
  """
  if not isinstance(value, Part):
    return value
  builder = type(value).builder
  if builder is None:
    raise Refused(f'found {value.path}, allowed: {KINDS}')
  try:
    return builder(value)
  except Refused:
    raise
  except Exception as problem:  # whatever its bytes led to
    words = f'{type(problem).__name__}: {problem}'
    raise Refused(f'found a broken {value.path} ({words[:200]})') from None


def _need(holds, words):
  if not holds:
    raise Refused(f'found {words}, allowed: {KINDS}')


def _dtype(part):
  code = part.arguments[0]
  # Not printed before it is known to be a text: it may be endless.
  _need(isinstance(code, str), 'a numpy dtype without a name')
  known = re.fullmatch(r'[biufOSU][1-9][0-9]{0,8}', code)
  _need(known, f'a numpy dtype {ascii(code[:40])}')
  order, *fields = part.state[1:5]
  _need(fields == [None] * 3 and order in list('<>|='), 'a structured array')
  return np.dtype(order + code)


def _array(part):
  _, shape, dtype, columns_first, data = part.state
  return _shaped(data, build(dtype), shape, 'F' if columns_first else 'C')


def _from_buffer(part):
  data, dtype, shape, order = part.arguments
  return _shaped(data, build(dtype), shape, order)


def _whole(numbers):
  # Anything else may be endless, and 1000 * b'x' takes memory.
  whole = len(numbers) <= 64 and set(map(type, numbers)) <= {int}
  _need(whole and min(numbers, default=0) >= 0, 'a shape that can not be')


def _count(shape):
  _whole(shape)
  size, rows = math.prod(shape), math.prod(n or 1 for n in shape)
  _need(size or rows <= EMPTY, f'an array of {rows} empty rows')
  return size


def _shaped(data, dtype, shape, order):
  data, size = build(data), _count(shape)
  if dtype.kind == 'O':
    _need(isinstance(data, list) and len(data) == size, 'a broken object array')
    array = np.empty(size, object)
    for index, item in enumerate(data):
      array[index] = item
  else:
    whole = isinstance(data, bytes | bytearray)
    _need(whole and len(data) == size * dtype.itemsize, 'a cut-off array')
    array = np.frombuffer(data, dtype) if data else np.empty(size, dtype)
    if data and dtype.kind == 'U':
      codes = array.view(f'{dtype.byteorder}u4')
      _need(codes.max() <= 0x10FFFF, 'an array of texts that are none')
  return array.reshape(shape, order=order)


def _scalar(part):
  dtype, data = map(build, part.arguments)
  return _shaped(data, dtype, (), 'C').item()


def _encode(part):
  text, encoding = part.arguments
  _need(encoding in ('latin1', 'latin-1'), 'an unknown encoding')
  return text.encode('latin1')


def _tensor(part):
  storage, offset, size, stride = part.arguments[:4]
  data, size, stride = map(build, (storage, size, stride))
  count = _count(size)
  _whole([offset, *stride])
  steps = [(n - 1) * step for n, step in zip(size, stride, strict=True)]
  inside = not count or offset + sum(steps) < len(data) >= count
  _need(inside, 'a tensor larger than its storage')
  strides = [step * data.itemsize for step in stride]
  view = np.lib.stride_tricks.as_strided(data[offset:], size, strides)
  return view.copy()


def _storage(part):
  kind, size, read = part.arguments
  data = read()
  whole = len(data) >= size * np.dtype(kind).itemsize
  _need(whole and size >= 0, 'a cut-off tensor storage')
  return np.frombuffer(data, kind, size)


def _storage_of_bytes(part):
  return build(_read_stream(io.BytesIO(part.arguments[0])))


def _tensordict(part):
  return part.arguments[1]['_tensordict']


def _data_proto(part):
  if isinstance(part.state, dict):
    return part.state
  batch, non_tensor_batch, meta_info = part.state
  return {
    'batch': batch,
    'non_tensor_batch': non_tensor_batch,
    'meta_info': meta_info,
  }


# Every name that a file may hold. None: it may be there, but is of no use.
TABLE = {
  'numpy.ndarray': None,
  'numpy.dtype': _dtype,
  **{
    f'numpy.{core}.{name}': builder
    for core in ('core', '_core')
    for name, builder in (
      ('multiarray._reconstruct', _array),
      ('multiarray.scalar', _scalar),
      ('numeric._frombuffer', _from_buffer),
    )
  },
  '_codecs.encode': _encode,
  'torch._utils._rebuild_tensor_v2': _tensor,
  'torch.storage._load_from_bytes': _storage_of_bytes,
  'torch.Size': lambda part: tuple(part.arguments[0]),
  'torch.device': None,
  **{f'torch.{kind}Storage': None for kind in STORAGES},
  'tensordict._td.TensorDict': None,
  'tensordict._reductions._make_td': _tensordict,
  'tensordict._reductions._rebuild_tensordict_files_consolidated': None,
  'verl.protocol.DataProto': _data_proto,
}


def _part(path, builder):
  fields = {'__slots__': (), 'path': path, 'builder': builder}
  return type('Part', (Part,), fields)


PARTS = {path: _part(path, builder) for path, builder in TABLE.items()}
Storage = _part('torch storage', _storage)
PLAIN = {str, int, float, bool, bytes, type(None)}


class _Reader(pickle._Unpickler):
  """The Python unpickler, since the C one takes memory at a file's word.

  The sizes and memo indices in a file may be any number.
  """

  dispatch = dict(pickle._Unpickler.dispatch)

  def __init__(self, stream, read):
    super().__init__(stream)
    self.read_storage, self.widths = read, {}

  def find_class(self, module, name):
    path = f'{module}.{name}'
    if path == 'collections.OrderedDict':
      return lambda: {}
    if path not in PARTS:
      raise Refused(f'found {ascii(path)[1:-1][:80]}, allowed: {KINDS}')
    return PARTS[path]

  def persistent_load(self, identity):
    kind, part, key, _, size, *view = identity
    name = getattr(part, 'path', '')[len('torch.') : -len('Storage')]
    known = kind == 'storage' and name in STORAGES and view in ([], [None])
    known = known and isinstance(key, str) and isinstance(size, int)
    _need(known, 'an unknown kind of tensor storage')
    self.widths[key] = np.dtype(STORAGES[name]).itemsize
    return Storage(
      STORAGES[name], size, functools.partial(self.read_storage, key)
    )

  def load_bytearray(self):
    (size,) = struct.unpack('<Q', self.read(8))
    self.append(bytearray(self.read(size)))

  def load_keyed(self, load, keys):
    # Hashing a small tuple of tuples of tuples can take forever.
    plain = all(type(key) in PLAIN for key in self.stack[keys])
    _need(plain, 'a dictionary key that is neither text nor number')
    load(self)


def _restrict(dispatch):
  """Replaces the opcodes that trust the file; takes away those of sets."""
  dispatch[pickle.BYTEARRAY8[0]] = _Reader.load_bytearray
  for code, keys in (
    (pickle.SETITEM, slice(-2, -1)),
    (pickle.SETITEMS, slice(0, None, 2)),
    (pickle.DICT, slice(0, None, 2)),
  ):
    dispatch[code[0]] = functools.partial(
      _Reader.load_keyed, load=dispatch[code[0]], keys=keys
    )
  for code in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET):
    del dispatch[code[0]]


_restrict(_Reader.dispatch)


def read(path) -> object:
  """What a pickle or torch.save file holds, with `Part`s in it; see `build`.

  Both formats of torch.save are read, and of its tensors only those that are
  built. Nothing that a file names is imported or called.

  Raises:
    Refused: names the file and what it holds beyond numpy arrays, tensors and
      plain containers, or where it is broken.
    OSError: the file can't be read.
  """
  with open(path, 'rb') as file:
    start = file.read(len(ZIP))
    try:
      _need(start, 'an empty file')
      if start == ZIP:
        return _read_zip(path)
      with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stream:
        return _read_stream(stream)
    except Refused as problem:
      raise Refused(f'{path}: {problem}') from None
    except OSError as problem:
      problem.filename = problem.filename or str(path)
      raise
    except Exception as problem:  # whatever its bytes led to
      words = f'{type(problem).__name__}: {problem}'[:200]
      raise Refused(f'{path}: found no readable pickle ({words})') from None


def _read_stream(stream):
  def storage(key):
    return storages[key]

  storages = {}
  value = _Reader(stream, storage).load()
  if value != LEGACY_TORCH or not isinstance(value, int):
    return value
  for _ in ('protocol', 'system'):
    _Reader(stream, storage).load()
  reader = _Reader(stream, storage)
  value = reader.load()
  for key in _Reader(stream, storage).load():
    _need(isinstance(key, str), 'a storage whose name is no text')
    (size,) = struct.unpack('<q', stream.read(8))
    storages[key] = stream.read(max(size, 0) * reader.widths[key])
  return value


def _read_zip(path):
  with zipfile.ZipFile(path) as archive:
    names = [n for n in archive.namelist() if n.endswith('/data.pkl')]
    _need(len(names) == 1, 'a zip file that torch.save did not write')
    folder = names[0][: -len('data.pkl')]
    order = f'{folder}byteorder'
    if order in archive.namelist():
      little = _member(path, order) == b'little'
      _need(little, 'numbers in the byte order of another machine')
  stream = io.BytesIO(_member(path, names[0]))
  member = functools.partial(_member, path)
  return _Reader(stream, lambda key: member(f'{folder}data/{key}')).load()


def _member(path, name):
  with zipfile.ZipFile(path) as archive:
    stored = archive.getinfo(name).compress_type == zipfile.ZIP_STORED
    _need(stored, 'a compressed file: torch.save stores without')
    return archive.read(name)
