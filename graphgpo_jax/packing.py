"""From transitions to rows of tokens."""

import bisect
from collections.abc import Sequence

import jax
import numpy as np

from graphgpo_jax.types import TokenRows, Transition


def lay_out(lengths, length):
  """(row, start) of each piece: best fit, the longest first."""
  rooms, places, rows = [], {}, 0  # rooms: sorted (tokens left, row)
  for piece in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
    index = bisect.bisect_left(rooms, (lengths[piece], -1))
    if index == len(rooms):
      room, row, rows = length, rows, rows + 1
    else:
      room, row = rooms.pop(index)
    places[piece] = row, length - room
    bisect.insort(rooms, (room - lengths[piece], row))
  return [places[piece] for piece in range(len(lengths))]


def pack(
  transitions: Sequence[Transition],
  advantage: np.ndarray,
  *,
  shape: tuple[int, int, int],
) -> TokenRows:
  """Rows of tokens that hold as many steps each as fit.

  Args:
    transitions: with tokens.
    advantage: [len(transitions)] float32.
    shape: (N, R, L); N * R rows are enough for one step each.

  Returns:
    TokenRows of numpy arrays [N, R, L].

  Raises:
    ValueError: more transitions than rows, or a step longer than L.
  """
  micro_batches, rows, length = shape
  lengths = [len(t.prompt_ids) + len(t.response_ids) for t in transitions]
  if len(transitions) > micro_batches * rows:
    raise ValueError(
      f'{len(transitions)} transitions do not fit {micro_batches * rows} rows'
    )
  if max(lengths, default=0) > length:
    raise ValueError(f'a step of {max(lengths)} tokens, rows of {length}')
  flat = (micro_batches * rows, length)
  ids, segment, position, response_length = np.zeros((4, *flat), np.int32)
  logps, credit, reference = np.zeros((3, *flat), np.float32)
  places = enumerate(lay_out(lengths, length))
  # From left to right, since segments are numbered as they are placed.
  for number, (row, start) in sorted(places, key=lambda place: place[1]):
    step, end = transitions[number], start + lengths[number]
    said = start + len(step.prompt_ids)
    ids[row, start:said] = step.prompt_ids
    ids[row, said:end] = step.response_ids
    segment[row, start:end] = segment[row, start - 1] + 1 if start else 1
    position[row, start:end] = np.arange(lengths[number])
    response_length[row, said:end] = end - said
    logps[row, said:end] = step.response_logps
    credit[row, said:end] = advantage[number]
  packed = TokenRows(
    ids, segment, position, response_length, logps, credit, reference
  )
  return jax.tree.map(lambda x: x.reshape(shape), packed)
