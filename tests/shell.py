"""The command line without a process of its own."""

from graphgpo_jax import cli


def run(*arguments):
  """Exit code of the command, run in this process."""
  try:
    cli.main([str(x) for x in arguments])
  except SystemExit as end:
    return end.code or 0
  return 0
