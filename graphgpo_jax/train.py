"""Training: collect, credit, update, again. The loop, and what it stands on."""

import contextlib
import functools
import pathlib
import signal
import time

import absl.logging
import jax
import numpy as np

from graphgpo_jax import checkpoint, credit, log, metrics, sharding, states
from graphgpo_jax import config as configs
from graphgpo_jax.evaluate import attempt_totals, evaluate
from graphgpo_jax.models.parameters import join
from graphgpo_jax.rollout import (
  collect,
  mini_batches,
  pack,
  solver_transitions,
)
from graphgpo_jax.setup import PRECISION, Run, build, policy
from graphgpo_jax.update import init_state


def train(
  config,
  credit_fn=None,
  *,
  resume: bool = False,
  allow_changed_config: bool = False,
) -> dict:
  """Trains a policy as the config says: warm start, then RL updates.

  Position p of a run is warm-start step p, or update p - warm_start.steps.

  Args:
    config: see `config.SCHEMA` and experiments/configs.
    credit_fn: a scheme to use in place of config.credit; see `credit`.
    resume: go on from the last checkpoint of run_dir, if there is one.
    allow_changed_config: resume even if the config is another one.

  Returns:
    The last row of metrics.

  Raises:
    ValueError: a config that can't be; run_dir holds a run and resume is off,
      or a run of another config or model.
    OSError: a checkpoint can't be written; the last one is good.
  """
  configs.check(config)
  absl.logging.set_verbosity(absl.logging.WARNING)  # Orbax tells every save
  with jax.default_matmul_precision(PRECISION):
    run, state = build(config, credit_fn)
    total = config.warm_start.steps + config.updates
    folder = pathlib.Path(config.run_dir)
    with checkpoint.open_checkpoints(str(folder / 'checkpoints')) as manager:
      start, state, reference, cursor = checkpoint.begin(
        config,
        manager,
        state,
        resume=resume,
        allow_changed_config=allow_changed_config,
      )
      if start >= total:
        print(
          f'{folder}: NOTHING LEFT TO DO: {start} of {total} steps are done'
        )
        return (metrics.read_metrics(folder / 'metrics.jsonl') or [{}])[-1]
      return _loop(run, manager, state, reference, start, total, cursor)


def _loop(run, manager, state, reference, start, total, cursor):
  config, row = run.config, {}
  warm = config.warm_start.steps
  compiles = metrics.CompileCount()
  writer = metrics.MetricsWriter(config.run_dir, position=start)
  display = metrics.Display(config.run_dir, total=total, done=start)
  with (
    contextlib.closing(compiles),
    contextlib.closing(writer),
    contextlib.closing(display),
    _stop_signals() as stop,
  ):
    lessons = _lessons(run, state) if start < warm else None
    for position in range(start, total):
      begun, played = time.perf_counter(), None
      if position < warm:
        state, row = warm_step(run, state, lessons, position)
      else:
        state, row, cursor, played = iterate(
          run, state, reference, position - warm, cursor
        )
      update = position + 1 - warm  # updates done
      if position + 1 == total or _due(update, config.evaluation.every):
        row |= _evaluate(run, state, played, update)
      if update == 0:  # the policy to improve: a fresh optimizer, a reference
        state = init_state(state.params, run.optimizer, run.mesh)
        reference = checkpoint.frozen(config, state)
      seconds = time.perf_counter() - begun
      row |= {'position': position, 'seconds': seconds}
      writer.write(row | {'compilations': compiles.count})
      display.show(row)
      stopping = bool(stop)  # read once: what is announced is also saved
      done = stopping or position + 1 == total
      if done or _due(update, config.checkpoint.every):
        checkpoint.save_run(
          manager, position + 1, state, reference, cursor, config
        )
      if stopping:
        display.say(f'stopped after {position + 1} of {total}; resume to go on')
        break
  return row


def _due(update, every):
  return update >= 0 and update % every == 0


def iterate(run: Run, state, reference, iteration: int, cursor: int):
  """One update: play, credit, then one optimizer step per mini-batch.

  Returns:
    state, a row of metrics, the task cursor after it, the transitions.
  """
  config, clock = run.config, metrics.Clock()
  played, cursor = _gather(run, state, iteration, cursor)
  clock.stop('rollout')
  steps = states.index_steps(log.columns(played))
  silent = _silent(run, steps)
  trained = np.arange(len(silent))
  if config.batch.resample_retries:
    trained = np.flatnonzero(~silent)[: config.batch.tasks]
  row = _describe(played, silent, trained)
  if len(trained):
    steps = states.select(steps, trained)
    advantage, described = assign(run, steps, len(played))
    clock.stop('credit')
    order = np.sort(steps.row)
    rng = np.random.default_rng([config.seed, iteration, 1])
    found = []
    for part in mini_batches(
      len(order), steps=config.batch.mini_batch_steps, rng=rng
    ):
      chosen = order[part]
      rows = _rows(run, [played[i] for i in chosen], advantage[chosen])
      rows = _with_reference(run, rows, reference)
      state, values = run.improve(state, rows, run.frozen)
      found.append(values)
    row |= described | metrics.summarise_updates(jax.device_get(found))
    clock.stop('update')
  seconds = sum(clock.seconds.values())
  row |= {
    **clock.seconds,
    'phase': 'update',
    'update': iteration + 1,
    'tokens_per_second': row['tokens'] / seconds,
    'steps_per_second': row['steps'] / seconds,
  }
  return state, row, cursor, played


