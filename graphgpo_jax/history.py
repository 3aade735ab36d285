"""Tasks that are played again, and what their first visit showed.

TIGPO (arXiv:2609.03383) keeps one graph per task: some tasks of an update are
those that were fresh some updates ago, and the transitions of both visits make
their graph. A task is visited twice at most; what is kept of it is dropped at
its second visit, so memory does not grow with the length of a run.
"""

import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax

from graphgpo_jax import log, sharding
from graphgpo_jax.types import Transition


class Visit(NamedTuple):
  """What an update leaves to a later one.

  Attributes:
    tasks: numbers of the tasks to play again; all processes know them.
    transitions: of the attempts at those of this process, with the fields of
      the log alone and credited False.
  """

  tasks: tuple[int, ...] = ()
  transitions: tuple[Transition, ...] = ()


class History(NamedTuple):
  """What came before an update, as far as it bears on what follows.

  Attributes:
    cursor: draws so far from the order of the tasks.
    visits: of the latest updates, the last one last.
  """

  cursor: int = 0
  visits: tuple[Visit, ...] = ()


def due(history: History, *, after: int) -> Visit:
  """The visit whose tasks are played again now, an empty one at first."""
  return history.visits[-after] if len(history.visits) >= after else Visit()


def schedule(
  history: History, draw: Callable[[int], int], *, tasks: int, after: int
) -> tuple[list[int], int]:
  """Tasks of an update, and the cursor after them.

  Fresh tasks, then those that are due. No fresh one is waiting for its second
  visit. All follows from the seed behind `draw` and the sizes.

  With several processes, which take places in turn (`sharding.mine`), a task
  comes back to the process that has its transitions: it was at place p, with p
  below the number of tasks that return, and is now at p + the number of fresh
  ones. The number of processes divides both.

  Args:
    draw: number of a draw -> task.
    tasks: per update.
    after: updates from the first visit to the second.

  Returns:
    Distinct tasks, the cursor.
  """
  again = due(history, after=after).tasks
  taken = {task for visit in history.visits for task in visit.tasks}
  count = tasks - len(again)
  fresh, cursor = draw_fresh(draw, history.cursor, count, taken)
  return [*fresh, *again], cursor


def draw_fresh(
  draw: Callable[[int], int], cursor: int, count: int, taken: Iterable[int]
) -> tuple[list[int], int]:
  """The next tasks that are not taken, and the cursor after them."""
  taken, fresh = set(taken), []
  while len(fresh) < count:
    task, cursor = draw(cursor), cursor + 1
    if task not in taken:  # a new epoch may begin with it
      fresh.append(task)
      taken.add(task)
  return fresh, cursor


def remember(
  history: History,
  tasks: Sequence[int],
  played: Iterable[Transition],
  *,
  update: int,
  after: int,
  attempts: int,
  task_name: Callable[[int], str],
) -> History:
  """The history one update later.

  Args:
    history: with the cursor after the update.
    tasks: the first ones of the update, which will be played again.
    played: transitions of the update, of this process.
    update: its number; it tells attempts of different visits apart.
    after: updates from the first visit to the second.
    attempts: how many, at most, are kept of a task: the first of them.
    task_name: see `Environment`.
  """
  names = set(map(task_name, sharding.mine(tasks)))
  kept = tuple(
    _kept(step, update)
    for step in played
    if step.task in names and step.attempt < attempts
  )
  visits = (*history.visits, Visit(tuple(tasks), kept))[-after:]
  return history._replace(visits=visits)


def _kept(step, update):
  fields = {name: getattr(step, name) for name in log.KNOWN}
  new = {'attempt': f'update {update}, {step.attempt}', 'credited': False}
  return Transition(**fields | new)


def record(history: History) -> dict:
  """What `load` needs beside the files, for JSON; the same in all processes."""
  return {
    'cursor': history.cursor,
    'waiting': [visit.tasks for visit in history.visits],
    'processes': jax.process_count(),
  }


def _path(folder, position, process):
  return pathlib.Path(folder) / f'{position}-{process}.jsonl'


def save(folder: str | os.PathLike, position: int, history: History) -> None:
  """Writes the transitions of this process as a rollout log, if there are any.

  Raises:
    OSError: it can't be written.
  """
  steps = [step for visit in history.visits for step in visit.transitions]
  if steps:
    path = _path(folder, position, jax.process_index())
    path.parent.mkdir(parents=True, exist_ok=True)
    log.write_log(path, steps, meta={'steps': len(steps)})


def clean(folder: str | os.PathLike, positions: Iterable[int]) -> None:
  """Removes what this process saved at all other positions.

  With what processes saved that are no longer there, if they were more.
  """
  kept = set(positions)
  for path in pathlib.Path(folder).glob('*-*.jsonl'):
    numbers = path.stem.split('-')
    if len(numbers) == 2 and all(map(str.isdecimal, numbers)):
      position, process = map(int, numbers)
      mine = process % jax.process_count() == jax.process_index()
      if mine and position not in kept:
        path.unlink(missing_ok=True)


def load(
  folder: str | os.PathLike,
  position: int,
  saved: dict,
  task_name: Callable[[int], str],
) -> History:
  """The history of a checkpoint; the number of processes may have changed.

  Args:
    folder, position: of `save`.
    saved: of `record`.
    task_name: see `Environment`.

  Raises:
    ValueError: a file is missing or damaged, or has nothing of a task that
      waits.
  """
  waiting, steps = saved['waiting'], []
  files = range(saved['processes'] if any(waiting) else 0)
  if len(files) == jax.process_count():
    files = [jax.process_index()]
  for process in files:
    path = _path(folder, position, process)
    try:
      table = _read(path)
    except ValueError as problem:
      raise ValueError(
        f'{problem}; without the folder of checkpoint {position} the run goes '
        'on from the one before'
      ) from None
    columns = zip(*table.values())
    steps += [Transition(**dict(zip(table, row))) for row in columns]
  visits = []
  for tasks in waiting:
    names = set(map(task_name, sharding.mine(tasks)))
    kept = tuple(step for step in steps if step.task in names)
    missing = names.difference(step.task for step in kept)
    if missing:
      raise ValueError(
        f'{folder}: found no step of task {min(missing)!r} at checkpoint '
        f'{position}, which waits for its second visit; are the tasks others?'
      )
    visits.append(Visit(tuple(tasks), kept))
  return History(saved['cursor'], tuple(visits))


def _read(path):
  """The columns of a saved log, all that was saved."""
  try:
    saved = log.read_log(path)
  except OSError as problem:
    raise ValueError(f'{path}: {problem.strerror}') from None
  found = len(saved.table['task'])
  wanted = saved.meta.get('steps', found)  # not in runs recorded before
  if found != wanted:
    raise ValueError(f'{path}: found {found} steps, allowed: {wanted}')
  return saved.table
