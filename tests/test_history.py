"""Tasks that are played again: which, what is kept, credit, whole runs."""

import functools
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import reference
from rollouts import attempt_rows, random_rows
from small import FILE, small_config
from test_train import numbers, wait_for

from graphgpo_jax import checkpoint, metrics, states
from graphgpo_jax import config as configs
from graphgpo_jax import history as histories
from graphgpo_jax import log as logs
from graphgpo_jax import train as trains
from graphgpo_jax.credit import credit_log
from graphgpo_jax.setup import build
from graphgpo_jax.types import Transition

SIZES = {'tasks': 8, 'after': 3}
RETURN = 4


def draw(number):
  """A new order of 24 tasks every epoch."""
  epoch, index = divmod(number, 24)
  return int(np.random.default_rng([epoch]).permutation(24)[index])


def play(tasks, *, attempts=3, steps=2):
  return [
    Transition(
      *(f'task {task}', attempt, step, f's{step}', 'go', f's{step + 1}', 0.0),
      **{'success': False, 'terminal': False, 'valid': True},
      truncated=step == steps - 1,
      prompt_ids=np.zeros(5),
    )
    for task in tasks
    for attempt in range(attempts)
    for step in range(steps)
  ]


def follow(updates, *, attempts=2):
  """Tasks of every update, and the history after it."""
  history, tasks, found = histories.History(), [], []
  for update in range(updates):
    now, cursor = histories.schedule(history, draw, **SIZES)
    history = histories.remember(
      history._replace(cursor=cursor),
      now[:RETURN],
      play(histories.sharding.mine(now)),
      update=update,
      after=SIZES['after'],
      attempts=attempts,
      task_name='task {}'.format,
    )
    tasks.append(now)
    found.append(history)
  return tasks, found


def as_process(monkeypatch, index, count):
  monkeypatch.setattr(jax, 'process_index', lambda: index)
  monkeypatch.setattr(jax, 'process_count', lambda: count)


def test_half_of_the_tasks_are_those_of_three_updates_ago():
  tasks, _ = follow(20)
  for update, now in enumerate(tasks):
    assert len(now) == len(set(now)) == 8
    waiting = sum((then[:4] for then in tasks[max(update - 3, 0) : update]), [])
    if update < 3:
      assert not set(now) & set(waiting)
      continue
    assert now[4:] == tasks[update - 3][:4]
    assert not set(now[:4]) & set(waiting)
  assert follow(20)[0] == tasks


