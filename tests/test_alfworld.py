"""ALFWorld as an environment: protocol, keys, prompts."""

import random
import types

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphgpo_jax.envs import alfworld, alfworld_games, prompts
from graphgpo_jax.envs import alfworld_prompts as shown
from graphgpo_jax.envs.base import Environment, Observation
from graphgpo_jax.models.words import WordTokenizer

pytest.importorskip('fast_downward')

GAMES = 12


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
  return str(tmp_path_factory.mktemp('alfworld'))


@pytest.fixture(scope='module')
def make(cache):
  def call(**options):
    small = {'receptacles': 5, 'objects': 4, 'games': GAMES, 'split': 'train'}
    return alfworld.make(cache=cache, **{**small, **options})

  return call


def play(env, task, actions):
  """Plays one slot; returns the outcomes."""
  env.reset([task])
  return [env.step([0], [action])[0] for action in actions]


def test_solutions_play_to_success(make):
  env = make()
  assert isinstance(env, Environment) and env.alphabet == ''
  assert (env.max_steps, env.num_tasks) == (50, GAMES)
  env.reset(range(GAMES))
  for task in range(GAMES):
    assert env.task_name(task).split('-')[0] == alfworld.rooms.KINDS[task % 6]
    plan = env.solution(task)
    outcomes = [env.step([task], [action])[0] for action in plan]
    *before, last = outcomes
    assert last[1:6] == (10.0, True, False, True, True)
    assert all(o[1:6] == (0.0, False, False, False, True) for o in before)
    assert all(last.observation.admissible) and last.observation.admissible
    with pytest.raises(RuntimeError, match=f'slot {task} has finished'):
      env.step([task], ['look'])


def test_detours_find_nothing_and_end_the_same(make):
  planner, searcher = make(), make(detours=3)
  longer = 0
  for task in range(GAMES):
    plan, path = planner.solution(task), searcher.solution(task)
    assert path == searcher.solution(task)
    assert [x for x in path if x[:4] in ('take', 'move', 'use ')] == [
      x for x in plan if x[:4] in ('take', 'move', 'use ')
    ]
    longer += len(path) > len(plan)
    kind = next(x for x in plan if x.startswith('take')).split()[1]
    outcomes = play(searcher, task, path)
    assert all(o.valid for o in outcomes) and outcomes[-1].success
    for command, after, outcome in zip(path, path[1:], outcomes):
      if command.startswith('go to ') and after.startswith('go to '):
        sight = outcome.observation.text.partition('\n\n')[0]
        assert f'a {kind} ' not in sight
  assert longer >= 6


def test_what_a_solution_closes_it_may_open_again():
  game = types.SimpleNamespace(
    places={}, names={}, openable=[], initial={'inreceptacle': set()}
  )
  again = ['go to safe 1', 'open safe 1', 'take cd 1 from safe 1']
  plan = [*again, 'close safe 1', *again]
  rng = np.random.default_rng(0)
  assert alfworld_games.with_detours(plan, game, rng, 0) == plan
  twice = [*again, 'open safe 1']  # as planners do after a look inside
  assert alfworld_games.with_detours(twice, game, rng, 0) == again


def test_attempts_start_identical_and_are_independent(make):
  env = make()
  tasks = [3, 5, 3, 3]
  first = env.reset(tasks)
  assert first[0] == first[2] == first[3] != first[1]
  plan = env.solution(3)
  env.step([2, 1], [plan[0], 'look'])
  a = env.step([0], [plan[0]])[0]
  b = env.step([3], ['dance'])[0]
  c = env.step([2, 3], [plan[1], plan[0]])
  assert a.observation == c[1].observation
  assert not b.valid and b.observation.key == first[3].key
  assert env.reset(tasks) == first


