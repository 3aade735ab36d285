"""One optimizer step: layouts, devices, adapters, nothing from nothing."""

import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util

from graphgpo_jax import sharding, update
from graphgpo_jax.models.decoder import DecoderConfig
from graphgpo_jax.models.parameters import assemble, divide, init_params
from graphgpo_jax.models.scoring import token_logps
from graphgpo_jax.packing import pack

# Every kind of parameter, and all sizes divisible by 8 devices. A small theta:
# key biases of slow waves have gradients near 0, which Adam blows up.
SIZES = {
  'vocab_size': 8,
  'num_layers': 1,
  'embed_dim': 8,
  'mlp_dim': 8,
  'num_heads': 2,
  'num_kv_heads': 2,
  'head_dim': 4,
  'rope_theta': 5.0,
  'embed_init_scale': 0.5,
  'qkv_bias': True,
  'tie_embeddings': False,
}
LOSS = {
  'clip_low': 0.2,
  'clip_high': 0.3,
  'kl_coefficient': 0.0,
  'kl_estimator': 'k3',
  'entropy_coefficient': 0.0,
}
# (changes of LOSS or None to imitate, of make_update, of SIZES). Compiling is
# what costs time here: each is compiled once and shared by the tests below.
KINDS = {
  'token_mean': (
    {'kl_coefficient': 0.5, 'entropy_coefficient': 0.1},
    {'aggregation': 'token_mean'},
    {},
  ),
  'sequence_mean': ({}, {'aggregation': 'sequence_mean', 'chunk': 4}, {}),
  'fixed_length': (
    {'kl_coefficient': 1.0, 'kl_estimator': 'k2'},
    {'aggregation': 'fixed_length', 'fixed_length': 3, 'chunk': 5},
    {},
  ),
  'imitation': (None, {}, {'param_dtype': 'bfloat16', 'remat': 'dots'}),
  'adapters': ({}, {}, {'param_dtype': 'bfloat16', 'lora_rank': 2}),
}
POLICIES = ('token_mean', 'sequence_mean', 'fixed_length')
SHAPE = (4, 8, 13)  # 12 predictions in a row: 4 divides them, 5 does not
TEMPERATURE = 0.8


def make_mesh(axes):
  if axes:
    return sharding.make_mesh(**{'data': 1} | dict(axes))
  kinds = (jax.sharding.AxisType.Auto,) * 3
  return jax.make_mesh(
    (1, 1, 1), sharding.AXES, kinds, devices=jax.devices()[:1]
  )


def decoder_config(kind):
  return DecoderConfig(**SIZES | KINDS[kind][2])


@functools.cache
def initial(kind, seed=0):
  """(trained, frozen); adapters that do something."""
  params = init_params(decoder_config(kind), seed=seed)
  trained, frozen = divide(params)
  if not frozen:
    return trained, frozen
  rng = np.random.default_rng(5)
  trained = jax.tree.map(
    lambda x: rng.normal(0, 0.3, x.shape).astype(x.dtype), trained
  )
  return trained, frozen


def counted(*inputs, objective):
  loss, metrics = objective(*inputs)
  return loss, metrics | {'runs': jnp.float32(1)}


@functools.cache
def compiled(kind, axes=()):
  """(update, state on the host, placement, frozen, mesh)."""
  loss, settings, _ = KINDS[kind]
  objective = update.imitation_objective
  if loss is not None:
    objective = functools.partial(update.policy_objective, **LOSS | loss)
  # The learning rate is part of the state: one compilation for all rates.
  optimizer = optax.inject_hyperparams(
    update.make_optimizer,
    static_args=('warmup_steps', 'b1', 'b2', 'weight_decay', 'max_grad_norm'),
  )(learning_rate=1.0)
  mesh = make_mesh(axes)
  trained, frozen = initial(kind)
  state = update.init_state(trained, optimizer, mesh)
  placement = jax.tree.map(lambda x: x.sharding, state)
  run = update.make_update(
    decoder_config(kind),
    optimizer,
    functools.partial(counted, objective=objective),
    placement=placement,
    temperature=TEMPERATURE,
    **settings,
  )
  frozen = jax.device_put(frozen, sharding.shardings(frozen, mesh))
  return run, jax.device_get(state), placement, frozen, mesh


def take_steps(kind, rows, *, axes=(), rate=1e-2, steps=1):
  """(state, metrics) after some steps from the initial parameters."""
  run, state, placement, frozen, mesh = compiled(kind, axes)
  state.opt_state.hyperparams['learning_rate'] = np.float32(rate)
  state = jax.device_put(state, placement)
  rows = sharding.put_rows(rows, mesh, axis=1)
  for _ in range(steps):
    state, metrics = run(state, rows, frozen)
  assert int(state.step) == steps
  return state, metrics


