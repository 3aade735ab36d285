"""The rollout log and its rules: each broken once; interning and padding."""

import json
import os

import numpy as np
import pytest
from rollouts import attempt_rows, random_rows

from graphgpo_jax import log as logs
from graphgpo_jax import states
from graphgpo_jax.types import Transition


def three_steps():
  rows = attempt_rows(['a', 'b', 'c', 'goal'])
  return rows + attempt_rows(['a', 'c', 'b', 'd'], attempt=1, success=False)


BROKEN = {  # name: (row, changes, row blamed, field blamed)
  'gap': (1, {'step': 2}, 1, 'step'),
  'twice': (2, {'step': 1}, 2, 'step'),
  'negative step': (0, {'step': -1}, 0, 'step'),
  'huge step': (0, {'step': 10**30}, 0, 'step'),
  'broken chain': (4, {'state': 'elsewhere'}, 4, 'state'),
  'after terminal': (4, {'terminal': True}, 4, 'terminal'),
  'after truncated': (4, {'truncated': True}, 4, 'truncated'),
  'both ends': (5, {'truncated': True}, 5, 'truncated'),
  'early success': (1, {'success': True}, 1, 'success'),
  'zero cost': (3, {'cost': 0}, 3, 'cost'),
  'negative cost': (3, {'cost': -1.0}, 3, 'cost'),
  'nan cost': (3, {'cost': float('nan')}, 3, 'cost'),
  'inf cost': (3, {'cost': float('inf')}, 3, 'cost'),
  'cost too small for float32': (3, {'cost': 1e-40}, 3, 'cost'),
  'huge cost': (3, {'cost': 10**400}, 3, 'cost'),
  'nan reward': (0, {'reward': float('nan')}, 0, 'reward'),
  'inf reward': (0, {'reward': -float('inf')}, 0, 'reward'),
  'huge reward': (0, {'reward': 10**400}, 0, 'reward'),
  'reward too small for float32': (0, {'reward': 1e-40}, 0, 'reward'),
  'text reward': (2, {'reward': '1'}, 2, 'reward'),
  'bool reward': (2, {'reward': True}, 2, 'reward'),
  'bool step': (0, {'step': False}, 0, 'step'),
  'float step': (0, {'step': 0.0}, 0, 'step'),
  'bool attempt': (0, {'attempt': True}, 0, 'attempt'),
  'float task': (5, {'task': 1.5}, 5, 'task'),
  'null state': (1, {'state': None}, 1, 'state'),
  'list action': (1, {'action': ['a']}, 1, 'action'),
  'number next_state': (1, {'next_state': 3}, 1, 'next_state'),
  'number flag': (1, {'valid': 1}, 1, 'valid'),
  'text flag': (1, {'success': 'false'}, 1, 'success'),
  'unknown field': (4, {'rewards': 1.0}, 4, 'rewards'),
}


@pytest.mark.parametrize('name', BROKEN)
def test_each_rule_broken_once_names_row_and_field(name, tmp_path):
  index, changes, blamed, field = BROKEN[name]
  rows = three_steps()
  rows[index] |= changes
  with pytest.raises(logs.LogError) as caught:
    states.intern(rows)
  assert (caught.value.row, caught.value.field) == (blamed, field)
  assert 'found' in str(caught.value) and 'allowed' in str(caught.value)


@pytest.mark.parametrize('field', logs.FIELDS)
def test_each_missing_field_is_named(field):
  rows = three_steps()
  del rows[2][field]
  with pytest.raises(logs.LogError) as caught:
    states.intern(rows)
  assert (caught.value.row, caught.value.field) == (2, field)


def test_nothing_at_all_is_an_error():
  with pytest.raises(ValueError, match='no steps'):
    states.intern([])


def test_long_values_are_shortened_in_messages():
  rows = three_steps()
  rows[0]['reward'] = 'x' * 10_000
  with pytest.raises(logs.LogError, match='10002 long') as caught:
    states.intern(rows)
  assert len(str(caught.value)) < 200


def test_interned_by_hand():
  rollouts = states.intern(three_steps())
  assert rollouts.num_nodes == 8  # goal, a, b, c, d -> power of two
  np.testing.assert_array_equal(rollouts.state[0], [[1, 2, 3], [1, 3, 2]])
  np.testing.assert_array_equal(rollouts.next_state[0], [[2, 3, 0], [3, 2, 4]])
  np.testing.assert_array_equal(rollouts.row[0], [[0, 1, 2], [3, 4, 5]])
  np.testing.assert_array_equal(rollouts.episode_return, [[10, 0]])
  np.testing.assert_array_equal(rollouts.truncated, [[False, False]])
  assert len(np.unique(rollouts.action)) == 6


