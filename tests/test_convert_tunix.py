"""Tunix trajectories as logs."""

import json

import pytest
from converted import TOTALS, TOY, refusal, run

from graphgpo_jax import convert
from graphgpo_jax import log as logs


def trajectory(attempt, **others):
  """A toy attempt as Tunix's Trajectory.to_dict() has it."""
  rows = [row for row in TOY if row['attempt'] == attempt]
  steps = [
    {
      'chat_completions': [],
      'thought': '',
      'action': {'action': row['action']},
      'observation': row['next_state'],
      'model_response': row['action'],
      'info': {'success': row['success']},
      'reward': row['reward'],
      'done': row['terminal'],
      'mc_return': 0.0,
      'assistant_tokens': [1, 2],
      'logprobs': None,
    }
    for row in rows
  ]
  return {
    'task': {'prompts': [rows[0]['state']]},
    'steps': steps,
    'reward': sum(row['reward'] for row in rows),
    'status': 'SUCCEEDED',
    **others,
  }


@pytest.fixture
def lines(tmp_path):
  def save(*records):
    path = tmp_path / 'data.jsonl'
    path.write_text(''.join(json.dumps(x) + '\n' for x in records))
    return path

  return save


@pytest.mark.parametrize('option', [{}, {'success_reward': 10}])
def test_tunix_trajectories(option, lines):
  path = lines(*map(trajectory, TOTALS))
  rows = run(path, 'tunix', **option)
  numbers = {name: number for number, name in enumerate(TOTALS)}
  expected = [
    row | {'task': 'A', 'attempt': numbers[row['attempt']]} for row in TOY
  ]
  assert rows == expected


def test_tunix_items_have_names(lines):
  items = [
    {
      'pair_index': pair,
      'group_id': 7,
      'start_step': 0,
      'metadata': {},
      'traj': trajectory(name),
    }
    for pair, name in ((5, 't2'), (3, 't0'))
  ]
  rows = run(lines(*items), 'tunix')
  assert {row['task'] for row in rows} == {7}
  assert [row['attempt'] for row in rows] == [5, 5, 5, 3, 3]


def test_tunix_ends(lines, capsys):
  """Cut off; never answered; nothing at all; done without success."""
  cut = trajectory('t2', status='MAX_STEPS_REACHED')
  hung = trajectory('t3', status='TrajectoryStatus.ENV_TIMEOUT')
  hung['steps'][-1]['observation'] = None
  none = trajectory('t0', steps=[], status='MAX_CONTEXT_LIMIT_REACHED')
  rows = run(
    lines(cut, hung, none, trajectory('t2')), 'tunix', success_reward=1
  )
  ends = [(row['terminal'], row['truncated']) for row in rows]
  go = (False, False)
  assert ends == [
    go,
    go,
    (False, True),
    go,
    (False, True),
    go,
    go,
    (True, False),
  ]
  printed = capsys.readouterr().out
  assert printed.endswith('; trajectories without a step, left out: 1\n')


def test_a_step_without_an_answer_leaves_its_reward_to_the_one_before(lines):
  """Tunix cuts off at the context limit after the model has spoken."""
  for status in ('MAX_CONTEXT_LIMIT_REACHED', 'ENV_TIMEOUT', 'FAILED'):
    cut = trajectory('t3', status=status)
    cut['steps'][-1] |= {'observation': None, 'reward': 0.5, 'info': {}}
    rows = run(lines(cut), 'tunix', success_reward=1)
    assert [row['reward'] for row in rows] == [0, 0.5]
    assert [row['truncated'] for row in rows] == [False, True]
    cut['steps'][-1]['reward'] = 'x'
    words = refusal(lines(cut), 'tunix', success_reward=1)
    assert words.startswith("line 1, step 2: field 'reward': found 'x'")


def test_a_state_that_nobody_saw_is_refused(lines):
  middle, end, first = map(trajectory, ('t3', 't3', 't3'))
  middle['steps'][0]['observation'] = {'prompts': [None]}
  end['steps'][-1]['observation'] = None  # though it SUCCEEDED
  first['task'] = None
  for record, words in (
    (middle, "line 1, step 0: field 'observation': found None, allowed: what"),
    (end, "line 1, step 2: field 'observation': found None"),
    (first, "line 1: field 'task': found None"),
  ):
    assert refusal(lines(record), 'tunix').startswith(words)
  silent = trajectory('t3')
  silent['steps'][0]['action'] = None  # no action was found in the reply
  assert run(lines(silent), 'tunix')[0]['action'] == 'null'


