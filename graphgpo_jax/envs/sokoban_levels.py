"""Sokoban levels: drawing, solving, and splitting into training and panel.

A room is carved by a random walk; the start is found by reverse play, which
pulls the boxes away from their targets. The method is that of gym-sokoban
(github.com/mpSchrader/gym-sokoban) with deviations: the search is breadth
first, so it yields the length of the shortest solution as well; a swap is a
change of the pulled box, not any pull; and among starts of equal score the
level takes one at random.
"""

import hashlib
import itertools
import operator
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

ACTIONS = ('up', 'down', 'left', 'right')
SYMBOLS = '_OX√PS#'  # at target + 2 * box + 4 * player; walls last

_SPLITS = ('train', 'panel')
_PANEL_SHARE = 8  # one level in eight belongs to the panel
_MOST_TRIES = 20_000  # draws of one level before giving up
_MOST_POSITIONS = 50_000  # of one reverse play; the nearest are kept
_SLACK = 2  # steps a start may lie behind the nearest one of its score
_TURN = 0.35  # chance that the carving walk turns
_BRUSHES = (  # (row, column) offsets opened around the carving walk
  ((0, -1), (0, 0), (0, 1)),
  ((-1, 0), (0, 0), (1, 0)),
  ((0, -1), (0, 0), (1, 0)),
  ((0, -1), (0, 0), (1, -1), (1, 0)),
  ((0, 0), (0, 1), (1, 0)),
)


class Level(NamedTuple):
  """One start position.

  Attributes:
    walls, targets, boxes: [H, W] bool; walls enclose the room.
    player: cell number, row * W + column.
  """

  walls: np.ndarray
  targets: np.ndarray
  boxes: np.ndarray
  player: int


@dataclass(frozen=True)
class Levels:
  """N start positions of one room size.

  Attributes:
    walls, targets, boxes: [N, H, W] bool.
    player: [N] int, cell number row * W + column.
    solution_length: [N] int, steps of the shortest solution.
    names: N strings that say how to draw each level again.
  """

  walls: np.ndarray
  targets: np.ndarray
  boxes: np.ndarray
  player: np.ndarray
  solution_length: np.ndarray
  names: tuple[str, ...]

  def __len__(self) -> int:
    return len(self.names)

  def __getitem__(self, index: int) -> Level:
    return Level(
      self.walls[index],
      self.targets[index],
      self.boxes[index],
      int(self.player[index]),
    )


class _Position(NamedTuple):
  """A position met in reverse play, linked to the one it leads to."""

  player: int
  boxes: tuple[int, ...]  # in the order of the targets they came from
  steps: int  # to the solved room
  pulled: int  # which box was pulled last, -1 for none
  swaps: int  # how often that box changed
  action: str
  next: '_Position | None'


def make_levels(
  seed: int,
  indices: int | Sequence[int],
  *,
  split: str = 'train',
  size: int = 6,
  boxes: int = 1,
  max_steps: int = 15,
) -> Levels:
  """Draws levels, each a function of its index and the keywords alone.

  A level and its rotations and reflections belong to one split, whatever the
  seed. The panel holds no level twice, not even rotated; training may.

  Args:
    seed: >= 0.
    indices: the levels wanted, each >= 0, or a number n for 0..n-1.
    split: 'train' or 'panel'; a panel level costs drawing all before it.
    size, boxes: H = W, walls included; boxes, and targets, per room.
    max_steps: most steps that a shortest solution may take.

  Returns:
    Levels in the order of `indices`, all solvable.

  Raises:
    ValueError: an argument out of range, or no (further) level found.
  """
  wanted = _check(seed, indices, split, size, boxes, max_steps)
  panel = split == 'panel'
  needed = range(max(wanted) + 1) if panel else set(wanted)
  entropy, taken = [seed, int(panel)], set() if panel else None
  drawn = {
    index: _draw([*entropy, index], size, boxes, max_steps, taken)
    for index in needed
  }
  levels, lengths = zip(*(drawn[index] for index in wanted))
  walls, targets, at, player = map(np.array, zip(*levels))
  kind = f'sokoban-{size}x{size}-{boxes}-{max_steps}-{split}-{seed}'
  names = tuple(f'{kind}-{index}' for index in wanted)
  return Levels(walls, targets, at, player, np.array(lengths), names)


