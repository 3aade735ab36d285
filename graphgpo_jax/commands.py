"""What the commands share: options, reading a log, running a scheme."""

import ast
import contextlib
import warnings

from graphgpo_jax import credit as credits
from graphgpo_jax import log as logs
from graphgpo_jax import merging, states


class CommandError(ValueError):
  """Something the user can mend; its first line is shown, nothing else."""


def add_scheme_options(parser) -> None:
  """Options that choose a scheme and its settings."""
  parser.add_argument(
    '--scheme',
    help=f'{", ".join(credits.schemes())} or package.file:function',
  )
  parser.add_argument('--preset', help=f'{", ".join(credits.PRESETS)}')
  parser.add_argument(
    '--set',
    action='append',
    default=[],
    metavar='KEY=VALUE',
    help='a setting of the scheme; may be repeated',
  )
  add_merge_option(parser)


def add_merge_option(parser) -> None:
  """The option that makes one of similar states."""
  parser.add_argument(
    '--merge', help=f'similar states count as one: {merging.ALLOWED}'
  )


def settings(pairs: list[str]) -> dict:
  """KEY=VALUE pairs as keywords.

  Raises:
    CommandError: no such pair, or a key that is given twice.
  """
  found = {}
  for pair in pairs:
    key, equals, text = pair.partition('=')
    if not equals or not key.isidentifier():
      raise CommandError(f'--set: found {pair!r}, allowed: KEY=VALUE')
    if key in found:
      raise CommandError(f'--set: {key} is given twice')
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      try:
        found[key] = ast.literal_eval(text)
      except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        found[key] = text
  return found


def read(path, merge=None):
  """A log and its checked steps, similar states merged if that is asked for."""
  merge = merging.bind(merge)
  log = logs.read_log(path)
  try:
    return log, states.index_steps(log.table, merge=merge)
  except ValueError as problem:
    raise log.error(problem) from None


def check_out(path) -> None:
  """Tries whether a file can be written there, before there is work to lose.

  Raises:
    OSError: it can't; nothing is left behind either way.
  """
  with contextlib.suppress(CommandError), logs.atomic_write(path):
    raise CommandError('nothing to write yet')


def run_scheme(log, steps, scheme: str, credit_fn, **options) -> dict:
  """`credit_steps`, with errors that name the log.

  Raises:
    LogError, CommandError: an advantage is not finite, or the scheme failed.
  """
  try:
    return credits.credit_steps(steps, credit_fn, **options)
  except logs.LogError as problem:
    raise log.error(problem) from None
  except (Exception, SystemExit) as problem:  # a user's function may do all
    name = type(problem).__name__
    raise CommandError(
      f'{log.path}: scheme {scheme!r} failed: {name}: {problem}'
    ) from problem