def assign(run: Run, steps, size: int) -> tuple[np.ndarray, dict]:
  """Advantages [size] in row order, and statistics of them and the graphs."""
  batch = run.config.batch
  tasks = -(-batch.tasks // run.mesh.size) * run.mesh.size
  nodes = states.power_of_two(batch.attempts * run.env.max_steps + 2)
  shapes = (tasks, batch.attempts, run.env.max_steps, nodes)
  rollouts = states.pad(steps, shapes=shapes)
  answer = credit.credit(rollouts, credit_fn=run.credit_fn, mesh=run.mesh)
  results = credit.in_row_order(rollouts, answer, size)
  credited = results['advantage'][steps.row]
  row = metrics.graph_statistics(steps, results)
  kept = ('singleton_share', 'unreachable_share', 'nodes_per_task')
  return results['advantage'], {name: row[name] for name in kept} | {
    'advantage_mean': float(credited.mean()),
    'advantage_std': float(credited.std()),
    'advantage_max': float(abs(credited).max()),
    'advantage_zero_share': float((credited == 0).mean()),
  }


def _gather(run, state, iteration, cursor):
  """Transitions of an iteration, and the task cursor after them.

  With dynamic sampling, more tasks are played for those whose attempts all
  score the same, a bounded number of times.
  """
  batch = run.config.batch
  player = policy(run, state, temperature=run.config.sampling.temperature)
  played, taken, missing = [], set(), batch.tasks
  for retry in range(batch.resample_retries + 1):
    tasks = []
    while len(tasks) < missing:
      task, cursor = _task(run, cursor), cursor + 1
      if task not in taken:  # a new epoch may begin with it
        tasks.append(task)
        taken.add(task)
    fresh = collect(
      player,
      run.env,
      tasks,
      attempts=batch.attempts,
      key=run.key,
      iteration=iteration,
    )
    played += fresh
    if retry < batch.resample_retries:
      steps = states.index_steps(log.columns(fresh))
      missing = int(_silent(run, steps).sum())
    if not missing:
      break
  return played, cursor


def _silent(run, steps):
  """[tasks] bool: no attempt scores better than another."""
  settings = run.config.credit.to_dict()
  names = ('reward_source', 'success_reward', 'invalid_action_penalty')
  settings = {name: settings[name] for name in names if name in settings}
  return metrics.zero_signal_tasks(*metrics.episode_scores(steps, **settings))


def _describe(played, silent, trained):
  totals = attempt_totals(played)
  return {
    'success': float(totals['success'].mean()),
    'return': float(totals['return'].mean()),
    'length': float(totals['length'].mean()),
    'invalid_share': float(totals['invalid'].sum() / totals['length'].sum()),
    'zero_signal_tasks': int(silent.sum()),
    'tasks_played': len(silent),
    'tasks_trained': len(trained),
    'steps': len(played),
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
  """Rows of tokens on the mesh, with room for so many steps."""
  batch = run.config.batch
  rows = batch.micro_batch_rows
  parts = -(-(steps or batch.mini_batch_steps) // rows)
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


def _lessons(run, state):
  """Transitions of the solver on the first training tasks."""
  count = min(run.config.warm_start.tasks, run.env.num_tasks)
  encode = policy(run, state).encode
  return solver_transitions(run.env, range(count), run.tokenizer, encode)


def warm_step(run: Run, state, lessons, position: int):
  """One supervised step on the solver's transitions.

  A stand-in for pretraining: a policy that starts from nothing never reaches
  the goal, and then there is nothing to credit.
  """
  section = run.config.warm_start
  rng = np.random.default_rng([run.config.seed, position, 3])
  part = rng.integers(len(lessons), size=section.mini_batch_steps)
  rows = _rows(run, [lessons[i] for i in part], np.zeros(len(part)), len(part))
  state, values = run.imitate(state, rows, run.frozen)
  row = {name: float(x) for name, x in jax.device_get(values).items()}
  return state, row | {'phase': 'warm start'}


def _evaluate(run, state, played, update):
  """Held-out success, greedy and sampled; leaves the update's rollouts."""
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
    found = evaluate(player, run.panel, tasks=tasks, key=run.key)
    row |= {f'{name}_{key}': value for key, value in found.items()}
  if played:
    path = pathlib.Path(run.config.run_dir) / 'rollouts.jsonl'
    log.write_log(path, played, meta={'update': update})
  return row


@contextlib.contextmanager
def _stop_signals():
  """A list that is no longer empty once SIGTERM or Ctrl-C has come.

  The loop then saves and leaves. A second signal ends the program at once.
  """
  caught = []

  def note(number, frame):
    del frame
    if caught:
      raise KeyboardInterrupt
    caught.append(number)

  try:
    before = {
      s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)
    }
  except ValueError:  # not in the main thread: the caller handles signals
    yield caught
    return
  try:
    yield caught
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
