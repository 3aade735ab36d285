"""GraphGPO on Sokoban in words with SmolLM2-135M-Instruct and LoRA.

  make smollm2
  python experiments/run.py --config experiments/configs/sokoban_smollm2.py

The way of a real language model, in small: a pretrained checkpoint, its chat
template, adapters, packed rows. On two CPU cores it shows that all of this
works; it has far too few steps to learn from. For any other checkpoint give
--config.model.checkpoint=FOLDER, and sizes that fit your machine.
"""

import pathlib

import ml_collections

from graphgpo_jax import config as configs

TINY = pathlib.Path(__file__).with_name('sokoban_tiny.py')


def get_config(scheme: str = 'graphgpo') -> ml_collections.ConfigDict:
  """Config of a scheme: 'graphgpo', 'gigpo', 'grpo' or 'file:function'."""
  config = configs.load(TINY, scheme)
  config.run_dir = f'runs/sokoban_smollm2_{scheme.replace(":", "_")}'
  config.updates = 3
  config.env.settings = {
    'size': 6,
    'boxes': 1,
    'max_steps': 5,
    'prompt': 'chat',
    'history': 0,
  }
  config.env.train.levels = 64
  config.env.panel.levels = 8
  config.model = {
    'checkpoint': 'smollm2',
    'lora_rank': 8,
    'lora_alpha': 16.0,
  }
  config.sampling.update(
    {
      'prompt_lengths': (192, 256),
      'max_new_tokens': 24,
      'prefill_tokens': 2048,
    }
  )
  config.batch.update(
    {
      'tasks': 2,
      'attempts': 4,
      'mini_batch_steps': 40,
      'micro_batch_rows': 2,
      'row_length': 448,
      'logit_chunk': 32,
      'resample_retries': 0,
    }
  )
  config.loss.update({'kl_coefficient': 0.01, 'entropy_coefficient': 0.0})
  config.optimizer.learning_rate = 1e-4
  config.warm_start = {
    'steps': 12,
    'tasks': 16,
    'mini_batch_steps': 8,
    'learning_rate': 1e-3,
  }
  config.evaluation.update({'every': 3, 'tasks': 4, 'temperature': 0.4})
  config.checkpoint.every = 1
  return config
