"""The command line: golden data, output, errors, files left as they were."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from rollouts import attempt_rows, random_rows
from shell import run

from graphgpo_jax import commands
from graphgpo_jax import log as logs
from graphgpo_jax.credit import credit_log

GOLDEN = pathlib.Path(__file__).parent / 'golden'
CONFIGS = pathlib.Path(__file__).parents[1] / 'experiments' / 'configs'
SETS = ('tiny', 'mixed', 'sparse', 'long')


def read(path):
  return [json.loads(line) for line in path.read_bytes().splitlines()]


def golden():
  """The four sets as one log, and their expected numbers by entry."""
  rows, distance, entries = [], [], []
  for name in SETS:
    offset = len(rows)
    for row in read(GOLDEN / f'{name}.rollouts.jsonl'):
      rows.append(row | {'task': f'{name} {row["task"]}'})
    expected = json.loads((GOLDEN / f'{name}.expected.json').read_text())
    distance += expected['distance']
    for index, entry in enumerate(expected['expected']):
      if len(entries) <= index:
        entries.append((entry['scheme'], entry['settings'], [], []))
      scheme, settings, advantage, noisy = entries[index]
      assert (scheme, settings) == (entry['scheme'], entry['settings'])
      advantage += entry['advantage']
      noisy += [offset + i for i in entry.get('noisy_rows', [])]
  return rows, np.array(distance), entries


ROWS, DISTANCE, ENTRIES = golden()
ENTRIES = [e for e in ENTRIES if e[0] in ('grpo', 'gigpo', 'graphgpo')]


@pytest.mark.parametrize('entry', range(26))
def test_published_code_agrees(entry, tmp_path):
  assert len(ENTRIES) == 26 and len(ROWS) == 2755
  scheme, settings, expected, noisy = ENTRIES[entry]
  logs.write_log(tmp_path / 'in.jsonl', ROWS)
  options = [f'--set={k}={v}' for k, v in settings.items()]
  code = run(
    *('credit', tmp_path / 'in.jsonl', '--scheme', scheme),
    *('--preset', 'reference', *options, '--out', tmp_path / 'out.jsonl'),
  )
  assert code == 0
  rows = read(tmp_path / 'out.jsonl')[1:]
  found = np.array([row['advantage'] for row in rows])
  kept = np.setdiff1d(np.arange(len(rows)), noisy)
  np.testing.assert_allclose(found[kept], np.array(expected)[kept], atol=1e-4)
  if scheme == 'graphgpo':
    for i, key in enumerate(('distance', 'next_distance')):
      found = [row[key] for row in rows]
      np.testing.assert_array_equal(found, DISTANCE[:, i])
  else:
    assert 'distance' not in rows[0]


@pytest.fixture
def log(tmp_path):
  path = tmp_path / 'log.jsonl'
  rows = random_rows(1)
  rows[0]['state'] = 'ünïcode 🙂'
  logs.write_log(path, rows, meta={'policy': 'random'})
  return path


def test_output_is_the_input_in_order_plus_results(log, tmp_path):
  out = tmp_path / 'out.jsonl'
  assert run('credit', log, '--out', out) == 0
  before, after = read(log), read(out)
  assert after[0] == before[0]
  for old, new in zip(before[1:], after[1:], strict=True):
    assert list(new) == [*old, 'advantage', 'distance', 'next_distance']
    assert {k: new[k] for k in old} == old
  expected = credit_log(before[1:], 'graphgpo')
  np.testing.assert_allclose([r['advantage'] for r in after[1:]], expected)
  again = tmp_path / 'again.jsonl'  # results are accepted and replaced
  assert run('credit', out, '--out', again) == 0
  assert again.read_bytes() == out.read_bytes()


def test_an_output_that_can_not_be_is_found_before_the_credit(
  log, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(commands, 'run_scheme', None)
  assert run('credit', log, '--out', tmp_path / 'no' / 'x.jsonl') == 2
  assert 'no such folder' in capsys.readouterr().err


def test_output_may_be_the_input(log):
  assert run('credit', log, '--scheme', 'grpo', '--out', log) == 0
  assert 'advantage' in read(log)[1]


def test_settings_reach_the_scheme(log, tmp_path):
  out = tmp_path / 'out.jsonl'
  options = ('--set', 'omega=.8', '--set', 'mode=mean_norm')
  assert run('credit', log, *options, '--out', out) == 0
  rows = read(out)[1:]
  expected = credit_log(read(log)[1:], 'graphgpo', omega=0.8, mode='mean_norm')
  np.testing.assert_allclose([r['advantage'] for r in rows], expected)


def test_own_scheme_by_dotted_path(log, tmp_path, monkeypatch, capsys):
  (tmp_path / 'mine.py').write_text(
    'def half(rollouts, graph, *, weight=0.5):\n'
    '  return weight * rollouts.reward * rollouts.mask\n'
    'def broken(rollouts, graph):\n'
    '  return rollouts.no_such_field\n'
    'def leaves(rollouts, graph):\n'
    '  raise SystemExit(0)\n'
    'def infinite(rollouts, graph):\n'
    '  return rollouts.reward + float("inf")\n'
  )
  (tmp_path / 'leaving.py').write_text('raise SystemExit(0)')
  (tmp_path / 'failing.py').write_text('1 / 0')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  out = tmp_path / 'out.jsonl'
  command = ('credit', log, '--out', out, '--scheme')
  assert run(*command, 'mine:half', '--set', 'weight=2') == 0
  for row in read(out)[1:]:
    assert row['advantage'] == np.float32(2 * row['reward'])
    assert 'distance' in row
  for scheme in ('mine:broken', 'mine:leaves', 'leaving:f', 'failing:f'):
    capsys.readouterr()
    assert run(*command, scheme) == 2
    error = capsys.readouterr().err
    assert error.count('\n') == 1 and scheme in error
  assert run(*command, 'mine:infinite') == 2
  assert "row 2: field 'advantage': found inf" in capsys.readouterr().err
  assert run(*command, 'mine:half', '--preset', 'reference') == 2


WRONG = [
  (
    ['credit', 'LOG', '--scheme', 'nope', '--out', 'OUT'],
    "'nope', allowed: crbc, ",
  ),
  (['credit', 'LOG', '--preset', 'nope', '--out', 'OUT'], 'paper, reference'),
  (['credit', 'LOG', '--set', 'omga=1', '--out', 'OUT'], 'allowed: omega'),
  (['credit', 'LOG', '--set', 'omega=2', '--out', 'OUT'], '0 < omega < 1'),
  (['credit', 'LOG', '--set', 'omega', '--out', 'OUT'], 'KEY=VALUE'),
  (['credit', 'LOG', '--set', 'eps=x', '--out', 'OUT'], "found 'x'"),
  (['credit', 'LOG'], '--out'),
  (['credit', 'MISSING', '--out', 'OUT'], 'MISSING'),
  (['credit', 'LOG', '--out', 'no/such/folder/x'], 'no such folder'),
  (['credit', 'LOG', '--out', '.'], ''),
  (['credit', 'EMPTY', '--out', 'OUT'], 'EMPTY: no steps'),
  (['credit', 'SINGLE', '--out', 'OUT'], 'single attempt'),
  (
    ['credit', 'BROKEN', '--out', 'OUT'],
    "BROKEN: row 3: field 'reward': found",
  ),
  (['stats', 'BROKEN'], "BROKEN: row 3: field 'reward': found"),
  (['stats', 'LOG', '--jsn'], '--jsn'),
  (['draw', 'LOG', '--task', 'x', '--out', 'OUT.png'], "'x', allowed: task 0"),
  (['draw', 'LOG', '--task', 'task 0', '--out', 'OUT'], "suffix '', allow"),
  (
    ['credit', 'LOG', '--set', 'omega={[]:1}', '--out', 'OUT'],
    "found '{[]:1}'",
  ),
  (['credit', 'LOG', '--set', 'eps=' + '1' * 401, '--out', 'OUT'], '1e30'),
  (['draw', 'LOG', '--task', 'task 0', '--out', 'LOG'], 'the log itself'),
  (
    ['draw', 'LOG', '--task', 'x', '--compare', 'grpo,grpo', '--out', 'OUT'],
    'dif',
  ),
  (['nothing'], 'credit'),
  ([], 'COMMAND'),
]


@pytest.mark.parametrize('arguments, message', WRONG)
def test_errors_are_one_line_and_leave_no_file(
  arguments, message, log, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  log.rename('LOG')
  (tmp_path / 'EMPTY').touch()
  logs.write_log('SINGLE', attempt_rows(['a', 'b']))
  rows = random_rows(2)
  rows[1]['reward'] = None
  logs.write_log('BROKEN', rows)
  (tmp_path / 'kept').write_text('before')
  before = sorted(tmp_path.iterdir())
  assert run(*arguments) == 2
  output = capsys.readouterr()
  assert output.out == ''
  assert output.err.startswith('graphgpo: error: ')
  assert output.err.count('\n') == 1
  assert message in output.err
  assert sorted(tmp_path.iterdir()) == before
  if 'OUT' in arguments:
    os.rename('kept', 'OUT')
    run(*arguments)
    assert (tmp_path / 'OUT').read_text() == 'before'


def test_stats_by_hand(tmp_path, capsys):
  # d: b 1, a 2, c 3. Attempt 1 goes a -> c -> a: one step of two is useful.
  rows = attempt_rows(['a', 'b', 'goal'])
  rows += attempt_rows(['a', 'c', 'a'], attempt=1, success=False)
  rows += attempt_rows(['a', 'a', 'b', 'g'], attempt=2)
  for attempt in (0, 1):
    rows += attempt_rows(
      ['x', 'y'], task='unsolved', attempt=attempt, success=False
    )
  logs.write_log(tmp_path / 'log.jsonl', rows)
  assert run('stats', tmp_path / 'log.jsonl', '--json') == 0
  found = json.loads(capsys.readouterr().out)
  assert found == {
    'tasks': 2,
    'attempts': 5,
    'steps': 9,
    'success_rate': 0.4,
    'zero_signal_tasks': 1,
    'tasks_without_success': 1,
    'nodes_per_task': 3.5,  # goal, a, b, c; goal, x, y
    'nodes_per_task_max': 4,
    'edges_per_task': 4.5,
    'edges_per_task_max': 7,
    'singleton_share': pytest.approx(1 / 9),  # c
    'unreachable_share': pytest.approx(2 / 9),
    'distinct_states_per_attempt': pytest.approx((3 + 2 + 3 + 2 + 2) / 5),
    'useful_share_failed': 0.5,
    'useless_share_successful': pytest.approx(1 / 5),
  }
  assert run('stats', tmp_path / 'log.jsonl') == 0
  assert 'success_rate' in capsys.readouterr().out


def test_draw_writes_a_picture(log, tmp_path):
  for options in (('--scheme', 'gigpo'), ('--compare', 'grpo,graphgpo')):
    out = tmp_path / 'picture.png'
    assert run('draw', log, '--task', 'task 0', *options, '--out', out) == 0
    assert out.read_bytes().startswith(b'\x89PNG')


def test_module_runs_as_a_program(log, tmp_path):
  out = tmp_path / 'out.jsonl'
  command = [sys.executable, '-m', 'graphgpo_jax', 'credit', str(log)]
  done = subprocess.run(
    [*command, '--scheme', 'grpo', '--out', str(out)], capture_output=True
  )
  assert (done.returncode, done.stderr) == (0, b'')
  assert 'advantage' in read(out)[1]
  done = subprocess.run(
    [*command, '--scheme', 'x', '--out', str(out)], capture_output=True
  )
  assert done.returncode == 2 and done.stderr.count(b'\n') == 1


def test_closed_output_is_no_error(log):
  command = f'{sys.executable} -m graphgpo_jax stats {log} | true'
  environment = {k: v for k, v in os.environ.items() if k != 'PYTHONUNBUFFERED'}
  done = subprocess.run(
    command, shell=True, capture_output=True, env=environment
  )
  assert (done.returncode, done.stderr) == (0, b'')


def test_tasks_are_counted_by_kind(tmp_path, capsys):
  path = tmp_path / 'small.py'
  config = CONFIGS / 'sokoban_tiny.py'
  path.write_text(f"""
from graphgpo_jax import config as configs
def get_config(kind=''):
  config = configs.load({str(config)!r})
  config.env.factory = 'test_cli:' + (kind or 'two_kinds')
  config.env.settings, config.env.panel = {{}}, {{'count': 1}}
  config.env.train = {{'count': 5}}
  return config
""")
  assert run('tasks', '--config', path) == 0
  assert capsys.readouterr().out == (
    'train  5\n  clean  2\n  heat  3\npanel  1\n  heat  1\n'
  )
  assert run('tasks', '--config', f'{path}:nothing') == 2
  assert capsys.readouterr().err.startswith('graphgpo: error: config.env')
  assert run('tasks', '--config', tmp_path / 'no.py') == 2


def two_kinds(*, count):
  """An environment with tasks of two kinds in turn."""

  class Environment:
    num_tasks = count

    def task_name(self, index):
      return f'{("heat", "clean")[index % 2]}-cup-{index}'

  return Environment()
