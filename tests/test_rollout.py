"""Collecting, with real levels and a scripted policy."""

import functools
import re
import types

import jax
import numpy as np
import pytest
from rollouts import random_rows

from graphgpo_jax import credit, iteration, metrics, rollout, states
from graphgpo_jax import log as logs
from graphgpo_jax.envs import sokoban
from graphgpo_jax.evaluate import attempt_totals, evaluate, play, wilson
from graphgpo_jax.models.decoder import DecoderConfig
from graphgpo_jax.models.generation import Samples, make_sampler
from graphgpo_jax.models.parameters import init_params
from graphgpo_jax.models.tokenizer import CharTokenizer

KEY = jax.random.key(3)
TOKENIZER = CharTokenizer(sokoban.ALPHABET)
PROMPT = 37  # tokens of every prompt


@pytest.fixture(scope='module')
def env():
  return sokoban.make(split='train', seed=1, levels=12, max_steps=6)


@pytest.fixture(scope='module')
def real_policy():
  sizes = DecoderConfig(
    vocab_size=TOKENIZER.vocab_size,
    num_layers=1,
    embed_dim=16,
    mlp_dim=16,
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    embed_init_scale=0.5,
  )
  sampler = make_sampler(sizes, max_new_tokens=1, buckets=(PROMPT,))
  params = init_params(sizes, seed=0)
  return rollout.make_policy(sampler, params, TOKENIZER, limit=PROMPT)


def scripted(*replies, limit=PROMPT, overflow='error'):
  """A policy that says the replies in turn, whatever it sees."""
  calls = iter(replies * 99)

  def answer(prompts, keys):
    del keys
    said = next(calls)
    ids = np.array(TOKENIZER.encode(said), np.int32)
    logps = np.full(len(ids), -0.5, np.float32)
    return [rollout.Reply(prompt, ids, logps, said) for prompt in prompts]

  encode = functools.partial(
    rollout.encode_prompt, TOKENIZER, limit=limit, overflow=overflow
  )
  return rollout.Policy(encode, answer)


def test_collected_steps_are_a_log_without_faults(env, real_policy, tmp_path):
  steps = rollout.collect(real_policy, env, [3, 5], attempts=3, key=KEY)
  logs.write_log(tmp_path / 'log.jsonl', steps)
  table = logs.read_log(tmp_path / 'log.jsonl').table
  indexed = states.index_steps(table)
  assert indexed.tasks == [env.task_name(3), env.task_name(5)]
  assert (np.bincount(indexed.task[indexed.last]) == 3).all()
  for step in steps:
    assert len(step.prompt_ids) == PROMPT and len(step.response_ids) == 1
    assert step.response_logps[0] <= 0 and not step.prompt_cut


def test_ended_attempts_drop_out(env):
  solution = env.solution(0)
  letters = [action[0] for action in solution]
  steps = rollout.collect(
    scripted(*letters, 'u'), env, [0, 1], attempts=2, key=KEY
  )
  own = [s for s in steps if s.task == env.task_name(0)]
  assert len(own) == 2 * len(solution)
  assert [s.success for s in own if s.attempt == 1][-1]
  other = [s for s in steps if s.task == env.task_name(1)]
  assert len(other) == 12 and not any(s.success for s in other)


def test_unreadable_replies_are_invalid_steps(env):
  steps = rollout.collect(scripted('>'), env, [2], attempts=2, key=KEY)
  assert len(steps) == 12
  for step in steps:
    assert not step.valid and step.action == '>'
    assert step.state == step.next_state
  assert steps[-1].truncated and not steps[-1].terminal


def test_draws_depend_on_iteration_task_attempt_and_step_only(env, real_policy):
  def actions(tasks, attempts=2, iteration=0, key=KEY):
    steps = rollout.collect(
      real_policy, env, tasks, attempts=attempts, key=key, iteration=iteration
    )
    name = env.task_name(5)
    return [
      (s.attempt, s.step, s.action)
      for s in steps
      if s.task == name and s.attempt < 2
    ]

  alone = actions([5])
  assert sorted(actions([7, 5, 1], attempts=4)) == sorted(alone)
  assert actions([5]) == alone
  assert actions([5], iteration=1) != alone
  assert actions([5], key=jax.random.key(4)) != alone
  by_attempt = [[x[1:] for x in alone if x[0] == i] for i in (0, 1)]
  assert by_attempt[0] != by_attempt[1]


