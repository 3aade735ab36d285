"""A small decoder with no trivial value, and the same typed from definitions.

The slow one takes one token and head at a time, in float64.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from graphgpo_jax.models.decoder import DecoderConfig
from graphgpo_jax.models.parameters import abstract_params, assemble

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


def make_decoder(**changes):
  """(config, parameters), none of them 0 or 1; base ones by name and layer."""
  config = dataclasses.replace(CONFIG, **changes)
  params = {}
  flat = traverse_util.flatten_dict(abstract_params(config))
  for path, leaf in flat.items():
    generator = np.random.default_rng(list(map(ord, ''.join(path))))
    centre = 1.0 if path[-1] == 'scale' else 0.0
    values = generator.normal(centre, 0.35, leaf.shape)
    params[path] = jnp.asarray(values, leaf.dtype)
  return config, traverse_util.unflatten_dict(params)


@functools.partial(jax.jit, static_argnums=0)
def run(config, params, *inputs):
  """(logits, cache)."""
  return assemble(config, params)(*inputs)


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


def slow_frequency(config, i):
  """Radians per token of pair i, told by its wave length in tokens."""
  frequency = config.rope_theta ** (-2 * i / config.head_dim)
  if config.rope_scaling is None:
    return frequency
  factor, low, high, context = config.rope_scaling
  wave = 2 * math.pi / frequency
  if wave < context / high:
    return frequency
  if wave > context / low:
    return frequency / factor
  smooth = (context / wave - low) / (high - low)
  return (1 - smooth) * frequency / factor + smooth * frequency


def slow_rotate(x, position, config):
  turned, half = x.copy(), len(x) // 2
  for i in range(half):
    angle = position * slow_frequency(config, i)
    cos, sin = np.cos(angle), np.sin(angle)
    turned[i] = x[i] * cos - x[i + half] * sin
    turned[i + half] = x[i + half] * cos + x[i] * sin
  return turned


def slow_layer(x, weights, config, positions, mask):
  """One layer on one row: x [L, D]."""
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
        heads = [slow_rotate(head, position, config) for head in heads]
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


def slow_logits(config, params, ids, positions, mask):
  """Logits [R, L, V]."""
  weights = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
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
