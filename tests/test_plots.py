"""Pictures: what is drawn where, asserted on the figure objects."""

import numpy as np
import pytest
import reference

from graphgpo_jax import layout, log, plots, states


def walk(attempts, *, success=(), costs=None, task='t'):
  """Steps of attempts given as words 'A-a-B-b-C': state, action, state, ..."""
  rows = []
  for attempt, path in enumerate(attempts):
    words = path.split('-')
    for t in range(len(words) // 2):
      state, action, after = words[2 * t : 2 * t + 3]
      last = 2 * t + 3 == len(words)
      won = last and attempt in success
      row = {'task': task, 'attempt': attempt, 'step': t, 'state': state}
      row |= {'action': action, 'next_state': after, 'reward': 10.0 * won}
      row |= {'success': won, 'terminal': last, 'truncated': False}
      row |= {'valid': True, 'cost': (costs or {}).get((attempt, t), 1.0)}
      rows.append(row)
  return rows


def index(rows):
  return states.index_steps(log.columns(rows))


def result(rows, advantage):
  """Distances by the oracle, so that no scheme stands behind the picture."""
  raw, _ = reference.raw_distances(rows)
  return {
    'advantage': np.asarray(advantage, np.float32),
    'distance': reference.distances(rows)[0].astype(np.float32),
    'reachable': np.isfinite(raw),
  }


def draw(rows, *advantages, **keywords):
  results = {f'p{i}': result(rows, a) for i, a in enumerate(advantages)}
  return plots.credit_graph(index(rows), 0, results, **keywords)


def panels(figure):
  return [ax for ax in figure.axes if ax.get_xlabel().endswith('to the goal')]


def drawn(ax, gid):
  return next(c for c in ax.collections if c.get_gid() == gid)


def labels(ax):
  return {text.get_text(): text.get_position() for text in ax.texts}


def edges(ax):
  """(corners [G, 4, 2], colours [G, 4], widths [G], dashed [G])."""
  lines = drawn(ax, 'edges')
  corners = np.array([path.vertices for path in lines.get_paths()])
  dashed = np.array([style[1] is not None for style in lines.get_linestyles()])
  return corners, lines.get_edgecolors(), lines.get_linewidths(), dashed


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
  heads = drawn(ax, 'heads').get_facecolors()
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


def maze(nodes, attempts, length):
  """Random walks on a ring of states, from random starts."""
  rng = np.random.default_rng(0)
  paths = []
  for _ in range(attempts):
    jumps = rng.choice([-1, 0, 1, 2], length)
    jumps[0] = rng.integers(nodes)
    walked = zip(jumps.cumsum() % nodes, rng.integers(0, 3, length))
    words = [f'{state}-{action}' for state, action in walked]
    paths.append('-'.join([*words, 'end']))
  return walk(paths, success=range(attempts // 2))


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


@pytest.mark.parametrize('suffix', ['png', 'svg', 'pdf'])
def test_same_input_same_bytes(tmp_path, suffix):
  rows = reference.toy_rows()
  for name in 'ab':
    figure = draw(rows, reference.gigpo(rows))
    plots.save(figure, tmp_path / f'{name}.{suffix}')
  first, second = sorted(tmp_path.iterdir())
  assert first.read_bytes() == second.read_bytes()
  assert first.stat().st_size > 5000


def test_save_names_the_suffix(tmp_path):
  figure = plots.learning_curves({'a': [([0, 1], [0, 1])]}, ylabel='y')
  with pytest.raises(ValueError, match=r"'\.gif'.*\.png"):
    plots.save(figure, tmp_path / 'a.gif')
  assert not list(tmp_path.iterdir())


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
  with pytest.raises(ValueError, match='curves'):
    plots.learning_curves({}, ylabel='y')


def curve(runs):
  """(x, mean, lower, upper) and the legend's words of one label."""
  figure = plots.learning_curves({'a': runs}, ylabel='success')
  ax = figure.axes[0]
  assert len(ax.lines) == len(runs) + 1
  x, mean = ax.lines[-1].get_data()
  words = ax.get_legend().get_texts()[0].get_text()
  if not ax.collections:
    return x, mean, None, None, words
  band = ax.collections[0].get_paths()[0].vertices
  ends = [band[band[:, 0] == at, 1] for at in x]
  low, high = [e.min() for e in ends], [e.max() for e in ends]
  return x, mean, low, high, words


def test_band_of_three_seeds_is_a_t_interval():
  x, mean, low, high, words = curve([([0, 1], [y, 2 * y]) for y in (1, 2, 3)])
  np.testing.assert_allclose(mean, [2, 4])
  half = 4.3027 / np.sqrt(3) * np.array([1, 2])
  np.testing.assert_allclose(low, [2, 4] - half, rtol=1e-4)
  np.testing.assert_allclose(high, [2, 4] + half, rtol=1e-4)
  assert words == 'a (3 seeds, band: 95 % t interval)'


def test_band_of_two_seeds_is_their_range():
  runs = [([0, 1, 2], [0, 2, 9]), ([0, 1], [4, np.nan]), ([0, 1], [4, 8])]
  x, mean, low, high, words = curve([runs[0], runs[2]])
  np.testing.assert_allclose(x, [0, 1])  # where both are
  np.testing.assert_allclose([mean, low, high], [[2, 5], [0, 2], [4, 8]])
  assert words == 'a (2 seeds, band: min-max)'
  x, mean, *_ = curve(runs[:2])  # the point that is no number is left out
  np.testing.assert_allclose([x, mean], [[0], [2]])


def test_one_seed_has_no_band():
  *_, low, _, words = curve([([0, 1], [0, 1])])
  assert low is None and words == 'a (1 seed)'


@pytest.mark.parametrize('count', [2, 3, 9, 10, 31])
def test_t_interval_against_scipy(count):
  stats = pytest.importorskip('scipy.stats')
  runs = [([0, 1], [y, y]) for y in np.random.default_rng(0).normal(size=count)]
  _, _, low, high, _ = curve(runs)
  values = np.array([run[1][0] for run in runs])
  half = stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / count**0.5
  if count == 2:
    half = np.ptp(values) / 2
  np.testing.assert_allclose((high[0] - low[0]) / 2, half, rtol=2e-3)