def test_keys_stay_with_their_attempt_when_others_drop_out(env):
  letters = [action[0] for action in env.solution(0)]

  def keys_of(tasks):
    policy, asked = scripted(*letters, 'u'), []

    def answer(prompts, keys):
      asked.append(np.asarray(jax.random.key_data(keys))[: len(prompts)])
      return policy.answer(prompts, keys)

    noted = rollout.Policy(policy.encode, answer)
    rollout.collect(noted, env, tasks, attempts=1, key=KEY)
    return asked

  both, alone = keys_of([0, 1]), keys_of([1])
  assert [len(keys) for keys in both] == [2] * len(letters) + [1] * (
    6 - len(letters)
  )
  assert len(letters) < 6
  for some, own in zip(both, alone, strict=True):
    np.testing.assert_array_equal(some[-1:], own)


def test_a_process_without_tasks_answers_nothing(env, real_policy, monkeypatch):
  assert rollout.collect(scripted('u'), env, [], attempts=2, key=KEY) == []
  # Another process plays three steps.
  left = iter([1, 1, 1, 0])
  monkeypatch.setattr(rollout.sharding, 'most', lambda _: [next(left)])
  asked = []

  def answer(prompts, keys):
    asked.append((prompts, len(keys)))
    return []

  silent = rollout.Policy(real_policy.encode, answer)
  assert rollout.collect(silent, env, [], attempts=2, key=KEY) == []
  assert asked == [([], 32)] * 3


def test_halves_are_answered_as_often_as_others_need(env, monkeypatch):
  # Of another process one half plays two steps and the other one.
  left = iter([1, 1, 1, 0, 0])
  monkeypatch.setattr(rollout.sharding, 'most', lambda _: [next(left)])
  asked = []
  silent = rollout.Policy(
    scripted('u').encode, lambda prompts, keys: asked.append(prompts) or []
  )
  options = {'attempts': 2, 'key': KEY, 'overlap': True}
  assert rollout.collect(silent, env, [], **options) == []
  assert asked == [[]] * 3 and not list(left)


def test_halves_play_what_the_whole_plays(env, real_policy):
  tasks, calls = [5, 2, 9], []

  def noted(env, slots, actions):
    calls.append(slots)
    outcomes = env.step(slots, actions)
    return lambda: calls.append('waited') or outcomes

  slow = types.SimpleNamespace(
    **{name: getattr(env, name) for name in dir(env) if name[0] != '_'},
    begin_step=functools.partial(noted, env),
  )
  whole, halves = (
    rollout.collect(
      real_policy, which, tasks, attempts=2, key=KEY, overlap=which is slow
    )
    for which in (env, slow)
  )
  assert len(whole) == len(halves) > 6
  for one, other in zip(whole, halves):
    assert (one.task, one.attempt, one.step) == (
      *(other.task, other.attempt, other.step),
    )
    assert (one.state, one.action) == (other.state, other.action)
    np.testing.assert_allclose(
      one.response_logps, other.response_logps, atol=1e-5
    )
  assert calls[:4] == [[0, 1, 2], [3, 4, 5], 'waited', calls[3]]
  assert set(calls[3]) <= {0, 1, 2}  # the first half again


class Diary:
  """Tells all places and actions so far, then where one is."""

  def prompt(self, history, observation, *, hidden=0):
    told = history[hidden:]
    return ''.join(place + action for place, action in told) + observation


LETTERS = CharTokenizer('abcdxyzABCD')
HISTORY = [('A', 'x'), ('B', 'y'), ('C', 'z')]


@pytest.mark.parametrize(
  ('limit', 'overflow', 'shown'),
  [
    (7, 'error', 'AxByCzD'),
    (7, 'drop_history', 'AxByCzD'),
    (7, 'truncate_left', 'AxByCzD'),
    (6, 'drop_history', 'ByCzD'),  # whole steps
    (5, 'drop_history', 'ByCzD'),
    (4, 'drop_history', 'CzD'),
    (1, 'drop_history', 'D'),
    (6, 'truncate_left', 'xByCzD'),
    (1, 'truncate_left', 'D'),
  ],
)
def test_long_prompts(limit, overflow, shown):
  ids, cut = rollout.encode_prompt(
    LETTERS, Diary(), HISTORY, 'D', limit=limit, overflow=overflow
  )
  assert ids.dtype == np.int32 and LETTERS.decode(ids) == shown
  assert cut == (limit < 7)


