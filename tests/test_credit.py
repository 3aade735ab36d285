"""Credit schemes: the toy table, the rules, propositions, a slow oracle."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_schemes as oracles
from rollouts import attempt_rows, random_rows
from small import FILE

from graphgpo_jax import config as configs
from graphgpo_jax import credit as credits
from graphgpo_jax import log as logs
from graphgpo_jax import states
from graphgpo_jax.credit import credit_log

SCHEMES = ('grpo', 'gigpo', 'graphgpo')
COLUMNS = {
  'gigpo': ('gigpo', {}),
  'graphgpo .1': ('graphgpo', {'omega': 0.1}),
  'graphgpo .8': ('graphgpo', {'omega': 0.8}),
}


def check_toy(rows, places):
  """Step terms of the rows at places, which are the toy rows in order."""
  for name, (scheme, settings) in COLUMNS.items():
    credit = credit_log(rows, scheme, episode_weight=0, **settings)
    expected = oracles.toy_column(name)
    np.testing.assert_allclose(credit[places], expected, atol=1e-3)


def test_toy_table():
  check_toy(reference.toy_rows(), slice(None))


def test_toy_table_shuffled_with_other_tasks_and_renamed_attempts():
  toy = reference.toy_rows()
  renamed = [r | {'attempt': f'{r["attempt"][::-1]}-x'} for r in toy]
  rows = renamed + random_rows(1)
  order = np.random.default_rng(0).permutation(len(rows))
  check_toy([rows[i] for i in order], np.argsort(order)[: len(toy)])


def batch(rows, shapes=(None,) * 4):
  return states.intern(rows, shapes=shapes)


def in_rows(rollouts, values):
  values = np.asarray(values)
  assert (values[~np.asarray(rollouts.mask)] == 0).all()
  result = np.zeros(rollouts.mask.sum(), np.float32)
  result[rollouts.row[rollouts.mask]] = values[rollouts.mask]
  return result


@pytest.mark.parametrize('scheme', SCHEMES)
def test_padding_and_other_tasks_change_nothing(scheme):
  rows = random_rows(11, costs=True)
  extra = [r | {'task': f'{r["task"]}+'} for r in random_rows(12)]
  credit_fn = credits.bind(scheme)
  plain = batch(rows)
  expected = in_rows(
    plain, credits.credit(plain, credit_fn=credit_fn)['advantage']
  )
  assert abs(expected).max() > 0.5
  for rollouts, count in (
    (batch(rows, (8, 9, 31, 128)), len(rows)),
    (batch(rows + extra, (8, 9, 31, 128)), len(rows)),
  ):
    answer = credits.credit(rollouts, credit_fn=credit_fn)
    found = in_rows(rollouts, answer['advantage'])[:count]
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize('scheme', ['graphgpo', 'crbc', 'hgpo', 'progress'])
def test_eight_devices_equal_one_without_communication(scheme):
  rows = random_rows(14, tasks=6, costs=True)
  rollouts = batch(rows, (8, 5, 12, 16))
  mesh = jax.make_mesh((8,), ('data',), (jax.sharding.AxisType.Auto,))
  credit_fn = credits.bind(scheme)
  steps = states.index_steps(logs.columns(rows))
  shared = credits.shared_settings(steps, credit_fn)
  one = credits.credit(rollouts, credit_fn=credit_fn, shared=shared)
  compiled = credits.credit.lower(
    rollouts, credit_fn=credit_fn, mesh=mesh, shared=shared
  ).compile()
  eight = compiled(rollouts, shared=shared)
  assert len(eight['advantage'].sharding.device_set) == 8
  for name, values in one.items():
    np.testing.assert_allclose(values, eight[name], atol=1e-5)
  for collective in ('all-reduce', 'all-gather', 'collective-permute'):
    assert collective not in compiled.as_text()


def test_tasks_that_do_not_divide_among_devices_are_refused():
  mesh = jax.make_mesh((8,), ('data',), (jax.sharding.AxisType.Auto,))
  with pytest.raises(ValueError, match='3 tasks .* 8 devices'):
    credits.credit(
      batch(random_rows(0)), credit_fn=credits.bind('grpo'), mesh=mesh
    )


PAPER_AND_MORE = [
  ('grpo', {}),
  ('grpo', {'mode': 'mean_norm', 'episode_statistics': 'rows'}),
  ('grpo', {'reward_source': 'success', 'success_reward': 3.0}),
  ('gigpo', {}),
  ('gigpo', {'gamma': 1.0, 'invalid_action_penalty_in_step': True}),
  ('gigpo', {'gamma': 0.0, 'reward_source': 'success', 'step_weight': -2.0}),
  ('graphgpo', {}),
  ('graphgpo', {'omega': 0.8, 'exponent': 'relative', 'step_weight': 0.5}),
  ('graphgpo', {'exponent': 'next_distance', 'episode_weight': 0.0}),
  ('graphgpo', {'omega': 0.5, 'mode': 'mean_norm'}),
  ('graphgpo', {'omega': 0.5, 'eps': 1e-3}),
  ('graphgpo', {'omega': 0.5, 'invalid_action_penalty_in_step': True}),
]


@pytest.mark.parametrize('scheme, settings', PAPER_AND_MORE)
@pytest.mark.parametrize('costs', [False, True])
def test_equals_the_slow_oracle(scheme, settings, costs):
  for seed in range(4):
    rows = random_rows(seed, tasks=5, costs=costs)
    found = credit_log(rows, scheme, **settings)
    expected = getattr(reference, scheme)(rows, **settings)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_credit_does_not_fade_with_distance():
  """States at d = 1..60, each with an edge to d - 1 and one to d + 1."""
  rows = attempt_rows([f'p{i}' for i in range(62, -1, -1)])
  for d in range(1, 61):
    rows += attempt_rows([f'p{d}', f'p{d + 1}'], attempt=d, success=False)
  for omega in (0.1, 0.8):
    credit = credit_log(rows, 'graphgpo', omega=omega, episode_weight=0)
    ahead = [r for r, row in enumerate(rows) if row['attempt'] == 0][2:]
    np.testing.assert_allclose(credit[ahead[:60]], np.sqrt(0.5), atol=1e-4)
    np.testing.assert_allclose(credit[62:], -np.sqrt(0.5), atol=1e-4)


def test_exponents_agree_without_eps():
  rows = random_rows(21)
  first, *others = (
    credit_log(rows, 'graphgpo', exponent=e, omega=0.5)
    for e in ('paper', 'next_distance', 'relative')
  )
  for other in others:
    np.testing.assert_allclose(other, first, atol=1e-5)


@pytest.mark.parametrize('exponent', ['paper', 'next_distance', 'relative'])
def test_equal_path_lengths_in_another_order_tie(exponent):
  rng = np.random.default_rng(0)
  for length in (10, 50, 200):
    costs = rng.uniform(0.1, 3, length)
    rows = []
    for attempt in range(2):
      path = ['start', *(f'{attempt}-{i}' for i in range(length - 1)), 'goal']
      # The first steps cost the same, or next_distance would differ by them.
      order = [0, *rng.permutation(np.arange(1, length))]
      for row, cost in zip(attempt_rows(path, attempt=attempt), costs[order]):
        rows.append(row | {'cost': float(cost)})
    for settings in ({}, {'eps': 1e-8}, {'mode': 'mean_norm'}):
      credit = credit_log(
        rows, 'graphgpo', exponent=exponent, episode_weight=0, **settings
      )
      assert (credit == 0).all()


@pytest.mark.parametrize('seed', range(8))
def test_propositions_of_the_paper(seed):
  """4.1: closer is never worse. 4.2: an edge has one credit."""
  rows = random_rows(seed, tasks=4, attempts=8, costs=seed % 2 == 1)
  steps = states.index_steps(logs.columns(rows))
  credit_fn = credits.bind('graphgpo', episode_weight=0, omega=0.5)
  results = credits.credit_steps(steps, credit_fn)
  groups, edges = {}, {}
  for i, row in enumerate(rows):
    ends = (row['task'], row['state'], row['success'] or row['next_state'])
    edges.setdefault((*ends, row['cost']), []).append(results['advantage'][i])
    reduction = results['distance'][i] - results['next_distance'][i]
    credit = results['advantage'][i]
    gain = reduction - row['cost']
    groups.setdefault(ends[:2], []).append((gain, credit))
  for credit in edges.values():
    assert len(set(credit)) == 1
  strict = 0
  for members in groups.values():
    members.sort()
    for (low, worse), (high, better) in zip(members, members[1:]):
      assert better >= worse - 1e-6
      if 1e-3 < high - low < 10 and any(c != 0 for _, c in members):
        strict += better > worse
  assert strict > 0


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize('text', ['success', 'goal', '0', ''])
def test_no_text_collides_with_the_goal(scheme, text):
  rows = random_rows(31)
  expected = credit_log(rows, scheme)
  renamed = [
    row
    | {
      key: text if row[key] == 'place 3' else row[key]
      for key in ('state', 'next_state')
    }
    for row in rows
  ]
  np.testing.assert_array_equal(credit_log(renamed, scheme), expected)


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize('value, count', [(0.35, 7), (9.9, 8), (-0.1, 215)])
def test_equal_scores_are_exactly_zero(scheme, value, count):
  rows = []
  for attempt in range(count):
    rows += attempt_rows(['a', 'b'], attempt=attempt, rewards=[value])
  assert (credit_log(rows, scheme) == 0).all()


@pytest.mark.parametrize('scheme', SCHEMES)
def test_equal_sokoban_returns_in_another_order_are_exactly_zero(scheme):
  rng = np.random.default_rng(3)
  rewards = [-0.1] * 9 + [0.9, -1.1, 0.9, -1.1, 10.9]
  rows = []
  for attempt in range(8):
    order = [*rng.permutation(rewards[:-1]).tolist(), rewards[-1]]
    path = ['start', *(f'{attempt}-{i}' for i in range(13)), 'end']
    rows += attempt_rows(path, attempt=attempt, rewards=order)
  settings = {} if scheme == 'grpo' else {'step_weight': 0.0}
  assert (credit_log(rows, scheme, **settings) == 0).all()
  if scheme == 'gigpo':
    assert (credit_log(rows, scheme, gamma=1.0) == 0).all()


def test_small_real_difference_is_signal():
  rows = attempt_rows(['a', 'b'], rewards=[1.0])
  rows += attempt_rows(['a', 'b'], attempt=1, rewards=[1.00001])
  np.testing.assert_allclose(
    credit_log(rows, 'grpo'), [-np.sqrt(0.5), np.sqrt(0.5)], atol=1e-5
  )


def test_uncredited_steps_shape_the_graph_and_nothing_else():
  rows = attempt_rows(['a', 'b', 'goal'])
  rows += attempt_rows(['a', 'c', 'goal'], attempt=1)
  rows += attempt_rows(['a', 'c'], attempt=2, success=False)
  rollouts = batch(rows)
  history = np.arange(3)[None, :, None] == 0
  rollouts = rollouts.replace(credited=rollouts.mask & ~history)
  found = {
    name: np.asarray(
      credits.credit(rollouts, credit_fn=credits.bind(name))['advantage']
    )
    for name in SCHEMES
  }
  for values in found.values():
    assert (values[0, 0] == 0).all()
  np.testing.assert_allclose(found['grpo'][0, 1:, 0], [0.7071, -0.7071], 1e-3)
  distance = credits.credit(rollouts, credit_fn=credits.bind('grpo'))
  assert distance['distance'][0, 0, 0] == 2


def test_one_compilation_for_equal_settings():
  rows = random_rows(41)
  credits.credit.clear_cache()
  for _ in range(3):
    credit_log(rows, 'grpo', eps=0.3)
  assert credits.credit._cache_size() == 1


def test_unequal_tasks_are_bucketed(monkeypatch):
  rows = random_rows(51, tasks=4)
  path = [f'{i}' for i in range(700)]
  long = attempt_rows(path, task='long')
  together = credit_log(rows + long, 'graphgpo')
  steps = states.index_steps(logs.columns(rows + long))
  monkeypatch.setattr(credits, 'SLOTS_PER_CALL', 10_000)
  slots = [np.prod(shape[:3]) for _, shape in credits._buckets(steps.sizes())]
  assert len(slots) > 1 and sum(slots) < 4000
  apart = credits.credit_steps(steps, credits.bind('graphgpo'))
  np.testing.assert_allclose(together, apart['advantage'], atol=1e-6)


def test_a_selection_of_tasks_keeps_its_row_numbers():
  rows = random_rows(53)
  steps = states.index_steps(logs.columns(rows))
  credit_fn = credits.bind('gigpo')
  whole = credits.credit_steps(steps, credit_fn)['advantage']
  part = states.select(steps, [1, 2])
  found = credits.credit_steps(part, credit_fn)['advantage']
  np.testing.assert_allclose(found[part.row], whole[part.row], atol=1e-6)
  assert (np.delete(found, part.row) == 0).all()


def test_calls_are_cut_at_the_limit(monkeypatch):
  rows = random_rows(52, tasks=9)
  expected = credit_log(rows, 'gigpo')
  monkeypatch.setattr(credits, 'SLOTS_PER_CALL', 200)
  np.testing.assert_allclose(credit_log(rows, 'gigpo'), expected, atol=1e-6)


WRONG = [
  (('ggpo', {}), "scheme: found 'ggpo', allowed: .*gigpo, graphgpo,.* or"),
  (('no.such:thing', {}), "scheme 'no.such:thing'"),
  (('math:nothing', {}), "scheme 'math:nothing'"),
  (('math:pi', {}), 'not a function'),
  (('.x:y', {}), "scheme '.x:y'"),
  (('grpo', {'preset': 'papr'}), "'papr', allowed: paper, reference"),
  (('grpo', {'omega': 0.1}), "'omega': unknown, allowed: mode, eps"),
  (('graphgpo', {'omega': 1}), '0 < omega < 1'),
  (('graphgpo', {'omega': True}), '0 < omega < 1'),
  (('graphgpo', {'omega': float('nan')}), '0 < omega < 1'),
  (('graphgpo', {'omega': '0.1'}), '0 < omega < 1'),
  (('gigpo', {'gamma': -0.1}), '0 <= gamma <= 1'),
  (('gigpo', {'eps': -1}), 'eps.*>= 0'),
  (('gigpo', {'success_reward': 0}), '> 0'),
  (('gigpo', {'invalid_action_penalty': -1}), '>= 0'),
  (('gigpo', {'success_reward': 1e-31}), 'a number > 0, from 1e-30 to 1e30$'),
  (('graphgpo', {'omega': 2}), '0 < omega < 1$'),
  (('gigpo', {'step_weight': float('inf')}), 'a finite number, up to 1e30'),
  (('gigpo', {'invalid_action_penalty_in_step': 1}), 'False, True'),
  (('gigpo', {'success_reward': 1e39}), 'from 1e-30 to 1e30'),
  (('graphgpo_jax.credit.grpo:advantages', {'eps': -1}), 'eps.*>= 0'),
  (('gigpo', {'eps': 10**400}), 'up to 1e30'),
  ((math.hypot, {}), 'no signature'),
  ((5, {}), 'a name or a function'),
  (('gigpo', {'mode': 'mean'}), 'mean_std_norm, mean_norm'),
  (('gigpo', {'episode_statistics': 'x'}), 'trajectories, rows'),
  (('gigpo', {'reward_source': 'x'}), 'log, success'),
  (('graphgpo', {'exponent': 'x'}), 'paper, next_distance, relative'),
  ((lambda r, g, *, a: r.reward, {'b': 1}), "'b': unknown, allowed: a"),
  (('graphgpo_jax.credit.grpo:advantages', {'preset': 'paper'}), 'only for'),
]


@pytest.mark.parametrize('call, message', WRONG)
def test_wrong_settings_are_refused_before_any_compute(call, message):
  scheme, settings = call
  with pytest.raises(ValueError, match=message):
    credits.bind(scheme, **settings)


def test_own_function_and_dotted_path():
  rows = random_rows(61)
  expected = credit_log(rows, 'grpo', eps=0.5)
  path = 'graphgpo_jax.credit.grpo:advantages'
  np.testing.assert_array_equal(credit_log(rows, path, eps=0.5), expected)

  def twice(rollouts, graph, *, factor=2.0):
    return factor * credits.load('grpo')(rollouts, graph, eps=0.5)

  np.testing.assert_allclose(credit_log(rows, twice), 2 * expected, rtol=1e-6)


def test_values_of_an_own_scheme_are_its_own_affair():
  def own(rollouts, graph, *, discount=0.5, mode='mine', omega=(1, 2)):
    scale = discount * sum(omega) * (2 if mode == 'mine' else 1)
    return scale * rollouts.mask

  rows = random_rows(64)
  ranges = {'discount': 1.0, 'mode': 'theirs', 'omega': [3, 4]}
  assert (credit_log(rows, own, **ranges) == 7).all()
  assert (credit_log(rows, own, discount=jnp.float32(2)) == 12).all()
  with pytest.raises(ValueError, match="'discont': unknown, allowed: discount"):
    credit_log(rows, own, discont=1.0)


def test_schemes_that_return_nonsense_are_named():
  rows = random_rows(62)
  with pytest.raises(ValueError, match="row 0: field 'advantage': found nan"):
    credit_log(rows, lambda rollouts, graph: rollouts.reward + float('nan'))
  with pytest.raises(ValueError, match=r'returns \[B, M, T\]'):
    credit_log(rows, lambda rollouts, graph: rollouts.reward[0])
  for nonsense in (lambda r, g: r.mask, lambda r, g: r.reward * 1j):
    with pytest.raises(ValueError, match='returns floats'):
      credit_log(rows, nonsense)


def test_settings_that_are_equal_but_of_another_type_are_told_apart():
  def scheme(rollouts, graph, *, n=1):
    return rollouts.mask * {int: 1.0, bool: 100.0, float: 7.0}[type(n)]

  rows = random_rows(63)
  found = [credit_log(rows, scheme, n=n)[0] for n in (1, True, 1.0)]
  assert found == [1, 100, 7]


def test_a_new_scheme_is_one_file(tmp_path, monkeypatch):
  """One more file in the package: by name, with settings, in configs."""
  (tmp_path / 'nearest.py').write_text("""
def advantages(rollouts, graph, *, gamma=0.5, own=1.0):
  return own * gamma * rollouts.mask.astype('float32')
""")
  monkeypatch.setattr(
    credits, '__path__', [*credits.__path__, str(tmp_path)], raising=True
  )
  assert 'nearest' in credits.schemes()
  rows = random_rows(0)
  assert (credit_log(rows, 'nearest', own=4.0) == 2).all()
  assert credits.check(credits.load('nearest'), show=False).holds['padding']
  config = configs.load(FILE, 'nearest')
  config.credit = {'scheme': 'nearest', 'preset': 'reference', 'own': 8.0}
  configs.check(config)
  settings = config.credit.to_dict()
  fn = credits.bind(settings.pop('scheme'), **settings)
  assert fn is credits.bind('nearest', preset='reference', own=8.0)
  with pytest.raises(ValueError, match="'onw': unknown, allowed: gamma, own"):
    credits.bind('nearest', onw=1.0)
  with pytest.raises(ValueError, match="'gamma': found 2, .* 0 <= gamma <= 1"):
    credits.bind('nearest', gamma=2)
