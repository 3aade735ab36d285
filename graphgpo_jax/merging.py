"""Merging of similar states, before they are numbered.

States whose texts are alike become one node: for the graph, and for the groups
of steps that are compared, since both see nothing but the numbers. What is
merged depends on the set of texts of a task alone, not on the order of rows.
"""

import contextlib
import functools
import itertools
import numbers
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from graphgpo_jax.paths import load_function

ALLOWED = 'tokens:X or package.file:function:X, with 0 < X <= 1'
CELLS = 1 << 21  # pairs compared at once; keeps a block's arrays near 50 MB
ROUNDING = 1e-12  # of a cosine in float64


def bind(merge: str | tuple | None) -> Callable | None:
  """What `index_steps` merges by, checked; None for '' and None.

  Args:
    merge: 'tokens:0.9', 'package.file:function:0.9', or a pair (similarity,
      threshold); see `representatives`.

  Raises:
    ValueError: no such similarity, or a threshold outside (0, 1].
  """
  if merge is None or (isinstance(merge, str) and not merge):
    return None
  pair = merge
  if isinstance(merge, str):
    name, _, number = merge.rpartition(':')
    with contextlib.suppress(ValueError):
      pair = name, float(number)
  if not isinstance(pair, tuple) or len(pair) != 2:
    raise _refusal(merge)
  keywords = zip(('similarity', 'threshold'), _checked(*pair))
  return functools.partial(representatives, **dict(keywords))


def representatives(
  texts: Iterable[str], *, similarity: str | Callable, threshold: float
) -> dict[str, str]:
  """Representative of every text: the smallest text of its cluster.

  Clusters are the connected components of the pairs with similarity >=
  threshold: a is in one with c if a is like b and b is like c.

    tokens    |A & B| / |A | B|, A and B the sets of words between white space,
              case and punctuation kept; 1 for equal sets
    function  cosine of the embeddings, within 1e-12

  Args:
    texts: states of one task, in any order, repeated or not.
    similarity: 'tokens', or a function, or its path 'package.file:function',
      that takes n >= 2 texts, distinct and sorted, and returns [n, d].
    threshold: in (0, 1].

  Raises:
    ValueError: no such similarity, a threshold out of range, or embeddings of a
      wrong shape, not finite or all 0.
  """
  similarity, threshold = _checked(similarity, threshold)
  texts = sorted(set(texts))
  if len(texts) < 2:
    return dict(zip(texts, texts))
  if callable(similarity):
    pairs = _close_vectors(_unit_vectors(similarity, texts), threshold)
  else:
    pairs = _close_sets(texts, threshold)
  label = _components(len(texts), pairs)
  _, first, cluster = np.unique(label, return_index=True, return_inverse=True)
  return {text: texts[i] for text, i in zip(texts, first[cluster].tolist())}


def merge_states(table: dict, represent: Callable) -> dict[str, list]:
  """Columns in which states and next states are their representatives.

  The goal has no text, and what a successful step names as its next state is
  not looked at: nothing can be merged with the goal. States that were seen only
  as what a failed, `terminal` step led to are merged among themselves: an
  attempt that ended can't go on from a state that looks like its end.

  Args:
    table: of `log.columns`, its rules checked.
    represent: of `bind`, or any function: texts -> {text: representative}.
  """
  names = 'task', 'state', 'next_state', 'success', 'terminal'
  rows = list(zip(*map(table.get, names)))
  passed, ended = defaultdict(set), defaultdict(set)
  for task, state, after, success, terminal in rows:
    passed[task].add(state)
    if not success:
      (ended if terminal else passed)[task].add(after)
  chosen = {
    task: represent(texts) | represent(ended[task] - texts)
    for task, texts in passed.items()
  }
  state = [chosen[row[0]][row[1]] for row in rows]
  after = [chosen[row[0]].get(row[2], row[2]) for row in rows]
  return table | {'state': state, 'next_state': after}


def _refusal(found):
  return ValueError(f'merge: found {ascii(found)[:80]}, allowed: {ALLOWED}')