@functools.cache
def make_steps():
  """8 steps of 2 to 8 tokens, and an advantage for each."""
  rng = np.random.default_rng(1)
  steps = []
  for _ in range(8):
    lengths = rng.integers(1, (4, 6))
    steps.append(
      types.SimpleNamespace(
        prompt_ids=rng.integers(0, 8, lengths[0]),
        response_ids=rng.integers(0, 8, lengths[1]),
        response_logps=rng.normal(-2, 0.3, lengths[1]),
      )
    )
  return steps, rng.normal(size=8).astype(np.float32)


score = jax.jit(
  update.make_scorer(DecoderConfig(**SIZES), temperature=TEMPERATURE)
)


def lay_out(*sizes, packed=False):
  """Rows [4, 8, 13] with so many steps per micro-batch, one in a row unless
  packed; then micro-batches without any.
  """
  steps, advantage = make_steps()
  bounds = np.cumsum([0, *sizes])
  parts = []
  for start, end in zip(bounds, bounds[1:]):
    groups = [range(start, end)] if packed else [[i] for i in range(start, end)]
    rows = [
      pack(
        [steps[i] for i in group],
        advantage[list(group)],
        shape=(1, 8 if packed else 1, SHAPE[2]),
      )
      for group in groups
    ]
    parts.append(jax.tree.map(lambda *x: fill(np.hstack(x), 8, 1), *rows))
  rows = jax.tree.map(lambda *x: fill(np.concatenate(x), 4, 0), *parts)
  reference = score(initial('token_mean', seed=1)[0], rows)
  return rows.replace(reference_logp=np.asarray(reference))


def fill(x, size, axis):
  """Zeros at the end of an axis, up to a size."""
  padding = [(0, size - x.shape[axis] if i == axis else 0) for i in range(3)]
  return np.pad(x, padding)


def assert_moved(kind, params):
  """Every leaf has moved."""
  before = initial(kind)[0]
  for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(before)):
    assert np.abs(np.asarray(x) - y).max() > 1e-3


@pytest.mark.parametrize('kind', POLICIES)
def test_no_layout_of_the_steps_changes_the_update(kind):
  state, metrics = take_steps(kind, lay_out(8))
  assert metrics.pop('runs') == 1
  assert_moved(kind, state.params)
  assert metrics['ratio_error'] > 0.3 and metrics['clip_fraction_high'] > 0
  layouts = [(4, 4), (2, 2, 2, 2), (1, 4, 1, 2)]
  layouts = [(sizes, False) for sizes in layouts] + [
    ((8,), True),
    ((3, 5), True),
  ]
  for sizes, packed in layouts:
    rows = lay_out(*sizes, packed=packed)
    if packed:
      assert rows.segment.max() > 1
    other, found = take_steps(kind, rows)
    # Those without any step are not run.
    assert found.pop('runs') == len(sizes)
    chex.assert_trees_all_close(found, metrics, rtol=1e-6, atol=1e-6)
    chex.assert_trees_all_close(other, state, rtol=1e-6, atol=1e-6)


def test_loss_is_policy_loss_and_kl_and_entropy():
  _, metrics = take_steps('token_mean', lay_out(8))
  total = metrics['policy_loss'] + 0.5 * metrics['kl']
  total -= 0.1 * metrics['entropy']
  np.testing.assert_allclose(metrics['loss'], total, rtol=1e-6)
  assert metrics['kl'] > 0.01 and metrics['entropy'] > 1


MESHES = {
  'data': ({'data': 8}, (8,), False),
  'fsdp': ({'fsdp': 8}, (4, 4), False),
  'tensor': ({'tensor': 8}, (2, 2, 2, 2), False),
  'mixed': ({'data': 2, 'fsdp': 2, 'tensor': 2}, (3, 5), True),
}


@pytest.mark.parametrize('name', MESHES)
def test_eight_devices_equal_one(name):
  axes, sizes, packed = MESHES[name]
  one, metrics = take_steps('token_mean', lay_out(8))
  rows = lay_out(*sizes, packed=packed)
  eight, found = take_steps('token_mean', rows, axes=tuple(axes.items()))
  assert found.pop('runs') == len(sizes) and metrics.pop('runs') == 1
  chex.assert_trees_all_close(found, metrics, rtol=1e-5, atol=1e-5)
  chex.assert_trees_all_close(eight, one, rtol=1e-5, atol=1e-5)


