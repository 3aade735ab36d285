"""An environment spread over worker processes, which may hang or die.

Slot i of n is played by worker i % W, as its slot i // W. A worker has one
request at a time, so what is under way is bounded. One that crashes, hangs or
raises in a step is started anew, and the attempts it was playing end there as
truncated and `lost`. See `worker` for the other side.
"""

import contextlib
import logging
import pickle
import sys
import time
import weakref
from collections.abc import Callable, Sequence

from graphgpo_jax.envs import processes, worker
from graphgpo_jax.envs.base import (
  Environment,
  Observation,
  Outcome,
  check_number,
  check_slots,
  check_whole,
  one_each,
)
from graphgpo_jax.envs.processes import PATIENCE

LONGEST = 86_400.0  # seconds of one step, at most: a day
LAST_CORE = 4095
CHUNK = 8  # solutions that a worker is asked for at once

_log = logging.getLogger(__name__)


class Pool:
  """W copies of an environment in as many processes, as one `Environment`.

  Results do not depend on W, if the slots of the environment do not depend on
  each other. Texts (prompt, parse, reply, names) are made in this process, by
  a copy that is never reset. Workers start when first needed, and end with
  `close`, with the pool, or with this process, however it ends.
  """

  def __init__(
    self,
    factory: str,
    settings: dict,
    *,
    workers: int,
    timeout: float = 60.0,
    cores: Sequence[int] = (),
  ):
    """Makes the copy of this process.

    Args:
      factory: 'package.file:function', which workers import; cheap to call.
      settings: its keywords.
      workers: W, > 0.
      timeout: seconds that a worker may take for one step of all its slots.
        Other requests have PATIENCE seconds, if that is more.
      cores: worker w runs on core cores[w % len(cores)] only; empty: anywhere.

    Raises:
      ValueError: an argument of another type or out of range, or a factory
        that workers can't import.
      Exception: whatever the factory raises.
    """
    _check_settings(factory, workers, timeout, cores)
    if factory.startswith('__main__:'):
      raise ValueError('workers import the factory: move it to a file')
    self._env: Environment = worker.make(factory, settings)
    self._setup = list(sys.path), factory, settings
    self._timeout, self._cores = timeout, tuple(cores)
    self._workers: list[processes.Worker | None] = [None] * workers
    self._observations: list[Observation] = []
    self._finished: list[bool] = []
    self._lost: set[int] = set()  # workers, since the last reset
    self._under_way: dict[int, list[int]] = {}  # worker -> slots it steps
    self._outcomes: dict[int, Outcome] = {}  # not yet asked for
    self.max_steps = self._env.max_steps
    self.num_tasks = self._env.num_tasks
    self.alphabet = self._env.alphabet
    self.prompt, self.parse = self._env.prompt, self._env.parse
    self.reply, self.task_name = self._env.reply, self._env.task_name
    self.solution = self._env.solution
    self._end = weakref.finalize(self, processes.end_all, self._workers)

  def close(self) -> None:
    """Ends the workers: politely at first, by force after 2 seconds."""
    self._end()

  def reset(self, tasks: Sequence[int]) -> list[Observation]:
    """Starts one slot per task index, see `Environment`.

    A worker that fails is started anew and asked once more.

    Raises:
      IndexError: an index names no task.
      ValueError: an index is no integer, or a wrong answer.
      RuntimeError: the pool is closed.
      ChildProcessError: a worker failed twice; names the task and the reason.
    """
    for task in tasks:
      check_number('task', task, self.num_tasks)
    self._under_way, self._outcomes, self._lost = {}, {}, set()
    self._finished = []  # no slots, should this fail
    self._observations = one_each(
      self._ask('reset', list(tasks)), len(tasks), Observation
    )
    self._finished = [False] * len(tasks)
    return list(self._observations)

  def solutions(self, tasks: Sequence[int]) -> list[list[str]]:
    """`solution` of every task; the workers share the work.

    Ends what the slots are playing, if a worker has to be started anew.

    Raises:
      NotImplementedError: the environment has no expert.
      ChildProcessError, RuntimeError: as `reset`.
    """
    self._finish_step()
    tasks, size = list(tasks), CHUNK * len(self._workers)
    parts = [tasks[i : i + size] for i in range(0, len(tasks), size)]
    found = sum((self._ask('solutions', part) for part in parts), [])
    if None in found:
      raise NotImplementedError('config.env: the environment has no expert')
    return found

  def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Outcome]:
    """Plays one action in each named slot, see `Environment`."""
    return self.begin_step(slots, actions)()

  def begin_step(
    self, slots: Sequence[int], actions: Sequence[str]
  ) -> Callable[[], list[Outcome]]:
    """`step` in the background; what is returned waits for the outcomes.

    A step that is under way is finished first: a worker has one at a time.
    The function may be called once, and not after a reset.
    """
    self._finish_step()
    check_slots(slots, actions, self._finished)
    parts: dict[int, list] = {}
    for pair in zip(slots, actions):
      parts.setdefault(pair[0] % len(self._workers), []).append(pair)
    requests = {n: self._step_request(pairs) for n, pairs in parts.items()}
    slots, self._outcomes = list(slots), {}
    for number, pairs in parts.items():
      self._under_way[number] = [slot for slot, _ in pairs]
      if number in self._lost:
        continue
      if self._workers[number].busy:  # an exception came between
        self._lose(number, 'its answer was not waited for')
        continue
      processes.send_bytes(
        self._workers[number], requests[number], self._timeout
      )
    outcomes = self._outcomes

    def wait():
      if outcomes is self._outcomes:  # no later step has finished it
        self._finish_step()
      if outcomes.keys() != set(slots):
        raise RuntimeError(
          'the outcomes of this step are gone: they were taken already, or a '
          'reset or an exception came between'
        )
      return [outcomes.pop(slot) for slot in slots]

    return wait

  def _step_request(self, pairs):
    """The bytes that ask a worker to play (slot, action) pairs."""
    places = [slot // len(self._workers) for slot, _ in pairs]
    request = 'step', (places, [action for _, action in pairs])
    try:
      return pickle.dumps(request)
    except Exception as problem:  # of whatever was given as an action
      raise ValueError(
        f'actions: found one that can not be sent to a worker ({problem}), '
        'allowed: texts'
      ) from problem

  def _finish_step(self):
    """Takes the answers to the step that is under way, or goes without."""
    self._check_open()
    deadline = time.monotonic() + self._timeout
    under_way, self._under_way = self._under_way, {}
    for number, slots in under_way.items():
      found = None
      if number not in self._lost:
        found, problem = processes.receive(self._workers[number], deadline)
        if problem:
          self._lose(number, problem)
      if number in self._lost:
        found = [_cut_off(self._observations[slot]) for slot in slots]
      for slot, outcome in zip(slots, one_each(found, len(slots), Outcome)):
        self._outcomes[slot] = outcome
        self._observations[slot] = outcome.observation
        self._finished[slot] = outcome.terminal or outcome.truncated

  def _lose(self, number, problem):
    """Starts a worker anew; what it played ends when it is stepped next."""
    playing = sum(
      not finished for finished in self._finished[number :: len(self._workers)]
    )
    _log.warning(
      'environment worker %d %s; its %d running attempts end as truncated',
      *(number, problem, playing),
    )
    self._lost.add(number)
    self._renew(number)

  def _ask(self, method, tasks):
    """What the workers answer about their tasks, in the order of the tasks."""
    self._check_open()
    answers, count = [None] * len(tasks), len(self._workers)
    parts = {i: tasks[i::count] for i in range(min(count, len(tasks)))}
    for number, part in parts.items():
      if self._workers[number] is None or self._workers[number].busy:
        self._renew(number)
      processes.send(self._workers[number], (method, (part,)), PATIENCE)
    deadline = time.monotonic() + max(self._timeout, PATIENCE)
    for number, part in parts.items():
      found, problem = processes.receive(self._workers[number], deadline)
      if problem:
        _log.warning('environment worker %d %s; once more', number, problem)
        found, problem = self._ask_one(number, method, part)
      if problem:
        raise ChildProcessError(self._blame(number, method, part, problem))
      answers[number::count] = one_each(found, len(part))
    return answers

  def _ask_one(self, number, method, tasks):
    """The answer of a fresh worker, and what went wrong or None."""
    self._renew(number)
    processes.send(self._workers[number], (method, (tasks,)), PATIENCE)
    deadline = time.monotonic() + max(self._timeout, PATIENCE)
    return processes.receive(self._workers[number], deadline)

  def _blame(self, number, method, tasks, problem):
    """Which task it was: the first that fails alone; else any of them."""
    names = ', '.join(str(task) for task in tasks)
    for task in dict.fromkeys(tasks):
      _, alone = self._ask_one(number, method, [task])
      if alone:
        names, problem = str(task), alone
        with contextlib.suppress(Exception):  # the cause is worth more
          names = f'{task} ({self.task_name(task)})'
        break
    self._renew(number)
    return f'config.env: {method} of task {names}: the worker {problem}'

  def _renew(self, number):
    """A fresh worker in place of one that may be there."""
    self._check_open()
    old, self._workers[number] = self._workers[number], None
    if old is not None:
      processes.end(old)
    core = self._cores[number % len(self._cores)] if self._cores else None
    self._workers[number] = processes.start(self._setup, core)

  def _check_open(self):
    if not self._end.alive:
      raise RuntimeError('the pool is closed')


def _check_settings(factory, workers, timeout, cores):
  """Raises ValueError for an argument of `Pool` that will not do."""
  if not isinstance(factory, str):
    raise ValueError(
      f"factory: found {factory!r}, allowed: 'package.file:function'"
    )
  check_whole('workers', workers, least=1)
  number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
  if not (number and 0 < timeout <= LONGEST):
    raise ValueError(
      f'timeout: found {timeout!r}, allowed: a number of seconds > 0 and <= '
      f'{LONGEST:g}'
    )
  if not isinstance(cores, Sequence) or isinstance(cores, str):
    raise ValueError(f'cores: found {cores!r}, allowed: a list of core numbers')
  for core in cores:
    check_whole('cores', core, least=0, most=LAST_CORE)


def _cut_off(observation):
  return Outcome(
    observation,
    reward=0.0,
    terminal=False,
    truncated=True,
    success=False,
    valid=True,  # the policy is not to blame
    lost=True,
  )
