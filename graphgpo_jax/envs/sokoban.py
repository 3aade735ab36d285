"""Sokoban: push every box onto a target; all slots step together in numpy.

Rewards are those of gym-sokoban (github.com/mpSchrader/gym-sokoban): -0.1 per
step, +1 for a box put on a target, -1 for one taken off, +10 for solving.
"""

import difflib
import inspect
from collections.abc import Sequence

import numpy as np

from graphgpo_jax.envs import prompts
from graphgpo_jax.envs.base import (
  Observation,
  Outcome,
  check_number,
  check_slots,
  check_whole,
)
from graphgpo_jax.envs.sokoban_files import read_boxoban
from graphgpo_jax.envs.sokoban_files import read_levels as read_levels
from graphgpo_jax.envs.sokoban_images import render
from graphgpo_jax.envs.sokoban_levels import (
  ACTIONS,
  SYMBOLS,
  Levels,
  draw,
  make_levels,
)

STEP_REWARD = -0.1
BOX_REWARD = 1.0
SOLVED_REWARD = 10.0

_SEPARATOR = '>'
_LETTERS = {action[0]: action for action in ACTIONS}
_WORDS = _LETTERS | {action: action for action in ACTIONS}
_CODES = {action: code for code, action in enumerate(ACTIONS)}

# All characters of compact prompts and answers, for a character tokenizer.
ALPHABET = SYMBOLS + _SEPARATOR + ''.join(_LETTERS)

_RULES = """\
You play Sokoban: push every box onto a target. You move one cell up, down, \
left or right, and push a box that is in your way, if the cell behind it is \
free. Nothing goes through walls.
# wall, _ floor, O target, X box, P you, \N{SQUARE ROOT} box on target, \
S you on target
"""
_STYLES = ('compact', 'chat')


