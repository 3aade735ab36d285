"""Credit schemes: one file per method, each with one pure `advantages`.

A scheme is any function (Rollouts, GraphsTuple, **settings) -> [B, M, T]. It is
named by its file here ('graphgpo') or by a dotted path ('package.file:name').
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from graphgpo_jax import graph as graphs
from graphgpo_jax import merging, states
from graphgpo_jax.credit.check import check as check
from graphgpo_jax.credit.settings import check_value
from graphgpo_jax.log import LogError, columns
from graphgpo_jax.paths import load_function
from graphgpo_jax.types import CreditFn, Rollouts
from graphgpo_jax.values import DENSE_NODES

PRESETS = {
  'paper': {},  # the functions' own defaults
  'reference': {  # what the authors' published code computes
    'eps': 1e-6,
    'invalid_action_penalty_in_step': True,
    'episode_statistics': 'rows',
    'exponent': 'next_distance',
  },
}
NOT_SCHEMES = ('check', 'settings')
SLOTS_PER_CALL = 1 << 20  # step slots; keeps a call's arrays near 100 MB


def schemes() -> list[str]:
  """Names of the schemes in this package."""
  names = {module.name for module in pkgutil.iter_modules(__path__)}
  return sorted(names.difference(NOT_SCHEMES))


def load(scheme: str | Callable) -> Callable:
  """The function of a scheme: by name, by 'package.file:function', or itself.

  Raises:
    ValueError: there is none; lists the names.
  """
  if callable(scheme):
    return scheme
  if not isinstance(scheme, str):
    raise ValueError(f'scheme: found {scheme!r}, allowed: a name or a function')
  if scheme in schemes():
    return importlib.import_module(f'{__name__}.{scheme}').advantages
  if ':' not in scheme:
    names = ', '.join(schemes())
    raise ValueError(
      f'scheme: found {scheme!r}, allowed: {names} or a path package.file:name'
    )
  return load_function(scheme, f'scheme {scheme!r}')


def uses_graph(scheme: str | Callable) -> bool:
  """Whether distances say something about the scheme's advantages."""
  module = inspect.getmodule(load(scheme))
  return getattr(module, 'USES_GRAPH', True)


def bind(
  scheme: str | Callable, *, preset: str | None = None, **settings
) -> CreditFn:
  """A scheme with its settings, checked.

  Args:
    scheme: see `load`.
    preset: 'paper' (the default) or 'reference'; for named schemes only.
    **settings: keywords of the scheme; they win over the preset. Values are
      checked for schemes of this package; another function checks its own.

  Returns:
    The same object for the same arguments, so that a jitted function that takes
    it as a static argument compiles once.

  Raises:
    ValueError: an unknown scheme, preset or key, or a value out of range.
  """
  function = load(scheme)
  keys = _keys(function)
  if preset is not None and preset not in PRESETS:
    names = ', '.join(PRESETS)
    raise ValueError(f'preset: found {preset!r}, allowed: {names}')
  named = isinstance(scheme, str) and ':' not in scheme
  if preset is not None and not named:
    raise ValueError(
      'preset: only for named schemes; a function has its own defaults'
    )
  for key, value in settings.items():
    if keys is not None and key not in keys:
      allowed = ', '.join(keys) or 'none'
      raise ValueError(f'setting {key!r}: unknown, allowed: {allowed}')
    if _is_ours(function):
      check_value(key, value)
  defaults = PRESETS[preset or 'paper'] if named else {}
  chosen = {k: v for k, v in defaults.items() if k in keys} | settings
  try:
    # With their types, since 1 == True == 1.0.
    pairs = sorted(chosen.items())
    return _partial(function, tuple((k, type(v), v) for k, v in pairs))
  except TypeError:  # an unhashable value: no cache
    return functools.partial(function, **chosen)


def _keys(function):
  kinds = inspect.Parameter
  try:
    parameters = inspect.signature(function).parameters.values()
  except (ValueError, TypeError) as problem:
    raise ValueError(f'scheme {function!r}: {problem}') from None
  if any(p.kind is kinds.VAR_KEYWORD for p in parameters):
    return None
  return [p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY]


def _is_ours(function):
  function = getattr(function, 'func', function)  # of a functools.partial
  return str(getattr(function, '__module__', '')).startswith(f'{__name__}.')


@functools.lru_cache(256)
def _partial(function, settings):
  return functools.partial(function, **{k: value for k, _, value in settings})


@functools.partial(jax.jit, static_argnames=('credit_fn', 'mesh'))
def credit(
  rollouts: Rollouts,
  *,
  credit_fn: CreditFn,
  mesh: jax.sharding.Mesh = None,
  shared: dict | None = None,
) -> dict[str, jax.Array]:
  """Graph, distances and advantages of a batch in one call.

  Args:
    rollouts: arrays [B, M, T].
    credit_fn: static; `bind` gives the same object for the same settings.
    mesh: static; the tasks are divided among its devices, which then work
      without a word between them. B must be a multiple of their number.
    shared: more keywords of credit_fn, of `shared_settings`. They are traced:
      other numbers compile nothing anew.

  Returns:
    'advantage', and 'distance', 'next_distance' (of state and next state,
    finite, in units of cost), each [B, M, T] float32; 'reachable' [B, M, T]
    bool: the state has a path to the goal.
  """
  run = functools.partial(_credit, credit_fn=credit_fn)
  shared = shared or {}
  if mesh is None:
    return run(rollouts, shared)
  if rollouts.state.shape[0] % mesh.size:
    raise ValueError(
      f'{rollouts.state.shape[0]} tasks cannot be divided evenly among '
      f'{mesh.size} devices'
    )
  by_task = jax.P(mesh.axis_names)
  return jax.shard_map(
    run,
    mesh=mesh,
    in_specs=(by_task, jax.P()),
    out_specs=by_task,
    check_vma=False,
  )(rollouts, shared)