@pytest.mark.parametrize(
  ('history', 'limit', 'overflow', 'found'),
  [
    (HISTORY, 6, 'error', 8),
    (HISTORY, 1, 'drop_history', 2),
    ([], 1, 'drop_history', 2),
  ],
)
def test_prompts_that_stay_too_long_are_refused(
  history, limit, overflow, found
):
  message = (
    rf'sampling.prompt_lengths: a prompt has {found} tokens, allowed: {limit} '
    rf"\(config.sampling.overflow = '{overflow}'\)"
  )
  with pytest.raises(ValueError, match=message):
    rollout.encode_prompt(
      LETTERS, Diary(), history, 'DD', limit=limit, overflow=overflow
    )


def test_collect_notes_which_prompts_were_cut(env):
  policy = scripted('u', limit=30, overflow='truncate_left')
  steps = rollout.collect(policy, env, [2], attempts=1, key=KEY)
  assert len(steps) == 6 and all(step.prompt_cut for step in steps)
  whole = env.reset([2])[0].text.replace('\n', '') + '>'
  assert TOKENIZER.decode(steps[0].prompt_ids) == whole[-30:]
  (step, *_) = rollout.collect(scripted('u'), env, [2], attempts=1, key=KEY)
  assert TOKENIZER.decode(step.prompt_ids) == whole and not step.prompt_cut
  lesson = rollout.solver_transitions(env, [2], TOKENIZER, policy.encode)[0]
  assert lesson.prompt_cut and len(lesson.prompt_ids) == 30


def test_replies_are_what_was_sampled():
  asked = []

  def sampler(*inputs):
    asked.append(inputs)
    return Samples(
      ids=np.array([[2, 3, 1], [4, 0, 0]], np.int32),
      logps=np.array([[-1, -2, -3], [-4, 0, 0]], np.float32),
      lengths=np.array([3, 1], np.int32),
    )

  policy = rollout.make_policy(
    sampler, 'params', LETTERS, limit=9, temperature=0.4, greedy=True
  )
  prompts = [np.array([5]), np.array([6, 7])]
  first, second = policy.answer(prompts, 'keys')
  assert asked == [('params', prompts, 'keys', 0.4, True)]
  assert (first.text, second.text) == ('ab', 'c')  # the end is not text
  assert first.ids.tolist() == [2, 3, 1] and second.ids.tolist() == [4]
  assert first.logps.tolist() == [-1, -2, -3] and second.logps.tolist() == [-4]
  assert second.prompt_ids is prompts[1]


def test_solver_transitions_reach_the_goal(env):
  encode = scripted('u').encode
  steps = rollout.solver_transitions(env, [0, 4, 6], TOKENIZER, encode)
  totals = attempt_totals(steps)
  assert (totals['success'] == 1).all() and (totals['invalid'] == 0).all()
  lengths = [len(env.solution(task)) for task in (0, 4, 6)]
  assert sorted(totals['length']) == sorted(lengths)
  for step in steps:
    assert TOKENIZER.decode(step.response_ids) == step.action[0]


@pytest.mark.parametrize(
  ('plan', 'complaint'),
  [
    (['up'], "after action 1 of 1, 'up', the attempt is going on, allowed: s"),
    (['up'] * 7, "action 6 of 7, 'up', the attempt is truncated, allowed: g"),
    (None, 'the attempt is solved, allowed: going on'),
  ],
)
def test_solutions_that_solve_nothing_are_refused(
  env, monkeypatch, plan, complaint
):
  plan = plan or [*env.solution(0), 'up']
  monkeypatch.setattr(env, 'solution', lambda task: plan)
  message = f'the solution of {re.escape(env.task_name(0))}: .*{complaint}'
  with pytest.raises(ValueError, match=message):
    rollout.solver_transitions(env, [0], TOKENIZER, scripted('u').encode)


def test_without_an_expert_there_is_no_warm_start(env, monkeypatch):
  def solution(task):
    raise NotImplementedError

  monkeypatch.setattr(env, 'solution', solution)
  with pytest.raises(ValueError, match='warm_start.steps: .* no expert'):
    rollout.solver_transitions(env, [0], TOKENIZER, scripted('u').encode)


