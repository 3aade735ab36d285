"""How long credit assignment takes, beside scipy and plain Python.

  python benchmarks/credit.py [--sizes 16x8x50,256x16x50] [--repeats 20]
    [--schemes grpo,gigpo,graphgpo | all] [--scaling] [--json FILE]

Sizes are tasks x attempts x steps: random walks with a bias to the goal, states
are texts of 100-2000 characters. Prints the median time, with quartiles, of
  intern          row dicts -> padded ids (host; no string was hashed before)
  grpo, ...       one jitted call: graph, distances, advantages (ids on device),
                  paper settings; --schemes all takes the whole family
  scipy           GraphGPO from ids: one call of Dijkstra, vectorised numpy
  oracle ids      GraphGPO in plain Python (tests/reference.py), ids for texts
  oracle strings  the same from texts
and ratios of medians. All take turns, so that a busy machine slows all alike.
The first turn is not counted; in it scipy and the oracle must agree with ours
to 1e-4. 'compile_s' is that turn minus the median. A case that has used 20 s
gets no more runs. Sizes beyond 2 million step slots start from ids and have no
oracle. --scaling adds GraphGPO's time per step by size, in one call and in
calls of at most credit.SLOTS_PER_CALL slots. Takes 5 to 20 minutes and 7 GB of
memory; --sizes 16x8x50 takes half a minute.
"""

import argparse
import gc
import json
import os
import pathlib
import platform
import sys
import time
from operator import itemgetter

sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests'))

import jax
import numpy as np
import reference
import scipy
from scipy.sparse import csgraph, csr_array

from graphgpo_jax import credit, states

SIZES = '16x8x50,16x8x15,32x8x15,256x16x50,1024x16x64'
SCALING = '16x8x50,256x16x50,1024x16x64,1024x64x128'
MOST_TEXTS = 2_000_000  # step slots
SECONDS = 20  # per case
COMPILED = '/jax/core/compile/backend_compile_duration'
compilations = []


def play(num_tasks, num_attempts, num_steps, *, seed):
  """Random walks, a graph per task, node 0 the goal: columns [N], in order."""
  rng = np.random.default_rng(seed)
  num_nodes = 2 * num_steps
  ends = rng.integers(-6, 6, (num_tasks, num_nodes, 4))
  ends += np.arange(num_nodes)[:, None]
  ends = np.sort(ends.clip(0, num_nodes - 1), -1)  # action 0 is the best
  shape = (num_tasks, num_attempts, num_steps)
  bias = rng.uniform(0.2, 0.9, (*shape[:2], 1))
  action = rng.integers(0, 4, shape) * (rng.random(shape) >= bias)
  nodes = np.full((*shape[:2], num_steps + 1), num_nodes - 1)
  tasks = np.arange(num_tasks)[:, None]
  for t in range(num_steps):
    after = ends[tasks, nodes[..., t], action[..., t]]
    nodes[..., t + 1] = np.where(nodes[..., t] > 0, after, 0)
  used = np.zeros((num_tasks, num_nodes), bool)
  used[:, 0] = used[tasks[..., None], nodes] = True
  nodes = (used.cumsum(1) - 1)[tasks[..., None], nodes]
  mask = nodes[..., :-1] > 0
  walk = dict(zip(('task', 'attempt', 'step'), np.nonzero(mask)))
  walk |= {'state': nodes[..., :-1][mask], 'next_state': nodes[..., 1:][mask]}
  walk |= {'action': action[mask], 'success': walk['next_state'] == 0}
  cut = ~walk['success'] & (walk['step'] == num_steps - 1)
  return walk | {'truncated': cut, 'valid': rng.random(len(cut)) > 0.05}


def walks(num_tasks, num_attempts, num_steps, *, seed, texts=True):
  """The walks of `play` as rows of the rollout log, states as texts or ids."""
  walk = play(num_tasks, num_attempts, num_steps, seed=seed)
  rng = np.random.default_rng(seed)
  letters = rng.integers(97, 123, 20_000, np.uint8).tobytes().decode()
  size = (num_tasks, 2 * num_steps)
  starts = rng.integers(0, 18_000, size)
  stops = starts + rng.integers(80, 1950, size)
  rows = []
  for values in zip(*(column.tolist() for column in walk.values())):
    row = dict(zip(walk, values))
    for name in ('state', 'next_state') if texts else ():
      at = row['task'], row[name]
      words = letters[starts[at] : stops[at]]
      row[name] = f'Task {at[0]}, you are in room {at[1]}: {words}'
    row |= {'action': f'action {row["action"]}', 'terminal': row['success']}
    rows.append(row | {'reward': 10.0 * row['success']})
  return rows


