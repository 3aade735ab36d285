"""GraphGPO on ALFWorld with Qwen2.5-1.5B, in the paper's settings.

  make alfworld
  ALFWORLD_DATA=GAMES python experiments/run.py \\
      --config.model.checkpoint=FOLDER \\
      --config experiments/configs/alfworld_qwen2_5_1_5b.py

FOLDER holds the model and its tokenizer, GAMES what alfworld-download fetched.
How many games there are of each kind:

  ALFWORLD_DATA=GAMES python -m graphgpo_jax tasks \\
      --config experiments/configs/alfworld_qwen2_5_1_5b.py

The panel is valid_seen; --config.env.panel.split=unseen is the other one. The
paper reports 92.71 % success. What a run takes, without model and games and in
less than a minute:

  ... --dry_run --mesh fsdp=16 --device v5e
  ... --dry_run --mesh fsdp=8 --device h100
"""

import pathlib

import ml_collections
from ml_collections import config_dict

from graphgpo_jax import config as configs

TINY = pathlib.Path(__file__).with_name('alfworld_tiny.py')


def get_config(scheme: str = 'graphgpo') -> ml_collections.ConfigDict:
  """Config of a scheme: 'graphgpo', 'gigpo', 'grpo' or 'file:function'."""
  config = configs.load(TINY, scheme)
  config.run_dir = f'runs/alfworld_qwen2_5_1_5b_{scheme.replace(":", "_")}'
  config.updates = 150
  config.env.settings = {
    'source': 'alfworld',
    'state_key': 'paper',
    'max_steps': 50,
    'prompt': 'chat',
    'history': 2,
  }
  config.env.train = {'split': 'train'}
  config.env.panel = {'split': 'seen'}
  config.model = {
    'checkpoint': config_dict.placeholder(str),
    'vocab_size': 151936,
    'num_layers': 28,
    'embed_dim': 1536,
    'mlp_dim': 8960,
    'num_heads': 12,
    'num_kv_heads': 2,
    'head_dim': 128,
    'rope_theta': 1e6,
    'norm_eps': 1e-6,
    'qkv_bias': True,
    'tie_embeddings': True,
    'dtype': 'bfloat16',
    'param_dtype': 'float32',
    'lora_rank': 0,
    'lora_alpha': 16.0,
    'attention_chunk': 512,
    'remat': 'full',
  }
  config.sampling.update(
    {
      'prompt_lengths': (512, 1024, 2048),
      'overflow': 'drop_history',
      'max_new_tokens': 512,
      'prefill_tokens': 8192,
    }
  )
  config.batch.update(
    {
      'tasks': 16,
      'attempts': 8,
      'mini_batch_steps': 256,
      'micro_batch_rows': 16,
      'row_length': 4096,
      'logit_chunk': 512,
      'resample_retries': 0,
    }
  )
  config.loss.update({'kl_coefficient': 0.01, 'reference': 'host'})
  config.optimizer.learning_rate = 1e-6
  config.warm_start.steps = 0
  config.evaluation.update({'every': 5, 'tasks': 128, 'temperature': 0.4})
  config.checkpoint.every = 5
  config.mesh = {'data': 1, 'fsdp': 16, 'tensor': 1}
  return config
