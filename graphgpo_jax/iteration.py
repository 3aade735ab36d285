"""What one position of a run does: a supervised step, or an iteration of RL.

With several processes, each has its own tasks and the steps they led to; the
arrays on the mesh and the numbers reported are those of all.
"""

import functools
import pathlib

import jax
import numpy as np

from graphgpo_jax import credit, log, metrics, sharding, states
from graphgpo_jax import history as histories
from graphgpo_jax.evaluate import attempt_totals, evaluate
from graphgpo_jax.models.parameters import join
from graphgpo_jax.packing import pack
from graphgpo_jax.rollout import collect, solver_transitions
from graphgpo_jax.setup import Run, policy


def iterate(
  run: Run, state, reference, iteration: int, history: histories.History
):
  """One update: play, credit, then one optimizer step per mini-batch.

  Returns:
    state, a row of metrics, the history after it, the transitions (with those
    of earlier visits, which shaped the graphs).
  """
  config, clock = run.config, metrics.Clock()
  past = histories.due(history, after=config.history.after).transitions
  played, history = _gather(run, state, iteration, history)
  clock.stop('rollout')
  table = log.columns([*played, *past])
  steps = states.index_steps(table, merge=run.merge)
  silent = _silent(run, steps)
  trained = np.arange(len(silent))
  if config.batch.resample_retries:
    share = config.batch.tasks // jax.process_count()
    trained = np.flatnonzero(~silent)[:share]
  row = _describe(played, silent, trained)
  order, advantage = np.zeros(0, int), np.zeros(len(played), np.float32)
  if len(trained):
    steps = states.select(steps, trained)
    advantage, described = assign(run, steps)
    order = np.sort(states.credited_only(steps).row)
    row |= described
    row['steps_trained'] = len(order)
  clock.stop('credit')
  if sharding.most([len(order)])[0]:
    rng = np.random.default_rng([config.seed, iteration, 1])
    state, found = _improve(
      run, state, reference, played, order, advantage, rng
    )
    clock.stop('update')
  row = metrics.across_processes(row | clock.seconds)
  if row['steps_trained']:
    square = row.pop('advantage_square') - row['advantage_mean'] ** 2
    row['advantage_std'] = max(square, 0.0) ** 0.5
  if 'seconds_update' in clock.seconds:
    row |= metrics.summarise_updates(found)
  seconds = sum(row[name] for name in clock.seconds)
  row |= {
    'phase': 'update',
    'update': iteration + 1,
    'tokens_per_second': row['tokens'] / seconds,
    'steps_per_second': row['steps'] / seconds,
  }
  return state, row, history, [*played, *past]


