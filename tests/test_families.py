import dataclasses
import json

import pytest

from graphgpo_jax.models import weights
from graphgpo_jax.models.decoder import DecoderConfig

# What the Hub says of these models.
LLAMA32_1B = {
  'architectures': ['LlamaForCausalLM'],
  'attention_bias': False,
  'head_dim': 64,
  'hidden_act': 'silu',
  'hidden_size': 2048,
  'intermediate_size': 8192,
  'mlp_bias': False,
  'model_type': 'llama',
  'num_attention_heads': 32,
  'num_hidden_layers': 16,
  'num_key_value_heads': 8,
  'pretraining_tp': 1,
  'rms_norm_eps': 1e-05,
  'rope_scaling': {
    'factor': 32.0,
    'high_freq_factor': 4.0,
    'low_freq_factor': 1.0,
    'original_max_position_embeddings': 8192,
    'rope_type': 'llama3',
  },
  'rope_theta': 500000.0,
  'tie_word_embeddings': True,
  'torch_dtype': 'bfloat16',
  'vocab_size': 128256,
}
QWEN25_05B = {
  'architectures': ['Qwen2ForCausalLM'],
  'hidden_act': 'silu',
  'hidden_size': 896,
  'intermediate_size': 4864,
  'max_window_layers': 21,
  'model_type': 'qwen2',
  'num_attention_heads': 14,
  'num_hidden_layers': 24,
  'num_key_value_heads': 2,
  'rms_norm_eps': 1e-06,
  'rope_theta': 1000000,
  'sliding_window': 32768,
  'tie_word_embeddings': True,
  'use_sliding_window': False,
  'vocab_size': 151936,
}
QWEN3_06B = {
  'architectures': ['Qwen3ForCausalLM'],
  'attention_bias': False,
  'head_dim': 128,
  'hidden_act': 'silu',
  'hidden_size': 1024,
  'intermediate_size': 3072,
  'max_window_layers': 28,
  'model_type': 'qwen3',
  'num_attention_heads': 16,
  'num_hidden_layers': 28,
  'num_key_value_heads': 8,
  'rms_norm_eps': 1e-06,
  'rope_scaling': None,
  'rope_theta': 1000000,
  'sliding_window': None,
  'tie_word_embeddings': True,
  'use_sliding_window': False,
  'vocab_size': 151936,
}
SMOLLM2_135M = {
  'architectures': ['LlamaForCausalLM'],
  'attention_bias': False,
  'hidden_act': 'silu',
  'hidden_size': 576,
  'intermediate_size': 1536,
  'is_llama_config': True,
  'model_type': 'llama',
  'num_attention_heads': 9,
  'num_hidden_layers': 30,
  'num_key_value_heads': 3,
  'pretraining_tp': 1,
  'rms_norm_eps': 1e-05,
  'rope_interleaved': False,
  'rope_scaling': None,
  'rope_theta': 100000,
  'tie_word_embeddings': True,
  'vocab_size': 49152,
}
SMOLLM2_CONFIG = DecoderConfig(
  vocab_size=49152,
  num_layers=30,
  embed_dim=576,
  mlp_dim=1536,
  num_heads=9,
  num_kv_heads=3,
  head_dim=64,
  rope_theta=1e5,
  norm_eps=1e-5,
)
HUB = {
  'llama': (
    LLAMA32_1B,
    DecoderConfig(
      vocab_size=128256,
      num_layers=16,
      embed_dim=2048,
      mlp_dim=8192,
      num_heads=32,
      num_kv_heads=8,
      head_dim=64,
      rope_theta=5e5,
      norm_eps=1e-5,
      rope_scaling=(32.0, 1.0, 4.0, 8192),
    ),
  ),
  'qwen2': (
    QWEN25_05B,
    DecoderConfig(
      vocab_size=151936,
      num_layers=24,
      embed_dim=896,
      mlp_dim=4864,
      num_heads=14,
      num_kv_heads=2,
      head_dim=64,
      qkv_bias=True,
    ),
  ),
  'qwen3': (
    QWEN3_06B,
    DecoderConfig(
      vocab_size=151936,
      num_layers=28,
      embed_dim=1024,
      mlp_dim=3072,
      num_heads=16,
      num_kv_heads=8,
      head_dim=128,
      qk_norm=True,
    ),
  ),
  'smollm2': (SMOLLM2_135M, SMOLLM2_CONFIG),
}


