"""Initial values, and the trainable half of a decoder's parameters."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from decoders import CONFIG, causal_inputs, make_decoder, make_ids
from flax import nnx, traverse_util

from graphgpo_jax.models.decoder import Decoder, DecoderConfig
from graphgpo_jax.models.parameters import (
  abstract_params,
  assemble,
  divide,
  init_params,
  join,
)

LARGE = DecoderConfig(
  vocab_size=64,
  num_layers=2,
  embed_dim=64,
  mlp_dim=128,
  num_heads=4,
  num_kv_heads=4,
  head_dim=16,
  embed_init_scale=0.5,
  qkv_bias=True,
  qk_norm=True,
  tie_embeddings=False,
  lora_rank=32,
  param_dtype='bfloat16',
)


def test_initial_values():
  params = init_params(LARGE, seed=0)
  chex.assert_trees_all_equal_shapes_and_dtypes(params, abstract_params(LARGE))
  values = {
    '/'.join(path): x.astype(np.float32)
    for path, x in traverse_util.flatten_dict(params).items()
  }
  wanted = {  # standard deviations; the inputs are those of one layer
    'embed/embedding': 0.5,
    'head/kernel': 64**-0.5,
    'layers/query/kernel': 64**-0.5,
    'layers/down/kernel': 128**-0.5,
    'layers/down/lora_a': 128**-0.5,
  }
  for name, deviation in wanted.items():
    np.testing.assert_allclose(values[name].std(), deviation, rtol=0.05)
  for name, x in values.items():
    if name.endswith(('scale', 'bias', 'lora_b')):
      np.testing.assert_array_equal(x, name.endswith('scale'))
    elif name.startswith('layers'):
      assert np.abs(x[0] - x[1]).max() > 0.1  # layers differ


def test_seeds():
  first, again, other = (init_params(CONFIG, seed=s) for s in (0, 0, 1))
  chex.assert_trees_all_equal(first, again)
  difference = jax.tree.map(lambda x, y: np.abs(x - y).max(), first, other)
  assert difference['layers']['gate']['kernel'] > 0.1
  assert difference['embed']['embedding'] > 0.1


def test_stored_types():
  """The base as told; adapters in float32 beside any base."""
  adapters, base = divide(abstract_params(LARGE))
  assert {x.dtype for x in jax.tree.leaves(base)} == {jnp.bfloat16.dtype}
  assert {x.dtype for x in jax.tree.leaves(adapters)} == {jnp.float32.dtype}


def test_assemble_keeps_every_value_in_its_place():
  config, params = make_decoder(lora_rank=2, qkv_bias=True, qk_norm=True)
  decoder = assemble(config, params)
  assert isinstance(decoder, Decoder)
  chex.assert_trees_all_equal(nnx.to_pure_dict(nnx.state(decoder)), params)
  ids = make_ids()
  traced = jax.eval_shape(lambda: decoder(ids, *causal_inputs(ids))[0])
  assert traced.shape == (2, 9, 13)


def test_divide_and_join():
  config, params = make_decoder(lora_rank=2)
  adapters, frozen = divide(params)
  names = {p[-1] for p in traverse_util.flatten_dict(adapters)}
  assert names == {'lora_a', 'lora_b'}
  names = {p[-1] for p in traverse_util.flatten_dict(frozen)}
  assert names == {'kernel', 'scale', 'embedding'}
  chex.assert_trees_all_equal(join(adapters, frozen), params)
  # Without adapters, all is trained.
  trained, rest = divide(frozen)
  assert rest == {}
  chex.assert_trees_all_equal(trained, frozen)
  chex.assert_trees_all_equal(join(trained, rest), frozen)
  new = init_params(config, seed=3, adapters_only=True)
  chex.assert_trees_all_equal_shapes_and_dtypes(new, adapters)
  assert np.abs(new['layers']['up']['lora_a']).max() > 0.1
  assert not new['layers']['up']['lora_b'].any()