def fresh(rows):
  """The same rows with new string objects, one per observation."""
  copies, after = [], None
  for row in rows:
    state = after if row['step'] else row['state'].encode().decode()
    after = row['next_state'].encode().decode()
    copies.append(row | {'state': state, 'next_state': after})
  return copies


def ids_only(walk):
  """The walks of `play` as Rollouts, without the way over texts."""
  size, num_tasks = len(walk['task']), walk['task'].max() + 1
  return states.pad(
    states.Steps(
      row=np.arange(size),
      reward=10.0 * walk['success'],
      cost=np.ones(size),
      credited=np.ones(size, bool),
      last=walk['success'] | walk['truncated'],
      tasks=range(num_tasks),
      attempts=[range(walk['attempt'].max() + 1)] * num_tasks,
      texts=[range(walk['state'].max())] * num_tasks,
      **walk | {'action': 4 * walk['state'] + walk['action']},
    )
  )


def scipy_graphgpo(rollouts):
  """GraphGPO, paper settings, from ids: advantages and distances [N]."""
  num_tasks, num_nodes = len(rollouts.state), rollouts.num_nodes
  mask, size = rollouts.mask, num_tasks * num_nodes
  task, attempt, _ = np.nonzero(mask)
  here = task * num_nodes + rollouts.state[mask]
  there = task * num_nodes + rollouts.next_state[mask]
  cost = rollouts.cost[mask].astype(np.float64)
  # Backward edges, by hand: scipy's own conversion adds parallel edges up.
  order = np.argsort(there, kind='stable')
  bounds = np.append(0, np.bincount(there, minlength=size).cumsum())
  back = csr_array((cost[order], here[order], bounds), shape=(size, size))
  goals = num_nodes * np.arange(num_tasks)
  distance = csgraph.dijkstra(back, indices=goals, min_only=True)
  beyond = np.where(np.isinf(distance), 0, distance).reshape(num_tasks, -1)
  beyond = beyond.max(1) + np.where(mask, rollouts.cost, 0).max((1, 2))
  distance = np.minimum(distance, beyond.repeat(num_nodes))
  power, best = distance[there] + cost, np.full(size, np.inf)
  np.minimum.at(best, here, power)
  excess = power - best[here]
  excess[excess <= 1e-6 * np.maximum(1, best[here])] = 0
  step = numpy_z(10 * 0.1**excess, here, size)
  step *= rollouts.success.any((1, 2))[task]
  scores = rollouts.episode_return - 0.1 * (mask & ~rollouts.valid).sum(-1)
  voter, votes = np.nonzero(mask.any(-1)), np.zeros(mask.shape[:2])
  votes[voter] = numpy_z(scores[voter], voter[0], num_tasks)
  return step + votes[task, attempt], distance[here]


def numpy_z(values, group, size):
  """(x - mean) / std in every group; 0 where the values are equal."""
  low, high = np.full(size, np.inf), np.full(size, -np.inf)
  np.minimum.at(low, group, values)
  np.maximum.at(high, group, values)
  count = np.bincount(group, minlength=size)
  with np.errstate(all='ignore'):  # groups of 0 or 1, left out below
    centred = values - (np.bincount(group, values, size) / count)[group]
    std = np.sqrt(np.bincount(group, centred**2, size) / (count - 1))
    varies = high - low > 1e-6 * np.maximum(abs(low), abs(high))
    return np.where(varies[group], centred / std[group], 0)


def measure(cases, repeats, check=None):
  """Times cases {name: (steps, prepare, run)}; check gets first answers."""
  seconds, answers = {name: [] for name in cases}, {}
  compiled = dict.fromkeys(cases, 0)
  for turn in range(repeats + 1):
    for name, (_, prepare, run) in cases.items():
      if sum(seconds[name][1:]) > SECONDS:
        continue
      argument, before = prepare(), len(compilations)
      start = time.perf_counter()
      answer = jax.block_until_ready(run(argument))
      seconds[name].append(time.perf_counter() - start)
      compiled[name] += len(compilations) - before
      answers.setdefault(name, answer)
    if turn == 0 and check:
      check(answers)
  numbers = {}
  for name, (first, *times) in seconds.items():
    low, middle, high = np.percentile(times, (25, 50, 75)).tolist()
    numbers[name] = {
      **{'q1_ms': 1e3 * low, 'median_ms': 1e3 * middle, 'q3_ms': 1e3 * high},
      'ns_per_step': 1e9 * middle / cases[name][0],
      'steps': cases[name][0],
      'runs': len(times),
      'compile_s': first - middle if compiled[name] else 0.0,
      'compilations': compiled[name],
    }
  return numbers


