"""Where the nodes and arcs of a task's picture go, in numpy alone."""

import dataclasses

import numpy as np

LABELLED = 60  # nodes; a larger graph is drawn without labels


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where the nodes of one task are; node 0 is the goal.

  Attributes:
    x, y: [K] distance to the goal (beyond all others without a path), inches.
    column, has_path: [K] place counted from the goal; bool.
    unit: distance from column to column.
    wide, high, radius: column to column, row to row, of a node, in inches.
  """

  x: np.ndarray
  y: np.ndarray
  column: np.ndarray
  has_path: np.ndarray
  unit: float
  wide: float
  high: float
  radius: float

  @property
  def inches(self):
    """[K, 2] positions, the goal at x = 0 and all others left of it."""
    return np.stack([-self.x / self.unit * self.wide, self.y], 1)


def lay_out(steps, kept, result):
  """Columns by distance, rows ordered so that few edges cross."""
  sender, receiver = steps.state[kept], steps.next_state[kept]
  size = 1 + len(steps.texts[steps.task[kept[0]]])
  x, has_path = np.zeros(size), np.arange(size) == 0
  x[sender] = np.asarray(result['distance'])[steps.row[kept]]
  has_path[sender] = np.asarray(result['reachable'])[steps.row[kept]]
  levels = np.unique(x[has_path])
  unit = 1.0
  if (steps.cost[kept] != 1).any() and levels[-1] > 0:
    unit = float(levels[-1]) / (len(levels) - 1)
  depth = _depth(sender, receiver, has_path, sender[steps.step[kept] == 0])
  x = np.where(has_path, x, levels[-1] + (depth + 0.35) * unit)
  column = np.rint(x / unit).astype(int)
  row = _rows(column, sender, receiver)
  wide = min(1.15, 18 / (column.max() + 1))
  high = min(0.8, 6 / max(np.ptp(row), 1))
  share = 0.36 if size <= LABELLED else 0.22
  radius = max(0.02, min(0.15, share * wide, share * high))
  return Layout(x, row * high, column, has_path, unit, wide, high, radius)


def _depth(sender, receiver, has_path, starts):
  """[K] steps since the last state with a path, or since the start, squeezed
  into about as many columns as rows.
  """
  depth = np.where(has_path, 0.0, np.inf)
  depth[starts] = np.where(has_path[starts], 0, 1)
  before = None
  while before is None or (depth != before).any():
    before = depth.copy()
    np.minimum.at(depth, receiver, depth[sender] + 1)
  limit = max(6, np.ceil(np.sqrt(np.sum(~has_path))))
  return np.ceil(depth * min(1, limit / max(depth.max(), 1)))


def _rows(column, sender, receiver):
  """[K] rows, centred, by the mean row of the neighbours; columns in turn."""
  groups = [np.flatnonzero(column == c) for c in np.unique(column)]
  row = np.zeros(len(column))
  apart = sender != receiver
  ends = np.concatenate([sender[apart], receiver[apart]])
  others = np.concatenate([receiver[apart], sender[apart]])
  degree = np.bincount(ends, minlength=len(row))
  for sweep in range(40):
    total = np.bincount(ends, row[others], len(row))
    mean = np.where(degree, total / np.maximum(degree, 1), row).round(6)
    for group in groups[sweep % 2 :: 2] if sweep else groups:
      order = np.lexsort((row[group], mean[group]))
      row[group[order]] = np.arange(len(group)) - (len(group) - 1) / 2
  return row


def lengths(vectors):
  """Lengths [G, 1] of vectors [G, 2], never 0, to divide by."""
  return np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def arcs(layout, ends):
  """[G, 4, 2] corners of cubic arcs in inches, from rim to rim of the nodes."""
  start, end = layout.inches[ends].transpose(1, 0, 2)
  rank, size = _fans(ends)
  corner = (start + end) / 2 + 2 * _bends(layout, ends, rank, size)
  corners = [start, (start + 2 * corner) / 3, (end + 2 * corner) / 3, end]
  loop = (ends[:, :1] == ends[:, 1:]).ravel()
  tall = min(0.4, 0.8 * layout.high) + rank * np.minimum(0.09, 0.4 / size)
  for i, side in ((1, -0.75), (2, 0.75)):
    corners[i][loop] += tall[loop, None] * [side, 1]
  for rim, towards in ((0, 1), (3, 2)):
    way = corners[towards] - corners[rim]
    radius = layout.radius * np.where(ends[:, [rim // 3]] == 0, 1.25, 1)
    corners[rim] = corners[rim] + way * np.minimum(radius / lengths(way), 0.5)
  return np.stack(corners, 1)


def _fans(ends):
  """Two arrays [G]: rank of an arc among those between the same two nodes, one
  direction after the other, and how many these are.
  """
  low, high = ends.min(1), ends.max(1)
  order = np.lexsort((ends[:, 0], high, low))
  pairs = (low * (high.max() + 1) + high)[order]
  counts = {'return_index': True, 'return_inverse': True, 'return_counts': True}
  _, first, pair, count = np.unique(pairs, **counts)
  rank, size = np.empty((2, len(ends)), int)
  rank[order], size[order] = np.arange(len(ends)) - first[pair], count[pair]
  return rank, size


def _bends(layout, ends, rank, size):
  """[G, 2] from the middle of the straight line to that of the arc, inches:
  fanned out, and outwards where other nodes may lie between.
  """
  low, high = ends.min(1), ends.max(1)
  way = layout.inches[high] - layout.inches[low]
  long = lengths(way)[:, 0]
  normal = way[:, ::-1] * [-1, 1] / long[:, None]
  gap = np.minimum(0.13, 0.8 * np.minimum(long, layout.high) / size)
  apart = np.abs(layout.column[high] - layout.column[low])
  beyond = (apart > 1) | ((apart == 0) & (long > 1.5 * layout.high))
  arch = np.minimum(0.15 * long, 0.6) + (size - 1) / 2 * gap
  inwards = normal[:, 1] * (layout.y[low] + layout.y[high]) < 0
  bend = (rank - (size - 1) / 2) * gap + np.where(inwards, -arch, arch) * beyond
  return bend[:, None] * normal
