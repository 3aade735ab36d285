"""Metadata of GGUF files, written byte by byte."""

import struct

import pytest

from graphgpo_jax.models.gguf_metadata import read_gguf_metadata
from graphgpo_jax.models.tokenizer import from_gguf


def string(text):
  return struct.pack('<Q', len(text.encode())) + text.encode()


def entry(key, kind, value):
  return string(key) + struct.pack('<I', kind) + value


def head(*entries, version=3):
  start = b'GGUF' + struct.pack('<IQQ', version, 0, len(entries))
  return start + b''.join(entries)


def test_values_typed_in(tmp_path):
  path = tmp_path / 'a.gguf'
  path.write_bytes(
    head(
      entry('n', 6, struct.pack('<f', 0.5)),
      entry('b', 7, b'\x01'),
      entry('q', 11, struct.pack('<q', -(2**40))),
      entry('s', 8, string('\xe9')),
      entry('l', 9, struct.pack('<IQii', 5, 2, -1, 7)),
      entry('w', 9, struct.pack('<IQ', 8, 2) + string('\u7bb1') + string('')),
      version=2,
    )
    + b'tensors'
  )
  assert read_gguf_metadata(path) == {
    'n': 0.5,
    'b': True,
    'q': -(2**40),
    's': '\xe9',
    'l': [-1, 7],
    'w': ['\u7bb1', ''],
  }


WHOLE = head(entry('n', 4, struct.pack('<I', 5)))


@pytest.mark.parametrize(
  'content',
  [
    b'',
    b'GGUX' + WHOLE[4:],
    head(version=1),
    WHOLE[:-1],
    WHOLE[:24] + b'\xff' * 8,  # A key as long as no memory.
    head(entry('n', 99, b'')),
    head(entry('n', 8, struct.pack('<Q', 1) + b'\xff')),
    head(entry('n', 9, struct.pack('<IQ', 4, 2**63))),
  ],
)
def test_other_files_are_refused(tmp_path, content):
  path = tmp_path / 'a.gguf'
  path.write_bytes(content)
  with pytest.raises(ValueError, match=r'a\.gguf: no GGUF that can be read'):
    read_gguf_metadata(path)


def test_missing_file_and_other_tokenizers_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r'b\.gguf: No such .*make smollm2'):
    from_gguf(tmp_path / 'b.gguf')
  path = tmp_path / 'a.gguf'
  kind = entry('tokenizer.ggml.model', 8, string('gpt2'))
  path.write_bytes(head(kind))
  with pytest.raises(ValueError, match=r"tokenizer: found \('gpt2', None\)"):
    from_gguf(path)
  path.write_bytes(head(kind, entry('tokenizer.ggml.pre', 8, string('smollm'))))
  with pytest.raises(ValueError, match=r"found only \['model', 'pre'\]"):
    from_gguf(path)
