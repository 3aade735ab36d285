"""Worker processes that die, hang and raise, and what that costs."""

import contextlib
import functools
import os
import signal
import time

import faulty
import jax
import numpy as np
import pytest
from pools import children, corridor, processes
from small import small_config

from graphgpo_jax import metrics, rollout
from graphgpo_jax import train as trains
from graphgpo_jax.envs import pool as pools
from graphgpo_jax.envs import sokoban
from graphgpo_jax.envs.base import Environment
from graphgpo_jax.envs.pool import Pool
from graphgpo_jax.models.tokenizer import CharTokenizer

KEY = jax.random.key(0)


def keyed(alphabet, letters, before=None):
  """A policy whose letter depends on prompt and key alone."""
  tokenizer = CharTokenizer(alphabet)
  calls = []

  def answer(prompts, keys):
    calls.append(len(prompts))
    if before:
      before(len(calls))
    data = np.asarray(jax.random.key_data(keys))
    said = [
      letters[(int(k[0]) + sum(map(int, p))) % len(letters)]
      for p, k in zip(prompts, data)
    ]
    logps = np.zeros(1, np.float32)
    return [
      rollout.Reply(p, np.array(tokenizer.encode(s)), logps, s)
      for p, s in zip(prompts, said)
    ]

  encode = functools.partial(
    rollout.encode_prompt, tokenizer, limit=99, overflow='error'
  )
  return rollout.Policy(encode, answer)


def plain(steps):
  """What can be compared of transitions."""
  return [
    (s.task, s.attempt, s.step, s.state, s.action, s.next_state, s.reward)
    + (s.success, s.terminal, s.truncated, s.valid, s.score, s.lost)
    + (s.prompt_ids.tolist(),)
    for s in steps
  ]


def collect(env, tasks, letters='rrl', before=None, **options):
  policy = keyed(env.alphabet, letters, before)
  return rollout.collect(policy, env, tasks, key=KEY, **options)


SETTINGS = {'split': 'train', 'seed': 1, 'levels': 12, 'max_steps': 6}


def test_results_depend_neither_on_workers_nor_on_overlap():
  env = sokoban.make(**SETTINGS)
  tasks, letters = [3, 0, 7], 'udlr>'
  expected = plain(collect(env, tasks, letters, attempts=3))
  assert len(expected) > 9
  options = {'attempts': 3, 'overlap': True}
  assert plain(collect(env, tasks, letters, **options)) == expected
  for workers in (1, 2, 3):
    pool = Pool('graphgpo_jax.envs.sokoban:make', SETTINGS, workers=workers)
    with contextlib.closing(pool):
      assert isinstance(pool, Environment)
      for overlap in (False, True):
        found = collect(pool, tasks, letters, attempts=3, overlap=overlap)
        assert plain(found) == expected
      if workers == 3:
        many = [*range(12)] * 3
        assert pool.solutions(many) == list(map(env.solution, many))


def lost(steps):
  """(task, attempt) of what was lost, checked to end as it should."""
  last = {(s.task, s.attempt): s for s in steps}
  for step in steps:
    ends = last[step.task, step.attempt] is step
    assert step.lost <= ends and ends == (step.terminal or step.truncated)
    if step.lost:
      assert step.truncated and not step.terminal and not step.success
      assert step.reward == 0 and step.next_state == step.state
  return {who for who, step in last.items() if step.lost}


