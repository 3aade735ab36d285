"""What a model is shown of ALFWorld, in words for chat models and in few."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from graphgpo_jax.envs import alfworld_rooms as rooms
from graphgpo_jax.envs import prompts
from graphgpo_jax.envs.alfworld_engine import Game, View
from graphgpo_jax.envs.base import Observation

NUMBERS = range(1, 61)  # of things of one kind, in the closed vocabulary

_WELCOME = '-= Welcome to TextWorld, ALFRED! =-'
_TASK = '\n\nYour task is to: '
_STATES = {'isclean': 'clean', 'ishot': 'hot', 'iscool': 'cool'}
_STATES |= {'issliced': 'sliced'}
_NAME = re.compile(r'([a-z]+) (\d+)')
_PLACE = re.compile(r'([a-z]+ \d+)( closed)?')
_LISTED = r'(?:a )?[a-z]+ \d+'
_LIST = re.compile(rf'{_LISTED}(?:, {_LISTED})*, and {_LISTED}')
_COMMANDS = (
  *('go', 'to', 'open', 'close', 'take', 'from', 'move', 'examine', 'use'),
  *('heat', 'cool', 'clean', 'slice', 'with', 'look', 'inventory', 'help'),
)
_SIGNS = ('left', 'been', 'at', 'hold', 'see', 'did', 'nothing', ',', '>')


def natural(name: str) -> tuple[str, int]:
  """Sorts 'a cup 10' after 'a cup 9'."""
  kind, _, number = name.rpartition(' ')
  return kind, int(number) if number.isdigit() else 0


def sort_lists(text: str) -> str:
  """The text with everything that it lists put in order."""

  def put_in_order(match):
    *most, last = sorted(
      match[0].replace(', and ', ', ').split(', '), key=natural
    )
    return f'{", ".join(most)}, and {last}'

  return _LIST.sub(put_in_order, text)


def location(game: Game, view: View) -> list[str]:
  """Receptacles where the player is; none in the middle of the room."""
  ((_, place),) = view.facts['atlocation']
  return game.places.get(place, [])


def in_hand(game: Game, view: View) -> list[str]:
  """What the player holds, with its states: 'cup 1 clean'."""
  return sorted(
    ' '.join(
      [game.names[thing]]
      + [s for name, s in _STATES.items() if (thing,) in view.facts[name]]
    )
    for _, thing in view.facts['holds']
  )


def full_text(game: Game, view: View) -> str:
  """The engine's words, and the task, which it says only at the start."""
  if _TASK in view.text:
    return view.text
  return f'{view.text}{_TASK}{game.task}.'


def short_text(game: Game, view: View) -> str:
  """The state in five lines: task, room, place, hand, and what is in sight."""
  places, seen = [], []
  for receptacle in location(game, view):
    state = ''
    if receptacle in game.openable:
      is_open = (receptacle,) in view.facts['opened']
      state = ' open' if is_open else ' closed'
    places.append(game.names[receptacle] + state)
    if state != ' closed':
      inside = view.facts['inreceptacle']
      seen += [game.names[thing] for thing, box in inside if box == receptacle]
  room = [game.names[x] for held in game.places.values() for x in held]
  return '\n'.join(
    [
      game.task,
      _grouped(room),
      f'at {" ".join(sorted(places)) or "nothing"}',
      f'hold {" ".join(in_hand(game, view)) or "nothing"}',
      f'see {_grouped(seen)}',
    ]
  )


def short_prompt(
  history: Sequence[tuple[Observation, str]],
  observation: Observation,
  actions: int,
  hidden: int = 0,
) -> str:
  """Lines of `short_text`, with the room in two: looked into, and the rest.

  The last line has the last actions. What was no action is 'nothing'.
  """
  task, room, place, hand, seen = observation.text.split('\n')
  been = {
    name
    for shown in [*(before for before, _ in history), observation]
    for name, closed in _PLACE.findall(shown.text.split('\n')[2])
    if not closed
  }
  left, kind = [], ''
  for word in room.split():
    if word.isdigit():
      left.append(f'{kind} {word}')
    kind = kind if word.isdigit() else word
  did = [
    action if action in before.admissible else 'nothing'
    for before, action in prompts.told(history, actions, hidden)
  ]
  return '\n'.join(
    [
      task,
      f'left {_grouped(name for name in left if name not in been)}',
      f'been {_grouped(been)}',
      place,
      hand,
      seen,
      f'did {", ".join(did) or "nothing"}',
      '>',
    ]
  )


def chat_prompt(
  history: Sequence[tuple[Observation, str]],
  observation: Observation,
  shown: int,
  hidden: int = 0,
) -> str:
  """Task, number of steps, the last steps, what is seen and can be done."""
  seen, _, task = observation.text.rpartition(_TASK)
  last = prompts.told(history, shown, hidden)
  steps = [
    f'Step {number}. You saw: {_seen(before)}\nYou did: '
    # What is no action may be long, and is not for the prompt.
    + f'{action if action in before.admissible else "nothing that exists"}\n'
    for number, (before, action) in enumerate(
      last, start=len(history) - len(last) + 1
    )
  ]
  actions = ', '.join(x for x in observation.admissible if x != 'help')
  return (
    'You are in a household and act by typing commands.\n'
    f'Your task: {task}\nSteps so far: {len(history)}\n{"".join(steps)}'
    f'Now you see: {_seen(observation)}\nCommands: {actions}\n'
    f'{prompts.REQUEST}'
  )


def words() -> tuple[str, ...]:
  """All words of short prompts and replies, whatever the games."""
  known = rooms.tables()
  templates = ' '.join(
    template.format(obj='', recep='', toggle='')
    for goal in known.goals.values()
    for template in goal['templates']
  )
  names = [name.lower() for name in (*known.objects, *known.holds)]
  states = ('open', 'closed', *_STATES.values())
  numbers = map(str, NUMBERS)
  every = {*names, *templates.split(), *_COMMANDS, *_SIGNS, *states, *numbers}
  return tuple(sorted(every))


def _seen(observation):
  text = observation.text.rpartition(_TASK)[0].removeprefix(_WELCOME)
  return ' '.join(text.split())


def _grouped(names: Iterable[str]) -> str:
  """'cup 1 2 plate 1' of the names; 'nothing' if there are none."""
  kinds = defaultdict(list)
  for kind, number in map(natural, names):
    kinds[kind].append(number)
  return (
    ' '.join(
      f'{kind} {" ".join(map(str, sorted(numbers)))}'
      for kind, numbers in sorted(kinds.items())
    )
    or 'nothing'
  )