def test_a_task_comes_back_to_its_process():
  tasks, _ = follow(8)
  for processes in (1, 2, 4):
    for update in range(3, 8):
      for process in range(processes):
        mine = tasks[update][process::processes][-4 // processes :]
        then = tasks[update - 3][process::processes]
        assert mine == then[: 4 // processes]


def test_what_is_kept_is_bounded():
  for update, history in enumerate(follow(12)[1]):
    assert len(history.visits) == min(update + 1, 3)
    for visit in history.visits:
      assert len(visit.tasks) == 4
      assert len(visit.transitions) == 4 * 2 * 2  # tasks, attempts, steps
  step = history.visits[-1].transitions[0]
  assert step.prompt_ids is None and not step.credited
  assert step.attempt == 'update 11, 0'


def test_saved_and_read_by_another_number_of_processes(tmp_path, monkeypatch):
  _, (*_, whole) = follow(5)
  for process in range(2):
    as_process(monkeypatch, process, 2)
    _, (*_, history) = follow(5)
    histories.save(tmp_path, 5, history)
    histories.save(tmp_path, 4, history)
    saved = histories.record(history)
    again = histories.load(tmp_path, 5, saved, 'task {}'.format)
    assert again == history
    histories.clean(tmp_path, [5])
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    '5-0.jsonl',
    '5-1.jsonl',
  ]
  as_process(monkeypatch, 0, 1)
  again = histories.load(tmp_path, 5, saved, 'task {}'.format)
  assert again.cursor == whole.cursor
  for ours, theirs in zip(again.visits, whole.visits, strict=True):
    assert ours.tasks == theirs.tasks
    assert sorted(map(str, ours.transitions)) == sorted(
      map(str, theirs.transitions)
    )
  (tmp_path / '5-1.jsonl').unlink()
  with pytest.raises(ValueError, match='5-1.jsonl: No such file.* 5 the run'):
    histories.load(tmp_path, 5, saved, 'task {}'.format)


def test_a_damaged_file_is_never_half_a_history(tmp_path):
  _, (*_, history) = follow(5)
  histories.save(tmp_path, 5, history)
  saved = histories.record(history)
  path = tmp_path / '5-0.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  assert len(lines) == 1 + 3 * 4 * 2 * 2  # updates, tasks, attempts, steps
  for damaged, words in (
    (lines[:-1], r'5-0.jsonl: found 47 steps, allowed: 48; without the folder'),
    ([*lines[:-1], lines[-1][:9]], '5-0.jsonl: row 49: found no JSON .* of ch'),
    (lines[:1], '5-0.jsonl: no steps.* checkpoint 5 the run goes on'),
  ):
    path.write_bytes(b''.join(damaged))
    with pytest.raises(ValueError, match=words):
      histories.load(tmp_path, 5, saved, 'task {}'.format)
  path.write_bytes(b''.join(lines))
  with pytest.raises(ValueError, match="no step of task 'level .* second vis"):
    histories.load(tmp_path, 5, saved, 'level {}'.format)
  path.write_bytes(b''.join(lines[1:]))  # as runs left it that knew no number
  assert histories.load(tmp_path, 5, saved, 'task {}'.format) == history


def test_nothing_is_left_of_processes_that_are_gone(tmp_path, monkeypatch):
  for process in range(4):
    for position in (4, 5, 6):
      (tmp_path / f'{position}-{process}.jsonl').touch()
  (tmp_path / 'my-notes.jsonl').touch()
  as_process(monkeypatch, 1, 2)
  histories.clean(tmp_path, [5])
  left = {path.stem for path in tmp_path.iterdir()}
  mine = {f'{position}-{process}' for position in (4, 6) for process in (1, 3)}
  assert not left & mine and len(left) == 9
  as_process(monkeypatch, 0, 1)
  histories.clean(tmp_path, [5])
  left = {path.stem for path in tmp_path.iterdir()}
  assert left == {'5-0', '5-1', '5-2', '5-3', 'my-notes'}


def with_history(seed, **settings):
  """Random rows, of which attempts 1 and 4 are those of an earlier visit."""
  rows = random_rows(seed, **settings)
  return [row | {'credited': row['attempt'] not in (1, 4)} for row in rows]


def oracle(rows, *, omega):
  """A_G: distances on all rows, statistics over those that are credited."""
  _, beyond = reference.distances(rows)
  out, groups = np.zeros(len(rows)), {}
  solved = {row['task'] for row in rows if row['success']}
  for n, row in enumerate(rows):
    if row['credited'] and row['task'] in solved:
      groups.setdefault((row['task'], row['state']), []).append(n)
  for members in groups.values():
    length = np.array([beyond[n] + rows[n]['cost'] for n in members])
    excess = np.round(length - length.min(), 6)
    out[members] = reference.z(omega**excess)
  return out


@pytest.mark.parametrize('seed', [0, 3, 4])
def test_earlier_attempts_shape_distances_and_no_statistics(seed):
  rows = with_history(seed, costs=True, success=0.1)
  now = [row for row in rows if row['credited']]
  credited = np.array([row['credited'] for row in rows])
  found = credit_log(rows, 'graphgpo', episode_weight=0.0, omega=0.8)
  np.testing.assert_allclose(found, oracle(rows, omega=0.8), atol=1e-4)
  alone = reference.graph_term(now, omega=0.8)
  assert abs(found[credited] - alone).max() > 0.1  # they do make a difference
  for name in ('trajectories', 'rows'):
    settings = {'step_weight': 0.0, 'episode_statistics': name}
    both = reference.grpo(rows, episode_statistics=name)
    found = credit_log(rows, 'graphgpo', episode_attempts='all', **settings)
    np.testing.assert_allclose(found, both * credited, atol=1e-4)
    found = credit_log(rows, 'graphgpo', **settings)
    one = reference.grpo(now, episode_statistics=name)
    np.testing.assert_allclose(found[credited], one, atol=1e-4)
    assert not found[~credited].any()


def test_a_goal_that_only_the_first_visit_reached_gives_credit():
  first = attempt_rows(['a', 'b', 'goal'], attempt='before')
  second = attempt_rows(['a', 'b'], attempt=0, success=False)
  second += attempt_rows(['a', 'c'], attempt=1, success=False)
  assert not credit_log(second, 'graphgpo').any()
  first = [row | {'credited': False} for row in first]
  found = credit_log(first + second, 'graphgpo', episode_attempts='all')
  # A_E of returns 10, 0, 0: -1 / sqrt(3); A_G of b and c: +-1 / sqrt(2).
  np.testing.assert_allclose(found, [0, 0, 0.1298, -1.2845], atol=1e-4)


def test_a_log_says_which_attempts_are_earlier_ones(tmp_path):
  rows = with_history(4)
  path = tmp_path / 'log.jsonl'
  logs.write_log(path, [Transition(**row) for row in rows])
  lines = path.read_text().splitlines()[1:]
  earlier = sum(not row['credited'] for row in rows)
  assert 0 < sum('credited' in line for line in lines) == earlier < len(rows)
  steps = states.index_steps(logs.read_log(path).table)
  assert states.pad(steps).credited.sum() == len(rows) - earlier
  assert len(states.credited_only(steps).row) == len(rows) - earlier
  at = next(i for i, row in enumerate(rows) if row['step'] == 1)
  rows[at]['credited'] = not rows[at]['credited']
  with pytest.raises(logs.LogError, match='one value for all steps') as caught:
    states.intern(rows)
  assert caught.value.field == 'credited'
  rows[at]['credited'] = 1
  with pytest.raises(logs.LogError, match="'credited': found 1, allowed: true"):
    states.intern(rows)


WRONG = [
  ({'history.tasks': 17}, 'tasks: found 17, allowed: at most 16, half of'),
  ({'history.after': 0}, 'config.history.after: found 0, allowed: .* > 0'),
  (
    {'batch.resample_retries': 1},
    r'history.tasks: found 16, allowed: 0 with dynamic .*retries = 1\)',
  ),
]


@pytest.mark.parametrize('changes, message', WRONG)
def test_impossible_histories_are_refused(changes, message):
  config = configs.load(FILE, 'tigpo')
  configs.check(config)
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=message):
    configs.check(config)


