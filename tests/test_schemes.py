"""The family of schemes: check table, golden data, oracles, identities."""

import collections
import inspect
import json
import pathlib
import re

import numpy as np
import pytest
import reference
import reference_schemes as oracles
from credited import SHAPE, STEP_TERM, batch, found
from rollouts import attempt_rows, random_rows

from graphgpo_jax import credit as credits
from graphgpo_jax import graph as graphs
from graphgpo_jax import log as logs
from graphgpo_jax import states
from graphgpo_jax.credit import credit_log, rewardflow, settings

GOLDEN = pathlib.Path(__file__).parent / 'golden'
README = pathlib.Path(__file__).parents[1] / 'README.md'


def test_toy_table():
  rows = reference.toy_rows()
  columns = {
    'hgpo': found(rows, 'hgpo'),
    'crbc': found(rows, 'crbc', **STEP_TERM),
    'graphhca': found(rows, 'graphhca', **STEP_TERM),
    # The scheme returns C1 + C2; C2 is the oracle's.
    'g2po C1': found(rows, 'g2po', **STEP_TERM) - reference.g2po_terms(rows)[1],
  }
  for name, credit in columns.items():
    expected = oracles.toy_column(name)
    np.testing.assert_allclose(credit, expected, atol=1e-4, err_msg=name)


def golden():
  """(rows, entries) of the four sets, and a shape that all of them fit."""
  sets, sizes = [], []
  for name in ('tiny', 'mixed', 'sparse', 'long'):
    with open(GOLDEN / f'{name}.rollouts.jsonl') as lines:
      rows = [json.loads(line) for line in lines]
    stored = json.loads((GOLDEN / f'{name}.expected.json').read_text())
    steps = states.index_steps(logs.columns(rows))
    sets.append((rows, stored['expected']))
    sizes.append((len(steps.tasks), *steps.sizes().max(0)))
  return sets, tuple(map(int, np.max(sizes, 0)))


def test_golden_numbers_of_the_published_code():
  sets, shapes = golden()
  seen = collections.Counter()
  for rows, entries in sets:
    for entry in entries:
      scheme, settings = entry['scheme'], entry['settings']
      if scheme not in ('hgpo', 'g2po'):
        continue
      ours = found(rows, scheme, shapes, preset='reference', **settings)
      off = abs(ours - np.array(entry['advantage']))
      assert np.delete(off, entry.get('noisy_rows', [])).max() < 1e-3
      seen[scheme, settings.get('history')] += 1
  assert seen == {('hgpo', 2): 8, ('hgpo', 4): 8, ('g2po', None): 8}


ORACLES = [
  ('rloo', {}),
  ('dr_grpo', {}),
  ('hgpo', {'history': 3, 'length_weight_alpha': 0.5}),
  ('hgpo', {'gamma': 1.0, 'invalid_action_penalty_in_step': True}),
  ('g2po', {'gamma': 0.7, 'episode_weight': 0.3, 'step_weight': 2.0}),
  ('crbc', STEP_TERM),
  ('crbc', STEP_TERM | {'beta': 0.5, 'sigma_floor': 0.01}),
  ('graphhca', STEP_TERM),
  ('graphhca', STEP_TERM | {'discount': 0.8, 'floor': 0.1}),
  ('graphhca', STEP_TERM | {'power': 3.0}),
  ('rewardflow', STEP_TERM),
  ('rewardflow', STEP_TERM | {'gamma': 0.5, 'success_reward': 3.0}),
  ('gagpo', {}),
  ('gagpo', {'gamma': 0.8, 'lam': 0.3}),
  ('progress', {'all_fail_share': 0.5}),
]


@pytest.mark.parametrize('scheme, settings', ORACLES)
def test_equals_the_slow_oracle(scheme, settings):
  own, same = getattr(reference, scheme, None), settings
  if own is None:  # oracles of the step term take no weights
    own = getattr(oracles, scheme)
    same = {k: v for k, v in settings.items() if k not in STEP_TERM}
  for seed, costs in ((0, False), (1, True), (2, True)):
    rows = random_rows(seed, tasks=5, costs=costs)
    ours, expected = found(rows, scheme, **settings), own(rows, **same)
    assert expected.any()
    np.testing.assert_allclose(ours, expected, atol=2e-5)