def solve(level: Level) -> list[str]:
  """The actions of a shortest solution; empty if the level is solved.

  Raises:
    ValueError: there is no solution.
  """
  floor = np.flatnonzero(~level.walls).tolist()
  targets = tuple(np.flatnonzero(level.targets).tolist())
  boxes = set(np.flatnonzero(level.boxes).tolist())
  for position in _rewind(floor, targets, level.walls.shape[1]):
    if position.player == level.player and set(position.boxes) == boxes:
      actions = []
      while position.next is not None:
        actions.append(position.action)
        position = position.next
      return actions
  raise ValueError('the level has no solution')


def canonical(level: Level) -> bytes:
  """A name that a square level shares with its 8 rotations and reflections.

  It is the smallest of their drawings, one byte (place in SYMBOLS) per cell.
  """
  codes = draw(level.walls, level.targets, level.boxes, level.player)
  turned = [np.rot90(codes, quarter) for quarter in range(4)]
  return min(view.tobytes() for code in turned for view in (code, code.T))


def in_panel(level: Level) -> bool:
  """Whether the level may serve for evaluation only."""
  return _panel_name(canonical(level))


def draw(
  walls: np.ndarray,
  targets: np.ndarray,
  boxes: np.ndarray,
  player: np.ndarray | int,
) -> np.ndarray:
  """Places in SYMBOLS of all cells.

  Args:
    walls, targets, boxes: [..., H, W] bool.
    player: [...] cell numbers.

  Returns:
    [..., H, W] uint8.
  """
  height, width = walls.shape[-2:]
  cells = np.arange(height * width).reshape(height, width)
  here = np.asarray(player)[..., None, None] == cells
  codes = targets + 2 * boxes + 4 * here
  return np.where(walls, 6, codes).astype(np.uint8)


def _check(seed, indices, split, size, boxes, max_steps) -> list[int]:
  """Checks the arguments of `make_levels`; returns the indices as a list."""
  if split not in _SPLITS:
    raise ValueError(f'split is {split!r}, not one of {_SPLITS}')
  for field, value, least in [
    ('seed', seed, 0),
    ('size', size, 5),  # in a smaller room nothing can be pushed
    ('boxes', boxes, 1),
    ('max_steps', max_steps, 1),
  ]:
    if operator.index(value) < least:
      raise ValueError(f'{field} is {value}, less than {least}')
  several = range(indices) if np.ndim(indices) == 0 else indices
  wanted = [operator.index(index) for index in several]
  if not wanted or min(wanted) < 0:
    raise ValueError(f'indices are {indices}: none, or some negative')
  return wanted


def _panel_name(name: bytes) -> bool:
  return hashlib.sha256(name).digest()[-1] % _PANEL_SHARE == 0


def _draw(entropy, size, boxes, max_steps, taken) -> tuple[Level, int]:
  """Draws until a level fits; `taken` (grows) holds the panel's so far."""
  for attempt in range(_MOST_TRIES):
    rng = np.random.default_rng([*entropy, attempt])
    start = _propose(rng, size, boxes, max_steps)
    if start is None:
      continue
    name = canonical(start[0])
    if taken is None and not _panel_name(name):
      return start
    if taken is not None and _panel_name(name) and name not in taken:
      taken.add(name)
      return start
  raise ValueError(
    f'no further level of size {size} with {boxes} boxes and at most '
    f'{max_steps} steps in {_MOST_TRIES} draws (index {entropy[-1]})'
  )


