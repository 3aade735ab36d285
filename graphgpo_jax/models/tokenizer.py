"""Tokenizers: characters for small worlds, chats for language models.

All have one interface; ids are plain lists of int:
  encode_prompt(text): what the model is shown.
  encode_reply(text): what the model would say, for a supervised warm start.
  decode(ids): the text of sampled ids, without control tokens.
  stop_ids: sampling ends after one of these.
  pad_id, vocab_size, source: fills rows; number of ids; where it comes from.
Sampled ids are only ever decoded: nothing encodes their text again.
"""

import json
import pathlib
from typing import Any

from graphgpo_jax.models.chat import ChatTokenizer
from graphgpo_jax.models.gguf_metadata import read_gguf_metadata

PAD_ID = 0
EOS_ID = 1

# For a GGUF of SmolLM2 without a template of its own.
SMOLLM2_TEMPLATE = (
  "{% if messages[0]['role'] != 'system' %}<|im_start|>system\n"
  'You are a helpful AI assistant named SmolLM, trained by Hugging Face'
  '<|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>'
  "{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
)

# Names of tokens in a tokenizer_config.json, and in a GGUF.
_NAMED = {
  'bos_token': 'bos_token_id',
  'eos_token': 'eos_token_id',
  'unk_token': 'unknown_token_id',
  'pad_token': 'padding_token_id',
}


class CharTokenizer:
  """One token per character: pad is 0, end of sequence 1, alphabet[i] i + 2.

  Prompts and replies are the characters alone, without an end.

  Args:
    alphabet: a string of distinct characters.

  Raises:
    ValueError: a character occurs twice.
  """

  pad_id = PAD_ID
  stop_ids = (EOS_ID,)
  source = 'the alphabet'

  def __init__(self, alphabet):
    self._ids = {character: i for i, character in enumerate(alphabet, start=2)}
    if len(self._ids) != len(alphabet):
      twice = next(c for c in alphabet if alphabet.count(c) > 1)
      raise ValueError(f'alphabet holds {twice!r} twice')
    self._characters = {i: character for character, i in self._ids.items()}

  @property
  def vocab_size(self):
    """Number of ids, pad and end of sequence included."""
    return len(self._ids) + 2

  def encode(self, text):
    """List of ids of a string, without an end; ValueError if not spellable."""
    ids = []
    for position, character in enumerate(text):
      if character not in self._ids:
        raise ValueError(
          f'character {character!r} at position {position} is not in the '
          'alphabet'
        )
      ids.append(self._ids[character])
    return ids

  def encode_prompt(self, text):
    """See `encode`."""
    return self.encode(text)

  def encode_reply(self, text):
    """See `encode`."""
    return self.encode(text)

  def decode(self, ids):
    """String of a sequence of ids; skips pad and end, wherever they are.

    Raises:
      ValueError: an id outside the vocabulary.
    """
    characters = []
    for position, token in enumerate(map(int, ids)):
      if token in (PAD_ID, EOS_ID):
        continue
      if token not in self._characters:
        raise ValueError(
          f'id {token} at position {position} is not in the vocabulary of '
          f'{self.vocab_size}'
        )
      characters.append(self._characters[token])
    return ''.join(characters)


def check_vocabulary(tokenizer, vocab_size: int) -> None:
  """Raises ValueError if a tokenizer has ids for which a model has no row.

  Args:
    tokenizer: of this module.
    vocab_size: rows of the model's embedding; more of them than ids are fine.
  """
  if tokenizer.vocab_size > vocab_size:
    raise ValueError(
      f'{tokenizer.source}: found a vocabulary of {tokenizer.vocab_size}, '
      f'allowed: at most {vocab_size}, the rows of the model'
    )


def load_tokenizer(path: str | pathlib.Path, **options: Any) -> ChatTokenizer:
  """`from_gguf` of a .gguf file, `from_folder` of anything else."""
  load = from_gguf if str(path).endswith('.gguf') else from_folder
  return load(path, **options)


