"""Charts: the numbers that stand in the figure objects."""

import dataclasses

import numpy as np
import pytest
import reference
from pictures import index, maze, result, walk

from graphgpo_jax import plots
from graphgpo_jax.plots import charts


def by_gid(ax, gid):
  return next(c for c in ax.collections if c.get_gid() == gid)


def boxes(ax, digits=4):
  """Place on the axis -> (lower quartile, median, upper quartile)."""
  corners = [p.vertices for p in by_gid(ax, 'quartiles').get_paths()]
  medians = [s[0, 1] for s in by_gid(ax, 'medians').get_segments()]
  middles = [
    round(float(c[:, 0].min() + np.ptp(c[:, 0]) / 2), digits) for c in corners
  ]
  ends = [(c[:, 1].min(), c[:, 1].max()) for c in corners]
  return {x: (a, m, b) for x, (a, b), m in zip(middles, ends, medians)}


def points(ax, turn):
  return by_gid(ax, f'points {turn}')


def test_boxes_hold_the_quartiles_by_distance_and_turn():
  rows = walk(
    ['A-a-B-b-G', 'A-a-B-b-G', 'A-c-B-b-G', 'A-d-D-e-D'], success=(0, 1, 2)
  )
  steps = index(rows)
  results = {'p': result(rows, [1, 2, 4, 6, 5, 3, 9, -7])}
  figure = plots.advantage_by_distance(steps, results)
  (ax,) = figure.axes
  found = boxes(ax)
  # Nearer to the goal than their distance: steps that come closer.
  assert sorted(found) == [0.71, 1.71, 2.29, 4.2]  # the last one: no path
  np.testing.assert_allclose(found[0.71], [2.5, 3, 4.5])
  np.testing.assert_allclose(found[1.71], [2.5, 4, 4.5])  # of 1, 4, 5
  np.testing.assert_allclose(found[2.29], [9, 9, 9])  # loses the path
  np.testing.assert_allclose(found[4.2], [-7, -7, -7])
  assert 'no path' in [t.get_text() for t in ax.get_xticklabels()]
  left, right = ax.get_xlim()
  assert left > 4.2 and right == 0  # the goal at the right
  words = '1 task: 8 steps, 1 of them with no path to the goal; all are points'
  assert figure.get_suptitle() == words
  for turn, values in ((-1, [1, 2, 3, 4, 5, 6]), (0, [-7]), (1, [9])):
    assert sorted(points(ax, turn).get_array()) == values
  legend = [t.get_text() for t in figure.legends[0].get_texts()]
  assert legend[:3] == ['goes away: 1', 'as far: 0', 'comes closer: 6']


def test_turns_follow_the_distances_not_the_order_of_tasks():
  rows = walk(['X-a-X-b-Y-c-G', 'X-a-Z-b-X-a-X'], success=(0,), task='u')
  rows += walk(['A-a-B-b-C', 'A-a-B'], task='t')
  steps = index(rows)
  distance, turn = charts._turns(steps, result(rows, [0]))
  found = {}
  for at in range(len(rows)):
    row = rows[steps.row[at]]
    key = row['task'], row['state'], row['next_state']
    found[key] = distance[at], turn[at]
  inf = np.inf
  assert found == {
    ('u', 'X', 'X'): (2, 0), ('u', 'X', 'Y'): (2, -1), ('u', 'Y', 'G'): (1, -1),
    ('u', 'X', 'Z'): (2, 1), ('u', 'Z', 'X'): (3, -1),
    ('t', 'A', 'B'): (inf, 0), ('t', 'B', 'C'): (inf, 0),
  }  # fmt: skip


