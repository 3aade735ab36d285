"""Pictures: who gets which credit in the graph of a task; learning curves.

Object-oriented matplotlib, no pyplot and no global state: works headless, and
the same input gives the same bytes.
"""

import os
import warnings
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import FuncNorm, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from graphgpo_jax.layout import LABELLED, arcs, lay_out, lengths
from graphgpo_jax.log import atomic_write
from graphgpo_jax.states import Steps

DPI = 130
MARGIN = (0.55, 0.7)  # inches around the outermost nodes, sideways and upright
SCALES_APART = 4  # ratio of the panels' largest |advantage|: own colour bars
# Grey only close to 0, dark at both ends: sign and size survive a grey print.
REDS = (0, '#7a0019'), (0.2, '#c4161f'), (0.44, '#f08a4b')
GREENS = (0.56, '#8fca62'), (0.8, '#1d8f3f'), (1, '#00451f')
COLOURS = LinearSegmentedColormap.from_list(
  'credit', [*REDS, (0.5, '#c2bb96'), *GREENS]
)
STYLES = {1: 'solid', 0: (0, (1, 1.2)), -1: (0, (3.2, 1.3))}  # by sign
INK, FAILED = '#222222', '#4a4a4a'
T_975 = (4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060)  # 2..8 degrees


def credit_graph(
  steps: Steps,
  task: int,
  results: Mapping[str, Mapping[str, np.ndarray]],
  *,
  title: str | None = None,
) -> Figure:
  """The pooled graph of a task, each edge coloured by its advantage.

  Nodes stand at their distance to the goal, the same in all panels. Steps with
  equal ends, action and advantage (to 1e-4 of the largest) share one arc, all
  others have their own; arcs between the same two nodes fan out.

  Args:
    task: number of the task, an index into steps.tasks.
    results: panel title -> arrays [N] in row order, as of `credit_steps`:
      'advantage'; of the first panel also 'distance' and 'reachable'.
    title: the task's id if None; the counts are added to it.

  Raises:
    ValueError: no such task, no panel, or an advantage that is not finite.
  """
  kept = np.flatnonzero(steps.task == task)
  credit = _select(steps, task, results, kept)
  layout = lay_out(steps, kept, next(iter(results.values())))
  scales, shared = _scales(credit.values())
  figure, axes, bars = _frame(layout, len(scales), shared)
  for ax, (name, advantage), scale in zip(axes, credit.items(), scales):
    _draw_axis(ax, layout, (steps.cost[kept] == 1).all())
    _draw_edges(ax, layout, steps, kept, advantage, scale)
    _draw_nodes(ax, layout, steps, kept)
    ax.set_title(name, loc='left', fontsize=11, parse_math=False)
  label = 'advantage' + ', all panels' * (len(axes) > len(bars))
  for bar, scale in zip(bars, [scales.max()] if shared else scales):
    colours = ScalarMappable(_norm(scale), COLOURS)
    figure.colorbar(colours, cax=bar, label=label)
  title = str(steps.tasks[task]) if title is None else title
  _draw_legend(figure, steps, kept, title)
  return figure


def _select(steps, task, results, kept):
  """Panel title -> advantages of the kept steps, checked."""
  if not results:
    raise ValueError('results: empty, at least one panel is needed')
  if not len(kept):
    raise ValueError(f'task: found {task}, allowed: 0..{len(steps.tasks) - 1}')
  credit = {}
  for name, result in results.items():
    credit[name] = np.asarray(result['advantage'])[steps.row[kept]]
    if not np.isfinite(credit[name]).all():
      raise ValueError(f'{name}: an advantage is not finite')
  return credit


def _scales(advantages):
  """[panels] largest |advantage| to colour by, and whether all have one."""
  scales = np.array([np.abs(a).max() for a in advantages])
  positive = scales[scales > 0] if scales.any() else np.ones(1)
  shared = positive.max() <= SCALES_APART * positive.min()
  fallback = positive.max() if shared else scales
  return np.where(scales > 0, fallback, positive.max()), shared


