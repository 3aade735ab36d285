"""The command draw: pictures of who gets which credit, or a page to explore."""

import os

from graphgpo_jax import credit as credits
from graphgpo_jax import states
from graphgpo_jax.commands import (
  CommandError,
  add_scheme_options,
  check_out,
  read,
  run_scheme,
  settings,
)

PICTURES = {
  'graph': 'all credit on the graph of the task',
  'attempt': 'one attempt on the greyed graph',
  'distance': 'advantages by distance to the goal',
  'heat': 'advantages, attempts x steps',
  'correlation': 'rank correlations between schemes',
}
OF_A_LOG = ('distance', 'correlation')  # of all tasks if none is named
SUFFIXES = ('.png', '.svg', '.pdf', '.html')


def add_arguments(parser) -> None:
  """Adds the command's options."""
  parser.add_argument('log', help='rollout log, JSONL')
  words = ' and '.join(OF_A_LOG)
  parser.add_argument(
    '--task', help=f'id of the task in the log; {words} can do without'
  )
  add_scheme_options(parser)
  parser.add_argument('--compare', help='schemes, separated by commas')
  parser.add_argument(
    '--picture',
    choices=PICTURES,
    help='; '.join(f'{name}: {words}' for name, words in PICTURES.items()),
  )
  parser.add_argument('--attempt', help='id of the attempt in the log')
  parser.add_argument(
    '--out', required=True, help='picture: png, svg or pdf; or a page: html'
  )


def run(options) -> None:
  """Draws what the options ask for.

  Raises:
    CommandError: options that do not go together, or ids not in the log.
    ValueError: a row breaks a rule of the log.
    OSError: the log can't be read, or no picture be written.
  """
  functions = _functions(options)
  _check(options)
  log, steps = read(options.log, options.merge)
  task = _find(log, '--task', options.task, list(steps.tasks))
  if task is None and options.picture not in OF_A_LOG:
    task = _only(log, steps.tasks)
  shared = {
    name: credits.shared_settings(steps, function)
    for name, function in functions.items()
  }
  if task is not None:
    steps = states.select(steps, [task])
  if options.picture in OF_A_LOG and not steps.credited.any():
    raise CommandError(
      f"{log.path}: field 'credited': false on all steps, allowed for "
      f'--picture {" and ".join(OF_A_LOG)}: true on some'
    )
  attempt = None
  if options.picture == 'attempt':
    attempt = _find(log, '--attempt', options.attempt, steps.attempts[0])
  results = {
    name: run_scheme(log, steps, name, function, shared=shared[name])
    for name, function in functions.items()
  }
  if _suffix(options) == '.html':
    from graphgpo_jax import pages

    words = {'title': f'task {steps.tasks[0]}', 'actions': log.table['action']}
    pages.explore(steps, 0, results, options.out, **words)
  else:
    _picture(options, steps, attempt, results)


def _functions(options):
  """Name -> scheme with its settings."""
  names = [options.scheme or 'graphgpo']
  if options.compare:
    names = options.compare.split(',')
    if options.scheme or len(set(names)) < len(names):
      raise CommandError(
        f'--compare: found {options.compare!r}, allowed: different schemes, '
        'and no --scheme beside it'
      )
  chosen = settings(options.set)
  if options.compare and chosen:
    raise CommandError('--set: goes with --scheme, not with --compare')
  if options.picture == 'correlation' and len(names) < 2:
    raise CommandError(
      '--picture correlation: goes with --compare, two schemes or more'
    )
  return {
    name: credits.bind(name, preset=options.preset, **chosen) for name in names
  }


def _suffix(options):
  return os.path.splitext(options.out)[1].lower()


def _check(options):
  """Raises CommandError for options that do not go together."""
  if os.path.exists(options.out) and os.path.samefile(options.log, options.out):
    raise CommandError(f'--out: {options.out} is the log itself')
  picture = options.picture or 'graph'
  suffix = _suffix(options)
  if suffix not in SUFFIXES:
    allowed = ', '.join(SUFFIXES)
    raise CommandError(f'--out: found suffix {suffix!r}, allowed: {allowed}')
  if options.picture and suffix == '.html':
    raise CommandError('--picture: goes with png, svg and pdf, not with html')
  if (options.attempt is None) == (picture == 'attempt'):
    raise CommandError(
      '--attempt: goes with --picture attempt, and this one needs it'
    )
  check_out(options.out)


def _only(log, ids):
  """The number of the task where there is one; else it has to be named."""
  if len(ids) > 1:
    pictures = ' and '.join(OF_A_LOG)
    raise CommandError(
      f'{log.path}: --task: found nothing, allowed for {len(ids)} tasks: one '
      f'of their ids, or --picture {pictures}'
    )
  return 0


def _find(log, option, wanted, ids):
  """The number of an id of the log; None if none is wanted."""
  if wanted is None:
    return None
  texts = [str(i) for i in ids]
  if wanted not in texts:
    shown = [t if t.isprintable() else ascii(t) for t in texts[:5]]
    some = ', '.join(shown) + (', ...' if len(texts) > 5 else '')
    raise CommandError(
      f'{log.path}: {option}: found {wanted!r}, allowed: {some}'
    )
  if texts.count(wanted) > 1:
    noun = option.lstrip('-')
    raise CommandError(
      f'{log.path}: {option}: {wanted} is the id of two {noun}s, a text and '
      'an integer'
    )
  return texts.index(wanted)


def _picture(options, steps, attempt, results):
  from graphgpo_jax import plots  # matplotlib takes half a second to load

  picture = options.picture or 'graph'
  title = {'title': f'task {options.task}'}
  if picture == 'attempt':
    figure = plots.attempt_path(steps, 0, attempt, results, **title)
  elif picture == 'distance':
    task = None if options.task is None else 0
    figure = plots.advantage_by_distance(steps, results, task=task)
  elif picture == 'heat':
    figure = plots.credit_heat_map(steps, 0, results, **title)
  elif picture == 'correlation':
    figure = plots.scheme_correlation(steps, results)
  else:
    figure = plots.credit_graph(steps, 0, results, **title)
  plots.save(figure, options.out)
