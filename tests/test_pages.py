"""Pages to explore: what is in the file, and what its script makes of it."""

import html.parser
import json
import pathlib
import re
import shutil
import subprocess

import numpy as np
import pytest
import reference
from matplotlib.colors import to_hex

from graphgpo_jax import log, pages, states
from graphgpo_jax.plots import COLOURS

# Elements that have no end.
VOID = {'meta', 'input', 'br', 'path', 'rect', 'circle', 'polygon'}
NASTY = (
  '</script><b a="1">\'&amp; {{data}}\n\x00\x1b\u202e\u2028 \ud800 caf\u00e9'
)

BROWSER = pathlib.Path(__file__).with_name('browser.js')


class Tree(html.parser.HTMLParser):
  """[tag, [[attribute, value]], [child or text]], and the tags seen."""

  def __init__(self, text):
    super().__init__()
    self.root = ['root', [], []]
    self.open = [self.root]
    self.tags = []
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    self.tags.append(tag)
    node = [tag, [[k, v or ''] for k, v in attributes], []]
    self.open[-1][2].append(node)
    if tag not in VOID:
      self.open.append(node)

  def handle_endtag(self, tag):
    if tag not in VOID:
      assert self.open.pop()[0] == tag

  def handle_data(self, data):
    self.open[-1][2].append(data)


def write(path, rows, advantages=None, **keywords):
  table = log.columns(rows)
  raw, _ = reference.raw_distances(rows)
  shared = {
    'distance': reference.distances(rows)[0].astype(np.float32),
    'reachable': np.isfinite(raw),
  }
  if advantages is None:
    advantages = {'grpo': reference.grpo(rows), 'G': reference.graphgpo(rows)}
  results = {
    k: {'advantage': np.array(a, np.float32)} | shared
    for k, a in advantages.items()
  }
  steps = states.index_steps(table)
  keywords = {'actions': table['action'], **keywords}
  pages.explore(steps, 0, results, path, **keywords)
  text = path.read_text('utf-8')
  return text, json.loads(text.split('id="data">')[1].split('</script>')[0])


def run(text, play):
  """What an expression is after the page's script, in a browser's stead."""
  node = shutil.which('node')
  if node is None:
    pytest.skip('no node to run the script with')
  tree = Tree(text)
  assert tree.open == [tree.root]
  fed = json.dumps({'page': tree.root, 'play': play})
  done = subprocess.run(
    [node, BROWSER], input=fed, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


def rows_of(*attempts, success=()):
  """Rows of attempts, each a list of (state, action, next state)."""
  rows = []
  for attempt, path in enumerate(attempts):
    for t, (state, action, after) in enumerate(path):
      last = t + 1 == len(path)
      won = last and attempt in success
      row = {'task': 't', 'attempt': attempt, 'step': t, 'state': state}
      row |= {'action': action, 'next_state': after, 'reward': float(won)}
      row |= {'success': won, 'terminal': last, 'truncated': False}
      rows.append(row | {'valid': True})
  return rows


@pytest.fixture(scope='module')
def toy(tmp_path_factory):
  path = tmp_path_factory.mktemp('pages') / 'toy.html'
  return (*write(path, reference.toy_rows()), path)


def test_the_numbers_are_those_of_the_results(toy):
  _, data, _ = toy
  rows = reference.toy_rows()
  assert data['schemes'] == ['grpo', 'G']
  nodes, steps = data['nodes'], data['steps']
  assert nodes['text'] == ['A', 'B', 'C', 'D', 'E']
  assert nodes['distance'] == [0, 2, 1, 3, None, None]
  assert nodes['filled'] == 4
  assert nodes['visits'] == [2, 5, 2, 4, 2, 1]
  for scheme, name in ((reference.grpo, 0), (reference.graphgpo, 1)):
    expected = np.array(scheme(rows))
    found = np.array(steps['advantage'][name])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-9)
    a1 = [i for i, row in enumerate(rows) if row['action'] == 'a1']
    edge = steps['edge'][a1[0]]
    mean = data['edges']['mean'][name][edge]
    np.testing.assert_allclose(mean, expected[a1].mean(), rtol=2e-5)
    assert data['edges']['count'][edge] == len(a1) == 2
  assert data['attempts']['success'] == [1, 1, 0, 0]
  assert data['attempts']['name'] == ['t0', 't1', 't2', 't3']


