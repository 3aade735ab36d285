"""Makes tests/golden/checkpoints: tiny random models saved by transformers.

  python tests/golden/make_checkpoints.py

Needs transformers and torch. Each folder is what save_pretrained writes;
expected.json holds token ids and the float32 logits of each model.
"""

import json
import pathlib
import shutil

import torch
import transformers

FOLDER = pathlib.Path(__file__).parent / 'checkpoints'
IDS = [7, 1, 63, 20, 20, 5, 41, 0, 33, 12, 58, 9]
SIZES = {
  'vocab_size': 64,
  'hidden_size': 32,
  'intermediate_size': 40,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'rms_norm_eps': 1e-3,
}
# The old context is short, so that every band of frequencies occurs.
LLAMA3 = {
  'rope_type': 'llama3',
  'rope_theta': 100.0,
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 24,
}
TWO_FILES = '50KB'
ONE_FILE = '1MB'
# name: class prefix, changes of the config, type on disk, largest file
MODELS = {
  'qwen2_tied': ('Qwen2', {'tie_word_embeddings': True}, 'float32', ONE_FILE),
  'qwen2_untied': ('Qwen2', {}, 'float32', TWO_FILES),
  'qwen3_tied': (
    'Qwen3',
    {'tie_word_embeddings': True, 'head_dim': 12},
    'float32',
    TWO_FILES,
  ),
  'qwen3_untied': ('Qwen3', {'head_dim': 12}, 'float32', ONE_FILE),
  'llama_tied': (
    'Llama',
    {'tie_word_embeddings': True, 'rope_parameters': LLAMA3},
    'bfloat16',
    ONE_FILE,
  ),
  'llama_untied': ('Llama', {'rope_parameters': LLAMA3}, 'float32', TWO_FILES),
}


def make_model(prefix, changes, dtype):
  """A model with no parameter at a trivial value."""
  rope = {'rope_theta': 100.0, 'rope_type': 'default'}
  make_config = getattr(transformers, f'{prefix}Config')
  config = make_config(**(SIZES | {'rope_parameters': rope} | changes))
  model = getattr(transformers, f'{prefix}ForCausalLM')(config)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      mean = 1.0 if 'norm' in name else 0.0
      parameter.normal_(mean, 0.3)
  return model.to(getattr(torch, dtype)).eval()


def main():
  shutil.rmtree(FOLDER, ignore_errors=True)
  expected = {}
  for seed, (name, (prefix, changes, dtype, size)) in enumerate(MODELS.items()):
    torch.manual_seed(seed)
    model = make_model(prefix, changes, dtype)
    model.save_pretrained(FOLDER / name, max_shard_size=size)
    (FOLDER / name / 'generation_config.json').unlink(missing_ok=True)
    # Read back, as a conversion would also round the rotary frequencies.
    model = transformers.AutoModelForCausalLM.from_pretrained(
      FOLDER / name, dtype=torch.float32
    )
    with torch.no_grad():
      logits = model(torch.tensor([IDS])).logits[0]
    rows = [[round(x, 6) for x in row] for row in logits.tolist()]
    expected[name] = {'ids': IDS, 'logits': rows}
  for path in FOLDER.glob('*/*.safetensors'):
    path.chmod(0o644)
  text = json.dumps(expected, separators=(',', ':'))
  (FOLDER / 'expected.json').write_text(text.replace('],[', '],\n[') + '\n')


if __name__ == '__main__':
  main()
