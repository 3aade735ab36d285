"""Merging of similar states: clusters, the goal, graph and groups, options."""

import itertools
import json

import numpy as np
import pytest
from credited import SHAPE
from rollouts import attempt_rows, random_rows
from shell import run
from small import FILE, small_config

from graphgpo_jax import config as configs
from graphgpo_jax import credit as credits
from graphgpo_jax import log as logs
from graphgpo_jax import merging, states
from graphgpo_jax.credit import credit_log
from graphgpo_jax.train import train


def like(a, b, threshold):
  a, b = set(a.split()), set(b.split())
  return a == b or (a | b and len(a & b) / len(a | b) >= threshold)


def oracle(texts, threshold, like=like):
  """Clusters grown text by text, in plain Python."""
  left, chosen = set(texts), {}
  while left:
    cluster, edge = set(), [left.pop()]
    while edge:
      text = edge.pop()
      cluster.add(text)
      near = {other for other in left if like(text, other, threshold)}
      left -= near
      edge += near
    chosen |= dict.fromkeys(cluster, min(cluster))
  return chosen


def random_texts(seed):
  rng = np.random.default_rng(seed)
  words = np.array([f'w{i}' for i in range(12)])
  gaps = [' ', '  ', '\n']
  texts = []
  for _ in range(60):
    chosen = rng.choice(words, rng.integers(0, 9))
    texts.append(gaps[rng.integers(3)].join(chosen))
  return texts


@pytest.mark.parametrize('threshold', [0.2, 0.5, 2 / 3, 0.75, 0.8, 1])
@pytest.mark.parametrize('cells', [1, 300, merging.CELLS])
def test_clusters_are_the_oracles_in_any_order(threshold, cells, monkeypatch):
  monkeypatch.setattr(merging, 'CELLS', cells)
  represent = merging.bind(('tokens', threshold))
  sizes = []
  for seed in range(4):
    texts = random_texts(seed)
    expected = oracle(texts, threshold)
    for shuffle in range(3):
      order = np.random.default_rng(shuffle).permutation(len(texts))
      assert represent([texts[i] for i in order]) == expected
    sizes.append(len(set(texts)) - len(set(expected.values())))
  assert sum(sizes) > 0


def test_a_chain_is_one_cluster_whoever_comes_first():
  texts = ['a b c', 'b c d', 'c d e', 'x y z']  # 1/2 each, ends 1/5
  for order in itertools.permutations(texts):
    found = merging.representatives(order, similarity='tokens', threshold=0.5)
    assert found == dict.fromkeys(texts[:3], 'a b c') | {'x y z': 'x y z'}


def test_the_threshold_itself_is_similar():
  base = [f'w{i}' for i in range(9)]
  texts = [' '.join(base), ' '.join([*base, 'w9'])]  # 9/10
  for threshold, clusters in ((0.9, 1), (0.9000001, 2), (0.1, 1)):
    found = merging.bind(f'tokens:{threshold}')(texts)
    assert len(set(found.values())) == clusters


def test_words_are_what_white_space_parts_and_1_means_equal_sets():
  found = merging.bind('tokens:1')(['b a', 'a\n b  a', 'a b.', 'A b', '', ' '])
  assert found == {
    **{'a\n b  a': 'a\n b  a', 'b a': 'a\n b  a'},
    **{'a b.': 'a b.', 'A b': 'A b', '': '', ' ': ''},
  }
  assert merging.bind('tokens:0.5')(['', '\n']) == {'': '', '\n': ''}
  assert merging.bind('tokens:0.5')([]) == {}


ANGLES = {'east': 0, 'near east': 10, 'nearer north': 30, 'north': 90}


def compass(texts):
  """Unit vectors, in lengths that a square of would overflow or vanish."""
  assert texts == sorted(set(texts))
  angle = np.radians([ANGLES[text] for text in texts])
  length = np.array([1e200, 1e-200, 1.0, 7.0])[: len(texts), None]
  return length * np.stack([np.cos(angle), np.sin(angle)], 1)


def constant(texts):
  """One place for all."""
  return np.ones((len(texts), 1), np.float32)


def test_embeddings_merge_by_cosine():
  cosine = {20: 0.93969, 60: 0.5}
  for threshold, clusters in (
    (1.0, 4),
    (cosine[20], 2),  # 10 and 20 degrees: a chain of three
    (cosine[20] + 1e-5, 3),
    (cosine[60], 1),
  ):
    found = merging.bind((compass, threshold))(list(ANGLES))
    assert len(set(found.values())) == clusters
    assert found == merging.bind(f'{__name__}:compass:{threshold}')(ANGLES)
  found = merging.bind((compass, 0.93))(ANGLES)
  assert found == dict.fromkeys(list(ANGLES)[:3], 'east') | {'north': 'north'}
  assert set(merging.bind((constant, 1))(ANGLES).values()) == {'east'}


