import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import (
  CHECKPOINTS,
  EXPECTED,
  SMALL,
  assert_same,
  copy,
  read,
  run,
)
from safetensors.numpy import load_file, save_file

from graphgpo_jax import sharding
from graphgpo_jax.models import sources, weights
from graphgpo_jax.models.parameters import abstract_params, init_params


@pytest.mark.parametrize('name', EXPECTED)
def test_logits_equal_the_golden(name):
  config, params = read(name)
  logits = run(config, params, jnp.array(EXPECTED[name]['ids']))
  np.testing.assert_allclose(logits, EXPECTED[name]['logits'], atol=1e-4)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
def test_the_config_decides_the_type_not_the_file(dtype):
  stored = load_file(CHECKPOINTS / 'llama_tied' / 'model.safetensors')
  table = stored['model.embed_tokens.weight']
  assert table.dtype == jnp.bfloat16
  _, params = read('llama_tied', param_dtype=dtype)
  assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {dtype}
  np.testing.assert_array_equal(
    params['embed']['embedding'], table.astype(dtype)
  )


@pytest.fixture
def numbers_read(monkeypatch):
  """How many numbers each read from disk brought."""
  sizes, open_source = [], sources.open_source

  def open_and_count(path):
    source = open_source(path)

    def read(name, index):
      values = source.read(name, index)
      sizes.append(values.size)
      return values

    return source._replace(read=read)

  monkeypatch.setattr(sources, 'open_source', open_and_count)
  return sizes


@pytest.mark.parametrize('name', ['qwen2_untied', 'qwen3_tied'])
def test_a_mesh_holds_the_same_and_reads_each_number_once(name, numbers_read):
  config, expected = read(name)
  total = sum(numbers_read)
  assert total == sum(leaf.size for leaf in jax.tree.leaves(expected))
  numbers_read.clear()
  mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
  placement = sharding.shardings(abstract_params(config), mesh)
  found = weights.load(CHECKPOINTS / name, config, placement=placement)
  assert_same(found, expected)
  assert jax.tree.map(lambda leaf: leaf.sharding, found) == placement
  assert sum(numbers_read) == total
  assert max(numbers_read) <= config.vocab_size * config.embed_dim / 4


def test_layers_may_be_divided_too():
  config, expected = read('qwen2_tied')
  placement = jax.tree.map(
    lambda _: jax.NamedSharding(sharding.make_mesh(tensor=2), jax.P('tensor')),
    expected,
  )
  path = CHECKPOINTS / 'qwen2_tied'
  assert_same(weights.load(path, config, placement=placement), expected)


def test_adapters_start_new_on_any_mesh():
  config, plain = read('qwen2_tied')
  config = dataclasses.replace(config, lora_rank=2)
  path = CHECKPOINTS / 'qwen2_tied'
  found = weights.load(path, config, seed=3)
  expected = init_params(config, seed=3, adapters_only=True)
  for name, leaves in expected['layers'].items():
    for leaf in ('lora_a', 'lora_b'):
      np.testing.assert_array_equal(found['layers'][name][leaf], leaves[leaf])
  assert_same(weights.merge_lora(found, config), plain)  # as lora_b is 0
  placement = sharding.shardings(
    abstract_params(config), sharding.make_mesh(tensor=2)
  )
  assert_same(weights.load(path, config, placement=placement, seed=3), found)


def change(path, edit):
  """Writes a file of tensors again, changed."""
  tensors = load_file(path)
  edit(tensors)
  save_file(tensors, path)


def error_of(folder):
  with pytest.raises(ValueError) as caught:
    weights.load(folder, weights.read_config(folder))
  message = str(caught.value)
  assert str(folder) in message
  assert '\n' not in message
  return message


def test_all_that_is_wrong_with_tensors_is_said_at_once(tmp_path):
  folder = copy('qwen2_tied', tmp_path)

  def spoil(tensors):
    for layer in range(2):
      del tensors[f'model.layers.{layer}.mlp.up_proj.weight']
    tensors['model.norm.weight'] = np.zeros(31, np.float32)
    tensors['model.layers.1.self_attn.k_proj.bias'] = np.zeros(16, np.int32)
    tensors['model.layers.0.extra.weight'] = np.zeros(1, np.float32)
    tensors['lm_head.weight'] = np.zeros(1, np.float32)  # tied: unread
    tensors['model.rotary_emb.inv_freq'] = np.zeros(4, np.float32)

  change(folder / 'model.safetensors', spoil)
  assert set(error_of(folder).split(f'{folder}: ')[1].split('; ')) == {
    'model.safetensors: model.layers.0.extra.weight is unknown',
    'model.safetensors: model.layers.1.self_attn.k_proj.bias is I32, '
    'expected one of BF16, F16, F32',
    'model.safetensors: model.norm.weight is (31,), expected (32,)',
    'model.safetensors: model.layers.{0,1}.mlp.up_proj.weight is missing',
  }


def test_harmless_extras_are_left_unread(tmp_path):
  folder = copy('qwen2_tied', tmp_path)
  extras = {'lm_head.weight': 64, 'model.layers.0.rotary_emb.inv_freq': 4}
  change(
    folder / 'model.safetensors',
    lambda tensors: tensors.update(
      {name: np.zeros(size, np.float32) for name, size in extras.items()}
    ),
  )
  config, expected = read('qwen2_tied')
  assert_same(weights.load(folder, config), expected)


def test_a_config_of_another_model_does_not_fit(tmp_path):
  folder = copy('qwen2_untied', tmp_path)
  config = weights.read_config(folder, qkv_bias=False)
  with pytest.raises(ValueError, match=r'\{0,1\}.self_attn.q_proj.bias is unk'):
    weights.load(folder, config)


def test_shards_that_are_cut_short_or_gone(tmp_path):
  folder = copy('qwen3_tied', tmp_path)
  one, two = sorted(folder.glob('*.safetensors'))
  two.write_bytes(two.read_bytes()[:-1])
  change(one, lambda tensors: tensors.pop('model.embed_tokens.weight'))
  message = error_of(folder)
  assert f'{two.name}: cut short or not a safetensors file' in message
  assert f'{one.name}: model.embed_tokens.weight is missing' in message
  assert message.count(';') == 1  # what the broken file holds is not missing
  two.unlink()
  assert f'{two.name}: no such file' in error_of(folder)


@pytest.mark.parametrize(
  ('spoil', 'message'),
  [
    (lambda f: f.unlink(), 'holds neither model.safetensors nor model.safe'),
    (lambda f: f.write_text('{}'), 'index.json: weight_map must name'),
    (
      lambda f: f.write_text('{"weight_map": {"lm_head.weight": 5}}'),
      'index.json: weight_map must name',
    ),
    (lambda f: f.write_text('{'), 'index.json: not readable as JSON'),
  ],
)
def test_indices_that_are_missing_or_broken(spoil, message, tmp_path):
  folder = copy('qwen3_tied', tmp_path)
  spoil(folder / 'model.safetensors.index.json')
  assert message in error_of(folder)


def test_folders_that_are_none(tmp_path):
  with pytest.raises(ValueError, match='nowhere: must be a folder or a .gguf'):
    weights.read_config(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match='config.json: no such file'):
    weights.read_config(tmp_path)
  (tmp_path / 'config.json').write_text('[]')
  with pytest.raises(ValueError, match='config.json: must hold an object'):
    weights.load(tmp_path, SMALL)
