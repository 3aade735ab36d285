"""Several processes, on one machine or many, that run one program together."""

import os

import jax

TIMEOUT = 60  # seconds until a missing process is reported


def start() -> None:
  """Joins the processes of a job; call before any other use of jax.

  On a TPU pod, under Slurm or MPI all is found in the environment. Elsewhere
  set JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and
  JAX_PROCESS_ID for every process.

  Raises:
    ValueError: the environment does not say who takes part.
    OSError: a process is missing after TIMEOUT seconds.
  """
  address = os.environ.get('JAX_COORDINATOR_ADDRESS')
  known = {}
  if address is not None:
    known = {
      'coordinator_address': address,
      'num_processes': _number('JAX_NUM_PROCESSES'),
      'process_id': _number('JAX_PROCESS_ID'),
    }
  try:
    jax.distributed.initialize(initialization_timeout=TIMEOUT, **known)
  except ValueError as problem:
    raise ValueError(
      f'--distributed: {problem}; allowed: a TPU pod, Slurm, MPI, or '
      'JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID'
    ) from None
  except RuntimeError as problem:
    raise OSError(
      f'--distributed: not all processes came within {TIMEOUT} s: {problem}'
    ) from None


def _number(name):
  value = os.environ.get(name, '')
  if not value.isdigit():
    raise ValueError(f'{name}: found {value!r}, allowed: a number')
  return int(value)
