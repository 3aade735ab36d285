"""Pictures of graphs: what is drawn where, asserted on the figure objects."""

import numpy as np
import pytest
import reference
from pictures import drawn, edges, index, labels, maze, panels, result, walk

from graphgpo_jax import layout, plots


def draw(rows, *advantages, **keywords):
  results = {f'p{i}': result(rows, a) for i, a in enumerate(advantages)}
  return plots.credit_graph(index(rows), 0, results, **keywords)


def is_green(colours):
  return colours[:, 1] > colours[:, 0]


def is_red(colours):
  return colours[:, 0] > 1.3 * colours[:, 1]


def toy_advantages(rows):
  names = reference.grpo, reference.gigpo, reference.graphgpo
  return [scheme(rows) for scheme in names]


def test_one_panel_per_result_with_the_same_nodes():
  rows = reference.toy_rows()
  figure = draw(rows, *toy_advantages(rows))
  axes = panels(figure)
  assert [ax.get_title(loc='left') for ax in axes] == ['p0', 'p1', 'p2']
  assert labels(axes[0]) == labels(axes[1]) == labels(axes[2])
  assert len(figure.axes) == 4  # and one colour bar for all
  words = 'toy: 5 states, 4 attempts, 12 steps; 2 reached the goal'
  assert figure.get_suptitle() == words


def test_nodes_stand_at_their_distance():
  rows = reference.toy_rows()
  (ax,) = panels(draw(rows, np.ones(12)))
  x = {name: place[0] for name, place in labels(ax).items()}
  assert [x[name] for name in ('goal', 'B', 'A', 'C')] == [0, 1, 2, 3]
  assert x['D'] > 3.5 and x['E'] > x['D']
  left, right = ax.get_xlim()
  assert left > x['E'] and right < 0  # the goal at the right end
  ticks = {t.get_text(): t.get_position()[0] for t in ax.get_xticklabels()}
  assert ticks['3'] == 3 and ticks['no path'] > 3.5
  assert ax.get_xlabel() == 'steps to the goal'
  np.testing.assert_allclose(drawn(ax, 'goal').get_offsets()[:, 0], 0)
  np.testing.assert_allclose(drawn(ax, 'starts').get_offsets()[:, 0], 2)


def test_costs_scale_the_axis():
  rows = walk(['A-a-B-b-G', 'A-c-C-d-G'], success=(0, 1), costs={(0, 1): 2.5})
  (ax,) = panels(draw(rows, np.ones(4)))
  x = {name: place[0] for name, place in labels(ax).items()}
  assert (x['B'], x['A'], x['C']) == (2.5, 2, 1)
  assert ax.get_xlabel() == 'distance to the goal'


def test_groups_have_their_own_paths_and_repeats_share_one():
  # Twice the same step; the same with another advantage; another action.
  rows = walk(['A-a-B', 'A-a-B', 'A-a-B', 'A-b-B', 'B-c-A'])
  (ax,) = panels(draw(rows, [1, 1, -1, 1, 1]))
  corners, _, widths, _ = edges(ax)
  assert len(corners) == 4
  middles = np.round(corners.mean(1), 6)
  assert len(np.unique(middles, axis=0)) == 4
  assert (widths > widths.min() + 0.1).sum() == 1  # the repeated one


def test_parallel_edges_fan_out_evenly():
  rows = walk([f'A-{a}-G' for a in 'abcde'], success=range(5))
  corners, *_ = edges(panels(draw(rows, np.ones(5)))[0])
  heights = np.sort(corners[:, 1, 1])
  assert len(heights) == 5
  np.testing.assert_allclose(heights, -heights[::-1], atol=1e-6)
  assert np.diff(heights).min() > 0.05  # inches


