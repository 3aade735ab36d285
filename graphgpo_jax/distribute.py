"""Several processes, on one machine or many, that run one program together."""

import os
import sys
import threading

import jax

TIMEOUT = 60  # seconds until a missing process is reported


def start() -> None:
  """Joins the processes of a job; call before any other use of jax.

  On a TPU pod, under Slurm or MPI all is found in the environment. Elsewhere
  set JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and
  JAX_PROCESS_ID for every process.

  Ends the program with a message if a process is missing after TIMEOUT
  seconds: jax itself would end it without one.

  Raises:
    ValueError: the environment does not say who takes part.
  """
  address = os.environ.get('JAX_COORDINATOR_ADDRESS')
  known = {}
  if address is not None:
    known = {
      'coordinator_address': address,
      'num_processes': _number('JAX_NUM_PROCESSES'),
      'process_id': _number('JAX_PROCESS_ID'),
    }
  watch = threading.Timer(TIMEOUT, _give_up, [address or 'the coordinator'])
  watch.daemon = True
  watch.start()
  try:
    jax.distributed.initialize(initialization_timeout=2 * TIMEOUT, **known)
  except (ValueError, RuntimeError) as problem:
    raise ValueError(
      f'--distributed: {problem}; allowed: a TPU pod, Slurm, MPI, or '
      'JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID'
    ) from None
  finally:
    watch.cancel()


def _give_up(address):
  print(
    f'--distributed: not all processes came to {address} within {TIMEOUT} s',
    file=sys.stderr,
    flush=True,
  )
  os._exit(2)  # the main thread waits where nothing reaches it


def _number(name):
  value = os.environ.get(name, '')
  if not value.isdigit():
    raise ValueError(f'{name}: found {value!r}, allowed: a number')
  return int(value)
