"""The processes of a `pool.Pool`: starting, asking and ending them."""

import contextlib
import dataclasses
import os
import pickle
import signal
import socket
import subprocess
import sys
import time

from graphgpo_jax.envs import worker

PATIENCE = 120.0  # seconds, at least, for a start, a reset and solutions
GRACE = 2.0  # seconds that workers have to close their environments
# Many small processes: no threads of their own, and equal orders of sets.
VARIABLES = {'OMP_NUM_THREADS': '1', 'PYTHONHASHSEED': '0'}


@dataclasses.dataclass
class Worker:
  """A process and the two ways to it; busy: it owes an answer."""

  process: subprocess.Popen
  channel: socket.socket
  answers: object
  lifeline: int
  busy: bool = False


def start(setup, core):
  """A new process, on its way."""
  ours, theirs = socket.socketpair()
  read, lifeline = os.pipe()
  try:
    process = subprocess.Popen(
      [sys.executable, '-P', worker.__file__, str(theirs.fileno()), str(read)],
      stdin=subprocess.DEVNULL,
      pass_fds=(theirs.fileno(), read),
      env=VARIABLES | os.environ,
      start_new_session=True,  # Ctrl-C is for this process alone
    )
  finally:
    theirs.close()
    os.close(read)
  started = Worker(process, ours, ours.makefile('rb'), lifeline)
  try:
    if core is not None and hasattr(os, 'sched_setaffinity'):
      os.sched_setaffinity(process.pid, {core})
  except OSError as problem:
    end(started)
    raise ValueError(f'config.env.cores: core {core}: {problem}') from None
  send(started, setup, PATIENCE)
  started.busy = False
  return started


def send(worker, message, seconds):
  """Sends, for so long at most; a failure shows when there is no answer."""
  send_bytes(worker, pickle.dumps(message), seconds)


def send_bytes(worker, data, seconds):
  """`send` of a message that is pickled already."""
  worker.busy = True
  worker.channel.settimeout(seconds)
  with contextlib.suppress(OSError):
    worker.channel.sendall(data)


def receive(worker, deadline):
  """A worker's result, and None or what went wrong."""
  # An answer that is there already is taken, however late it is.
  worker.channel.settimeout(max(1.0, deadline - time.monotonic()))
  try:
    good, result = pickle.load(worker.answers)
  except TimeoutError:
    return None, 'did not answer in time'
  except (EOFError, OSError, pickle.UnpicklingError):
    with contextlib.suppress(subprocess.TimeoutExpired):
      worker.process.wait(GRACE)
    if worker.process.returncode is not None:
      return None, f'ended with exit code {worker.process.returncode}'
    return None, 'sent an answer that can not be read'
  except Exception as problem:  # whatever the environment's objects raise
    return (
      None,
      f'sent an answer that can not be read: {type(problem).__name__}',
    )
  worker.busy = False
  return (result, None) if good else (None, f'raised {result}')


def end(worker, deadline=0.0):
  """Ends a process, what it has started, and the ways to it."""
  with contextlib.suppress(OSError):
    worker.channel.settimeout(max(0.01, deadline - time.monotonic()))
    while deadline and worker.channel.recv(1 << 16):
      pass  # until it closes its side
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(worker.process.pid, signal.SIGKILL)
  worker.process.wait()
  worker.answers.close()
  worker.channel.close()
  os.close(worker.lifeline)


def end_all(workers):
  """Ends the workers, all at once."""
  alive = [one for one in workers if one is not None]
  workers[:] = [None] * len(workers)
  for one in alive:
    with contextlib.suppress(OSError):
      one.channel.shutdown(socket.SHUT_WR)
  deadline = time.monotonic() + GRACE
  for one in alive:
    end(one, deadline)
