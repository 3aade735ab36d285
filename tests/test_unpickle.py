"""Files that want to do harm are refused, and do none."""

import functools
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from converted import GOLDEN, TOY, columns, data_proto, pickled, refusal

from graphgpo_jax import unpickle


@pytest.fixture
def save(tmp_path):
  return functools.partial(pickled, tmp_path)


class Call:
  """Pickled as a call."""

  def __init__(self, function, *arguments, state=None):
    self.reduced = (function, arguments, *([state] if state else []))

  def __reduce__(self):
    return self.reduced


WITNESS = []


def touch(*arguments):
  WITNESS.append(arguments)


class Name:
  """Stands for a global of any name in hand-written pickles."""


def call(module, name, arguments=b')'):
  """Opcodes of protocol 4 that call module.name."""
  words = b''.join(
    b'\x8c' + bytes([len(word)]) + word.encode() for word in (module, name)
  )
  return words + b'\x93' + arguments + b'R'


PAYLOADS = {
  'os.system': pickle.dumps(Call(os.system, 'touch x')),
  'posix.system': b"cposix\nsystem\n(S'touch x'\ntR.",
  'builtins.eval': pickle.dumps(Call(eval, '1')),
  'builtins.getattr': pickle.dumps(Call(getattr, 'x', 'y')),
  'builtins.set': pickle.dumps(Call(set, ())),
  'test_convert.touch': pickle.dumps(Call(touch, 1)),
  'numpy.ndarray.tofile': b'\x80\x04' + call('numpy', 'ndarray.tofile') + b'.',
  'numpy.load': b'\x80\x04' + call('numpy', 'load') + b'.',
  'copyreg._reconstructor': b'ccopyreg\n_reconstructor\n(tR.',
  'torch.load': b'ctorch\nload\n(tR.',
  'operator.attrgetter': b'coperator\nattrgetter\n(tR.',
  'graphgpo_jax.unpickle.read': b'cgraphgpo_jax.unpickle\nread\n(tR.',
}


@pytest.mark.parametrize('found', PAYLOADS)
def test_functions_are_refused_by_name(found, tmp_path):
  path = tmp_path / 'data.pkl'
  path.write_bytes(PAYLOADS[found])
  found = 'posix.system' if found == 'os.system' else found
  found = found.replace('test_convert', __name__)
  assert refusal(path) == (
    f'found {found}, allowed: numpy arrays, tensors and plain containers'
  )
  assert not WITNESS and not (tmp_path / 'x').exists()


@pytest.mark.parametrize('inside', ['anchor_obs', 'an unused column'])
def test_payload_inside_an_object_array(inside, save):
  table = columns(TOY)
  table[inside] = [Call(touch, 1)] + ['A'] * 11
  path = save(data_proto(table))
  assert refusal(path).startswith(f'found {__name__}.touch, allowed: numpy')
  assert not WITNESS


def test_payload_as_state_of_an_array(save):
  array = Call(np._core.multiarray._reconstruct, np.ndarray, (0,), b'b')
  array.reduced += ((1, (1,), np.dtype(object), False, [Call(touch)]),)
  assert f'found {__name__}.touch' in refusal(save(columns(TOY, uid=array)))


def test_payload_inside_a_storage(save, monkeypatch):
  # As torch pickles a tensor outside torch.save.
  inner = pickle.dumps(Call(touch))
  code = (
    b'\x80\x04}\x8c\x03uid'
    + call(
      'torch.storage',
      '_load_from_bytes',
      b'B' + struct.pack('<I', len(inner)) + inner + b'\x85',
    )
    + b's.'
  )
  path = save(None)
  path.write_bytes(code)
  assert f'found {__name__}.touch' in refusal(path)