def test_earlier_visits_do_not_dilute_an_edge(tmp_path):
  rows = rows_of([('A', 'a', 'B')], [('A', 'a', 'B')], [('B', 'b', 'A')])
  for row in rows[1:]:
    row['credited'] = False
  _, data = write(tmp_path / 'a.html', rows, {'p': [2.0, 0.0, 0.0]})
  means = dict(zip(data['edges']['count'], data['edges']['mean'][0]))
  assert means == {2: 2, 1: 0}


def test_the_file_needs_nothing_else(toy):
  text, _, _ = toy
  assert 'http' not in text and '@import' not in text and 'url(' not in text
  assert not re.search(r'\b(src|href|srcset|action)\s*=\s*"', text)
  assert 'fetch(' not in text and 'import(' not in text
  assert text.isascii() and '{{' not in text


def test_equal_input_gives_equal_bytes(toy, tmp_path):
  text, _, path = toy
  write(tmp_path / 'b.html', reference.toy_rows())
  assert (tmp_path / 'b.html').read_bytes() == path.read_bytes()
  assert list(tmp_path.iterdir()) == [tmp_path / 'b.html']


def test_elements_that_the_script_asks_for_are_there(toy):
  text, data, _ = toy
  ids = re.findall(r'\bid="(\w+)"', text)
  assert len(ids) == len(set(ids))
  asked = set(re.findall(r"byId\('(\w\w+)'\)", text))
  asked |= {f'n{n}' for n in data['shown']}
  asked |= {f'e{i}' for i in range(len(data['edges']['from']))}
  assert asked <= set(ids) and len(asked) > 12
  order = [data['nodes']['text'][n - 1] if n else 'goal' for n in data['shown']]
  assert order == ['E', 'D', 'C', 'A', 'B', 'goal']  # left to right


def test_script_colours_by_the_mean_advantage(toy):
  text, data, _ = toy
  found = run(text, 'choose("schemes", 1); colours()')
  scale = max(map(abs, data['steps']['advantage'][1]))
  for mean, colour in zip(data['edges']['mean'][1], found):
    level = np.sign(mean) * (abs(mean) / scale) ** 0.6
    expected = np.array(COLOURS(0.5 + 0.5 * level)[:3])
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    np.testing.assert_allclose(rgb, expected, atol=0.03)
  assert len(set(found)) > 3


def test_script_shows_the_path_and_the_steps_of_an_attempt(toy):
  text, data, _ = toy
  play = 'choose("attempts", 2); [cells("table"), on("on"), on("picked")]'
  table, path, picked = run(text, play)
  head, *body = table
  assert head[-4:] == ['distance before', 'distance after', 'grpo', 'G']
  assert [row[1:4] for row in body] == [
    ['1: A', 'a2', '3: C'], ['3: C', 'c2', '4: D'], ['4: D', 'd1', '5: E']
  ]  # fmt: skip
  assert [row[4] for row in body] == ['2', '3', 'no path (counts as 4)']
  expected = reference.graphgpo(reference.toy_rows())[6:9]
  assert [float(row[-1]) for row in body] == pytest.approx(expected, rel=1e-2)
  nodes = [data['nodes']['text'][int(i[1:]) - 1] for i in path if i[0] == 'n']
  assert sorted(nodes) == ['A', 'C', 'D', 'E']
  edges = sorted(data['steps']['edge'][6:9])
  assert sorted(int(i[1:]) for i in path if i[0] == 'e') == edges
  assert picked == ['graph']
  play = (
    'choose("attempts", 2); choose("attempts", -1); [cells("table"), on("on")]'
  )
  assert run(text, play) == [[], []]


def test_path_has_the_colours_of_its_own_steps(tmp_path):
  rows = rows_of([('A', 'a', 'G')], [('A', 'a', 'G')], success=(0, 1))
  text, _ = write(tmp_path / 'a.html', rows, {'x': [1, -1]})
  play = '[-1, 0, 1].map((a) => {choose("attempts", a); return colours()[0]})'
  mean, first, second = run(text, play)
  expected = [to_hex(COLOURS(share)) for share in (0.5, 1.0, 0.0)]
  assert [mean, first, second] == expected


def test_script_shows_what_is_pointed_at_and_keeps_what_is_clicked(toy):
  text, data, _ = toy
  node = 1 + data['nodes']['text'].index('D')
  details = 'get("details").textContent'
  play = f'fire("pointerover", get("n{node}")); {details}'
  words = 'visits: 2; distance to the goal: no path (counts as 4)'
  assert words in run(text, play)
  play = f'fire("click", get("n{node}")); fire("pointerover", get("n0")); '
  assert words in run(text, play + details)
  play += 'fire("keydown", get("n0"), {key: "Escape"}); '
  play += f'fire("focusin", get("n0")); {details}'
  assert run(text, play).startswith('goalvisits: 2')
  a1 = data['steps']['edge'][0]
  found = run(text, f'fire("pointerover", get("e{a1}").children[0]); {details}')
  assert found.startswith('state 1 \u2192 state 2a1')


