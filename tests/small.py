"""A config that trains in seconds."""

import pathlib

from graphgpo_jax import config as configs

FILE = pathlib.Path(__file__).parents[1] / 'experiments/configs/sokoban_tiny.py'
CHANGES = {
  'updates': 3,
  'env.train.levels': 48,
  'env.panel.levels': 8,
  'env.settings.max_steps': 8,
  'model.num_layers': 1,
  'model.embed_dim': 16,
  'model.mlp_dim': 16,
  'model.num_heads': 2,
  'model.num_kv_heads': 2,
  'model.head_dim': 8,
  'batch.tasks': 4,
  'batch.attempts': 4,
  'batch.mini_batch_steps': 64,
  'batch.micro_batch_rows': 64,
  'warm_start.steps': 4,
  'warm_start.tasks': 8,
  'warm_start.mini_batch_steps': 16,
  'evaluation.every': 2,
  'evaluation.tasks': 8,
  'checkpoint.every': 1,
  'mesh.data': 8,
}


def small_config(run_dir, *, scheme='graphgpo', **changes):
  """sokoban_tiny, made smaller; changes name keys with __ for dots."""
  config = configs.load(FILE, scheme)
  config.run_dir = str(run_dir)
  changes = {k.replace('__', '.'): v for k, v in changes.items()}
  config.update_from_flattened_dict(CHANGES | changes)
  return config
