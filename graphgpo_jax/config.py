"""Configs: Python files with get_config(arg); checked whole before any work."""

import difflib
import importlib.util
import inspect
import json
import math
import pathlib
import types
import typing

import ml_collections

from graphgpo_jax import merging
from graphgpo_jax.envs.pool import LAST_CORE, LONGEST
from graphgpo_jax.loss import AGGREGATIONS, ESTIMATORS
from graphgpo_jax.rollout import OVERFLOWS
from graphgpo_jax.update import OPTIMIZERS

SEVERAL = (int, lambda x: x > 1, 'an integer > 1: credit compares attempts')
POSITIVE = (int, lambda x: x > 0, 'an integer > 0')
COUNT = (int, lambda x: x >= 0, 'an integer >= 0')
ABOVE = (float, lambda x: x > 0, 'a number > 0')
NOT_BELOW = (float, lambda x: x >= 0, 'a number >= 0')
FRACTION = (float, lambda x: 0 <= x < 1, 'a number in [0, 1)')
TEXT = (str, lambda x: bool(x), 'a text')
# Orbax takes paths for patterns.
GLOB_FREE = 'a path without * ? [ ]'
FREE = None  # a section whose keys belong to somebody else, who checks them


SWITCH = (bool, lambda x: True, 'True or False')
MAYBE = (int | None, lambda x: x is None or x > 0, 'an integer > 0, or None')


def _one_of(names):
  return str, lambda x: x in names, ', '.join(names)


def _rising(x):
  whole = all(type(n) is int and n > 0 for n in x)
  return whole and len(x) > 0 and list(x) == sorted(set(x))


def _cores(x):
  return all(type(n) is int and 0 <= n <= LAST_CORE for n in x)


SCHEMA = {
  'seed': COUNT,
  'run_dir': (str, lambda x: x and not set(x) & set('*?[]'), GLOB_FREE),
  'updates': COUNT,
  'env.factory': TEXT,  # package.file:function
  'env.settings': FREE,  # keywords of the factory for both splits
  'env.train': FREE,  # and for each of them
  'env.panel': FREE,
  'env.workers': COUNT,  # processes per split that step; 0: this one
  # Seconds of a worker for one step of its slots.
  'env.timeout': (
    float,
    lambda x: 0 < x <= LONGEST,
    f'a number > 0 and <= {LONGEST:g}',
  ),
  'env.cores': (
    tuple | list,
    _cores,
    f'core numbers up to {LAST_CORE}, or ()',
  ),
  'env.overlap': SWITCH,  # answer for one half while workers step the other
  'env.merge': (str, lambda x: True, "'' or " + merging.ALLOWED),
  'model': FREE,  # DecoderConfig without vocab_size, or checkpoint and changes
  'sampling.temperature': ABOVE,
  'sampling.prompt_lengths': (tuple | list, _rising, 'rising integers > 0'),
  'sampling.overflow': _one_of(OVERFLOWS),
  'sampling.max_new_tokens': POSITIVE,
  'sampling.prefill_tokens': POSITIVE,
  'sampling.gather_weights': SWITCH,
  'batch.tasks': POSITIVE,
  'batch.attempts': SEVERAL,
  'batch.mini_batch_steps': POSITIVE,  # environment steps per optimizer step
  'batch.micro_batch_rows': POSITIVE,  # rows of tokens with gradients at once
  'batch.row_length': POSITIVE,  # tokens; steps are packed into rows
  'batch.logit_chunk': MAYBE,  # tokens; None projects a micro-batch at once
  'batch.resample_retries': COUNT,  # > 0 turns dynamic sampling on
  'history.tasks': COUNT,  # of batch.tasks, played a second time; 0: none
  'history.after': POSITIVE,  # updates from the first visit to the second
  'history.attempts': POSITIVE,  # of the first visit that are kept, at most
  'credit.scheme': TEXT,
  'credit.preset': (str | None, lambda x: True, 'a text or None'),
  'credit': FREE,  # other keys: settings of the scheme
  'loss.clip_low': FRACTION,
  'loss.clip_high': NOT_BELOW,
  'loss.kl_coefficient': NOT_BELOW,
  'loss.kl_estimator': _one_of(ESTIMATORS),
  'loss.reference': _one_of(('device', 'host')),  # where its weights wait
  'loss.entropy_coefficient': NOT_BELOW,
  'loss.aggregation': _one_of(AGGREGATIONS),
  'loss.fixed_length': POSITIVE,
  'optimizer.name': _one_of(OPTIMIZERS),
  'optimizer.learning_rate': NOT_BELOW,
  'optimizer.warmup_steps': COUNT,
  'optimizer.b1': FRACTION,
  'optimizer.b2': FRACTION,
  'optimizer.weight_decay': NOT_BELOW,
  'optimizer.max_grad_norm': ABOVE,
  'optimizer.moment_dtype': _one_of(('float32', 'bfloat16')),
  'warm_start.steps': COUNT,
  'warm_start.tasks': POSITIVE,
  'warm_start.mini_batch_steps': POSITIVE,
  'warm_start.learning_rate': NOT_BELOW,
  'evaluation.every': POSITIVE,
  'evaluation.tasks': POSITIVE,
  'evaluation.temperature': ABOVE,
  'evaluation.top_k': COUNT,
  'evaluation.top_p': (float, lambda x: 0 < x <= 1, 'a number in (0, 1]'),
  'checkpoint.every': POSITIVE,
  'mesh.data': (int, lambda x: x > 0 or x == -1, 'an integer > 0, or -1'),
  'mesh.fsdp': POSITIVE,
  'mesh.tensor': POSITIVE,
}
_FREE_PREFIXES = tuple(f'{key}.' for key in SCHEMA if SCHEMA[key] is FREE)
OPTIONAL = ('env.merge',)  # off where left out
# Between a run and its continuation.
MAY_CHANGE = ('run_dir', 'updates', 'env.workers', 'env.timeout')
MAY_CHANGE += ('env.cores', 'env.overlap')