PART = call('numpy', 'ndarray')[:-2]  # the class itself
BROKEN = {
  'attributes of a class': PART + b'N}\x8c\x05buildNs\x86b.',
  'state of a class': PART + b'}\x8c\x05buildNsb.',
  'call of a text': b'\x8c\x01x)R.',
  'items of a part': PART + b')R\x8c\x01xNs.',
  'new of a dictionary': call('collections', 'OrderedDict', b'K\x01\x85')
  + b'.',
  'extension': b'\x82\x01.',
  'empty': b'',
  'cut off': b'}\x8c\x0fu',
  'no pickle': b'hello world',
  'a set': b'\x8f(K\x01\x90.',
  'a key of tuples': b'})\x85\x85Ns.',
  'a key of tuples in one go': b'}()\x85N\x8c\x01xNu.',
  'a huge number': b'L' + b'9' * 5000 + b'L\n.',
  'bytes that are not there': b'\x8e' + struct.pack('<Q', 1 << 50) + b'x.',
  'text that is not there': b'\x8d' + struct.pack('<Q', 1 << 50) + b'x.',
  'an array that is not there': b'\x96' + struct.pack('<Q', 1 << 50) + b'x.',
}


@pytest.mark.parametrize('name', BROKEN)
def test_broken_pickles(name, tmp_path):
  path = tmp_path / 'data.pkl'
  path.write_bytes(b'\x80\x05' + BROKEN[name] if BROKEN[name] else b'')
  assert refusal(path).startswith('found ')
  assert unpickle.PARTS['numpy.ndarray'].builder is None


def test_a_huge_memo_index_takes_no_memory(tmp_path):
  path = tmp_path / 'data.pkl'
  path.write_bytes(b'\x80\x05}r\xff\xff\xff\x7f.')
  assert unpickle.read(path) == {}


DTYPE = call('numpy', 'dtype', b'\x8c\x02f8\x85')
DTYPE += b'(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb'
MAKE = call(
  'numpy._core.multiarray',
  '_reconstruct',
  PART + b'K\x00\x85C\x01b\x87',
)


def array(shape, dtype, data):
  """Opcodes of an array that claims a shape."""
  return MAKE + b'(K\x01' + shape + dtype + b'\x89' + data + b'tb'


HUGE = b'\x8a\x06' + (1 << 40).to_bytes(6, 'little') + b'\x85'


@pytest.mark.parametrize(
  'code, words',
  [
    (array(b'K\x02\x85', DTYPE, b'C\x10' + bytes(16)), None),
    (array(HUGE, DTYPE, b'C\x00'), 'a cut-off array'),
    (array(b'K\x02\x85', DTYPE, b'C\x08' + bytes(8)), 'a cut-off array'),
    (
      array(HUGE, DTYPE.replace(b'f8', b'U0'), b'C\x00'),
      "a numpy dtype 'U0'",
    ),
    (
      array(HUGE, DTYPE.replace(b'f8', b'O8'), b']'),
      'a broken object array',
    ),
    (
      array(b'K\x01\x85', DTYPE.replace(b'f8', b'V8'), b'C\x08' + bytes(8)),
      "a numpy dtype 'V8'",
    ),
    (MAKE, 'a broken numpy._core.multiarray._reconstruct'),
    (array(HUGE[:-1] + b'K\x00\x86', DTYPE, b'C\x00'), 'an array of 1099511'),
    (array(HUGE[:-1] + b'C\x01x\x86', DTYPE, b'C\x00'), 'a shape that can not'),
    (array(b'J\xff\xff\xff\xff\x85', DTYPE, b'C\x00'), 'a shape that can not'),
    (
      array(
        b'K\x01\x85', DTYPE.replace(b'f8', b'U1'), b'C\x04\xff\xff\xff\x7f'
      ),
      'an array of texts that are none',
    ),
  ],
)
def test_arrays_hold_what_they_claim(code, words, tmp_path):
  path = tmp_path / 'data.pkl'
  path.write_bytes(b'\x80\x05' + code + b'.')
  part = unpickle.read(path)
  if words is None:
    np.testing.assert_array_equal(unpickle.build(part), [0.0, 0.0])
  else:
    with pytest.raises(unpickle.Refused, match=f'^found {words}'):
      unpickle.build(part)


