"""Lists of ALFWorld tasks: games from ALFWORLD_DATA, and made-up ones."""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from graphgpo_jax.envs import alfworld_files as files
from graphgpo_jax.envs import alfworld_rooms as rooms
from graphgpo_jax.envs.alfworld_engine import FastEngine, Game
from graphgpo_jax.envs.base import check_whole

SOURCES = ('generated', 'alfworld')
FOLDERS = {'train': 'train', 'seen': 'valid_seen', 'unseen': 'valid_unseen'}

_VERSION = 1  # of made-up games; a change of rooms or drawing needs another
_MOST_TRIES = 2000  # draws of one game
_MISTAKES = (ValueError, LookupError, AttributeError, TypeError, RecursionError)
_GENERATED = re.compile(r'(\d{6,})-(\w+-\w+-\w+)\.tw-pddl')


class Task(NamedTuple):
  """A game that can be played.

  Attributes:
    name: the same in every run; begins with the kind of task.
    kind: one of `alfworld_rooms.KINDS`.
    path: of the game file.
  """

  name: str
  kind: str
  path: str


def generate(
  *,
  split: str,
  seed: int,
  games: int,
  kinds: Sequence[str] = rooms.KINDS,
  receptacles: int = 12,
  objects: int = 8,
  cache: str | None = None,
) -> tuple[Task, ...]:
  """Made-up games, written once and found again later.

  Game i is a function of its number and the keywords, but for `games` and
  `cache`: more games begin with the fewer. Kinds take turns. The planner has
  solved every one, and its solution was played. Several processes may ask for
  the same games: one writes, the others wait. What a killed one wrote stays.

  Args:
    split: 'train'; 'seen', other games in rooms and with pairs of object and
      receptacle that training may have; or 'unseen', which it never has.
    seed: >= 0.
    games: how many.
    kinds: kinds of tasks, see `alfworld_rooms.KINDS`.
    receptacles, objects: see `alfworld_rooms.draw`; at least 4 receptacles,
      at most what the rooms have place for.
    cache: folder for files; None: `alfworld_files.CACHE`.

  Raises:
    ValueError: an argument out of range, or no game found.
  """
  files.check_installed()
  _check(split, kinds, seed)
  check_whole('games', games, least=1)
  most = rooms.most_receptacles(kinds)
  check_whole('receptacles', receptacles, least=4, most=most)
  most = rooms.most_objects(receptacles)
  check_whole('objects', objects, least=0, most=most)
  settings = {'split': split, 'seed': seed, 'kinds': list(kinds)}
  settings |= {'receptacles': receptacles, 'objects': objects}
  described = json.dumps([_VERSION, files.VERSIONS, settings])
  name = hashlib.sha256(described.encode()).hexdigest()[:16]
  folder = files.cache_folder('generated', name, cache=cache)
  found = _listed(folder)
  if not found.keys() >= set(range(games)):
    with files.locked(folder):
      found = _listed(folder)
      for index in range(games):
        if index not in found:
          _write(folder, index, settings, cache)
    found = _listed(folder)
  return tuple(
    Task(f'{name}-{split}-{seed}-{index}', name.split('-')[0], str(path))
    for index in range(games)
    for name, path in [found[index]]
  )


