"""The command draw: every picture, and errors of one line."""

import json

import numpy as np
import pytest
import shell
from rollouts import attempt_rows

from graphgpo_jax import draw, plots
from graphgpo_jax import log as logs
from graphgpo_jax.credit import credit_log

ROWS = [
  *attempt_rows('abcg', attempt='one'),
  *attempt_rows('abad', attempt='two', success=False),
  *attempt_rows('xyz', task='other', attempt=1),
  *attempt_rows('xz', task='other', attempt='1', success=False),
  *attempt_rows('xyx', task='other', attempt=2, success=False),
]


def run(folder, *arguments):
  """Exit code, with the log written first."""
  logs.write_log(folder / 'log.jsonl', ROWS)
  return shell.run('draw', folder / 'log.jsonl', *arguments)


@pytest.mark.parametrize(
  'picture, options, title',
  [
    ('graph', '--task x', 'task x: 4 states, 2 attempts, 6 steps'),
    (
      'attempt',
      '--task x --attempt two',
      'task x, attempt two: 3 steps, failed',
    ),
    ('distance', '--task x', 'x: 6 steps, 0 of them with no path'),
    ('distance', '', '2 tasks: 11 steps, 0 of them with no path'),
    ('heat', '--task other --scheme grpo', 'task other: 3 attempts, 1 (★)'),
    (
      'correlation',
      '--compare grpo,gigpo',
      'advantages of 11 steps of 2 tasks',
    ),
    (
      'correlation',
      '--task x --compare grpo,gigpo',
      'advantages of 6 steps of',
    ),
  ],
)
def test_every_picture(picture, options, title, tmp_path, monkeypatch):
  figures = []
  monkeypatch.setattr(
    plots, 'save', lambda figure, path: figures.append(figure)
  )
  arguments = *options.split(), '--picture', picture, '--out', 'a.png'
  assert run(tmp_path, *arguments) == 0
  (figure,) = figures
  titles = figure.get_suptitle(), figure.axes[0].get_title()
  assert any(words.startswith(title) for words in titles)


def test_html_is_a_page_to_explore(tmp_path):
  out = tmp_path / 'page.html'
  assert (
    run(tmp_path, '--task', 'x', '--compare', 'grpo,gigpo', '--out', out) == 0
  )
  text = out.read_text()
  assert '<html' in text and 'task x' in text
  data = json.loads(text.split('id="data">')[1].split('</script>')[0])
  names = data['actions']['text']
  ways = [names[i] for i in data['steps']['action']]
  assert ways == ['to b', 'to c', 'to g', 'to b', 'to a', 'to d']


@pytest.mark.parametrize(
  'options, message',
  [
    ('--task x --attempt one', '--attempt: goes with --picture attempt'),
    ('--task x --picture attempt', '--attempt: goes with --picture attempt'),
    ('--task x --picture attempt --attempt 3', "'3', allowed: one, two"),
    (
      '--task other --picture attempt --attempt 1',
      '1 is the id of two attempts, a text and an integer',
    ),
    ('--picture heat', '--task: found nothing'),
    ('', '--task: found nothing'),
    ('--task x --picture pie', "invalid choice: 'pie'"),
    ('--task x --picture correlation', 'goes with --compare, two schemes'),
    ('--task x --picture heat --out a.html', 'not with html'),
    ('--task x --compare gigpo --set eps=0', '--set: goes with --scheme'),
    ('--task x --out a.gif', "'.gif', allowed: .png, .svg, .pdf, .html"),
  ],
)
def test_errors_are_one_line(options, message, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  out = [] if '--out' in options else ['--out', 'a.png']
  assert run(tmp_path, *options.split(), *out) == 2
  error = capsys.readouterr().err
  assert error.startswith('graphgpo: error: ') and error.count('\n') == 1
  assert message in error
  assert [path.name for path in tmp_path.iterdir()] == ['log.jsonl']


def test_pictures_that_can_not_be_are_refused_before_the_credit(
  tmp_path, monkeypatch, capsys
):
  def fail(*arguments):
    raise AssertionError('computed')

  monkeypatch.setattr(draw, 'run_scheme', fail)
  monkeypatch.chdir(tmp_path)
  rows = [row | {'credited': False} for row in ROWS]
  logs.write_log(tmp_path / 'earlier.jsonl', rows)
  (tmp_path / 'a.png').mkdir()
  for name, options, message in (
    ('log', '--task x --out no/a.png', 'no such folder'),
    ('log', '--task x --out a.png', 'not a plain file'),
    (
      'earlier',
      '--picture distance --out b.png',
      "earlier.jsonl: field 'credited': false on all steps",
    ),
  ):
    logs.write_log(tmp_path / 'log.jsonl', ROWS)
    assert shell.run('draw', f'{name}.jsonl', *options.split()) == 2
    error = capsys.readouterr().err
    assert message in error and error.count('\n') == 1


def test_a_log_of_one_task_needs_no_name(tmp_path):
  logs.write_log(tmp_path / 'log.jsonl', ROWS[:6])
  out = tmp_path / 'a.svg'
  assert shell.run('draw', tmp_path / 'log.jsonl', '--out', out) == 0
  assert out.read_text().startswith('<?xml')


def test_a_picture_has_the_credit_of_the_whole_log(tmp_path, monkeypatch):
  seen = []
  monkeypatch.setattr(plots, 'credit_heat_map', lambda *a, **k: seen.append(a))
  monkeypatch.setattr(plots, 'save', lambda figure, path: None)
  failed = [row | {'success': False} for row in ROWS[:6]]
  rows = failed + ROWS[6:]  # of two tasks one fails
  logs.write_log(tmp_path / 'log.jsonl', rows)
  options = '--picture', 'heat', '--scheme', 'progress', '--task', 'x'
  path = tmp_path / 'log.jsonl', '--out', 'a.png'
  assert shell.run('draw', *path, *options) == 0
  ((_, _, results),) = seen
  expected = credit_log(rows, 'progress')[:6]
  np.testing.assert_allclose(results['progress']['advantage'][:6], expected)
  assert abs(expected).max() > 0


def test_ids_do_nothing_to_the_terminal(tmp_path, capsys):
  rows = attempt_rows('ab', task='\x1b[31m') + attempt_rows('ab', task='\ud800')
  logs.write_log(tmp_path / 'log.jsonl', rows)
  arguments = 'draw', tmp_path / 'log.jsonl', '--task', 'x', '--out', 'a.png'
  assert shell.run(*arguments) == 2
  assert r"allowed: '\x1b[31m', '\ud800'" in capsys.readouterr().err


def test_attempts_are_found_by_the_ids_of_the_log(tmp_path, monkeypatch):
  seen = []
  monkeypatch.setattr(plots, 'attempt_path', lambda *a, **k: seen.append(a[2]))
  monkeypatch.setattr(plots, 'save', lambda figure, path: None)
  options = '--task', 'other', '--picture', 'attempt', '--out', 'a.png'
  assert run(tmp_path, *options, '--attempt', '2') == 0
  assert seen == [1]  # numbers before texts: 1, 2, '1'