def test_what_is_no_command_takes_a_step(make):
  env = make(max_steps=9)
  texts = ['', ' ', 'dance', 'GO TO', 'go to fridge 99', 'x' * 100_000]
  texts += ['look\x00', '\ud800', '<action>look</action>']
  outcomes = play(env, 0, texts)
  (start,) = env.reset([0])
  task = start.text.rpartition('Your task')[2]
  for outcome in outcomes:
    assert outcome.observation.text == f'Nothing happens.\n\nYour task{task}'
    assert outcome.observation.key == start.key
    assert outcome.observation.admissible == start.admissible
    assert (outcome.reward, outcome.valid, outcome.terminal) == (
      0,
      False,
      False,
    )
  assert [o.truncated for o in outcomes] == [False] * 8 + [True]
  # The engine itself takes blanks around a command.
  assert play(env, 0, [' look\n'])[0].valid


@settings(
  max_examples=60,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.text(st.characters(codec=None), max_size=30))
def test_any_reply_can_be_parsed_and_played(make, reply):
  for env in (make(), make(prompt='compact')):
    (before,) = env.reset([0])
    for said in (reply, prompts.tagged_reply('a', reply), f'<action>{reply}'):
      action, spelt = env.parse(said)
      assert spelt or action in (said, reply.lower(), ' '.join(reply.split()))
      outcome = env.step([0], [action])[0]
      assert outcome.valid == (action.strip() in before.admissible)


def test_truncated_at_the_limit_but_terminal_wins(make):
  plan = make().solution(0)
  last = play(make(max_steps=len(plan)), 0, plan)[-1]
  assert last.terminal and last.success and not last.truncated
  short = make(max_steps=len(plan) - 1)
  last = play(short, 0, plan[:-1])[-1]
  assert last.truncated and not last.terminal
  with pytest.raises(ValueError, match=f'{len(plan)} steps, allowed: .*max_st'):
    short.solution(0)


def test_wrong_numbers_are_refused(make):
  env = make()
  with pytest.raises(IndexError, match='slot 0 of 0'):
    env.step([0], ['look'])
  env.reset([0, 0])
  for slot in (-1, 2):
    with pytest.raises(IndexError, match=f'slot {slot}'):
      env.step([slot], ['look'])
  for slots, actions in [([0, 0], ['look'] * 2), ([0, 1], ['look'])]:
    with pytest.raises(ValueError, match='slots'):
      env.step(slots, actions)
  for call in (lambda: env.reset([GAMES]), lambda: env.solution(-1)):
    with pytest.raises(IndexError, match='task'):
      call()


def walk(env, task, rng, steps):
  """(actions, observation) after random commands; look and help are rare."""
  (observation,) = env.reset([task])
  actions = []
  for _ in range(steps):
    useful = [
      x
      for x in observation.admissible
      if x.split()[0] not in ('help', 'examine')
    ]
    action = rng.choice(useful)
    outcome = env.step([0], [action])[0]
    actions.append(action)
    observation = outcome.observation
    if outcome.terminal:
      return None
  return actions, observation


def test_equal_facts_have_equal_futures(make):
  env, rng, found = make(state_key='facts'), random.Random(0), {}
  pairs = 0
  for number in range(120):
    task = number % 3
    walked = walk(env, task, rng, rng.randint(1, 6))
    if walked is None:
      continue
    actions, observation = walked
    other = found.setdefault((task, observation.key), actions)
    if other == actions:
      continue
    pairs += 1
    env.reset([task, task])
    for slot, path in enumerate((actions, other)):
      for action in path:
        env.step([slot], [action])
    commands = observation.admissible
    for _ in range(5):
      a, b = env.step([0, 1], [rng.choice(commands)] * 2)
      assert a == b
      if a.terminal:
        break
      commands = a.observation.admissible
  assert pairs >= 20