def _credit(rollouts, shared, credit_fn):
  graph = graphs.build_graph(rollouts)
  advantage = credit_fn(rollouts, graph, **shared)
  if jnp.shape(advantage) != rollouts.state.shape:
    raise ValueError(
      f'a scheme returns [B, M, T] = {rollouts.state.shape}, found '
      f'{jnp.shape(advantage)}'
    )
  if not jnp.issubdtype(jnp.result_type(advantage), jnp.floating):
    raise ValueError(
      f'a scheme returns floats, found {jnp.result_type(advantage)}'
    )
  num_tasks, _, num_steps = rollouts.state.shape
  raw = graphs.goal_distances(graph, steps=num_steps)
  filled = graphs.fill_unreachable(raw, graph).reshape(num_tasks, 1, -1)
  raw = raw.reshape(num_tasks, 1, -1)
  at_state = functools.partial(
    jnp.take_along_axis, indices=rollouts.state, axis=-1
  )
  return {
    'advantage': advantage,
    'distance': at_state(filled),
    'next_distance': jnp.take_along_axis(filled, rollouts.next_state, -1),
    'reachable': at_state(jnp.isfinite(raw)) & rollouts.mask,
  }


def shared_settings(steps: states.Steps, credit_fn: CreditFn) -> dict:
  """Settings of a scheme that all tasks of a batch decide together.

  That is all_fail_share of `progress`, unless it was set: the share of the
  tasks in which no attempt succeeded. Pass it to `credit` as `shared`.
  """
  chosen = getattr(credit_fn, 'keywords', {})
  keys = (_keys(credit_fn) or []) if _is_ours(credit_fn) else []
  if 'all_fail_share' not in keys or 'all_fail_share' in chosen:
    return {}
  solved = len(np.unique(steps.task[steps.success]))
  return {'all_fail_share': 1 - solved / len(np.unique(steps.task))}


def credit_steps(
  steps: states.Steps, credit_fn: CreditFn, *, shared: dict | None = None
) -> dict:
  """`credit` for any mix of task sizes: results in row order.

  Tasks are put into buckets by powers of two of (M, T, K), so that one long
  attempt does not pad all the others.

  Args:
    shared: of `shared_settings`; None: of these steps.

  Raises:
    LogError: an advantage is not finite.
  """
  results, size = {}, int(steps.row.max()) + 1
  if shared is None:
    shared = shared_settings(steps, credit_fn)
  for tasks, shapes in _buckets(steps.sizes()):
    rollouts = states.pad(states.select(steps, tasks), shapes=shapes)
    answer = credit(rollouts, credit_fn=credit_fn, shared=shared)
    for name, values in in_row_order(rollouts, answer, size).items():
      if name in results:
        results[name] += values
      else:
        results[name] = values
  return results


def in_row_order(rollouts: Rollouts, answer: dict, size: int) -> dict:
  """Results [B, M, T] of `credit` as [size], 0 for rows that are not there.

  Raises:
    LogError: an advantage is not finite.
  """
  mask = np.asarray(rollouts.mask)
  row = np.asarray(rollouts.row)[mask]
  results = {}
  for name, values in jax.device_get(answer).items():
    results[name] = np.zeros(size, values.dtype)
    results[name][row] = values[mask]
  finite = np.isfinite(results['advantage'])
  if not finite.all():
    bad = int(np.argmin(finite))
    value = float(results['advantage'][bad])
    raise LogError(bad, 'advantage', value, 'a finite number')
  return results


def _buckets(sizes):
  """Yields (tasks, shapes): similar tasks that go through one call.

  All tasks together if that fits one call: compiling costs more than padding.
  Only that `values` solves those beyond DENSE_NODES in another way: they stay
  apart, so that no task changes another one's numbers.
  """
  powers = np.array([[states.power_of_two(x) for x in row] for row in sizes])
  small = powers[:, 2] <= DENSE_NODES
  for part in (small, ~small):
    largest = powers[part].max(0, initial=1)
    if part.sum() * largest[0] * max(largest[1:]) <= SLOTS_PER_CALL:
      powers[part] = largest
  for shape in np.unique(powers, axis=0):
    tasks = np.flatnonzero((powers == shape).all(1))
    room = max(1, SLOTS_PER_CALL // int(shape[0] * shape[1]))
    for low in range(0, len(tasks), room):
      part = tasks[low : low + room]
      yield part, (states.power_of_two(len(part)), *shape.tolist())


def credit_log(
  rows,
  scheme: str | Callable,
  *,
  preset: str | None = None,
  merge: str | tuple | None = None,
  **settings,
) -> np.ndarray:
  """Advantages of logged steps, for notebooks and other frameworks.

  Args:
    rows: a sequence of mappings with the fields of the rollout log, in any
      order, or a mapping of columns (lists or numpy arrays).
    scheme, preset, **settings: see `bind`.
    merge: similar states count as one: 'tokens:0.9', or (embedding function,
      0.9); see `merging`.

  Returns:
    [N] float32, in row order.

  Raises:
    LogError: a row breaks a rule of the log.
    ValueError: an unknown scheme, preset, setting or similarity.
  """
  credit_fn = bind(scheme, preset=preset, **settings)
  steps = states.index_steps(columns(rows), merge=merging.bind(merge))
  return credit_steps(steps, credit_fn)['advantage']
