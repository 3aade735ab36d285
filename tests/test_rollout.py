"""Collecting, packing and splitting, with real levels and a scripted policy."""

import jax
import numpy as np
import pytest

from graphgpo_jax import log as logs
from graphgpo_jax import metrics, rollout, states
from graphgpo_jax.envs import sokoban
from graphgpo_jax.evaluate import attempt_totals, evaluate, play, wilson
from graphgpo_jax.models.decoder import (
  DecoderConfig,
  graph_definition,
  init_params,
)
from graphgpo_jax.models.sampling import make_sampler
from graphgpo_jax.models.tokenizer import CharTokenizer

KEY = jax.random.key(3)


@pytest.fixture(scope='module')
def env():
  return sokoban.make(split='train', seed=1, levels=12, max_steps=6)


TOKENIZER = CharTokenizer(sokoban.ALPHABET)


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
  sampler = make_sampler(graph_definition(sizes), max_new_tokens=1)
  return rollout.make_policy(
    sampler, init_params(sizes, seed=0), TOKENIZER, prompt_length=37
  )


def scripted(*letters):
  """A policy that says the letters in turn, whatever it sees."""
  calls = iter(letters * 99)

  def policy(prompts, keys):
    del keys
    said = next(calls)
    ids = np.array(TOKENIZER.encode(said), np.int32)
    logps = np.full(len(ids), -0.5, np.float32)
    return [
      rollout.Reply(np.array(TOKENIZER.encode(p)), ids, logps, said)
      for p in prompts
    ]

  return policy


def test_collected_steps_are_a_log_without_faults(env, real_policy, tmp_path):
  steps = rollout.collect(real_policy, env, [3, 5], attempts=3, key=KEY)
  logs.write_log(tmp_path / 'log.jsonl', steps)
  table = logs.read_log(tmp_path / 'log.jsonl').table
  indexed = states.index_steps(table)
  assert indexed.tasks == [env.task_name(3), env.task_name(5)]
  assert (np.bincount(indexed.task[indexed.last]) == 3).all()
  for step in steps:
    assert len(step.prompt_ids) == 37 and len(step.response_ids) == 1
    assert step.response_logps[0] <= 0


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


def test_prompt_that_is_too_long_is_refused(real_policy):
  with pytest.raises(ValueError, match='38 tokens, more than prompt_length'):
    real_policy(['_' * 38], jax.random.split(KEY, 32))


def test_packed_rows_by_hand(env):
  steps = rollout.collect(scripted('u'), env, [2], attempts=1, key=KEY)[:2]
  rows = rollout.pack(steps, rows=3, length=40)
  assert rows.ids.shape == (3, 40)
  np.testing.assert_array_equal(rows.response_mask.sum(1), [1, 1, 0])
  assert rows.response_mask[0, 37] and rows.behaviour_logp[0, 37] == -0.5
  text = env.reset([2])[0].text.replace('\n', '') + '>u'
  assert TOKENIZER.decode(rows.ids[0]) == text
  assert (rows.ids[2] == 0).all() and (rows.behaviour_logp[2] == 0).all()
  with pytest.raises(ValueError, match='2 transitions do not fit 1 rows'):
    rollout.pack(steps, rows=1, length=40)
  with pytest.raises(ValueError, match='38 tokens does not fit length 37'):
    rollout.pack(steps, rows=3, length=37)


def test_solver_transitions_reach_the_goal(env):
  steps = rollout.solver_transitions(env, [0, 4, 6], TOKENIZER)
  totals = attempt_totals(steps)
  assert (totals['success'] == 1).all() and (totals['invalid'] == 0).all()
  lengths = [len(env.solution(task)) for task in (0, 4, 6)]
  assert sorted(totals['length']) == sorted(lengths)


def test_mini_batches_cover_all_rows_evenly():
  for count in (1, 63, 64, 65, 200):
    rng = np.random.default_rng(0)
    parts = rollout.mini_batches(count, rows=64, rng=rng)
    assert sorted(np.concatenate(parts)) == list(range(count))
    sizes = [len(part) for part in parts]
    assert max(sizes) <= 64 and max(sizes) - min(sizes) <= 1
    assert len(parts) == -(-count // 64)


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
