"""GraphGPO on made-up ALFWorld games with SmolLM2-135M-Instruct and LoRA.

  make alfworld smollm2
  python experiments/run.py --config experiments/configs/alfworld_smollm2.py

The way of a real language model in the real engine, in small: whole prompts
with the engine's words and commands, thoughts and actions in tags. On two CPU
cores it shows that all of this works, in two updates of two attempts each; it
has far too few steps to learn from.
"""

import pathlib

import ml_collections

from graphgpo_jax import config as configs

TINY = pathlib.Path(__file__).with_name('alfworld_tiny.py')


def get_config(scheme: str = 'graphgpo') -> ml_collections.ConfigDict:
  """Config of a scheme: 'graphgpo', 'gigpo', 'grpo' or 'file:function'."""
  config = configs.load(TINY, scheme)
  config.run_dir = f'runs/alfworld_smollm2_{scheme.replace(":", "_")}'
  config.updates = 2
  config.env.settings = {
    'source': 'generated',
    'seed': 0,
    'kinds': ('pick_and_place_simple',),
    'receptacles': 5,
    'objects': 3,
    'state_key': 'paper',
    'max_steps': 5,
    'prompt': 'chat',
    'history': 1,
  }
  config.env.train = {'split': 'train', 'games': 8}
  config.env.panel = {'split': 'unseen', 'games': 2}
  config.model = {
    'checkpoint': 'smollm2',
    'lora_rank': 8,
    'lora_alpha': 16.0,
  }
  config.sampling.update(
    {
      'prompt_lengths': (192, 288),
      'overflow': 'drop_history',
      'max_new_tokens': 40,
      'prefill_tokens': 1536,
    }
  )
  config.batch.update(
    {
      'tasks': 1,
      'attempts': 2,
      'mini_batch_steps': 10,
      'micro_batch_rows': 1,
      'row_length': 352,
      'logit_chunk': 32,
      'resample_retries': 0,
    }
  )
  config.loss.kl_coefficient = 0.01
  config.optimizer.learning_rate = 1e-4
  config.warm_start = {
    'steps': 4,
    'tasks': 4,
    'mini_batch_steps': 2,
    'learning_rate': 1e-3,
  }
  config.evaluation.update({'every': 2, 'tasks': 1, 'temperature': 0.4})
  config.checkpoint.every = 1
  return config