def _norm(scale):
  """-scale..scale to 0..1, spread out near 0: one outlier leaves the others
  their colours.
  """
  functions = [
    lambda x, p=power: np.sign(x) * np.abs(x) ** p for power in (0.6, 1 / 0.6)
  ]
  return FuncNorm(functions, -scale, scale)


def _frame(layout, count, shared):
  """Figure, axes one below the other, axes of colour bars; to scale."""
  wide = layout.x.max() / layout.unit * layout.wide + 2 * MARGIN[0]
  high = np.ptp(layout.y) + 2 * MARGIN[1]
  size = np.array([max(wide + 1.5, 8), count * (high + 0.85) + 1.1])
  figure = Figure(figsize=size, dpi=DPI)
  FigureCanvasAgg(figure)

  def place(left, bottom, width, height):
    corners = np.array([[left, bottom], [width, height]]) / size
    return figure.add_axes(corners.ravel().tolist())

  left = (size[0] - wide - 1.1) / 2
  bottoms = [1.15 + (high + 0.85) * i for i in reversed(range(count))]
  axes = [place(left, bottom, wide, high) for bottom in bottoms]
  top = bottoms[0] + high
  tall = min(5, top - bottoms[-1]) if shared else high
  if shared:
    bottoms = [(bottoms[-1] + top - tall) / 2]
  bars = [place(left + wide + 0.15, bottom, 0.13, tall) for bottom in bottoms]
  return figure, axes, bars


def _draw_axis(ax, layout, unit_costs):
  """Limits, to scale in inches; ticks; the zone of states without a path."""
  left = layout.x.max() + MARGIN[0] / layout.wide * layout.unit
  ax.set_xlim(left, layout.x.max() - left)
  ax.set_ylim(layout.y.min() - MARGIN[1], layout.y.max() + MARGIN[1])
  far = layout.x[layout.has_path].max()
  room = int(np.clip(far / layout.unit * layout.wide / 0.35, 2, 25))
  steps = {'steps': [1, 2, 5, 10], 'integer': bool(unit_costs)}
  ticks = MaxNLocator(room, **steps).tick_values(0, far or 1)
  ticks = [t for t in ticks if 0 <= t <= far]
  labels = [f'{t:g}' for t in ticks]
  if not layout.has_path.all():
    edge = far + 0.7 * layout.unit
    ax.axvspan(edge, left, color='#eeeeee', lw=0, zorder=0)
    ticks.append((edge + left) / 2)
    labels.append('no path')
  ax.set_xticks(ticks, labels)
  ax.set_yticks([])
  ax.spines[['left', 'right', 'top']].set_visible(False)
  ax.set_xlabel(f'{"steps" if unit_costs else "distance"} to the goal')


def _draw_edges(ax, layout, steps, kept, advantage, scale):
  """One path per group of equal steps, the arrow heads as triangles."""
  keys = steps.state, steps.next_state, steps.action
  level = np.rint(advantage / scale * 1e4).astype(int)
  table = np.stack([*(key[kept] for key in keys), level], 1)
  counts = {'return_index': True, 'return_counts': True}
  groups, first, count = np.unique(table, axis=0, **counts)
  # The largest |advantage| last, on top of the others.
  order = np.argsort(np.abs(groups[:, 3]), kind='stable')
  value, size = advantage[first[order]], np.abs(groups[order, 3]) / 1e4
  corners = arcs(layout, groups[order, :2])
  thin = min(1, layout.radius / 0.12)
  width = thin**0.5 * (0.9 + 1.1 * size + 0.45 * np.log2(count[order]))
  tip, way = corners[:, 3].copy(), corners[:, 3] - corners[:, 2]
  way *= thin * (0.055 + 0.022 * width[:, None]) / lengths(way)
  corners[:, 3] -= way
  side = way[:, ::-1] * [-0.5, 0.5]
  heads = np.stack([tip, corners[:, 3] + side, corners[:, 3] - side], 1)
  to_data = [-layout.unit / layout.wide, 1]
  codes = [Path.MOVETO] + 3 * [Path.CURVE4]
  colours = COLOURS(_norm(scale)(value))
  lines = PathCollection(
    [Path(a, codes) for a in corners * to_data], gid='edges'
  )
  lines.set(facecolors='none', edgecolors=colours, linewidths=width, zorder=2)
  lines.set_linestyles([STYLES[s] for s in np.sign(groups[order, 3]).tolist()])
  arrows = PolyCollection(heads * to_data, facecolors=colours, gid='heads')
  arrows.set(linewidths=0, zorder=2.5)
  for drawn in (lines, arrows):
    ax.add_collection(drawn, autolim=False).set_clip_on(False)