def scan(
  *,
  split: str,
  games: int | None = None,
  seed: int = 0,
  kinds: Sequence[str] = rooms.KINDS,
  cache: str | None = None,
) -> tuple[Task, ...]:
  """Games in $ALFWORLD_DATA/json_2.1.1, as alfworld-download puts them.

  Left out are, as in alfworld, games with movable receptacles or slices, and
  those that say that they can't be solved. The list is made once, and kept in
  the cache until a game file comes, goes or changes.

  Args:
    split: 'train', 'seen' (valid_seen) or 'unseen' (valid_unseen).
    games: how many to choose; None: all of them.
    seed: of the choice, >= 0.
    kinds: kinds of tasks, see `alfworld_rooms.KINDS`.
    cache: folder for the list; None: `alfworld_files.CACHE`.

  Returns:
    Tasks in order of their names.

  Raises:
    ValueError: there is no such folder, a file is broken, too few games, or an
      argument out of range.
  """
  _check(split, kinds, seed)
  if games is not None:
    check_whole('games', games, least=1)
  data = os.environ.get('ALFWORLD_DATA')
  if not data:
    raise ValueError(
      'ALFWORLD_DATA: not set, allowed: the folder that alfworld-download '
      "filled; source='generated' needs none"
    )
  folder = pathlib.Path(data).expanduser() / 'json_2.1.1' / FOLDERS[split]
  if not folder.is_dir():
    raise ValueError(f'ALFWORLD_DATA: no folder {folder}')
  found = files.game_files(folder)
  state = json.dumps([str(folder.resolve()), found])
  name = hashlib.sha256(state.encode()).hexdigest()[:16]
  lists = files.cache_folder('lists', cache=cache)
  path = lists / f'{name}.json'
  names = _read_list(path)
  if names is None:
    with files.locked(lists):
      names = _read_list(path)
      if names is None:
        names = _scan(folder, found)
        content = {'folder': str(folder), 'sha256': _digest(names)}
        content = json.dumps(content | {'games': names}, indent=1)
        files.write_whole(path, content.encode())
  names = [name for name in names if name.split('-')[0] in kinds]
  if len(names) < (games or 1):
    raise ValueError(
      f'{folder}: found {len(names)} games, allowed: {games or 1} or more; '
      f'listed in {path}'
    )
  if games:
    chosen = np.random.default_rng(seed).permutation(len(names))[:games]
    names = [names[i] for i in sorted(chosen.tolist())]
  return tuple(
    Task(name, name.split('-')[0], str(folder / name / 'game.tw-pddl'))
    for name in names
  )


def load(path: str, cache: str | None = None) -> Game:
  """The game of a file; read again only when the file has changed.

  Raises:
    ValueError: it is broken, won at the start, or has no command there; names
      the file.
  """
  try:
    state = os.stat(path)
  except OSError as problem:
    raise ValueError(f'{path}: not a game: {problem}') from None
  return _load(path, cache, state.st_size, state.st_mtime_ns)


@functools.lru_cache(512)
def _load(path, cache, *_):
  data = files.read_game(path)
  with naming(path):
    game = Game(data, cache=cache)
    view = _planner().reset(game)
  if view.won:
    raise ValueError(f'{path}: not a game: the goal is reached at the start')
  if not view.commands:
    raise ValueError(
      f'{path}: not a game: no command at the start, it can not be solved'
    )
  return game


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
  """Makes mistakes in a game ValueErrors of one line that name its file."""
  try:
    yield
  except _MISTAKES as problem:
    words = ' '.join(str(problem).split())
    raise ValueError(f'{path}: not a game: {words}') from None


def solution(path: str, cache: str | None = None) -> list[str]:
  """Commands that solve the game of a file: its walkthrough, or a plan.

  Raises:
    ValueError: there is none; names the file.
  """
  walkthrough = files.read_game(path).get('walkthrough')
  if walkthrough:
    return list(walkthrough)
  engine = _planner()
  engine.reset(load(path, cache))
  plan = engine.plan()
  if not plan:
    raise ValueError(f'{path}: the planner finds no solution')
  return plan


