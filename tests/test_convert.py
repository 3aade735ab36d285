"""Rollouts of verl-agent and Tunix as logs; files that want to do harm.

golden/verl_agent.pth is golden/toy.rollouts.jsonl as torch 2.13 with tensordict
0.10 saves it, in another order of rows:

  rows = [json.loads(line) for line in open('toy.rollouts.jsonl')][1:]
  rows = [rows[i] for i in (8, 3, 0, 11, 5, 2, 9, 1, 7, 4, 10, 6)]
  torch.save({
    'batch': TensorDict({'responses': torch.zeros(12, 4).long()}, [12]),
    'non_tensor_batch': {k: np.array(v, object) for k, v in columns.items()},
    'meta_info': {'temperature': 1.0},
  }, 'verl_agent.pth')

with the columns of `columns` below.
"""

import functools
import itertools

import numpy as np
import pytest
from converted import GOLDEN, TOY, columns, data_proto, pickled, refusal, run

from graphgpo_jax import cli, convert, unpickle, verl_agent
from graphgpo_jax.credit import credit_log


@pytest.fixture
def save(tmp_path):
  return functools.partial(pickled, tmp_path)


def by_step(rows, values):
  return {(row['attempt'], row['step']): v for row, v in zip(rows, values)}


def check_toy(rows):
  """The rows are those of the toy log, but for what is not recorded."""
  order = {(row['attempt'], row['step']): row for row in TOY}
  assert len(rows) == len(TOY)
  for row in rows:
    toy = order[row['attempt'], row['step']]
    won = toy['success']
    lost = {'next_state': 'success'} if won else {'terminal': False}
    assert row == toy | lost
  for scheme in ('graphgpo', 'gigpo', 'hgpo'):
    ours, theirs = (
      by_step(x, credit_log(x, scheme).tolist()) for x in (rows, TOY)
    )
    assert ours == pytest.approx(theirs, abs=1e-6)


def test_file_of_torch_and_tensordict(tmp_path, capsys):
  path = tmp_path / 'verl_agent.pth'
  path.write_bytes((GOLDEN / 'verl_agent.pth').read_bytes())
  check_toy(run(path, 'verl-agent'))
  printed = capsys.readouterr().out
  assert printed == '12 steps, 4 attempts, 2 successful, tasks: 1\n'
  batch = unpickle.build(unpickle.read(path)['batch'])
  responses = unpickle.build(batch['responses'])
  assert responses.dtype == np.int64
  np.testing.assert_array_equal(responses, np.zeros((12, 4)))


@pytest.mark.parametrize('protocol', range(6))
def test_every_protocol(protocol, save):
  check_toy(
    run(save(data_proto(columns(TOY)), protocol=protocol), 'verl-agent')
  )


def test_flat_dictionary_of_lists_and_arrays(save):
  table = columns(TOY, is_action_valid=np.ones(12, bool))
  table['uid'] = np.array(table['uid'])  # of dtype U3
  check_toy(run(save(table), 'verl-agent'))


def test_without_rewards_and_actions(save, capsys):
  table = columns(TOY)
  del table['rewards'], table['text_actions']
  rows = run(save(table), 'verl-agent')
  assert {row['action'] for row in rows} == {''}
  assert [row['reward'] for row in rows] == [row['reward'] for row in TOY]
  assert capsys.readouterr().out.endswith(
    '; no rewards: episode_rewards went to the last steps; no text_actions: '
    "every action is ''\n"
  )


def test_grids_become_texts(save):
  grids = [np.array([[1, 2]]), ((1, 3),)]
  after = np.empty(2, object)
  after[:] = [((np.int64(1), np.int64(3)),), 'success']
  table = columns(TOY[:2], anchor_obs=grids, next_obs=after)
  rows = run(save(table), 'verl-agent')
  states = [(row['state'], row['next_state']) for row in rows]
  assert states == [('[[1, 2]]', '[[1, 3]]'), ('[[1, 3]]', 'success')]


