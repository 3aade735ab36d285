"""The benchmark scripts run and report what they promise, at a tiny size."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[1] / 'benchmarks' / 'credit.py'


def test_credit_benchmark_reports_every_case(tmp_path):
  path = tmp_path / 'report.json'
  command = [sys.executable, SCRIPT, '--sizes', '2x4x8', '--repeats', '2']
  subprocess.run([*command, '--json', path], check=True, timeout=120)
  report = json.loads(path.read_text())
  assert {'cpus', 'python', 'jax', 'numpy', 'scipy', 'sizes'} <= set(report)
  (found,) = report['sizes']
  schemes, oracles = {'grpo', 'gigpo', 'graphgpo'}, {'oracle ids'}
  oracles |= {'oracle strings'}
  assert set(found['timings']) == {'intern', 'scipy'} | schemes | oracles
  for name, numbers in found['timings'].items():
    assert numbers['runs'] == 2
    assert 0 < numbers['q1_ms'] <= numbers['median_ms'] <= numbers['q3_ms']
    assert numbers['compilations'] == (name in schemes)
  assert set(found['ratios']) == {
    'scipy / graphgpo',
    'oracle ids / graphgpo',
    'oracle strings / intern+graphgpo',
  }
  compared = {f'{name} advantage' for name in oracles | {'scipy'}}
  assert set(found['differences']) == compared | {'scipy distance'}
  assert max(found['differences'].values()) <= 1e-4


def test_walks_are_logs_with_successes_and_failures(monkeypatch):
  monkeypatch.syspath_prepend(SCRIPT.parent)
  import credit as benchmark  # the script, not graphgpo_jax.credit

  rows = benchmark.walks(4, 8, 20, seed=0)
  assert rows == benchmark.walks(4, 8, 20, seed=0)
  assert rows != benchmark.walks(4, 8, 20, seed=1)
  lengths = [len(row['state']) for row in rows]
  assert 100 <= min(lengths) < max(lengths) <= 2000
  assert any(row['success'] and row['step'] < 19 for row in rows)
  assert any(row['truncated'] for row in rows)
  direct = benchmark.ids_only(benchmark.play(4, 8, 20, seed=0))
  interned = benchmark.states.intern(rows)
  assert (direct.mask == interned.mask).all()
  assert (direct.episode_return == interned.episode_return).all()


def test_a_peer_that_differs_stops_the_benchmark(monkeypatch):
  monkeypatch.syspath_prepend(SCRIPT.parent)
  import credit as benchmark

  right = benchmark.scipy_graphgpo

  def wrong(rollouts):
    advantage, distance = right(rollouts)
    return advantage + 1e-3, distance

  monkeypatch.setattr(benchmark, 'scipy_graphgpo', wrong)
  with pytest.raises(RuntimeError, match='2x4x8: ours and a peer differ'):
    benchmark.compare('2x4x8', ['graphgpo'], 1)


def test_large_log_is_credited_and_measured():
  script = SCRIPT.with_name('large_log.py')
  command = [sys.executable, script, '--tasks', '20', '--longest', '50']
  done = subprocess.run(command, check=True, capture_output=True, text=True)
  assert done.stdout.startswith('20 tasks, ') and 'GiB at most' in done.stdout


def test_environments_are_measured(tmp_path):
  path = tmp_path / 'report.json'
  command = [sys.executable, SCRIPT.with_name('environments.py')]
  command += ['--only', 'sokoban,webshop', '--repeats', '1']
  command += ['--products', '60,80', '--json', path]
  subprocess.run(command, check=True, timeout=120)
  report = json.loads(path.read_text())
  for name in ('sokoban', 'webshop'):
    for numbers in (report[name]['steps/s'], report[name]['reset ms']):
      assert 0 < numbers['q1'] <= numbers['median'] <= numbers['q3']
  assert report['sokoban']['images/s of 16 pixels']['runs'] == 1
  for size in (60, 80):
    found = report['webshop'][f'{size} products']
    assert found['built s'] > found['opened s'] > 0
    assert found['search ms']['runs'] > 20


def test_our_side_of_the_throughput_benchmark_loads():
  command = [sys.executable, '-c', 'import ours, throughput']
  subprocess.run(command, check=True, timeout=120, cwd=SCRIPT.parent)
