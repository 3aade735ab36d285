"""Sweeps: every one can be made into configs; tables and files by hand."""

import importlib.util
import json
import pathlib
import types

import pytest

from graphgpo_jax import config as configs

EXPERIMENTS = pathlib.Path(__file__).parents[1] / 'experiments'


def load(path):
  spec = importlib.util.spec_from_file_location(f'{path.stem}_file', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope='module')
def sweep():
  return load(EXPERIMENTS / 'sweep.py')


@pytest.mark.parametrize(
  'path',
  sorted((EXPERIMENTS / 'sweeps').glob('*.py')),
  ids=lambda path: path.stem,
)
def test_every_run_of_a_sweep_has_a_config(sweep, path, monkeypatch):
  monkeypatch.chdir(EXPERIMENTS.parent)
  names = set()
  for changes in load(path).SWEEP:
    config, label = sweep.make_config(changes)
    configs.check(config)
    names.add((label, config.seed))
  assert len(names) == len(load(path).SWEEP)


def result(label, seed, *success):
  costs = ('seconds_rollout', 'seconds_credit', 'seconds_update')
  speeds = ('tokens_per_second', 'steps_per_second')
  return {
    'label': label,
    'changes': {'config': 'c.py', 'label': label, 'seed': seed},
    'update': list(range(len(success))),
    'success': success,
    'success_sampled': [0.5 for _ in success],
    'seconds': 90.0,
    **dict.fromkeys((*costs, *speeds), 1.0),
  }


def test_results_by_hand(sweep, tmp_path, monkeypatch):
  results = [
    result('a', 0, 0.25, 0.3, 0.5),
    result('b', 0, 0.25, 0.25),
    result('a', 1, 0.35, 0.5, 0.7),
  ]
  name = types.SimpleNamespace
  monkeypatch.setattr(sweep, 'SWEEP', name(value='s.py'))
  monkeypatch.setattr(sweep, 'OUT', name(value='out'))
  sweep.write(tmp_path / 'new' / 'out', results)
  lines = (tmp_path / 'new' / 'out.md').read_text().splitlines()
  assert lines[0] == '`python experiments/sweep.py --sweep s.py --out out`'
  assert lines[4].startswith(
    '| a | seed=0 | 25.0% | 50.0% | +25.0 | 50.0% | 1.5 | 1.00 | 1.000 | '
  )
  # Points 25 and 35: 7.1 apart from their mean, as samples.
  assert lines[-2:] == [
    '| a | 2 | 30.0% | 60.0% | +30.0 ± 7.1 |',
    '| b | 1 | 25.0% | 25.0% | +0.0 |',
  ]
  saved = json.loads((tmp_path / 'new' / 'out.json').read_text())
  assert [run['success'][-1] for run in saved] == [0.5, 0.25, 0.7]
  assert (tmp_path / 'new' / 'out.png').read_bytes()[:4] == b'\x89PNG'