def test_what_can_not_be_built_is_named(save, tmp_path):
  path = save(columns(TOY))
  head = b'\x80\x04}\x8c\x03uid'
  part = b'ctorch\ndevice\n(tR'
  path.write_bytes(head + part + b's.')
  assert refusal(path).startswith("the batch: field 'uid': found torch.device")
  names = [name for name in columns(TOY) if name != 'uid']
  others = b''.join(
    b'\x8c' + bytes([len(name)]) + name.encode() + b']K\x01as' for name in names
  )
  path.write_bytes(head + b']' + part + b'as' + others + b'.')
  assert refusal(path).startswith("row 0: field 'uid': found torch.device, all")


def test_equal_grids_are_one_state(save):
  """-0.0 is 0.0, in grids as in numbers."""
  table = columns(TOY[:2], anchor_obs=[[0.0], [-0.0]])
  table['next_obs'] = [np.array([0.0]), 'success']
  rows = run(save(table), 'verl-agent')
  assert [row['state'] for row in rows] == ['[0.0]', '[0.0]']
  assert rows[0]['next_state'] == '[0.0]'


def test_a_missing_state_is_no_state(save):
  table = columns(TOY, anchor_obs=[None] * 12)
  assert refusal(save(table)).startswith(
    "row 0: field 'anchor_obs': found None, allowed: what was observed"
  )


def test_the_log_must_be_writable_before_anything_is_read(tmp_path):
  path = tmp_path / 'data.pkl'
  path.write_bytes(b'no pickle')
  with pytest.raises(OSError, match='no such folder'):
    convert.convert(path, 'verl-agent', tmp_path / 'no' / 'log.jsonl')
  with pytest.raises(OSError, match='not a plain file'):
    convert.convert(path, 'verl-agent', tmp_path)
  out = tmp_path / 'log.jsonl'
  out.write_text('old')
  with pytest.raises(ValueError, match='no readable pickle'):
    convert.convert(path, 'verl-agent', out)
  assert out.read_text() == 'old'
  assert sorted(p.name for p in tmp_path.iterdir()) == ['data.pkl', 'log.jsonl']


def test_copies_of_rows_are_left_out(save):
  lengths = {'t0': 2, 't1': 4, 't2': 3, 't3': 3}
  rows = TOY + [TOY[3], TOY[10]]  # t3 has copies of a loop
  table = columns(rows, episode_lengths=[lengths[x['attempt']] for x in rows])
  check_toy(run(save(table), 'verl-agent'))
  table['episode_lengths'] = [5 * x for x in table['episode_lengths']]
  assert refusal(save(table)) == (
    "row 0: field 'episode_lengths': found 10, allowed: 2, as many as the "
    'attempt has rows'
  )


LOOPS = [
  TOY[9],
  TOY[10],
  TOY[10] | {'action': 'c4'},
  TOY[11],
]


def test_an_order_that_is_not_the_only_one(save):
  shuffled = [LOOPS[i] for i in (3, 1, 2, 0)]
  assert refusal(save(columns(shuffled))) == (
    "row 0: field 'next_obs': found none or several orders, allowed: one that "
    'orders the steps of the attempt in one way'
  )
  rows = run(save(columns(LOOPS)), 'verl-agent')  # the order of the file
  assert [row['action'] for row in rows] == ['a2', 'c3', 'c4', 'c2']
  rows = run(save(columns(shuffled, step=[3, 1, 2, 0])), 'verl-agent')
  assert [row['action'] for row in rows] == ['a2', 'c3', 'c4', 'c2']


def orders(steps):
  """All orders that chain, as what the steps say, in plain Python."""
  found = set()
  for order in itertools.permutations(row for _, row in steps):
    pairs = zip(order, order[1:])
    if all(one['next_state'] == other['state'] for one, other in pairs):
      found.add(tuple(tuple(row.values()) for row in order))
  return found


def shuffled(path, rng, actions=1):
  """(place, row) of the steps of a path of states, in any order."""
  steps = [
    {'state': state, 'next_state': after, 'action': int(rng.integers(actions))}
    for state, after in itertools.pairwise(path)
  ]
  return [(f'row {i}', steps[i]) for i in rng.permutation(len(steps))]


