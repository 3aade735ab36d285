"""Configs: whole, checked before any work, with errors that name the key."""

import pathlib
import subprocess
import sys

import ml_collections
import pytest
from small import FILE, small_config

from graphgpo_jax import config as configs
from graphgpo_jax import credit
from graphgpo_jax.setup import build

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize('scheme', ['graphgpo', 'gigpo', 'grpo'])
def test_shipped_configs_are_whole(scheme):
  for path in (ROOT / 'experiments' / 'configs').glob('*.py'):
    config = configs.load(path, scheme)
    configs.check(config)
    assert config.credit.scheme == scheme and scheme in config.run_dir


WRONG = {
  'run_dir': ('runs/a[1]', r'a path without \* \? \[ \]'),
  'batch.tasks': (0, 'config.batch.tasks: found 0, allowed: an integer > 0'),
  'batch.attempts': (1, 'credit compares attempts'),
  'batch.mini_batch_steps': (0, 'mini_batch_steps: found 0'),
  'batch.logit_chunk': (0, 'an integer > 0, or None'),
  'sampling.prompt_lengths': ((64, 32), 'rising integers > 0'),
  'sampling.overflow': ('cut', 'error, drop_history, truncate_left'),
  'evaluation.top_p': (0.0, 'a number in .0, 1'),
  'optimizer.name': ('sgd', 'adamw, muon'),
  'loss.reference': ('disk', 'device, host'),
  'loss.clip_low': (1.5, 'loss.clip_low.*in .0, 1'),
  'loss.kl_estimator': ('k4', 'k1, k2, k3'),
  'loss.aggregation': ('mean', 'token_mean, sequence_mean, fixed_length'),
  'sampling.temperature': (0.0, 'sampling.temperature.*> 0'),
  'optimizer.learning_rate': (float('nan'), 'learning_rate: found nan'),
  'env.workers': (-1, 'config.env.workers: found -1, allowed: an integer >= 0'),
  'env.timeout': (0.0, 'config.env.timeout: found 0.0, allowed: a number > 0'),
  'env.cores': ((0, -1), 'cores: found .0, -1., allowed: core numbers'),
  'checkpoint.every': (0, 'checkpoint.every: found 0'),
  'mesh.data': (0, 'or -1'),
  'updates': (-1, 'config.updates: found -1'),
}


@pytest.mark.parametrize('key', WRONG)
def test_impossible_values_are_named(key):
  value, message = WRONG[key]
  config = configs.load(FILE)
  config.update_from_flattened_dict({key: value})
  with pytest.raises(ValueError, match=message):
    configs.check(config)


def test_missing_and_unknown_keys_are_named():
  config = configs.load(FILE)
  del config['model']
  with pytest.raises(ValueError, match='config.model: missing'):
    configs.check(config)
  config = configs.load(FILE)
  del config.batch['tasks']
  with pytest.raises(ValueError, match='config.batch.tasks: missing'):
    configs.check(config)
  config = configs.load(FILE)
  config.batch.taks = 3
  with pytest.raises(ValueError, match='unknown; did you mean .*batch.tasks'):
    configs.check(config)


def test_a_scheme_of_ones_own_may_be_the_argument():
  config = configs.load(FILE, 'mine:saved')
  configs.check(config)
  assert config.credit.to_dict() == {'scheme': 'mine:saved', 'preset': None}


BUILD = {
  'env.factory': ('graphgpo_jax.envs.sokoban:nothing', 'config.env'),
  'env.settings.size': (3, 'config.env.*size'),
  'model.head_dim': (7, 'config.model: head_dim must be even'),
  'model.qkv_bias': (3, 'config.model.qkv_bias: found 3, allowed: bool'),
  'credit.omega': (2.0, '0 < omega < 1'),
  'credit.scheme': ('none', "'none', allowed: crbc, "),
  'mesh.data': (3, 'does not fit 8 devices'),
  'batch.tasks': (64, 'tasks.*48'),
  'sampling.prompt_lengths': ((20,), 'at least 37, the length of the first'),
  'batch.row_length': (37, 'row_length: found 37, allowed: at least 38'),
  'batch.micro_batch_rows': (12, 'rows: found 12, allowed: a multiple of 8'),
  'env.settings.prompt': ('chat', 'config.model.checkpoint: missing'),
  'model.checkpoint': ('/nowhere', '/nowhere'),
}


@pytest.mark.parametrize('key', BUILD)
def test_what_cannot_be_built_is_named(key, tmp_path):
  config = small_config(tmp_path)
  with config.unlocked():
    config.update_from_flattened_dict({key: BUILD[key][0]})
  with pytest.raises(ValueError, match=BUILD[key][1]):
    build(config)


def test_of_a_users_environment_the_line_is_named(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'own_env.py').write_text('def make():\n  return 1 + None\n')
  config = small_config(tmp_path)
  config.env.update({'factory': 'own_env:make'})
  for name in ('settings', 'train', 'panel'):
    config.env[name] = ml_collections.ConfigDict()
  with pytest.raises(ValueError, match=r'TypeError: .* \(own_env.py, line 2\)'):
    build(config)


def test_histories_are_dropped_by_prompts_that_can(tmp_path):
  config = small_config(tmp_path)
  config.env.update({'factory': 'faulty:make'})
  for name in ('settings', 'train', 'panel'):
    config.env[name] = ml_collections.ConfigDict()
  config.sampling.overflow = 'drop_history'
  with pytest.raises(ValueError, match='overflow: .* prompt takes `hidden`'):
    build(config)


@pytest.mark.parametrize(
  'path', sorted(FILE.parent.glob('*.py')), ids=lambda path: path.stem
)
def test_every_config_takes_every_scheme(path):
  for scheme in (*credit.schemes(), 'tigpo'):
    config = configs.load(path, scheme)
    configs.check(config)
    settings = config.credit.to_dict()
    credit.bind(settings.pop('scheme'), **settings)


def test_keywords_are_named_with_their_section():
  def factory(*, size: int, rate: float = 0.1, name: str | None = None, odd=1):
    del size, rate, name, odd

  good = {'size': 2, 'rate': 1, 'name': None, 'odd': []}
  configs.check_keywords('env.train', factory, good)
  for key, value, message in [
    ('size', 2.5, 'config.env.train.size: found 2.5, allowed: int'),
    ('size', True, 'config.env.train.size: found True, allowed: int'),
    ('name', 3, 'config.env.train.name: found 3, allowed: str or NoneType'),
    ('sise', 3, 'config.env.train.sise: unknown; did you mean .*train.size'),
  ]:
    with pytest.raises(ValueError, match=message):
      configs.check_keywords('env.train', factory, good | {key: value})


PROGRAM = [
  # Keys of free sections need not be in the file.
  (['--config.credit.epss=1e-6'], "setting 'epss': unknown"),
  (['--config.batch.taks=3'], 'did you mean config.batch.tasks?'),
  (['--config.batch.tasks=x'], 'batch.tasks'),
  (['--config.batch.tasks=0'], 'an integer > 0'),
  (['--bogus'], 'bogus'),
  ([f'--config={ROOT}/README.md'], 'a Python file'),
]


@pytest.mark.parametrize('flags, message', PROGRAM)
def test_run_py_fails_in_one_line(flags, message, tmp_path):
  done = subprocess.run(
    [sys.executable, ROOT / 'experiments/run.py', '--config', FILE, *flags],
    capture_output=True,
    text=True,
    cwd=tmp_path,
  )
  assert done.returncode == 2 and done.stdout == ''
  assert message in done.stderr and done.stderr.count('\n') == 1
  assert not list(tmp_path.iterdir())
