"""Values of other frameworks' files as fields of the rollout log."""

import functools
import json

import numpy as np

from graphgpo_jax import log as logs
from graphgpo_jax import unpickle

# Items of one state, with the characters of its texts, and levels of nesting.
LARGEST, DEEPEST = 1 << 20, 32


def wrong(place: str, field: str, found, allowed: str) -> ValueError:
  """An error; containers are named, not printed, since they may be endless."""
  if not isinstance(found, logs.Words):
    scalar = type(found) in (str, float, bool, type(None))
    scalar |= type(found) is int and abs(found) < 1e60
    words = (
      ascii(found) if scalar else f'a value of type {type(found).__name__}'
    )
    found = words if len(words) <= 80 else f'{words[:60]}...'
  return ValueError(f'{place}: field {field!r}: found {found}, {allowed}')


def text(
  value,
  place: str,
  field: str,
  *,
  unwrap: str | None = None,
  empty: bool = False,
) -> str:
  """A key of a state or an action: equal values give equal texts.

  A text as it is; lists, tuples, arrays, numbers and dictionaries as JSON. An
  object with the one key `unwrap` is what it holds, or the one item of that.

  Args:
    empty: take None, as 'null'; a state that nobody saw is none.

  Raises:
    ValueError: anything else, or too much of it.
  """
  try:
    if isinstance(value, str):
      return value
    value = _plain(value, [0], 0)
    if isinstance(value, dict) and list(value) == [unwrap]:
      value = value[unwrap]
      if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None and not empty:
      raise ValueError('found None, allowed: what was observed')
    if isinstance(value, str):
      return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
  except ValueError as problem:
    raise ValueError(f'{place}: field {field!r}: {problem}') from None


def built(value, place: str, field: str):
  """`unpickle.build`, with an error that names the place."""
  try:
    return unpickle.build(value)
  except unpickle.Refused as problem:
    raise ValueError(f'{place}: field {field!r}: {problem}') from None


def _plain(value, count, depth):
  """The value in JSON's types."""
  value = unpickle.build(value)
  count[0] += 1
  if isinstance(value, str):
    count[0] += len(value)
  elif isinstance(value, int):
    count[0] += value.bit_length() >> 6
  items = value.size if isinstance(value, np.ndarray) else 0
  if count[0] + items > LARGEST or depth > DEEPEST:
    raise ValueError(
      f'found too much, allowed: {LARGEST} items in {DEEPEST} levels'
    )
  if isinstance(value, np.generic | np.ndarray):
    value = value.tolist()
  if isinstance(value, float):
    return value + 0.0  # -0.0 is equal to 0.0
  if value is None or isinstance(value, str | int):
    return value
  if isinstance(value, list | tuple):
    return [_plain(item, count, depth + 1) for item in value]
  if isinstance(value, dict) and all(isinstance(key, str) for key in value):
    return {k: _plain(v, count, depth + 1) for k, v in value.items()}
  raise ValueError(
    f'found a value of type {type(value).__name__}, allowed: texts, numbers, '
    'and lists or dictionaries of them'
  )


def _scalar(value, place, field, *, types, words, holds=lambda value: True):
  value = built(value, place, field)
  if isinstance(value, np.generic | np.ndarray) and not value.ndim:
    value = value.item()
  if type(value) not in types or not holds(value):
    raise wrong(place, field, value, f'allowed: {words}')
  return value


# Each takes (value, place, field) and raises a ValueError.
number = functools.partial(
  _scalar,
  types=(int, float),
  words='a finite number, up to 1e30',
  holds=lambda value: abs(value) <= 1e30,
)
identity = functools.partial(
  _scalar,
  types=(str, int),
  words='a string or an integer of up to 400 digits',
  holds=lambda value: isinstance(value, str) or abs(value) < 10**400,
)
truth = functools.partial(
  _scalar,
  types=(bool, int, float),
  words='true or false',
  holds=lambda value: value in (0, 1),
)


def flag(value, place: str, field: str) -> bool:
  """True or false, also written as 1 and 0."""
  return bool(truth(value, place, field))


def reaches(total: float, success_reward: float) -> bool:
  """Whether a sum of rewards, perhaps in float32, reaches the mark."""
  return total >= success_reward - 1e-6 * abs(success_reward)