def ours(parts, scheme):
  """A case for `measure`: one call per part, arrays on the device."""
  steps = sum(int(part.mask.sum()) for part in parts)
  parts, credit_fn = jax.device_put(parts), credit.bind(scheme)

  def run(parts):
    return [credit.credit(part, credit_fn=credit_fn) for part in parts]

  return steps, lambda: parts, run


def cases_of(shape, schemes):
  """Cases for `measure`, and the Rollouts."""
  rows = walks(*shape, seed=0) if np.prod(shape) <= MOST_TEXTS else []
  rollouts = states.intern(rows) if rows else ids_only(play(*shape, seed=0))
  cases = {}
  if rows:
    cases['intern'] = len(rows), lambda: fresh(rows), states.intern
  cases |= {scheme: ours([rollouts], scheme) for scheme in schemes}
  if 'graphgpo' in schemes:
    cases['scipy'] = cases['graphgpo'][0], lambda: rollouts, scipy_graphgpo
  if 'graphgpo' in schemes and rows:
    plain, oracle = walks(*shape, seed=0, texts=False), reference.graphgpo
    cases['oracle ids'] = len(rows), lambda: plain, oracle
    cases['oracle strings'] = len(rows), lambda: fresh(rows), oracle
  return cases, rollouts


def compare(size, schemes, repeats):
  """All numbers of one size."""
  cases, rollouts = cases_of(tuple(map(int, size.split('x'))), schemes)
  peers = [name for name in cases if name.startswith(('scipy', 'oracle'))]
  off, ratios = {}, {}

  def check(answers):
    for name in peers:
      theirs = answers[name] if name == 'scipy' else (answers[name],)
      for key, values in zip(('advantage', 'distance'), theirs):
        mine = np.asarray(answers['graphgpo'][0][key])[rollouts.mask]
        off[f'{name} {key}'] = float(abs(mine - values).max())
    if not all(x <= 1e-4 for x in off.values()):
      raise RuntimeError(f'{size}: ours and a peer differ: {off}')

  timings = measure(cases, repeats, check)
  for name in peers:
    parts = ('intern', 'graphgpo') if 'strings' in name else ('graphgpo',)
    total = sum(timings[part]['median_ms'] for part in parts)
    ratios[f'{name} / {"+".join(parts)}'] = timings[name]['median_ms'] / total
  found = {'timings': timings, 'ratios': ratios, 'differences': off}
  return {'size': size, 'nodes_per_task': rollouts.num_nodes} | found


def scaling(repeats):
  """GraphGPO by size, in one call and in calls as `credit_steps` makes."""
  timings = {}
  for size in SCALING.split(','):
    shape = tuple(map(int, size.split('x')))
    rollouts = ids_only(play(*shape, seed=0))
    cases, room = {}, max(1, credit.SLOTS_PER_CALL // (shape[1] * shape[2]))
    for length in sorted({min(room, shape[0]), shape[0]}):
      cuts = np.split(np.arange(shape[0]), range(length, shape[0], length))
      parts = [jax.tree.map(itemgetter(cut), rollouts) for cut in cuts]
      cases[f'{size} / {len(parts)}'] = ours(parts, 'graphgpo')
    timings |= measure(cases, repeats)
  return timings


def table(title, timings):
  """Prints one aligned line per case."""
  names = ''.join(f'{name:>13}' for name in next(iter(timings.values())))
  print(f'\n{title:20}{names}')
  for case, numbers in timings.items():
    cells = ''.join(f'{round(x, 3):13}' for x in numbers.values())
    print(f'{case:20}{cells}', flush=True)


def main(argv=None):
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--sizes', default=SIZES)
  parser.add_argument('--repeats', type=int, default=20)
  parser.add_argument('--schemes', default='grpo,gigpo,graphgpo')
  parser.add_argument('--scaling', action='store_true')
  parser.add_argument('--json', type=pathlib.Path)
  options = parser.parse_args(argv)
  schemes = options.schemes.split(',')
  if options.schemes == 'all':
    schemes = credit.schemes()
  jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: event == COMPILED and compilations.append(event)
  )
  gc.disable()  # as timeit does
  report = {'cpus': os.cpu_count(), 'python': platform.python_version()}
  report |= {x.__name__: x.__version__ for x in (jax, np, scipy)}
  print(', '.join(f'{name} {value}' for name, value in report.items()))
  report['sizes'] = []
  for size in filter(None, options.sizes.split(',')):
    found = compare(size, schemes, options.repeats)
    report['sizes'].append(found)
    table(size, found['timings'])
    for name in ('ratios', 'differences'):
      print(name, ', '.join(f'{k}: {v:.3g}' for k, v in found[name].items()))
  if options.scaling:
    report['scaling'] = scaling(options.repeats)
    table('size / calls', report['scaling'])
  if options.json:
    options.json.write_text(json.dumps(report, indent=1) + '\n')


if __name__ == '__main__':
  main()
