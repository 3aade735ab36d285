"""A worker process of a `Pool`: one environment that answers requests.

Runs as a script, not through multiprocessing: that would import the program's
main file again, and jax with it. It loads the standard library and what the
environment's module loads. Requests and answers are pickles on a socket; the
arguments are the numbers of the socket and of a pipe that nothing is written
to, which closes when the parent ends, however it ends.
"""

import contextlib
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import traceback


def load(factory: str):
  """The function named by 'package.file:function'."""
  module, _, name = factory.partition(':')
  return getattr(importlib.import_module(module), name)


def make(factory: str, settings: dict):
  """The environment that a factory makes of its keywords."""
  return load(factory)(**settings)


def main(channel: int, lifeline: int) -> None:
  """Answers (method, arguments) with (True, result) or (False, words)."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
  watch = threading.Thread(target=_end_with, args=[lifeline], daemon=True)
  watch.start()
  connection = socket.socket(fileno=channel)
  requests = connection.makefile('rb')
  env = None
  with contextlib.suppress(EOFError, OSError):  # the parent closes it
    sys.path[:], factory, settings = pickle.load(requests)
    try:
      env, failure = make(factory, settings), None
    except Exception as problem:
      env, failure = None, words(problem)
    while True:
      method, arguments = pickle.load(requests)
      connection.sendall(_answer(env, failure, method, arguments))
  if hasattr(env, 'close'):
    env.close()


def _answer(env, failure, method, arguments):
  """The pickled answer to a request."""
  try:
    if failure is not None:
      return pickle.dumps((False, failure))
    if method == 'solutions':
      result = [_solution(env, task) for task in arguments[0]]
    else:
      result = getattr(env, method)(*arguments)
    return pickle.dumps((True, result))
  except Exception as problem:
    return pickle.dumps((False, words(problem)))


def _solution(env, task):
  """A task's solution; None where the environment has no expert."""
  try:
    return env.solution(task)
  except NotImplementedError:
    return None


def words(problem: Exception) -> str:
  """Kind, text, file and line of an exception."""
  *_, place = traceback.extract_tb(problem.__traceback__)
  where = f'{os.path.basename(place.filename)}, line {place.lineno}'
  try:
    text = str(problem)
  except Exception:  # of the exception's own class
    text = 'it can not say what happened'
  return f'{type(problem).__name__}: {text} ({where})'


def _end_with(lifeline):
  """Ends this process, and all that the environment started, with the parent.

  Also in the middle of a step that never returns.
  """
  os.read(lifeline, 1)
  os.killpg(0, signal.SIGKILL)


if __name__ == '__main__':
  main(*map(int, sys.argv[1:]))
