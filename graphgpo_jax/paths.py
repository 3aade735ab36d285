"""Functions that a user names by their path."""

import importlib
from collections.abc import Callable


def load_function(path: str, where: str) -> Callable:
  """The function 'package.file:function'.

  Args:
    where: what its errors begin with.

  Raises:
    ValueError: it can't be imported, or is no function.
  """
  module, _, name = path.partition(':')
  try:
    function = getattr(importlib.import_module(module), name)
  except (Exception, SystemExit) as problem:  # a user's file may do anything
    words = f'{type(problem).__name__}: {problem}'
    raise ValueError(f'{where}: {words}') from problem
  if not callable(function):
    raise ValueError(f'{where}: not a function')
  return function
