"""The oracle against golden data, the toy table and hand-typed numbers."""

import json
import math
import pathlib
import random

import numpy as np
import pytest
import reference
import reference_schemes as oracles
from scipy.sparse import csgraph

GOLDEN = pathlib.Path(__file__).parent / 'golden'
NAMES = ('tiny', 'mixed', 'sparse', 'long')
SCHEMES = ('grpo', 'gigpo', 'graphgpo', 'hgpo', 'g2po')
EXPONENTS = ('paper', 'next_distance', 'relative')


def golden(name):
  with open(GOLDEN / f'{name}.rollouts.jsonl') as lines:
    rows = [json.loads(line) for line in lines]
  return rows, json.loads((GOLDEN / f'{name}.expected.json').read_text())


def golden_error(rows, entry):
  """Largest absolute error of one entry, noisy rows left out."""
  settings = {**reference.REFERENCE, **entry['settings']}
  advantage = getattr(reference, entry['scheme'])(rows, **settings)
  error = np.abs(advantage - np.array(entry['advantage']))
  return np.delete(error, entry.get('noisy_rows', [])).max()


def attempt(name, path, success=True, costs=None, invalid=()):
  """Rows of one attempt of task 'x' through the words of path."""
  states = path.split()
  last = len(states) - 2
  return [
    {
      'task': 'x',
      'attempt': name,
      'step': t,
      'state': states[t],
      'action': f'to {states[t + 1]}',
      'next_state': states[t + 1],
      'reward': 10.0 * (success and t == last),
      'cost': costs[t] if costs else 1.0,
      'success': success and t == last,
      'terminal': success and t == last,
      'truncated': not success and t == last,
      'valid': t not in invalid,
    }
    for t in range(last + 1)
  ]


def fork(depth):
  """A state S at this distance with one edge farther, then one edge closer."""
  chain = ' '.join(f's{d}' for d in range(depth - 1, 0, -1))
  return attempt(0, 'S far', False) + attempt(1, f'far S {chain} end')


def step_term(rows, **settings):
  return reference.graphgpo(rows, **{**settings, 'episode_weight': 0})


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize('name', NAMES)
def test_golden_advantages(name, scheme):
  rows, stored = golden(name)
  entries = [e for e in stored['expected'] if e['scheme'] == scheme]
  assert entries
  assert max(golden_error(rows, entry) for entry in entries) < 5e-5


def test_golden_schemes_are_all_compared():
  schemes = {e['scheme'] for n in NAMES for e in golden(n)[1]['expected']}
  assert schemes == set(SCHEMES)


@pytest.mark.parametrize('name', NAMES)
def test_golden_distances(name):
  rows, stored = golden(name)
  ours = np.stack(reference.distances(rows), axis=1)
  np.testing.assert_array_equal(ours, stored['distance'])


def test_noisy_rows_get_zero():
  rows, stored = golden('long')
  noisy = [e for e in stored['expected'] if e.get('noisy_rows')]
  assert noisy
  for entry in noisy:
    settings = {**entry['settings'], 'episode_weight': 0}
    ours = reference.graphgpo(rows, **{**reference.REFERENCE, **settings})
    assert not ours[entry['noisy_rows']].any()


def test_toy_table():
  rows = reference.toy_rows()
  columns = {
    'gigpo': reference.gigpo(rows, episode_weight=0),
    'graphgpo .1': step_term(rows, omega=0.1),
    'graphgpo .8': step_term(rows, omega=0.8),
    'hgpo': reference.hgpo(rows),
    'g2po C1': reference.g2po_terms(rows)[0],
    'crbc': oracles.crbc(rows),
    'graphhca': oracles.graphhca(rows),
  }
  assert tuple(columns) == oracles.COLUMNS
  for name, ours in columns.items():
    expected = oracles.toy_column(name)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-3)


def test_toy_distances_and_episode_term():
  rows = reference.toy_rows()
  depth = {'G': 0, 'B': 1, 'A': 2, 'C': 3, 'D': 4, 'E': 4}
  d_state, d_next = reference.distances(rows)
  assert list(d_state) == [depth[row['state']] for row in rows]
  assert list(d_next) == [depth[row['next_state']] for row in rows]
  sign = [1 if row['attempt'] in ('t0', 't1') else -1 for row in rows]
  expected = np.sqrt(0.75) * np.array(sign)
  np.testing.assert_allclose(reference.grpo(rows), expected, atol=1e-12)


def test_toy_statistics():
  shares = reference.statistics(reference.toy_rows())
  assert shares == {
    'useful_share_failed': 0.0,
    'useless_share_successful': pytest.approx(1 / 6),
  }


def test_statistics_without_success_are_nan():
  shares = reference.statistics(attempt(0, 'A B', success=False))
  assert all(math.isnan(share) for share in shares.values())


