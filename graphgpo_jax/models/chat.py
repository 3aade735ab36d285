"""The tokenizer and the chat template of a language model, made safe."""

import datetime
import json
import re
from collections.abc import Sequence

import jinja2
import jinja2.sandbox
import tokenizers

DATE = '2024-07-26'

# A code point that Unicode keeps out of texts. Inside a ChatTokenizer it begins
# the spelling of every control token, so that no text can spell one.
_MARK = '\ufdd0'
_UNUSABLE = re.compile(f'[{_MARK}\ud800-\udfff]')


class ChatTokenizer:
  """A tokenizer whose prompts are one user message in a chat template.

  The ids of a prompt are those of transformers' `apply_chat_template`, with
  one exception: where the message spells a control token, such as <|im_end|>,
  the spelling becomes ordinary text, so that an observation cannot end its
  turn and speak for somebody else. Two steps do it. A mark inside the
  message's own spellings tells them from the template's while the template is
  rendered. And the tokenizer inside knows each control token by another
  spelling, which begins with the mark; only the template's are changed to it.
  The mark is U+FDD0; in a message it is read as U+FFFD, and so is half a
  surrogate pair.

  Control tokens are the special ones, the named ones and those that stop. One
  of a single character is not guarded.
  `tokenizer.from_folder` and `tokenizer.from_gguf` build one.
  """

  def __init__(
    self,
    definition: dict,
    template: str,
    *,
    named: dict[str, str],
    stop_ids: Sequence[int],
    source: str,
    template_source: str,
    system: str | None = None,
    enable_thinking: bool | None = None,
    date: str = DATE,
  ):
    """Makes the inner tokenizer, compiles the template and tries it once.

    Args:
      definition: what a tokenizer.json holds.
      template: jinja2 source.
      named: bos_token, eos_token, unk_token and pad_token, where there are.
        Sampling stops at eos_token; the first stop pads without a pad_token.
      stop_ids: more ids to stop at.
      source, template_source: the files, for messages.
      system: text of a system message; None leaves it to the template.
      enable_thinking: passed to the template unless None.
      date: YYYY-MM-DD. A template that prints today's date prints this one.

    Raises:
      ValueError: an unusable definition or template, a stop id that is no
        token, or nothing to stop at.
    """
    self.source, self._template_source = source, template_source
    controls = self._build(definition, set(named.values()), stop_ids)
    self.stop_ids = self._find_stops(controls, named, stop_ids)
    self.pad_id = controls.get(named.get('pad_token'), self.stop_ids[0])
    spellings = sorted(controls, key=len, reverse=True)
    either = '|'.join(map(re.escape, spellings))
    self._spelling = re.compile(f'{_MARK}|{either}')
    self._spelling_start = re.compile(f'(?s)(?=(?:{either}))(.)')
    self._starts = {text[:n] for text in spellings for n in range(1, len(text))}
    self._longest_start = len(spellings[0]) - 1
    self._system = system
    self._variables = named | {'tools': None, 'documents': None}
    if enable_thinking is not None:
      self._variables['enable_thinking'] = enable_thinking
    self._template = compile_template(
      template, source=template_source, date=date
    )
    self.encode_prompt('Is it there?')
    self._end_of_turn = self._find_end_of_turn()

  def render(self, text: str) -> str:
    """The prompt as text, as the template writes it.

    Raises:
      ValueError: the template raises.
    """
    return self._render(text).replace(_MARK, '')

  def encode_prompt(self, text: str) -> list[int]:
    """Ids of one user message in the chat template, ready to be answered.

    Raises:
      ValueError: the template raises.
    """
    return self._encode(self._render(text))

  def encode_reply(self, text: str) -> list[int]:
    """Ids of a reply and, behind them, of the stop that ends a turn."""
    return [*self._encode(self._protect(text)), self._end_of_turn]

  def decode(self, ids: Sequence[int]) -> str:
    """The text of ids without control tokens; an id of no token adds nothing.

    Raises:
      ValueError: a negative id.
    """
    ids = list(map(int, ids))
    if ids and min(ids) < 0:
      raise ValueError(f'id {min(ids)} is not in the vocabulary')
    return self._tokenizer.decode(ids, skip_special_tokens=True)

  def _build(self, definition, named, stop_ids) -> dict[str, int]:
    """Makes the inner tokenizer; returns spelling -> id of control tokens."""
    try:
      definition, controls = _respell(definition, named, stop_ids)
      self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))
    except Exception as problem:  # The library raises just that.
      raise ValueError(
        f'{self.source}: no tokenizer that can be read: '
        f'{type(problem).__name__}: {_one_line(problem)}'
      ) from None
    self.vocab_size = 1 + max(self._tokenizer.get_vocab().values())
    for token in definition['added_tokens']:
      place = self._tokenizer.token_to_id(token['content'])
      if place != token['id']:
        raise ValueError(
          f'{self.source}: id of {token["content"].strip(_MARK)!r}: found '
          f'{token["id"]}, allowed: {place}, its place in the vocabulary'
        )
    return controls

  def _find_stops(self, controls, named, stop_ids) -> tuple[int, ...]:
    eos = controls.get(named.get('eos_token'))
    stops = tuple(dict.fromkeys([*([] if eos is None else [eos]), *stop_ids]))
    for stop in stops:
      if stop not in controls.values():
        raise ValueError(
          f'{self.source}: eos_token_id: found {stop!r}, allowed: ids of '
          f'tokens, 0 to {self.vocab_size - 1}'
        )
    if not stops:
      raise ValueError(
        f'{self.source}: eos_token: found {named.get("eos_token")!r}, allowed: '
        'a token of the vocabulary, to stop sampling'
      )
    return stops

  def _find_end_of_turn(self) -> int:
    """The stop id that the template puts behind a reply, or the first one."""
    reply = 'Here it is.'
    try:
      chat = self._render('Is it there?', reply)
    except ValueError:  # It serves without replies as well.
      return self.stop_ids[0]
    ids = self._encode(chat.rpartition(reply)[2])
    return next((i for i in ids if i in self.stop_ids), self.stop_ids[0])

  def _render(self, text: str, reply: str | None = None) -> str:
    """The chat, with marks in the spellings that are not the template's."""
    turns = {'system': self._system, 'user': text, 'assistant': reply}
    messages = [
      {'role': role, 'content': self._protect(content)}
      for role, content in turns.items()
      if content is not None
    ]
    try:
      return self._template.render(
        messages=messages,
        add_generation_prompt=reply is None,
        **self._variables,
      )
    except Exception as problem:  # A template is a program.
      raise ValueError(
        f'{self._template_source}: the chat template raises: '
        f'{_one_line(problem)}'
      ) from None

  def _protect(self, text: str) -> str:
    """Marks behind the first character of every spelling, also overlapping."""
    text = end = _UNUSABLE.sub('\ufffd', text)
    # The template might complete what the end of the text begins.
    for length in range(1, min(len(end), self._longest_start) + 1):
      if end[-length:] in self._starts:
        first = len(end) - length + 1
        text = text[:first] + _MARK + text[first:]
    return self._spelling_start.sub(rf'\1{_MARK}', text)

  def _encode(self, rendered: str) -> list[int]:
    text = self._spelling.sub(
      lambda found: '' if found[0] == _MARK else _MARK + found[0], rendered
    )
    return self._tokenizer.encode(text, add_special_tokens=False).ids


