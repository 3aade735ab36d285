"""An environment of one's own, and a config that trains a small decoder on it.

  python experiments/run.py --config examples/own_environment.py

A walk on a grid from one cell to another. See `envs.base.Environment` for what
each method owes.
"""

import pathlib
from collections.abc import Sequence

import ml_collections
import numpy as np

from graphgpo_jax import config as configs
from graphgpo_jax.envs.base import (
  Observation,
  Outcome,
  check_number,
  check_slots,
)

TINY = pathlib.Path(__file__).parents[1] / 'experiments/configs/sokoban_tiny.py'
MOVES = {'n': (0, 1), 's': (0, -1), 'e': (1, 0), 'w': (-1, 0)}


class Grid:
  """Tasks are pairs of cells, numbered start * cells + goal."""

  def __init__(self, size: int, tasks: Sequence[int], max_steps: int):
    self.size, self.tasks, self.max_steps = size, tasks, max_steps
    self.num_tasks = len(tasks)
    self.alphabet = '0123456789 >' + ''.join(MOVES)  # of prompts and replies

  def _ends(self, task):
    """(x, y) of start and goal."""
    check_number('task', task, self.num_tasks)
    start, goal = divmod(self.tasks[task], self.size**2)
    return divmod(start, self.size), divmod(goal, self.size)

  def reset(self, tasks):
    ends = [self._ends(task) for task in tasks]
    self.places, self.goals = [start for start, _ in ends], [g for _, g in ends]
    self.steps, self.finished = [0] * len(tasks), [False] * len(tasks)
    return [self._observe(slot) for slot in range(len(tasks))]

  def _observe(self, slot):
    x, y = self.places[slot]
    return Observation(
      text=f'{x} {y} {self.goals[slot][0]} {self.goals[slot][1]}',
      key=f'{x} {y}',  # the goal is the same for all attempts at a task
      admissible=tuple(MOVES),
    )

  def step(self, slots, actions):
    check_slots(slots, actions, self.finished)
    return [self._move(slot, action) for slot, action in zip(slots, actions)]

  def _move(self, slot, action):
    move = MOVES.get(action, (0, 0))
    place = tuple(a + b for a, b in zip(self.places[slot], move))
    if all(0 <= x < self.size for x in place):
      self.places[slot] = place
    self.steps[slot] += 1
    success = self.places[slot] == self.goals[slot]
    truncated = not success and self.steps[slot] == self.max_steps
    self.finished[slot] = success or truncated
    return Outcome(
      self._observe(slot),
      reward=float(success),
      terminal=success,
      truncated=truncated,
      success=success,
      valid=action in MOVES,
    )

  def prompt(self, history, observation, *, hidden=0):
    return observation.text + '>'

  def parse(self, reply):
    return reply, reply in MOVES

  def reply(self, action):
    return action

  def task_name(self, index):
    return f'walk-{self.tasks[index]}'

  def solution(self, index):
    (x, y), (to_x, to_y) = self._ends(index)
    across = ('e' if to_x > x else 'w') * abs(to_x - x)
    return list(across + ('n' if to_y > y else 's') * abs(to_y - y))


def make(*, size: int, max_steps: int, held_out: bool) -> Grid:
  """A fifth of all pairs of two cells is held out."""
  pairs = [i for i in range(size**4) if i // size**2 != i % size**2]
  pairs = np.random.default_rng(0).permutation(pairs).tolist()
  cut = len(pairs) // 5
  return Grid(size, pairs[:cut] if held_out else pairs[cut:], max_steps)


def get_config(scheme: str = 'graphgpo') -> ml_collections.ConfigDict:
  """Config of a scheme, see sokoban_tiny; a minute on two cores."""
  config = configs.load(TINY, scheme)
  config.run_dir = f'runs/own_environment_{scheme.replace(":", "_")}'
  config.updates = 40
  config.env.factory = 'examples.own_environment:make'
  config.env.settings = {'size': 5, 'max_steps': 10}
  config.env.train, config.env.panel = {'held_out': False}, {'held_out': True}
  config.sampling.prompt_lengths = (8,)
  config.batch.update({'tasks': 16, 'row_length': 9})
  config.warm_start.update({'steps': 20, 'tasks': 200})
  config.evaluation.update({'every': 10, 'tasks': 100})
  return config
