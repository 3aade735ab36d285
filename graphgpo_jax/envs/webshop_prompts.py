"""WebShop in words: what a model is shown, and the actions it may answer with.

Two styles. 'chat' shows the whole page to a language model, which thinks and
then names search[...] or click[...]. 'compact' is for a small decoder with a
vocabulary of words: a few words per line, and short actions such as
`search red cotton shirt`, `click 3`, `click red`, `prev`, `buy`.
"""

import functools
import math
import re
from collections.abc import Sequence

from graphgpo_jax.envs import prompts, webshop_generated, webshop_pages
from graphgpo_jax.envs.base import Observation
from graphgpo_jax.envs.webshop_catalogue import Catalogue
from graphgpo_jax.envs.webshop_data import NO_CAP, Goal
from graphgpo_jax.envs.webshop_pages import (
  BACK,
  BUY,
  DETAILS,
  NEXT,
  PREVIOUS,
  Session,
)

STYLES = ('chat', 'compact')
QUERY = '<your query>'  # stands for any words in the offered actions

_ACTION = re.compile(r'(search|click)\[(.+)\]')
_CONTROL = re.compile('[<|>]')  # signs that tokens like <|im_end|> need
_INSTRUCTION = 'Instruction:'
_LONGEST = 200  # characters of an action that a prompt repeats
_TITLE_WORDS = 3  # of a compact title
_END = '>'  # of a compact prompt

# Compact words of the fixed buttons.
_WORDS = {'buy': BUY, 'back': BACK, 'next': NEXT, 'prev': PREVIOUS} | {
  name.lower(): name for name in DETAILS
}
_BUTTON_WORDS = {name.lower(): word for word, name in _WORDS.items()}
_SHORT = re.compile(rf'(search|click) (.+)|{"|".join(_WORDS)}')
_FRAME = 'find under page item chosen done visited'

_TASK = """\
You are shopping in a web shop. You have to buy a product that fits this \
instruction:
{instruction}
"""
_STEPS = """\
You have taken {count} steps. The last {shown}, each with the page it was \
taken on:
"""
_NOW = """\
You are at step {step}, on this page:
{page}
You may take one of these actions:
{actions}
"""


def split_action(action: str) -> tuple[str, str] | None:
  """('search' or 'click', what is in the brackets), or None."""
  match = _ACTION.fullmatch(action)
  return match and match.groups()


def chat(
  history: Sequence[tuple[Observation, str]],
  observation: Observation,
  *,
  shown: int,
  hidden: int = 0,
) -> str:
  """Task, last steps with their pages, current page, offered actions.

  Args:
    history, observation, hidden: see `Environment.prompt`.
    shown: how many of the last steps to show, at most.
  """
  instruction, page = _split_page(observation.text)
  parts = [_TASK.format(instruction=instruction)]
  last = prompts.told(history, shown, hidden)
  if last:
    parts.append(_STEPS.format(count=len(history), shown=len(last)))
  first = len(history) - len(last) + 1
  for step, (before, action) in enumerate(last, first):
    parts.append(f'Page {step}:\n{_split_page(before.text)[1]}\n')
    parts.append(f'Action {step}: {_repeated(before, action)}\n')
  actions = '\n'.join(observation.admissible)
  now = _NOW.format(step=len(history) + 1, page=page, actions=actions)
  return ''.join([*parts, now, prompts.REQUEST])


def _repeated(before, action):
  """An action as a prompt tells it: nothing endless, no control tokens."""
  kind, _ = split_action(action) or ('', '')
  if kind == 'search' and action.isprintable():
    return _CONTROL.sub('', action)[:_LONGEST]
  return action if action in before.admissible else 'no valid action'


def _split_page(text):
  """(instruction, the page without it)."""
  before, found, after = text.partition(_INSTRUCTION)
  if not found:
    return '', text
  instruction, _, after = after.lstrip(' ').lstrip('\n').partition('\n')
  return instruction, before + after


def parse_chat(reply: str) -> tuple[str, bool]:
  """Reads search[...] or click[...] in small letters, see `Environment`."""
  action, valid = prompts.parse_tagged(reply)
  action = action.lower()
  return (action, valid) if split_action(action) else (reply, False)


def reply_chat(action: str) -> str:
  """A short thought and the action."""
  kind, words = split_action(action) or ('do', action)
  return prompts.tagged_reply(f'I {kind} {words}.', action)


