"""How fast the environments are in one process, without a model.

  make alfworld
  python benchmarks/environments.py [--only alfworld,webshop,sokoban]
    [--repeats 5] [--products 1000,50000] [--json FILE]

Attempts take random admissible actions (WebShop: searches of its goals at the
start). Prints, with quartiles over the repeats,
  steps/s     of `step`, all slots at once, WebShop and ALFWorld with chat texts
  reset ms    per slot, games already read
  images/s    Sokoban, 16 and 96 pixels per tile
  search ms   WebShop, one query, for each number of products
and once per number of products the time of building and of opening a catalogue
and the peak memory of the process that builds it. Takes two minutes.
"""

import argparse
import json
import pathlib
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

from graphgpo_jax.envs import sokoban, webshop, webshop_pages
from graphgpo_jax.envs.webshop_catalogue import open_catalogue
from graphgpo_jax.envs.webshop_pages import Session

BUILD = """
import sys
from graphgpo_jax.envs.webshop_catalogue import open_catalogue
products, cache = int(sys.argv[1]), sys.argv[2]
open_catalogue('generated', products=products, seed=0, cache=cache)
"""


def seconds(function):
  """What a call takes, and what it returns."""
  begun = time.perf_counter()
  found = function()
  return time.perf_counter() - begun, found


def play(env, tasks, choose):
  """Plays an attempt per task to its end: seconds of reset, of steps, steps."""
  rng = random.Random(0)
  of_reset, observations = seconds(lambda: env.reset(tasks))
  active, spent, steps = list(range(len(tasks))), 0.0, 0
  while active:
    actions = [choose(rng, tasks[i], observations[i]) for i in active]
    took, outcomes = seconds(lambda: env.step(active, actions))  # noqa: B023
    spent, steps = spent + took, steps + len(active)
    for i, outcome in zip(active, outcomes):
      observations[i] = outcome.observation
    active = [
      i for i, o in zip(active, outcomes) if not (o.terminal or o.truncated)
    ]
  return of_reset, spent, steps


def quartiles(values):
  """Of measurements, as a record."""
  low, middle, high = np.percentile(values, [25, 50, 75]).tolist()
  return {'q1': low, 'median': middle, 'q3': high, 'runs': len(values)}


def measure(env, tasks, choose, repeats):
  """Steps per second and milliseconds of a reset, after a turn not counted."""
  runs = [play(env, tasks, choose) for _ in range(repeats + 1)][1:]
  return {
    'slots': len(tasks),
    'steps/s': quartiles([steps / spent for _, spent, steps in runs]),
    'reset ms': quartiles([1e3 * reset / len(tasks) for reset, *_ in runs]),
  }


def any_action(rng, task, observation):
  del task
  return rng.choice(observation.admissible)


def of_sokoban(repeats):
  env = sokoban.make(split='train', seed=0, levels=64, max_steps=15)
  tasks = [i % 64 for i in range(256)]
  found = measure(env, tasks, any_action, repeats)
  env.reset(tasks)
  for tile in (16, 96):
    spent = [seconds(lambda: env.images(tile=tile))[0] for _ in range(repeats)]  # noqa: B023
    found[f'images/s of {tile} pixels'] = quartiles([256 / x for x in spent])
  return found


def of_alfworld(repeats):
  from graphgpo_jax.envs import alfworld

  env = alfworld.make(split='train', games=32, max_steps=30)
  return measure(env, list(range(32)), any_action, repeats)


def of_webshop(repeats, sizes):
  found = {}
  with tempfile.TemporaryDirectory() as cache:
    for number in sizes:
      found[f'{number} products'] = catalogue(number, cache, repeats)
    env = webshop.make(
      split='train', seed=0, products=sizes[0], test=0.5, cache=cache
    )

    def choose(rng, task, observation):
      if observation.admissible[0].startswith('search'):
        return f'search[{env.goal(task).product.query}]'
      return rng.choice(observation.admissible)

    tasks = [i % env.num_tasks for i in range(64)]
    found |= measure(env, tasks, choose, repeats)
  return found


def catalogue(products, cache, repeats):
  """Building, opening and searching a generated catalogue."""
  command = [sys.executable, '-c', BUILD, str(products), cache]
  built, _ = seconds(lambda: subprocess.run(command, check=True))
  memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
  opened, shop = seconds(
    lambda: open_catalogue('generated', products=products, seed=0, cache=cache)
  )
  places = np.linspace(0, len(shop.goals) - 1, 100 * repeats).astype(int)
  queries = {}  # each once: what was asked before is remembered
  for goal in map(shop.goal, places.tolist()):
    words = ' '.join([*goal.attributes, goal.product.query])
    queries[webshop_pages.search(Session(), words).terms] = None
  spent = [seconds(lambda: shop.search(terms))[0] for terms in queries]  # noqa: B023
  return {
    'built s': built,
    'peak MB of the builder': memory / 1024,
    'opened s': opened,
    'search ms': quartiles([1e3 * x for x in spent]),
  }


def show(name, found):
  """Prints a record, nested ones with their path."""
  for key, value in found.items():
    if isinstance(value, dict) and 'median' not in value:
      show(f'{name} {key}', value)
    elif isinstance(value, dict):
      ends = f'({value["q1"]:.4g} to {value["q3"]:.4g})'
      print(f'{name:24} {key:24} {value["median"]:10.4g}  {ends}')
    else:
      print(f'{name:24} {key:24} {value:10.4g}')


def main():
  """Measures, prints, and writes what --json asks for."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--only', default='alfworld,webshop,sokoban')
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--products', default='1000,50000')
  parser.add_argument('--json')
  options = parser.parse_args()
  sizes = [int(number) for number in options.products.split(',')]
  measures = {
    'alfworld': of_alfworld,
    'webshop': lambda repeats: of_webshop(repeats, sizes),
    'sokoban': of_sokoban,
  }
  report = {'cpu': platform.processor(), 'python': platform.python_version()}
  for name in options.only.split(','):
    report[name] = measures[name](options.repeats)
    show(name, report[name])
  if options.json:
    pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + '\n')


if __name__ == '__main__':
  main()
