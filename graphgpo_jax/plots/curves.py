"""Learning curves: mean over seeds, with an interval."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from graphgpo_jax.plots.common import count, new_figure, printable

T_975 = (4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060)  # 2..8 degrees


def learning_curves(
  curves: Mapping[str, Sequence[tuple]],
  *,
  ylabel: str,
  title: str | None = None,
) -> Figure:
  """Mean over seeds with its band, and every seed as a thin line.

  Args:
    curves: label -> runs, each (x [n] increasing, y [n]); points that are not
      finite are left out. The mean covers the x that all runs of the label
      reach; between their points runs are interpolated.

  Raises:
    ValueError: there is no curve, or a run that is not two rows of numbers, x
      not falling.
  """
  if not curves:
    raise ValueError('curves: empty, at least one is needed')
  figure = new_figure(7, 4.2, layout='constrained')
  ax = figure.add_subplot()
  for i, (label, runs) in enumerate(curves.items()):
    runs = list(_finite(label, runs))
    colour = f'C{i % 10}'
    for run in runs:
      ax.plot(*run, color=colour, lw=0.7, alpha=0.45)
    x, mean, half, words = _band(runs)
    # Behind a space, since matplotlib leaves out what begins with '_'.
    label = ' ' * str(label).startswith('_') + printable(label)
    label += f' ({count(len(runs), "seed")}{words})'
    ax.plot(x, mean, color=colour, lw=2, label=label)
    if words:
      ax.fill_between(x, *half, color=colour, alpha=0.18, lw=0)
  ax.set_xlabel('update')
  ax.set_ylabel(ylabel, parse_math=False)
  ax.set_title(title or '', parse_math=False)
  ax.grid(alpha=0.25)
  ax.spines[['right', 'top']].set_visible(False)
  for words in ax.legend(frameon=False, fontsize=9).get_texts():
    words.set_parse_math(False)
  return figure


def _finite(label, runs):
  """Yields the finite points [2, n] of every run of a label that has any."""
  for number, run in enumerate(runs):
    try:
      points = np.array(run, float)
    except (TypeError, ValueError):  # ragged, or no numbers
      points = np.zeros((1, 1))
    if points.size and (points.ndim != 2 or len(points) != 2):
      words = f'curves: {label!r}: run {number} is no pair of rows of numbers'
      raise ValueError(f'{words}, allowed: (x [n], y [n])')
    points = points.reshape(2, -1)
    points = points[:, np.isfinite(points).all(0)]
    if (np.diff(points[0]) < 0).any():
      words = f'curves: {label!r}: the x of run {number} falls'
      raise ValueError(f'{words}, allowed: x that rises')
    if points.size:
      yield points


def _band(runs):
  """x, mean, (lower, upper end) of the band, words for the legend."""
  if not runs:
    return [], [], None, ''
  x = np.unique(np.concatenate([run[0] for run in runs]))
  x = x[(x >= max(run[0, 0] for run in runs))]
  x = x[(x <= min(run[0, -1] for run in runs))]
  values = np.stack([np.interp(x, *run) for run in runs])
  mean, number = values.mean(0), len(runs)
  if number < 3:
    ends = values.min(0), values.max(0)
    return x, mean, ends, ', band: min-max' if number == 2 else ''
  n = number - 1
  # Beyond the table the expansion around the normal quantile, to 1e-3.
  t = T_975[n - 2] if n < 9 else 1.959964 + 2.372271 / n + 2.822513 / n**2
  half = t * values.std(0, ddof=1) / number**0.5
  return x, mean, (mean - half, mean + half), ', band: 95 % t interval'
