"""Chat tokenizers on vocabularies of a few pieces, typed in."""

import pytest

from graphgpo_jax.models.chat import ChatTokenizer


def unigram(pieces):
  return {
    'added_tokens': [],
    'model': {
      'type': 'Unigram',
      'unk_id': 0,
      'vocab': [[piece, -1.0] for piece in pieces],
    },
    'decoder': {'type': 'Fuse'},
  }


def token(i, text):
  flags = ('single_word', 'lstrip', 'rstrip', 'normalized')
  return {'id': i, 'content': text, 'special': True} | dict.fromkeys(
    flags, False
  )


def chat(definition, template, *, named, **options):
  names = dict(zip(['eos_token'], named))
  files = {'source': 'T', 'template_source': 'C'}
  settings = {'named': names, 'stop_ids': []} | files | options
  return ChatTokenizer(definition, template, **settings)


def render(template, text='hi', **options):
  definition = unigram(['<unk>', '</s>'])
  return chat(definition, template, named=['</s>'], **options).render(text)


def test_overlapping_control_tokens_are_all_kept_apart():
  controls = ['aba', 'abac', 'bac', 'ca']
  definition = unigram(['<unk>', 'a', 'b', 'c', *controls])
  definition['added_tokens'] = list(map(token, range(4, 8), controls))
  tokenizer = chat(definition, '{{ messages[0].content }}abaca', named=['bac'])
  assert tokenizer.encode_prompt('') == [5, 1]
  assert tokenizer.encode_prompt('abac') == [1, 2, 1, 3, 5, 1]
  assert tokenizer.encode_prompt('abaaba') == [1, 2, 1, 1, 2, 1, 5, 1]


def test_template_completes_no_control_token():
  controls = ['aab', 'ab', 'acb']
  definition = unigram(['<unk>', 'a', 'b', 'c', *controls])
  definition['added_tokens'] = list(map(token, range(4, 7), controls))
  tokenizer = chat(definition, '{{ messages[0].content }}bab', named=['ab'])
  assert tokenizer.encode_prompt('') == [2, 5]
  assert tokenizer.encode_prompt('aa') == [1, 1, 2, 5]
  assert tokenizer.encode_prompt('ac') == [1, 3, 2, 5]


def test_named_tokens_and_stops_are_control_even_if_not_special():
  definition = unigram(['<unk>', 'u', 'p', '</s>', '<', '/', 's', '>', '|'])
  definition['added_tokens'] = [token(8, '|') | {'special': False}]
  template = '{{ messages[0].content }}{{ eos_token }}'
  tokenizer = chat(definition, template, named=['</s>'], stop_ids=[8])
  assert tokenizer.encode_prompt('up') == [1, 2, 3]
  assert tokenizer.encode_prompt('up</s>') == [1, 2, 4, 5, 6, 7, 3]
  assert tokenizer.decode([1, 3, 8, 2]) == 'up'


def test_unknown_words_of_a_vocabulary_of_words():
  model = {'type': 'WordLevel', 'unk_token': '?', 'vocab': {'?': 0, 'up': 1}}
  definition = {'added_tokens': [token(0, '?')], 'model': model}
  tokenizer = chat(definition, '{{ messages[0].content }}', named=['?'])
  assert tokenizer.encode_prompt('up') == [1]
  assert tokenizer.encode_prompt('down') == [0]


def test_template_variables_and_filters():
  date = '{{ strftime_now("%d %b %Y") }}'
  assert render(date) == '26 Jul 2024'
  assert render(date, date='2025-01-02') == '02 Jan 2025'
  thinking = '{{ enable_thinking is defined and enable_thinking }}'
  assert render(thinking) == 'False'
  assert render(thinking, enable_thinking=True) == 'True'
  assert render('{{ messages[0].content | tojson }}', 'é<"') == '"é<\\""'
  assert render('{{ tools is none and documents is none }}') == 'True'
  assert render('{{ bos_token }}{{ eos_token }}') == '</s>'
  assert (
    render('{% if true %}\n  {% if true %}\na\n{% endif %}{% endif %}') == 'a\n'
  )
  assert render('{%- generation -%} a {%- endgeneration -%} b') == 'ab'


def test_template_is_sandboxed():
  with pytest.raises(ValueError, match='C: the chat template raises'):
    render('{{ messages.__class__.__mro__[1].__subclasses__() }}')
  with pytest.raises(ValueError, match='C: the chat template raises'):
    render('{% set _ = messages.append(1) %}')


@pytest.mark.parametrize(
  'template, complaint',
  [
    ('a\n{% if %}', 'C: chat template, line 2: '),
    (
      '{{ raise_exception("no\nroom") }}',
      'C: the chat template raises: no room',
    ),
    ('{{ messages[0].content.nothing.more }}', 'C: the chat template raises'),
    ('{{ 1 // 0 }}', 'C: the chat template raises'),
  ],
)
def test_bad_templates_are_refused(template, complaint):
  with pytest.raises(ValueError, match=complaint) as caught:
    render(template)
  assert '\n' not in str(caught.value)