@pytest.mark.parametrize('overlap', [False, True])
@pytest.mark.parametrize(
  ('fault', 'words'),
  [
    ('kill', 'ended with exit code -9'),
    ('exit', 'ended with exit code 3'),
    ('abort', 'ended with exit code -6'),
    ('raise', r'raised ZeroDivisionError: over the edge (faulty.py, line'),
    ('hang', 'did not answer in time'),
    ('spin', 'did not answer in time'),
    ('stop', 'did not answer in time'),
  ],
)
def test_a_worker_that_breaks_costs_its_running_attempts_only(
  fault, words, overlap, caplog
):
  # 256 attempts; worker 1 plays the odd tasks, and breaks at the fifth step.
  whole = collect(faulty.make(), [*range(256)], attempts=1)
  running = {who for who, step in odd(whole) if step == 4}
  assert len(running) > 20
  with corridor(2, fault=fault, task=5, at=4, timeout=1.0) as pool:

    def disturb(call):
      if fault == 'kill' and call == 4 * (1 + overlap) + 1:
        os.kill(processes(pool)[1], signal.SIGKILL)

    pool.reset([0, 0])  # both are up
    tasks = [*range(256)]
    steps = collect(pool, tasks, before=disturb, attempts=1, overlap=overlap)
    missing = lost(steps)
    if fault == 'kill':  # one half may still have played its fourth step
      assert running <= missing <= {who for who, step in odd(whole) if step > 2}
    else:
      assert missing == running
      assert f'its {len(missing)} running attempts' in caplog.text
    kept = [s for s in plain(steps) if s[:2] not in missing]
    assert kept == [s for s in plain(whole) if s[:2] not in missing]
    assert words in caplog.text
    # All goes on, on a fresh worker.
    again = collect(pool, [*range(6, 12)], attempts=8)
    assert not lost(again) and len(again) > 48


def odd(steps):
  return {((s.task, s.attempt), s.step) for s in steps if s.task[-1] in '13579'}


def test_training_goes_on_and_counts_what_was_lost(tmp_path):
  config = small_config(tmp_path / 'run', updates=2, evaluation__every=1)
  config.env.update({'factory': 'faulty:make', 'workers': 4, 'timeout': 10.0})
  config.env.settings = {'fault': 'raise', 'at': 1, 'task': 3, 'num_tasks': 4}
  config.env.train, config.env.panel = {}, {}
  config.env.overlap = True
  config.sampling.prompt_lengths = (4,)
  config.warm_start.update({'tasks': 3, 'steps': 2})
  config.batch.attempts = 2
  before = children()
  trains.train(config)
  rows = metrics.read_metrics(tmp_path / 'run' / 'metrics.jsonl')
  updates = [row for row in rows if row['phase'] == 'update']
  assert len(updates) == 2
  for row in updates:
    # The two attempts at task 3 are on two of four workers with two each.
    assert row['attempts_lost'] == 4 and row['attempts'] == 8
    assert row['panel_attempts_lost'] == 1 and row['panel_attempts'] == 4
    assert 0 <= row['score'] < 1 and 0 <= row['panel_score'] < 1
  assert children() == before


@pytest.mark.parametrize('step', [True, False])
def test_an_interrupted_pool_plays_on_after_a_reset(step, monkeypatch):
  with corridor(2) as pool:
    pool.reset([0, 1])
    pids = processes(pool)

    def interrupt(*_):
      raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
      patch.setattr(pools.pickle, 'load', interrupt)
      pool.step([0, 1], ['r', 'r'])
    if step:
      outcomes = pool.step([0, 1], ['r', 'r'])
      assert [outcome.lost for outcome in outcomes] == [True, True]
    pool.reset([0, 1])
    assert not set(processes(pool)) & set(pids)
    assert pool.step([1], ['r'])[0].observation.text == '1'


def test_a_worker_that_does_not_read_is_given_up(monkeypatch):
  with corridor(1, timeout=1.0) as pool:
    pool.reset([0])
    os.kill(processes(pool)[0], signal.SIGSTOP)
    begun = time.monotonic()
    assert pool.step([0], ['r' * 10**7])[0].lost  # more than a socket holds
    assert time.monotonic() - begun < 4


def test_a_reset_that_fails_is_tried_again_once(tmp_path, caplog):
  mark = str(tmp_path / 'mark')
  with corridor(2, fault='reset_once', task=7, mark=mark) as pool:
    assert [o.text for o in pool.reset([6, 7, 8, 9])] == ['0'] * 4
    assert 'no such room' in caplog.text
    assert not any(outcome.lost for outcome in pool.step(range(4), 'rrrr'))
  with corridor(2, fault='reset', task=7, mark=mark) as pool:
    for _ in range(2):
      with pytest.raises(ChildProcessError) as caught:
        pool.reset([6, 7, 8, 9])
      assert 'reset of task 7 (corridor-7): the worker raised KeyError' in str(
        caught.value
      )
    assert len(pool.reset([6, 8])) == 2


