"""Time and memory of crediting a log of very unequal attempts.

  python benchmarks/large_log.py [--tasks 20000] [--longest 5000]

Writes a log of --tasks tasks x 8 attempts x 6 steps, one of whose attempts has
--longest steps, credits it by the command line and prints seconds and the peak
of resident memory. Takes about a minute.
"""

import argparse
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from graphgpo_jax import log

ATTEMPTS, STEPS = 8, 6


def rows(num_tasks, longest):
  """Attempts at six places in a row; every other one ends at the goal."""
  for task in range(num_tasks):
    for attempt in range(ATTEMPTS):
      length = longest if (task, attempt) == (0, 0) else STEPS
      for step in range(length):
        last = step == length - 1
        won = last and attempt % 2 == 0
        here, after = (x * (attempt + 1) % 97 for x in (step, step + 1))
        yield {
          'task': task,
          'attempt': attempt,
          'step': step,
          'state': f'Task {task}: you are at place {here}.',
          'action': 'go on',
          'next_state': f'Task {task}: you are at place {after}.',
          'reward': 10.0 * won,
          'success': won,
          'terminal': last,
          'truncated': False,
          'valid': True,
        }


def main():
  """Writes, credits, measures."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--tasks', type=int, default=20_000)
  parser.add_argument('--longest', type=int, default=5_000)
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    source, target = (str(pathlib.Path(folder) / name) for name in 'ab')
    log.write_log(source, rows(options.tasks, options.longest))
    size = pathlib.Path(source).stat().st_size
    command = [sys.executable, '-m', 'graphgpo_jax', 'credit', source]
    begun = time.perf_counter()
    subprocess.run([*command, '--out', target], check=True)
    seconds = time.perf_counter() - begun
  peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
  print(
    f'{options.tasks} tasks, {size / 2**20:.0f} MiB: {seconds:.0f} s, '
    f'{peak:.2f} GiB at most'
  )


if __name__ == '__main__':
  main()
