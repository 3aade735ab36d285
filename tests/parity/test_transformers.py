"""Against transformers itself; runs where the extra [parity] is installed."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

from graphgpo_jax.models import weights  # noqa: E402
from graphgpo_jax.models.parameters import assemble  # noqa: E402

CHECKPOINTS = pathlib.Path(__file__).parents[1] / 'golden' / 'checkpoints'
NAMES = sorted(path.parent.name for path in CHECKPOINTS.glob('*/config.json'))
# Other ids, and more of them, than in the golden file.
IDS = np.random.default_rng(0).integers(0, 64, 40)


def their_logits(folder, dtype=torch.float32):
  """([L, V], the model) as transformers reads a folder, nothing left over."""
  model, report = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=dtype, output_loading_info=True
  )
  assert not any(report.values()), report
  with torch.no_grad():
    logits = model(torch.tensor(IDS[None])).logits[0]
  return logits.float().numpy(), model


def our_logits(config, params):
  steps = jnp.arange(len(IDS))
  mask = (steps[:, None] >= steps)[None]

  @jax.jit
  def run(params):
    return assemble(config, params)(IDS[None], steps[None], mask)[0][0]

  return np.asarray(run(params))


@pytest.mark.skipif(
  int(transformers.__version__.split('.')[0]) < 5,
  reason='earlier ones do not know rope_parameters',
)
@pytest.mark.parametrize('name', NAMES)
def test_their_folder_read_by_both(name):
  config = weights.read_config(CHECKPOINTS / name)
  ours = our_logits(config, weights.load(CHECKPOINTS / name, config))
  theirs, _ = their_logits(CHECKPOINTS / name)
  np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize('shard_bytes', [10**9, 20_000])
@pytest.mark.parametrize('name', NAMES)
def test_our_folder_read_by_both(name, shard_bytes, tmp_path):
  source, folder = CHECKPOINTS / name, tmp_path / 'model'
  config = weights.read_config(source, lora_rank=2)
  params = weights.load(source, config)
  generator = np.random.default_rng(1)
  for leaves in params['layers'].values():
    if 'lora_b' in leaves:
      leaves['lora_b'] = generator.normal(
        scale=0.05, size=leaves['lora_b'].shape
      ).astype(np.float32)
  weights.save(folder, params, config, like=source, shard_bytes=shard_bytes)
  theirs, model = their_logits(folder)
  assert np.abs(theirs - their_logits(source)[0]).max() > 0.1
  np.testing.assert_allclose(our_logits(config, params), theirs, atol=1e-4)
  again = tmp_path / 'again'
  model.save_pretrained(again)
  plain = dataclasses.replace(config, lora_rank=0)
  assert weights.read_config(folder) == weights.read_config(again) == plain


def test_a_folder_in_bfloat16_is_read_as_such(tmp_path):
  source, folder = CHECKPOINTS / 'qwen2_untied', tmp_path / 'model'
  config = weights.read_config(source)
  params = weights.load(source, config)
  weights.save(folder, params, config, dtype='bfloat16')
  _, model = their_logits(folder, dtype='auto')
  assert model.dtype == torch.bfloat16
  params = weights.load(folder, config)
  theirs, _ = their_logits(folder)
  np.testing.assert_allclose(our_logits(config, params), theirs, atol=1e-4)


@pytest.mark.parametrize('kind', ['Qwen2', 'Qwen3', 'Llama'])
def test_a_config_without_keys_means_their_defaults(kind, tmp_path):
  sizes = {
    'vocab_size': 64,
    'hidden_size': 32,
    'intermediate_size': 40,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'num_key_value_heads': 2,
  }
  theirs = getattr(transformers, f'{kind}Config')(**sizes)
  theirs.save_pretrained(tmp_path / 'full')
  (tmp_path / 'bare').mkdir()
  record = sizes | {'model_type': theirs.model_type}
  (tmp_path / 'bare' / 'config.json').write_text(json.dumps(record))
  full, bare = (weights.read_config(tmp_path / f) for f in ('full', 'bare'))
  assert full == bare
