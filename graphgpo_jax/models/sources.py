"""Checkpoint files on disk: which tensors they hold, read part by part."""

import json
import pathlib
import re
from collections.abc import Callable
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from graphgpo_jax.models import families, gguf_tensors

WHOLE = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
_TYPES = {'F32', 'F16', 'BF16'}
# Tables that a reader computes itself.
_HARMLESS = re.compile(r'rotary_emb\.inv_freq$')


class Source(NamedTuple):
  """The tensors of a checkpoint, none of them read yet.

  Args:
    names: parameter path to tensor name, {} for the number of the layer.
    tensors: tensor name to (file, shape, type or None where it is known).
    homes: tensor name to the file that should hold it; may be empty.
    file: the one to blame for other tensors.
    unreadable: file to what is wrong with it.
    read: (tensor name, index) to the values there, a numpy array.
  """

  names: dict
  tensors: dict
  homes: dict
  file: str
  unreadable: dict
  read: Callable


def is_gguf(path) -> bool:
  """Whether a path names a GGUF file, by its suffix."""
  return pathlib.Path(path).suffix == '.gguf'


def open_source(path) -> Source:
  """The tensors of a Hugging Face folder or of a .gguf file.

  Raises:
    ValueError: neither is there; a shard that can't be read does not raise.
  """
  return _open_gguf(path) if is_gguf(path) else _open_folder(path)


def read_json(path) -> dict:
  """An object from a file.

  Raises:
    ValueError: there is none; names the file.
  """
  try:
    record = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
  except FileNotFoundError:
    raise ValueError(f'{path}: no such file') from None
  except (OSError, ValueError) as problem:
    raise ValueError(f'{path}: not readable as JSON ({problem})') from None
  if not isinstance(record, dict):
    raise ValueError(f'{path}: must hold an object')
  return record


def config_path(folder) -> pathlib.Path:
  """Its config.json.

  Raises:
    ValueError: `folder` is not a folder.
  """
  if not pathlib.Path(folder).is_dir():
    raise ValueError(f'{folder}: must be a folder or a .gguf file')
  return pathlib.Path(folder) / 'config.json'


def _open_folder(folder):
  path = config_path(folder)
  names = families.family_of(read_json(path), path).names
  homes = _homes(path.parent)
  slices, tensors, unreadable = {}, {}, {}
  for file in sorted(set(homes.values())) or [WHOLE]:
    try:
      handle = safe_open(path.parent / file, 'numpy')
    except FileNotFoundError:
      unreadable[file] = 'no such file'
    except (OSError, SafetensorError) as problem:
      unreadable[file] = f'cut short or not a safetensors file ({problem})'
    else:
      held = handle.keys()
      for name in held:
        slices[name] = part = handle.get_slice(name)
        tensors[name] = (file, tuple(part.get_shape()), part.get_dtype())

  def read(name, index):
    return slices[name][index]

  file = INDEX if homes else WHOLE
  return Source(names, tensors, homes, file, unreadable, read)


def _homes(folder):
  """Tensor name to shard, from the index; {} where there is one file."""
  if (folder / WHOLE).is_file():
    return {}
  if not (folder / INDEX).is_file():
    raise ValueError(f'{folder}: holds neither {WHOLE} nor {INDEX}')
  homes = read_json(folder / INDEX).get('weight_map')
  files = homes.values() if isinstance(homes, dict) else ()
  if not files or not all(isinstance(file, str) for file in files):
    raise ValueError(f'{folder / INDEX}: weight_map must name a file each')
  return homes


def _open_gguf(path):
  shapes, read = gguf_tensors.open_tensors(path)
  tensors = {name: ('', shape, None) for name, shape in shapes.items()}
  return Source(families.GGUF_NAMES, tensors, {}, '', {}, read)


def check_tensors(path, source: Source, expected: dict, *, tied: bool) -> None:
  """Compares what is there with what should be.

  Args:
    path: of the checkpoint, for errors.
    expected: tensor name to shape.
    tied: a separate output projection is no error, it is left unread.

  Raises:
    ValueError: lists every tensor that is missing, unknown, or of another
      shape or type, and every file that can't be read.
  """
  problems = [(file, '', text) for file, text in source.unreadable.items()]
  for name, shape in expected.items():
    home = source.homes.get(name, source.file)
    if name in source.tensors:
      file, found, kind = source.tensors[name]
      if found != shape:
        problems.append((file, name, f'is {found}, expected {shape}'))
      if kind not in _TYPES | {None}:
        allowed = ', '.join(sorted(_TYPES))
        problems.append((file, name, f'is {kind}, expected one of {allowed}'))
    elif home not in source.unreadable:
      problems.append((home, name, 'is missing'))
  head = source.names['head/kernel'] if tied else None
  for name, (file, *_) in source.tensors.items():
    if name not in expected and name != head and not _HARMLESS.search(name):
      problems.append((file, name, 'is unknown'))
  if problems:
    raise ValueError(f'{path}: {"; ".join(_grouped(problems))}')


def _grouped(problems):
  """One line for the same trouble in many layers."""
  groups = {}
  for file, name, text in problems:
    before, layer, after = re.fullmatch(
      r'(?:(.*?\.)(\d+)(\..*))|.*', name
    ).groups()
    key = (file, before or name, after or '', text)
    groups.setdefault(key, []).append(layer)
  for (file, before, after, text), layers in groups.items():
    number = ''
    if after:
      number = layers[0] if len(layers) == 1 else f'{{{",".join(layers)}}}'
    words = f'{before}{number}{after} {text}'.strip()
    yield f'{file}: {words}' if file else words
