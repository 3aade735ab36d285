"""How chat models are asked for an action, and how their replies are read."""

import re
from collections.abc import Sequence

REQUEST = (
  'Think inside <think></think>, then answer with one action inside '
  '<action></action>.'
)

_TAG = re.compile('</?(?:think|action)>')
_THINK, _ACTION = ['<think>', '</think>'], ['<action>', '</action>']


def told(history: Sequence, most: int, hidden: int) -> Sequence:
  """The steps of a history that a prompt tells of, oldest first.

  Args:
    most: the last so many.
    hidden: see `Environment.prompt`.
  """
  # history[-0:] would be all of it.
  return history[max(hidden, len(history) - most) :]


def tagged_reply(thought: str, action: str) -> str:
  """A reply that `parse_tagged` reads as the action."""
  return f'<think>{thought}</think><action>{action}</action>'


def parse_tagged(reply: str) -> tuple[str, bool]:
  """Reads the action out of a reply that thinks first; never raises.

  A valid reply has the four tags once each, in the order of `tagged_reply`,
  and words in both blocks. Text outside of the blocks does not matter. Takes
  time linear in the length of the reply.

  Returns:
    (action, valid). The action is the text of the one action block, with
    single spaces. It is returned with False where the thought is missing,
    empty or misplaced; without one action block the reply itself is.
  """
  tags = list(_TAG.finditer(reply))
  spelt = [tag[0] for tag in tags]
  start = next((i for i, tag in enumerate(spelt) if tag in _ACTION), 0)
  is_one = spelt[start : start + 2] == _ACTION
  if not is_one or sum(tag in _ACTION for tag in spelt) != 2:
    return reply, False
  words = reply[tags[start].end() : tags[start + 1].start()].split()
  if not words:
    return reply, False
  action = ' '.join(words)
  if spelt != _THINK + _ACTION:
    return action, False
  return action, bool(reply[tags[0].end() : tags[1].start()].strip())