def from_folder(folder: str | pathlib.Path, **options: Any) -> ChatTokenizer:
  """The tokenizer in a model folder of the Hugging Face layout.

  Reads tokenizer.json; tokenizer_config.json for the named tokens; the chat
  template from chat_template.jinja, else from tokenizer_config.json; and from
  generation_config.json eos_token_id, a number or a list, for more stops.

  Args:
    folder: with those files.
    **options: system, enable_thinking, date: see `ChatTokenizer`.

  Raises:
    ValueError: a file is missing or broken, there is no chat template, or
      nothing to stop at; the message names the file.
  """
  folder = pathlib.Path(folder)
  definition = _read_json(folder / 'tokenizer.json')
  if not definition:
    raise ValueError(
      f'{folder / "tokenizer.json"}: found nothing, allowed: the folder of a '
      'model and its tokenizer'
    )
  config = _read_json(folder / 'tokenizer_config.json')
  named = {}
  for name in _NAMED:
    token = config.get(name)
    token = token.get('content') if isinstance(token, dict) else token
    if token is not None:
      named[name] = token
  ends = _read_json(folder / 'generation_config.json').get('eos_token_id')
  ends = [] if ends is None else ends
  template, template_source = _read_template(folder, config)
  return ChatTokenizer(
    definition,
    template,
    named=named,
    stop_ids=ends if isinstance(ends, list) else [ends],
    source=str(folder / 'tokenizer.json'),
    template_source=str(template_source),
    **options,
  )


def from_gguf(path: str | pathlib.Path, **options: Any) -> ChatTokenizer:
  """The tokenizer in a GGUF file: byte-level BPE as SmolLM2 has it.

  The chat template is the file's, or SmolLM2's where it has none.

  Args:
    path: of the file.
    **options: system, enable_thinking, date: see `ChatTokenizer`.

  Raises:
    ValueError: no such file, not a GGUF, or another kind of tokenizer.
  """
  metadata = read_gguf_metadata(path)
  prefix = 'tokenizer.ggml.'
  fields = {
    key.removeprefix(prefix): value
    for key, value in metadata.items()
    if key.startswith(prefix)
  }
  kind = fields.get('model'), fields.get('pre')
  if kind != ('gpt2', 'smollm'):
    raise ValueError(
      f"{path}: tokenizer: found {kind}, allowed: ('gpt2', 'smollm')"
    )
  parts = [fields.get(key) for key in ('tokens', 'token_type', 'merges')]
  if None in parts:
    raise ValueError(
      f'{path}: tokenizer: found only {sorted(fields)}, allowed: with tokens, '
      'token_type and merges'
    )
  end_of_turn = fields.get('eot_token_id')
  return ChatTokenizer(
    _smollm_definition(*parts),
    metadata.get('tokenizer.chat_template', SMOLLM2_TEMPLATE),
    named={
      name: parts[0][fields[key]]
      for name, key in _NAMED.items()
      if 0 <= fields.get(key, -1) < len(parts[0])
    },
    stop_ids=[] if end_of_turn is None else [end_of_turn],
    source=str(path),
    template_source=str(path),
    **options,
  )


def _smollm_definition(tokens, types, merges):
  """A tokenizer.json: digits one by one, GPT-2's words, byte-level BPE."""
  byte_level = {
    'type': 'ByteLevel',
    'add_prefix_space': False,
    'trim_offsets': True,
    'use_regex': True,
  }
  digits = {'type': 'Digits', 'individual_digits': True}
  flags = dict.fromkeys(
    ('single_word', 'lstrip', 'rstrip', 'normalized'), False
  )
  return {
    # Of the types 3 is a control token and 4 one that was added as a whole.
    'added_tokens': [
      {'id': i, 'content': text, 'special': kind == 3, **flags}
      for i, (text, kind) in enumerate(zip(tokens, types))
      if kind in (3, 4)
    ],
    'pre_tokenizer': {
      'type': 'Sequence',
      'pretokenizers': [digits, byte_level],
    },
    'decoder': byte_level,
    'model': {
      'type': 'BPE',
      'vocab': {text: i for i, text in enumerate(tokens)},
      'merges': [merge.split(' ', 1) for merge in merges],
    },
  }


def _read_template(folder, config):
  """The template and the file that it is in."""
  path = folder / 'chat_template.jinja'
  if path.is_file():
    return path.read_text(encoding='utf-8'), path
  path = folder / 'tokenizer_config.json'
  template = config.get('chat_template')
  if isinstance(template, list):
    parts = [part for part in template if isinstance(part, dict)]
    named = {part.get('name'): part.get('template') for part in parts}
    template = named.get('default')
  if not isinstance(template, str):
    raise ValueError(
      f'{path}: chat_template: found none, allowed: a template here or in '
      'chat_template.jinja'
    )
  return template, path


def _read_json(path):
  """The object in a file; empty where there is no file."""
  if not path.is_file():
    return {}
  try:
    found = json.loads(path.read_text(encoding='utf-8'))
  except ValueError as problem:
    raise ValueError(f'{path}: not JSON: {problem}') from None
  if not isinstance(found, dict):
    raise ValueError(f'{path}: found a {type(found).__name__}, allowed: object')
  return found
