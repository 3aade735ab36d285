import dataclasses
import json
import pathlib
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import EXPECTED, SMALL, assert_same, copy, read, run
from safetensors import safe_open

from graphgpo_jax import sharding
from graphgpo_jax.models import weights
from graphgpo_jax.models.parameters import abstract_params, init_params


@pytest.mark.parametrize('shard_bytes', [10**9, 20_000])
@pytest.mark.parametrize('name', EXPECTED)
def test_what_is_saved_loads_the_same(name, shard_bytes, tmp_path):
  config, params = read(name)
  folder = tmp_path / 'new' / 'model'
  weights.save(folder, params, config, shard_bytes=shard_bytes)
  assert weights.read_config(folder) == config
  assert_same(weights.load(folder, config), params)
  files = list(folder.glob('*.safetensors'))
  assert (len(files) == 1) == (shard_bytes == 10**9)
  for file in files:
    assert file.stat().st_size < shard_bytes + 4000  # the header
    assert file.stat().st_mode == (folder / 'config.json').stat().st_mode
    with safe_open(file, 'numpy') as handle:
      assert handle.metadata() == {'format': 'pt'}
  assert list((tmp_path / 'new').iterdir()) == [folder]


def test_sharded_parameters_save_as_numpy_ones_do(tmp_path):
  config, params = read('qwen3_untied')
  mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
  placed = jax.device_put(params, sharding.shardings(params, mesh))
  weights.save(tmp_path / 'one', params, config, dtype='bfloat16')
  weights.save(tmp_path / 'two', placed, config, dtype='bfloat16')
  for name in ('config.json', 'model.safetensors'):
    one, two = (tmp_path / f / name for f in ('one', 'two'))
    assert one.read_bytes() == two.read_bytes()
  found = weights.load(tmp_path / 'one', config)
  rounded = jax.tree.map(
    lambda x: x.astype('bfloat16').astype('float32'), params
  )
  assert_same(found, rounded)


def with_adapters(name):
  """(config, params) with adapters that change much."""
  config, params = read(name, lora_rank=3, lora_alpha=5.0)
  generator = np.random.default_rng(0)
  for leaves in params['layers'].values():
    if 'lora_b' in leaves:
      shape = leaves['lora_b'].shape
      leaves['lora_b'] = generator.normal(size=shape).astype(np.float32)
  return config, params


def test_merging_adapters_typed_in():
  config = dataclasses.replace(SMALL, num_layers=1, lora_rank=2, lora_alpha=3.0)
  params = init_params(config, seed=0)
  before = params['layers']['key']
  before['kernel'] = np.full((1, 4, 4), 10, np.float32)
  before['lora_a'] = np.array([[[1, 0], [0, 1], [2, 0], [0, 0]]], np.float32)
  before['lora_b'] = np.array([[[1, 2, 0, 0], [0, 0, 4, 0]]], np.float32)
  expected = [[11.5, 13, 10, 10], [10, 10, 16, 10], [13, 16, 10, 10], [10] * 4]
  for make in (np.asarray, jnp.asarray):
    merged = weights.merge_lora(jax.tree.map(make, params), config)
    np.testing.assert_array_equal(
      merged['layers']['key']['kernel'][0], expected
    )
    plain = dataclasses.replace(config, lora_rank=0)
    assert jax.tree.structure(merged) == jax.tree.structure(
      abstract_params(plain)
    )
  assert 'lora_a' in before


def test_adapters_are_saved_merged(tmp_path):
  config, params = with_adapters('qwen2_untied')
  ids = jnp.array(EXPECTED['qwen2_untied']['ids'])
  expected = run(config, params, ids)
  before = np.array(EXPECTED['qwen2_untied']['logits'])
  assert np.abs(expected - before).max() > 1
  weights.save(tmp_path / 'model', params, config)
  plain = weights.read_config(tmp_path / 'model')
  assert plain == dataclasses.replace(config, lora_rank=0, lora_alpha=16.0)
  found = weights.load(tmp_path / 'model', plain)
  assert_same(found, weights.merge_lora(params, config))
  np.testing.assert_allclose(run(plain, found, ids), expected, atol=1e-4)
  with pytest.raises(ValueError, match='lora_rank of the config is 0'):
    weights.save(tmp_path / 'other', params, plain)


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
  config, params = read('llama_tied')
  folder = tmp_path / 'model'
  folder.mkdir()
  weights.save(folder, params, config)  # an empty one will do
  (folder / 'config.json').write_text('mine')
  for path in (folder, folder / 'config.json'):
    with pytest.raises(FileExistsError, match='exists and is not an empty'):
      weights.save(path, params, config)
  assert (folder / 'config.json').read_text() == 'mine'


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
  config, params = read('qwen3_tied')

  def fill_disk(values, path, **_):
    path.write_bytes(b'half')
    raise OSError('no space left')

  monkeypatch.setattr(weights, 'save_file', fill_disk)
  with pytest.raises(OSError, match='no space'):
    weights.save(tmp_path / 'new' / 'model', params, config)
  assert list((tmp_path / 'new').iterdir()) == []