def test_last_step_that_neither_ends_counts_as_truncated():
  rows = three_steps()
  rows[5]['terminal'] = False
  np.testing.assert_array_equal(states.intern(rows).truncated, [[False, True]])
  rows[5]['truncated'] = True
  np.testing.assert_array_equal(states.intern(rows).truncated, [[False, True]])


def test_same_action_text_in_another_state_is_another_action():
  rows = attempt_rows(['a', 'b', 'a', 'b'], success=False)
  for row in rows:
    row['action'] = 'go'
  np.testing.assert_array_equal(states.intern(rows).action, [[[0, 1, 0]]])


def test_row_order_does_not_change_the_batch():
  rows = random_rows(5)
  plain = states.intern(rows)
  order = np.random.default_rng(0).permutation(len(rows))
  # Tasks are numbered by first appearance; keep the first row of each in place.
  first = [
    next(i for i in order if rows[i]['task'] == f'task {t}') for t in range(3)
  ]
  order = [*first, *(i for i in order if i not in first)]
  mixed = states.intern([rows[i] for i in order])
  for name in ('state', 'next_state', 'action', 'reward', 'mask', 'valid'):
    np.testing.assert_array_equal(getattr(plain, name), getattr(mixed, name))
  back = np.append(order, -1)[mixed.row]
  np.testing.assert_array_equal(back, plain.row)


def test_rows_columns_records_and_numpy_are_the_same():
  rows = random_rows(6, costs=True)
  plain = states.intern(rows)
  table = {k: np.array([r[k] for r in rows]) for k in rows[0]}
  scalars = [
    {k: v if isinstance(v, str) else np.array(v)[()] for k, v in row.items()}
    for row in rows
  ]
  records = [Transition(**row) for row in rows]
  for other in (table, scalars, records):
    for name, values in vars(states.intern(other)).items():
      np.testing.assert_array_equal(values, getattr(plain, name))


def test_columns_of_unequal_length_are_refused():
  table = {k: [r[k] for r in three_steps()] for k in logs.FIELDS}
  table['reward'] = table['reward'][:-1]
  with pytest.raises(ValueError, match='unequal length.*reward'):
    states.intern(table)


def test_ids_one_and_the_text_one_are_different():
  rows = attempt_rows(['a', 'b'], task=1, attempt=1)
  rows += attempt_rows(['a', 'b'], task='1', attempt=1)
  rows += attempt_rows(['a', 'b'], task='1', attempt='1')
  assert states.intern(rows).mask.sum((1, 2)).tolist() == [1, 2]
  steps = states.index_steps(logs.columns(rows))
  assert steps.attempts == [[1], [1, '1']]
  assert states.select(steps, [1]).attempts == [[1, '1']]


def test_shapes_that_do_not_fit_say_both_sizes():
  with pytest.raises(ValueError, match=r'\(1, 2, 3, 5\).*\(1, 2, 2, 8\)'):
    states.intern(three_steps(), shapes=(1, 2, 2, None))


def test_equal_returns_from_rewards_in_another_order_are_equal():
  rng = np.random.default_rng(0)
  rewards = np.array([-0.1] * 10 + [1.0, -1.0, 1.0, 10.0])
  cancelling = np.array([-0.1] * 10 + [1.0])
  for values, total in ((rewards, 10.0), (cancelling, 0.0)):
    rows = []
    for attempt in range(8):
      path = [f's{i}' for i in range(len(values) + 1)]
      order = rng.permutation(values).tolist()
      rows += attempt_rows(path, attempt=attempt, rewards=order)
    returns = states.intern(rows).episode_return
    assert np.ptp(returns) <= 1e-6 * abs(total)


def write(path, *lines):
  path.write_bytes(b'\n'.join(lines) + b'\n')
  return path


def encoded(rows):
  return [json.dumps(row).encode() for row in rows]


HEADER = b'{"format": "graphgpo-rollouts", "version": 1, "policy": "x"}'


def test_log_round_trip(tmp_path):
  rows = random_rows(7, costs=True)
  rows[0]['state'] = 'é\u2028😀 "quoted"\n\t\\ \x00'
  logs.write_log(tmp_path / 'a.jsonl', rows, meta={'seed': 3})
  log = logs.read_log(tmp_path / 'a.jsonl')
  assert log.meta == {'seed': 3}
  for name, column in log.table.items():
    assert column == [row.get(name, True) for row in rows]  # credited
  records = [Transition(**row) for row in rows]
  logs.write_log(tmp_path / 'b.jsonl', records, meta={'seed': 3})
  assert logs.read_log(tmp_path / 'b.jsonl').table == log.table


def test_numbers_of_numpy_are_written_as_numbers(tmp_path):
  rows = three_steps()
  changed = [
    row
    | {'reward': np.float32(row['reward']), 'success': np.bool_(row['success'])}
    | {'step': np.int64(row['step'])}
    for row in rows
  ]
  logs.write_log(tmp_path / 'a.jsonl', changed)
  assert logs.read_log(tmp_path / 'a.jsonl').table == logs.columns(rows)


