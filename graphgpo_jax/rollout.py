"""From a policy and an environment to transitions, and on to rows of tokens.

The host's side of training: text, loops and sizes that vary live here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from graphgpo_jax.envs.base import Environment
from graphgpo_jax.states import power_of_two
from graphgpo_jax.types import TokenRows, Transition

SMALLEST_BATCH = 32  # rows; smaller batches are padded, to bound compilations


class Reply(NamedTuple):
  """What the policy said: ids and log-probs [n] as sampled, and their text."""

  prompt_ids: np.ndarray
  ids: np.ndarray
  logps: np.ndarray
  text: str


Policy = Callable[[Sequence[str], jax.Array], list[Reply]]


def batch_rows(count: int) -> int:
  """Rows that a batch of prompts is padded to, to bound compilations."""
  return max(SMALLEST_BATCH, power_of_two(count))


@jax.jit
def _step_keys(key, iteration, tasks, attempts, step):
  def derive(task, attempt):
    derived = key
    for number in (iteration, task, attempt, step):
      derived = jax.random.fold_in(derived, number)
    return derived

  return jax.vmap(derive)(tasks, attempts)


def make_policy(
  sampler: Callable,
  parameters,
  tokenizer,
  *,
  prompt_length: int,
  temperature: float = 1.0,
  greedy: bool = False,
) -> Policy:
  """A function from prompts and per-row keys to replies.

  Args:
    sampler: of `sampling.make_sampler`.
    parameters: of the decoder.
    tokenizer: with encode and decode.
    prompt_length: P, tokens; prompts are right-padded to it.
    temperature: > 0.
    greedy: take the likeliest token.

  Returns:
    policy(prompts [n], keys [batch_rows(n)]) -> n replies. Batches are padded
    to a power of two of rows (at least 32), so that finished attempts cost
    nothing and the sampler compiles once per power.

  Raises:
    ValueError: by the policy, a prompt longer than prompt_length.
  """

  def policy(prompts, keys):
    rows = len(prompts)
    size = batch_rows(rows)
    encoded = [np.asarray(tokenizer.encode(text), np.int32) for text in prompts]
    lengths = np.ones(size, np.int32)
    lengths[:rows] = [len(ids) for ids in encoded]
    if lengths.max() > prompt_length:
      raise ValueError(
        f'a prompt has {lengths.max()} tokens, more than prompt_length '
        f'= {prompt_length}'
      )
    ids = np.zeros((size, prompt_length), np.int32)
    for row, prompt_ids in enumerate(encoded):
      ids[row, : len(prompt_ids)] = prompt_ids
    samples = sampler(parameters, ids, lengths, keys, temperature, greedy)
    samples = jax.tree.map(np.asarray, samples)
    replies = []
    for row, prompt_ids in enumerate(encoded):
      length = samples.lengths[row]
      said = samples.ids[row, :length]
      logps = samples.logps[row, :length]
      replies.append(Reply(prompt_ids, said, logps, tokenizer.decode(said)))
    return replies

  return policy


def collect(
  policy: Policy,
  env: Environment,
  tasks: Sequence[int],
  *,
  attempts: int,
  key: jax.Array,
  iteration: int = 0,
) -> list[Transition]:
  """Plays M attempts at each task, all in step; ended ones drop out.

  Args:
    policy: of `make_policy`.
    env: its slots are started anew.
    tasks: B distinct task indices.
    attempts: M.
    key: of the run; every draw is keyed by (key, iteration, task, attempt,
      step), whatever else is played beside it.
    iteration: number of the update the rollouts are for.

  Returns:
    Transitions with the tokens as sampled, in order of step, task, attempt.
  """
  task_of = np.repeat(np.asarray(tasks, np.int32), attempts)
  attempt_of = np.tile(np.arange(attempts, dtype=np.int32), len(tasks))
  names = {task: env.task_name(task) for task in tasks}
  observations = env.reset(task_of.tolist())
  histories = [[] for _ in observations]
  active = list(range(len(observations)))
  transitions = []
  for step in range(env.max_steps):
    if not active:
      break
    rows = np.resize(active, batch_rows(len(active)))
    keys = _step_keys(key, iteration, task_of[rows], attempt_of[rows], step)
    prompts = [env.prompt(histories[i], observations[i]) for i in active]
    replies = policy(prompts, keys)
    parsed = [env.parse(reply.text) for reply in replies]
    outcomes = env.step(active, [action for action, _ in parsed])
    remaining = []
    for i, reply, (action, spelt), outcome in zip(
      active, replies, parsed, outcomes
    ):
      ids = names[int(task_of[i])], int(attempt_of[i]), step
      transitions.append(
        _transition(*ids, observations[i], action, outcome, reply, spelt)
      )
      histories[i].append((observations[i], action))
      observations[i] = outcome.observation
      if not (outcome.terminal or outcome.truncated):
        remaining.append(i)
    active = remaining
  return transitions


def _transition(task, attempt, step, before, action, outcome, reply, spelt):
  return Transition(
    task=task,
    attempt=attempt,
    step=step,
    state=before.key,
    action=action,
    next_state=outcome.observation.key,
    reward=outcome.reward,
    success=outcome.success,
    terminal=outcome.terminal,
    truncated=outcome.truncated,
    valid=spelt and outcome.valid,
    prompt_ids=reply.prompt_ids,
    response_ids=reply.ids,
    response_logps=reply.logps,
  )


def solver_transitions(
  env: Environment, tasks: Sequence[int], tokenizer
) -> list[Transition]:
  """Plays the environment's own solutions, as token rows to imitate."""
  plans = [env.solution(task) for task in tasks]
  observations = env.reset(list(tasks))
  histories = [[] for _ in observations]
  transitions = []
  for step in range(max(map(len, plans))):
    active = [i for i, plan in enumerate(plans) if step < len(plan)]
    outcomes = env.step(active, [plans[i][step] for i in active])
    for i, outcome in zip(active, outcomes):
      action = plans[i][step]
      prompt = env.prompt(histories[i], observations[i])
      text = env.reply(action)
      said = np.asarray(tokenizer.encode(text), np.int32)
      seen = np.asarray(tokenizer.encode(prompt), np.int32)
      reply = Reply(seen, said, np.zeros(len(said), np.float32), text)
      ids = env.task_name(tasks[i]), 0, step
      transitions.append(
        _transition(*ids, observations[i], action, outcome, reply, True)
      )
      histories[i].append((observations[i], action))
      observations[i] = outcome.observation
  return transitions


