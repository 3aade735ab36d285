"""One optimizer step: splits, devices, nothing from nothing."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphgpo_jax import sharding, update
from graphgpo_jax.models.decoder import (
  DecoderConfig,
  graph_definition,
  init_params,
)
from graphgpo_jax.models.scoring import token_logps
from graphgpo_jax.types import TokenRows

SIZES = DecoderConfig(
  vocab_size=16,
  num_layers=2,
  embed_dim=16,
  mlp_dim=32,
  num_heads=2,
  num_kv_heads=2,
  head_dim=8,
  embed_init_scale=0.5,
)
LOSS = {
  'clip_low': 0.2,
  'clip_high': 0.3,
  'kl_coefficient': 0.0,
  'kl_estimator': 'k3',
  'entropy_coefficient': 0.0,
}


def mesh_of(**axes):
  if axes:
    return sharding.make_mesh(**axes)
  kinds = (jax.sharding.AxisType.Auto,) * 3
  return jax.make_mesh(
    (1, 1, 1), sharding.AXES, kinds, devices=jax.devices()[:1]
  )


def batch(seed=0, rows=16, length=10):
  rng = np.random.default_rng(seed)
  ids = rng.integers(2, 16, (rows, length)).astype(np.int32)
  starts = rng.integers(2, 7, rows)[:, None]
  ends = starts + rng.integers(0, 4, rows)[:, None]
  place = np.arange(length)
  mask = (place >= starts) & (place < ends)
  logps = np.where(mask, rng.uniform(-4, -1, mask.shape), 0)
  packed = TokenRows(
    ids=ids,
    response_mask=mask,
    behaviour_logp=logps.astype(np.float32),
  )
  return packed, rng.normal(size=rows).astype(np.float32)


def one_step(
  rows,
  advantage,
  *,
  mesh=None,
  rate=1e-2,
  steps=1,
  reference=None,
  objective=None,
  micro_batches=1,
  aggregation='token_mean',
  **loss,
):
  mesh = mesh or mesh_of()
  optimizer = update.make_optimizer(learning_rate=rate)
  state = update.init_state(init_params(SIZES, seed=0), optimizer, mesh)
  run = update.make_update(
    graph_definition(SIZES),
    optimizer,
    objective or functools.partial(update.policy_objective, **LOSS | loss),
    placement=jax.tree.map(lambda x: x.sharding, state),
    micro_batches=micro_batches,
    aggregation=aggregation,
    fixed_length=7,
    uses_reference=reference is not None,
  )
  data = jax.device_put((rows, advantage), sharding.by_row(mesh))
  for _ in range(steps):
    state, metrics = run(state, *data, reference)
  assert int(state.step) == steps
  return jax.device_get((state.params, metrics))


@pytest.mark.parametrize('aggregation', ['token_mean', 'sequence_mean'])
def test_micro_batches_change_nothing(aggregation):
  rows, advantage = batch()
  settings = {
    'aggregation': aggregation,
    'entropy_coefficient': 0.1,
    'kl_coefficient': 0.5,
    'reference': init_params(SIZES, seed=1),
  }
  params, metrics = one_step(rows, advantage, **settings)
  for parts in (2, 4):
    other = one_step(rows, advantage, micro_batches=parts, **settings)
    chex.assert_trees_all_close(other, (params, metrics), atol=2e-5)


@pytest.mark.parametrize(
  'axes',
  [
    {'data': 8},
    {'data': 1, 'fsdp': 4, 'tensor': 2},
    {'data': 2, 'fsdp': 2, 'tensor': 2},
  ],
)
def test_eight_devices_equal_one(axes):
  rows, advantage = batch()
  one = one_step(rows, advantage, micro_batches=2, steps=2)
  eight = one_step(
    rows, advantage, micro_batches=2, steps=2, mesh=mesh_of(**axes)
  )
  chex.assert_trees_all_close(eight, one, atol=2e-5)


def test_parameters_are_divided_and_stay_so():
  mesh = mesh_of(data=2, fsdp=2, tensor=2)
  optimizer = update.make_optimizer(learning_rate=1.0)
  state = update.init_state(init_params(SIZES, seed=0), optimizer, mesh)
  kernel = state.params['layers']['gate']['kernel']
  assert kernel.sharding.spec == jax.P(None, 'fsdp', 'tensor')
  moment = jax.tree.leaves(
    jax.tree.map(
      lambda x: x.sharding.spec == jax.P(None, 'fsdp', 'tensor'),
      state.opt_state,
    )
  )
  assert sum(moment) >= 2 * 5  # both moments of query, key, value, gate, up
  with pytest.raises(ValueError, match='does not fit 8 devices'):
    sharding.make_mesh(data=3)


def test_learning_rate_zero_changes_nothing():
  rows, advantage = batch()
  params, _ = one_step(rows, advantage, rate=0.0)
  chex.assert_trees_all_equal(params, init_params(SIZES, seed=0))


def test_zero_advantages_leave_a_fresh_policy_untouched():
  rows, advantage = batch()
  params, metrics = one_step(rows, 0 * advantage)
  chex.assert_trees_all_equal(params, init_params(SIZES, seed=0))
  assert metrics['grad_norm'] == 0


def test_a_positive_advantage_makes_its_response_likelier():
  rows, advantage = batch()
  rows = rows.replace(behaviour_logp=score(init_params(SIZES, seed=0), rows))
  best = np.where(np.arange(16) == 3, 1.0, 0.0).astype(np.float32)
  assert rows.response_mask[3].any()
  params, metrics = one_step(rows, best, rate=1e-3)
  before = rows.behaviour_logp[3].sum()
  after = np.asarray(score(params, rows))[3].sum()
  assert after > before and metrics['ratio_error'] < 1e-5


def score(params, rows):
  from flax import nnx

  decoder = nnx.merge(
    graph_definition(SIZES), jax.tree.map(jnp.asarray, params)
  )
  return jnp.where(rows.response_mask, token_logps(decoder, rows.ids), 0)


def test_padding_rows_change_nothing():
  rows, advantage = batch()
  padded = jax.tree.map(lambda x: np.concatenate([x, np.zeros_like(x)]), rows)
  params, _ = one_step(rows, advantage)
  other, _ = one_step(padded, np.concatenate([advantage, advantage + 9]))
  chex.assert_trees_all_close(other, params, atol=2e-5)


def test_kl_pulls_towards_the_reference():
  rows, _ = batch()
  reference = init_params(SIZES, seed=1)
  settings = {'reference': reference, 'kl_coefficient': 1.0}
  zeros = np.zeros(16, np.float32)
  losses = [
    one_step(rows, zeros, steps=n, kl_estimator='k2', **settings)[1]['kl']
    for n in (1, 20)
  ]
  assert losses[1] < 0.5 * losses[0]


def test_imitation_learns_its_rows():
  rows, advantage = batch()
  first, last = (
    one_step(rows, advantage, steps=n, objective=update.imitation_objective)[1][
      'loss'
    ]
    for n in (1, 40)
  )
  assert last < 0.3 * first


def test_warm_up_ends_at_the_learning_rate():
  optimizer = update.make_optimizer(learning_rate=0.1, warmup_steps=4)
  params = {'kernel': jnp.ones(3)}
  state, sizes = optimizer.init(params), []
  for _ in range(7):
    change, state = optimizer.update({'kernel': jnp.ones(3)}, state, params)
    sizes.append(-float(change['kernel'][0]))
  np.testing.assert_allclose(
    sizes, [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1], rtol=1e-3
  )


def test_weight_decay_spares_scales_and_biases():
  optimizer = update.make_optimizer(learning_rate=0.1, weight_decay=0.5)
  params = {'kernel': jnp.ones(2), 'scale': jnp.ones(2), 'bias': jnp.ones(2)}
  zeros = jax.tree.map(jnp.zeros_like, params)
  change, _ = optimizer.update(zeros, optimizer.init(params), params)
  np.testing.assert_allclose(change['kernel'], -0.05, rtol=1e-6)
  assert (change['scale'] == 0).all() and (change['bias'] == 0).all()