def test_wrong_answers_of_an_environment_are_refused(env, monkeypatch):
  monkeypatch.setattr(env, 'step', lambda slots, actions: [None for _ in slots])
  with pytest.raises(ValueError, match='NoneType, allowed: Outcome'):
    rollout.collect(scripted('u'), env, [0], attempts=1, key=KEY)
  monkeypatch.setattr(env, 'reset', lambda tasks: ['room' for _ in tasks])
  with pytest.raises(ValueError, match='is str, allowed: Observation'):
    rollout.collect(scripted('u'), env, [0], attempts=1, key=KEY)


@pytest.mark.parametrize('count', [1, 63, 64, 65, 200])
def test_mini_batches_cover_all_steps_evenly(monkeypatch, count):
  monkeypatch.setattr(iteration, '_rows', lambda run, steps, credit: steps)
  run = types.SimpleNamespace(
    config=types.SimpleNamespace(
      batch=types.SimpleNamespace(mini_batch_steps=64)
    ),
    frozen={},
    improve=lambda state, rows, frozen: (state + 1, rows),
  )
  order, rng = np.arange(count), np.random.default_rng(0)
  done, parts = iteration._improve(
    run, 0, None, list(range(count)), order, order, rng
  )
  assert sorted(sum(parts, [])) == list(range(count))
  sizes = [len(part) for part in parts]
  assert max(sizes) <= 64 and max(sizes) - min(sizes) <= 1
  assert done == len(parts) == -(-count // 64)


def test_training_knows_how_many_tasks_failed():
  rows = random_rows(0, tasks=8)
  steps = states.index_steps(logs.columns(rows))
  failed = set(range(8)) - set(steps.task[steps.success].tolist())
  assert 0 < len(failed) < 8
  credit_fn = credit.bind('progress')
  space = types.SimpleNamespace
  run = space(
    config=space(
      batch=space(tasks=8, attempts=int(steps.attempt.max()) + 1),
      history=space(tasks=0),
    ),
    env=space(max_steps=int(steps.step.max()) + 1),
    credit_fn=credit_fn,
  )
  found, _ = iteration.assign(run, steps)
  expected = credit.credit_steps(steps, credit_fn)['advantage']
  np.testing.assert_allclose(found, expected, atol=1e-6)
  whole = credit.credit_steps(
    steps, credit.bind('progress', all_fail_share=1.0)
  )['advantage']
  assert abs(found - whole).max() > 0.01


def test_wilson_interval_by_hand():
  # Textbook values: 5 of 10 -> 0.237 to 0.763; 0 of 10 -> 0 to 0.278.
  np.testing.assert_allclose(wilson(5, 10), (0.2366, 0.7634), atol=1e-4)
  np.testing.assert_allclose(wilson(0, 10), (0, 0.2775), atol=1e-4)


def test_evaluation_counts_successes(env):
  first = env.solution(0)
  found = evaluate(
    scripted(*(a[0] for a in first)), env, tasks=range(12), key=KEY
  )
  assert found['attempts'] == 12 and found['success'] >= 1 / 12
  assert found['low'] < found['success'] < found['high']


def test_scores_and_losses_are_counted(env):
  outcomes = iter([(0.5, False), (None, True), (None, False)])

  def step(slots, actions):
    found = [
      outcome._replace(truncated=True) for outcome in act(slots, actions)
    ]
    return [
      outcome._replace(score=score, lost=lost, terminal=False, success=False)
      for outcome, (score, lost) in zip(found, outcomes)
    ]

  act = env.step
  broken = types.SimpleNamespace(
    **{name: getattr(env, name) for name in dir(env) if name[0] != '_'}
  )
  broken.step = step
  found = evaluate(scripted('u'), broken, tasks=range(3), key=KEY)
  assert found['score'] == pytest.approx(0.5 / 3)
  assert found['attempts_lost'] == 1 and found['attempts'] == 3
  found = evaluate(scripted('u'), env, tasks=range(3), key=KEY)
  assert 'score' not in found and found['attempts_lost'] == 0


def test_play_tells_every_step(env):
  solution = env.solution(4)
  texts = list(play(scripted(*(a[0] for a in solution)), env, 4, KEY))
  assert len(texts) == len(solution) + 2
  assert texts[-1] == 'success' and env.task_name(4) in texts[0]
  assert f'step 1: {solution[0]!r}' in texts[1]


def test_silent_tasks_are_those_with_equal_scores():
  task = np.array([0, 0, 1, 1, 2])
  score = np.array([1.0, 1.0 + 1e-9, 0.0, -0.1, 5.0])
  np.testing.assert_array_equal(
    metrics.zero_signal_tasks(task, score), [True, False, True]
  )
