"""Advantages in numbers: by distance, by step and attempt, between schemes."""

from collections.abc import Mapping

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from graphgpo_jax.plots import common
from graphgpo_jax.plots.common import COLOURS, INK, count

POINTS = 1500  # drawn per panel; statistics are of all steps
BINS = 24  # of distances
LANE = 0.29  # of a bin, between steps that go away, stay as far, come closer
TURNS = {1: ('v', 'goes away'), 0: ('o', 'as far'), -1: ('^', 'comes closer')}
ROWS, COLUMNS = 40, 200  # of a heat map
LABEL = 16  # characters of an attempt


def advantage_by_distance(
  steps,
  results: Mapping[str, Mapping[str, np.ndarray]],
  *,
  task: int | None = None,
) -> Figure:
  """Per scheme: advantages against the distance to the goal before the step.

  Beside each other stand the steps that go away, stay as far, and come closer:
  a box from quartile to quartile with the median, of all credited steps, and
  the steps as points, a sample if they are many, moved sideways at random.
  Distances are put into bins if they are not few integers. Steps from states
  without a path to the goal stand apart.

  Args:
    steps, results: as of `credit_graph`.
    task: number of the task; all tasks together if None.

  Raises:
    ValueError: no such task, no panel, or a panel of wrong arrays.
  """
  kept = _credited(steps, task)
  credit = common.select(steps, results, kept, distances=True)
  both = _turns(steps, next(iter(results.values())))
  distance, turn = (column[kept] for column in both)
  unit_costs = bool((steps.cost[kept] == 1).all())
  x, far, width = _places(distance, unit_costs)
  lanes = x + LANE * width * turn
  sample = np.arange(len(kept))
  if len(kept) > POINTS:
    random = np.random.default_rng(0)
    sample = np.sort(random.choice(len(kept), POINTS, replace=False))
  scales, shared = common.scales(credit.values())
  high = 2.3 * len(credit) + 1.2
  figure = common.new_figure(9.5, high, layout='constrained')
  axes = figure.subplots(len(credit), sharex=True, sharey=shared, squeeze=False)
  axes = axes[:, 0]
  for ax, (name, advantage), scale in zip(axes, credit.items(), scales):
    _draw_points(ax, lanes, advantage, turn, sample, scale, width)
    _draw_boxes(ax, lanes, advantage, width)
    common.set_panel_title(ax, name)
    ax.set_ylabel('advantage')
  _draw_distances(axes, x, far, width, unit_costs)
  _add_words(figure, steps, task, np.isfinite(distance), turn, len(sample))
  return figure


