import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from graphgpo_jax.models.decoder import (
  Decoder,
  DecoderConfig,
  init_cache,
  init_params,
)
from graphgpo_jax.models.scoring import token_logps

# A small theta and a large eps, so that they matter at this size.
CONFIG = DecoderConfig(
  vocab_size=13,
  num_layers=2,
  embed_dim=12,
  mlp_dim=20,
  num_heads=4,
  num_kv_heads=2,
  head_dim=6,
  rope_theta=50.0,
  norm_eps=0.05,
  embed_init_scale=0.5,
)
VARIANTS = {
  'plain': {},
  'qwen2': {'qkv_bias': True, 'num_kv_heads': 1},
  'qwen3': {'qk_norm': True, 'tie_embeddings': False},
}
run = nnx.jit(lambda decoder, *args: decoder(*args))
compiled = nnx.jit(token_logps, static_argnames=('chunk', 'with_entropy'))


def score(decoder, ids, *, temperature=1.0, chunk=None, **options):
  # All keywords, always: one compilation for each shape.
  return compiled(decoder, ids, temperature=temperature, chunk=chunk, **options)


def make_decoder(**changes):
  """A decoder with no parameter at a trivial value, compiled by nobody."""
  config = dataclasses.replace(CONFIG, **changes)
  shapes = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
  graphdef, state = nnx.split(shapes)
  generator = np.random.default_rng(1)

  def fill(path, leaf):
    is_scale = 'scale' in jax.tree_util.keystr(path)
    values = generator.normal(1.0 if is_scale else 0.0, 0.35, leaf.shape)
    return jnp.asarray(values, leaf.dtype)

  return nnx.merge(graphdef, jax.tree_util.tree_map_with_path(fill, state))


def make_ids(rows=2, length=9, seed=0):
  generator = np.random.default_rng(seed)
  return jnp.asarray(generator.integers(0, 13, (rows, length)), jnp.int32)


def causal_inputs(ids):
  steps = jnp.arange(ids.shape[1])
  mask = steps[:, None] >= steps
  return (
    jnp.broadcast_to(steps, ids.shape),
    jnp.broadcast_to(mask, (*ids.shape, ids.shape[1])),
  )


def slow_norm(x, scale, eps):
  return scale * x / np.sqrt((x * x).mean() + eps)


def slow_rotate(x, position, theta):
  turned, half = x.copy(), len(x) // 2
  for i in range(half):
    angle = position * theta ** (-i / half)
    cos, sin = np.cos(angle), np.sin(angle)
    turned[i] = x[i] * cos - x[i + half] * sin
    turned[i + half] = x[i + half] * cos + x[i] * sin
  return turned


def slow_layer(x, weights, config, positions, mask):
  """One layer on one row: x [L, D] float64, one token and head at a time."""
  length, size = len(x), config.head_dim
  queries, keys, values = [], [], []
  for x_t, position in zip(x, positions):
    h = slow_norm(x_t, weights['attention_norm']['scale'], config.norm_eps)
    for name, kept in ('query', queries), ('key', keys), ('value', values):
      heads = h @ weights[name]['kernel'] + weights[name].get('bias', 0)
      heads = list(heads.reshape(-1, size))
      if config.qk_norm and name != 'value':
        scale = weights[f'{name}_norm']['scale']
        heads = [slow_norm(head, scale, config.norm_eps) for head in heads]
      if name != 'value':
        heads = [slow_rotate(h, position, config.rope_theta) for h in heads]
      kept.append(heads)
  result = []
  for t in range(length):
    seen = [s for s in range(length) if mask[t, s]]
    heads = []
    for head in range(config.num_heads):
      group = head // (config.num_heads // config.num_kv_heads)
      score = [queries[t][head] @ keys[s][group] / size**0.5 for s in seen]
      score = np.exp(score)
      heads.append(
        sum(w * values[s][group] for w, s in zip(score / score.sum(), seen))
      )
    y = x[t] + np.concatenate(heads) @ weights['output']['kernel']
    h = slow_norm(y, weights['mlp_norm']['scale'], config.norm_eps)
    gate = h @ weights['gate']['kernel']
    up = h @ weights['up']['kernel']
    inner = gate / (1 + np.exp(-gate)) * up
    result.append(y + inner @ weights['down']['kernel'])
  return np.array(result)


