"""The command line: python -m graphgpo_jax credit | stats | draw | ..."""

import argparse
import json
import os
import sys

from graphgpo_jax import commands, metrics, states
from graphgpo_jax import credit as credits
from graphgpo_jax import draw as drawing
from graphgpo_jax import log as logs
from graphgpo_jax.commands import CommandError


class Parser(argparse.ArgumentParser):
  """Errors without the usage text."""

  def error(self, message):
    raise CommandError(message)


def main(arguments: list[str] | None = None) -> None:
  """Runs a command; exits with 2 and one line on stderr if it can't."""
  try:
    sys.path.append(os.getcwd())  # schemes by dotted path lie where one works
    try:
      options = _parser().parse_args(arguments)
      options.run(options)
    finally:
      sys.stdout.flush()
  except BrokenPipeError:  # the reader has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except KeyboardInterrupt:
    sys.exit(130)
  except Exception as problem:  # whatever it is, the user gets one line
    fail('graphgpo', problem)


def fail(program: str, problem: Exception) -> None:
  """Says in one line on stderr what is wrong, and exits with 2."""
  words = ' '.join(str(problem).split()) or type(problem).__name__
  if not isinstance(problem, ValueError | OSError):
    words = f'{type(problem).__name__}: {words}'
  if len(words) > 1000:
    words = f'{words[:500]} ... {words[-400:]}'
  if sys.stderr:
    print(f'{program}: error: {words}', file=sys.stderr)
  sys.exit(2)


def _parser():
  parser = Parser(prog='graphgpo', description=__doc__, allow_abbrev=False)
  names = parser.add_subparsers(required=True, metavar='COMMAND')

  def command(name, run, words):
    added = names.add_parser(
      name, help=words, description=words, allow_abbrev=False
    )
    added.set_defaults(run=run)
    return added

  credit = command('credit', _credit, 'add advantages to a rollout log')
  credit.add_argument('log', help='rollout log, JSONL')
  commands.add_scheme_options(credit)
  credit.add_argument('--out', required=True, help='log to write')
  stats = command('stats', _stats, 'describe the state graphs of a log')
  stats.add_argument('log', help='rollout log, JSONL')
  stats.add_argument('--json', action='store_true', help='as one JSON object')
  commands.add_merge_option(stats)
  drawing.add_arguments(
    command('draw', drawing.run, 'draw who gets which credit')
  )
  play = command('play', _play, 'show what a trained policy does')
  play.add_argument('--checkpoint', required=True, help='folder of a run')
  play.add_argument('--episodes', type=int, default=3, help='held-out tasks')
  play.add_argument('--first', type=int, default=0, help='first task')
  play.add_argument('--greedy', action='store_true', help='likeliest actions')
  tasks = command('tasks', _tasks, 'make the tasks of a config, count them')
  tasks.add_argument('--config', required=True, help='FILE[:ARGUMENT]')
  export = command('export', _export, 'write the model of a run for others')
  export.add_argument('--checkpoint', required=True, help='folder of a run')
  export.add_argument('--out', required=True, help='Hugging Face folder')
  export.add_argument('--dtype', help='float32 or bfloat16')
  convert = command('convert', _convert, "read other frameworks' rollouts")
  convert.add_argument('file', help='what the other framework saved')
  convert.add_argument(
    '--from', dest='source', required=True, choices=('verl-agent', 'tunix')
  )
  convert.add_argument('--out', required=True, help='rollout log to write')
  convert.add_argument(
    '--success-reward', type=float, help='sum of rewards that is a success'
  )
  return parser


def _credit(options):
  scheme = options.scheme or 'graphgpo'
  credit_fn = credits.bind(
    scheme, preset=options.preset, **commands.settings(options.set)
  )
  log, steps = commands.read(options.log, options.merge)
  if steps.attempt.max() == 0:
    raise CommandError(
      f"{log.path}: field 'task': every task has a single attempt, allowed: "
      'at least one task with two, or there is nothing to compare'
    )
  commands.check_out(options.out)
  results = commands.run_scheme(log, steps, scheme, credit_fn)
  names = ['advantage']
  if credits.uses_graph(scheme):
    names += ['distance', 'next_distance']
  logs.write_results(options.out, log, {k: results[k] for k in names})


def _stats(options):
  log, steps = commands.read(options.log, options.merge)
  results = credits.credit_steps(steps, credits.bind('grpo'))
  table = metrics.graph_statistics(steps, results)
  if options.merge:
    table |= metrics.merge_statistics(states.index_steps(log.table), steps)
  if options.json:
    print(json.dumps(table))
    return
  width = max(map(len, table))
  for name, value in table.items():
    text = f'{value:.4g}' if isinstance(value, float) else str(value)
    print(f'{name:{width}}  {"-" if value is None else text}')


def _restore(folder):
  """The fixed parts of a run on the devices here, and its last state."""
  import jax
  import ml_collections

  from graphgpo_jax import checkpoint, setup

  folder = os.path.join(folder, 'checkpoints')
  _, record = checkpoint.read_record(folder)
  record['config'] |= {'mesh': {'data': -1, 'fsdp': 1, 'tensor': 1}}
  # Nothing is trained here: sizes need not fit the devices.
  record['config']['batch']['micro_batch_rows'] *= jax.device_count()
  run, state = setup.build(ml_collections.ConfigDict(record['config']))
  with checkpoint.open_checkpoints(folder) as manager:
    _, state, *_ = checkpoint.begin(
      run.config, manager, state, resume=True, allow_changed_config=True
    )
  return run, state


def _play(options):
  import jax

  from graphgpo_jax import evaluate, setup

  run, state = _restore(options.checkpoint)
  policy = setup.policy(
    run,
    state,
    temperature=run.config.sampling.temperature,
    greedy=options.greedy,
  )
  count = run.panel.num_tasks
  if options.first < 0 or not 0 < options.episodes <= count - options.first:
    raise CommandError(f'--first, --episodes: the panel has {count} tasks')
  with jax.default_matmul_precision(setup.PRECISION):
    for task in range(options.first, options.first + options.episodes):
      key = jax.random.fold_in(run.key, task)
      for text in evaluate.play(policy, run.panel, task, key):
        print(text, end='\n\n')


def _tasks(options):
  import collections

  from graphgpo_jax import config, setup

  path, _, argument = options.config.partition(':')
  environments = setup.make_environments(config.load(path, argument).env)
  for split, env in zip(('train', 'panel'), environments):
    names = map(env.task_name, range(env.num_tasks))
    kinds = collections.Counter(name.partition('-')[0] for name in names)
    print(f'{split}  {env.num_tasks}')
    for kind, count in sorted(kinds.items()):
      print(f'  {kind}  {count}')


def _export(options):
  from graphgpo_jax.models import parameters, weights

  run, state = _restore(options.checkpoint)
  source = run.config.model.get('checkpoint')
  weights.save(
    options.out,
    parameters.join(state.params, run.frozen),
    run.decoder_config,
    like=source if source and os.path.isdir(source) else None,
    dtype=options.dtype,
  )


def _convert(options):
  from graphgpo_jax import convert

  words = convert.convert(
    options.file,
    options.source,
    options.out,
    success_reward=options.success_reward,
  )
  print(words)
