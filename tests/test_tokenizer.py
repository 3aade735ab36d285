import numpy as np
import pytest

from graphgpo_jax.models.tokenizer import CharTokenizer


def test_ids_typed_in():
  tokenizer = CharTokenizer('#_√')
  assert tokenizer.vocab_size == 5
  assert (tokenizer.pad_id, tokenizer.eos_id) == (0, 1)
  assert tokenizer.encode('√#_#') == [4, 2, 3, 2]
  assert tokenizer.encode('') == []


def test_decode_skips_pad_and_end():
  tokenizer = CharTokenizer('ab')
  ids = np.array([0, 2, 3, 1, 2, 0, 0], np.int32)
  assert tokenizer.decode(ids) == 'aba'
  assert tokenizer.decode(tokenizer.encode('abba')) == 'abba'


def test_unknown_character_names_it_and_its_position():
  with pytest.raises(ValueError, match="'x' at position 2"):
    CharTokenizer('ab').encode('abxb')


@pytest.mark.parametrize('token', [4, -1])
def test_unknown_id_names_it_and_its_position(token):
  with pytest.raises(ValueError, match=f'id {token} at position 1'):
    CharTokenizer('ab').decode([2, token])


def test_repeated_character_is_refused():
  with pytest.raises(ValueError, match="'b' twice"):
    CharTokenizer('abcb')
