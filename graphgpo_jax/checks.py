"""What of a config only its environment, mesh or scheme can refuse."""

import functools
import inspect

import jax

from graphgpo_jax import credit, sharding, states


def check_sizes(config, env, tokenizer, mesh) -> None:
  """Raises ValueError for sizes that do not fit environment or mesh."""
  wanted = config.batch.tasks * (config.batch.resample_retries + 1)
  if wanted > env.num_tasks:
    raise ValueError(
      f'config.batch.tasks: found {config.batch.tasks}, with retries {wanted} '
      f'tasks per update, allowed: at most {env.num_tasks}, all there are'
    )
  _check_history(config.get('history'), config.batch.tasks, env)
  prompt = env.prompt([], env.reset([0])[0])
  length = len(tokenizer.encode_prompt(prompt))
  longest = config.sampling.prompt_lengths[-1]
  overflow = config.sampling.overflow
  if overflow == 'drop_history' and not _hides(env.prompt):
    raise ValueError(
      "config.sampling.overflow: found 'drop_history', allowed for "
      'environments whose prompt takes `hidden`, see envs.base'
    )
  if length > longest and overflow == 'error':
    raise ValueError(
      f'config.sampling.prompt_lengths: the largest is {longest}, allowed: at '
      f'least {length}, the length of the first prompt'
    )
  needed = longest + config.sampling.max_new_tokens
  if config.batch.row_length < needed:
    raise ValueError(
      f'config.batch.row_length: found {config.batch.row_length}, allowed: at '
      f'least {needed}, the longest prompt and max_new_tokens'
    )
  for key in ('tasks', 'mini_batch_steps'):
    if config.batch[key] % jax.process_count():
      raise ValueError(
        f'config.batch.{key}: found {config.batch[key]}, allowed: a multiple '
        f'of {jax.process_count()}, the processes'
      )
  parts = sharding.parts(mesh)
  if parts % jax.process_count():
    raise ValueError(
      f'config.mesh: found {parts} data and fsdp devices, allowed: a multiple '
      f'of {jax.process_count()}, the processes'
    )
  if config.batch.micro_batch_rows % parts:
    raise ValueError(
      f'config.batch.micro_batch_rows: found {config.batch.micro_batch_rows}, '
      f'allowed: a multiple of {parts}, the data and fsdp devices'
    )


def _hides(prompt):
  try:
    inspect.signature(prompt).bind([], None, hidden=0)
  except TypeError:
    return False
  return True


def _check_history(section, tasks, env):
  if section is None or not section.tasks:  # None: of a run recorded before
    return
  wanted = tasks + section.tasks * (section.after - 1)
  if wanted > env.num_tasks:
    raise ValueError(
      f'config.history.after: found {section.after}, with which {wanted} tasks '
      f'are played or wait at a time, allowed: at most {env.num_tasks}, all '
      'there are'
    )
  if section.tasks % jax.process_count():
    raise ValueError(
      f'config.history.tasks: found {section.tasks}, allowed: a multiple of '
      f'{jax.process_count()}, the processes'
    )


def check_scheme(config, env, credit_fn) -> None:
  """Raises ValueError for a scheme that does not run.

  Traced once, on a made-up attempt: it would fail after the first rollouts.
  """
  end = {'reward': 1.0, 'success': True, 'terminal': True}
  step = {'task': 0, 'step': 0, 'state': 'a', 'action': 'b', 'next_state': 'c'}
  step |= end | {'truncated': False, 'valid': True}
  rollouts = states.intern(
    [step | {'attempt': attempt} for attempt in range(config.batch.attempts)],
    shapes=(1, None, env.max_steps, None),
  )
  try:
    jax.eval_shape(
      functools.partial(credit.credit, credit_fn=credit_fn), rollouts
    )
  except Exception as problem:  # whatever a function of a user raises
    raise ValueError(
      f'config.credit: the scheme does not run on rollouts '
      f'{rollouts.state.shape}: {type(problem).__name__}: {problem}'
    ) from problem