def test_directions_bend_apart():
  rows = walk(['A-a-B-b-A-c-B-d-A-e-B-f-G'], success=(0,))
  (ax,) = panels(draw(rows, [1, -2, 3, -4, 5, 6]))
  corners, colours, _, _ = edges(ax)
  # Edges between A at 2 and B at 1: forward green, back red.
  between = corners[:, :, 0].mean(1) > 1
  rise = corners[between, 1, 1]
  green = is_green(colours[between])
  assert (between.sum(), green.sum()) == (5, 3)
  low, high = sorted([rise[green], rise[~green]], key=np.max)
  assert low.max() < high.min() - 0.05  # inches


def test_jumps_pass_by_the_nodes_between():
  rows = walk(['A-a-B-b-C-c-A-a-B-b-C-d-G'], success=(0,))
  (ax,) = panels(draw(rows, [1, 1, -1, 1, 1, 1]))
  corners, colours, _, _ = edges(ax)
  (arc,) = corners[~is_green(colours)]
  assert arc[:, 0].min() < 1.5 and arc[:, 0].max() > 2.5
  b = labels(ax)['B'][1]
  assert abs(arc[1:3, 1].mean() * 0.75 + arc[[0, 3], 1].mean() * 0.25 - b) > 0.2


def test_self_loops_leave_the_node():
  rows = walk(['A-a-A-b-A-c-G'], success=(0,))
  (ax,) = panels(draw(rows, [1, -1, 1]))
  corners, *_ = edges(ax)
  tall = np.sort(corners[:, 1:3, 1].max(1))
  assert tall[0] < 0.01 and tall[1] > 0.2 and tall[2] > tall[1] + 0.02


def test_colour_style_and_width_follow_the_advantage():
  rows = walk([f'A-{a}-G' for a in 'abcde'], success=range(5))
  (ax,) = panels(draw(rows, [2, 0.2, 0, -0.2, -2]))
  _, colours, widths, dashed = edges(ax)
  # The largest |advantage| is drawn last; equal ones in the order of actions.
  order = [0, 0.2, -0.2, 2, -2]
  assert is_green(colours).tolist() == [x > 0 for x in order]
  assert is_red(colours).tolist() == [x < 0 for x in order]
  assert dashed.tolist() == [x <= 0 for x in order]
  assert widths[0] < widths[1] == widths[2] < widths[3] == widths[4]
  heads = drawn(ax, 'edges heads').get_facecolors()
  np.testing.assert_array_equal(heads, colours)


@pytest.mark.parametrize('factor, bars', [(3, 1), (10, 2)])
def test_scales_far_apart_have_their_own_bars(factor, bars):
  rows = walk(['A-a-B-b-G', 'A-c-B'], success=(0,))
  one = np.array([1.0, -0.5, 0.3])
  figure = draw(rows, one, factor * one)
  extra = [ax for ax in figure.axes if ax not in panels(figure)]
  limits = [ax.get_ylim() for ax in extra]
  wanted = [(-1, 1), (-10, 10)] if bars == 2 else [(-3, 3)]
  np.testing.assert_allclose(limits, wanted, rtol=1e-6)
  shared = ', all panels' if bars == 1 else ''
  assert extra[0].get_ylabel() == f'advantage{shared}'


def test_failed_ends_and_starts_are_marked():
  rows = reference.toy_rows()
  (ax,) = panels(draw(rows, np.ones(12)))
  nodes = drawn(ax, 'nodes')
  dark = nodes.get_facecolors()[:, 0] < 0.5
  x = {name: place[0] for name, place in labels(ax).items()}
  np.testing.assert_allclose(
    np.sort(nodes.get_offsets()[dark, 0]), sorted([x['D'], x['E']])
  )
  assert drawn(ax, 'goal').get_facecolors()[0, 0] < 0.5
  assert len(drawn(ax, 'starts').get_offsets()) == 1
  assert 'start' in x and 'goal' in x


def test_no_success():
  rows = walk(['A-a-B-b-C', 'A-a-B-a-B'])
  (ax,) = panels(draw(rows, [1, 1, -1, -1]))
  places = labels(ax)
  assert drawn(ax, 'goal').get_facecolors()[0, 0] == 1  # hollow
  assert 'goal\n(never reached)' in places
  assert 0 < places['A'][0] < places['B'][0] < places['C'][0]