def laughing(levels):
  """Opcodes of a pair of pairs of pairs ..., which print to 4 ** levels."""
  return b'K\x01' + b'2\x86' * levels


def test_what_never_ends_is_not_printed_hashed_or_multiplied(tmp_path):
  laughs = laughing(200)
  tensor = call(
    'torch._utils',
    '_rebuild_tensor_v2',
    b'(' + array(b'K\x01\x85', DTYPE, b'C\x08' + bytes(8)) + b'K\x00',
  )[:-1]
  for code in (
    DTYPE.replace(b'\x8c\x02f8', laughs),
    array(laughs, DTYPE, b'C\x00'),
    tensor + b'K\x01\x85' + b'C\x01x\x85' + b'tR',
    tensor + HUGE + b'K\x00\x85' + b'tR',
  ):
    path = tmp_path / 'data.pkl'
    path.write_bytes(b'\x80\x05' + code + b'.')
    part = unpickle.read(path)
    with pytest.raises(unpickle.Refused, match='^found (a|a broken) [^(]*$'):
      unpickle.build(part)
  legacy = [unpickle.LEGACY_TORCH, 1001, {}, {}]
  parts = [pickle.dumps(part) for part in legacy]
  path.write_bytes(b''.join(parts) + b'\x80\x05]' + laughs + b'a.')
  with pytest.raises(unpickle.Refused, match='a storage whose name is no text'):
    unpickle.read(path)


def test_errors_of_the_system_name_the_file():
  with pytest.raises(OSError, match='/dev/zero'):
    unpickle.read('/dev/zero')


def test_states_of_endless_text_are_refused(save):
  long = 'x' * 1000
  states = [[long] * 10_000], [10**4000] * 100_000
  for state in states:
    words = refusal(save(columns(TOY, anchor_obs=[state] * 12)))
    assert words.startswith("row 0: field 'anchor_obs': found too much")


def test_endless_states_are_refused(save):
  laughs = 'ha'
  for _ in range(25):
    laughs = (laughs, laughs)
  loop = []
  loop.append(loop)
  for state in (laughs, loop):
    words = refusal(save(columns(TOY, anchor_obs=[state] * 12)))
    assert words.startswith("row 0: field 'anchor_obs': found too much")
    words = refusal(save(columns(TOY, uid=[state] * 12)))
    assert words.startswith("row 0: field 'uid': found a value of type")


def test_torch_zip_that_lies(tmp_path):
  golden = zipfile.ZipFile(GOLDEN / 'verl_agent.pth')
  entries = {name: golden.read(name) for name in golden.namelist()}

  def saved(changed, kind=zipfile.ZIP_STORED):
    path = tmp_path / 'changed.pth'
    with zipfile.ZipFile(path, 'w', kind) as archive:
      for name, data in (entries | changed).items():
        if data is not None:
          archive.writestr(name, data)
    return path

  def responses(path):
    return unpickle.build(
      unpickle.build(unpickle.read(path)['batch'])['responses']
    )

  assert responses(saved({})).shape == (12, 4)
  with pytest.raises(ValueError, match='found a cut-off tensor storage'):
    responses(saved({'verl_agent/data/0': bytes(8)}))
  for changed, kind, words in (
    ({}, zipfile.ZIP_DEFLATED, 'a compressed file'),
    ({'verl_agent/byteorder': b'big'}, zipfile.ZIP_STORED, 'numbers in the'),
    ({'verl_agent/data.pkl': None}, zipfile.ZIP_STORED, 'a zip file that'),
    ({'verl_agent/data.pkl': b'}'}, zipfile.ZIP_STORED, 'no readable pickle'),
  ):
    assert refusal(saved(changed, kind)).startswith(f'found {words}')
