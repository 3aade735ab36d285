"""Made-up ALFWorld games: a room, what lies in it, and a task.

Objects, receptacles, what fits where, the goals and the wording are those that
alfworld ships; the rooms are made up, since the 3D scenes of the real games
are not there. Which rooms and pairs of object and receptacle belong to the
split `unseen` is a property of theirs, whatever the seed.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphgpo_jax.envs import alfworld_files as files

KINDS = (
  'pick_and_place_simple',
  'look_at_obj_in_light',
  'pick_clean_then_place_in_recep',
  'pick_heat_then_place_in_recep',
  'pick_cool_then_place_in_recep',
  'pick_two_obj_and_place',
)
SPLITS = ('train', 'seen', 'unseen')

# What every room of a kind has, and what it may have, with the most of each.
_ROOMS = {
  'kitchen': (
    ('Fridge', 'Microwave', 'SinkBasin'),
    {'CounterTop': 2, 'Cabinet': 4, 'Drawer': 3, 'GarbageCan': 1}
    | {'DiningTable': 1, 'Shelf': 2, 'StoveBurner': 2, 'CoffeeMachine': 1},
  ),
  'bedroom': (
    ('Bed', 'Desk'),
    {'Drawer': 4, 'SideTable': 2, 'Shelf': 3, 'GarbageCan': 1, 'Dresser': 1}
    | {'Cabinet': 2, 'Safe': 1, 'ArmChair': 1},
  ),
  'livingroom': (
    ('Sofa', 'CoffeeTable'),
    {'Drawer': 3, 'SideTable': 2, 'Shelf': 3, 'GarbageCan': 1, 'Dresser': 1}
    | {'Cabinet': 2, 'Safe': 1, 'ArmChair': 2, 'DiningTable': 1},
  ),
  'bathroom': (
    ('Toilet', 'SinkBasin'),
    {'Cabinet': 4, 'Drawer': 3, 'GarbageCan': 1, 'CounterTop': 1, 'Shelf': 2}
    | {'BathtubBasin': 1, 'SideTable': 1, 'HandTowelHolder': 2},
  ),
}
_OBJECTS = {
  'kitchen': (
    *('Apple', 'Bowl', 'Bread', 'ButterKnife', 'Cup', 'DishSponge', 'Egg'),
    *('Fork', 'Kettle', 'Knife', 'Ladle', 'Lettuce', 'Mug', 'Pan', 'Plate'),
    *('PepperShaker', 'Pot', 'Potato', 'SaltShaker', 'SoapBottle', 'Spatula'),
    *('Spoon', 'Tomato', 'Vase', 'WineBottle'),
  ),
  'bedroom': (
    *('AlarmClock', 'BaseballBat', 'BasketBall', 'Book', 'Bowl', 'Box', 'CD'),
    *('CellPhone', 'Cloth', 'CreditCard', 'KeyChain', 'Laptop', 'Mug', 'Pen'),
    *('Pencil', 'Pillow', 'Statue', 'TennisRacket', 'TissueBox', 'Watch'),
  ),
  'livingroom': (
    *('Book', 'Box', 'Candle', 'CellPhone', 'CreditCard', 'KeyChain', 'Laptop'),
    *('Newspaper', 'Pen', 'Pencil', 'Pillow', 'Plate', 'RemoteControl'),
    *('Statue', 'TissueBox', 'Vase', 'Watch', 'WateringCan'),
  ),
  'bathroom': (
    *('Candle', 'Cloth', 'DishSponge', 'HandTowel', 'PaperTowel', 'Plunger'),
    *('SoapBar', 'SoapBottle', 'SprayBottle', 'TissueBox', 'ToiletPaper'),
  ),
}
_ROOMS_OF = {
  'look_at_obj_in_light': ('bedroom', 'livingroom'),
  'pick_clean_then_place_in_recep': ('kitchen', 'bathroom'),
  'pick_heat_then_place_in_recep': ('kitchen',),
  'pick_cool_then_place_in_recep': ('kitchen',),
}
# What must be possible with the object, and where it is done.
_CARE = {
  'pick_clean_then_place_in_recep': ('Cleanable', 'SinkBasin'),
  'pick_heat_then_place_in_recep': ('Heatable', 'Microwave'),
  'pick_cool_then_place_in_recep': ('Coolable', 'Fridge'),
}
_LAMP = 'DeskLamp'
_UNDER_LAMPS = ('CoffeeTable', 'Desk', 'Dresser', 'SideTable')
_NAMED_BY_DOMAIN = ('Fridge', 'Microwave', 'SinkBasin', 'ButterKnife', 'Knife')
_MOST = 4  # things in a receptacle at the start
_UNSEEN_SHARE = 5  # one room and one pair in so many is never trained on
_SEEN_SHARE = 8  # one game in so many of the others is for evaluation


def most_receptacles(kinds: Sequence[str]) -> int:
  """What every room that these kinds of tasks may be in has place for."""
  rooms = {room for kind in kinds for room in _ROOMS_OF.get(kind, _ROOMS)}
  return min(
    len(needed) + sum(others.values())
    for needed, others in map(_ROOMS.get, rooms)
  )


def most_objects(receptacles: int) -> int:
  """What the room has place for, besides three things of the task."""
  return _MOST * max(4, receptacles - 3) - 3


class Tables(NamedTuple):
  """What alfworld ships: see `alfworld.gen.constants` and `goal_library`."""

  holds: dict[str, frozenset[str]]  # receptacle -> objects
  can: dict[str, frozenset[str]]  # 'Heatable', ... -> objects
  openable: frozenset[str]
  movable: frozenset[str]  # objects that hold others
  goals: dict[str, dict[str, Any]]
  objects: tuple[str, ...]


class Draw(NamedTuple):
  """A game that was drawn.

  Attributes:
    name: kind, object and receptacle.
    data: content of the game file, without a walkthrough.
  """

  name: str
  data: dict[str, Any]


@functools.cache
def tables() -> Tables:
  """The tables of the installed package."""
  with files.quiet_import():
    from alfworld.gen import constants, goal_library
  return Tables(
    holds={
      k: frozenset(v) for k, v in constants.VAL_RECEPTACLE_OBJECTS.items()
    },
    can={k: frozenset(v) for k, v in constants.VAL_ACTION_OBJECTS.items()},
    openable=frozenset(constants.OPENABLE_CLASS_LIST),
    movable=frozenset(constants.MOVABLE_RECEPTACLES),
    goals={kind: goal_library.gdict[kind] for kind in KINDS},
    objects=tuple(constants.OBJECTS),
  )


def draw(
  rng: np.random.Generator,
  kind: str,
  *,
  split: str,
  receptacles: int,
  objects: int,
) -> Draw | None:
  """Draws a game of a kind; None where the draw fits no task of the split.

  Args:
    rng: source of all choices.
    kind: one of KINDS.
    split: one of SPLITS; `unseen` has rooms and pairs of its own, `seen` games
      that are not in `train`.
    receptacles: most of them in the room; up to three may be missing. Two more
      than a kind of room needs are always there, even if that is more.
    objects: in the room besides those of the task; what fits nowhere is left
      out.
  """
  rooms = _ROOMS_OF.get(kind, tuple(_ROOMS))
  room = rooms[rng.integers(len(rooms))]
  places = _layout(rng, room, receptacles)
  is_new = split == 'unseen'
  counts = sorted(Counter(places).items())
  if _is_unseen(f'{room} {counts}') != is_new:
    return None
  pairs = [
    (thing, goal)
    for thing, goal in _pairs(room, places, kind)
    if _is_unseen(f'{thing} {goal}') == is_new
  ]
  if not pairs:
    return None
  target, goal = pairs[rng.integers(len(pairs))]
  things = _furnish(rng, room, places, kind, target, goal, objects)
  if things is None:
    return None
  problem = _start(places, things) + _goal(kind, target, goal)
  if not is_new and _share(problem, _SEEN_SHARE) != (split == 'seen'):
    return None
  data = _data(rng, problem, kind, target, goal)
  return Draw(f'{kind}-{target}-{goal}', data)


def _start(places, things):
  """The start in PDDL, up to the goal."""
  return '\n'.join(
    [
      '(define (problem generated)',
      '  (:domain alfred)',
      '  (:objects',
      *(f'    {name} - {kind}' for name, kind in _declared(places, things)),
      '  )',
      '  (:init',
      *(f'    ({fact})' for fact in _facts(places, things)),
      '  )',
    ]
  )


def _goal(kind, target, goal):
  is_lamp = goal == _LAMP
  words = tables().goals[kind]['pddl'].replace('#', '-')
  return words.format(
    obj=target, recep='' if is_lamp else goal, toggle=goal if is_lamp else ''
  )


def _data(rng, problem, kind, target, goal):
  templates = tables().goals[kind]['templates']
  target, goal = target.lower(), goal.lower()
  task = templates[rng.integers(len(templates))]
  task = task.format(obj=target, recep=goal, toggle=goal)
  return {
    'pddl_domain': files.package_text('alfred.pddl'),
    'grammar': files.package_text('alfred.twl2').replace('UNKNOWN GOAL', task),
    'pddl_problem': problem,
    'solvable': True,
  }


def _layout(rng, room, count):
  """Kinds of the receptacles of a room."""
  needed, others = _ROOMS[room]
  least = max(len(needed) + 2, count - 3)
  count = rng.integers(least, max(least, count) + 1)
  pool = [kind for kind, most in others.items() for _ in range(most)]
  chosen = rng.permutation(pool)[: count - len(needed)].tolist()
  return sorted([*needed, *chosen])


def _pairs(room, places, kind):
  """(object, receptacle or lamp) that the task may be about."""
  holds, can = tables().holds, tables().can
  verb, used = _CARE.get(kind, (None, None))
  targets = [x for x in _OBJECTS[room] if verb is None or x in can[verb]]
  if kind == 'look_at_obj_in_light':
    if not set(places).intersection(_UNDER_LAMPS):
      return []
    return [(x, _LAMP) for x in targets if _homes(places, x, None)]
  goals = sorted(set(places) - {used, 'Microwave', 'CoffeeMachine'})
  return [
    (x, goal)
    for x in targets
    for goal in goals
    if x in holds[goal] and _homes(places, x, goal)
  ]


def _homes(places, thing, goal):
  """Numbers of the receptacles where a thing may be; none of kind `goal`."""
  holds = tables().holds
  return [i for i, p in enumerate(places) if p != goal and thing in holds[p]]


def _furnish(rng, room, places, kind, target, goal, objects):
  """[(object, number of its receptacle)], or None where there is no room."""
  wanted = 1 + (kind == 'pick_two_obj_and_place') + int(rng.integers(2))
  others = [x for x in _OBJECTS[room] if x != target]
  things, filled = [], Counter()
  if goal == _LAMP:
    lamps = [i for i, place in enumerate(places) if place in _UNDER_LAMPS]
    things.append((_LAMP, lamps[rng.integers(len(lamps))]))
  names = [target] * wanted + rng.choice(others, objects).tolist()
  for name in names:
    homes = _homes(places, name, goal if name == target else None)
    homes = [place for place in homes if filled[place] < _MOST]
    if homes:
      place = homes[rng.integers(len(homes))]
      things.append((name, place))
      filled[place] += 1
    elif name == target:
      return None
  return things


def _declared(places, things):
  """(name, type) of all that there is."""
  known = tables()
  kinds = {*places, *(kind for kind, _ in things), *_NAMED_BY_DOMAIN}
  receptacles = known.holds.keys() - known.movable
  return [
    ('agent1', 'agent'),
    ('loc_start', 'location'),
    *((f'loc_{i:02}', 'location') for i in range(len(places))),
    *((_receptacle(x, i), 'receptacle') for i, x in enumerate(places)),
    *((_object(x, i), 'object') for i, (x, _) in enumerate(things)),
    *(
      (f'{x}Type', 'rtype' if x in receptacles else 'otype')
      for x in sorted(kinds)
    ),
  ]


def _facts(places, things):
  """What is true at the start."""
  known = tables()
  facts = ['atLocation agent1 loc_start', '= (total-cost) 0']
  for i, kind in enumerate(places):
    name = _receptacle(kind, i)
    facts.append(f'receptacleType {name} {kind}Type')
    facts.append(f'receptacleAtLocation {name} loc_{i:02}')
    if kind in known.openable:
      facts.append(f'openable {name}')
  for place in sorted(set(places)):
    held = sorted({kind for kind, _ in things} & known.holds[place])
    facts += [f'canContain {place}Type {kind}Type' for kind in held]
  for i, (kind, place) in enumerate(things):
    name = _object(kind, i)
    facts.append(f'objectType {name} {kind}Type')
    facts.append(f'inReceptacle {name} {_receptacle(places[place], place)}')
    facts.append(f'objectAtLocation {name} loc_{place:02}')
    lamp = kind in known.can['Toggleable']
    facts.append(f'{"toggleable" if lamp else "pickupable"} {name}')
    for verb in ('Cleanable', 'Heatable', 'Coolable', 'Sliceable'):
      if kind in known.can[verb]:
        facts.append(f'{verb.lower()} {name}')
    if kind in known.movable:
      facts.append(f'isReceptacleObject {name}')
  return facts


def _object(kind, number):
  return f'{kind}_bar_{number:02}'


def _receptacle(kind, number):
  """A name as in the real games: a basin is a part of its sink."""
  base = kind.removesuffix('Basin')
  part = f'_bar_{kind}' if base != kind else ''
  return f'{base}_bar_{number:02}{part}'


def _is_unseen(text):
  return _share(text, _UNSEEN_SHARE)


def _share(text, parts):
  return int(hashlib.sha256(text.encode()).hexdigest(), 16) % parts == 0
