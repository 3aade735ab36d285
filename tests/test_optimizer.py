"""AdamW and Muon: steps by numbers, who is moved by which, types, places."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoders import make_decoder
from flax import traverse_util

from graphgpo_jax import sharding, update

SETTINGS = {'learning_rate': 0.1, 'weight_decay': 0.5, 'max_grad_norm': 2.0}


def by_name(tree):
  """{'layers/query/kernel': array, ...}"""
  flat = traverse_util.flatten_dict(jax.tree.map(np.asarray, tree))
  return {'/'.join(path): leaf for path, leaf in flat.items()}


def random_like(tree, seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: rng.normal(0, 0.1, x.shape).astype(np.float32), tree
  )


def decoder_params():
  """Two layers; matrices that are wide and tall, biases, a head."""
  return make_decoder(
    num_heads=2,
    qkv_bias=True,
    tie_embeddings=False,
    lora_rank=3,
    lora_targets=('down',),
  )[1]


@functools.cache
def two_steps(name):
  """Changes of two steps with other gradients."""
  params, changes = decoder_params(), []
  optimizer = update.make_optimizer(name=name, **SETTINGS)
  state, change = optimizer.init(params), jax.jit(optimizer.update)
  for seed in (1, 2):
    found, state = change(random_like(params, seed), state, params)
    changes.append(by_name(found))
  return changes


def slow_newton_schulz(matrix):
  """5 steps of X = 3.4445 X - 4.775 (X X') X + 2.0315 (X X')^2 X."""
  if len(matrix) > len(matrix[0]):
    return slow_newton_schulz(matrix.T).T
  x = matrix / np.sqrt((matrix**2).sum())
  for _ in range(5):
    square = x @ x.T
    x = 3.4445 * x - 4.775 * square @ x + 2.0315 * square @ square @ x
  return x


def slow_muon(gradients, params):
  """Changes of one layer's matrix [in, out], by Nesterov's momentum of 0.95."""
  momentum, changes = 0.0, []
  for count, gradient in enumerate(gradients, 1):
    momentum = 0.95 * momentum + 0.05 * gradient
    ahead = 0.95 * momentum / (1 - 0.95 ** (count + 1))
    ahead = ahead + 0.05 * gradient / (1 - 0.95**count)
    step = 0.2 * np.sqrt(max(gradient.shape)) * slow_newton_schulz(ahead)
    changes.append(-0.1 * (step + 0.5 * params))
  return changes


def clipped(gradient):
  """To a global norm of 2, in float64."""
  gradient = {k: x.astype(np.float64) for k, x in by_name(gradient).items()}
  norm = np.sqrt(sum((x**2).sum() for x in gradient.values()))
  assert norm > 2
  return {k: x * 2 / norm for k, x in gradient.items()}


def test_muon_moves_the_matrices_of_layers_and_adamw_the_rest():
  params = decoder_params()
  muon, adamw = two_steps('muon'), two_steps('adamw')
  gradients = [clipped(random_like(params, seed)) for seed in (1, 2)]
  matrices = []
  for name, values in by_name(params).items():
    if not name.startswith('layers') or name.endswith(('scale', 'bias')):
      for found, wanted in zip(muon, adamw):
        np.testing.assert_array_equal(found[name], wanted[name])
      continue
    matrices.append(name)
    for layer in range(2):
      wanted = slow_muon([g[name][layer] for g in gradients], values[layer])
      for found, change in zip(muon, wanted):
        np.testing.assert_allclose(found[name][layer], change, atol=2e-5)
  assert len(matrices) == 7 + 2  # kernels, lora_a and lora_b


def test_adamw_by_the_definition():
  params = decoder_params()
  found = two_steps('adamw')
  gradients = [clipped(random_like(params, seed)) for seed in (1, 2)]
  for name, values in by_name(params).items():
    first, second = gradients[0][name], gradients[1][name]
    decay = 0 if name.endswith(('scale', 'bias')) else 0.5 * values
    # Bias-corrected moments of two steps, with 0.9 and 0.999.
    mean = (0.09 * first + 0.1 * second) / 0.19
    square = (0.000999 * first**2 + 0.001 * second**2) / 0.001999
    change = -0.1 * (mean / (np.sqrt(square) + 1e-8) + decay)
    np.testing.assert_allclose(found[1][name], change, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('name', update.OPTIMIZERS)
def test_weight_decay_spares_scales_and_biases(name):
  params = decoder_params()
  optimizer = update.make_optimizer(name=name, **SETTINGS)
  zeros = jax.tree.map(jnp.zeros_like, params)
  change, _ = jax.jit(optimizer.update)(zeros, optimizer.init(params), params)
  change = by_name(change)
  for path, values in by_name(params).items():
    spared = path.endswith(('scale', 'bias'))
    np.testing.assert_allclose(
      change[path], 0 if spared else -0.05 * values, rtol=1e-6
    )


def moments(state, name):
  """Types of the moments of a name in an optimizer state."""
  found, _ = jax.tree_util.tree_flatten_with_path(state)
  return [x.dtype for path, x in found if f'.{name}' in map(str, path)]


@pytest.mark.parametrize('name', update.OPTIMIZERS)
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_moment_dtype_is_what_the_state_holds(name, dtype):
  optimizer = update.make_optimizer(
    learning_rate=0.1, name=name, moment_dtype=dtype
  )
  params = decoder_params()
  state = jax.eval_shape(optimizer.init, params)
  _, after = jax.eval_shape(optimizer.update, params, state, params)
  chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
  assert set(moments(state, 'mu')) == {jnp.dtype(dtype)}
  assert set(moments(state, 'nu')) == {jnp.dtype('float32')}
  leaves = len(jax.tree.leaves(params))
  assert len(moments(state, 'mu')) == leaves
  # Muon has no second moment.
  assert len(moments(state, 'nu')) == leaves - 9 * (name == 'muon')


def test_unknown_name():
  with pytest.raises(ValueError, match=r"\('adamw', 'muon'\), got 'sgd'"):
    update.make_optimizer(learning_rate=0.1, name='sgd')


def test_warm_up_ends_at_the_learning_rate():
  optimizer = update.make_optimizer(learning_rate=0.1, warmup_steps=4)
  params = {'kernel': jnp.ones(3)}
  change = jax.jit(optimizer.update)
  state, sizes = optimizer.init(params), []
  for _ in range(7):
    found, state = change({'kernel': jnp.ones(3)}, state, params)
    sizes.append(-float(found['kernel'][0]))
  np.testing.assert_allclose(
    sizes, [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1], rtol=1e-3
  )


def test_the_state_lies_where_the_parameters_do_and_muon_moves_it_there():
  mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
  layers = decoder_params()['layers']
  params = {'layers': {name: layers[name] for name in ('gate', 'mlp_norm')}}
  optimizer = update.make_optimizer(name='muon', **SETTINGS)
  state = update.init_state(params, optimizer, mesh)
  spec = jax.P(None, 'fsdp', 'tensor')
  assert state.params['layers']['gate']['kernel'].sharding.spec == spec
  found = [x.sharding.spec == spec for x in jax.tree.leaves(state.opt_state)]
  assert sum(found) == 1  # the moment of gate

  place = jax.tree.map(lambda x: x.sharding, state.params)
  gradient = random_like(params, 1)
  inputs = jax.device_put(gradient, place), state.opt_state, state.params
  change, _ = jax.jit(optimizer.update)(*inputs)
  wanted, _ = optimizer.update(gradient, optimizer.init(params), params)
  chex.assert_trees_all_close(change, wanted, atol=1e-5)
  # The caller keeps what a state was made of.
  chex.assert_trees_all_equal(state.params, params)
  with pytest.raises(ValueError, match='does not fit 8 devices'):
    sharding.make_mesh(data=3)