def test_header_is_optional_and_cost_defaults_to_one(tmp_path):
  lines = encoded(three_steps())
  plain = logs.read_log(write(tmp_path / 'a', *lines))
  headed = logs.read_log(write(tmp_path / 'b', HEADER, *lines))
  assert plain.table == headed.table
  assert plain.table['cost'] == [1.0] * 6
  assert headed.meta == {'policy': 'x'} and plain.meta == {}


DAMAGED = {  # name: (lines, message)
  'empty file': ([], 'no steps'),
  'header only': ([HEADER], 'no steps'),
  'binary': ([b'\x00\xff\xfe\x80' * 50], 'row 1: found bytes'),
  'not an object': ([b'[1, 2]'], 'row 1: found .1, 2., allowed: a JSON obj'),
  'empty line': ([HEADER, b''], 'row 2: found an empty line'),
  'deep': ([b'[' * 100_000], 'row 1: '),
  'twice': ([b'{"task": 1, "task": 2}'], "row 1: field 'task': found twice"),
  'version': (
    [b'{"format": "graphgpo-rollouts", "version": 2}'],
    "row 1: field 'version': found 2, allowed: 1",
  ),
  'format': ([b'{"format": "x"}'], "row 1: field 'format': found 'x'"),
  'float version': (
    [b'{"format": "graphgpo-rollouts", "version": 1.0}'],
    "row 1: field 'version': found 1.0",
  ),
  'a step as header': (
    [HEADER[:-1] + b', "task": 1}'],
    "row 1: field 'task': found in the header",
  ),
  'digits': ([b'{"task": ' + b'1' * 5000 + b'}'], 'row 1: found an integer of'),
  'a second header': ([HEADER, HEADER], "row 2: field 'task'"),
}


@pytest.mark.parametrize('name', DAMAGED)
def test_damaged_files_are_refused(name, tmp_path):
  lines, message = DAMAGED[name]
  path = write(tmp_path / 'log.jsonl', *lines) if lines else tmp_path / 'e'
  path.touch()
  with pytest.raises(ValueError, match=message) as caught:
    logs.read_log(path)
  assert str(path) in str(caught.value)


def test_cut_last_line_is_named(tmp_path):
  lines = encoded(three_steps())
  path = tmp_path / 'cut.jsonl'
  path.write_bytes(b'\n'.join([HEADER, *lines])[:-20])
  with pytest.raises(ValueError, match='row 7: found no JSON'):
    logs.read_log(path)


def test_enormous_line_is_refused_without_being_read(tmp_path):
  path = tmp_path / 'big.jsonl'
  with open(path, 'wb') as file:
    file.write(b'{"task": "')
    file.write(b'x' * 100_000_000)
  with pytest.raises(ValueError, match='row 1: longer than 16 MiB'):
    logs.read_log(path)


def test_rows_are_named_by_line_number(tmp_path):
  rows = three_steps()
  rows[3]['reward'] = 'none'
  for lines, number in ((encoded(rows), 4), ([HEADER, *encoded(rows)], 5)):
    with pytest.raises(ValueError, match=f"row {number}: field 'reward'"):
      logs.read_log(write(tmp_path / 'log.jsonl', *lines))


def test_output_keeps_the_mode_of_the_file_it_replaces(tmp_path):
  path = tmp_path / 'log.jsonl'
  path.touch(0o600)
  link = tmp_path / 'link'
  link.symlink_to(path)
  logs.write_log(link, three_steps())
  assert path.stat().st_mode & 0o777 == 0o600
  assert link.is_symlink() and logs.read_log(path).table['step'][:3] == [
    0,
    1,
    2,
  ]


@pytest.mark.parametrize('kind', ['fifo', 'folder', 'loop', 'slash', 'nothing'])
def test_only_plain_files_are_replaced(kind, tmp_path):
  path = tmp_path / 'out'
  if kind == 'fifo':
    os.mkfifo(path)
  elif kind == 'folder':
    path.mkdir()
  elif kind == 'loop':
    path.symlink_to(path)
  wanted = {'slash': f'{path}/', 'nothing': ''}.get(kind, str(path))
  before = sorted(tmp_path.iterdir())
  with pytest.raises(OSError):
    logs.write_log(wanted, three_steps())
  assert sorted(tmp_path.iterdir()) == before


def test_failed_write_leaves_the_old_file(tmp_path):
  path = tmp_path / 'log.jsonl'
  path.write_text('before')
  with pytest.raises(RuntimeError), logs.atomic_write(path) as file:
    file.write('half')
    raise RuntimeError
  assert path.read_text() == 'before'
  assert list(tmp_path.iterdir()) == [path]
