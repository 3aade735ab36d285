"""Steps laid out in rows of tokens."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgpo_jax.packing import pack
from graphgpo_jax.types import Transition


def steps_of(sizes):
  """Steps of (prompt, response) tokens; all ids of all steps differ."""
  made = []
  for number, (prompt, response) in enumerate(sizes):
    ids = 100 * (number + 1) + np.arange(prompt + response, dtype=np.int32)
    made.append(
      Transition(
        *('task', 0, number, 'here', 'go', 'there', 0.0),
        *(False, False, False, True),
        prompt_ids=ids[:prompt],
        response_ids=ids[prompt:],
        response_logps=-ids[prompt:] / np.float32(8),
      )
    )
  return made


def test_packed_rows_by_hand():
  # The longest first: 5 opens a row, 4 another one where 3 fits best.
  steps = steps_of([(2, 1), (4, 1), (1, 2), (3, 1)])
  advantage = np.array([0.5, -1, 2, 0], np.float32)
  rows = pack(steps, advantage, shape=(2, 2, 7))
  empty = [0] * 7
  assert rows.ids.tolist() == [
    [[200, 201, 202, 203, 204, 0, 0], [400, 401, 402, 403, 100, 101, 102]],
    [[300, 301, 302, 0, 0, 0, 0], empty],
  ]
  assert rows.segment.tolist() == [
    [[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 2, 2, 2]],
    [[1, 1, 1, 0, 0, 0, 0], empty],
  ]
  assert rows.position.tolist() == [
    [[0, 1, 2, 3, 4, 0, 0], [0, 1, 2, 3, 0, 1, 2]],
    [[0, 1, 2, 0, 0, 0, 0], empty],
  ]
  assert rows.response_length.tolist() == [
    [[0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 1]],
    [[0, 2, 2, 0, 0, 0, 0], empty],
  ]
  assert rows.advantage.tolist() == [
    [[0, 0, 0, 0, -1, 0, 0], [0, 0, 0, 0, 0, 0, 0.5]],
    [[0, 2, 2, 0, 0, 0, 0], empty],
  ]
  assert rows.behaviour_logp.tolist() == [
    [[0, 0, 0, 0, -25.5, 0, 0], [0, 0, 0, -50.375, 0, 0, -12.75]],
    [[0, -37.625, -37.75, 0, 0, 0, 0], empty],
  ]
  assert (rows.reference_logp == 0).all()


@settings(max_examples=60, deadline=None)
@given(
  sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), max_size=24),
  length=st.integers(15, 40),
)
def test_every_token_is_packed_once(sizes, length):
  steps, shape = steps_of(sizes), (4, 6, length)
  advantage = np.arange(1, len(steps) + 1, dtype=np.float32)
  packed = pack(steps, advantage, shape=shape)
  assert {x.shape for x in jax.tree.leaves(packed)} == {shape}
  rows = jax.tree.map(lambda x: x.reshape(-1, length), packed)
  used = (rows.segment > 0).any(axis=1)
  count = used.sum()
  assert count <= len(steps) and used[:count].all()  # used rows come first
  # Each row that is opened finds no room in the one before.
  filled = (rows.segment > 0).sum(axis=1)
  assert (filled[:-1] + filled[1:] > length)[: max(count - 1, 0)].all()
  seen = []
  for row in range(count):
    segments = rows.segment[row]
    assert (np.diff(np.unique(segments)) == 1).all()
    assert (np.diff(segments[: filled[row]]) >= 0).all()
    assert (segments[filled[row] :] == 0).all()  # padding fills the right
    for segment in range(1, segments.max() + 1):
      x = jax.tree.map(lambda x, s=segments == segment, r=row: x[r][s], rows)
      number = x.ids[0] // 100 - 1
      step, (prompt, response) = steps[number], sizes[number]
      said = np.arange(prompt + response) >= prompt
      np.testing.assert_array_equal(
        x.ids, [*step.prompt_ids, *step.response_ids]
      )
      np.testing.assert_array_equal(x.position, np.arange(prompt + response))
      np.testing.assert_array_equal(x.response_length, said * response)
      np.testing.assert_array_equal(
        x.behaviour_logp, [*np.zeros(prompt), *step.response_logps]
      )
      np.testing.assert_array_equal(x.advantage, said * advantage[number])
      seen.append(number)
  assert sorted(seen) == list(range(len(steps)))
  padding = jax.tree.map(lambda x: x[rows.segment == 0], rows)
  assert not any(x.any() for x in jax.tree.leaves(padding))


def test_what_does_not_fit_is_refused():
  steps, advantage = steps_of([(2, 1), (4, 1)]), np.zeros(2, np.float32)
  with pytest.raises(ValueError, match='2 transitions do not fit 1 rows'):
    pack(steps, advantage, shape=(1, 1, 40))
  with pytest.raises(ValueError, match='a step of 5 tokens, rows of 4'):
    pack(steps, advantage, shape=(1, 2, 4))