def test_orders_are_the_oracles():
  rng, seen = np.random.default_rng(0), []
  for _ in range(150):
    path = rng.integers(4, size=rng.integers(3, 7)).tolist()
    steps = shuffled(path, rng, actions=2)
    steps = steps[: len(steps) - (rng.random() < 0.3)]
    expected = orders(steps)
    if verl_agent._chains(steps):
      continue
    seen.append(len(expected))
    if len(expected) == 1:
      found = [tuple(row.values()) for _, row in verl_agent._in_order(steps)]
      assert {tuple(found)} == expected
    else:
      with pytest.raises(ValueError, match='none or several orders'):
        verl_agent._in_order(steps)
  assert min(seen.count(0), seen.count(1), seen.count(2)) > 1


def test_long_attempts_are_ordered_without_looking_at_all_of_them():
  """With a search of all that is left at every fork this takes minutes."""
  path = [f'{name}{i}' for i in range(2000) for name in 'aba']
  ordered = verl_agent._in_order(shuffled(path, np.random.default_rng(0)))
  assert [row['state'] for _, row in ordered] == path[:-1]


def test_a_missing_step(save):
  kept = [TOY[2], TOY[4], TOY[5]]
  assert "row 0: field 'next_obs'" in refusal(save(columns(kept)))


@pytest.mark.parametrize(
  'name, values, words',
  [
    ('uid', None, "the batch: field 'uid': found nothing, the field is req"),
    ('next_obs', None, "the batch: field 'next_obs': found nothing"),
    ('uid', [1.5] * 12, "row 0: field 'uid': found 1.5, allowed: a string"),
    ('rewards', [float('nan')] * 12, "row 0: field 'rewards': found nan"),
    ('rewards', ['x'] * 12, "row 0: field 'rewards': found 'x', allowed: a"),
    ('is_action_valid', [0.5] * 12, "row 0: field 'is_action_valid': found"),
    ('is_action_valid', [True], "found columns of the lengths {'uid': 12"),
    ('step', [1.5] * 12, "row 0: field 'step': found 1.5, allowed: an int"),
    ('anchor_obs', [{1: 2}] * 12, "row 0: field 'anchor_obs': found a value"),
    ('text_actions', 'abc', "the batch: field 'text_actions': found 'abc'"),
    (
      'episode_rewards',
      [*range(12)],
      "row 1: field 'episode_rewards': found 1, ",
    ),
    ('next_obs', ['B'] * 12, "row 1: field 'next_obs': found 'B', allowed: 's"),
  ],
)
def test_wrong_columns(name, values, words, save):
  table = columns(TOY, **{name: values})
  assert refusal(save(table)).startswith(words)


def test_success_of_partial_rewards(save):
  table = columns(TOY[:2], episode_rewards=[np.float32(0.7)] * 2)
  path = save(table)
  assert run(path, 'verl-agent', success_reward=0.7)[1]['success']
  assert refusal(path, success_reward=0.8).startswith(
    "row 1: field 'next_obs': found 'success', allowed: a state, since epi"
  )
  path = save(table | {'next_obs': ['B', 'G']})
  assert refusal(path).startswith(
    "row 1: field 'next_obs': found 'G', allowed: 'success', since episode_"
  )
  assert not run(path, 'verl-agent', success_reward=0.8)[1]['success']


def test_command_line(tmp_path, capsys):
  path = tmp_path / 'data.jsonl'
  path.write_text('{}\n')
  good = ['convert', str(path), '--from', 'tunix', '--out']
  for arguments, words in (
    ([*good, str(path)], 'found the file to read, allowed: another one'),
    ([*good, 'x', '--success-reward', 'nan'], 'found nan, allowed: a finite'),
    ([*good, 'x', '--success-reward', 'y'], "invalid float value: 'y'"),
    (['convert', 'x', '--from', 'tunix', '--out', 'y'], 'No such file'),
    (['convert', 'x', '--from', 'trl', '--out', 'y'], "choice: 'trl'"),
  ):
    with pytest.raises(SystemExit) as end:
      cli.main(arguments)
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert words in printed and printed.count('\n') == 1
