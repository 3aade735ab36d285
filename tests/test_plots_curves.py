"""Learning curves and their intervals; pictures as files."""

import numpy as np
import pytest
import reference
from pictures import index, result

from graphgpo_jax import plots


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


def test_rejects_no_curve():
  with pytest.raises(ValueError, match='curves'):
    plots.learning_curves({}, ylabel='y')


@pytest.mark.parametrize(
  'run, words',
  [
    (([1, 2], [1]), 'run 1 is no pair of rows of numbers, allowed: .x .n., y'),
    (([1, 2], ['x', 'y']), 'run 1 is no pair'),
    ([[1, 2]], 'run 1 is no pair'),
    (3, 'run 1 is no pair'),
    (([2, 1], [1, 3]), 'the x of run 1 falls, allowed: x that rises'),
  ],
)
def test_wrong_runs_are_named(run, words):
  with pytest.raises(ValueError, match=f"^curves: 'a': {words}"):
    plots.learning_curves({'a': [([0, 1], [0, 1]), run]}, ylabel='y')


def test_labels_may_be_any_text_and_runs_empty():
  runs = {'_hidden': [], '$x_{': [()], '\ud800': [([1, 2], [0, np.nan])]}
  figure = plots.learning_curves(runs, ylabel='$x_{')
  figure.canvas.draw()
  texts = figure.axes[0].get_legend().get_texts()
  assert [t.get_text() for t in texts] == [
    ' _hidden (0 seeds)',
    '$x_{ (0 seeds)',
    '\ufffd (1 seed)',
  ]


@pytest.mark.parametrize('suffix', ['png', 'svg', 'pdf'])
def test_same_input_same_bytes(tmp_path, suffix):
  rows = reference.toy_rows()
  for name in 'ab':
    results = {'p': result(rows, reference.gigpo(rows))}
    figure = plots.credit_graph(index(rows), 0, results)
    plots.save(figure, tmp_path / f'{name}.{suffix}')
  first, second = sorted(tmp_path.iterdir())
  assert first.read_bytes() == second.read_bytes()
  assert first.stat().st_size > 5000


def test_save_names_the_suffix(tmp_path):
  figure = plots.learning_curves({'a': [([0, 1], [0, 1])]}, ylabel='y')
  with pytest.raises(ValueError, match=r"'\.gif'.*\.png"):
    plots.save(figure, tmp_path / 'a.gif')
  assert not list(tmp_path.iterdir())
