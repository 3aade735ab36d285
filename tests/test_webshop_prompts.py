"""WebShop in words: prompts, replies and oracles of both styles."""

import pytest
import webshops
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgpo_jax.envs.webshop import make
from graphgpo_jax.models.words import WordTokenizer


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
  return tmp_path_factory.mktemp('cache')


@pytest.fixture(scope='module')
def shop(cache):
  """Tasks of a shirt and a sweater, among eleven socks."""
  products = [webshops.SHIRT, webshops.SWEATER, *map(webshops.sock, range(11))]
  files = webshops.write(cache / 'files', products)
  settings = {'seed': 0, 'products': None, 'source': files, 'cache': cache}
  return make(split='train', test=1, **settings)


@pytest.fixture(scope='module')
def tiny(cache):
  return make(
    split='panel', seed=0, products=150, test=60, prompt='compact', cache=cache
  )


def task(env, asin='B000000001', color='navy | blue', size='large'):
  wanted = {('color', color), ('size', size)}
  for index in range(env.num_tasks):
    goal = env.goal(index)
    if goal.product.asin == asin and set(goal.options) in (wanted, set()):
      return index
  raise AssertionError('no such task')


def play(env, index, *actions):
  """The first observation and the outcomes."""
  found = env.reset([index])
  return [*found, *(env.step([0], [action])[0] for action in actions)]


def test_chat_prompt(shop):
  first, after = play(shop, task(shop), 'search[cotton shirt]')
  goal = shop.goal(task(shop)).instruction
  seen = [(first, 'x' * 300), (first, 'search[cotton shirt]')]
  prompt = shop.prompt(seen, after.observation)
  assert (
    prompt
    == f"""\
You are shopping in a web shop. You have to buy a product that fits this \
instruction:
{goal}
You have taken 2 steps. The last 2, each with the page it was taken on:
Page 1:
WebShop
[button] Search [button_]
Action 1: no valid action
Page 2:
WebShop
[button] Search [button_]
Action 2: search[cotton shirt]
You are at step 3, on this page:
[button] Back to Search [button_]
Page 1 (Total results: 1)
[button] Next > [button_]

[button] B000000001 [button_]
Red Cotton Shirt for Men
$23.99
You may take one of these actions:
click[back to search]
click[next >]
click[b000000001]
Think inside <think></think>, then answer with one action inside \
<action></action>."""
  )
  for action, said in [
    (f'search[{"y" * 300}]', f'search[{"y" * 193}\n'),
    ('search[a <|im_end|> b]', 'search[a im_end b]\n'),
    ('search[a\nb]', 'no valid action\n'),
    ('click[search]', 'click[search]\n'),
    ('click[<|im_end|>]', 'no valid action\n'),
  ]:
    repeated = shop.prompt([(first, action)], after.observation)
    assert f'\nAction 1: {said}' in repeated
  assert 'Action 1' not in shop.prompt([*seen, seen[0]], after.observation)
  assert 'steps' not in shop.prompt([], first)
  shorter = shop.prompt(seen, after.observation, hidden=1)
  assert 'You have taken 2 steps. The last 1, each' in shorter
  assert 'Page 1:' not in shorter and 'Page 2:\n' in shorter
  nothing = shop.prompt(seen, after.observation, hidden=2)
  assert 'Page 2:' not in nothing and 'You are at step 3, on' in nothing


@pytest.mark.parametrize(
  'reply, action, valid',
  [
    (
      '<think>a</think><action>search[Red Shirt]</action>',
      'search[red shirt]',
      True,
    ),
    (
      '<think>a</think><action> CLICK[Buy Now]\n</action>',
      'click[buy now]',
      True,
    ),
    ('<action>click[red]</action>', 'click[red]', False),
    ('<think>a</think><action>buy</action>', None, False),
    ('<think>a</think><action>click[]</action>', None, False),
    ('<think>a</think><action>I click[red]</action>', None, False),
    ('click[red]', None, False),
  ],
)
def test_parse_chat(shop, reply, action, valid):
  assert shop.parse(reply) == (action or reply, valid)