def load(path: str, argument: str | None = None) -> ml_collections.ConfigDict:
  """get_config(argument) of a config file.

  Raises:
    ValueError: no such file, or it has no get_config.
  """
  path = pathlib.Path(path)
  if not path.is_file():
    raise ValueError(f'config: {path}: no such file')
  if path.suffix != '.py':
    raise ValueError(f'config: found {path}, allowed: a Python file')
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, 'get_config'):
    raise ValueError(f'{path}: has no function get_config')
  return module.get_config(*([argument] if argument else []))


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError for a missing, unknown, mistyped or impossible value."""
  found = flatten(config.to_dict())
  for key in found:
    if key not in SCHEMA and not key.startswith(_FREE_PREFIXES):
      raise ValueError(f'config.{key}: unknown{_nearest(key)}')
  for key, rule in SCHEMA.items():
    if rule is None:
      if not isinstance(_get(config, key), ml_collections.ConfigDict):
        raise ValueError(f'config.{key}: missing, allowed: a section')
      continue
    if key not in found and key in OPTIONAL:
      continue
    if key not in found:
      raise ValueError(f'config.{key}: missing, allowed: {rule[2]}')
    kind, holds, words = rule
    value = found[key]
    finite = not isinstance(value, float) or math.isfinite(value)
    if not (_typed(value, kind) and finite and holds(value)):
      raise ValueError(f'config.{key}: found {value!r}, allowed: {words}')
  _check_history(config)
  try:
    merging.bind(config.env.get('merge'))
  except ValueError as problem:
    raise ValueError(f'config.env.{problem}') from None


def _check_history(config):
  section, batch = config.history, config.batch
  if not section.tasks:
    return
  if batch.resample_retries:
    raise ValueError(
      f'config.history.tasks: found {section.tasks}, allowed: 0 with dynamic '
      f'sampling (config.batch.resample_retries = {batch.resample_retries})'
    )
  if section.tasks > batch.tasks // 2:  # fresh ones, of which all return
    raise ValueError(
      f'config.history.tasks: found {section.tasks}, allowed: at most '
      f'{batch.tasks // 2}, half of config.batch.tasks'
    )


def _typed(value, kind):
  """Whether a value is of a type, or of one of a union: 1 is a float too."""
  kinds = typing.get_args(kind) or (kind,)
  if isinstance(value, bool):
    return bool in kinds
  return isinstance(value, kinds + (int,) * (float in kinds))


_PLAIN = {bool, int, float, str, types.NoneType}


def check_keywords(section: str, function, settings: dict) -> None:
  """Raises ValueError for a key of a section that a function can't take.

  Types are those of the function's annotations, where they are numbers, texts,
  switches or None.
  """
  parameters = inspect.signature(function).parameters
  for key, value in settings.items():
    if key not in parameters:
      if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        continue
      near = _nearest(
        f'{section}.{key}', [f'{section}.{p}' for p in parameters]
      )
      raise ValueError(f'config.{section}.{key}: unknown{near}')
    kind = parameters[key].annotation
    union = isinstance(kind, types.UnionType)
    kinds = typing.get_args(kind) if union else (kind,)
    if _PLAIN.issuperset(kinds) and not _typed(value, kind):
      words = ' or '.join(k.__name__ for k in kinds)
      raise ValueError(
        f'config.{section}.{key}: found {value!r}, allowed: {words}'
      )


def _get(config, key):
  for name in key.split('.'):
    config = config.get(name, None) if config is not None else None
  return config


def flatten(tree: dict, prefix: str = '') -> dict:
  """Nested dict -> dotted keys."""
  flat = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      flat |= flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def _nearest(key, keys=tuple(SCHEMA)):
  near = difflib.get_close_matches(key, keys, 1)
  return f'; did you mean config.{near[0]}?' if near else ''


def check_overrides(arguments: list[str]) -> None:
  """Looks up the keys of --config.KEY=VALUE in the file of --config.

  Raises:
    ValueError: an unknown key; names the nearest.
  """
  prefix = '--config'
  pairs = zip(arguments, [*arguments[1:], ''])
  names = [
    value if argument == prefix else argument.partition('=')[2]
    for argument, value in pairs
    if argument == prefix or argument.startswith(f'{prefix}=')
  ]
  keys = [
    argument.removeprefix(f'{prefix}.').partition('=')[0]
    for argument in arguments
    if argument.startswith(f'{prefix}.')
  ]
  if not names:
    return
  path, _, argument = names[-1].partition(':')
  known = (*flatten(load(path, argument).to_dict()), *OPTIONAL)
  for key in keys:  # of free sections, others know the keys
    if key not in known and not key.startswith(_FREE_PREFIXES):
      raise ValueError(f'config.{key}: unknown{_nearest(key, known)}')


def differences(old: dict, new: dict) -> list[str]:
  """Keys in which two configs differ, as JSON sees them, but for MAY_CHANGE."""
  old, new = (flatten(json.loads(json.dumps(x))) for x in (old, new))
  return [
    f'{key}: {old.get(key)!r} -> {new.get(key)!r}'
    for key in sorted(old.keys() | new.keys())
    if old.get(key) != new.get(key) and key not in MAY_CHANGE
  ]
