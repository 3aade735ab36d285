"""GraphGPO on Sokoban in words with Qwen2.5-7B, in the paper's settings.

  python experiments/run.py --config.model.checkpoint=FOLDER \\
      --config experiments/configs/sokoban_qwen2_5_7b.py

FOLDER holds the model and its tokenizer. What a run takes, without them and in
less than a minute, for 16 chips of TPU v5e or 8 H100:

  ... --dry_run --mesh fsdp=16 --device v5e
  ... --dry_run --mesh fsdp=8 --device h100
"""

import pathlib

import ml_collections
from ml_collections import config_dict

from graphgpo_jax import config as configs

TINY = pathlib.Path(__file__).with_name('sokoban_tiny.py')


def get_config(scheme: str = 'graphgpo') -> ml_collections.ConfigDict:
  """Config of a scheme: 'graphgpo', 'gigpo', 'grpo' or 'file:function'."""
  config = configs.load(TINY, scheme)
  config.run_dir = f'runs/sokoban_qwen2_5_7b_{scheme.replace(":", "_")}'
  config.updates = 150
  config.env.settings = {
    'size': 6,
    'boxes': 1,
    'max_steps': 15,
    'prompt': 'chat',
    'history': 2,
  }
  config.model = {
    'checkpoint': config_dict.placeholder(str),
    'vocab_size': 152064,
    'num_layers': 28,
    'embed_dim': 3584,
    'mlp_dim': 18944,
    'num_heads': 28,
    'num_kv_heads': 4,
    'head_dim': 128,
    'rope_theta': 1e6,
    'norm_eps': 1e-6,
    'qkv_bias': True,
    'tie_embeddings': False,
    'dtype': 'bfloat16',
    'param_dtype': 'float32',
    'lora_rank': 0,
    'lora_alpha': 16.0,
    'attention_chunk': 512,
    'remat': 'full',
  }
  config.sampling.update(
    {
      'prompt_lengths': (512, 1024),
      'overflow': 'drop_history',
      'max_new_tokens': 512,
      'prefill_tokens': 4096,
    }
  )
  config.batch.update(
    {
      'tasks': 32,
      'attempts': 8,
      'mini_batch_steps': 64,
      'micro_batch_rows': 16,
      'row_length': 4096,
      'logit_chunk': 512,
      'resample_retries': 0,
    }
  )
  if config.credit.scheme == 'graphgpo':
    config.credit.omega = 0.8
  config.loss.update({'kl_coefficient': 0.01, 'reference': 'host'})
  config.optimizer.learning_rate = 1e-6
  config.warm_start.steps = 0
  config.evaluation.update({'every': 5, 'tasks': 128, 'temperature': 0.4})
  config.checkpoint.every = 5
  config.mesh = {'data': 1, 'fsdp': 16, 'tensor': 1}
  return config
