"""What chat models are shown and how their replies are read."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgpo_jax.envs import prompts
from graphgpo_jax.envs.base import Environment
from graphgpo_jax.envs.sokoban import ALPHABET, Sokoban, make, read_levels
from graphgpo_jax.envs.sokoban_levels import ACTIONS

CORRIDOR = ['#######', '#PX_O_#', '#######']
THOUGHT = '<think>a</think>'
ACTION = '<action>up</action>'


def chat(**options):
  return Sokoban(read_levels([CORRIDOR]), prompt='chat', **options)


@pytest.mark.parametrize(
  'reply, action, valid',
  [
    (THOUGHT + ACTION, 'up', True),
    (
      '<think>a\nb</think>\n\n<action>\n Go  TO\tbed </action>',
      'Go TO bed',
      True,
    ),
    (f'Well, {THOUGHT} then {ACTION} it is.', 'up', True),
    ('<think>1 < 2 </ think> <b></think>' + ACTION, 'up', True),
    # The action can be read, but the thought is missing, empty or elsewhere.
    (ACTION, 'up', False),
    ('<think></think>' + ACTION, 'up', False),
    ('<think> \n\u3000</think>' + ACTION, 'up', False),
    (ACTION + THOUGHT, 'up', False),
    (f'<think>{ACTION}</think>', 'up', False),
    ('<think>a' + ACTION, 'up', False),
    ('a</think>' + ACTION, 'up', False),
    ('</think>a<think>' + ACTION, 'up', False),
    (THOUGHT * 2 + ACTION, 'up', False),
    (f'<think><think>a</think></think>{ACTION}', 'up', False),
    ('<THINK>a</THINK>' + ACTION, 'up', False),
    (THOUGHT + ACTION + '<think>', 'up', False),
  ],
)
def test_replies_with_an_action(reply, action, valid):
  assert prompts.parse_tagged(reply) == (action, valid)


@pytest.mark.parametrize(
  'reply',
  [
    *('', 'up', THOUGHT, THOUGHT + 'up', '<action>', '</action><action>'),
    *(
      THOUGHT + ACTION * 2,
      ACTION + '<action>',
      THOUGHT + '</action>' + ACTION,
    ),
    *(THOUGHT + '<action>up', THOUGHT + 'up</action>', '\x00', '\ud800'),
    THOUGHT + '<action></action>',
    THOUGHT + '<action> \n </action>',
    '<action>' + THOUGHT + 'up</action>',
    f'{THOUGHT}<action>{ACTION}</action>',
    THOUGHT + '< action>up</action>',
  ],
)
def test_replies_without_one_action_come_back(reply):
  assert prompts.parse_tagged(reply) == (reply, False)
  assert chat().parse(reply) == (reply, False)


PIECES = ['<think>', '</think>', '<action>', '</action>', '<', '>', 'up', ' ']


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*PIECES, 'b', '√', '\x00', '\ud800'])))
def test_any_pieces_against_splitting(parts):
  """Cuts at each tag in turn, which names the pieces in between."""
  reply = ''.join(parts)
  action, valid = prompts.parse_tagged(reply)
  blocks = reply.split('<action>')
  ends = [block.split('</action>') for block in blocks]
  inside = ends[1][0] if len(ends) == 2 and len(ends[1]) == 2 else ''
  has_one = (
    inside.strip()
    and len(ends[0]) == 1
    and not any(tag in inside for tag in PIECES[:4])
  )
  assert action == (' '.join(inside.split()) if has_one else reply)
  front = reply.split('<action>')[0]
  thoughts = front.split('<think>')
  is_thought = (
    reply.count('<think>') == reply.count('</think>') == 1
    and len(thoughts) == 2
    and '</think>' in thoughts[1]
    and thoughts[1].split('</think>')[0].strip()
  )
  assert valid == bool(has_one and is_thought)
  env = chat()
  env.reset([0])
  said, known = env.parse(reply)
  assert said in ACTIONS if known else said in (reply, 'up')
  env.step([0], [said])


@pytest.mark.parametrize(
  'piece', ['<think>', '<action>', '<', '</', '<think></', ' ', 'a\x00', '√']
)
def test_long_replies_take_linear_time(piece):
  reply = piece * (2_000_000 // len(piece))
  start = time.process_time()
  assert prompts.parse_tagged(reply) == (reply, False)
  whole = THOUGHT + reply.replace('<', '(') + ACTION
  assert prompts.parse_tagged(whole) == ('up', True)
  # A tenth of it is plenty; quadratic time would be days.
  assert time.process_time() - start < 10


def test_sokoban_knows_its_actions_only():
  env = chat()
  for word in ACTIONS:
    for spelt in (word, word.upper(), f'\n {word.title()} '):
      reply = prompts.tagged_reply('I see a box.', spelt)
      assert env.parse(reply) == (word, True)
    assert env.parse(env.reply(word)) == (word, True)
    assert env.parse(f'<action>{word}</action>') == (word, False)
  for action in ('u', 'jump', 'up down', 'u p', 'ｕｐ', '√'):
    reply = prompts.tagged_reply('Hm', action)
    assert env.parse(reply) == (reply, False)


def test_chat_prompt_of_sokoban():
  env = chat()
  assert isinstance(env, Environment) and env.alphabet == ''
  (first,) = env.reset([0])
  prompt = env.prompt([], first)
  assert prompt.endswith(
    """
Now:
# # # # # # #
# P X _ O _ #
# # # # # # #
Actions: up, down, left, right
Think inside <think></think>, then answer with one action inside \
<action></action>."""
  )
  symbols = '# wall, _ floor, O target, X box, P you, √ box on target, S you on'
  assert symbols in prompt and 'Before' not in prompt
  later = env.step([0], ['right'])[0].observation
  assert """
Before:
# # # # # # #
# P X _ O _ #
# # # # # # #
You did: right
Now:
# # # # # # #
# _ P X O _ #
""" in env.prompt([(first, 'right')], later)


def test_only_the_last_steps_are_shown():
  env = chat(history=2)
  (seen,) = env.reset([0])
  # An invalid answer is not repeated, however long it is.
  long = [(seen, 'x' * 100_000), (seen, 'up'), (seen, 'jump <|im_end|>')]
  prompt = env.prompt([(seen, 'left')] * 30 + long, seen)
  assert re.findall('You did: (.*)', prompt) == [
    'up',
    'nothing, the answer was not valid',
  ]
  assert prompt == env.prompt(long, seen) and len(prompt) < 700
  assert 'jump' not in prompt and 'im_end' not in prompt
  assert chat(history=0).prompt(long, seen) == env.prompt([], seen)
  assert chat(history=9).prompt(long, seen).count('Before') == 3
  for hidden, told in enumerate([2, 2, 1, 0]):
    prompt = env.prompt(long, seen, hidden=hidden)
    assert prompt.count('Before') == told


def test_make_passes_the_prompt_on():
  env = make(split='train', seed=0, levels=1, prompt='chat', history=1)
  (seen,) = env.reset([0])
  assert env.prompt([(seen, 'up')] * 2, seen).count('Before') == 1
  assert make(split='train', seed=0, levels=1).alphabet == ALPHABET
  for options, complaint in [
    (
      {'prompt': 'verbose'},
      "prompt: found 'verbose', allowed: .*compact.*chat",
    ),
    ({'prompt': 'chat', 'history': -1}, 'history: found -1'),
  ]:
    with pytest.raises(ValueError, match=complaint):
      make(split='train', seed=0, levels=1, **options)
