"""The pooled graph of a task: all credit, or one attempt's."""

from collections.abc import Mapping

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from graphgpo_jax import layout as layouts
from graphgpo_jax.plots import common
from graphgpo_jax.plots.common import COLOURS, FAILED, GREY, INK, STYLES, count

MARGIN = (0.55, 0.7)  # inches around the outermost nodes, sideways and upright
ARCS = 400  # more than that: one arc per edge, whatever its steps' advantages
NUMBERED = 40  # steps of an attempt that get a number


def credit_graph(
  steps,
  task: int,
  results: Mapping[str, Mapping[str, np.ndarray]],
  *,
  title: str | None = None,
) -> Figure:
  """The pooled graph of a task, each edge coloured by its advantage.

  Nodes stand at their distance to the goal, the same in all panels. Steps with
  equal ends, action and advantage (to 1e-4 of the largest) share one arc, all
  others have their own; arcs between the same two nodes fan out. Where these
  are too many, an edge (state, action, next state) has one arc, coloured by the
  mean of its steps. Of a large graph the most visited states are drawn, with
  their shortest ways to the goal. The picture says which of these holds.

  Args:
    steps: Steps of `states.index_steps`.
    task: number of the task, an index into steps.tasks.
    results: panel title -> arrays [N] in row order, as of `credit_steps`:
      'advantage'; of the first panel also 'distance' and 'reachable'.
    title: the task's id if None; the counts are added to it.

  Raises:
    ValueError: no such task, no panel, or a panel of wrong arrays.
  """
  kept = common.task_steps(steps, task)
  credit = common.select(steps, results, kept, distances=True)
  figure, axes, scales, layout = _prepare(steps, kept, results, credit)
  rows = layout.drawn(steps, kept)
  chosen = np.isin(kept, rows)
  groups = {
    name: _groups(steps, rows, advantage[chosen], scale)
    for (name, advantage), scale in zip(credit.items(), scales)
  }
  merged = max(len(ends) for ends, *_ in groups.values()) > ARCS
  for ax, (name, advantage), scale in zip(axes, credit.items(), scales):
    ends, *looks = groups[name]
    if merged:
      ends, *looks = _groups(steps, rows, advantage[chosen], scale, merged=True)
    corners = layouts.arcs(layout, layout.place(ends))
    _draw_arcs(ax, layout, corners, *looks, scale)
    _draw_nodes(ax, layout, steps, kept, kept)
  title = common.task_title(steps, task, title)
  note = '; one arc an edge: the mean of its steps' if merged else ''
  _add_title(figure, layout, steps, kept, f'{title}: ', note=note)
  _add_legend(figure, 'wider: larger |advantage|, more repeats')
  return figure


