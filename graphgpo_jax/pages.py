"""One page per task to explore: its graph, texts, attempts and their credit.

One HTML file with its drawing, numbers and script inside (from pages.html and
pages.js): it opens from disk and loads nothing. Equal input, equal bytes.
"""

import html
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import to_hex

from graphgpo_jax import layout as layouts
from graphgpo_jax.log import atomic_write
from graphgpo_jax.plots import common
from graphgpo_jax.states import Steps

NODES, EDGES = 500, 2000  # drawn at most
STATE_BYTES, ACTION_BYTES = 600_000, 200_000  # of texts, before they are cut
SHORTEST = 200  # characters that every text may have
INCH = 96  # pixels
MARGIN = 0.5  # inches around the drawing
SHADES = 101


def explore(
  steps: Steps,
  task: int,
  results: Mapping[str, Mapping[str, np.ndarray]],
  path: str | os.PathLike,
  *,
  title: str | None = None,
  actions: Sequence[str] | None = None,
) -> None:
  """Writes the page of a task, whole or not at all.

  An edge is all steps with equal ends and action; its colour is their mean
  advantage or, with an attempt picked, that of its own steps. Of more than 500
  states or 2000 edges the most visited are drawn, and the page says how many;
  the tables of the attempts stay complete. Texts that would take more than some
  600 kB together (actions 200 kB) are cut, and say so.

  Args:
    task: number of the task, an index into steps.tasks.
    results: scheme -> arrays [N] in row order, as of `credit_steps`:
      'advantage'; of at least one also 'distance' and 'reachable'.
    title: the task's id if None.
    actions: texts in row order, as the column 'action' of the log; `Steps`
      holds numbers only, which are shown if None.

  Raises:
    ValueError: no such task, no result, none with distances, an advantage that
      is not finite, or too few actions.
  """
  kept = common.task_steps(steps, task)
  advantages = common.select(steps, results, kept)
  title = str(steps.tasks[task]) if title is None else title
  page = _page(steps, kept, advantages, _guide(results), actions)
  page |= {'title': _escaped(title), 'script': _packaged('.js')}
  # In one pass, so that a text that looks like a mark is left alone.
  template = _packaged('.html')
  whole = re.sub(r'\{\{(\w+)\}\}', lambda mark: page[mark[1]], template)
  with atomic_write(path, 'wb') as file:
    file.write(whole.encode('ascii', 'xmlcharrefreplace'))


def _packaged(suffix):
  return pathlib.Path(__file__).with_suffix(suffix).read_text('utf-8')


def _page(steps, kept, advantages, guide, actions):
  """The parts of the page that depend on the task."""
  nodes = layouts.choose(steps, kept, guide, nodes=NODES, pairs=EDGES)
  layout = layouts.lay_out(steps, kept, guide, nodes=nodes)
  edges = _edges(steps, kept, nodes)
  data = {
    'shown': _order(layout).tolist(),
    'nodes': _node_table(steps, kept, guide),
    'attempts': _attempt_table(steps, kept),
    **_colours(advantages),
    **_step_tables(steps, kept, advantages, edges, actions),
  }
  page = {'counts': _counts(steps, kept, nodes, edges), 'data': _json(data)}
  return page | _drawing(steps, kept, layout, edges)


def _guide(results):
  """The first result with distances."""
  for result in results.values():
    if {'distance', 'reachable'} <= set(result):
      return result
  raise ValueError('results: none has both distance and reachable')


def _order(layout):
  """Numbers of the drawn nodes as one reads them: from the left, from above."""
  x, y = layout.inches.round(6).T
  return layout.nodes[np.lexsort((layout.nodes, -y, x))]


def _edges(steps, kept, nodes):
  """Of each step its drawn edge or -1; of the drawn edges, the most frequent
  last, a step, the number of steps and the nodes [E, 2]; the number of all.
  """
  table = np.stack([steps.state, steps.next_state, steps.action], 1)[kept]
  counts = {'return_index': True, 'return_inverse': True, 'return_counts': True}
  groups, first, inverse, count = np.unique(table, axis=0, **counts)
  both = np.isin(groups[:, :2], nodes).all(1)
  order = np.lexsort((-np.arange(len(groups)), count, both))
  order = order[len(groups) - min(both.sum(), EDGES) :]
  place = np.full(len(groups), -1)
  place[order] = np.arange(len(order))
  return {
    'of': place[inverse.ravel()],
    'first': first[order],
    'count': count[order],
    'ends': groups[order, :2],
    'total': len(groups),
  }