def compile_template(template: str, *, source: str, date: str):
  """Compiles a chat template in a sandbox, with what transformers gives it.

  Args:
    template: jinja2 source.
    source: its file, for messages.
    date: YYYY-MM-DD, what strftime_now takes for today.

  Returns:
    A jinja2.Template.

  Raises:
    ValueError: the source is not jinja2.
  """
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=['jinja2.ext.loopcontrols'],
  )
  environment.filters['tojson'] = _to_json
  environment.globals['raise_exception'] = _raise_exception
  environment.globals['strftime_now'] = datetime.datetime.fromisoformat(
    date
  ).strftime
  # These tags mark the model's own words, which are known here by length.
  template = re.sub(r'(\{%[-+]?\s*)generation\b', r'\1if true', template)
  template = re.sub(r'(\{%[-+]?\s*)endgeneration\b', r'\1endif', template)
  try:
    return environment.from_string(template)
  except jinja2.TemplateSyntaxError as problem:
    raise ValueError(
      f'{source}: chat template, line {problem.lineno}: {_one_line(problem)}'
    ) from None


def _raise_exception(message):
  raise jinja2.TemplateError(message)


def _to_json(value, ensure_ascii=False, **options):
  """Unlike jinja2's own, without escapes for HTML."""
  return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _one_line(problem):
  return ' '.join(str(problem).split())


def _respell(definition, named, stop_ids):
  """Gives control tokens spellings that begin with the mark.

  Returns:
    (definition of the inner tokenizer, spelling outside -> id of its control
    tokens).
  """
  model = definition['model']
  vocabulary = model['vocab']
  listed = isinstance(vocabulary, list)  # [piece, score], of Unigram.
  pieces = [piece for piece, _ in vocabulary] if listed else vocabulary
  ids = {p: i for i, p in enumerate(pieces)} if listed else dict(vocabulary)
  added = {token['content']: token for token in definition['added_tokens']}
  ids |= {text: token['id'] for text, token in added.items()}
  controls = {
    text: i
    for text, i in ids.items()
    if text in named
    or i in stop_ids
    or (text in added and added[text]['special'])
  }
  new = {text: _MARK + text for text in controls}
  flags = dict.fromkeys(
    ('single_word', 'lstrip', 'rstrip', 'normalized'), False
  )
  tokens = [
    {**flags, 'special': True, **added.get(text, {}), 'id': ids[text]}
    | {'content': new.get(text, text)}
    | ({'special': True} if text in controls else {})
    for text in sorted(added.keys() | controls.keys(), key=ids.get)
  ]
  model = model | {
    'vocab': [[new.get(piece, piece), score] for piece, score in vocabulary]
    if listed
    else {new.get(text, text): i for text, i in vocabulary.items()}
  }
  if model.get('unk_token') in new:
    model['unk_token'] = new[model['unk_token']]
  # Cutting, padding and what is put around a text are not asked for.
  unused = dict.fromkeys(('truncation', 'padding', 'post_processor'))
  return definition | {
    'model': model,
    'added_tokens': tokens,
  } | unused, controls