def test_nothing_is_written_that_the_log_refuses(lines, monkeypatch):
  path = lines(trajectory('t0', group_id=10**400))
  assert refusal(path, 'tunix').startswith(
    "line 1: field 'group_id': found a value of type int, allowed: a string or"
  )
  path = lines(trajectory('t0', group_id=10**400 - 1))
  assert logs.columns(run(path, 'tunix'))['task'] == [10**400 - 1] * 2
  monkeypatch.setattr(logs, 'LINE_LIMIT', 1 << 11)
  run(lines(trajectory('t0')), 'tunix')
  assert refusal(lines(trajectory('t0', task='\u00e9' * 400)), 'tunix') == (
    'line 1, step 0: found 804 characters in state, action, next_state, task, '
    'attempt, allowed: a line of 0 MiB'
  )


def test_lines_without_end_and_names_given_twice_are_refused(
  lines, monkeypatch
):
  path = lines()
  path.write_text('{"task": 1, "task": 2}\n')
  assert refusal(path, 'tunix') == (
    "line 1: found no JSON (field 'task': found twice, allowed: once)"
  )
  monkeypatch.setattr(convert, 'LINE_LIMIT', 1 << 20)
  path.write_bytes(bytes((1 << 20) + 1))
  assert refusal(path, 'tunix') == 'line 1: found more than 1 MiB'


def test_tunix_plain_steps(lines):
  """No more than task, observation, action and reward; any JSON as state."""
  first = {'task': {'map': 1}, 'steps': [
    {'observation': {'b': 1, 'a': [2]}, 'action': ['go', 1], 'reward': 1}
  ]}  # fmt: skip
  (row,) = run(lines(first), 'tunix', success_reward=1)
  assert row == {
    'task': '{"map": 1}',
    'attempt': 0,
    'step': 0,
    'state': '{"map": 1}',
    'action': '["go", 1]',
    'next_state': '{"a": [2], "b": 1}',
    'reward': 1,
    'success': True,
    'terminal': True,
    'truncated': False,
    'valid': True,
  }


@pytest.mark.parametrize(
  'change, words',
  [
    ({'task': None, 'steps': 3}, "line 2: field 'steps': found 3, allowed: a"),
    ({'steps': [{}]}, "line 2, step 0: field 'observation': found nothing"),
    ({'steps': [1]}, "line 2: field 'steps': found a value of type list"),
    ({'traj': 3}, "line 2: field 'traj': found 3, allowed: an object"),
    ({'status': 'DONE'}, "line 2: field 'status': found 'DONE', allowed: ENV_"),
    (
      {'status': 5},
      "line 2: field 'status': found 5, allowed: ENV_TIMEOUT, FA",
    ),
    ({'group_id': 1.5}, "line 2: field 'group_id': found 1.5, allowed: a str"),
  ],
)
def test_wrong_trajectories(change, words, lines):
  path = lines(trajectory('t0'), trajectory('t2') | change)
  assert refusal(path, 'tunix').startswith(words)


def test_wrong_steps_of_a_trajectory(lines):
  for name, value, words in (
    ('reward', 'x', "field 'reward': found 'x', allowed: a finite number"),
    ('reward', float('inf'), "field 'reward': found inf"),
    ('info', {'valid': 2}, "field 'info.valid': found 2, allowed: true or"),
  ):
    wrong = trajectory('t0')
    wrong['steps'][0][name] = value
    expected = f'line 1, step 0: {words}'
    assert refusal(lines(wrong), 'tunix').startswith(expected)
  wrong = trajectory('t0')
  wrong['steps'][-1]['info'] = {}
  assert refusal(lines(wrong), 'tunix') == (
    "line 1: field 'info.success': found nothing, required on the last step "
    'where no success reward is given'
  )
  again = trajectory('t0', pair_index=0, group_id=0)
  assert refusal(lines(again, again), 'tunix').startswith(
    "line 2, step 0: field 'step': found 0, allowed: 1: steps of"
  )
  path = lines()
  path.write_text('{"task"\n')
  assert refusal(path, 'tunix').startswith('line 1: found no JSON (')
