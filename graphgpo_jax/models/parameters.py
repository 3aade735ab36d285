"""Parameters of a Decoder: a nested dict of arrays, apart from the module."""

import functools

import jax
import numpy as np
from flax import nnx, traverse_util

from graphgpo_jax.models.decoder import Decoder

ADAPTERS = ('lora_a', 'lora_b')


def abstract_params(config):
  """Shapes and types of the parameters, a nested dict."""
  return nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Decoder(config))))


@functools.lru_cache
def _graph_definition(config, mesh):
  return nnx.graphdef(nnx.eval_shape(lambda: Decoder(config, mesh)))


def assemble(config, params, mesh=None):
  """The Decoder of a config, with these parameters."""
  return nnx.merge(_graph_definition(config, mesh), params)


def init_params(config, *, seed, adapters_only=False):
  """Random parameters of a Decoder, a nested dict of numpy arrays.

  Kernels and lora_a are normal with variance 1 / inputs, embeddings with
  standard deviation embed_init_scale, scales 1, biases and lora_b 0. Drawn on
  the host: the same on every mesh and backend, and nothing to compile.

  Args:
    config: a DecoderConfig.
    seed: integer >= 0.
    adapters_only: only the leaves of ADAPTERS, to join with a checkpoint.
  """
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    name = path[-1].key
    if name in ('scale', 'bias', 'lora_b'):
      return np.full(leaf.shape, name == 'scale', leaf.dtype)
    deviation = config.embed_init_scale
    if name in ('kernel', 'lora_a'):
      deviation = leaf.shape[-2] ** -0.5
    values = rng.standard_normal(leaf.shape, np.float32) * deviation
    return values.astype(leaf.dtype)

  shapes = abstract_params(config)
  if adapters_only:
    shapes = divide(shapes)[0]
  return jax.tree_util.tree_map_with_path(draw, shapes)


def join(params: dict, frozen: dict) -> dict:
  """The two halves of `divide` as one nested dict."""
  flat = traverse_util.flatten_dict(frozen) | traverse_util.flatten_dict(params)
  return traverse_util.unflatten_dict(flat)


def divide(params: dict) -> tuple[dict, dict]:
  """(trainable, frozen): the adapters and the rest; without adapters, all."""
  flat = traverse_util.flatten_dict(params)
  chosen = {k: v for k, v in flat.items() if k[-1] in ADAPTERS}
  rest = {k: v for k, v in flat.items() if k not in chosen}
  if not chosen:
    chosen, rest = rest, {}
  return tuple(traverse_util.unflatten_dict(half) for half in (chosen, rest))