def _step_tables(steps, kept, advantages, edges, actions):
  """Columns of the drawn edges and of all steps; texts of the actions."""
  names, action = _actions(steps, kept, actions)
  return {
    'actions': _cut(names, ACTION_BYTES),
    'edges': {
      'from': edges['ends'][:, 0].tolist(),
      'to': edges['ends'][:, 1].tolist(),
      'action': action[edges['first']].tolist(),
      'count': edges['count'].tolist(),
      'mean': [
        _means(values, steps.credited[kept], edges)
        for values in advantages.values()
      ],
    },
    'steps': {
      'state': steps.state[kept].tolist(),
      'next': steps.next_state[kept].tolist(),
      'action': action.tolist(),
      'edge': edges['of'].tolist(),
      'advantage': [_rounded(values) for values in advantages.values()],
    },
  }


def _means(advantage, credited, edges):
  """Of the credited steps of each edge; 0 where there is none."""
  shown = (edges['of'] >= 0) & credited
  of, size = edges['of'][shown], len(edges['count'])
  count = np.maximum(np.bincount(of, minlength=size), 1)
  return _rounded(np.bincount(of, advantage[shown], size) / count)


def _actions(steps, kept, actions):
  """Distinct texts, and their number for each kept step."""
  row, action = steps.row[kept].tolist(), steps.action[kept].tolist()
  if actions is None:
    texts = [f'#{number}' for number in action]
  elif len(actions) <= max(row):
    words = f'found {len(actions)}, allowed: one per row, here {max(row) + 1}'
    raise ValueError(f'actions: {words} or more')
  else:
    texts = [str(actions[i]) for i in row]
  numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
  return list(numbers), np.array([numbers[text] for text in texts])


def _colours(advantages):
  """Names, the largest |advantage| or 1 if all are 0, and the colours."""
  largest = [np.abs(values).max() for values in advantages.values()]
  shades = common.COLOURS(np.linspace(0, 1, SHADES))
  return {
    'schemes': list(advantages),
    'scales': [scale or 1.0 for scale in _rounded(largest)],
    'palette': [to_hex(shade) for shade in shades],
    'power': common.POWER,
  }


def _rounded(values):
  """Numbers of 6 digits, None for NaN."""
  values = np.asarray(values, np.float64) + 0.0
  return [float(f'{v:.6g}') if v == v else None for v in values.tolist()]


def _cut(texts, budget):
  """Texts that take about `budget` bytes; 'whole': lengths of those cut."""
  written = sum(len(json.dumps(text)) for text in texts)
  limit = max(map(len, texts), default=0)
  if written > budget:
    characters = budget * sum(map(len, texts)) / written
    limit = max(SHORTEST, int(characters / len(texts)))
  whole = {i: len(text) for i, text in enumerate(texts) if len(text) > limit}
  return {'text': [text[:limit] for text in texts], 'whole': whole}


def _node_table(steps, kept, guide):
  """Texts from node 1 on; visits and distances of all, None without a path."""
  distance = layouts.distances(steps, kept, guide)
  known = np.isfinite(distance)
  # An attempt visits the states that it leaves and the one where it ends.
  ends = steps.next_state[kept][steps.last[kept]]
  visited = np.concatenate([steps.state[kept], ends])
  filled = distance[known].max() + steps.cost[kept].max()
  return {
    **_cut(steps.texts[steps.task[kept[0]]], STATE_BYTES),
    'visits': np.bincount(visited, minlength=len(distance)).tolist(),
    'distance': _rounded(np.where(known, distance, np.nan)),
    'filled': _rounded([filled])[0],
  }


def _attempt_table(steps, kept):
  """Per attempt: its first step and, after the last, ends and flags."""
  last = np.flatnonzero(steps.last[kept])
  return {
    'name': common.attempt_names(steps, steps.task[kept[0]]),
    'start': [0, *(last[:-1] + 1).tolist()],
    'stop': (last + 1).tolist(),
    'success': steps.success[kept][last].astype(int).tolist(),
    'truncated': steps.truncated[kept][last].astype(int).tolist(),
    'credited': steps.credited[kept][last].astype(int).tolist(),
  }


def _json(payload):
  """ASCII that no HTML parser takes for markup."""
  text = json.dumps(payload, separators=(',', ':'), allow_nan=False)
  return re.sub('[<>&]', lambda found: f'\\u{ord(found[0]):04x}', text)


def _escaped(text):
  shown = (c if c.isprintable() else '\N{REPLACEMENT CHARACTER}' for c in text)
  return html.escape(''.join(shown))


def _counts(steps, kept, nodes, edges):
  """What there is in the task and, if less, what is drawn of it."""
  states = len(steps.texts[steps.task[kept[0]]])
  attempts = int(steps.last[kept].sum())
  words = (
    f'{common.count(states, "state")}, {common.count(attempts, "attempt")}, '
  )
  words += f'{common.count(len(kept), "step")}; '
  words += f'{steps.success[kept].sum()} reached the goal.'
  shown, drawn, total = len(nodes) - 1, len(edges['count']), edges['total']
  if shown < states or drawn < total:
    words += (
      f' Drawn: {shown:,} of {states:,} states and {drawn:,} of {total:,} '
      'edges, the most visited and their ways to the goal. The tables of the '
      'attempts are complete.'
    )
  return words


