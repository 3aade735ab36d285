"""GraphGPO on WebShop in words with Qwen2.5-1.5B, in the paper's settings.

  python experiments/run.py --config.model.checkpoint=FOLDER \\
      --config.env.settings.source=SHOP \\
      --config experiments/configs/webshop_qwen2_5_1_5b.py

FOLDER holds the model and its tokenizer; SHOP the published files
items_shuffle_1000.json and items_ins_v2_1000.json. Without SHOP, products are
made up. The paper reports 78.65 % success on the published ones. What a run
takes, without the model and in less than a minute:

  ... --dry_run --mesh fsdp=16 --device v5e
  ... --dry_run --mesh fsdp=8 --device h100
"""

import pathlib

import ml_collections

from graphgpo_jax import config as configs

ALFWORLD = pathlib.Path(__file__).with_name('alfworld_qwen2_5_1_5b.py')


def get_config(scheme: str = 'graphgpo') -> ml_collections.ConfigDict:
  """Config of a scheme: 'graphgpo', 'gigpo', 'grpo' or 'file:function'."""
  config = configs.load(ALFWORLD, scheme)
  config.run_dir = f'runs/webshop_qwen2_5_1_5b_{scheme.replace(":", "_")}'
  config.env.factory = 'graphgpo_jax.envs.webshop:make'
  config.env.settings = {
    'source': 'generated',
    'seed': 0,
    'products': 1000,
    'prompt': 'chat',
    'history': 2,
    'max_steps': 15,
  }
  config.env.train = {'split': 'train'}
  config.env.panel = {'split': 'panel'}
  config.sampling.update(
    {'prompt_lengths': (1024, 2560, 5120), 'prefill_tokens': 10240}
  )
  config.batch.update({'mini_batch_steps': 64, 'row_length': 5632})
  if config.credit.scheme == 'graphgpo':
    config.credit.omega = 0.2
  return config
