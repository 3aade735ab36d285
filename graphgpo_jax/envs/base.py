"""What an environment is to the rest of the package: a batch of text slots.

A task is one fixed start, named by its index; a slot plays one attempt at a
task. Everything is text on the host: the states become integers later, once.
"""

import numbers
import operator
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Observation(NamedTuple):
  """What one slot shows.

  Attributes:
    text: what the model is shown of the current state.
    key: the state's name in the graph: within a task, states of one key are
      one node. Best if only equal states share one; a coarser key is a choice.
    admissible: the actions the environment offers in this state; never empty
      before the end.
  """

  text: str
  key: str
  admissible: tuple[str, ...]


class Outcome(NamedTuple):
  """What one action did to one slot.

  Attributes:
    observation: the state after the action, also after the last one.
    reward: the environment's own, without any penalty for invalid actions.
    terminal: the environment ended the attempt, with or without success.
    truncated: the step limit ended it. Never set together with `terminal`,
      which wins where both apply.
    success: the goal was reached; set on the last step only. It is a flag of
      its own, because rewards above 0 exist without success.
    valid: the action was one the environment knows. An invalid one takes a
      step of time and moves nothing.
    score: how well the attempt has done so far, in [0, 1], where there is more
      to say than success. Reported beside it; credit does not see it.
    lost: the environment broke down and the attempt ends here, truncated, with
      the observation it had. Set by `pool.Pool` only.
  """

  observation: Observation
  reward: float
  terminal: bool
  truncated: bool
  success: bool
  valid: bool
  score: float | None = None
  lost: bool = False


@runtime_checkable
class Environment(Protocol):
  """A batch of slots that play attempts at tasks.

  Attributes:
    max_steps: steps after which an attempt is truncated.
    num_tasks: tasks are 0 .. num_tasks - 1.
    alphabet: all that prompts and replies consist of: a str of characters for a
      character tokenizer, a tuple of words for a word tokenizer, or empty where
      the texts are free.

  Texts (prompt, parse, reply, task_name) and solution depend on their arguments
  alone, and not on the slots: with a `pool.Pool` another copy makes them.

  An environment may also have, and is then asked by them:
    begin_step(slots, actions): `step`, but it returns at once, with a function
      that waits for the outcomes. Called for other slots before the first ones
      are waited for.
    solutions(tasks): a `solution` per task, all at once.
    close(): frees what it holds; nothing is called after it.
  """

  max_steps: int
  num_tasks: int
  alphabet: str | tuple[str, ...]

  def reset(self, tasks: Sequence[int]) -> list[Observation]:
    """Starts one slot per entry and forgets the slots of before.

    Args:
      tasks: task index of slots 0..n-1. The attempts at one task repeat its
        index and start identical.

    Returns:
      The first observation of every slot.

    Raises:
      IndexError: an index names no task.
    """

  def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Outcome]:
    """Plays one action in each of the named slots; the others stand still.

    Args:
      slots: distinct slot numbers, in any order.
      actions: one per slot, as `parse` returned it. Any text is allowed:
        what is no action is played as an invalid one.

    Returns:
      One outcome per named slot, in the order of `slots`.

    Raises:
      RuntimeError: a slot has finished; the message names it.
      IndexError: a number names no slot.
      ValueError: a slot is named twice, or the lengths differ.
    """

  def prompt(
    self,
    history: Sequence[tuple[Observation, str]],
    observation: Observation,
    *,
    hidden: int = 0,
  ) -> str:
    """The words shown to the model.

    Args:
      history: the earlier (observation, action) of this attempt, oldest
        first; the environment uses as much of it as it needs.
      observation: the current one.
      hidden: steps, the oldest, that are counted but not told, so that the
        prompt gets shorter. Asked for with `sampling.overflow`
        'drop_history' only.
    """

  def parse(self, reply: str) -> tuple[str, bool]:
    """Reads the model's reply; never raises, whatever the text.

    Returns:
      (action, valid). Without an action in it the reply itself is returned,
      unchanged, with False; `step` still takes it.
    """

  def reply(self, action: str) -> str:
    """A reply that `parse` reads as the action, for a supervised warm start."""

  def task_name(self, index: int) -> str:
    """A name of the task that is the same in every run, for the log."""

  def solution(self, index: int) -> list[str]:
    """Expert actions from the start to success, for a supervised warm start.

    Optional: an environment without an expert raises NotImplementedError.
    """


def one_each(answers: list, count: int, kind: type = object) -> list:
  """The answers of an environment, checked: one for each slot it was asked.

  Raises:
    ValueError: no list, another number, or an answer of another type.
  """
  if not isinstance(answers, Sequence):
    raise ValueError(
      f'config.env: the environment answered {type(answers).__name__}, '
      f'allowed: a list, one for each of {count} slots'
    )
  if len(answers) != count:
    raise ValueError(
      f'config.env: {len(answers)} answers of the environment for {count} slots'
    )
  for place, answer in enumerate(answers):
    if not isinstance(answer, kind):
      raise ValueError(
        f'config.env: answer {place} of the environment is '
        f'{type(answer).__name__}, allowed: {kind.__name__}'
      )
  return list(answers)


def is_whole(value) -> bool:
  """Whether a value is an integer, of Python or numpy, and no bool."""
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_whole(field: str, value, *, least: int, most: int | None = None):
  """Raises ValueError for a setting that is no integer from least to most."""
  if is_whole(value):
    number = operator.index(value)
    if least <= number and (most is None or number <= most):
      return
  upper = '' if most is None else f' and <= {most}'
  raise ValueError(
    f'{field}: found {value!r}, allowed: an integer >= {least}{upper}'
  )


def check_slots(
  slots: Sequence[int], actions: Sequence[str], finished: Sequence[bool]
) -> None:
  """Checks the arguments of a step; `finished` has a flag for every slot.

  Raises:
    ValueError: unequal numbers, a slot twice, or one that is no integer.
    IndexError: a slot that is not there.
    RuntimeError: a slot whose attempt has finished.
  """
  if len(slots) != len(actions) or len(set(slots)) != len(slots):
    raise ValueError(
      f'{len(slots)} slots, {len(set(slots))} of them distinct, '
      f'and {len(actions)} actions'
    )
  for slot in slots:
    check_number('slot', slot, len(finished))
    if finished[slot]:
      raise RuntimeError(f'slot {slot} has finished')


def check_number(kind: str, number, count: int) -> None:
  """Checks the number of a task or slot, of which there are `count`.

  Raises:
    ValueError: it is no integer.
    IndexError: it names none.
  """
  if not is_whole(number):
    raise ValueError(f'{kind}: found {number!r}, allowed: an integer')
  if not 0 <= number < count:
    raise IndexError(f'{kind} {number} of {count}')
