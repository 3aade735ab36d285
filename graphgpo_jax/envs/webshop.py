"""WebShop in text: find a product that fits an instruction, and buy it.

Source: arXiv:2207.01206; the engine is our own, see `webshop_pages` for pages
and actions, `webshop_search`, `webshop_reward`, and `webshop_catalogue` for
where the products come from.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphgpo_jax.envs import (
  webshop_oracle,
  webshop_pages,
  webshop_prompts,
  webshop_reward,
)
from graphgpo_jax.envs.base import (
  Observation,
  Outcome,
  check_number,
  check_slots,
)
from graphgpo_jax.envs.webshop_catalogue import (
  CACHE,
  GENERATED,
  Catalogue,
  check_count,
  open_catalogue,
)
from graphgpo_jax.envs.webshop_data import Goal
from graphgpo_jax.envs.webshop_pages import Session

SUCCESS_REWARD = 10.0


class WebShop:
  """WebShop as an `Environment`; the tasks are goals of a catalogue.

  Goals that no purchase of their own product can meet are no tasks, see
  `webshop_goals.reachable`.
  Success is a score of 1, see `webshop_reward.score`; the reward is 10 then
  and 0 otherwise. `Outcome.score` is the score itself, 0 before the purchase.
  The text of an observation is the page, in the words of the prompt style;
  its key names what the page shows, not the way there.
  """

  def __init__(
    self,
    catalogue: Catalogue,
    goals: Sequence[int],
    *,
    max_steps: int = 15,
    prompt: str = 'chat',
    history: int = 2,
  ):
    """Keeps the goals; `reset` starts slots.

    Args:
      catalogue: of `open_catalogue`.
      goals: places of the tasks in its order of goals.
      max_steps: steps after which an attempt is truncated.
      prompt: 'chat', whole pages for a language model, which has to think
        first (see `prompts.parse_tagged`); or 'compact', few words for a small
        decoder with a word tokenizer; needs a generated catalogue.
      history: how many of the last steps a chat prompt shows.

    Raises:
      ValueError: a step limit below 1, another prompt, or a negative history;
        or one of the numbers is not whole.
    """
    check_count('max_steps', max_steps, 1)
    check_count('history', history, 0)
    if prompt not in webshop_prompts.STYLES:
      allowed = webshop_prompts.STYLES
      raise ValueError(f'prompt: found {prompt!r}, allowed: {allowed}')
    self.max_steps, self.num_tasks = max_steps, len(goals)
    self._is_chat, self._history = prompt == 'chat', history
    self.alphabet = '' if self._is_chat else webshop_prompts.alphabet()
    self.catalogue, self._goals = catalogue, goals
    self.reset([])

  def reset(self, tasks: Sequence[int]) -> list[Observation]:
    """Starts one slot per task index, see `Environment`."""
    self._slot_goals = [self.goal(task) for task in tasks]
    self._sessions = [Session() for _ in tasks]
    self._steps = [0] * len(tasks)
    self._finished = [False] * len(tasks)
    return [self._observe(slot, None) for slot in range(len(tasks))]

  def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[Outcome]:
    """Plays one action in each named slot, see `Environment`."""
    check_slots(slots, actions, self._finished)
    return [self._play(slot, action) for slot, action in zip(slots, actions)]

  def prompt(
    self,
    history: Sequence[tuple[Observation, str]],
    observation: Observation,
    *,
    hidden: int = 0,
  ) -> str:
    """Compact: the page and '>'. Chat: task, steps, page and actions."""
    if not self._is_chat:
      return webshop_prompts.compact(observation)
    return webshop_prompts.chat(
      history, observation, shown=self._history, hidden=hidden
    )

  def parse(self, reply: str) -> tuple[str, bool]:
    """Reads an action, in any case, see `Environment`."""
    if not self._is_chat:
      return webshop_prompts.parse_compact(reply)
    return webshop_prompts.parse_chat(reply)

  def reply(self, action: str) -> str:
    """Compact: the action. Chat: a short thought and the action."""
    return webshop_prompts.reply_chat(action) if self._is_chat else action

  def task_name(self, index: int) -> str:
    """Product and combination of options: one goal of the catalogue."""
    self._check_task(index)
    row = self.catalogue.goals[self._goals[index]]
    asin = self.catalogue.product(int(row['product'])).asin
    return f'webshop-{asin}-{row["combination"]}'

  def goal(self, index: int) -> Goal:
    """What a task asks for."""
    self._check_task(index)
    return self.catalogue.goal(int(self._goals[index]))

  def solution(self, index: int) -> list[str]:
    """Actions that buy a product of score 1, see `webshop_oracle.plan`.

    Raises:
      ValueError: its searches find no such product.
    """
    goal = self.goal(index)
    try:
      plan = webshop_oracle.plan(self.catalogue, goal, max_steps=self.max_steps)
    except ValueError as problem:
      raise ValueError(f'{self.task_name(index)}: {problem}') from None
    return plan if self._is_chat else self._shortened(plan)

  def _shortened(self, plan):
    """The plan in compact actions."""
    session, actions = Session(), []
    for action in plan:
      actions.append(webshop_prompts.shorten(self.catalogue, session, action))
      session = self._move(session, action)
    return actions

  def _play(self, slot, action) -> Outcome:
    before = self._sessions[slot]
    if not self._is_chat:
      action = webshop_prompts.expand(self.catalogue, before, action)
    after = self._move(before, action)
    self._sessions[slot] = session = after or before
    self._steps[slot] += 1
    bought = session.page == webshop_pages.DONE
    score = None
    if bought:
      product = self.catalogue.product(session.product)
      score = webshop_reward.score(
        product, session.chosen, self._slot_goals[slot]
      )
    truncated = not bought and self._steps[slot] >= self.max_steps
    self._finished[slot] = bought or truncated
    success = bought and score.is_success
    return Outcome(
      self._observe(slot, score),
      reward=SUCCESS_REWARD * success,
      terminal=bought,
      truncated=truncated,
      success=success,
      valid=after is not None,
      score=score.value if bought else 0.0,
    )

  def _move(self, session: Session, action: str) -> Session | None:
    """The session after an action, or None if it is not one of this page."""
    parts = webshop_prompts.split_action(action)
    if parts is None or not action.isprintable():
      return None
    kind, words = parts
    if kind == 'search':
      return webshop_pages.search(session, words.lower())
    return webshop_pages.click(self.catalogue, session, words)

  def _observe(self, slot, score) -> Observation:
    session, goal = self._sessions[slot], self._slot_goals[slot]
    where = self.catalogue, session
    key = webshop_pages.key(*where)
    if not self._is_chat:
      page = webshop_prompts.compact_page(*where, goal)
      return Observation(page, key, webshop_prompts.compact_actions(*where))
    page = webshop_pages.text(*where, goal.instruction, score and score.value)
    return Observation(page, key, webshop_prompts.chat_actions(*where))

  def _check_task(self, index):
    check_number('task', index, self.num_tasks)


def make(
  *,
  split: str,
  seed: int,
  products: int | None = 1000,
  source: str | Path | Sequence[str | Path] = GENERATED,
  test: float = 500,
  max_steps: int = 15,
  prompt: str = 'chat',
  history: int = 2,
  cache: str | Path = CACHE,
) -> WebShop:
  """`WebShop` on a catalogue of generated or published products.

  Args:
    split: 'train' or 'panel'.
    seed: of the generated catalogue. Published files and the order of goals
      do not depend on it, so that the splits never overlap.
    products: how many; of published files the first so many, None for all.
    source: 'generated', a folder with the published files, or the two files.
    test: how many of the first goals are the panel; below 1 a share.
    max_steps, prompt, history: see `WebShop`.
    cache: folder that keeps what was built from a source.

  Raises:
    ValueError: see `open_catalogue`, `Catalogue.split` and `WebShop`.
  """
  check_count('max_steps', max_steps, 1)  # before anything is built
  check_count('history', history, 0)
  if prompt == 'compact' and source != GENERATED:
    raise ValueError(
      f"prompt: found 'compact', allowed for source {source}: 'chat'; only the "
      'words of a generated catalogue are known'
    )
  catalogue = open_catalogue(source, products=products, seed=seed, cache=cache)
  goals = catalogue.split(split, test).astype(np.int64)
  return WebShop(
    catalogue, goals, max_steps=max_steps, prompt=prompt, history=history
  )