def pack(
  transitions: Sequence[Transition], *, rows: int, length: int
) -> TokenRows:
  """One row of tokens per transition, padded to [R, L].

  Args:
    transitions: at most R, with tokens.
    rows: R.
    length: L, in tokens; at least the longest prompt and response together.

  Raises:
    ValueError: too many transitions, or a row longer than L.
  """
  if len(transitions) > rows:
    raise ValueError(f'{len(transitions)} transitions do not fit {rows} rows')
  ids = np.zeros((rows, length), np.int32)
  mask = np.zeros((rows, length), bool)
  logps = np.zeros((rows, length), np.float32)
  for row, transition in enumerate(transitions):
    start = len(transition.prompt_ids)
    end = start + len(transition.response_ids)
    if end > length:
      raise ValueError(f'a row of {end} tokens does not fit length {length}')
    ids[row, :start] = transition.prompt_ids
    ids[row, start:end] = transition.response_ids
    logps[row, start:end] = transition.response_logps
    mask[row, start:end] = True
  return TokenRows(ids=ids, response_mask=mask, behaviour_logp=logps)


def mini_batches(
  count: int, *, rows: int, rng: np.random.Generator
) -> list[np.ndarray]:
  """Splits 0 .. count - 1, shuffled, into parts of equal size, at most rows."""
  parts = max(1, -(-count // rows))
  return np.array_split(rng.permutation(count), parts)