def test_what_a_worker_can_not_start_is_named(tmp_path, monkeypatch):
  with corridor(2) as pool:
    monkeypatch.setattr(pool, '_setup', ([], 'nowhere:make', {}))
    with pytest.raises(ChildProcessError, match="No module named 'nowhere'"):
      pool.reset([1, 2])
    monkeypatch.undo()
    monkeypatch.setattr(pool, '_cores', (99999,))
    with pytest.raises(ValueError, match='config.env.cores: core 99999'):
      pool.reset([1])
  with pytest.raises(ValueError, match='move it to a file'):
    Pool('__main__:make', {}, workers=1)
  with pytest.raises(ValueError, match='workers: found 0'):
    Pool('faulty:make', {}, workers=0)


def test_workers_are_light_and_stay_on_their_cores():
  core = min(os.sched_getaffinity(0))
  with corridor(2, factory='faulty:witness', cores=[core]) as pool:
    shown = [o.text for o in pool.reset([0, 0, 0])]
    first, second = processes(pool)
    assert shown == [f'{p} [{core}] []' for p in (first, second, first)]


def test_mistakes_of_the_caller_are_errors():
  with corridor(2, max_steps=1) as pool:
    with pytest.raises(IndexError, match='task 256 of 256'):
      pool.reset([256])
    pool.reset([0, 1])
    with pytest.raises(IndexError, match='slot 2 of 2'):
      pool.step([2], ['r'])
    with pytest.raises(ValueError, match='2 slots, 1 of them distinct'):
      pool.step([1, 1], ['r', 'r'])
    assert pool.step([1], ['r'])[0].truncated
    with pytest.raises(RuntimeError, match='slot 1 has finished'):
      pool.step([1], ['r'])
    pool.close()
    pool.close()
    for call in (lambda: pool.reset([0]), lambda: pool.step([0], ['r'])):
      with pytest.raises(RuntimeError, match='the pool is closed'):
        call()


def test_a_step_that_is_under_way_is_finished_before_the_next_is_checked():
  with corridor(2, max_steps=1) as pool:
    pool.reset([0, 1])
    first = pool.begin_step([0], ['r'])
    with pytest.raises(RuntimeError, match='slot 0 has finished'):
      pool.begin_step([0], ['r'])
    assert first()[0].truncated


def test_one_step_at_a_time_is_under_way():
  with corridor(2) as pool:
    pool.reset([0] * 6)
    first = pool.begin_step([4, 1, 0], ['r', 'l', 'r'])
    second = pool.begin_step([2, 3], ['r', 'x'])
    assert len(pool._under_way) <= 2
    assert [o.observation.text for o in second()] == ['1', '0']
    assert [o.observation.text for o in first()] == ['1', '0', '1']
    assert not pool._outcomes


def test_environment_and_policy_work_at_the_same_time():
  count = 32  # attempts; a step of all takes 0.16 s, and so do the answers

  def seconds(overlap):
    policy = keyed(faulty.Corridor.alphabet, 'l')

    def answer(prompts, keys):
      time.sleep(0.005 * len(prompts))
      return policy.answer(prompts, keys)

    slow = policy._replace(answer=answer)
    begun = time.monotonic()
    options = {'attempts': count, 'key': KEY, 'overlap': overlap}
    steps = rollout.collect(slow, pool, [0], **options)
    return time.monotonic() - begun, plain(steps)

  with corridor(1, seconds=0.005) as pool:
    pool.reset([0])
    apart, expected = seconds(False)
    together, found = seconds(True)
  assert found == expected and len(found) == 6 * count
  assert together < 0.75 * apart, (together, apart)