def credit_heat_map(
  steps,
  task: int,
  results: Mapping[str, Mapping[str, np.ndarray]],
  *,
  title: str | None = None,
) -> Figure:
  """Advantages of a task, attempts x steps, one panel per scheme.

  Successful attempts come first and carry a star. A dash marks a negative
  advantage. Of many attempts evenly spaced ones are drawn; of long ones a
  column is the mean of several steps; the title says so.

  Args:
    steps, task, results, title: as of `credit_graph`.

  Raises:
    ValueError: no such task, no panel, or a panel of wrong arrays.
  """
  kept = common.task_steps(steps, task)
  credit = common.select(steps, results, kept)
  attempt, step = steps.attempt[kept], steps.step[kept]
  won = np.zeros(attempt.max() + 1, bool)
  won[attempt[steps.success[kept]]] = True
  rows = np.argsort(~won, kind='stable')
  if len(rows) > ROWS:
    rows = rows[np.linspace(0, len(rows) - 1, ROWS).round().astype(int)]
  every = -(-int(step.max() + 1) // COLUMNS)
  names = common.attempt_names(steps, task, LABEL)
  scales, shared = common.scales(credit.values())
  shape = len(rows), int(step.max()) // every + 1
  figure, axes = _heat_frame(len(credit), shape, every)
  look = {'cmap': COLOURS, 'aspect': 'auto', 'interpolation': 'nearest'}
  label = 'advantage' + ', all panels' * (shared and len(axes) > 1)
  for ax, (name, advantage), scale in zip(axes, credit.items(), scales):
    table = _table(attempt, step // every, advantage, rows)
    image = ax.imshow(table, norm=common.norm(scale), **look)
    _draw_dashes(ax, table, image)
    common.set_panel_title(ax, name)
    labels = [
      f'{"★ " if won[row] else ""}{names[row]}' for row in rows.tolist()
    ]
    ax.set_yticks(range(len(rows)), labels, fontsize=min(9, 300 / len(rows)))
    if not shared:
      figure.colorbar(image, ax=ax, label=label, pad=0.01)
  if shared:
    bar = ScalarMappable(common.norm(scales.max()), COLOURS)
    figure.colorbar(bar, ax=axes.tolist(), label=label, pad=0.01)
  title = _heat_title(common.task_title(steps, task, title), won, rows, every)
  figure.suptitle(title, fontsize=10, parse_math=False)
  return figure


def scheme_correlation(
  steps, results: Mapping[str, Mapping[str, np.ndarray]]
) -> Figure:
  """Rank (Spearman) correlations of the schemes' advantages, as a matrix.

  Over all credited steps; equal advantages share their mean rank. A scheme that
  gives every step the same has none: '-'.

  Raises:
    ValueError: no panel, or a panel of wrong arrays.
  """
  kept = _credited(steps, None)
  credit = common.select(steps, results, kept)
  table = np.ma.masked_invalid(_correlations(list(credit.values())))
  side = 0.62 * len(credit) + 2
  figure = common.new_figure(side + 1, side, layout='constrained')
  ax = figure.add_subplot()
  image = ax.imshow(table, COLOURS, Normalize(-1, 1))
  colours = common.contrast(image.to_rgba(table).reshape(-1, 4))
  for i, value in enumerate(table.filled(np.nan).ravel()):
    known = np.isfinite(value)
    words = f'{value:.2f}'.replace('-0.00', '0.00') if known else '-'
    style = {'ha': 'center', 'va': 'center', 'fontsize': 9}
    style['color'] = colours[i] if known else INK
    ax.text(i % len(table), i // len(table), words, **style)
  names = [common.printable(name) for name in credit]
  ax.set_xticks(range(len(names)), names, rotation=40, ha='right')
  ax.set_yticks(range(len(names)), names)
  for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
    label.set_parse_math(False)
  figure.colorbar(image, ax=ax, label='rank correlation', shrink=0.8)
  counts = count(len(kept), 'step'), count(len(steps.tasks), 'task')
  ax.set_title('advantages of {} of {}'.format(*counts), fontsize=10)
  return figure


def _credited(steps, task):
  """Indices of the steps of a task (or all) that are not of earlier visits."""
  kept = np.arange(len(steps.row))
  if task is not None:
    kept = common.task_steps(steps, task)
  kept = kept[steps.credited[kept]]
  if not len(kept):
    raise ValueError('steps: none is credited, at least one is needed')
  return kept


def _places(distance, unit_costs):
  """x of every step, the largest distance, the width of a bin.

  The middle of its bin, or an integer distance itself; without a path, inf,
  beyond all others.
  """
  known = distance[np.isfinite(distance)]
  far = float(known.max()) if len(known) else 1.0
  width = float(-(-far // BINS)) if unit_costs else far / BINS
  x = distance
  if width != 1 or not unit_costs:
    x = np.clip(np.ceil(distance / width - 1e-6), 1, None) * width - width / 2
  return np.where(np.isfinite(x), x, far + 2.2 * width), far, width


def _turns(steps, result):
  """[N] distance before each step, inf without a path; whether the step comes
  closer (-1), stays as far (0; also without a path) or goes away (1).
  """
  sizes = np.array([1 + len(texts) for texts in steps.texts])
  first = np.cumsum(sizes) - sizes
  found = np.full(sizes.sum(), np.inf)
  reachable = np.asarray(result['reachable'])[steps.row]
  distance = np.asarray(result['distance'])[steps.row].astype(float)
  distance[~reachable] = np.inf
  found[first[steps.task] + steps.state] = distance
  found[first] = 0  # the goals
  after = found[first[steps.task] + steps.next_state]
  turn = np.zeros(len(distance), int)
  gap = after[reachable] - distance[reachable]
  turn[reachable] = np.sign(gap) * (np.abs(gap) > 1e-6 * distance[reachable])
  return distance, turn


def _draw_points(ax, lanes, advantage, turn, sample, scale, width):
  jitter = np.random.default_rng(1).uniform(-0.1, 0.1, len(sample)) * width
  look = {'cmap': COLOURS, 'norm': common.norm(scale)}
  few = len(sample) < 400  # then on top of the medians, which would hide them
  size = 20 if few else 8
  for which, (marker, _) in TURNS.items():
    own = sample[turn[sample] == which]
    x = lanes[own] + jitter[turn[sample] == which]
    y = advantage[own]
    points = ax.scatter(x, y, size, c=y, marker=marker, **look)
    points.set(
      linewidths=0, alpha=0.8, zorder=5 if few else 2, gid=f'points {which}'
    )
  ax.axhline(0, color=common.GREY, lw=0.8, zorder=1)
  ax.spines[['right', 'top']].set_visible(False)


def _draw_boxes(ax, x, advantage, width):
  """Quartiles and median per place on the axis."""
  places = np.unique(x)
  quarters = np.array(
    [np.quantile(advantage[x == at], [0.25, 0.5, 0.75]) for at in places]
  )
  left, right = places - 0.13 * width, places + 0.13 * width
  low, high = quarters[:, 0], quarters[:, 2]
  corners = [(left, low), (right, low), (right, high), (left, high)]
  boxes = PolyCollection(np.array(corners).transpose(2, 0, 1), gid='quartiles')
  boxes.set(facecolors='none', edgecolors=INK, linewidths=0.9, zorder=3)
  ax.add_collection(boxes, autolim=False)
  medians = ax.hlines(quarters[:, 1], left, right, color=INK, lw=2.4)
  medians.set(gid='medians', zorder=4)


def _draw_distances(axes, x, far, width, unit_costs):
  """The axis, the goal to its right as in the graph; the zone of no path."""
  ticks = [t for t in axes[-1].get_xticks() if 0 <= t <= far]
  if width == 1 and far <= 12:
    ticks = list(range(1, int(far) + 1))
  labels, left = [f'{t:g}' for t in ticks], far + 0.7 * width
  beyond = x.max()
  if beyond > far + width:
    left = beyond + 0.8 * width
    for ax in axes:
      ax.axvspan(beyond - 0.8 * width, left, color=common.ZONE, lw=0, zorder=0)
    ticks, labels = [*ticks, beyond], [*labels, 'no path']
  axes[-1].set_xticks(ticks, labels)
  axes[-1].set_xlim(left, 0)
  words = 'steps' if unit_costs else 'distance'
  bins = '' if width == 1 and unit_costs else f', in bins of {width:.3g}'
  axes[-1].set_xlabel(f'{words} to the goal before the step{bins}')


def _add_words(figure, steps, task, known, turn, drawn):
  """Title and legend: how many steps of which kind, how many are points."""
  points = 'all are points'
  if drawn < len(known):
    points = f'points: a sample of {drawn:,}'
  where = count(len(steps.tasks), 'task')
  if task is not None:
    where = common.task_title(steps, task, None)
  words = f'{where}: {count(len(known), "step")}, {(~known).sum():,} of them'
  words += f' with no path to the goal; {points}'
  figure.suptitle(words, fontsize=10, parse_math=False)
  handles = []
  for which, (marker, words) in TURNS.items():
    label = f'{words}: {(known & (turn == which)).sum():,}'
    look = {'marker': marker, 'color': INK, 'ms': 7, 'ls': ''}
    handles.append(Line2D([], [], label=label, **look))
  handles.append(Patch(fill=False, ec=INK, label='quartiles, median'))
  style = {'loc': 'outside lower center', 'ncols': 4, 'frameon': False}
  figure.legend(handles=handles, fontsize=9, **style)


def _heat_frame(panels, shape, every):
  """Figure and axes of heat maps, the cells as large as there is room."""
  wide = np.clip(0.3 * shape[1], 5.5, 12)
  high = np.clip(0.22 * shape[0], 0.9, 6)
  size = wide + 2, panels * (high + 0.55) + 0.9
  figure = common.new_figure(*size, layout='constrained')
  axes = figure.subplots(panels, sharex=True, squeeze=False)[:, 0]
  for ax in axes:
    ax.set_ylabel('attempt')
    ax.spines[:].set_visible(False)
    ax.tick_params(length=2)
  ticks = np.arange(0, shape[1], -(-shape[1] // 20))
  axes[-1].set_xticks(ticks, [str(tick * every) for tick in ticks])
  axes[-1].set_xlabel('step')
  return figure, axes


def _heat_title(title, won, rows, every):
  """Counts, and what is left out or averaged."""
  title += f': {count(len(won), "attempt")}, {won.sum()} (★) reached the goal'
  if len(rows) < len(won):
    title += f'; {len(rows)} attempts drawn, evenly spaced'
  if every > 1:
    title += f'\na column is the mean of {every} steps'
  return title + '\na dash marks a negative advantage'


def _table(attempt, column, advantage, rows):
  """[rows, columns] mean advantages, masked where an attempt has ended."""
  shape = attempt.max() + 1, column.max() + 1
  at = np.ravel_multi_index((attempt, column), shape)
  number = np.bincount(at, minlength=np.prod(shape))
  total = np.bincount(at, advantage, np.prod(shape))
  table = np.ma.masked_array(total / np.maximum(number, 1), number == 0)
  return table.reshape(shape)[rows]


def _draw_dashes(ax, table, image):
  """A dash in every cell below 0, as the colours are alike in grey."""
  row, column = np.nonzero(table.filled(0) < 0)
  cell = 72 * min((ax.figure.get_figwidth() - 2) / table.shape[1], 0.2)
  colours = np.array(common.contrast(image.to_rgba(table)[row, column]))
  look = {'ls': '', 'marker': '_', 'ms': 0.6 * cell, 'mew': min(1, cell / 8)}
  for colour in ('white', INK):
    dark = colours == colour
    ax.plot(column[dark], row[dark], color=colour, gid='dashes', **look)


def _correlations(columns):
  """[S, S] Pearson correlations of the ranks, NaN where one is constant."""
  ranks = []
  for column in columns:
    wanted = {'return_inverse': True, 'return_counts': True}
    _, place, number = np.unique(column, **wanted)
    ranks.append((np.cumsum(number) - (number - 1) / 2)[place])
  centred = np.stack(ranks) - (len(columns[0]) + 1) / 2
  product = centred @ centred.T
  length = np.sqrt(np.diag(product))
  length = np.where(length > 0, length, np.nan)
  return np.clip(product / length[:, None] / length, -1, 1)