def test_facts_by_hand(make):
  env = make(state_key='facts')
  task = next(i for i in range(GAMES) if env.solution(i)[1].startswith('take'))
  go, take, *_ = env.solution(task)
  place, thing = go.removeprefix('go to '), take.split(' from ')[0][5:]
  (start,) = env.reset([task])
  assert start.key == 'start'
  keys = [o.observation.key for o in play(env, task, [go, 'look', take])]
  at = '+atlocation agent1, loc_0'
  assert keys[0].startswith(at) and keys[0].count(';') == 1
  assert keys[1] == keys[0]
  assert f'+holds agent1, {thing}; ' in keys[2]
  assert f'-inreceptacle {thing}, {place}; ' in keys[2]
  back = play(env, task, [go, take, f'move {thing} to {place}'])[2]
  assert back.observation.key == keys[0]


def test_paper_and_observation_keys(make):
  plan = make().solution(2)  # to clean something
  clean = next(i for i, action in enumerate(plan) if action[:5] == 'clean')
  outcomes = play(make(), 2, [*plan[: clean + 1], 'inventory', 'jump'])
  *_, cleaned, listed, nothing = [o.observation for o in outcomes]
  thing = plan[clean].split(' with ')[0][6:]
  text, here, hand, moved, commands = listed.key.split('\n')
  assert text == f'You are carrying: a {thing}.'
  assert (here, hand, moved) == ('sinkbasin 1', f'{thing} clean', '')
  assert commands == ', '.join(listed.admissible)
  assert nothing.key == listed.key != cleaned.key
  env = make(state_key='observation')
  keys = [
    o.observation.key for o in play(env, 2, ['inventory', plan[0], 'jump'])
  ]
  assert keys[0] == 'You are not carrying anything.' and keys[1] == keys[2]
  env = make()
  done = play(env, 0, env.solution(0))[-1].observation.key
  moved = env.solution(0)[-1].split(' to ')[0][5:]
  assert done.split('\n')[3] == moved


def test_lists_in_keys_are_sorted():
  assert shown.sort_lists('On it, you see a cup 10, a cup 9, and a bed 1.') == (
    'On it, you see a bed 1, a cup 9, and a cup 10.'
  )
  assert shown.sort_lists('the sink 2, and sink 1. Next') == (
    'the sink 1, and sink 2. Next'
  )
  assert shown.sort_lists('You open the cup 2.') == 'You open the cup 2.'


def seen(text, *commands):
  return Observation(text, '', commands)


def test_compact_prompt_by_hand():
  room = 'put a mug in shelf\ncabinet 1 2 mug 1 shelf 3'
  start = seen(f'{room}\nat nothing\nhold nothing\nsee nothing', 'a', 'b')
  closed = seen(f'{room}\nat cabinet 2 closed\nhold nothing\nsee nothing', 'c')
  opened = seen(f'{room}\nat cabinet 2 open\nhold mug 1 hot\nsee cup 1 2', 'd')
  assert shown.short_prompt([], start, 3) == (
    'put a mug in shelf\nleft cabinet 1 2 mug 1 shelf 3\nbeen nothing\n'
    'at nothing\nhold nothing\nsee nothing\ndid nothing\n>'
  )
  history = [(start, 'a'), (start, 'x' * 1000), (closed, 'c')]
  assert shown.short_prompt(history, opened, 2) == (
    'put a mug in shelf\nleft cabinet 1 mug 1 shelf 3\nbeen cabinet 2\n'
    'at cabinet 2 open\nhold mug 1 hot\nsee cup 1 2\ndid nothing, c\n>'
  )
  # Opened or not, what was closed when seen last may still be looked into.
  assert 'left cabinet 1 2 mug' in shown.short_prompt(history[:1], closed, 0)
  assert 'did nothing\n' in shown.short_prompt(history, opened, 0)
  # Where one has been stays true, however little is told.
  history = [(opened, 'd'), (start, 'a')]
  shorter = shown.short_prompt(history, start, 3, hidden=1)
  assert 'been cabinet 2\n' in shorter and 'did a\n' in shorter