class Sokoban:
  """Sokoban as an `Environment`; the tasks are the given levels.

  Success is the flag "all boxes on targets". A move into a wall or against a
  blocked box is valid and moves nothing. The text of an observation has H
  rows of W symbols: # wall, _ floor, O target, X box, P player, √ box on
  target, S player on target. Its key names the cells (row * W + column) of
  player and boxes; walls and targets are the task's. `images` shows the same
  state as pictures.
  """

  def __init__(
    self,
    levels: Levels,
    *,
    max_steps: int = 15,
    prompt: str = 'compact',
    history: int = 2,
  ):
    """Keeps the levels; `reset` starts slots.

    Args:
      levels: the tasks, see sokoban_levels.
      max_steps: steps after which an attempt is truncated.
      prompt: 'compact', one character per cell and one for an action, for a
        character tokenizer; or 'chat', words for a chat model, which has to
        think first (see `prompts.parse_tagged`).
      history: how many of the last steps a chat prompt shows.

    Raises:
      ValueError: a step limit below 1, another prompt, or a negative history.
    """
    check_whole('max_steps', max_steps, least=1)
    if prompt not in _STYLES:
      raise ValueError(f'prompt: found {prompt!r}, allowed: {_STYLES}')
    check_whole('history', history, least=0)
    self.max_steps = max_steps
    self._is_chat, self._history = prompt == 'chat', history
    self.alphabet = '' if self._is_chat else ALPHABET
    self.levels = levels
    self.num_tasks = len(levels)
    width = levels.walls.shape[2]
    # The last entry is the invalid action, which moves by nothing.
    self._offsets = np.array([-width, width, -1, 1, 0])
    self._walls = levels.walls.reshape(len(levels), -1)
    self._targets = levels.targets.reshape(len(levels), -1)
    self.reset([])

  def reset(self, tasks: Sequence[int]) -> list[Observation]:
    """Starts one slot per task index, see `Environment`."""
    for task in tasks:
      self._check_task(task)
    self._tasks = np.array(tasks, np.int64)
    self._boxes = self.levels.boxes.reshape(self._walls.shape)[self._tasks]
    self._player = self.levels.player[self._tasks]
    self._steps = np.zeros(len(tasks), np.int64)
    self._finished = np.zeros(len(tasks), bool)
    return self._observe(np.arange(len(tasks)))

  def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Outcome]:
    """Plays one action in each named slot, see `Environment`."""
    check_slots(slots, actions, self._finished)
    slots = np.array(slots, np.int64)
    codes = np.array([_CODES.get(action, -1) for action in actions], int)
    gain = self._move(slots, self._offsets[codes])
    self._steps[slots] += 1
    targets = self._targets[self._tasks[slots]]
    solved = (self._boxes[slots] <= targets).all(1)
    truncated = ~solved & (self._steps[slots] >= self.max_steps)
    self._finished[slots] = solved | truncated
    reward = STEP_REWARD + BOX_REWARD * gain + SOLVED_REWARD * solved
    return [
      Outcome(observation, *values)
      for observation, *values in zip(
        self._observe(slots),
        reward.tolist(),
        solved.tolist(),
        truncated.tolist(),
        solved.tolist(),
        (codes >= 0).tolist(),
      )
    ]

  def prompt(
    self,
    history: Sequence[tuple[Observation, str]],
    observation: Observation,
    *,
    hidden: int = 0,
  ) -> str:
    """Compact: the room in one line and '>'. Chat: rules, steps and room."""
    if not self._is_chat:  # The room shows all, so no history.
      return observation.text.replace('\n', '') + _SEPARATOR
    shown = prompts.told(history, self._history, hidden)
    steps = [
      f'Before:\n{_spaced(before)}\nYou did: '
      # What is no action may be long, and is not for the prompt.
      f'{action if action in _CODES else "nothing, the answer was not valid"}\n'
      for before, action in shown
    ]
    return (
      f'{_RULES}{"".join(steps)}Now:\n{_spaced(observation)}\n'
      f'Actions: {", ".join(observation.admissible)}\n{prompts.REQUEST}'
    )

  def parse(self, reply: str) -> tuple[str, bool]:
    """Reads an action, in any case, see `Environment`.

    Compact: u, d, l, r or the full word. Chat: see `prompts.parse_tagged`; the
    action of a reply without a thought is still played.
    """
    if not self._is_chat:
      action = _WORDS.get(reply.strip().lower())
      return (reply, False) if action is None else (action, True)
    action, valid = prompts.parse_tagged(reply)
    action = action.lower()
    return (action, valid) if action in _CODES else (reply, False)

  def reply(self, action: str) -> str:
    """Compact: the action's letter. Chat: a short thought and the action."""
    if not self._is_chat:
      if action not in _CODES:
        raise ValueError(f'action: found {action!r}, allowed: {ACTIONS}')
      return action[0]
    return prompts.tagged_reply(f'I go {action}.', action)

  def task_name(self, index: int) -> str:
    """The level's name, which says how to draw it again."""
    self._check_task(index)
    return self.levels.names[index]

  def solution(self, index: int) -> list[str]:
    """The actions of a shortest solution."""
    self._check_task(index)
    return list(self.levels.solutions[index])

  def images(
    self, slots: Sequence[int] | None = None, *, tile: int = 16
  ) -> np.ndarray:
    """Pictures of what the slots show now, for a model that sees.

    Args:
      slots: slot numbers in any order; None for all of them.
      tile: side of a cell in pixels.

    Returns:
      [n, H * tile, W * tile, 3] uint8, red, green and blue, see `render`.

    Raises:
      IndexError: a number names no slot.
      ValueError: a tile that is too small.
    """
    numbers = range(len(self._tasks)) if slots is None else slots
    for slot in numbers:
      self._check_slot(slot)
    return render(*self._rooms(np.array(numbers, np.int64)), tile=tile)

  def _rooms(self, slots: np.ndarray) -> tuple[np.ndarray, ...]:
    """Walls, targets and boxes [n, H, W] and players [n] of the slots."""
    tasks = self._tasks[slots]
    walls, targets = self.levels.walls[tasks], self.levels.targets[tasks]
    return (
      walls,
      targets,
      self._boxes[slots].reshape(walls.shape),
      self._player[slots],
    )

  def _move(self, slots: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Moves players and boxes; returns [n] boxes put on targets less off."""
    tasks, player = self._tasks[slots], self._player[slots]
    ahead = player + offsets
    wall = self._walls[tasks, ahead]
    # Behind a wall there may be no cell; nobody is pushed there.
    beyond = np.where(wall, ahead, ahead + offsets)
    box = self._boxes[slots, ahead]
    stuck = self._walls[tasks, beyond] | self._boxes[slots, beyond]
    push = box & ~stuck & ~wall
    self._player[slots] = np.where(wall | (box & stuck), player, ahead)
    pushed = slots[push]
    self._boxes[pushed, ahead[push]] = False
    self._boxes[pushed, beyond[push]] = True
    on = self._targets[tasks, beyond].astype(int)
    return push * (on - self._targets[tasks, ahead])

  def _observe(self, slots: np.ndarray) -> list[Observation]:
    """The observations of the slots: texts and keys."""
    rooms = self._rooms(slots)
    height, width = self.levels.walls.shape[1:]
    symbols = np.full((len(slots), height, width + 1), '\n')
    symbols[:, :, :width] = np.array(list(SYMBOLS))[draw(*rooms)]
    length = height * (width + 1)
    texts = symbols.reshape(len(slots), length).view(f'<U{length}')
    return [
      Observation(
        text[:-1],
        f'{cell}:' + ','.join(map(str, np.flatnonzero(row).tolist())),
        ACTIONS,
      )
      for text, cell, row in zip(
        texts[:, 0].tolist(), self._player[slots].tolist(), self._boxes[slots]
      )
    ]

  def _check_task(self, index: int):
    check_number('task', index, len(self.levels))

  def _check_slot(self, slot: int):
    check_number('slot', slot, len(self._tasks))


def _spaced(observation: Observation) -> str:
  """The room with blanks between its cells, so that each is its own token."""
  return '\n'.join(map(' '.join, observation.text.split('\n')))


def make(
  *,
  split: str,
  seed: int,
  levels: int | None,
  size: int | tuple[int, int] | None = None,
  boxes: int | None = None,
  max_steps: int = 15,
  prompt: str = 'compact',
  history: int = 2,
  source: str | None = None,
  **reading,
) -> Sokoban:
  """`Sokoban` on generated levels, or on those of Boxoban files.

  Args:
    split, seed, levels, max_steps: see `make_levels`, and `read_boxoban`.
    size, boxes: of every level; by default 6 and 1, in files 10 and any number.
    prompt, history: see `Sokoban`.
    source: a file or folder for `read_boxoban`; None generates.
    **reading: most_states and unsolved of `read_boxoban`.

  Raises:
    ValueError: an argument out of range or a level that will not do.
    TypeError: an argument of the other kind of levels, or of none.
  """
  rooms = {'size': size, 'boxes': boxes, 'max_steps': max_steps}
  _check_keywords(reading, source)
  check_whole('max_steps', max_steps, least=1)
  given = {key: value for key, value in rooms.items() if value is not None}
  given |= {'split': split, 'seed': seed}
  if source is None:
    if levels is None:
      raise ValueError('levels: missing, allowed: a number, without a source')
    check_whole('levels', levels, least=1)
    drawn = make_levels(indices=levels, **given)
  else:
    drawn = read_boxoban(source, levels=levels, **given, **reading)
  return Sokoban(drawn, max_steps=max_steps, prompt=prompt, history=history)


def _check_keywords(reading, source):
  """Raises TypeError for a keyword that `make` can't use."""
  of_files = ('most_states', 'unsolved')
  own = [
    key
    for key, parameter in inspect.signature(make).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
  ]
  for key in reading:
    if key not in of_files:
      near = difflib.get_close_matches(key, [*own, *of_files], 1)
      words = f'did you mean {near[0]}?' if near else f'allowed: {own}'
      raise TypeError(f'{key}: unknown; {words}')
    if source is None:
      raise TypeError(f'{key}: found without a source, allowed: for files only')