def test_many_steps_are_sampled_and_their_number_said():
  rows = maze(50, 20, 100)
  steps = index(rows)
  assert len(rows) > charts.POINTS
  advantage = np.random.default_rng(0).normal(size=len(rows))
  figure = plots.advantage_by_distance(steps, {'p': result(rows, advantage)})
  (ax,) = figure.axes
  shown = [len(points(ax, turn).get_offsets()) for turn in (-1, 0, 1)]
  assert sum(shown) == charts.POINTS
  assert figure.get_suptitle().endswith('points: a sample of 1,500')
  at = result(rows, advantage)
  first = at['reachable'] & (at['distance'] == 1)
  first &= [row['success'] for row in rows]  # at the goal, so closer
  np.testing.assert_allclose(
    boxes(ax)[0.71], np.quantile(advantage[first], [0.25, 0.5, 0.75]), rtol=1e-5
  )


def test_far_distances_and_costs_are_put_into_bins():
  path = '-'.join(f'{i}-a' for i in range(60)) + '-G'
  rows = walk([path], success=(0,))
  steps = index(rows)
  results = {'p': result(rows, np.arange(60))}
  figure = plots.advantage_by_distance(steps, results)
  found = boxes(figure.axes[0])
  places = [0.63 + 3 * i for i in range(20)]  # 1.5 less 0.29 of the width
  np.testing.assert_allclose(sorted(found), places)
  assert found[0.63][1] == 58  # distances 1, 2, 3 are the steps 59, 58, 57
  assert figure.axes[0].get_xlabel().endswith('before the step, in bins of 3')
  rows = walk(['A-a-B-b-G'], success=(0,), costs={(0, 1): 2.5})
  results = {'p': result(rows, [1, 2])}
  figure = plots.advantage_by_distance(index(rows), results)
  assert figure.axes[0].get_xlabel().startswith('distance to the goal')
  assert [v[1] for v in boxes(figure.axes[0]).values()] == [2, 1]


def test_small_costs_are_spread_over_the_bins():
  costs = {(0, 0): 0.001, (0, 1): 0.001}
  rows = walk(['A-a-B-b-G'], success=(0,), costs=costs)
  figure = plots.advantage_by_distance(index(rows), {'p': result(rows, [1, 2])})
  near, far = sorted(boxes(figure.axes[0], 6).items())
  assert near[1][1] == 2 and far[1][1] == 1
  assert 0.0005 < near[0] < 0.001 < far[0] < 0.002


def test_distances_of_one_task_and_of_this_visit_only():
  rows = walk(['A-a-G', 'A-b-G'], success=(0, 1)) + walk(['A-a-B'], task='u')
  steps = index(rows)
  results = {'p': result(rows, [1, 3, 5])}
  figure = plots.advantage_by_distance(steps, results, task=0)
  assert figure.get_suptitle().startswith('t: 2 steps, 0 of them')
  assert boxes(figure.axes[0]) == {0.71: (1.5, 2, 2.5)}
  earlier = dataclasses.replace(steps, credited=np.array([True, False, True]))
  figure = plots.advantage_by_distance(earlier, results, task=0)
  assert figure.get_suptitle().startswith('t: 1 step, 0 of them')
  with pytest.raises(ValueError, match='task: found 2'):
    plots.advantage_by_distance(steps, results, task=2)
  with pytest.raises(ValueError, match='results'):
    plots.advantage_by_distance(steps, {})


def test_heat_map_holds_the_advantages():
  rows = walk(['A-a-B-b-C', 'A-a-G', 'A-a-B', 'A-c-B-b-G'], success=(1, 3))
  advantage = [-1, -2, 3, 0, 4, 5]
  results = {'p': result(rows, advantage), 'q': result(rows, np.zeros(6))}
  figure = plots.credit_heat_map(index(rows), 0, results, title='x')
  first, second = figure.axes[:2]
  table = first.images[0].get_array()
  np.testing.assert_allclose(
    table.filled(np.nan), [[3, np.nan], [4, 5], [-1, -2], [0, np.nan]]
  )
  assert (second.images[0].get_array() == 0).all()
  names = [t.get_text() for t in first.get_yticklabels()]
  assert names == ['★ 1', '★ 3', '0', '2']
  dashes = [xy for line in first.lines for xy in line.get_xydata().tolist()]
  assert sorted(dashes) == [[0, 2], [1, 2]]  # (step, row) of -1 and -2
  assert figure.get_suptitle().startswith('x: 4 attempts, 2 (★) reached')
  assert first.images[0].get_cmap() is plots.COLOURS