@pytest.mark.parametrize(
  'returns', [(10, 9, 8), (9.9, 9.8, 9.7), (100.1, 100.0, 99.9)]
)
def test_a_return_that_is_the_mean_but_for_rounding_weighs_nothing(returns):
  rows = []
  for attempt, (first, value) in enumerate(zip('QQR', returns)):
    path, rewards = [first, 'X', 'end'], [0.0, value]
    rows += attempt_rows(path, attempt=attempt, rewards=rewards)
  # At X, A_1 is (high, 0, -high) and A_2 (1, -1, 0).
  options, high = {'gamma': 1.0, 'history': 1}, 1.5**0.5
  expected = [(2 * high + 3) / 5, -1, -high]
  centred = options | {'mode': 'mean_norm'}
  for ours, raw in (
    (found(rows, 'hgpo', **options), found(rows, 'hgpo', **centred)),
    (reference.hgpo(rows, **options), reference.hgpo(rows, **centred)),
  ):
    np.testing.assert_allclose(ours[[1, 3, 5]], expected, atol=1e-3)
    np.testing.assert_allclose(raw[3], (returns[1] - returns[0]) / 2, rtol=1e-3)


def test_base_group_of_an_average_attempt_weighs_nothing():
  rows = []
  for attempt, value in enumerate((9.9, 9.8, 9.7)):
    path = ['X', f'{"YYZ"[attempt]}', 'end']
    rows += attempt_rows(path, attempt=attempt, rewards=[0.0, value])
  ours = found(rows, 'hgpo', gamma=1.0, history=0, base_group=True)
  np.testing.assert_allclose(ours[[2, 3]], [0, -1], atol=1e-4)


def test_progress_takes_the_share_of_tasks_without_success_from_the_log():
  rows = random_rows(6, tasks=4)  # in the third no attempt succeeds
  solved = {row['task'] for row in rows if row['success']}
  assert len(solved) == 3
  lost = [row['task'] not in solved for row in rows]
  quarter = credit_log(rows, 'progress')
  whole = credit_log(rows, 'progress', all_fail_share=1.0)
  assert whole[lost].any()
  np.testing.assert_allclose(quarter[lost], whole[lost] / 4, rtol=1e-5)
  np.testing.assert_array_equal(
    np.delete(quarter, np.flatnonzero(lost)),
    np.delete(credit_log(rows, 'grpo'), np.flatnonzero(lost)),
  )


def test_another_share_compiles_nothing_anew():
  rows = random_rows(6, tasks=4)
  others = [row for row in rows if row['task'] != 'task 3']
  others += [
    row | {'task': 'task 3'} for row in rows if row['task'] == 'task 2'
  ]
  credits.credit.clear_cache()
  shares = set()
  for table in (rows, others):
    steps = states.index_steps(logs.columns(table))
    credit_fn = credits.bind('progress')
    credits.credit_steps(steps, credit_fn)
    shares.update(credits.shared_settings(steps, credit_fn).values())
  assert shares == {0.25, 0.5} and credits.credit._cache_size() == 1
  chosen = credits.bind('progress', all_fail_share=0.3)
  assert credits.shared_settings(steps, chosen) == {}
  assert credits.shared_settings(steps, credits.bind('grpo')) == {}


def test_base_group_adds_the_episode_term_as_a_level():
  rows = random_rows(4, tasks=5)
  episode = reference.grpo(rows)
  for history, alpha in ((0, 1.0), (2, 1.0)):
    settings = {'history': history, 'length_weight_alpha': alpha}
    ours = found(rows, 'hgpo', base_group=True, **settings)
    plain = reference.hgpo(rows, **settings)
    alone = (plain == 0) & (episode != 0)
    np.testing.assert_allclose(ours[alone], episode[alone], atol=1e-5)
    if history == 0:
      both = (plain != 0) & (episode != 0)
      mixed = (2 * plain + episode) / 3
      np.testing.assert_allclose(ours[both], mixed[both], atol=1e-5)
    assert alone.any()


def test_rloo_is_dr_grpo_times_m_over_m_minus_1():
  rows = random_rows(5, tasks=5)
  rows = [r for r in rows if r['task'] != 'task 1' or r['attempt'] < 2]
  many = np.array([2 if row['task'] == 'task 1' else 5 for row in rows])
  centred = found(rows, 'dr_grpo')
  assert centred[many == 2].any() and centred[many == 5].any()
  np.testing.assert_allclose(
    found(rows, 'rloo'), centred * many / (many - 1), rtol=1e-5
  )


def test_hgpo_without_history_is_gigpo_up_to_ddof():
  rows = random_rows(7, tasks=5)
  sizes = np.zeros(len(rows))
  for members in oracles.groups(rows, 'task', 'state'):
    sizes[members] = len(members)
  step = found(rows, 'gigpo', **STEP_TERM)
  expected = step * np.sqrt(sizes / np.maximum(sizes - 1, 1))
  np.testing.assert_allclose(
    found(rows, 'hgpo', history=0), expected, atol=1e-5
  )


