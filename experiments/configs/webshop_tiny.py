"""GraphGPO on WebShop in few words with a small decoder, on a laptop.

  python experiments/run.py --config experiments/configs/webshop_tiny.py
  python experiments/run.py --config experiments/configs/webshop_tiny.py:gigpo

Needs nothing but the project: 3,000 generated products, compact prompts; takes
about 16 minutes on one core. Expect the right purchase for 33 to 51 % of 300
held-out goals after the warm start (greedy, three seeds) and 15 to 17 points
more at the end: experiments/results/environments.md. A learning rate of 1e-3
destroys the policy.
"""

import pathlib

import ml_collections

from graphgpo_jax import config as configs

TINY = pathlib.Path(__file__).with_name('sokoban_tiny.py')


def get_config(scheme: str = 'graphgpo') -> ml_collections.ConfigDict:
  """Config of a scheme: 'graphgpo', 'gigpo', 'grpo' or 'file:function'."""
  config = configs.load(TINY, scheme)
  config.run_dir = f'runs/webshop_tiny_{scheme.replace(":", "_")}'
  config.updates = 80
  config.env.factory = 'graphgpo_jax.envs.webshop:make'
  config.env.settings = {
    'seed': 0,
    'products': 3000,
    'prompt': 'compact',
    'max_steps': 15,
  }
  config.env.train = {'split': 'train'}
  config.env.panel = {'split': 'panel'}
  config.model = {
    'num_layers': 3,
    'embed_dim': 64,
    'mlp_dim': 128,
    'num_heads': 4,
    'num_kv_heads': 4,
    'head_dim': 16,
    'rope_theta': 1e4,
    'embed_init_scale': 0.5,
  }
  config.sampling.update(
    {
      'temperature': 0.7,
      'prompt_lengths': (16, 40, 88),
      'max_new_tokens': 6,
      'prefill_tokens': 8192,
    }
  )
  config.batch.update(
    {
      'tasks': 32,
      'attempts': 8,
      'mini_batch_steps': 256,
      'micro_batch_rows': 64,
      'row_length': 96,
      'logit_chunk': 8,
    }
  )
  if ':' not in scheme:
    # Where all attempts fail, returns differ by this penalty alone, and
    # z-scores would make as much of that as of success.
    config.credit.invalid_action_penalty = 0.0
  if config.credit.scheme == 'graphgpo':
    config.credit.omega = 0.2
  config.optimizer.learning_rate = 3e-4
  config.warm_start = {
    'steps': 110,
    'tasks': 2000,
    'mini_batch_steps': 128,
    'learning_rate': 2e-3,
  }
  config.evaluation.update({'every': 10, 'tasks': 300, 'temperature': 0.4})
  config.checkpoint.every = 10
  return config