def test_embeddings_are_the_oracles_in_any_order(monkeypatch):
  monkeypatch.setattr(merging, 'CELLS', 100)
  rng = np.random.default_rng(0)
  names = [f'text {i}' for i in range(40)]
  vectors = dict(zip(names, rng.normal(size=(40, 3))))

  def cosine(a, b, threshold):
    a, b = vectors[a], vectors[b]
    return a @ b / np.sqrt(a @ a * (b @ b)) >= threshold

  represent = merging.bind((lambda texts: [vectors[t] for t in texts], 0.95))
  expected = oracle(names, 0.95, cosine)
  assert 5 < len(set(expected.values())) < 35
  for _ in range(3):
    assert represent(rng.permutation(names).tolist()) == expected


@pytest.mark.parametrize(
  'merge',
  [
    *(
      'tokens',
      'tokens:',
      'tokens:0',
      'tokens:-1',
      'tokens:1.01',
      'tokens:nan',
    ),
    *(
      'tokens:x',
      'words:0.9',
      ':0.9',
      'a:b',
      0.9,
      ('tokens',),
      ('tokens', '1'),
    ),
    *(('tokens', 2), ('words', 0.9), (None, 0.9), ['tokens', 0.9]),
  ],
)
def test_what_cannot_be_is_refused(merge):
  with pytest.raises(ValueError, match='^merge: found .*0 < X <= 1') as caught:
    merging.bind(merge)
  assert '\n' not in str(caught.value)


def test_off_and_paths_that_lead_nowhere():
  assert merging.bind(None) is None and merging.bind('') is None
  for path, words in (
    ('no_such_file:f', 'ModuleNotFoundError'),
    (f'{__name__}:nothing', 'AttributeError'),
    (f'{__name__}:ANGLES', 'not a function'),
  ):
    with pytest.raises(ValueError, match=f'^merge: {path}: {words}'):
      merging.bind(f'{path}:0.9')


WRONG = {  # name: (embeddings of two texts, words)
  'flat': ([1.0, 2.0], r'shape \(2,\), allowed: \(2, d\)'),
  'three': (np.ones((3, 2)), r'shape \(3, 2\), allowed: \(2, d\)'),
  'empty': (np.ones((2, 0)), r'shape \(2, 0\), allowed: \(2, d\)'),
  'nan': ([[1, 0], [np.nan, 1]], "embedding of 'b' is not finite"),
  'inf': ([[np.inf, 0], [1, 1]], "embedding of 'a' is not finite"),
  'zero': ([[1, 0], [0, 0]], "embedding of 'b' is not finite, or all 0"),
  'text': ([['1'], ['2']], 'failed: TypeError: found <U1, allowed: real num'),
  'complex': (np.ones((2, 2), 'c8'), 'TypeError: found complex64, allowed: re'),
  'ragged': ([[1, 2], [3]], 'embedding failed: ValueError'),
  'none': (None, r'shape \(\), allowed: \(2, d\)'),
}


@pytest.mark.parametrize('name', WRONG)
def test_wrong_embeddings_are_named(name):
  embeddings, words = WRONG[name]
  with pytest.raises(ValueError, match=f'^merge: .*{words}'):
    merging.bind((lambda texts: embeddings, 0.9))(['a', 'b'])


def test_a_function_that_fails_is_named():
  def broken(texts):
    raise OSError('no\nmodel')

  with pytest.raises(ValueError, match='failed: OSError: no model$'):
    merging.bind((broken, 0.9))(['a', 'b'])


RED, BLUE = 'hall with a red door', 'hall with a blue door'  # 4 of 6 words


def toy():
  """Won past the red door; lost past the blue; won, taking one for a step."""
  return [
    *attempt_rows([RED, 'kitchen', 'out']),
    *attempt_rows([BLUE, 'cellar'], attempt=1, success=False),
    *attempt_rows([RED, BLUE, 'kitchen', 'out'], attempt=2),
  ]


# By hand. Merged, the hall has 4 steps: to the kitchen (attempts 0 and 2), to
# the cellar, and to itself. Distances: kitchen 1, hall 2, cellar 3.
# GraphGPO, omega 1/2: 1/4, 1/16, 1/8, 1/4 less their mean 11/64, over 3/32.
# GiGPO, gamma 1/2: returns 5, 0, 2.5, 5, mean 3.125, deviation 2.393568.
APART = [0.707107, 0, -0.707107, -0.707107, 0.707107, 0]
MERGED = {
  'graphgpo': [0.833333, 0, -1.166667, -0.5, 0.833333, 0],
  'gigpo': [0.783350, 0, -1.305583, -0.261117, 0.783350, 0],
}
SETTINGS = {'graphgpo': {'omega': 0.5}, 'gigpo': {'gamma': 0.5}}


