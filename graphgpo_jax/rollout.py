"""From a policy and an environment to transitions.

The host's side of training: text, loops and sizes that vary live here.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from graphgpo_jax import sharding
from graphgpo_jax.envs.base import (
  Environment,
  Observation,
  Outcome,
  one_each,
)
from graphgpo_jax.states import power_of_two
from graphgpo_jax.types import Transition

SMALLEST_BATCH = 32  # keys; fewer are padded, to bound compilations


class Reply(NamedTuple):
  """What the policy said: ids and log-probs [n] as sampled, and their text."""

  prompt_ids: np.ndarray
  ids: np.ndarray
  logps: np.ndarray
  text: str


OVERFLOWS = ('error', 'drop_history', 'truncate_left')


class Policy(NamedTuple):
  """What plays: from text to ids, from ids to replies.

  Attributes:
    encode: (env, history, observation) -> (prompt ids [P], whether cut).
    answer: (prompts, keys [n]) -> n replies.
  """

  encode: Callable[..., tuple[np.ndarray, bool]]
  answer: Callable[[Sequence[np.ndarray], jax.Array], list[Reply]]


def batch_rows(count: int) -> int:
  """Keys that are made at once, to bound compilations."""
  return max(SMALLEST_BATCH, power_of_two(count))


@jax.jit
def _step_keys(key, iteration, tasks, attempts, step):
  def derive(task, attempt):
    derived = key
    for number in (iteration, task, attempt, step):
      derived = jax.random.fold_in(derived, number)
    return derived

  return jax.vmap(derive)(tasks, attempts)


def encode_prompt(
  tokenizer, env: Environment, history, observation, *, limit, overflow
) -> tuple[np.ndarray, bool]:
  """Ids of what the model is shown, and whether anything was left out.

  Args:
    tokenizer: see `models.tokenizer`.
    history, observation: see `Environment.prompt`.
    limit: in tokens.
    overflow: for longer prompts: 'error', 'drop_history' (what they tell of
      the oldest steps, as many as needed) or 'truncate_left' (the first
      tokens).

  Raises:
    ValueError: too long, and overflow does not help.
  """
  prompt = env.prompt(history, observation)
  ids = tokenizer.encode_prompt(prompt)
  cut = len(ids) > limit
  if cut and overflow == 'drop_history':
    for hidden in range(1, len(history) + 1):
      longer = prompt
      prompt = env.prompt(history, observation, hidden=hidden)
      if prompt != longer:  # most prompts tell of a few steps only
        ids = tokenizer.encode_prompt(prompt)
      if len(ids) <= limit:
        break
  elif cut and overflow == 'truncate_left':
    ids = ids[-limit:]
  if len(ids) > limit:
    raise ValueError(
      f'config.sampling.prompt_lengths: a prompt has {len(ids)} tokens, '
      f'allowed: {limit} (config.sampling.overflow = {overflow!r})'
    )
  return np.asarray(ids, np.int32), cut


def make_policy(
  sampler: Callable,
  params,
  tokenizer,
  *,
  limit: int,
  overflow: str = 'error',
  temperature: float = 1.0,
  greedy: bool = False,
) -> Policy:
  """The policy of some parameters.

  Args:
    sampler: of `generation.make_sampler`.
    params: of the decoder.
    tokenizer: see `models.tokenizer`.
    limit, overflow: see `encode_prompt`.
    temperature, greedy: see the sampler.
  """

  def answer(prompts, keys):
    samples = sampler(params, prompts, keys, temperature, greedy)
    replies = []
    for row, prompt in enumerate(prompts):
      length = samples.lengths[row]
      said = samples.ids[row, :length]
      logps = samples.logps[row, :length]
      replies.append(Reply(prompt, said, logps, tokenizer.decode(said)))
    return replies

  encode = functools.partial(
    encode_prompt, tokenizer, limit=limit, overflow=overflow
  )
  return Policy(encode, answer)


def collect(
  policy: Policy,
  env: Environment,
  tasks: Sequence[int],
  *,
  attempts: int,
  key: jax.Array,
  iteration: int = 0,
  overlap: bool = False,
) -> list[Transition]:
  """Plays M attempts at each task, all in step; ended ones drop out.

  Args:
    policy: of `make_policy`.
    env: its slots are started anew.
    tasks: B distinct task indices; with several processes those of this one,
      and the others call alike, until all are done.
    attempts: M.
    key: of the run; every draw is keyed by (key, iteration, task, attempt,
      step), whatever else is played beside it.
    iteration: number of the update the rollouts are for.
    overlap: play two halves in turn: while an environment that can
      (`begin_step`) steps one, the policy answers for the other.

  Returns:
    Transitions with the tokens as sampled, in order of step, task, attempt.
  """
  task = np.repeat(np.asarray(tasks, np.int32), attempts)
  attempt = np.tile(np.arange(attempts, dtype=np.int32), len(tasks))
  names = {number: env.task_name(number) for number in tasks}
  slots = _Slots(
    numbers=(task, attempt),
    names=[(names[t], a) for t, a in zip(task.tolist(), attempt.tolist())],
    observations=one_each(env.reset(task.tolist()), len(task), Observation),
    histories=[[] for _ in task],
  )
  played = []
  step_keys = functools.partial(_step_keys, key, iteration)
  games = [
    _play(policy, env, slots, part.tolist(), step_keys, played)
    for part in np.array_split(np.arange(len(task)), 1 + overlap)
  ]
  while games:  # a step of one, then of the other: in order
    games = [game for game in games if next(game, None)]
  return played


class _Slots(NamedTuple):
  """What n slots are playing; the lists change as they do."""

  numbers: tuple  # of task and attempt, [n] each
  names: list  # the same, for the log
  observations: list
  histories: list


def _play(policy, env, slots, active, step_keys, played):
  """Plays some of the slots; yields True whenever a step is under way."""
  for step in range(env.max_steps):
    if not sharding.most([len(active)])[0]:  # others may be playing still
      return
    size = batch_rows(len(active))
    keys = step_keys(*(np.resize(x[active], size) for x in slots.numbers), step)
    shown = [
      policy.encode(env, slots.histories[i], slots.observations[i])
      for i in active
    ]
    replies = policy.answer([ids for ids, _ in shown], keys)
    parsed = [env.parse(reply.text) for reply in replies]
    wait = _begin_step(env, active, [action for action, _ in parsed])
    yield True
    remaining = []
    for i, (_, cut), reply, (action, spelt), outcome in zip(
      active, shown, replies, parsed, one_each(wait(), len(active), Outcome)
    ):
      before = slots.observations[i]
      ids = *slots.names[i], step
      played.append(
        _transition(*ids, before, action, outcome, reply, spelt, cut)
      )
      slots.histories[i].append((before, action))
      slots.observations[i] = outcome.observation
      if not (outcome.terminal or outcome.truncated):
        remaining.append(i)
    active = remaining


def _begin_step(env, slots, actions):
  """A function that waits for the outcomes; they may be there already."""
  if hasattr(env, 'begin_step'):
    return env.begin_step(slots, actions)
  outcomes = env.step(slots, actions)
  return lambda: outcomes


def _transition(
  task, attempt, step, before, action, outcome, reply, spelt, cut
):
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
    prompt_cut=cut,
    score=outcome.score,
    lost=outcome.lost,
  )


def solver_transitions(
  env: Environment, tasks: Sequence[int], tokenizer, encode: Callable
) -> list[Transition]:
  """Plays the environment's own solutions, as token rows to imitate.

  Args:
    encode: of a Policy.

  Raises:
    ValueError: no expert; or a solution that does not end with success, which
      names the task.
  """
  tasks = list(tasks)
  try:
    if hasattr(env, 'solutions'):
      plans = env.solutions(tasks)
    else:
      plans = list(map(env.solution, tasks))
  except NotImplementedError:
    raise ValueError(
      'config.warm_start.steps: the environment has no expert, allowed: 0'
    ) from None
  observations = one_each(env.reset(tasks), len(tasks), Observation)
  histories = [[] for _ in observations]
  transitions, lost = [], set()
  for step in range(max(map(len, plans))):
    active = [i for i, p in enumerate(plans) if step < len(p) and i not in lost]
    outcomes = env.step(active, [plans[i][step] for i in active])
    for i, outcome in zip(active, one_each(outcomes, len(active), Outcome)):
      action = plans[i][step]
      _check_solution(env, tasks[i], plans[i], step, outcome)
      seen, cut = encode(env, histories[i], observations[i])
      text = env.reply(action)
      said = np.asarray(tokenizer.encode_reply(text), np.int32)
      reply = Reply(seen, said, np.zeros(len(said), np.float32), text)
      ids = env.task_name(tasks[i]), 0, step
      transitions.append(
        _transition(*ids, observations[i], action, outcome, reply, True, cut)
      )
      histories[i].append((observations[i], action))
      observations[i] = outcome.observation
      if outcome.lost:
        lost.add(i)
  return transitions


def _check_solution(env, task, plan, step, outcome):
  """Raises ValueError for a plan whose last action is not the first success."""
  flags = {
    'solved': outcome.success,
    'over': outcome.terminal,
    'truncated': outcome.truncated,
    'going on': True,
  }
  found = next(word for word, holds in flags.items() if holds)
  wanted = 'solved' if step + 1 == len(plan) else 'going on'
  if found != wanted and not outcome.lost:
    raise ValueError(
      f'config.env: the solution of {env.task_name(task)}: after action '
      f'{step + 1} of {len(plan)}, {plan[step]!r}, the attempt is {found}, '
      f'allowed: {wanted}'
    )