def test_rows_of_a_heat_map_have_the_ids_of_the_log():
  rows = walk(['A-a-B', 'A-a-G'], success=[1])
  rows[0]['attempt'], rows[1]['attempt'] = 7, 'rollout-of-worker-3'
  figure = plots.credit_heat_map(index(rows), 0, {'p': result(rows, [1, 2])})
  names = [t.get_text() for t in figure.axes[0].get_yticklabels()]
  assert names == ['★ rollout-of-wo...', '7']


def test_large_heat_maps_sample_rows_and_average_columns():
  paths = ['-'.join(f'{s % 7}-a' for s in range(401)) + '-E'] + ['A-a-G'] * 99
  rows = walk(paths, success=range(1, 100))
  advantage = np.arange(len(rows), dtype=float)
  figure = plots.credit_heat_map(index(rows), 0, {'p': result(rows, advantage)})
  ax = figure.axes[0]
  table = ax.images[0].get_array()
  assert table.shape == (charts.ROWS, 134)  # 401 steps by threes
  np.testing.assert_allclose(table[-1, :2], [1, 4])  # attempt 0, the failed one
  np.testing.assert_allclose(table[-1, -1], 399.5)  # steps 399 and 400
  assert ax.get_yticklabels()[-1].get_text() == '0'
  title = figure.get_suptitle()
  assert '99 (★) reached the goal; 40 attempts drawn, evenly spaced' in title
  assert 'a column is the mean of 3 steps' in title
  assert ax.get_xticklabels()[1].get_text() == '21'


def cells(figure):
  return [t.get_text() for t in figure.axes[0].texts]


def test_correlation_equals_scipy():
  stats = pytest.importorskip('scipy.stats')
  rows = maze(20, 6, 30)
  random = np.random.default_rng(0)
  columns = random.integers(-3, 4, (3, len(rows))).astype(np.float32)
  columns[1] -= columns[0]
  results = {f's{i}': result(rows, column) for i, column in enumerate(columns)}
  figure = plots.scheme_correlation(index(rows), results)
  expected = stats.spearmanr(columns.T).statistic
  found = figure.axes[0].images[0].get_array()
  np.testing.assert_allclose(found, expected, atol=1e-12)
  assert cells(figure) == [f'{x:.2f}' for x in expected.ravel()]
  assert f'{len(rows)} steps of 1 task' in figure.axes[0].get_title()


def test_correlation_by_hand_and_a_constant_scheme():
  rows = walk(['A-a-B-b-C-c-G'], success=(0,))
  values = {'up': [1, 2, 9], 'down': [3, 2, 0], 'same': [5, 5, 5]}
  results = {name: result(rows, v) for name, v in values.items()}
  figure = plots.scheme_correlation(index(rows), results)
  assert cells(figure) == ['1.00', '-1.00', '-', '-1.00', '1.00'] + ['-'] * 4
  with pytest.raises(ValueError, match='up: an advantage is not finite'):
    plots.scheme_correlation(index(rows), {'up': result(rows, [1, 2, np.nan])})


@pytest.mark.parametrize('name', ['distance', 'heat', 'correlation', 'attempt'])
def test_same_input_same_bytes(name, tmp_path):
  rows = reference.toy_rows()
  steps = index(rows)
  results = {
    'gigpo': result(rows, reference.gigpo(rows)),
    'graphgpo': result(rows, reference.graphgpo(rows)),
  }
  draw = {
    'distance': lambda: plots.advantage_by_distance(steps, results),
    'heat': lambda: plots.credit_heat_map(steps, 0, results),
    'correlation': lambda: plots.scheme_correlation(steps, results),
    'attempt': lambda: plots.attempt_path(steps, 0, 2, results),
  }[name]
  for file in 'ab':
    plots.save(draw(), tmp_path / f'{file}.svg')
  first, second = sorted(tmp_path.iterdir())
  assert first.read_bytes() == second.read_bytes()
  assert first.stat().st_size > 5000