def _draw_nodes(ax, layout, steps, kept):
  """Shape: start, goal or between. Fill: an attempt ended here and failed."""
  nodes = np.arange(len(layout.x))
  ends = steps.next_state[kept][steps.last[kept] & ~steps.success[kept]]
  failed, solved = np.isin(nodes, ends), steps.success[kept].any()
  fill = np.where(failed, FAILED, 'white').astype(object)
  fill[0] = INK if solved else 'white'
  start = np.isin(nodes, steps.state[kept][steps.step[kept] == 0])
  between = ~start & (nodes > 0)
  points = 144 * layout.radius
  for gid, marker, where, diameter in (
    ('nodes', 'o', between, points),
    ('starts', 's', start, max(1.1 * points, 9)),
    ('goal', '*', nodes == 0, max(2 * points, 12)),
  ):
    at = layout.x[where], layout.y[where], diameter**2, fill[where].tolist()
    shape = ax.scatter(*at, marker=marker, edgecolors=INK, gid=gid)
    shape.set(linewidths=min(1.1, points / 12), zorder=3)
  goal = 'goal' if solved else 'goal\n(never reached)'
  below = {'va': 'top', 'ha': 'center', 'fontsize': 9, 'zorder': 5}
  for node in [0, *np.flatnonzero(start)]:
    y = layout.y[node] - layout.radius * 1.3 - 0.05
    ax.text(layout.x[node], y, 'start' if node else goal, **below)
  texts = steps.texts[steps.task[kept[0]]]
  short = all(len(t) <= 2 and t.isascii() and t.isprintable() for t in texts)
  middle = {'va': 'center_baseline', 'ha': 'center', 'parse_math': False}
  middle |= {'zorder': 4, 'fontsize': min(9, 0.45 * points)}
  for node in nodes[1:] if len(nodes) <= LABELLED else ():
    name = texts[node - 1] if short else str(node)
    colour = 'white' if failed[node] else INK
    ax.text(layout.x[node], layout.y[node], name, color=colour, **middle)


def _draw_legend(figure, steps, kept, title):
  title = ''.join(
    c if c.isprintable() else '\N{REPLACEMENT CHARACTER}' for c in title
  )
  title = title if len(title) <= 60 else f'{title[:57]}...'
  states = _count(len(steps.texts[steps.task[kept[0]]]), 'state')
  attempts = _count(steps.attempt[kept].max() + 1, 'attempt')
  counts = f'{states}, {attempts}, {_count(len(kept), "step")}'
  title = f'{title}: {counts}; {steps.success[kept].sum()} reached the goal'
  style = {'va': 'top', 'fontsize': 12, 'parse_math': False}
  figure.suptitle(title, y=1 - 0.12 / figure.get_figheight(), **style)
  handles = []
  for marker, fill, words in (
    ('s', 'white', 'start'),
    ('*', INK, 'goal'),
    ('o', FAILED, 'failed end'),
  ):
    look = {'marker': marker, 'mfc': fill, 'mec': INK, 'ms': 9, 'ls': ''}
    handles.append(Line2D([], [], label=words, **look))
  for sign, words in ((1, '> 0'), (0, '= 0'), (-1, '< 0')):
    look = {'ls': STYLES[sign], 'color': COLOURS(0.5 + 0.4 * sign), 'lw': 1.8}
    handles.append(Line2D([], [], label=f'advantage {words}', **look))
  words = 'wider: larger |advantage|, more repeats'
  handles.append(Line2D([], [], alpha=0, label=words))
  columns = 7 if figure.get_figwidth() > 10 else 4
  style = {'loc': 'lower center', 'frameon': False, 'fontsize': 9}
  figure.legend(handles=handles, ncols=columns, **style)