def attempt_path(
  steps,
  task: int,
  attempt: int,
  results: Mapping[str, Mapping[str, np.ndarray]],
  *,
  title: str | None = None,
) -> Figure:
  """One attempt on the graph of its task, coloured by its advantages.

  Its steps carry their numbers in the log; all else is grey. Places and colours
  are those of `credit_graph`. Of a large graph the states of the attempt are
  drawn, and of the others the most visited; the picture says how many.

  Args:
    steps, task, results, title: as of `credit_graph`.
    attempt: number of the attempt inside the task, in the order of the ids.

  Raises:
    ValueError: as `credit_graph`, or no such attempt.
  """
  kept = common.task_steps(steps, task)
  own = kept[steps.attempt[kept] == attempt]
  if not len(own):
    allowed = f'0..{steps.attempt[kept].max()}'
    raise ValueError(f'attempt: found {attempt}, allowed: {allowed}')
  credit = common.select(steps, results, kept, distances=True)
  figure, axes, scales, layout = _prepare(steps, kept, results, credit, own)
  every = -(-len(own) // NUMBERED)
  for ax, advantage, scale in zip(axes, credit.values(), scales):
    looks = _groups(steps, own, advantage[np.isin(kept, own)], scale)
    others = _other_pairs(steps, layout.drawn(steps, kept), own)
    both = np.concatenate([others, looks[0]])
    corners = layouts.arcs(layout, layout.place(both))
    grey, corners = corners[: len(others)], corners[len(others) :]
    _add_arrows(ax, layout, grey, np.full(len(grey), 0.8), GREY, 'others')
    _draw_arcs(ax, layout, corners, *looks[1:], scale)
    _draw_nodes(ax, layout, steps, kept, own)
    _draw_numbers(ax, layout, corners, steps.step[own], looks[-1], every)
  end = 'failed'
  if steps.success[own].any():
    end = 'reached the goal'
  elif steps.truncated[own].any():
    end = 'was cut off'
  title = common.task_title(steps, task, title)
  name = common.attempt_names(steps, task)[attempt]
  words = f'{title}, attempt {name}: {count(len(own), "step")}, {end}\n'
  _add_title(figure, layout, steps, kept, words, first="the attempt's and ")
  numbers = 'numbers: steps of the attempt, from 0'
  _add_legend(figure, numbers + f', one in {every}' * (every > 1))
  return figure


def _prepare(steps, kept, results, credit, own=()):
  """Figure with axes and colour bars, scales of the panels, layout."""
  first = next(iter(results.values()))
  always = (
    np.append(steps.state[own], steps.next_state[own]) if len(own) else ()
  )
  nodes = layouts.choose(steps, kept, first, always=always)
  layout = layouts.lay_out(steps, kept, first, nodes=nodes)
  scales, shared = common.scales(credit.values())
  figure, axes, bars = _frame(layout, len(scales), shared)
  for ax, name in zip(axes, credit):
    _draw_axis(ax, layout, (steps.cost[kept] == 1).all())
    common.set_panel_title(ax, name)
  label = 'advantage' + ', all panels' * (len(axes) > len(bars))
  for bar, scale in zip(bars, [scales.max()] if shared else scales):
    colours = ScalarMappable(common.norm(scale), COLOURS)
    figure.colorbar(colours, cax=bar, label=label)
  return figure, axes, scales, layout


def _frame(layout, panels, shared):
  """Figure, axes one below the other, axes of colour bars; to scale."""
  wide = layout.x.max() / layout.unit * layout.wide + 2 * MARGIN[0]
  high = np.ptp(layout.y) + 2 * MARGIN[1]
  size = np.array([max(wide + 1.5, 8), panels * (high + 0.85) + 1.45])
  figure = common.new_figure(*size)

  def place(left, bottom, width, height):
    corners = np.array([[left, bottom], [width, height]]) / size
    return figure.add_axes(corners.ravel().tolist())

  left = (size[0] - wide - 1.1) / 2
  bottoms = [1.25 + (high + 0.85) * i for i in reversed(range(panels))]
  axes = [place(left, bottom, wide, high) for bottom in bottoms]
  top = bottoms[0] + high
  tall = min(5, top - bottoms[-1]) if shared else high
  if shared:
    bottoms = [(bottoms[-1] + top - tall) / 2]
  bars = [place(left + wide + 0.15, bottom, 0.13, tall) for bottom in bottoms]
  return figure, axes, bars


def _draw_axis(ax, layout, unit_costs):
  """Limits, to scale in inches; ticks; the zone of states without a path."""
  margin = MARGIN[0] / layout.wide * layout.unit
  left, right = layout.x.max() + margin, -margin
  ax.set_xlim(left, right)
  ax.set_ylim(layout.y.min() - MARGIN[1], layout.y.max() + MARGIN[1])
  room = int(np.clip(layout.far / layout.unit * layout.wide / 0.35, 2, 25))
  options = {'steps': [1, 2, 5, 10], 'integer': bool(unit_costs)}
  ticks = MaxNLocator(room, **options).tick_values(0, layout.far or 1)
  ticks = [t for t in ticks if 0 <= t <= layout.far]
  labels = [f'{t:g}' for t in ticks]
  if not layout.has_path.all():
    edge = layout.far + 0.7 * layout.unit
    ax.axvspan(edge, left, color=common.ZONE, lw=0, zorder=0)
    ticks.append((edge + left) / 2)
    labels.append('no path')
  ax.set_xticks(ticks, labels)
  ax.set_yticks([])
  ax.spines[['left', 'right', 'top']].set_visible(False)
  ax.set_xlabel(f'{"steps" if unit_costs else "distance"} to the goal')


def _groups(steps, rows, advantage, scale, *, merged=False):
  """Steps that share an arc, the largest |advantage| last, so on top.

  Returns:
    ends [G, 2], numbers of nodes; mean advantage of the credited steps (0 if
    there is none), number of steps, both [G]; group [rows] of every step.
  """
  keys = [key[rows] for key in (steps.state, steps.next_state, steps.action)]
  if not merged:
    keys.append(np.rint(advantage / scale * 1e4).astype(int))
  wanted = {'return_inverse': True, 'return_counts': True}
  groups, group, size = np.unique(np.stack(keys, 1), axis=0, **wanted)
  group = group.ravel()
  voters = np.bincount(group, steps.credited[rows], len(groups))
  value = np.bincount(group, advantage, len(groups)) / np.maximum(voters, 1)
  value[np.abs(value) < 1e-5 * scale] = 0
  order = np.argsort(np.abs(np.rint(value / scale * 1e4)), kind='stable')
  rank = np.empty(len(order), int)
  rank[order] = np.arange(len(order))
  return groups[order, :2], value[order], size[order], rank[group]


def _draw_arcs(ax, layout, corners, value, size, _, scale):
  """One path per group of steps, the arrow heads as triangles."""
  share = np.abs(np.rint(value / scale * 1e4)) / 1e4
  width = 0.9 + 1.1 * share + 0.45 * np.log2(size)
  colours = COLOURS(common.norm(scale)(value))
  lines = _add_arrows(ax, layout, corners, width, colours, 'edges')
  lines.set_linestyles([STYLES[s] for s in np.sign(value).tolist()])


def _add_arrows(ax, layout, corners, width, colours, gid):
  """Curves and their arrow heads; returns the curves."""
  corners, heads, width = layouts.arrows(layout, corners, width)
  to_data = [-layout.unit / layout.wide, 1]
  codes = [Path.MOVETO] + 3 * [Path.CURVE4]
  paths = [Path(a, codes) for a in corners * to_data]
  lines = PathCollection(paths, linewidths=width, edgecolors=colours, gid=gid)
  arrows = PolyCollection(heads * to_data, facecolors=colours)
  lines.set(facecolors='none', zorder=2 - (gid == 'others'))
  arrows.set(linewidths=0, zorder=lines.zorder + 0.5, gid=f'{gid} heads')
  for drawn in (lines, arrows):
    ax.add_collection(drawn, autolim=False).set_clip_on(False)
  return lines


def _other_pairs(steps, rows, own):
  """[G, 2] ends of the steps that go where no step of the attempt goes."""
  pairs = np.stack([steps.state, steps.next_state], 1)
  taken = set(map(tuple, pairs[own].tolist()))
  others = np.unique(pairs[rows], axis=0).tolist()
  others = [pair for pair in others if tuple(pair) not in taken]
  return np.array(others, int).reshape(-1, 2)


def _draw_numbers(ax, layout, corners, numbers, group, every):
  """The numbers of an arc's steps at its middle, at most three of them."""
  middles = corners.transpose(0, 2, 1) @ np.array([1, 3, 3, 1]) / 8
  style = {'ha': 'center', 'va': 'center', 'fontsize': 8, 'gid': 'step'}
  style |= {'zorder': 6, 'weight': 'bold', 'color': INK}
  style['path_effects'] = [withStroke(linewidth=3, foreground='white')]
  for arc, (x, y) in enumerate(middles * [-layout.unit / layout.wide, 1]):
    mine = numbers[group == arc]
    shown = mine[mine % every == 0].tolist()
    if shown:
      more = ', …' if len(shown) > 3 else ''
      ax.text(x, y, ', '.join(map(str, shown[:3])) + more, **style)


def _draw_nodes(ax, layout, steps, kept, own):
  """Shape: start, goal or between. Fill: an attempt ended here and failed.

  Nodes that the steps `own` do not touch are grey.
  """
  nodes = layout.nodes
  ends = steps.next_state[own][steps.last[own] & ~steps.success[own]]
  failed, solved = np.isin(nodes, ends), steps.success[kept].any()
  fill = np.where(failed, FAILED, 'white').astype(object)
  fill[0] = INK if solved else 'white'
  start = np.isin(nodes, steps.state[own][steps.step[own] == 0])
  touched = np.isin(nodes, [steps.state[own], steps.next_state[own]])
  ink = np.where(touched | (nodes == 0), INK, GREY).astype(object)
  points = 144 * layout.radius
  for gid, marker, where, diameter in (
    ('nodes', 'o', ~start & (nodes > 0), points),
    ('starts', 's', start, max(1.1 * points, 9)),
    ('goal', '*', nodes == 0, max(2 * points, 12)),
  ):
    at = layout.x[where], layout.y[where], diameter**2, fill[where].tolist()
    edge = ink[where].tolist()
    shape = ax.scatter(*at, marker=marker, edgecolors=edge, gid=gid)
    shape.set(linewidths=min(1.1, points / 12), zorder=3)
  goal = 'goal' if solved else 'goal\n(never reached)'
  below = {'va': 'top', 'ha': 'center', 'fontsize': 9, 'zorder': 5}
  for node in [0, *np.flatnonzero(start)]:
    y = layout.y[node] - layout.radius * 1.3 - 0.05
    ax.text(layout.x[node], y, 'start' if node else goal, **below)
  if len(nodes) <= layouts.LABELLED:
    colours = np.where(failed, 'white', np.where(touched, INK, '#8a8a8a'))
    _label_nodes(ax, layout, steps.texts[steps.task[kept[0]]], colours, points)


def _label_nodes(ax, layout, texts, colours, points):
  labels = layouts.labels(texts)
  middle = {'va': 'center_baseline', 'ha': 'center', 'parse_math': False}
  middle |= {'zorder': 4, 'fontsize': min(9, 0.45 * points)}
  for at, node in enumerate(layout.nodes.tolist()):
    if node:
      name, colour = labels[node - 1], str(colours[at])
      ax.text(layout.x[at], layout.y[at], name, color=colour, **middle)


def _add_title(figure, layout, steps, kept, title, *, first='', note=''):
  """Counts of the task; what is drawn, if that is not all."""
  total = len(steps.texts[steps.task[kept[0]]])
  attempts = count(steps.attempt[kept].max() + 1, 'attempt')
  counts = f'{count(total, "state")}, {attempts}, {count(len(kept), "step")}'
  title += f'{counts}; {steps.success[kept].sum()} reached the goal'
  drawn = len(layout.nodes) - 1
  if drawn < total or note:
    shown, edges = (
      len(np.unique(np.stack([steps.action[r], steps.next_state[r]]), axis=1).T)
      for r in (layout.drawn(steps, kept), kept)
    )
    words = f', {first}the most visited, with ways to the goal'
    most = words if drawn < total else ''
    part = f'{drawn} of {total} states{most}; {shown:,} of {edges:,} edges'
    title += f'\ndrawn: {part}{note}'
  style = {'va': 'top', 'fontsize': 10, 'parse_math': False}
  figure.suptitle(title, y=1 - 0.1 / figure.get_figheight(), **style)


def _add_legend(figure, words):
  handles = []
  for marker, fill, name in (
    ('s', 'white', 'start'),
    ('*', INK, 'goal'),
    ('o', FAILED, 'failed end'),
  ):
    look = {'marker': marker, 'mfc': fill, 'mec': INK, 'ms': 9, 'ls': ''}
    handles.append(Line2D([], [], label=name, **look))
  for sign, name in ((1, '> 0'), (0, '= 0'), (-1, '< 0')):
    look = {'ls': STYLES[sign], 'color': COLOURS(0.5 + 0.4 * sign), 'lw': 1.8}
    handles.append(Line2D([], [], label=f'advantage {name}', **look))
  handles.append(Patch(alpha=0, label=words))
  columns = 7 if figure.get_figwidth() > 10 else 4
  style = {'loc': 'lower center', 'frameon': False, 'fontsize': 9}
  figure.legend(handles=handles, ncols=columns, **style)
