"""Two processes do what one does; a missing one is reported."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest
from small import small_config

from graphgpo_jax import metrics
from graphgpo_jax.train import train

PROGRAM = """
import sys
import jax
from graphgpo_jax import cli, distribute
jax.config.update('jax_num_cpu_devices', 4)
distribute.TIMEOUT = int(sys.argv[3])
try:
  distribute.start()
except (ValueError, OSError) as problem:
  cli.fail('run.py', problem)
sys.path.insert(0, sys.argv[2])
from small import small_config
from graphgpo_jax.train import train
changes = eval(sys.argv[4])
train(small_config(sys.argv[1], **changes), resume=True)
"""
# One mini-batch per update: processes shuffle their own steps.
CHANGES = {
  'batch__mini_batch_steps': 128,
  'batch__resample_retries': 1,
  'loss__kl_coefficient': 0.01,
  'sampling__max_new_tokens': 2,
  'batch__row_length': 80,
}


def start(run_dir, number, port, *, timeout=60, changes=CHANGES, **env):
  known = {
    'JAX_COORDINATOR_ADDRESS': f'127.0.0.1:{port}',
    'JAX_NUM_PROCESSES': '2',
    'JAX_PROCESS_ID': str(number),
  }
  tests = str(pathlib.Path(__file__).parent)
  arguments = [str(run_dir), tests, str(timeout), repr(changes)]
  return subprocess.Popen(
    [sys.executable, '-c', PROGRAM, *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | known | env,
  )


def free_port():
  with socket.socket() as listener:
    listener.bind(('127.0.0.1', 0))
    return listener.getsockname()[1]


def run_two(run_dir, changes=CHANGES):
  port = free_port()
  programs = [start(run_dir, i, port, changes=changes) for i in range(2)]
  outputs = [program.communicate(timeout=300) for program in programs]
  assert [p.returncode for p in programs] == [0, 0], outputs
  return outputs


def rows(run_dir):
  return metrics.read_metrics(pathlib.Path(run_dir) / 'metrics.jsonl')


def test_two_processes_equal_one(tmp_path):
  config = small_config(tmp_path / 'one', **CHANGES)
  train(config)
  outputs = run_two(tmp_path / 'two', CHANGES | {'updates': 1})
  assert 'update' in outputs[0][0]  # only the first one speaks
  assert 'update' not in outputs[1][0]
  run_two(tmp_path / 'two')  # and resumes
  one, two = rows(tmp_path / 'one'), rows(tmp_path / 'two')
  assert len(one) == len(two) == 7
  for ours, theirs in zip(one, two):
    assert ours.keys() <= theirs.keys()  # it stopped once, and evaluated
    for name, value in ours.items():
      if isinstance(value, str):
        assert theirs[name] == value
      elif 'second' not in name and name != 'compilations':
        assert theirs[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_a_missing_process_is_reported(tmp_path):
  program = start(tmp_path, 0, free_port(), timeout=5)
  output, error = program.communicate(timeout=120)
  assert program.returncode == 2, (output, error)
  assert 'not all processes came to 127.0.0.1:' in error
  assert 'within 5 s' in error


def test_an_unclear_environment_is_reported(tmp_path):
  program = start(tmp_path, 0, free_port(), JAX_NUM_PROCESSES='many')
  _, error = program.communicate(timeout=120)
  assert program.returncode == 2
  assert "JAX_NUM_PROCESSES: found 'many', allowed: a number" in error