def test_compact_prompts_are_in_the_vocabulary(make):
  env = make(prompt='compact', max_steps=30)
  tokenizer, rng = WordTokenizer(env.alphabet), random.Random(0)
  assert env.alphabet == make(prompt='compact', split='unseen').alphabet
  for task in range(GAMES):
    (observation,), history = env.reset([task]), []
    for _ in range(30):
      text = env.prompt(history, observation)
      ids = tokenizer.encode_prompt(text)
      assert tokenizer.decode(ids) == text and len(ids) < 120
      action = rng.choice([*observation.admissible, 'dance'])
      if action != 'dance':
        said = tokenizer.encode_reply(env.reply(action))
        assert env.parse(tokenizer.decode(said)) == (action, True)
      history.append((observation, action))
      outcome = env.step([0], [action])[0]
      observation = outcome.observation
      if outcome.terminal:
        break


def test_chat_prompt_by_hand(make):
  env = make(prompt='chat', history=2)
  task = '\n\nYour task is to: put a cup in bed.'
  start = seen(f'-= Welcome to TextWorld, ALFRED! =-\n\nHi.{task}', 'help', 'a')
  later = seen(f'You see a cup 1.{task}', 'go', 'help', 'look')
  long = [(start, 'a'), (later, 'x' * 1000), (later, 'go')]
  assert env.prompt([], start) == (
    'You are in a household and act by typing commands.\n'
    'Your task: put a cup in bed.\nSteps so far: 0\nNow you see: Hi.\n'
    f'Commands: a\n{prompts.REQUEST}'
  )
  assert env.prompt(long, later) == (
    'You are in a household and act by typing commands.\n'
    'Your task: put a cup in bed.\nSteps so far: 3\n'
    'Step 2. You saw: You see a cup 1.\nYou did: nothing that exists\n'
    'Step 3. You saw: You see a cup 1.\nYou did: go\n'
    f'Now you see: You see a cup 1.\nCommands: go, look\n{prompts.REQUEST}'
  )
  shorter = env.prompt(long, later, hidden=2)  # it is told less, and counted
  assert 'so far: 3\nStep 3. You' in shorter and 'Step 2' not in shorter
  assert 'so far: 3\nNow you' in env.prompt(long, later, hidden=3)
  assert 'Step 2' not in make(history=0).prompt(long, later)
  assert env.parse(env.reply('go to bed 1')) == ('go to bed 1', True)
  assert env.parse('<think>a</think><action>Look</action>') == ('look', True)
  assert env.parse('<action>Look</action>') == ('look', False)
  assert env.parse('Look') == ('Look', False)


def test_slow_engine_plays_the_same(make):
  fast, slow = make(games=1), make(games=1, speed_up=False)
  plan = fast.solution(0)
  assert fast.reset([0]) == slow.reset([0])
  for action in ['dance', plan[0]]:
    assert fast.step([0], [action]) == slow.step([0], [action])


def test_bad_arguments_are_refused(make):
  for option, complaint in [
    ({'source': 'web'}, "source: found 'web', allowed: .*generated.*alfworld"),
    ({'state_key': 'hash'}, "state_key: found 'hash'"),
    ({'prompt': 'verbose'}, "prompt: found 'verbose'"),
    ({'max_steps': 0}, 'max_steps: found 0'),
    ({'history': -1}, 'history: found -1'),
    ({'actions': -1}, 'actions: found -1'),
    ({'detours': -1}, 'detours: found -1'),
    ({'max_steps': None}, 'max_steps: found None'),
    ({'max_steps': True}, 'max_steps: found True'),
    ({'history': 1.5}, 'history: found 1.5'),
    ({'actions': '2'}, "actions: found '2'"),
    ({'detours': 0.5}, 'detours: found 0.5'),
    ({'speed_up': 'no'}, "speed_up: found 'no'"),
    ({'kinds': 'pick_and_place_simple'}, "kinds: found 'pick_and_place_simp"),
    ({'kinds': None}, 'kinds: found None'),
    ({'kinds': 5}, 'kinds: found 5'),
    ({'games': None}, 'games: missing'),
    ({'split': 'panel'}, "split: found 'panel'"),
  ]:
    with pytest.raises(ValueError, match=complaint):
      make(**option)