@pytest.mark.parametrize('scheme', ['graphgpo', 'gigpo'])
def test_graph_and_groups_are_merged_alike(scheme):
  settings = SETTINGS[scheme] | {'episode_weight': 0.0}
  for merge, expected in (
    (None, APART),
    ('', APART),
    ('tokens:0.67', APART),
    ('tokens:0.66', MERGED[scheme]),
    (('tokens', 2 / 3), MERGED[scheme]),
  ):
    found = credit_log(toy(), scheme, merge=merge, **settings)
    np.testing.assert_allclose(found, expected, atol=2e-6)
  for seed in range(3):
    order = np.random.default_rng(seed).permutation(6)
    rows = [toy()[i] for i in order]
    found = credit_log(rows, scheme, merge='tokens:0.6', **settings)
    np.testing.assert_allclose(
      found[np.argsort(order)], MERGED[scheme], atol=2e-6
    )


def test_distances_are_those_of_the_merged_graph():
  table = logs.columns(toy()[:3])
  for merge, before in ((None, [2, 1, 3]), ('tokens:0.6', [2, 1, 2])):
    steps = states.index_steps(table, merge=merging.bind(merge))
    results = credits.credit_steps(steps, credits.bind('graphgpo'))
    np.testing.assert_array_equal(results['distance'], before)
    np.testing.assert_array_equal(results['next_distance'], [1, 0, 3])


def nodes(rows, merge):
  steps = states.index_steps(logs.columns(rows), merge=merging.bind(merge))
  return steps.texts[0]


def test_nothing_is_merged_with_the_goal_nor_through_it():
  rows = attempt_rows(['p q', 'r s', 'p q r s'])  # 1/2 like both
  for terminal in (True, False):
    rows[1] |= {'terminal': terminal}
    assert nodes(rows, 'tokens:0.5') == ['p q', 'r s']
  rows += attempt_rows(['p q', 'p q r s'], attempt=1, success=False)
  rows[2] |= {'terminal': False}  # now the text names a state
  assert nodes(rows, 'tokens:0.5') == ['p q']
  rollouts = states.intern(rows, merge=merging.bind('tokens:0.5'))
  np.testing.assert_array_equal(rollouts.state[0, 0], [1, 1])
  np.testing.assert_array_equal(rollouts.next_state[0], [[1, 0], [1, 0]])
  np.testing.assert_array_equal(rollouts.success[0], [[0, 1], [0, 0]])


def test_ends_of_failed_attempts_are_merged_among_themselves_only():
  rows = attempt_rows(['a b', 'a b c', 'out'])
  rows += attempt_rows(['a b', 'a b lost'], attempt=1, success=False)
  rows += attempt_rows(['a b', 'a b c lost'], attempt=2, success=False)
  assert nodes(rows, 'tokens:0.6') == ['a b', 'a b c lost']
  for row in rows[2:]:  # cut off: states to go on from
    row |= {'terminal': False, 'truncated': True}
  assert nodes(rows, 'tokens:0.6') == ['a b']
  for row in rows[2:]:  # seen on the way too: exact keys come first
    row |= {'terminal': True, 'truncated': False, 'next_state': 'a b c'}
  assert nodes(rows, 'tokens:0.6') == ['a b']


def test_tasks_are_merged_apart():
  rows = toy() + [row | {'task': 1} for row in toy()[:2]]
  steps = states.index_steps(
    logs.columns(rows), merge=merging.bind('tokens:0.5')
  )
  assert steps.texts == [[BLUE, 'kitchen', 'cellar'], [RED, 'kitchen']]


def test_a_chain_broken_between_similar_states_is_still_broken():
  rows = toy()
  rows[4] |= {'state': 'hall with a green door'}
  with pytest.raises(logs.LogError, match='row 4: field .state.'):
    credit_log(rows, 'graphgpo', merge='tokens:0.6')


def rooms(seed):
  """Random walks with self-loops on 9 places in 3 rooms, 5/7 alike in a room.

  And the same walks with the names that merging shall lead to.
  """
  rows = random_rows(seed, tasks=5, costs=True)
  passed = {(row['task'], row['state']) for row in rows}
  passed |= {
    (row['task'], row['next_state']) for row in rows if not row['terminal']
  }

  def renamed(row, name):
    ends = {k: name(row['task'], row[k]) for k in ('state', 'next_state')}
    return row | ends

  def long(task, text):
    place = int(text.split()[1])
    return f'room{place // 3} has a door and lamp{place}'

  def short(task, text):
    end = '' if (task, text) in passed else 'end '
    return f'{end}room {int(text.split()[1]) // 3}'

  return [renamed(row, long) for row in rows], [
    renamed(row, short) for row in rows
  ]


