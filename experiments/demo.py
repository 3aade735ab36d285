"""The demo: a policy learns Sokoban with GraphGPO, and leaves pictures.

  python experiments/demo.py [--run_dir runs/demo] [--seed 0]

Takes 5 to 8 minutes on 2 cores. It is the run of configs/sokoban_tiny.py with
nothing changed, so it stops (Ctrl-C) and, started again, resumes like any run.
Leaves learning_curve.png, credit_graph.png, rollouts.jsonl and report.md.
"""

import pathlib

import numpy as np
from absl import app, flags

from graphgpo_jax import config as configs
from graphgpo_jax import credit, log, metrics, plots, states
from graphgpo_jax.cli import fail
from graphgpo_jax.train import train

CONFIG = pathlib.Path(__file__).parent / 'configs' / 'sokoban_tiny.py'
RUN_DIR = flags.DEFINE_string('run_dir', 'runs/demo', 'where to leave all')
SEED = flags.DEFINE_integer('seed', 0, 'of the run')
SCHEMES = ('grpo', 'gigpo', 'graphgpo')


def main(_):
  """Trains, or goes on training, then draws and reports."""
  config = configs.load(CONFIG)
  config.run_dir, config.seed = RUN_DIR.value, SEED.value
  folder = pathlib.Path(config.run_dir)
  try:
    train(config, resume=True)
  except (ValueError, OSError) as problem:
    fail('demo.py', problem)
  rows = metrics.read_metrics(folder / 'metrics.jsonl')
  if rows[-1]['position'] + 1 < config.warm_start.steps + config.updates:
    return
  draw_learning_curve(rows, folder / 'learning_curve.png')
  task = draw_credit_graph(
    folder / 'rollouts.jsonl', folder / 'credit_graph.png'
  )
  write_report(config, rows, task, folder / 'report.md')
  print((folder / 'report.md').read_text())


def panel_rows(rows):
  """Rows with an evaluation; the first is the warm start's."""
  return [row for row in rows if 'panel_success' in row]


def draw_learning_curve(rows, path):
  """Success on the held-out panel, by update."""
  measured = panel_rows(rows)
  updates = [row.get('update', 0) for row in measured]
  curves = {
    'held-out, greedy': [(updates, [row['panel_success'] for row in measured])],
    'held-out, sampled': [
      (updates, [row['panel_sampled_success'] for row in measured])
    ],
    'training rollouts': [
      tuple(zip(*((r['update'], r['success']) for r in rows if 'update' in r)))
    ],
  }
  figure = plots.learning_curves(
    curves, ylabel='success rate', title='GraphGPO on 6x6 Sokoban'
  )
  plots.save(figure, path)


def draw_credit_graph(source, path):
  """Credit of three schemes on the task with most to tell; returns its id."""
  steps = states.index_steps(log.read_log(source).table)
  ends = steps.last
  succeeded = np.bincount(steps.task[ends], steps.success[ends])
  attempts = np.bincount(steps.task[ends])
  nodes = np.array([len(texts) for texts in steps.texts])
  mixed = (succeeded > 0) & (succeeded < attempts)
  task = int(np.argmax(np.where(nodes <= 40, nodes, 0) * (1 + mixed)))
  results = {
    name: credit.credit_steps(
      steps,
      credit.bind(name, reward_source='success'),
    )
    for name in SCHEMES
  }
  figure = plots.credit_graph(
    steps, task, results, title=f'task {steps.tasks[task]}'
  )
  plots.save(figure, path)
  return steps.tasks[task]


def write_report(config, rows, task, path):
  """What happened, in one page."""
  first, *_, last = panel_rows(rows)
  updates = [row for row in rows if row['phase'] == 'update']
  warm = [row for row in rows if row['phase'] == 'warm start']
  seconds = {
    'warm start': sum(row['seconds'] for row in warm),
    **{
      name: sum(row.get(f'seconds_{name}', 0) for row in updates)
      for name in ('rollout', 'credit', 'update')
    },
  }
  everything = sum(row['seconds'] for row in rows)
  seconds['evaluation, compiling, saving'] = everything - sum(seconds.values())

  def success(row, name):
    return (
      f'{row[f"{name}_success"]:.1%} '
      f'({row[f"{name}_low"]:.1%} to {row[f"{name}_high"]:.1%})'
    )

  def median(name):
    return np.median([row[name] for row in updates])

  table = '\n'.join(
    f'| {name} | {value:.0f} s | {value / everything:.1%} |'
    for name, value in seconds.items()
  )
  phases = ('seconds_rollout', 'seconds_credit', 'seconds_update')
  share = np.median(
    [row['seconds_credit'] / sum(row[p] for p in phases) for row in updates]
  )
  gain = last['panel_success'] - first['panel_success']
  error = max(row['ratio_error_first'] for row in updates)
  with log.atomic_write(path) as file:
    file.write(f"""# GraphGPO on 6x6 Sokoban, seed {config.seed}

Success on {last['panel_attempts']} held-out levels (95 % interval):

| | greedy | sampled at {config.evaluation.temperature} |
|---|---|---|
| after the warm start | {success(first, 'panel')} | \
{success(first, 'panel_sampled')} |
| after {config.updates} updates | {success(last, 'panel')} | \
{success(last, 'panel_sampled')} |

That is {100 * gain:+.1f} points. The warm start ({config.warm_start.steps} \
supervised steps on solver traces) stands in for
pretraining. It is held back on purpose: 300 steps of it alone reach 63 % greedy
and 72 % sampled (seed 0). What is shown here is learning from rollouts.

| phase | time | share |
|---|---|---|
{table}
| all | {everything:.0f} s | |

Per update (median): {median('steps'):.0f} environment steps, \
{median('tokens_per_second'):.0f} tokens/s, {median('steps_per_second'):.0f} \
steps/s;
credit takes {share:.2%} of an iteration (median). The first optimizer step
of an update sees ratios within {error:.1g} of 1.

Where to look next
- learning_curve.png: success by update.
- credit_graph.png: what GRPO, GiGPO and GraphGPO say of the same rollouts of
  task {task}.
- rollouts.jsonl: the last update's rollouts; `python -m graphgpo_jax stats`.
- metrics.jsonl, tensorboard/: every number of every update.
- `python -m graphgpo_jax play --checkpoint {config.run_dir}`: watch it play.
""")


if __name__ == '__main__':
  app.run(main)