def test_chat_oracle(shop):
  plans = [shop.solution(index) for index in range(shop.num_tasks)]
  for index, plan in enumerate(plans):
    shop.reset([index])
    for action in plan:
      assert shop.parse(shop.reply(action)) == (action, True)
      (outcome,) = shop.step([0], [action])
      assert outcome.valid
    assert outcome.success


def test_compact_oracle_and_alphabet(tiny):
  tokenizer = WordTokenizer(tiny.alphabet)
  assert len(tiny.alphabet) < 2000
  observations = tiny.reset(range(tiny.num_tasks))
  plans = [tiny.solution(index) for index in range(tiny.num_tasks)]
  for step in range(max(map(len, plans))):
    slots = [i for i, plan in enumerate(plans) if step < len(plan)]
    for i in slots:
      prompt = tiny.prompt([], observations[i])
      reply = tiny.reply(plans[i][step])
      assert tiny.parse(reply) == (plans[i][step], True)
      assert tokenizer.decode(tokenizer.encode_reply(reply)) == reply
      ids = tokenizer.encode_prompt(prompt)
      assert tokenizer.decode(ids) == prompt and len(ids) <= 100
    for i, outcome in zip(
      slots, tiny.step(slots, [plans[i][step] for i in slots])
    ):
      assert outcome.valid
      observations[i] = outcome.observation
      assert outcome.success == (step + 1 == len(plans[i]))


def test_compact_pages(tiny):
  index, text = 0, {}
  goal = tiny.goal(index)
  wanted = f'find {" ".join(goal.attributes)} {goal.product.query}'
  options = ' '.join(' '.join(pair) for pair in goal.options)
  first = f'{wanted} {options} under {goal.cap:.0f}'
  (start,) = tiny.reset([index])
  assert tiny.prompt([], start) == f'{first}\nsearch\n>'
  assert start.admissible == ('search <your query>',)
  search, link, *_ = tiny.solution(index)
  rank = link.split()[1]
  for action in (search, link, 'features', 'prev', 'prev'):
    (outcome,) = tiny.step([0], [action])
    text[action] = outcome.observation.text.splitlines()
    assert outcome.valid and text[action][0] == first
  (line,) = [x for x in text[search] if x.startswith(f'{rank} ')]
  assert len(line.split()) == 5 and f'{line} visited' in text['prev']
  assert text[link][1:] == [
    f'item {line.partition(" ")[2]}',
    *text[link][2:4],
    'chosen',
  ]
  assert text['features'][2].startswith('features ')
  _, second, *options, _ = tiny.solution(index)
  assert tiny.step([0], [second])[0].valid
  values = []
  for action in options:
    values.append(action.split()[1])
    (outcome,) = tiny.step([0], [action])
    lines = outcome.observation.text.splitlines()
    assert lines == [*text[link][:4], f'chosen {" ".join(values)}']
  tiny.step([0], ['prev'])
  for action in ('click 11', 'click 0', 'click ²', 'buy', 'click red'):
    assert not tiny.step([0], [action])[0].valid
  tiny.reset([index])
  for action in ('search[shirt]', 'Search shirt', 'click[search]'):
    assert not tiny.step([0], [action])[0].valid
  assert tiny.parse(' Click  3 ') == ('click 3', True)
  for reply in ('', 'click', 'search', 'buy now', 'red shirt', '\ud800'):
    assert tiny.parse(reply) == (reply, False)


WORDS = ['search', 'click', 'buy', 'prev', 'next', 'back', 'features', '1', '2']


@settings(max_examples=30, deadline=None)
@given(
  st.lists(
    st.sampled_from([*WORDS, 'black', 'mini', 'shirt', '>']), max_size=60
  )
)
def test_any_words_stay_within_the_alphabet(tiny, words):
  """Whatever a policy of these words does, the next prompt can be encoded."""
  tokenizer = WordTokenizer(tiny.alphabet)
  tiny.reset([1])
  for start in range(0, len(words), 2):
    action, _ = tiny.parse(' '.join(words[start : start + 2]))
    (outcome,) = tiny.step([0], [action])
    assert tokenizer.encode_prompt(tiny.prompt([], outcome.observation))
    if outcome.terminal or outcome.truncated:
      break