def with_detours(
  commands: Sequence[str], game: Game, rng: np.random.Generator, most: int
) -> list[str]:
  """A solution of somebody who has to search for what is to be taken.

  Before the planner goes to a place to take something, 0 to `most` others are
  looked into where nothing of that kind is, and where nobody has been yet.

  Args:
    commands: a solution.
    game: that they solve.
    rng: chooses how many and which.
    most: of them for each thing.
  """
  places = {game.names[x] for held in game.places.values() for x in held}
  openable = {game.names[x] for x in game.openable}
  holders = defaultdict(set)
  for thing, place in game.initial['inreceptacle']:
    holders[game.names[thing].split()[0]].add(game.names[place])
  opened, longer = set(), []
  for number, command in enumerate(commands):
    rest = commands[number + 1 : number + 3]
    take = next((x for x in rest if x.startswith('take ')), None)
    if command.startswith('go to ') and take:
      kind = take[5:].partition(' ')[0]
      left = places - holders[kind] - {command[6:]}
      left -= {x[6:] for x in longer if x.startswith('go to ')}
      count = rng.integers(most + 1)
      for place in rng.permutation(sorted(left))[:count].tolist():
        longer.append(f'go to {place}')
        if place in openable - opened:
          longer.append(f'open {place}')
          opened.add(place)
    if command.startswith('close '):
      opened.discard(command[6:])
    if command.startswith('open '):
      if command[5:] in opened:
        continue
      opened.add(command[5:])
    longer.append(command)
  return longer


@functools.cache
def _planner():
  return FastEngine()


def _check(split, kinds, seed):
  check_whole('seed', seed, least=0)
  if split not in rooms.SPLITS:
    raise ValueError(f'split: found {split!r}, allowed: {rooms.SPLITS}')
  if isinstance(kinds, str) or not isinstance(kinds, Sequence):
    raise ValueError(
      f'kinds: found {kinds!r}, allowed: a list, e.g. {rooms.KINDS[:1]}'
    )
  for kind in kinds:
    if kind not in rooms.KINDS:
      raise ValueError(f'kinds: found {kind!r}, allowed: {rooms.KINDS}')
  if not kinds or len(set(kinds)) < len(kinds):
    raise ValueError(f'kinds: found {kinds!r}, allowed: one or more, once each')


def _listed(folder):
  """{number: (name, path)} of the games in a folder; other files are left."""
  with os.scandir(folder) as entries:
    matches = [_GENERATED.fullmatch(entry.name) for entry in entries]
  return {
    int(match[1]): (match[2], folder / match[0]) for match in matches if match
  }


def _write(folder, index, settings, cache):
  """Draws a game until it has a solution, and writes it."""
  settings = dict(settings)
  kinds, seed = settings.pop('kinds'), settings.pop('seed')
  kind = kinds[index % len(kinds)]
  engine = _planner()
  for attempt in range(_MOST_TRIES):
    split = rooms.SPLITS.index(settings['split'])
    rng = np.random.default_rng([seed, split, index, attempt])
    draw = rooms.draw(rng, kind, **settings)
    if draw is None:
      continue
    game = Game(draw.data, cache=cache)
    engine.reset(game)
    plan = engine.plan()
    view = engine.reset(game)
    for command in plan:
      view = engine.step(command)
    if plan and view.won:
      content = json.dumps(draw.data | {'walkthrough': plan}, indent=1)
      path = folder / f'{index:06}-{draw.name}.tw-pddl'
      files.write_whole(path, content.encode())
      return
  raise ValueError(
    f'no game of kind {kind} with {settings} in {_MOST_TRIES} draws'
  )


def _scan(folder, found: Iterable[str]):
  """Those of the games TASK/TRIAL in a folder that can be played."""
  names = []
  for name in found:
    path = folder / name / 'game.tw-pddl'
    if 'movable' in name or 'Sliced' in name:
      continue
    if name.split('-')[0] not in rooms.KINDS:
      continue
    if files.read_game(path, must_be_solvable=False).get('solvable'):
      names.append(name)
  return names


def _read_list(path):
  try:
    content = json.loads(path.read_bytes())
    names, digest = content['games'], content['sha256']
    return names if _digest(names) == digest else None
  except (OSError, ValueError, KeyError, TypeError, RecursionError):
    return None


def _digest(names):
  return hashlib.sha256('\n'.join(names).encode()).hexdigest()
