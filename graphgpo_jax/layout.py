"""Where the nodes and arcs of a task's picture go, in numpy alone."""

import dataclasses

import numpy as np

LABELLED = 60  # nodes; larger ones touch each other less
NODES, PAIRS = 120, 400  # of a picture; what is beyond is left out, and said
FEWEST = 30  # nodes that are drawn however many arcs they have


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where the drawn nodes of one task are; the first is the goal.

  Attributes:
    nodes: [K] their numbers in the task, ascending.
    x, y: [K] distance to the goal (beyond all others without a path), inches.
    column, has_path: [K] place counted from the goal; bool.
    far: largest distance of a node with a path.
    unit: distance from column to column.
    wide, high, radius: column to column, row to row, of a node, in inches.
  """

  nodes: np.ndarray
  x: np.ndarray
  y: np.ndarray
  column: np.ndarray
  has_path: np.ndarray
  far: float
  unit: float
  wide: float
  high: float
  radius: float

  @property
  def inches(self):
    """[K, 2] positions, the goal at x = 0 and all others left of it."""
    return np.stack([-self.x / self.unit * self.wide, self.y], 1)

  def drawn(self, steps, rows):
    """Those of the rows whose two ends are drawn."""
    ends = np.stack([steps.state[rows], steps.next_state[rows]])
    return rows[np.isin(ends, self.nodes).all(0)]

  def place(self, numbers):
    """Indices into `nodes` of drawn nodes, by their numbers in the task."""
    return np.searchsorted(self.nodes, numbers)


def distances(steps, kept, result):
  """[nodes of the task] distance to the goal, inf where no path was seen."""
  found = np.full(1 + len(steps.texts[steps.task[kept[0]]]), np.inf)
  distance = np.asarray(result['distance'])[steps.row[kept]]
  reachable = np.asarray(result['reachable'])[steps.row[kept]]
  found[steps.state[kept]] = np.where(reachable, distance, np.inf)
  found[0] = 0
  return found


def choose(steps, kept, result, *, always=(), nodes=NODES, pairs=PAIRS):
  """Numbers of the nodes to draw, so that a picture stays readable.

  All where they are few. Else the goal, those of `always` (or the starts and
  their ways, if it is empty), and the most visited, each with its shortest way
  to the goal (without one, with the way that led to it), so that what is drawn
  hangs together.

  Args:
    steps, kept: the steps, and the indices of those of one task.
    result: 'distance' and 'reachable' in row order.
    nodes: the most nodes, unless the starts' ways and `always` are more.
    pairs: the most pairs of drawn nodes with a step from one to the other.

  Returns:
    [K] ascending, 0 (the goal) first.
  """
  sender, receiver = steps.state[kept], steps.next_state[kept]
  distance = distances(steps, kept, result)
  size, starts = len(distance), np.unique(sender[steps.step[kept] == 0])
  ends = np.unique(np.stack([sender, receiver], 1), axis=0)
  depth = _depth(sender, receiver, np.isfinite(distance), starts)
  parent = _parents(sender, receiver, steps.cost[kept], distance, depth)
  visits = np.bincount(sender, minlength=size)
  visits += np.bincount(receiver, minlength=size)
  order = np.argsort(-visits, kind='stable').tolist()
  must = {0, *np.asarray(always, int).tolist()}
  for start in [] if len(must) > 1 else starts.tolist():
    must.update(_chain(start, parent, must, size))
  limit = max(nodes, len(must))
  while True:
    chosen = set(must) if limit < size else set(range(size))
    for node in order if limit < size else ():
      chosen.update(_chain(node, parent, chosen, limit - len(chosen)))
    found = np.array(sorted(chosen))
    limit = int(0.85 * len(found))
    few = np.isin(ends, found).all(1).sum() <= pairs
    if few or limit < max(FEWEST, len(must)):
      return found


def _parents(sender, receiver, cost, distance, depth):
  """[K] the next node on a shortest way to the goal; without a way the node
  that led to it; -1 for the goal and for starts without a way.
  """
  parent = np.full(len(distance), -1)
  came = np.isinf(distance[receiver]) & (depth[receiver] == depth[sender] + 1)
  parent[receiver[came]] = sender[came]
  through = cost + distance[receiver]
  order = np.lexsort((receiver, through))
  order = order[np.isfinite(through[order])][::-1]  # the best is written last
  parent[sender[order]] = receiver[order]
  return parent.tolist()


def _chain(node, parent, chosen, room):
  """A node and its way to the chosen ones; nothing if that is too long."""
  chain = []
  while node >= 0 and node not in chosen and node not in chain:
    if len(chain) == room:
      return ()
    chain.append(node)
    node = parent[node]
  return chain


def lay_out(steps, kept, result, *, nodes=None):
  """Columns by distance, rows ordered so that few edges cross.

  Args:
    nodes: [K] ascending numbers of the nodes to draw, 0 first; all if None.
  """
  distance = distances(steps, kept, result)
  sender, receiver = steps.state[kept], steps.next_state[kept]
  starts = sender[steps.step[kept] == 0]
  depth = _depth(sender, receiver, np.isfinite(distance), starts)
  levels = np.unique(distance[np.isfinite(distance)])
  unit = 1.0
  if (steps.cost[kept] != 1).any() and levels[-1] > 0:
    unit = float(levels[-1]) / (len(levels) - 1)
  nodes = np.arange(len(distance)) if nodes is None else nodes
  has_path = np.isfinite(distance[nodes])
  far = float(distance[nodes][has_path].max())
  beyond = far + (_squeeze(depth[nodes], has_path) + 0.35) * unit
  x = np.where(has_path, distance[nodes], beyond)
  column = np.rint(x / unit).astype(int)
  inside = np.isin(np.stack([sender, receiver]), nodes).all(0)
  ends = np.searchsorted(nodes, [sender[inside], receiver[inside]])
  row = _rows(column, *ends)
  wide, high = 18 / (column.max() + 1), 6 / max(np.ptp(row), 1)
  wide, high = min(1.15, wide), min(0.8, high)
  share = 0.36 if len(nodes) <= LABELLED else 0.28
  radius = max(0.02, min(0.15, share * wide, share * high))
  sizes = unit, wide, high, radius
  return Layout(nodes, x, row * high, column, has_path, far, *sizes)


def _depth(sender, receiver, has_path, starts):
  """[K] steps since the last state with a path, or since the start."""
  depth = np.where(has_path, 0.0, np.inf)
  depth[starts] = np.where(has_path[starts], 0, 1)
  before = None
  while before is None or (depth != before).any():
    before = depth.copy()
    np.minimum.at(depth, receiver, depth[sender] + 1)
  return depth


def _squeeze(depth, has_path):
  """Depths in about as many columns as rows."""
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


def arrows(layout, corners, width):
  """Arcs cut short for their heads, the heads, and widths for this layout.

  Args:
    corners: [G, 4, 2] of `arcs`, which stay as they are.
    width: [G] of the lines in points, where there is room.

  Returns:
    corners [G, 4, 2], heads [G, 3, 2], tip first, width [G].
  """
  thin = min(1, layout.radius / 0.12)
  width = thin**0.5 * width
  tip, corners = corners[:, 3].copy(), corners.copy()
  way = tip - corners[:, 2]
  way *= thin * (0.055 + 0.022 * width[:, None]) / lengths(way)
  corners[:, 3] -= way
  side = way[:, ::-1] * [-0.5, 0.5]
  heads = np.stack([tip, corners[:, 3] + side, corners[:, 3] - side], 1)
  return corners, heads, width


def labels(texts):
  """What stands in nodes 1, 2, ...: their texts if all are short, else their
  numbers.
  """
  if all(len(t) <= 2 and t.isascii() and t.isprintable() for t in texts):
    return list(texts)
  return [str(node) for node in range(1, len(texts) + 1)]


def _fans(ends):
  """Two arrays [G]: rank of an arc among those between the same two nodes, one
  direction after the other, and how many these are.
  """
  low, high = ends.min(1), ends.max(1)
  order = np.lexsort((ends[:, 0], high, low))
  pairs = (low * (high.max(initial=0) + 1) + high)[order]
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