@pytest.mark.parametrize(
  'values, expected',
  [
    ([], []),
    ([7.0], [0]),
    ([0.0, 0.0], [0, 0]),
    ([1.0, 1.0 + 9e-7], [0, 0]),
    ([1e9, 1e9 + 1], [0, 0]),
    ([1.0, 1.00001], [-(0.5**0.5), 0.5**0.5]),
    ([-1e-30, 1e-30], [-(0.5**0.5), 0.5**0.5]),
    ([0.0, 0.0, 3.0], [-(3**-0.5), -(3**-0.5), 2 * 3**-0.5]),
  ],
)
def test_z(values, expected):
  np.testing.assert_allclose(reference.z(values), expected, atol=1e-9)


def test_z_options():
  np.testing.assert_allclose(reference.z([0, 2], ddof=0), [-1, 1])
  np.testing.assert_allclose(reference.z([0, 2], mode='mean_norm'), [-1, 1])
  np.testing.assert_allclose(reference.z([0, 2], eps=1, ddof=0), [-0.5, 0.5])


@pytest.mark.parametrize('exponent', EXPONENTS)
@pytest.mark.parametrize('depth', [3, 50, 400])
def test_step_credit_does_not_fade_without_eps(depth, exponent):
  ours = step_term(fork(depth), exponent=exponent)
  np.testing.assert_allclose(ours[[0, 2]], [-(0.5**0.5), 0.5**0.5])
  assert not ours[1] and not ours[3:].any()


@pytest.mark.parametrize(
  'depth, next_distance, paper',
  [(7, 0.619, 0.291), (8, 0.291, 0.046), (10, 0.005, 0.0005)],
)
def test_step_credit_fades_with_eps(depth, next_distance, paper):
  ours = step_term(fork(depth), eps=1e-6, exponent='next_distance')
  np.testing.assert_allclose(
    ours[[0, 2]], [-next_distance, next_distance], 0.03
  )
  ours = step_term(fork(depth), eps=1e-6, exponent='paper')
  np.testing.assert_allclose(ours[[0, 2]], [-paper, paper], 0.03)
  ours = step_term(fork(depth), eps=1e-6, exponent='relative')
  np.testing.assert_allclose(ours[[0, 2]], [-(0.5**0.5), 0.5**0.5], 1e-6)


def test_mean_norm_uses_the_exponent_as_it_stands():
  powers = {'paper': (5, 3), 'next_distance': (4, 2), 'relative': (2, 0)}
  for exponent, (far, near) in powers.items():
    ours = step_term(fork(3), mode='mean_norm', omega=0.5, exponent=exponent)
    half = 5 * (0.5**near - 0.5**far)
    np.testing.assert_allclose(ours[[0, 2]], [-half, half])


def test_penalty_stands_beside_the_uncancelled_power():
  rows = fork(3)
  rows[2]['valid'] = False
  ours = step_term(rows, mode='mean_norm', invalid_action_penalty_in_step=True)
  half = (10 * (0.1**3 - 0.1**5) - 0.1) / 2
  np.testing.assert_allclose(ours[[0, 2]], [-half, half])
  # The penalty of 0.1 outweighs what the better edge returns, 0.01.
  ours = step_term(rows, invalid_action_penalty_in_step=True)
  np.testing.assert_allclose(ours[[0, 2]], [0.5**0.5, -(0.5**0.5)])
  np.testing.assert_array_equal(step_term(rows), step_term(fork(3)))


def test_no_success_leaves_the_step_term_to_the_formula_of_the_exponent():
  rows = attempt(0, 'A B', False, costs=[1.0]) + attempt(1, 'A C', False, [3.0])
  half = 0.5**0.5
  assert not step_term(rows).any()
  assert not step_term(rows, exponent='next_distance').any()
  ours = step_term(rows, exponent='relative')
  np.testing.assert_allclose(ours, [half, -half])
  rows[0]['valid'] = False
  assert not step_term(rows, invalid_action_penalty_in_step=True).any()
  ours = step_term(rows, **reference.REFERENCE)
  np.testing.assert_allclose(ours, [-half, half], rtol=1e-4)


def test_path_lengths_that_tie_give_zero():
  rows = attempt(0, 'A B end', costs=[0.1, 0.2]) + attempt(
    1, 'A end', True, [0.3]
  )
  for exponent in ('paper', 'relative'):
    assert not step_term(rows, exponent=exponent).any()