def chat_actions(catalogue: Catalogue, session: Session) -> tuple[str, ...]:
  """The offered actions of a page."""
  buttons = webshop_pages.buttons(catalogue, session)
  clicks = tuple(f'click[{button.text.lower()}]' for button in buttons)
  if session.page == webshop_pages.SEARCH:
    return (f'search[{QUERY}]', *clicks)
  return clicks


def compact_page(catalogue: Catalogue, session: Session, goal: Goal) -> str:
  """A page in few words, one thing per line, the goal first.

  Results: rank, words of the title, price in whole dollars, and 'visited'.
  Items: title and price, each option with its values, what is chosen.
  """
  # Words to repeat all have a blank before them, so that they are one token.
  wanted = ['find', *goal.attributes, goal.product.query]
  for pair in goal.options:
    wanted += pair
  cap = [] if goal.cap >= NO_CAP else ['under', f'{goal.cap:.0f}']
  lines = [[*wanted, *cap]]
  if session.page == webshop_pages.RESULTS:
    lines.append(['page', str(session.number)])
    found = webshop_pages.shown_products(catalogue, session)
    for rank, number in enumerate(found, 1):
      mark = ['visited'] if number in session.visited else []
      lines.append([str(rank), *_offer(catalogue.product(number)), *mark])
  elif session.page in (webshop_pages.SEARCH, webshop_pages.DONE):
    lines.append([session.page])
  else:
    product = catalogue.product(session.product)
    lines.append(['item', *_offer(product)])
    if session.page == webshop_pages.ITEM:
      lines += [[name, *values] for name, values in product.options.items()]
      lines.append(['chosen', *session.chosen.values()])
    else:
      lines.append([session.page.lower(), *product.attributes])
  return '\n'.join(' '.join(line) for line in lines)


def _offer(product):
  words = product.title.lower().split()[:_TITLE_WORDS]
  return [*words, str(math.ceil(product.price))]


def compact(observation: Observation) -> str:
  """The page, which shows all; no earlier steps."""
  return f'{observation.text}\n{_END}'


def compact_actions(catalogue: Catalogue, session: Session) -> tuple[str, ...]:
  """The offered actions of a page."""
  if session.page == webshop_pages.SEARCH:
    return (f'search {QUERY}',)
  offered, rank = [], 0
  for button in webshop_pages.buttons(catalogue, session):
    if button.product is not None:
      rank += 1
      offered.append(f'click {rank}')
    elif button.option is not None:
      offered.append(f'click {button.text}')
    else:
      offered.append(_BUTTON_WORDS[button.text.lower()])
  return tuple(offered)


def parse_compact(reply: str) -> tuple[str, bool]:
  """Reads a short action, in any case, see `Environment`."""
  action = ' '.join(reply.lower().split())
  return (action, True) if _SHORT.fullmatch(action) else (reply, False)


def expand(catalogue: Catalogue, session: Session, action: str) -> str:
  """The action of the shop that a compact one means on this page.

  Of what is no compact action nothing is left.
  """
  match = _SHORT.fullmatch(action)
  if not match:
    return ''
  kind, words = match.groups()
  if kind is None:
    return f'click[{_WORDS[action]}]'
  if kind == 'click' and session.page == webshop_pages.RESULTS:
    ranks = webshop_pages.shown_products(catalogue, session)
    if words.isdecimal() and 1 <= int(words) <= len(ranks):
      return f'click[{catalogue.product(ranks[int(words) - 1]).asin}]'
  return f'{kind}[{words}]'


def shorten(catalogue: Catalogue, session: Session, action: str) -> str:
  """The compact action that `expand` makes into an offered one."""
  kind, words = split_action(action)
  if kind == 'click' and session.page == webshop_pages.RESULTS:
    for rank, number in enumerate(
      webshop_pages.shown_products(catalogue, session), 1
    ):
      if catalogue.product(number).asin.lower() == words.lower():
        return f'click {rank}'
  return _BUTTON_WORDS.get(words.lower(), f'{kind} {words}')


@functools.cache
def alphabet() -> tuple[str, ...]:
  """All words of compact prompts and actions on a generated catalogue."""
  numbers = range(1, webshop_generated.highest_price() + 41)
  words = [
    *(_END, 'search', 'click', *_WORDS, *_FRAME.split()),
    *map(str, numbers),
    *webshop_generated.vocabulary(),
  ]
  return tuple(dict.fromkeys(words))