def test_parameters_that_no_folder_can_hold(tmp_path):
  config, params = read('qwen3_tied')
  folder = tmp_path / 'model'
  spoilt = params | {
    'final_norm': {'scale': np.ones(3)},
    'head': {'x': np.ones(1)},
  }
  with pytest.raises(
    ValueError, match='config: final_norm/scale is .3,., expe'
  ):
    weights.save(folder, spoilt, config)
  both = dataclasses.replace(config, qkv_bias=True)
  with pytest.raises(ValueError, match='has both qkv_bias and qk_norm'):
    weights.save(folder, init_params(both, seed=0), both)
  with pytest.raises(ValueError, match="dtype must be one of .* got 'float16'"):
    weights.save(folder, params, config, dtype='float16')
  with pytest.raises(ValueError, match='nowhere: must be a folder'):
    weights.save(folder, params, config, like=tmp_path / 'nowhere')
  assert not folder.exists()


def test_what_comes_along_from_the_source(tmp_path):
  like = copy('llama_tied', tmp_path)
  for name in ('tokenizer.json', 'generation_config.json', 'README.md'):
    (like / name).write_text(name)
  record = json.loads((like / 'config.json').read_text())
  config, params = read('llama_tied')
  weights.save(tmp_path / 'new', params, config, like=like)
  assert {
    path.name: path.read_text()[:9] for path in (tmp_path / 'new').glob('*n')
  } == {
    'config.json': '{\n  "arch',
    'tokenizer.json': 'tokenizer',
    'generation_config.json': 'generatio',
  }
  saved = json.loads((tmp_path / 'new' / 'config.json').read_text())
  for key in ('bos_token_id', 'eos_token_id', 'max_position_embeddings'):
    assert saved[key] == record[key]


PROGRAM = """
import sys
import jax
jax.config.update('jax_num_cpu_devices', 4)
number, port, tests, folder = sys.argv[1:]
jax.distributed.initialize(f'127.0.0.1:{port}', 2, int(number))
sys.path.insert(0, tests)
from checkpoints import CHECKPOINTS
from graphgpo_jax import sharding
from graphgpo_jax.models import sources, weights
from graphgpo_jax.models.parameters import abstract_params

path = CHECKPOINTS / 'qwen3_tied'
config = weights.read_config(path, lora_rank=2)
placement = sharding.shardings(
  abstract_params(config), sharding.make_mesh(fsdp=2, tensor=4)
)
params = weights.load(path, config, placement=placement)
assert not params['layers']['gate']['kernel'].is_fully_addressable
weights.save(folder, params, config, shard_bytes=20_000)
weights.read_config(folder)  # it is there when any process goes on
"""


def test_two_processes_save_what_one_does(tmp_path):
  with socket.socket() as listener:
    listener.bind(('127.0.0.1', 0))
    port = listener.getsockname()[1]
  tests, folder = pathlib.Path(__file__).parent, tmp_path / 'two'
  programs = [
    subprocess.Popen(
      [sys.executable, '-c', PROGRAM, *map(str, (i, port, tests, folder))],
      stderr=subprocess.PIPE,
    )
    for i in range(2)
  ]
  outputs = [program.communicate(timeout=300) for program in programs]
  assert [p.returncode for p in programs] == [0, 0], outputs
  config, params = read('qwen3_tied')
  weights.save(tmp_path / 'one', params, config, shard_bytes=20_000)
  one, two = (sorted((tmp_path / f).iterdir()) for f in ('one', 'two'))
  assert [path.name for path in one] == [path.name for path in two]
  assert len(one) == 7
  for path, other in zip(one, two):
    assert path.read_bytes() == other.read_bytes(), path.name
