"""Runs a list of configs one after the other, then draws and tabulates them.

  python experiments/sweep.py --sweep experiments/sweeps/sokoban_schemes.py \\
      --out experiments/results/sokoban_schemes [--runs runs/sokoban_schemes]

A sweep file holds SWEEP, a list of dicts: 'config' FILE[:ARGUMENT], 'label',
and dotted keys of the config. Started again, it goes on where it was. Leaves
OUT.png (held-out success by update), OUT.md and OUT.json.
"""

import importlib.util
import json
import pathlib

import numpy as np
from absl import app, flags

from graphgpo_jax import config as configs
from graphgpo_jax import metrics, plots
from graphgpo_jax.log import atomic_write
from graphgpo_jax.train import train

SWEEP = flags.DEFINE_string('sweep', None, 'file with SWEEP', required=True)
OUT = flags.DEFINE_string('out', None, 'results, without suffix', required=True)
RUNS = flags.DEFINE_string('runs', None, 'folder of the runs')


def main(_):
  """Trains what is not finished, then writes the results of all."""
  source = pathlib.Path(SWEEP.value)
  spec = importlib.util.spec_from_file_location(source.stem, source)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  folder = pathlib.Path(RUNS.value or f'runs/{source.stem}')
  results = []
  for number, changes in enumerate(module.SWEEP):
    config, label = make_config(changes)
    config.run_dir = str(folder / f'{number:03d}_{label}')
    last = train(config, resume=True)
    total = config.warm_start.steps + config.updates
    if last['position'] + 1 < total:
      print('stopped; start again to go on')
      return
    rows = metrics.read_metrics(f'{config.run_dir}/metrics.jsonl')
    results.append(summarise(label, changes, rows))
  write(pathlib.Path(OUT.value), results)


def make_config(changes):
  """Config and label of an entry of a sweep."""
  changes = dict(changes)
  path, _, argument = changes.pop('config').partition(':')
  label = changes.pop('label')
  config = configs.load(path, argument)
  config.update_from_flattened_dict(changes)
  return config, label


def summarise(label, changes, rows):
  """What a run's rows of metrics come to."""
  panel = [row for row in rows if 'panel_success' in row]
  updates = [row for row in rows if row['phase'] == 'update']
  return {
    'label': label,
    'changes': changes,
    'update': [row.get('update', 0) for row in panel],
    'success': [row['panel_success'] for row in panel],
    'success_sampled': [row['panel_sampled_success'] for row in panel],
    'seconds': sum(row['seconds'] for row in rows),
    **{
      name: float(np.median([row[name] for row in updates]))
      for name in (
        *('seconds_rollout', 'seconds_credit', 'seconds_update'),
        *('tokens_per_second', 'steps_per_second'),
      )
    },
  }


def write(out, results):
  """OUT.json, OUT.md and OUT.png."""
  out.parent.mkdir(parents=True, exist_ok=True)
  labels = list(dict.fromkeys(run['label'] for run in results))
  curves = {
    label: [
      (run['update'], run['success'])
      for run in results
      if run['label'] == label
    ]
    for label in labels
  }
  figure = plots.learning_curves(curves, ylabel='held-out success, greedy')
  plots.save(figure, out.with_suffix('.png'))
  with atomic_write(out.with_suffix('.json')) as file:
    json.dump(results, file, indent=1)
  with atomic_write(out.with_suffix('.md')) as file:
    command = f'--sweep {SWEEP.value} --out {OUT.value}'
    file.write(f'`python experiments/sweep.py {command}`\n\n')
    file.write(f'{table(results)}\n{means(results)}')


def table(results):
  """A Markdown table, a run a line."""
  lines = [
    '| run | changes | held-out before | after | points | sampled after | '
    'minutes | rollout s | credit s | update s | tokens/s | steps/s |',
    '|' + '---|' * 12,
  ]
  for run in results:
    changes = ', '.join(
      f'{key}={value}'
      for key, value in run['changes'].items()
      if key not in ('config', 'label')
    )
    first, last = run['success'][0], run['success'][-1]
    lines.append(
      f'| {run["label"]} | {changes} | {first:.1%} | {last:.1%} | '
      f'{100 * (last - first):+.1f} | {run["success_sampled"][-1]:.1%} | '
      f'{run["seconds"] / 60:.1f} | {run["seconds_rollout"]:.2f} | '
      f'{run["seconds_credit"]:.3f} | {run["seconds_update"]:.2f} | '
      f'{run["tokens_per_second"]:.0f} | {run["steps_per_second"]:.0f} |'
    )
  return '\n'.join(lines) + '\n'


def means(results):
  """A Markdown table, a label a line: means over its runs, and their spread."""
  lines = [
    '| label | runs | before | after | points, mean and standard deviation |',
    '|' + '---|' * 5,
  ]
  for label in dict.fromkeys(run['label'] for run in results):
    ends = [
      (run['success'][0], run['success'][-1])
      for run in results
      if run['label'] == label
    ]
    first, last = np.transpose(ends)
    points = 100 * (last - first)
    spread = f' ± {points.std(ddof=1):.1f}' if len(ends) > 1 else ''
    lines.append(
      f'| {label} | {len(ends)} | {first.mean():.1%} | {last.mean():.1%} | '
      f'{points.mean():+.1f}{spread} |'
    )
  return '\n'.join(lines) + '\n'


if __name__ == '__main__':
  app.run(main)