def slow_logits(decoder, ids, positions, mask):
  """Logits [R, L, V] in float64, typed from the definition."""
  config = decoder.config
  weights = jax.tree.map(
    lambda x: np.asarray(x, np.float64),
    nnx.to_pure_dict(nnx.state(decoder)),
  )
  table = weights['embed']['embedding']
  head = table.T if config.tie_embeddings else weights['head']['kernel']
  rows = []
  for row_ids, row_positions, row_mask in zip(ids, positions, mask):
    x = table[np.asarray(row_ids)]
    for i in range(config.num_layers):
      layer = jax.tree.map(lambda w, i=i: w[i], weights['layers'])
      x = slow_layer(x, layer, config, row_positions, row_mask)
    scale = weights['final_norm']['scale']
    rows.append([slow_norm(t, scale, config.norm_eps) @ head for t in x])
  return np.array(rows)


@pytest.mark.parametrize('name', VARIANTS)
def test_equals_the_definition(name):
  decoder = make_decoder(**VARIANTS[name])
  ids = make_ids()
  generator = np.random.default_rng(2)
  positions = generator.integers(0, 20, ids.shape)
  mask = (generator.random((*ids.shape, 9)) < 0.5) | np.eye(9, dtype=bool)
  logits, cache = run(decoder, ids, jnp.asarray(positions), jnp.asarray(mask))
  assert cache is None
  assert logits.dtype == jnp.float32
  expected = slow_logits(decoder, ids, positions, mask)
  np.testing.assert_allclose(logits, expected, atol=2e-4)


def test_query_that_sees_nothing_is_finite():
  ids = make_ids()
  positions, mask = causal_inputs(ids)
  logits, _ = run(
    make_decoder(), ids, positions, mask & (jnp.arange(9) != 3)[:, None]
  )
  assert np.isfinite(logits).all()


def test_cached_decoding_equals_the_full_forward():
  decoder = make_decoder()
  ids = make_ids()
  positions, mask = causal_inputs(ids)
  expected, _ = run(decoder, ids, positions, mask)
  cache = init_cache(decoder.config, 2, 9)
  step = nnx.jit(
    lambda decoder, i, p, m, cache, at: decoder(
      i, p, m, cache=cache, cache_index=at
    )
  )
  for start, end in ((0, 4), (4, 8), (8, 9)):
    part = slice(start, end)
    logits, cache = step(
      decoder, ids[:, part], positions[:, part], mask[:, part], cache, start
    )
    np.testing.assert_allclose(logits, expected[:, part], atol=1e-4)


def slow_logps(decoder, ids, temperature):
  """(log-probs, entropies), each [R, L - 1] for the tokens from 1 on."""
  positions, mask = causal_inputs(ids)
  logits = slow_logits(decoder, ids, positions, mask)[:, :-1] / temperature
  logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  chosen = np.take_along_axis(logps, np.asarray(ids)[:, 1:, None], -1)[..., 0]
  return chosen, -(np.exp(logps) * logps).sum(-1)


@pytest.mark.parametrize('chunk', [None, 3])
def test_token_logps_and_entropy(chunk):
  decoder, ids = make_decoder(), make_ids()
  logps, entropy = score(
    decoder,
    ids,
    lengths=jnp.array([9, 6]),
    temperature=0.7,
    chunk=chunk,
    with_entropy=True,
  )
  expected = slow_logps(decoder, ids, 0.7)
  for values, wanted in zip((logps, entropy), expected):
    assert values.shape == (2, 9)
    assert values.dtype == jnp.float32
    np.testing.assert_array_equal(values[:, 0], 0)
    np.testing.assert_array_equal(values[1, 6:], 0)
    np.testing.assert_allclose(values[0, 1:], wanted[0], atol=2e-4)
    np.testing.assert_allclose(values[1, 1:6], wanted[1, :5], atol=2e-4)


def test_padding_changes_nothing():
  decoder, ids = make_decoder(), make_ids(length=5)
  lengths = jnp.array([5, 5])
  expected = score(decoder, ids, lengths=lengths, with_entropy=True)
  junk = jnp.concatenate([ids, make_ids(length=4, seed=3)], axis=1)
  padded = score(decoder, junk, lengths=lengths, with_entropy=True)
  for values, wanted in zip(padded, expected):
    np.testing.assert_allclose(values[:, :5], wanted, atol=1e-5)
    np.testing.assert_array_equal(values[:, 5:], 0)


def test_packed_segments_equal_separate_rows():
  decoder, ids = make_decoder(), make_ids(length=5)
  lengths = jnp.array([5, 5])
  expected, _ = score(decoder, ids, lengths=lengths, with_entropy=True)
  positions, mask = causal_inputs(ids)
  packed = score(
    decoder,
    ids.reshape(1, 10),
    positions=positions.reshape(1, 10),
    mask=jax.scipy.linalg.block_diag(*mask)[None],
  ).reshape(2, 5)
  np.testing.assert_allclose(packed[:, 1:], expected[:, 1:], atol=1e-5)


