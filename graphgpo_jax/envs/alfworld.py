"""ALFWorld: household tasks in text, on the TextWorld engine.

Tasks are games that ALFWORLD_DATA holds, or made-up ones that need no
download; see `alfworld_games`. Installed by `make alfworld`.
"""

import dataclasses
import weakref
from collections.abc import Sequence

import numpy as np

from graphgpo_jax.envs import alfworld_files as files
from graphgpo_jax.envs import alfworld_games as games_
from graphgpo_jax.envs import alfworld_prompts as shown
from graphgpo_jax.envs import alfworld_rooms as rooms
from graphgpo_jax.envs import prompts
from graphgpo_jax.envs.alfworld_engine import (
  CHANGING,
  NOTHING,
  FastEngine,
  Game,
  PlainEngine,
  View,
)
from graphgpo_jax.envs.base import (
  Observation,
  Outcome,
  check_number,
  check_slots,
  check_whole,
)

SUCCESS_REWARD = 10.0
STATE_KEYS = ('paper', 'observation', 'facts')

_STYLES = ('chat', 'compact')
_IDLE: dict[type, list] = {FastEngine: [], PlainEngine: []}  # for any slot


@dataclasses.dataclass
class _Slot:
  """An attempt that is being played; moved: things put down, in order."""

  engine: FastEngine | PlainEngine
  game: Game
  path: str
  view: View
  moved: list[str]
  observation: Observation
  steps: int = 0
  finished: bool = False


class ALFWorld:
  """ALFWorld as an `Environment`.

  The reward is 10 on the step that reaches the goal, else 0. What the engine
  does not understand is played: nothing happens, and the state keeps its key.
  """

  def __init__(
    self,
    tasks: Sequence[games_.Task],
    *,
    state_key: str = 'paper',
    max_steps: int = 50,
    prompt: str = 'chat',
    history: int = 2,
    actions: int = 3,
    detours: int = 0,
    speed_up: bool = True,
    cache: str | None = None,
  ):
    """Keeps the tasks; `reset` starts slots.

    Args:
      tasks: see alfworld_games.
      state_key: 'paper': last observation, place, what is in hand with its
        state, the things put down so far, and the commands; 'observation': the
        last observation alone, which many states share; 'facts': what is true,
        exactly, but for what was looked at.
      max_steps: steps after which an attempt is truncated.
      prompt: 'chat', for a chat model, which has to think first (see
        `prompts.parse_tagged`); or 'compact', in the words of a closed
        vocabulary, for a word tokenizer: the reply is the command alone.
      history: how many of the last steps a chat prompt shows.
      actions: how many of the last actions a compact prompt shows.
      detours: most receptacles that a solution looks into in vain before it
        takes a thing, see `alfworld_games.with_detours`.
      speed_up: False plays with the packages as they come.
      cache: folder for files; None: `alfworld_files.CACHE`.

    Raises:
      ValueError: a number out of range, another key or prompt, or the packages
        are not installed.
    """
    for name, value, allowed in [
      ('state_key', state_key, STATE_KEYS),
      ('prompt', prompt, _STYLES),
      ('speed_up', speed_up, (True, False)),
    ]:
      if value not in allowed:
        raise ValueError(f'{name}: found {value!r}, allowed: {allowed}')
    for name, value, least in [
      ('max_steps', max_steps, 1),
      ('history', history, 0),
      ('actions', actions, 0),
      ('detours', detours, 0),
    ]:
      check_whole(name, value, least=least)
    files.check_installed()
    self.tasks = tuple(tasks)
    self.num_tasks = len(self.tasks)
    self.max_steps = max_steps
    self._is_chat = prompt == 'chat'
    self.alphabet = '' if self._is_chat else shown.words()
    self._state_key, self._cache = state_key, cache
    self._history, self._actions = history, actions
    self._detours = detours
    self._kind = FastEngine if speed_up else PlainEngine
    self._engines = []
    self._slots: list[_Slot] = []
    weakref.finalize(self, _give_back, self._kind, self._engines)

  def reset(self, tasks: Sequence[int]) -> list[Observation]:
    """Starts one slot per task index, see `Environment`.

    Raises:
      ValueError: a game file is broken; names it.
    """
    for task in tasks:
      self._check_task(task)
    paths = [self.tasks[i].path for i in tasks]
    games = [games_.load(path, self._cache) for path in paths]
    idle = _IDLE[self._kind]
    while len(self._engines) < len(games):
      self._engines.append(idle.pop() if idle else self._kind())
    self._slots = []
    for engine, game, path in zip(self._engines, games, paths):
      with games_.naming(path):
        view, moved = engine.reset(game), []
        observation = self._observe(game, view, moved, None)
      self._slots.append(_Slot(engine, game, path, view, moved, observation))
    return [slot.observation for slot in self._slots]

  def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Outcome]:
    """Plays one action in each named slot, see `Environment`."""
    check_slots(slots, actions, [slot.finished for slot in self._slots])
    return [self._step(self._slots[i], a) for i, a in zip(slots, actions)]

  def prompt(
    self,
    history: Sequence[tuple[Observation, str]],
    observation: Observation,
    *,
    hidden: int = 0,
  ) -> str:
    """See `alfworld_prompts`."""
    if self._is_chat:
      return shown.chat_prompt(history, observation, self._history, hidden)
    return shown.short_prompt(history, observation, self._actions, hidden)

  def parse(self, reply: str) -> tuple[str, bool]:
    """Reads an action, see `Environment`; `step` says whether it exists.

    Chat: see `prompts.parse_tagged`; in lower case, as all commands are.
    Compact: the reply, if it has any words.
    """
    if self._is_chat:
      action, valid = prompts.parse_tagged(reply)
      return (reply, False) if action == reply else (action.lower(), valid)
    return reply, bool(reply.strip())

  def reply(self, action: str) -> str:
    """Chat: a short thought and the action. Compact: the action."""
    if not self._is_chat:
      return action
    return prompts.tagged_reply(f'Next I {action}.', action)

  def task_name(self, index: int) -> str:
    """Kind of task, object and receptacle, and which game it is."""
    self._check_task(index)
    return self.tasks[index].name

  def solution(self, index: int) -> list[str]:
    """The planner's commands, which knows where everything is; and detours.

    Raises:
      ValueError: there are none, or more than `max_steps`; names the file.
    """
    self._check_task(index)
    path = self.tasks[index].path
    commands = games_.solution(path, self._cache)
    if self._detours:
      game = games_.load(path, self._cache)
      rng = np.random.default_rng(index)
      commands = games_.with_detours(commands, game, rng, self._detours)
    if len(commands) > self.max_steps:
      raise ValueError(
        f'{path}: a solution of {len(commands)} steps, allowed: '
        f'{self.max_steps}, max_steps'
      )
    return commands

  def _step(self, slot, action):
    command = action.strip()
    valid = command in slot.view.commands
    before = slot.observation.key
    if valid:
      with games_.naming(slot.path):
        slot.view = slot.engine.step(command)
      if command.startswith('move '):
        slot.moved.append(command[5:].partition(' to ')[0])
    else:  # the engine would say the same, but may choke on the text
      slot.view = slot.view._replace(text=NOTHING)
    slot.observation = self._observe(
      slot.game, slot.view, slot.moved, None if valid else before
    )
    slot.steps += 1
    won = valid and slot.view.won
    truncated = not won and slot.steps >= self.max_steps
    slot.finished = won or truncated
    reward = SUCCESS_REWARD if won else 0.0
    return Outcome(slot.observation, reward, won, truncated, won, valid)

  def _observe(self, game, view, moved, key):
    text = (shown.full_text if self._is_chat else shown.short_text)(game, view)
    if key is None:
      key = state_name(self._state_key, game, view, moved)
    return Observation(text, key, view.commands)

  def _check_task(self, index: int):
    check_number('task', index, self.num_tasks)


