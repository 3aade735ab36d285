"""A tokenizer of single characters, for small text worlds."""

PAD_ID = 0
EOS_ID = 1


class CharTokenizer:
  """One token per character: pad is 0, end of sequence 1, alphabet[i] i + 2.

  Args:
    alphabet: a string of distinct characters.

  Raises:
    ValueError: a character occurs twice.
  """

  pad_id = PAD_ID
  eos_id = EOS_ID

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