def test_arrow_keys_go_from_left_to_right(toy):
  text, data, _ = toy
  first, second = data['shown'][:2]
  play = f'fire("keydown", get("n{first}"), {{key: "ArrowRight"}});'
  play += f'[get("n{second}").attributes.tabindex, get("details").textContent]'
  tabindex, words = run(text, play)
  assert tabindex == '0' and words.startswith(f'state {second}')


def test_texts_stay_texts(tmp_path):
  rows = rows_of([(NASTY, NASTY, 'B'), ('B', 'b', 'G')], success=(0,))
  zeros = {NASTY: [0, 0]}
  text, data = write(tmp_path / 'a.html', rows, zeros, title=NASTY)
  assert data['nodes']['text'][0] == NASTY == data['schemes'][0]
  tree = Tree(text)
  assert 'b' not in tree.tags and tree.tags.count('script') == 2
  assert text.isascii() and '\x00' not in text and '\x1b' not in text
  play = 'choose("attempts", 0); get("details").find((e) => e.tag === "pre")[0]'
  shown = run(text, play + '.textContent')
  assert shown.startswith(
    '</script><b a="1">\'&amp; {{data}}\n\u2400\u241b\ufffd'
  )


def test_large_tasks_show_the_most_visited_and_whole_tables(tmp_path):
  path = [(f's{i:04}', f'a{i}', f's{i + 1:04}') for i in range(700)]
  side = [(f's{0:04}', 'b', 'x'), ('x', 'b', 'G')]
  rows = rows_of(path, side, success=(1,))
  text, data = write(tmp_path / 'a.html', rows, {'x': np.ones(702)})
  assert len(data['shown']) == 500 and 0 in data['shown']
  assert 'Drawn: 499 of 702 states' in text and text.count('class="node') == 500
  assert (
    len(data['steps']['state']) == 702 and len(data['nodes']['text']) == 702
  )
  play = 'choose("attempts", 0); cells("table").length'
  assert run(text, play) == 701
  undrawn = sum(edge < 0 for edge in data['steps']['edge'][:700])
  play = 'choose("attempts", 0); get("caption").textContent'
  assert f'Not drawn: {undrawn} of its steps.' in run(text, play) and undrawn
  gone = min(set(range(702)) - set(data['shown']))
  found = run(text, f'showNode({gone}); get("details").textContent')
  assert 'not drawn' in found


def test_many_long_texts_are_cut_and_say_so(tmp_path):
  path = [(f'{i} ' + 'x' * 9000, 'a', f'{i + 1} ' + 'x' * 9000)
          for i in range(490)]  # fmt: skip
  rows = rows_of(path)
  text, data = write(tmp_path / 'a.html', rows, {'x': np.ones(490)})
  assert len(text) < 2e6 and len(data['nodes']['text']) == 491
  found = run(text, 'get("details").textContent')
  assert '[cut: the whole has 9002 characters]' in found


def test_without_actions_their_numbers_are_shown(tmp_path):
  _, data = write(tmp_path / 'a.html', reference.toy_rows(), actions=None)
  names = data['actions']['text']
  steps = data['steps']['action']
  assert all(re.fullmatch(r'#\d', name) for name in names)
  assert steps[0] != steps[2] and steps[0] == steps[4]


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'task': 3}, 'task: found 3, allowed: 0..0'),
    ({'results': {}}, 'results: empty, at least one'),
    ({'results': {'x': {'advantage': np.full(12, np.nan)}}}, 'x: an adv'),
    ({'results': {'x': {'advantage': np.ones(12)}}}, 'none has both'),
    ({'actions': ['a']}, 'actions: found 1, allowed: one per row'),
  ],
)
def test_errors_say_what_is_wrong(tmp_path, change, words):
  rows = reference.toy_rows()
  fields = ('distance', 'reachable', 'advantage')
  result = dict.fromkeys(fields, np.ones(12)) | {'reachable': np.ones(12, bool)}
  given = {'task': 0, 'results': {'y': result}}
  steps = states.index_steps(log.columns(rows))
  path = tmp_path / 'a.html'
  with pytest.raises(ValueError, match=re.escape(words)) as caught:
    pages.explore(steps, path=path, **(given | change))
  assert '\n' not in str(caught.value) and not path.exists()