def test_single_step_with_zero_advantage():
  rows = walk(['A-a-G'], success=(0,), task=7)
  figure = draw(rows, [0])
  _, colours, widths, _ = edges(panels(figure)[0])
  assert len(widths) == 1 and np.isfinite(widths).all()
  assert not is_green(colours).any() and not is_red(colours).any()
  words = '7: 1 state, 1 attempt, 1 step; 1 reached the goal'
  assert figure.get_suptitle() == words


def test_picks_the_task_and_the_order_of_rows():
  rows = walk(['A-a-G'], success=(0,)) + walk(['A-a-B', 'A-b-B'], task='u')
  rows = [rows[2], rows[0], rows[1]]  # u, t, u
  steps = index(rows)
  results = {'p': result(rows, [1, 5, -1])}
  (ax,) = panels(plots.credit_graph(steps, steps.tasks.index('u'), results))
  corners, colours, _, _ = edges(ax)
  assert len(corners) == 2 and is_green(colours).sum() == 1


@pytest.mark.parametrize(
  'nodes, attempts, length', [(50, 8, 30), (500, 16, 200), (600, 1, 650)]
)
def test_large_graphs(nodes, attempts, length):
  rows = maze(nodes, attempts, length)
  figure = draw(rows, np.random.default_rng(1).normal(size=len(rows)))
  (ax,) = panels(figure)
  wide, high = figure.get_size_inches()
  assert wide < 25 and high < 12
  count = len(index(rows).texts[0])
  assert attempts == 1 or count > 0.85 * nodes
  assert f'{count} states' in figure.get_suptitle()
  assert ('1' in labels(ax)) == (count < layout.LABELLED)
  corners, *_ = edges(ax)
  assert np.isfinite(corners).all()


def test_odd_texts_are_no_markup(tmp_path):
  rows = walk(['$-a-_-b-G'], success=(0,), task='$x_{')
  for title in ('$y^{', '\x01\udcff\u4e2d', None):
    plots.save(draw(rows, [1, -1], title=title), tmp_path / 'a.png')
    assert (tmp_path / 'a.png').stat().st_size > 5000


@pytest.mark.parametrize('task', [-1, 1])
def test_rejects_an_unknown_task(task):
  rows = walk(['A-a-G'], success=(0,))
  with pytest.raises(ValueError, match=f'task: found {task}'):
    plots.credit_graph(index(rows), task, {'p': result(rows, [1])})


def test_rejects_no_panel_and_no_number():
  rows = walk(['A-a-G'], success=(0,))
  with pytest.raises(ValueError, match='results'):
    plots.credit_graph(index(rows), 0, {})
  with pytest.raises(ValueError, match='p0.*not finite'):
    draw(rows, [np.nan])


WRONG = {  # of one step: (what a panel is given for it, words)
  'missing': ({'advantage': None}, 'p: no advantage, allowed: arrays of'),
  'no way': ({'reachable': None}, 'p: no reachable, allowed: arrays of'),
  'short': ({'advantage': np.ones(0)}, r'p: advantage: found .* shape \(0,\)'),
  'deep': ({'distance': np.ones((1, 1))}, r'p: distance: found .*\(1, 1\)'),
  'text': ({'advantage': np.array(['1'])}, 'p: advantage: found <U1 of'),
  'complex': ({'advantage': np.ones(1, 'c8')}, 'p: advantage: found complex64'),
  'flags': ({'reachable': np.ones(1)}, 'p: reachable: found float64 .* bool'),
  'nan': ({'distance': np.array([np.nan])}, 'p: a distance is not finite'),
}