def test_learning_rate_zero_changes_nothing():
  state, metrics = take_steps('token_mean', lay_out(8), rate=0.0, steps=2)
  chex.assert_trees_all_equal(state.params, initial('token_mean')[0])
  assert metrics['grad_norm'] > 0.1


def test_zero_advantages_leave_a_fresh_policy_untouched():
  rows = lay_out(8)
  rows = rows.replace(advantage=0 * rows.advantage)
  state, metrics = take_steps('sequence_mean', rows)
  chex.assert_trees_all_equal(state.params, initial('sequence_mean')[0])
  assert metrics['grad_norm'] == metrics['policy_loss'] == 0


@pytest.mark.parametrize('kind', POLICIES)
@pytest.mark.parametrize('junk', [np.nan, np.inf])
def test_prompts_and_padding_may_hold_junk(kind, junk):
  rows = lay_out(3, 5, packed=True)
  own = rows.response_length > 0
  other = rows.replace(
    ids=np.where(rows.segment > 0, rows.ids, 3),
    **{
      name: np.where(own, getattr(rows, name), np.float32(junk))
      for name in ('behaviour_logp', 'advantage', 'reference_logp')
    },
  )
  chex.assert_trees_all_equal(take_steps(kind, other), take_steps(kind, rows))


def test_a_positive_advantage_makes_its_response_likelier():
  rows = lay_out(8, packed=True)
  before = np.asarray(score(initial('sequence_mean')[0], rows))
  own = (rows.segment == 2) & (rows.response_length > 0)
  own &= (np.arange(8) == 0)[:, None]
  rows = rows.replace(behaviour_logp=before, advantage=np.float32(own))
  state, metrics = take_steps('sequence_mean', rows, rate=1e-3)
  after = np.asarray(score(state.params, rows))
  assert own.any() and after[own].sum() > before[own].sum() + 1e-3
  assert metrics['ratio_error'] < 1e-5


def test_kl_pulls_towards_the_reference():
  rows = lay_out(8)
  rows = rows.replace(advantage=0 * rows.advantage)
  first, last = (
    take_steps('fixed_length', rows, steps=n)[1]['kl'] for n in (1, 20)
  )
  assert last < 0.5 * first


def test_imitation_learns_its_rows_in_bfloat16():
  rows = lay_out(8)
  first, metrics = take_steps('imitation', rows, rate=0.05)
  assert {x.dtype for x in jax.tree.leaves(first.params)} == {
    jnp.dtype('bfloat16')
  }
  moments = [x for x in jax.tree.leaves(first.opt_state) if x.ndim]
  assert {x.dtype for x in moments} == {jnp.dtype('float32')}
  assert metrics['grad_norm'].dtype == jnp.float32  # as the sums are
  first, last = (
    take_steps('imitation', rows, rate=0.05, steps=n)[1]['loss']
    for n in (1, 40)
  )
  assert last < 0.3 * first


def test_only_adapters_are_trained():
  run, state, *_, frozen, _ = compiled('adapters')
  before = jax.device_get(frozen)
  state, metrics = take_steps('adapters', lay_out(8), steps=2)
  assert_moved('adapters', state.params)
  chex.assert_trees_all_equal(frozen, before)  # neither changed nor given away
  names = {path[-1] for path in traverse_util.flatten_dict(state.params)}
  assert names == {'lora_a', 'lora_b'}
  sizes = sorted(x.shape for x in jax.tree.leaves(state.opt_state) if x.ndim)
  wanted = sorted(x.shape for x in jax.tree.leaves(state.params))
  assert sizes == sorted(wanted * 2)  # two moments of each


def test_adapters_on_eight_devices_equal_one():
  one = take_steps('adapters', lay_out(8), steps=2)
  axes = tuple(MESHES['mixed'][0].items())
  eight = take_steps('adapters', lay_out(8, packed=True), axes=axes, steps=2)
  chex.assert_trees_all_close(eight, one, rtol=1e-5, atol=1e-5)


def test_scorer_scores_live_micro_batches():
  rows = lay_out(3, 5, packed=True)
  # If one without steps were run, this would be scored.
  rows.response_length[2] = 1
  params = initial('token_mean')[0]
  found = np.asarray(score(params, rows))
  assert found.dtype == np.float32 and not found[2:].any()
  decoder = assemble(DecoderConfig(**SIZES), params)
  scored = rows.response_length > 0
  for i in range(2):
    wanted, _ = token_logps(
      decoder,
      rows.ids[i],
      segment=rows.segment[i],
      position=rows.position[i],
      scored=scored[i],
      temperature=TEMPERATURE,
    )
    assert (np.asarray(wanted)[scored[i]] < 0).all()
    np.testing.assert_allclose(found[i], wanted, atol=1e-6)