def _count(number, noun):
  return f'{number} {noun}{"" if number == 1 else "s"}'


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
    ValueError: there is no curve.
  """
  if not curves:
    raise ValueError('curves: empty, at least one is needed')
  figure = Figure(figsize=(7, 4.2), dpi=DPI, layout='constrained')
  FigureCanvasAgg(figure)
  ax = figure.add_subplot()
  for i, (label, runs) in enumerate(curves.items()):
    runs = [np.array(run, float) for run in runs]
    runs = [run[:, np.isfinite(run).all(0)] for run in runs]
    runs = [run for run in runs if run.size]
    colour = f'C{i % 10}'
    for run in runs:
      ax.plot(*run, color=colour, lw=0.7, alpha=0.45)
    x, mean, half, words = _band(runs)
    label = f'{label} ({_count(len(runs), "seed")}{words})'
    ax.plot(x, mean, color=colour, lw=2, label=label)
    if words:
      ax.fill_between(x, *half, color=colour, alpha=0.18, lw=0)
  ax.set(xlabel='update', ylabel=ylabel)
  ax.set_title(title or '', parse_math=False)
  ax.grid(alpha=0.25)
  ax.spines[['right', 'top']].set_visible(False)
  ax.legend(frameon=False, fontsize=9)
  return figure


def _band(runs):
  """x, mean, (lower, upper end) of the band, words for the legend."""
  if not runs:
    return [], [], None, ''
  x = np.unique(np.concatenate([run[0] for run in runs]))
  x = x[(x >= max(run[0, 0] for run in runs))]
  x = x[(x <= min(run[0, -1] for run in runs))]
  values = np.stack([np.interp(x, *run) for run in runs])
  mean, count = values.mean(0), len(runs)
  if count < 3:
    ends = values.min(0), values.max(0)
    return x, mean, ends, ', band: min-max' if count == 2 else ''
  n = count - 1
  # Beyond the table the expansion around the normal quantile, to 1e-3.
  t = T_975[n - 2] if n < 9 else 1.959964 + 2.372271 / n + 2.822513 / n**2
  half = t * values.std(0, ddof=1) / count**0.5
  return x, mean, (mean - half, mean + half), ', band: 95 % t interval'


def save(figure: Figure, path: str | os.PathLike) -> None:
  """Writes a picture whole or not at all; equal figures give equal bytes.

  Raises:
    ValueError: the suffix is not .png, .svg or .pdf.
  """
  suffix = os.path.splitext(os.fspath(path))[1].lower()
  clock = {'.png': 'Software', '.svg': 'Date', '.pdf': 'CreationDate'}
  if suffix not in clock:
    allowed = ', '.join(clock)
    raise ValueError(f'path: found suffix {suffix!r}, allowed: {allowed}')
  options = {'format': suffix[1:], 'metadata': {clock[suffix]: None}}
  salt = matplotlib.rc_context({'svg.hashsalt': 'graphgpo'})
  with salt, atomic_write(path, 'wb') as file, warnings.catch_warnings():
    # A script without a font here is drawn as boxes; nothing to be done.
    warnings.filterwarnings('ignore', 'Glyph .* missing')
    figure.savefig(file, dpi=DPI, **options)