def _checked(similarity, threshold):
  """Similarity, of a path its function, and threshold as a float."""
  fits = isinstance(threshold, numbers.Real) and 0 < threshold <= 1
  path = isinstance(similarity, str) and ':' in similarity
  if not fits or not (path or similarity == 'tokens' or callable(similarity)):
    raise _refusal((similarity, threshold))
  if path:
    similarity = load_function(similarity, f'merge: {similarity}')
  return similarity, float(threshold)


def _close_sets(texts, threshold):
  """Yields index pairs (first, second) of texts with similar sets of words."""
  from scipy import sparse  # takes long to load, for an option

  first = {}  # text that has a set
  sets = [frozenset(text.split()) for text in texts]
  owner = [first.setdefault(words, index) for index, words in enumerate(sets)]
  yield np.arange(len(texts)), np.array(owner)
  sets = sorted(first, key=len)
  place = np.array([first[words] for words in sets])
  size = np.array([len(words) for words in sets])
  codes = defaultdict(itertools.count().__next__)
  column = [codes[word] for words in sets for word in words]
  start = np.append(0, np.cumsum(size))
  shape = len(sets), len(codes)
  holds = sparse.csr_array((np.ones(len(column), 'f4'), column, start), shape)
  holds = holds[:, np.flatnonzero(holds.sum(0) > 1)]  # others are never shared
  for low, high in _blocks(len(sets), max(holds.shape)):
    # Sets that are too long can't be similar to any of the block.
    end = np.searchsorted(size, size[high - 1] / threshold + 1, 'right')
    shared = holds[low:end] @ holds[low:high].T.toarray(order='C')
    union = size[low:end, None] + size[low:high] - shared
    # Whole numbers divided in float64: 9/10 is 0.9 to the last bit.
    similar = np.nonzero(shared / np.maximum(union, 1.0) >= threshold)
    yield tuple(place[low + index] for index in similar)


def _close_vectors(vectors, threshold):
  """Yields index pairs (first, second) of unit vectors of high cosine."""
  for low, high in _blocks(len(vectors), len(vectors)):
    cosine = vectors[low:] @ vectors[low:high].T
    similar = np.nonzero(cosine >= threshold - ROUNDING)
    yield tuple(low + index for index in similar)


def _blocks(count, width):
  room = max(1, CELLS // width)
  return [(low, min(low + room, count)) for low in range(0, count, room)]


def _unit_vectors(function, texts):
  """Embeddings of the texts, checked, of length 1. [n, d] float64."""
  try:
    found = np.asarray(function(list(texts)))
    if found.dtype.kind in 'cSUmM':  # astype would make numbers of them
      raise TypeError(f'found {found.dtype}, allowed: real numbers')
    vectors = found.astype(np.float64)
  except (Exception, SystemExit) as problem:  # a user's function may do all
    words = ' '.join(f'{type(problem).__name__}: {problem}'.split())
    raise ValueError(f'merge: embedding failed: {words}') from problem
  shape, count = vectors.shape, len(texts)
  if len(shape) != 2 or shape[0] != count or not shape[1]:
    words = f'found embeddings of shape {shape}, allowed: ({count}, d)'
    raise ValueError(f'merge: {words}')
  largest = abs(vectors).max(1)
  good = np.isfinite(largest) & (largest > 0)
  if not good.all():
    text = ascii(texts[np.argmin(good)])[:60]
    raise ValueError(f'merge: the embedding of {text} is not finite, or all 0')
  vectors = vectors / largest[:, None]  # squares of huge numbers overflow
  return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _components(count, pairs):
  """Labels [count] of connected components, one block of pairs at a time."""
  from scipy.sparse import coo_array, csgraph

  label = np.arange(count)
  for first, second in pairs:
    ends = label[first], label[second]
    edges = coo_array((np.ones(len(first)), ends), (count, count))
    label = csgraph.connected_components(edges, directed=False)[1][label]
  return label