def write_config(folder, record):
  folder.mkdir(exist_ok=True)
  (folder / 'config.json').write_text(json.dumps(record))
  return folder


@pytest.mark.parametrize('name', HUB)
def test_configs_of_the_hub(name, tmp_path):
  record, expected = HUB[name]
  folder = write_config(tmp_path, record)
  assert weights.read_config(folder) == expected
  changed = weights.read_config(folder, dtype='bfloat16', remat='full')
  assert changed == dataclasses.replace(
    expected, dtype='bfloat16', remat='full'
  )


def test_a_config_may_leave_out_what_has_a_default(tmp_path):
  record = {k: v for k, v in SMOLLM2_135M.items() if 'rope' not in k}
  for key in ('num_key_value_heads', 'rms_norm_eps', 'tie_word_embeddings'):
    del record[key]
  del record['model_type']  # the architecture is enough
  expected = dataclasses.replace(
    SMOLLM2_CONFIG,
    num_kv_heads=9,
    rope_theta=1e4,
    norm_eps=1e-6,
    tie_embeddings=False,
  )
  assert weights.read_config(write_config(tmp_path, record)) == expected


def test_heads_of_qwen3_are_of_128_unless_said_otherwise(tmp_path):
  record = {k: v for k, v in QWEN3_06B.items() if k != 'head_dim'}
  assert weights.read_config(write_config(tmp_path, record)).head_dim == 128
  record['model_type'], record['architectures'] = 'llama', None
  assert weights.read_config(write_config(tmp_path, record)).head_dim == 64


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'model_type': 'mistral'}, "model_type is 'mistral', must be one of"),
    ({'model_type': 'qwen3'}, "architectures is .*'Qwen3ForCausalLM'"),
    ({'rope_scaling': {'type': 'yarn', 'factor': 4.0}}, 'rope_scaling is'),
    ({'rope_parameters': {'rope_type': 'linear'}}, 'rope_parameters is'),
    (
      {'rope_parameters': {'full_attention': {'rope_theta': 1.0}}},
      'rope_parameters is',
    ),
    (
      {'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0}},
      'rope_scaling: low_freq_factor is missing',
    ),
    ({'rope_parameters': {'partial_rotary_factor': 0.5}}, 'partial_rotary'),
    ({'use_sliding_window': True}, 'use_sliding_window is true'),
    ({'layer_types': ['sliding_attention']}, "layer_types holds .'sliding"),
    ({'attention_bias': True}, 'attention_bias is True, only False'),
    ({'mlp_bias': True}, 'mlp_bias is True, only False'),
    ({'hidden_act': 'gelu'}, "hidden_act is 'gelu', only 'silu'"),
    ({'quantization_config': {'bits': 4}}, 'quantization_config is'),
    ({'hidden_size': None}, 'hidden_size is missing'),
    ({'hidden_size': '896'}, "hidden_size must be int, got '896'"),
    ({'vocab_size': True}, 'vocab_size must be int, got True'),
    ({'tie_word_embeddings': 1}, 'tie_word_embeddings must be bool, got 1'),
  ],
)
def test_configs_that_no_decoder_can_be(change, message, tmp_path):
  folder = write_config(tmp_path, QWEN25_05B | change)
  with pytest.raises(ValueError, match=f'config.json: {message}'):
    weights.read_config(folder)


def test_a_window_that_no_layer_uses_is_none(tmp_path):
  record = QWEN25_05B | {'use_sliding_window': True, 'max_window_layers': 24}
  plain = weights.read_config(write_config(tmp_path / 'plain', QWEN25_05B))
  assert weights.read_config(write_config(tmp_path, record)) == plain