def _propose(
  rng: np.random.Generator, size: int, boxes: int, max_steps: int
) -> tuple[Level, int] | None:
  """One draw: the start with the largest swaps x displacement, if any."""
  floor = _carve(rng, size)
  if len(floor) < boxes + 2:
    return None
  targets = tuple(rng.permutation(floor)[:boxes].tolist())
  best, starts = 0, []
  positions = itertools.islice(_rewind(floor, targets, size), _MOST_POSITIONS)
  for position in positions:
    if position.steps > max_steps:
      break
    covered = {position.player, *position.boxes}.intersection(targets)
    displacement = sum(
      abs(box // size - home // size) + abs(box % size - home % size)
      for box, home in zip(position.boxes, targets)
    )
    score = 0 if covered else position.swaps * displacement
    if score > best:
      best, starts = score, []
    if score == best > 0:
      starts.append(position)
  # The nearest alone would repeat few levels (a quarter are distinct); all
  # of them would be much longer than the published ones (5.6 steps for 3.9).
  starts = [s for s in starts if s.steps <= starts[0].steps + _SLACK]
  if not starts:
    return None
  start = starts[rng.integers(len(starts))]
  fields = np.zeros((3, size * size), bool)
  fields[0] = True
  fields[0, floor] = False
  fields[1, list(targets)] = True
  fields[2, list(start.boxes)] = True
  walls, at_target, at_box = fields.reshape(3, size, size)
  return Level(walls, at_target, at_box, start.player), start.steps


def _carve(rng: np.random.Generator, size: int) -> list[int]:
  """Floor cells that a random walk with wide brushes opens, sorted."""
  steps = int(1.7 * 2 * size)
  row, column = rng.integers(1, size - 1, 2).tolist()
  turns = (rng.random(steps) < _TURN).tolist()
  directions = rng.integers(4, size=steps).tolist()
  brushes = rng.integers(len(_BRUSHES), size=steps).tolist()
  ahead = directions[0]
  inside = range(1, size - 1)
  floor = set()
  for turn, direction, brush in zip(turns, directions, brushes):
    ahead = direction if turn else ahead
    row += (-1, 1, 0, 0)[ahead]
    column += (0, 0, -1, 1)[ahead]
    row = min(max(row, 1), size - 2)
    column = min(max(column, 1), size - 2)
    for down, right in _BRUSHES[brush]:
      if row + down in inside and column + right in inside:
        floor.add((row + down) * size + column + right)
  return sorted(floor)


def _rewind(
  floor: Sequence[int], targets: tuple[int, ...], width: int
) -> Iterator[_Position]:
  """Yields the positions that can be solved, fewest steps first."""
  moves = tuple(zip(ACTIONS, (-width, width, -1, 1)))
  free = frozenset(floor)
  queue = deque(
    _Position(cell, targets, 0, -1, 0, '', None)
    for cell in floor
    if cell not in targets
  )
  seen = {(cell, *sorted(targets)) for cell in floor}
  while queue:
    position = queue.popleft()
    yield position
    for earlier in _undo(position, free, moves):
      # Which box came from which target does not matter to what is met.
      key = (earlier.player, *sorted(earlier.boxes))
      if key not in seen:
        seen.add(key)
        queue.append(earlier)


def _undo(
  position: _Position,
  floor: frozenset[int],
  moves: tuple[tuple[str, int], ...],
) -> Iterator[_Position]:
  """Yields the positions one action earlier: walked, or pushed a box."""
  player, boxes, steps, pulled, swaps, _, _ = position
  for action, offset in moves:
    before = player - offset
    if before not in floor or before in boxes:
      continue
    yield _Position(before, boxes, steps + 1, pulled, swaps, action, position)
    if player + offset in boxes:
      box = boxes.index(player + offset)
      yield _Position(
        before,
        (*boxes[:box], player, *boxes[box + 1 :]),
        steps + 1,
        box,
        swaps + (box != pulled),
        action,
        position,
      )