def test_distances_without_path():
  rows = attempt(0, 'A B end', costs=[2.0, 3.0])
  rows += attempt(1, 'A C C', False, [1.0, 4.0])
  d_state, d_next = reference.raw_distances(rows)
  assert list(d_state) == [5, 3, 5, math.inf]
  assert list(d_next) == [3, 0, math.inf, math.inf]
  d_state, d_next = reference.distances(rows)
  assert list(d_state) == [5, 3, 5, 9] and list(d_next) == [3, 0, 9, 9]
  d_state, d_next = reference.distances(attempt(0, 'A B C', False))
  assert list(d_state) == [1, 1] and list(d_next) == [1, 1]


def test_no_state_text_is_the_goal():
  rows = attempt(0, 'A end') + attempt(1, 'A success', False)
  rows += attempt(2, 'A goal', False) + attempt(3, 'A end', False)
  assert list(reference.distances(rows)[1]) == [0, 2, 2, 2]


@pytest.mark.parametrize('seed', range(20))
def test_distances_against_scipy(seed):
  draw = random.Random(seed)
  rows = []
  for name in range(4):
    walk = [str(draw.randrange(12)) for _ in range(draw.randint(2, 12))]
    costs = [draw.uniform(0.1, 3) for _ in walk]
    rows += attempt(name, ' '.join(walk), name < 2, costs)
  edges = np.full((13, 13), np.inf)
  ends = [12 if row['success'] else int(row['next_state']) for row in rows]
  for row, end in zip(rows, ends):
    state = int(row['state'])
    edges[state, end] = min(edges[state, end], row['cost'])
  to_goal = csgraph.floyd_warshall(edges)[:, 12]
  d_state, d_next = reference.raw_distances(rows)
  states = [int(row['state']) for row in rows]
  np.testing.assert_allclose(d_state, to_goal[states], rtol=1e-12)
  np.testing.assert_allclose(d_next, to_goal[ends], rtol=1e-12)


@pytest.mark.parametrize('preset', [reference.PAPER, reference.REFERENCE])
@pytest.mark.parametrize('scheme', SCHEMES)
def test_row_order_and_other_tasks_change_nothing(scheme, preset):
  rows, _ = golden('tiny')
  rows += reference.toy_rows()
  advantages = getattr(reference, scheme)
  order = random.Random(0).sample(range(len(rows)), len(rows))
  whole = advantages(rows, **preset)
  shuffled = advantages([rows[n] for n in order], **preset)
  np.testing.assert_allclose(shuffled, whole[order], rtol=0, atol=1e-9)
  toy = [n for n, row in enumerate(rows) if row['task'] == 'toy']
  alone = advantages([rows[n] for n in toy], **preset)
  np.testing.assert_allclose(alone, whole[toy], rtol=0, atol=1e-9)


def test_episode_term_counts_attempts_or_rows():
  rows = attempt(0, 'A B C end', invalid=(0, 1)) + attempt(1, 'A B', False)
  rows += attempt('one', 'A B', False, invalid=(0,))
  ours = reference.grpo(rows, mode='mean_norm')
  expected = np.array([9.8, 9.8, 9.8, 0, -0.1]) - 9.7 / 3
  np.testing.assert_allclose(ours, expected)
  ours = reference.grpo(rows, mode='mean_norm', episode_statistics='rows')
  expected = np.array([9.9, 9.9, 10, 0, -0.1]) - 29.7 / 5
  np.testing.assert_allclose(ours, expected)


def test_task_of_a_single_row():
  rows = attempt(0, 'A end', invalid=(0,))
  assert reference.grpo(rows) == [0]
  assert reference.grpo(rows, episode_statistics='rows') == [9.9]


def test_step_return_and_its_penalty():
  rows = attempt(0, 'A B A end', invalid=(0,))
  ours = reference.gigpo(rows, mode='mean_norm', gamma=0.5, episode_weight=0)
  np.testing.assert_allclose(ours, [-3.75, 0, 3.75])
  settings = {'mode': 'mean_norm', 'gamma': 0.5, 'episode_weight': 0}
  settings['invalid_action_penalty_in_step'] = True
  ours = reference.gigpo(rows, **settings)
  np.testing.assert_allclose(ours, [-3.8, 0, 3.8])


def test_weights_and_reward_source():
  rows = reference.toy_rows()
  for row in rows:
    row['reward'] = 1.0
  both = reference.gigpo(rows, reward_source='success')
  np.testing.assert_array_equal(both, reference.gigpo(reference.toy_rows()))
  episode = reference.gigpo(rows, step_weight=0)
  step = reference.gigpo(rows, episode_weight=0)
  ours = reference.gigpo(rows, episode_weight=2, step_weight=-3)
  np.testing.assert_allclose(ours, 2 * episode - 3 * step)


def test_unknown_settings_are_errors():
  with pytest.raises(ValueError, match='gama'):
    reference.gigpo(reference.toy_rows(), gama=0.9)
  with pytest.raises(ValueError, match='exponent'):
    reference.graphgpo(reference.toy_rows(), exponent='papr')
