"""The golden checkpoints, and a decoder run on them."""

import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np

from graphgpo_jax.models import weights
from graphgpo_jax.models.decoder import DecoderConfig
from graphgpo_jax.models.parameters import assemble

CHECKPOINTS = pathlib.Path(__file__).parent / 'golden' / 'checkpoints'
EXPECTED = json.loads((CHECKPOINTS / 'expected.json').read_text())
SMALL = DecoderConfig(
  vocab_size=6,
  num_layers=3,
  embed_dim=4,
  mlp_dim=6,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
)


@functools.partial(jax.jit, static_argnums=0)
def run(config, params, ids):
  """Logits [L, V] of one row."""
  steps = jnp.arange(len(ids))
  mask = (steps[:, None] >= steps)[None]
  logits, _ = assemble(config, params)(ids[None], steps[None], mask)
  return logits[0]


def read(name, **overrides):
  """(config, params) of a golden checkpoint."""
  config = weights.read_config(CHECKPOINTS / name, **overrides)
  return config, weights.load(CHECKPOINTS / name, config)


def assert_same(found, expected):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def copy(name, tmp_path):
  folder = tmp_path / 'model'
  shutil.copytree(CHECKPOINTS / name, folder)
  return folder