@pytest.mark.parametrize('seed', range(3))
def test_merging_is_giving_similar_states_one_name(seed):
  rows, expected = (
    states.intern(rows, shapes=SHAPE, merge=merge)
    for rows, merge in zip(rooms(seed), (merging.bind('tokens:0.7'), None))
  )
  loops = rows.mask & (rows.state == rows.next_state)
  assert loops.sum() > 10
  for name, value in vars(expected).items():
    np.testing.assert_array_equal(getattr(rows, name), value, err_msg=name)


@pytest.mark.parametrize('scheme', credits.schemes())
def test_every_scheme_takes_a_merged_graph(scheme):
  merge = merging.bind('tokens:0.7')
  rollouts = states.intern(rooms(1)[0], shapes=SHAPE, merge=merge)
  answer = credits.credit(rollouts, credit_fn=credits.bind(scheme))
  advantage = np.asarray(answer['advantage'])
  assert np.isfinite(advantage).all() and advantage.any()


@pytest.fixture
def log(tmp_path):
  logs.write_log(tmp_path / 'in.jsonl', toy())
  return tmp_path / 'in.jsonl'


def test_command_line_credits_the_merged_graph(log, tmp_path):
  out = tmp_path / 'out.jsonl'
  options = '--set=omega=0.5', '--set=episode_weight=0.0', '--out', out
  for merge, expected in (
    ([], APART),
    (['--merge=tokens:0.6'], MERGED['graphgpo']),
    ([f'--merge={__name__}:constant:0.9'], None),
  ):
    assert run('credit', log, *merge, *options) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()[1:]]
    assert [row['state'] for row in rows] == [row['state'] for row in toy()]
    if expected:
      found = [row['advantage'] for row in rows]
      np.testing.assert_allclose(found, expected, atol=2e-6)
  picture = tmp_path / 'graph.svg'
  assert (
    run('draw', log, '--task=x', '--merge=tokens:.6', '--out', picture) == 0
  )
  assert picture.exists()


def test_stats_say_how_many_were_merged(log, capsys):
  assert run('stats', log, '--json') == 0
  plain = json.loads(capsys.readouterr().out)
  assert run('stats', log, '--json', '--merge', 'tokens:0.6') == 0
  merged = json.loads(capsys.readouterr().out)
  assert plain['nodes_per_task'] == 5 and merged['nodes_per_task'] == 4
  assert merged['nodes_per_task_unmerged'] == 5 and merged['nodes_merged'] == 1
  assert set(merged) - set(plain) == {'nodes_per_task_unmerged', 'nodes_merged'}


def test_command_line_fails_in_one_line(log, capsys):
  for merge, words in (
    ('tokens:2', "merge: found ('tokens', 2.0), allowed: tokens:X or"),
    ('words:0.5', "merge: found ('words', 0.5), allowed: tokens:X or"),
    (f'{__name__}:oracle:0.5', f'{log}: merge: embedding failed: TypeError'),
  ):
    assert run('stats', log, '--merge', merge) == 2
    error = capsys.readouterr().err
    assert words in error and error.count('\n') == 1


def test_configs_may_merge_and_errors_name_the_key():
  config = configs.load(FILE)
  for merge in ('', 'tokens:0.9', f'{__name__}:constant:1'):
    config.env.merge = merge
    configs.check(config)
  for merge, words in (
    ('tokens', "config.env.merge: found 'tokens', allowed: tokens:X"),
    (0.9, "config.env.merge: found 0.9, allowed: '' or tokens:X"),
    ('nothing:f:0.9', 'config.env.merge: nothing:f: ModuleNotFoundError'),
  ):
    config.env = config.env.to_dict() | {'merge': merge}
    with pytest.raises(ValueError, match=words):
      configs.check(config)
  configs.check_overrides(
    ['--config', str(FILE), '--config.env.merge=tokens:1']
  )
  with pytest.raises(ValueError, match='did you mean config.env.merge'):
    configs.check_overrides(['--config', str(FILE), '--config.env.merg=a'])


def test_a_run_merges(tmp_path):
  small = {'updates': 1, 'warm_start__steps': 1, 'batch__resample_retries': 1}
  merge = {'env__merge': f'{__name__}:constant:1'}
  row = train(small_config(tmp_path / 'run', **small, **merge))
  assert row['nodes_per_task'] == 2 and row['tasks_trained'] > 0  # goal, rest