def _drawing(steps, kept, layout, edges):
  """The parts of the SVG element, in pixels, y downwards."""
  corners = layouts.arcs(layout, layout.place(edges['ends']))
  points = np.concatenate([layout.inches, *corners])
  low, high = points.min(0) - MARGIN, points.max(0) + MARGIN
  low[1] -= MARGIN  # room for the axis
  width, height = (high - low) * INCH

  def place(inches):
    return (inches - [low[0], high[1]]) * [INCH, -INCH]

  unit = 'steps' if (steps.cost[kept] == 1).all() else 'distance'
  return {
    'width': f'{width:.0f}',
    'height': f'{height:.0f}',
    'axis': _axis(layout, place, width, height, unit),
    'edges': _edge_marks(layout, place, corners, edges['count']),
    'nodes': _node_marks(steps, kept, layout, place(layout.inches)),
  }


def _axis(layout, place, width, height, unit):
  """Ticks at distances that occur; the zone of the states without a path."""
  levels = np.unique(layout.x[layout.has_path])
  at = place(np.stack([-levels / layout.unit * layout.wide, 0 * levels], 1))
  y, parts, free = height - 30, [], np.inf
  if not layout.has_path.all():
    edge = max(0, at[-1, 0] - 0.5 * layout.wide * INCH)
    parts += [f'<rect class="zone" width="{edge:.1f}" height="{y:.1f}"/>']
    parts += [f'<text x="{edge / 2:.1f}" y="{y + 14:.1f}">no path</text>']
  for level, x in zip(levels.tolist(), at[:, 0].tolist()):
    if x <= free:
      parts.append(f'<text x="{x:.1f}" y="{y + 14:.1f}">{level:g}</text>')
      free = x - 34
  place = f'x="{width / 2:.1f}" y="{y + 28:.1f}"'
  parts.append(f'<text {place}>{unit} to the goal</text>')
  return '\n'.join(parts)


def _edge_marks(layout, place, corners, repeats):
  """A line, its arrow head and a wide invisible line to point at."""
  width = 1.4 + 0.45 * np.log2(repeats)
  corners, heads, width = layouts.arrows(layout, corners, width)
  parts = []
  for i, (line, head) in enumerate(zip(place(corners), place(heads))):
    words = [f'{x:.1f} {y:.1f}' for x, y in (*line.tolist(), *head.tolist())]
    curve = f'd="M{words[0]}C{words[1]} {words[2]} {words[3]}"'
    parts.append(
      f'<g class="edge" id="e{i}"><path class="hit" {curve}/>'
      f'<path class="line" stroke-width="{width[i]:.2f}" {curve}/>'
      f'<path class="head" d="M{words[4]}L{words[5]}L{words[6]}Z"/></g>'
    )
  return '\n'.join(parts)


def _node_marks(steps, kept, layout, points):
  """Shape: start, goal or between. Fill: an attempt ended here and failed."""
  ends = steps.next_state[kept][steps.last[kept] & ~steps.success[kept]]
  start = set(steps.state[kept][steps.step[kept] == 0].tolist())
  failed, solved = set(ends.tolist()), bool(steps.success[kept].any())
  texts = steps.texts[steps.task[kept[0]]]
  labels = layouts.labels(texts)
  radius = layout.radius * INCH
  angle = np.arange(10) * np.pi / 5
  star = np.stack([np.sin(angle), -np.cos(angle)], 1)
  star *= max(1.25 * radius, 7) * np.where(np.arange(10) % 2, 0.45, 1)[:, None]
  corners = ' '.join(f'{x:.1f},{y:.1f}' for x, y in star.tolist())
  side = max(0.95 * radius, 4)
  square = f'x="{-side:.1f}" y="{-side:.1f}" width="{2 * side:.1f}"'
  parts, places = [], dict(zip(layout.nodes.tolist(), points.tolist()))
  for node in _order(layout).tolist():
    shape = f'<circle r="{radius:.1f}"/>'
    if node in start:
      shape = f'<rect {square} height="{2 * side:.1f}"/>'
    if not node:
      shape = f'<polygon points="{corners}"/>'
    x, y = places[node]
    kind = ' failed' * (node in failed) + ' solved' * (not node and solved)
    label = ''
    if node and len(layout.x) <= layouts.LABELLED:
      label = _escaped(labels[node - 1])
      label = f'<text font-size="{0.85 * radius:.1f}">{label}</text>'
    parts.append(
      f'<g class="node{kind}" id="n{node}" role="img" '
      f'tabindex="{-bool(parts)}" transform="translate({x:.1f} {y:.1f})">'
      f'{shape}{label}</g>'
    )
  return '\n'.join(parts)