@pytest.mark.parametrize('name', WRONG)
def test_arrays_that_are_not_one_number_per_row_are_named(name):
  rows = walk(['A-a-G'], success=(0,))
  change, words = WRONG[name]
  panel = result(rows, [1]) | change
  panel = {k: v for k, v in panel.items() if v is not None}
  steps = index(rows)
  draws = {
    'graph': lambda results: plots.credit_graph(steps, 0, results),
    'attempt': lambda results: plots.attempt_path(steps, 0, 0, results),
    'chart': lambda results: plots.advantage_by_distance(steps, results),
  }
  for draw_it in draws.values():
    with pytest.raises(ValueError, match=words) as caught:
      draw_it({'p': panel})
    assert '\n' not in str(caught.value)
  with pytest.raises(ValueError, match='p: no advantage'):
    plots.credit_heat_map(steps, 0, {'p': None})


def test_names_of_panels_may_be_any_text(tmp_path):
  rows = walk(['A-a-B-b-G', 'A-a-B'], success=(0,))
  steps, name = index(rows), '\ud800 $x_{\n\x00'
  results = {name: result(rows, [1, 2, 3]), 'p': result(rows, [3, 1, 2])}
  for figure in (
    plots.credit_graph(steps, 0, results),
    plots.advantage_by_distance(steps, results),
    plots.credit_heat_map(steps, 0, results),
    plots.scheme_correlation(steps, results),
  ):
    plots.save(figure, tmp_path / 'a.png')
    assert (tmp_path / 'a.png').stat().st_size > 5000


def chain(nodes, attempts):
  """Attempts along one line of states; attempt i turns back after i steps."""
  paths = []
  for i in range(attempts):
    way = [*range(i), *range(max(i - 2, 0), nodes)]
    paths.append('-'.join([f'{s}-{t % 2}' for t, s in enumerate(way)] + ['G']))
  return walk(paths, success=range(attempts))


def test_large_graphs_say_what_is_left_out():
  rows = maze(300, 12, 100)
  steps = index(rows)
  figure = draw(rows, np.random.default_rng(1).normal(size=len(rows)))
  (ax,) = panels(figure)
  ends = layout.choose(steps, np.arange(len(rows)), result(rows, [0]))
  total = len(steps.texts[0])
  assert len(ends) <= layout.NODES < total and ends[0] == 0
  offsets = [len(drawn(ax, g).get_offsets()) for g in ('nodes', 'starts')]
  assert sum(offsets) == len(ends) - 1
  inside = np.isin(steps.state, ends) & np.isin(steps.next_state, ends)
  table = np.stack([steps.action, steps.next_state], 1)
  shown = len(set(map(tuple, table[inside].tolist())))
  edges_of_all = len(set(map(tuple, table.tolist())))
  words = figure.get_suptitle().splitlines()[-1]
  start = f'drawn: {len(ends) - 1} of {total} states, the most visited, '
  start += 'with ways to the goal; '
  assert words.startswith(f'{start}{shown:,} of {edges_of_all:,} edges')


def test_too_many_arcs_become_one_per_edge():
  rows = walk([f'A-{a % 2}-G' for a in range(420)], success=range(420))
  advantage = np.arange(420) % 2 + np.linspace(0, 0.5, 420)
  figure = draw(rows, advantage)
  (ax,) = panels(figure)
  corners, colours, *_ = edges(ax)
  assert len(corners) == 2
  means = [advantage[0::2].mean(), advantage[1::2].mean()]
  expected = plots.COLOURS(plots.common.norm(advantage.max())(means))
  np.testing.assert_allclose(colours, expected, atol=1e-6)
  assert figure.get_suptitle().endswith(
    'one arc an edge: the mean of its steps'
  )


def numbers(ax):
  return sorted(t.get_text() for t in ax.texts if t.get_gid() == 'step')