def test_the_config_of_tigpo():
  config = configs.load(FILE, 'tigpo')
  assert config.run_dir == 'runs/sokoban_tiny_tigpo'
  assert config.credit.scheme == 'graphgpo'
  assert config.credit.episode_attempts == 'all'
  config.batch.tasks = 12  # half of it, whatever it is
  assert config.to_dict()['history'] == {
    'tasks': 6,
    'after': 10,
    'attempts': 8,
  }
  config = configs.load(FILE)
  assert config.history.tasks == 0
  assert 'episode_attempts' not in config.credit


def test_more_waiting_tasks_than_there_are_is_refused(tmp_path):
  config = small_config(tmp_path, scheme='tigpo', history__after=30)
  with pytest.raises(ValueError, match='30, with which 62 tasks .* most 48'):
    build(config)


CHANGES = {
  'updates': 5,
  'evaluation__every': 9,
  'history__after': 2,
  'warm_start__steps': 40,
}
PROGRAM = f"""
import sys
sys.path.insert(0, sys.argv[2])
import jax
jax.config.update('jax_num_cpu_devices', 8)
from small import small_config
from graphgpo_jax.train import train
train(small_config(sys.argv[1], scheme='tigpo', **{CHANGES}), resume=True)
"""


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A run that nothing disturbed."""
  folder = tmp_path_factory.mktemp('run') / 'whole'
  config = small_config(folder, scheme='tigpo', **CHANGES)
  trains.train(config)
  return config


def test_a_run_plays_tasks_again(finished):
  rows = numbers(finished.run_dir)[40:]
  assert [row['tasks_revisited'] for row in rows] == [0, 0, 2, 2, 2]
  for row in rows:
    assert row['tasks_trained'] == 4 and row['attempts'] == 16
    assert row['steps_trained'] == row['steps']
    assert 0 <= row['tasks_solved_before_only'] <= row['tasks_revisited']
  folder = pathlib.Path(finished.run_dir)
  log = logs.read_log(folder / 'rollouts.jsonl')
  pairs = zip(log.table['attempt'], log.table['credited'])
  assert {pair for pair in pairs if not pair[1]} == {
    (f'update 3, {i}', False) for i in range(4)
  }
  kept = sorted(path.name for path in (folder / 'history').iterdir())
  assert kept == ['44-0.jsonl', '45-0.jsonl']
  tasks = logs.read_log(folder / 'history' / '45-0.jsonl').table['task']
  assert len(set(tasks)) == 4  # two tasks, two updates


def test_one_compilation_per_run(finished):
  path = pathlib.Path(finished.run_dir) / 'metrics.jsonl'
  counts = [row['compilations'] for row in metrics.read_metrics(path)]
  assert counts[41] == counts[43]  # updates 3 and 4 play tasks again


def test_killed_it_ends_with_the_same_numbers(finished, tmp_path):
  run_dir, tests = tmp_path / 'killed', str(pathlib.Path(__file__).parent)
  program = subprocess.Popen([sys.executable, '-c', PROGRAM, run_dir, tests])
  wait_for(run_dir, 43, program)
  program.kill()
  program.wait()
  config = small_config(run_dir, scheme='tigpo', **CHANGES)
  trains.train(config, resume=True)
  assert numbers(run_dir) == numbers(finished.run_dir)


def test_without_history_it_is_the_same_until_tasks_return(finished, tmp_path):
  changes = CHANGES | {'history__tasks': 0, 'updates': 3}
  off = small_config(tmp_path / 'off', scheme='tigpo', **changes)
  trains.train(off)
  assert not (tmp_path / 'off' / 'history').exists()
  ours, theirs = numbers(off.run_dir), numbers(finished.run_dir)
  for one, other in zip(ours[:42], theirs):
    del one['phase']
    both = {name: other[name] for name in one}
    assert both == pytest.approx(one, rel=1e-4, abs=1e-5)
  assert ours[42]['advantage_mean'] != theirs[42]['advantage_mean']


def test_another_history_forgets_but_the_cursor(finished):
  folder = str(pathlib.Path(finished.run_dir) / 'checkpoints')
  record = checkpoint.read_record(folder)[1] | {'cursor': 16}
  name = build(finished)[0].env.task_name
  read = functools.partial(checkpoint.read_history, finished, 45)
  assert [len(visit.tasks) for visit in read(record, name).visits] == [2, 2]
  record['config']['history']['after'] = 3
  assert read(record, name) == histories.History(16)
  del record['config']['history']  # of a run recorded before
  assert read(record, name) == histories.History(16)
  assert read({}, name) == histories.History()