def test_rewardflow_of_a_terminal_reward_is_a_discounted_distance():
  rows, rollouts, graph = batch(8)
  found = rewardflow._state_values(
    rollouts, graph, gamma=0.9, reward_source='success', success_reward=10.0
  )
  ways = graphs.without_failed_ends(graph)
  distance = graphs.goal_distances(ways, steps=SHAPE[2])
  assert np.isfinite(distance).sum() > 20
  np.testing.assert_allclose(found, 10 * 0.9**distance, rtol=2e-6)


@pytest.mark.parametrize('scheme', credits.schemes())
def test_uncredited_steps_get_nothing(scheme):
  rollouts = states.intern(random_rows(13, tasks=5), shapes=SHAPE)
  history = np.arange(5)[None, :, None] < 2
  rollouts = rollouts.replace(credited=rollouts.mask & ~history)
  credit_fn = credits.bind(scheme)
  answer = credits.credit(rollouts, credit_fn=credit_fn)['advantage']
  assert not np.asarray(answer)[:, :2].any()
  assert np.asarray(answer)[:, 2:].any() and np.isfinite(answer).all()


def test_a_new_scheme_is_one_file(tmp_path, monkeypatch):
  (tmp_path / 'bonus.py').write_text(
    'def advantages(rollouts, graph, *, weight=2.0):\n'
    '  return weight * rollouts.reward * rollouts.mask\n'
  )
  monkeypatch.setattr(credits, '__path__', [*credits.__path__, str(tmp_path)])
  rows = random_rows(15, tasks=5)
  assert 'bonus' in credits.schemes()
  expected = [3 * row['reward'] for row in rows]
  np.testing.assert_allclose(found(rows, 'bonus', weight=3.0), expected, 1e-6)
  with pytest.raises(ValueError, match="'omega': unknown, allowed: weight"):
    credits.bind('bonus', omega=0.5)


def test_every_setting_of_every_scheme_is_checked():
  known = set(settings.CHOICES) | set(settings.RANGES)
  for name in credits.schemes():
    assert set(credits._keys(credits.load(name))) <= known, name
  assert not {'check', 'settings'} & set(credits.schemes())


def defaults():
  """{setting: {scheme: its default}}, from the signatures."""
  found = collections.defaultdict(dict)
  for name in credits.schemes():
    parameters = inspect.signature(credits.load(name)).parameters.values()
    for parameter in parameters:
      if parameter.kind is parameter.KEYWORD_ONLY:
        found[parameter.name][name] = parameter.default
  return found


def shows(cell, value):
  if isinstance(value, float):
    return float(cell) == value
  return cell == str(value)


def test_settings_table_of_the_readme_says_what_the_signatures_say():
  taken, every, seen = defaults(), set(credits.schemes()), set()
  section = README.read_text().split('\n## Settings\n')[1].split('\n## ')[0]
  for line in re.findall(r'^\| `(.*) \|$', section, re.M):
    key, schemes, paper, preset, _ = line.split(' | ')
    key, all_but = key.strip('`'), schemes.startswith('all')
    listed = every & set(re.findall(r'\w+', schemes))
    assert set(taken[key]) == (every - listed if all_but else listed), key
    paper, *others = re.split(r' \((\w+) (\S+)\)', paper)
    odd = dict(zip(others[::3], others[1::3]))  # 1 (crbc 5)
    for scheme, default in taken[key].items():
      assert shows(odd.get(scheme, paper), default), (key, scheme)
    changed = credits.PRESETS['reference'].get(key, default)
    assert shows(re.sub(r' \(.*', '', preset), changed), key
    seen.add(key)
  assert seen >= {key for key, schemes in taken.items() if len(schemes) > 1}


@pytest.mark.parametrize(
  'scheme, settings, message',
  [
    ('hgpo', {'history': -1}, 'an integer from 0 to 64'),
    ('hgpo', {'history': 2.0}, 'an integer from 0 to 64'),
    ('crbc', {'beta': 1.1}, '0 <= beta <= 1'),
    ('crbc', {'sigma_floor': 0}, '> 0'),
    ('graphhca', {'discount': 1}, '0 < discount < 1'),
    ('graphhca', {'floor': 0}, '0 < floor < 1'),
    ('graphhca', {'power': 0.5}, '>= 1'),
    ('graphgpo', {'backup': 'mean'}, 'min, soft, expected'),
    ('graphgpo', {'failed_ends': 'x'}, 'state, nothing'),
    ('gagpo', {'lam': 2}, '0 <= lam <= 1'),
    ('progress', {'all_fail_share': 1.5}, 'from 0 to 1'),
    ('rloo', {'mode': 'mean_norm'}, "'mode': unknown, allowed: reward_source"),
  ],
)
def test_wrong_settings_are_refused(scheme, settings, message):
  with pytest.raises(ValueError, match=message):
    credits.bind(scheme, **settings)