def test_attempt_is_coloured_and_numbered_all_else_grey():
  rows = reference.toy_rows()
  advantage = reference.graphgpo(rows)
  results = {'a': result(rows, advantage), 'b': result(rows, -advantage)}
  figure = plots.attempt_path(index(rows), 0, 1, results)
  first, second = panels(figure)
  own = np.array([i for i, r in enumerate(rows) if r['attempt'] == 't1'])
  scale = np.abs(advantage).max()
  for ax, values in ((first, advantage[own]), (second, -advantage[own])):
    found = sorted(map(tuple, edges(ax)[1].round(6)))
    wanted = plots.COLOURS(plots.common.norm(scale)(values)).round(6)
    np.testing.assert_allclose(found, sorted(map(tuple, wanted)), atol=2e-4)
  assert numbers(first) == ['0', '1', '2', '3']
  pairs = {(r['state'], r['next_state']) for r in rows}
  mine = {(rows[i]['state'], rows[i]['next_state']) for i in own}
  grey = drawn(first, 'others')
  assert len(grey.get_paths()) == len(pairs - mine) > 0
  assert np.ptp(grey.get_edgecolors()[0, :3]) == 0
  title = figure.get_suptitle().splitlines()
  assert title[0] == 'toy, attempt t1: 4 steps, reached the goal'
  assert title[1].startswith('5 states, 4 attempts, 12 steps; 2 reached')


def test_attempts_that_share_nothing_are_drawn():
  rows = walk([f'S{i}-a-E{i}' for i in range(130)])
  results = {'p': result(rows, np.ones(len(rows)))}
  title = plots.credit_graph(index(rows), 0, results).get_suptitle()
  assert '260 states' in title and 'drawn' in title


def test_earlier_visits_do_not_dilute_an_arc():
  rows = walk(['A-a-B', 'A-a-B', 'B-b-A'])
  for row in rows[1:]:
    row['credited'] = False
  advantage = np.array([2.0, 0.0, 0.0])
  for merged, expected in ((True, [0, 2]), (False, [0, 0, 2])):
    groups = plots.graph._groups(
      *(index(rows), np.arange(3), advantage, 2.0), merged=merged
    )
    assert groups[1].tolist() == expected


def test_repeats_of_an_attempt_share_an_arc_and_its_numbers():
  rows = walk(['A-a-B-b-A-a-B-b-A-a-B-b-A-a-B', 'A-c-A'])
  advantage = np.array([1, -1, 1, -1, 1, -1, 1, 0])
  results = {'p': result(rows, advantage)}
  figure = plots.attempt_path(index(rows), 0, 0, results)
  assert numbers(panels(figure)[0]) == ['0, 2, 4, …', '1, 3, 5']
  assert figure.get_suptitle().startswith('t, attempt 0: 7 steps, failed')


def test_ways_of_other_starts_give_room_to_an_attempt():
  rows = maze(300, 12, 100)
  steps = index(rows)
  own = np.flatnonzero(steps.attempt == 3)
  always = np.append(steps.state[own], steps.next_state[own])
  given = np.arange(len(rows)), result(rows, [0])
  found = layout.choose(steps, *given, always=always)
  assert set(always.tolist()) < set(found.tolist())
  assert len(found) <= max(layout.NODES, len(set(always.tolist())) + 1)


def test_all_states_of_a_long_attempt_are_drawn():
  rows = chain(160, 3)
  results = {'p': result(rows, np.ones(len(rows)))}
  figure = plots.attempt_path(index(rows), 0, 0, results)
  (ax,) = panels(figure)
  assert len(edges(ax)[0]) == 160
  assert len(numbers(ax)) == 40  # one in 4
  words = [t.get_text() for t in figure.legends[0].get_texts()]
  assert words[-1] == 'numbers: steps of the attempt, from 0, one in 4'


@pytest.mark.parametrize('attempt', [-1, 2])
def test_rejects_an_unknown_attempt(attempt):
  rows = walk(['A-a-G', 'A-a-G'], success=(0, 1))
  with pytest.raises(ValueError, match=rf'{attempt}, allowed: 0\.\.1'):
    plots.attempt_path(index(rows), 0, attempt, {'p': result(rows, [1, 1])})