def state_name(kind: str, game: Game, view: View, moved: Sequence[str]) -> str:
  """The key of a state; lists in it are sorted, so it is the same everywhere.

  Args:
    kind: one of STATE_KEYS, see `ALFWorld`.
    game: that is played.
    view: after the last command that did something.
    moved: things put down so far, in order.
  """
  if kind == 'facts':
    return _changes(game, view)
  text = shown.sort_lists(view.text)
  if kind == 'observation':
    return text
  here = sorted(game.names[x] for x in shown.location(game, view))
  parts = [text, *(', '.join(x) for x in (here, shown.in_hand(game, view)))]
  return '\n'.join([*parts, ', '.join(moved), ', '.join(view.commands)])


def _changes(game, view):
  """The facts that are not as at the start, each with its sign."""
  places = {r: place for place, held in game.places.items() for r in held}
  changes = []
  for predicate in CHANGING:
    now, start = view.facts[predicate], game.initial.get(predicate, set())
    if predicate == 'not_inreceptacle':
      # Decides what lies next to things that share a place, and nothing else.
      at = view.facts['objectatlocation']
      now = {fact for fact in now if (fact[0], places[fact[1]]) in at}
    for sign, facts in ('+', now - start), ('-', start - now):
      changes += [
        f'{sign}{predicate} {", ".join(game.names[x].strip() for x in fact)}'
        for fact in facts
      ]
  return '; '.join(sorted(changes)) or 'start'


def _give_back(kind, engines):
  _IDLE[kind].extend(engines)


def make(
  *,
  split: str,
  seed: int = 0,
  games: int | None = None,
  source: str = 'generated',
  kinds: Sequence[str] = rooms.KINDS,
  receptacles: int = 12,
  objects: int = 8,
  state_key: str = 'paper',
  max_steps: int = 50,
  prompt: str = 'chat',
  history: int = 2,
  actions: int = 3,
  detours: int = 0,
  speed_up: bool = True,
  cache: str | None = None,
) -> ALFWorld:
  """`ALFWorld` on made-up or downloaded games.

  Args:
    split: 'train', 'seen' or 'unseen'.
    seed, games, kinds: which games, see `alfworld_games`; a number of games is
      needed where they are made up, and else all is the default.
    source: 'generated', or 'alfworld' for those of $ALFWORLD_DATA.
    receptacles, objects: of made-up rooms, see `alfworld_games.generate`.
    state_key, max_steps, prompt, history, actions, detours, speed_up, cache:
      see `ALFWorld`.

  Raises:
    ValueError: the packages or games are not there, or bad arguments.
  """
  if source not in games_.SOURCES:
    raise ValueError(f'source: found {source!r}, allowed: {games_.SOURCES}')
  which = {'split': split, 'seed': seed, 'games': games, 'kinds': kinds}
  which['cache'] = cache
  if source == 'alfworld':
    tasks = games_.scan(**which)
  elif games is None:
    raise ValueError("games: missing, allowed: a number, as source='generated'")
  else:
    room = {'receptacles': receptacles, 'objects': objects}
    tasks = games_.generate(**which, **room)
  return ALFWorld(
    tasks,
    state_key=state_key,
    max_steps=max_steps,
    prompt=prompt,
    history=history,
    actions=actions,
    detours=detours,
    speed_up=speed_up,
    cache=cache,
  )