def loss_of(decoder, **settings):
  """(loss of a state, state), with gradients through log-prob and entropy."""
  graphdef, state = nnx.split(decoder)
  ids = make_ids()

  def loss(state):
    logps, entropy = token_logps(
      nnx.merge(graphdef, state),
      ids,
      lengths=jnp.array([9, 6]),
      temperature=0.7,
      with_entropy=True,
      **settings,
    )
    return (logps * jnp.cos(jnp.arange(9.0)) + 0.3 * entropy).sum()

  return loss, state


def test_gradients_equal_with_remat_and_chunks():
  loss, state = loss_of(make_decoder())
  expected = jax.jit(jax.grad(loss))(state)
  for leaf in jax.tree.leaves(expected):
    assert np.abs(leaf).max() > 1e-3
  loss, state = loss_of(make_decoder(remat='full'), chunk=3)
  gradient = jax.jit(jax.grad(loss))(state)
  for leaf, wanted in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected)):
    np.testing.assert_allclose(leaf, wanted, rtol=1e-3, atol=1e-5)


def gradient_program(*, chunk=None, **changes):
  loss, state = loss_of(make_decoder(**changes), chunk=chunk)
  return str(jax.make_jaxpr(jax.grad(loss))(state))


def test_program_does_not_grow_with_depth():
  shallow = gradient_program(num_layers=2)
  deep = gradient_program(num_layers=8)
  assert shallow.count(' = ') == deep.count(' = ') > 100
  assert 'f32[8,12,20]' in deep  # the gate kernels, stacked


def test_chunks_never_hold_the_logits_of_a_row():
  assert 'f32[2,8,13]' in gradient_program()
  chunked = gradient_program(chunk=4)
  assert 'f32[2,8,13]' not in chunked
  assert 'f32[2,2,4,13]' not in chunked  # stacked over chunks as residuals
  assert 'f32[2,4,13]' in chunked


def test_remat_keeps_less():
  # Hidden activations of the gate, stacked over layers for the backward pass.
  kept = 'f32[2,2,9,20]'
  assert kept in gradient_program()
  assert kept in gradient_program(remat='dots')
  for remat in (True, 'full'):
    assert kept not in gradient_program(remat=remat)
  assert gradient_program(remat='none') == gradient_program(remat=False)


def test_bfloat16_computes_narrow_and_returns_wide():
  ids = make_ids()
  narrow = make_decoder(dtype='bfloat16')
  positions, mask = causal_inputs(ids)
  hidden, cache = nnx.eval_shape(
    lambda: narrow.hidden(
      ids,
      positions,
      mask,
      cache=init_cache(narrow.config, 2, 9),
      cache_index=0,
    )
  )
  assert hidden.dtype == cache[0].dtype == cache[1].dtype == jnp.bfloat16
  assert narrow.layers.query.kernel[...].dtype == jnp.float32
  logits, _ = run(narrow, ids, positions, mask)
  assert logits.dtype == jnp.float32
  wide, _ = run(make_decoder(), ids, positions, mask)
  difference = np.abs(np.asarray(logits - wide))
  assert 1e-4 < difference.max() < 0.05 * np.abs(wide).max()
  stored = nnx.state(make_decoder(param_dtype='bfloat16'))
  assert {x.dtype for x in jax.tree.leaves(stored)} == {jnp.bfloat16.dtype}


def test_initial_scales():
  config = dataclasses.replace(
    CONFIG, vocab_size=64, embed_dim=64, mlp_dim=64, num_kv_heads=4, head_dim=16
  )
  params = init_params(config, seed=0)
  table = params['embed']['embedding']
  np.testing.assert_allclose(table.std(), 0.5, rtol=0.03)
  kernel = params['layers']['query']['kernel']
  # The fan-in is that of one layer, and layers differ.
  np.testing.assert_allclose(kernel.std(), 64**-0.5, rtol=0.05)
  assert np.abs(kernel[0] - kernel[1]).max() > 0.1


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'num_kv_heads': 3}, 'multiple of num_kv_heads'),
    ({'head_dim': 5}, 'head_dim must be even'),
    ({'num_layers': 0}, 'num_layers must be positive, got 0'),
    ({'rope_theta': -1.0}, 'rope_theta must be positive'),
    ({'dtype': 'float17'}, 'dtype must be one of'),
    ({'param_dtype': 'int32'}, 'param_dtype must be one of'),
    ({'remat': 'some'}, "remat must be one of .* got 'some'"),
  ],
)
def test_impossible_configs_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **changes)