def _improve(run, state, reference, played, order, advantage, rng):
  """One optimizer step per mini-batch of the steps `order`."""
  size = run.config.batch.mini_batch_steps // jax.process_count()
  (parts,) = sharding.most([-(-len(order) // size)])
  found = []
  for part in np.array_split(rng.permutation(order), parts):
    rows = _rows(run, [played[i] for i in part], advantage[part])
    rows = _with_reference(run, rows, reference)
    state, values = run.improve(state, rows, run.frozen)
    found.append(values)
  return state, jax.device_get(found)


def assign(run: Run, steps) -> tuple[np.ndarray, dict]:
  """Advantages in row order, and statistics of them and the graphs."""
  batch, mesh = run.config.batch, sharding.local_mesh()
  attempts = batch.attempts
  if run.config.history.tasks:  # in all updates: one shape, one compilation
    attempts += min(run.config.history.attempts, attempts)
  tasks = batch.tasks // jax.process_count()
  tasks = -(-tasks // mesh.size) * mesh.size
  nodes = states.power_of_two(attempts * run.env.max_steps + 2)
  shapes = (tasks, attempts, run.env.max_steps, nodes)
  rollouts = states.pad(steps, shapes=shapes)
  shared = credit.shared_settings(steps, run.credit_fn)
  for name, value in shared.items():  # all processes have as many tasks
    shared[name] = float(sharding.everywhere([value]).mean())
  answer = credit.credit(
    rollouts, credit_fn=run.credit_fn, mesh=mesh, shared=shared
  )
  size = int(steps.row.max()) + 1
  results = credit.in_row_order(rollouts, answer, size)
  kept = ('singleton_share', 'unreachable_share', 'nodes_per_task')
  described = _revisits(steps) if run.config.history.tasks else {}
  steps = states.credited_only(steps)
  row = metrics.graph_statistics(steps, results)
  credited = results['advantage'][steps.row]
  described |= {name: row[name] for name in kept}
  return results['advantage'], described | {
    'advantage_mean': float(credited.mean()),
    'advantage_square': float((credited.astype(float) ** 2).mean()),
    'advantage_max': float(abs(credited).max()),
    'advantage_zero_share': float((credited == 0).mean()),
  }


def _revisits(steps):
  """Tasks that were seen before, and those that only then were solved."""
  before, solved, now = np.zeros((3, len(steps.tasks)), bool)
  before[steps.task[~steps.credited]] = True
  solved[steps.task[steps.success]] = True
  now[steps.task[steps.success & steps.credited]] = True
  return {
    'tasks_revisited': int(before.sum()),
    'tasks_solved_before_only': int((solved & ~now).sum()),
  }


def _gather(run, state, iteration, history):
  """Transitions of an iteration, and the history after them."""
  batch, section = run.config.batch, run.config.history
  play = functools.partial(
    collect,
    policy(run, state, temperature=run.config.sampling.temperature),
    run.env,
    attempts=batch.attempts,
    key=run.key,
    iteration=iteration,
    overlap=run.config.env.overlap,
  )
  draw = functools.partial(_task, run)
  tasks, cursor = histories.schedule(
    history, draw, tasks=batch.tasks, after=section.after
  )
  played = play(sharding.mine(tasks))
  if batch.resample_retries:
    played, cursor = _resample(run, play, played, tasks, cursor)
  return played, histories.remember(
    history._replace(cursor=cursor),
    tasks[: section.tasks],
    played,
    update=iteration + 1,
    after=section.after,
    attempts=section.attempts,
    task_name=run.env.task_name,
  )


def _resample(run, play, fresh, tasks, cursor):
  """Dynamic sampling: the transitions with those of more tasks, the cursor.

  More tasks are played for those whose attempts all score the same, a bounded
  number of times.
  """
  played, tasks = list(fresh), list(tasks)
  for _ in range(run.config.batch.resample_retries):
    missing = 0
    if fresh:
      steps = states.index_steps(log.columns(fresh))
      missing = int(_silent(run, steps).sum())
    missing = int(sharding.everywhere([missing]).sum())
    if not missing:
      break
    draw = functools.partial(_task, run)
    more, cursor = histories.draw_fresh(draw, cursor, missing, tasks)
    tasks += more
    fresh = play(sharding.mine(more))
    played += fresh
  return played, cursor


def _silent(run, steps):
  """[tasks] bool: no attempt of this visit scores better than another."""
  settings = run.config.credit.to_dict()
  names = ('reward_source', 'success_reward', 'invalid_action_penalty')
  settings = {name: settings[name] for name in names if name in settings}
  steps = states.credited_only(steps)
  scores = metrics.episode_scores(steps, **settings)
  return metrics.zero_signal_tasks(*scores)


def _describe(played, silent, trained):
  totals = attempt_totals(played)
  score = {}
  if totals['scored'].any():
    score['score'] = float(totals['score'].mean())
  return score | {
    'success': float(totals['success'].mean()),
    'return': float(totals['return'].mean()),
    'length': float(totals['length'].mean()),
    'invalid_share': float(totals['invalid'].sum() / totals['length'].sum()),
    'zero_signal_tasks': int(silent.sum()),
    'tasks_played': len(silent),
    'tasks_trained': len(trained),
    'attempts': len(totals['success']),
    'attempts_lost': int(totals['lost'].sum()),
    'steps': len(played),
    'steps_trained': 0,
    'prompts_cut': sum(step.prompt_cut for step in played),
    'tokens': sum(
      len(step.prompt_ids) + len(step.response_ids) for step in played
    ),
  }


def _task(run, number):
  """Task of the number-th draw: a new order of all tasks every epoch."""
  epoch, index = divmod(number, run.env.num_tasks)
  return int(_order(run.config.seed, epoch, run.env.num_tasks)[index])


@functools.lru_cache(4)
def _order(seed, epoch, count):
  return np.random.default_rng([seed, epoch, 2]).permutation(count)


def _rows(run, transitions, advantage, steps=None):
  """Rows of tokens on the mesh, with room for so many steps of all."""
  batch = run.config.batch
  parts = -(-(steps or batch.mini_batch_steps) // batch.micro_batch_rows)
  rows = batch.micro_batch_rows // jax.process_count()
  packed = pack(transitions, advantage, shape=(parts, rows, batch.row_length))
  return sharding.put_rows(packed, run.mesh, axis=1)


def _with_reference(run, rows, reference):
  """The rows with their log-probs under the reference, if there is one."""
  if reference is None:
    return rows
  if run.config.loss.reference == 'host':  # on the devices for one call only
    placement = sharding.shardings(reference, run.mesh)
    reference = jax.device_put(reference, placement)
  logps = run.score(join(reference, run.frozen), rows)
  return rows.replace(reference_logp=logps)


def lessons(run, state):
  """Transitions of the solver on the first training tasks."""
  count = min(run.config.warm_start.tasks, run.env.num_tasks)
  encode = policy(run, state).encode
  return solver_transitions(run.env, range(count), run.tokenizer, encode)


def warm_step(run: Run, state, taught, position: int):
  """One supervised step on the solver's transitions.

  A stand-in for pretraining: a policy that starts from nothing never reaches
  the goal, and then there is nothing to credit.
  """
  section = run.config.warm_start
  rng = np.random.default_rng([run.config.seed, position, 3])
  part = rng.integers(len(taught), size=section.mini_batch_steps)
  chosen = [taught[i] for i in sharding.mine(part)]
  rows = _rows(run, chosen, np.zeros(len(chosen)), len(part))
  state, values = run.imitate(state, rows, run.frozen)
  row = {name: float(x) for name, x in jax.device_get(values).items()}
  return state, row | {'phase': 'warm start'}


def evaluate_panel(run, state, played, update):
  """Held-out success, greedy and sampled; leaves this update's rollouts."""
  section = run.config.evaluation
  tasks = range(min(section.tasks, run.panel.num_tasks))
  row = {}
  samplers = {'panel': run.sampler, 'panel_sampled': run.panel_sampler}
  for name, sampler in samplers.items():
    player = policy(
      run,
      state,
      sampler=sampler,
      temperature=section.temperature,
      greedy=name == 'panel',
    )
    found = evaluate(
      player,
      run.panel,
      tasks=tasks,
      key=run.key,
      overlap=run.config.env.overlap,
    )
    row |= {f'{name}_{key}': value for key, value in found.items()}
  if played and jax.process_index() == 0:
    path = pathlib.Path(run.config.run_dir) / 'rollouts.jsonl'
    log.write_log(path, played, meta={'update': update})
  return row
