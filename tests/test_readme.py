"""Every command and every piece of code in the README runs."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / 'README.md').read_text()
QUICK = (
  '--config.updates=1 --config.warm_start.steps=2 --config.batch.tasks=4 '
  '--config.warm_start.tasks=8 --config.evaluation.tasks=16'
)
FEW = '--config.env.train.levels=64 --config.env.panel.levels=16'


def blocks(language):
  return re.findall(rf'^```{language}\n(.*?)^```', TEXT, re.M | re.S)


def commands():
  lines = [line for block in blocks('bash') for line in block.splitlines()]
  return [line for line in lines if line and not line.startswith('make ')]


def test_readme_has_what_a_reader_looks_for():
  assert len(commands()) >= 6 and len(blocks('python')) >= 2
  for name in re.findall(r'\]\((?!http)(.*?)\)', TEXT):
    assert (ROOT / name).exists(), name
  for name in re.findall(
    r'`((?:experiments|benchmarks|tests|examples)/[\w./]+)', TEXT
  ):
    assert (ROOT / name).exists(), name
  targets = re.findall(r'^make (\w+)', '\n'.join(blocks('bash')), re.M)
  makefile = (ROOT / 'Makefile').read_text()
  assert set(targets) >= {'demo', 'test'}
  for target in targets:
    assert re.search(rf'^{target}:', makefile, re.M)


def test_python_of_the_readme_runs(capsys):
  names = {}
  for block in blocks('python'):
    exec(block, names)
  printed = capsys.readouterr().out.splitlines()
  assert printed == [
    '[ 1.4142135 -1.4142135]',
    '[ 2. -2.]',
    'True True',
  ]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """What a user has: the checkout, and a log of another framework."""
  folder = tmp_path_factory.mktemp('checkout')
  for name in ('graphgpo_jax', 'experiments', 'benchmarks', 'tests'):
    (folder / name).symlink_to(ROOT / name)
  (folder / 'examples').symlink_to(ROOT / 'examples')
  log = ROOT / 'tests/golden/tiny.rollouts.jsonl'
  shutil.copy(log, folder / 'rollouts.jsonl')
  (folder / '.venv/bin').mkdir(parents=True)
  python = folder / '.venv/bin/python'
  python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
  python.chmod(0o755)
  return folder


def test_commands_of_the_readme_run(folder):
  for command in commands():
    quick = command
    if 'experiments/run.py' in command:
      quick = f'{command} {QUICK} {FEW * ("sokoban" in command)}'
    if 'benchmarks/credit.py' in command:
      quick = f'{command.split(" --")[0]} --sizes 16x8x15 --repeats 2'
    if 'benchmarks/large_log.py' in command:
      quick = f'{command} --tasks 20 --longest 50'
    if 'benchmarks/environments.py' in command:
      quick = f'{command} --repeats 1 --products 60'
    done = subprocess.run(
      quick, shell=True, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, (quick, done.stderr)
  assert (folder / 'credited.jsonl').exists()
  assert (folder / 'graph.png').exists()
