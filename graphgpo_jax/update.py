"""One optimizer step, from rows of tokens and their credit.

Pure functions, jitted once per shape and sharded by `sharding`.
"""

import functools
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from graphgpo_jax import loss as losses
from graphgpo_jax import sharding
from graphgpo_jax.models.scoring import token_logps
from graphgpo_jax.types import TokenRows


@flax.struct.dataclass
class TrainState:
  """What an optimizer step changes.

  Attributes:
    params: of the decoder, a nested dict of arrays.
    opt_state: of optax.
    step: int32, optimizer steps taken.
  """

  params: dict
  opt_state: optax.OptState
  step: jax.Array


def make_optimizer(
  *,
  learning_rate: float,
  warmup_steps: int = 0,
  b1: float = 0.9,
  b2: float = 0.999,
  weight_decay: float = 0.0,
  max_grad_norm: float = 1.0,
) -> optax.GradientTransformation:
  """AdamW with linear warm-up, after clipping by global norm.

  Weight decay leaves vectors (norms, biases) alone. Stacked layers make them
  matrices, so they are told by name.
  """
  schedule = optax.linear_schedule(
    learning_rate / (warmup_steps + 1), learning_rate, warmup_steps
  )

  def decays(params):
    def matrix(path, _):
      return path[-1].key not in ('scale', 'bias')

    return jax.tree_util.tree_map_with_path(matrix, params)

  return optax.chain(
    optax.clip_by_global_norm(max_grad_norm),
    optax.adamw(schedule, b1=b1, b2=b2, weight_decay=weight_decay, mask=decays),
  )


def init_state(params: dict, optimizer, mesh) -> TrainState:
  """A fresh state, made and kept in the shardings of the mesh.

  Args:
    params: nested dict of arrays; left as they are.
  """

  def make(params):
    # A copy: the first update gives the state's buffers away.
    return TrainState(
      jax.tree.map(jnp.copy, params), optimizer.init(params), jnp.int32(0)
    )

  placement = sharding.shardings(jax.eval_shape(make, params), mesh)
  return jax.jit(make, out_shardings=placement)(params)


def policy_objective(
  logp: jax.Array,
  entropy: jax.Array,
  rows: TokenRows,
  advantage: jax.Array,
  reference_logp: jax.Array,
  weights: jax.Array,
  *,
  clip_low: float,
  clip_high: float,
  kl_coefficient: float,
  kl_estimator: str,
  entropy_coefficient: float,
):
  """Clipped policy loss + KL to the reference - entropy bonus.

  All are sums over tokens with the given weights; shapes as in `loss`.

  Returns:
    (loss, metrics): scalars, additive over micro-batches except 'ratio_error',
    which is a maximum.
  """
  loss, metrics = losses.clipped_policy_loss(
    logp,
    rows.behaviour_logp,
    advantage,
    weights,
    clip_low=clip_low,
    clip_high=clip_high,
  )
  live = weights > 0
  bonus = jnp.sum(weights * jnp.where(live, entropy, 0.0))
  metrics |= {'policy_loss': loss, 'entropy': bonus}
  loss -= entropy_coefficient * bonus
  if kl_coefficient:
    kl = losses.kl_penalty(
      logp, reference_logp, weights, estimator=kl_estimator
    )
    metrics['kl'] = kl
    loss += kl_coefficient * kl
  return loss, metrics | {'loss': loss}


def imitation_objective(
  logp, entropy, rows, advantage, reference_logp, weights
):
  """Cross-entropy of the rows' responses; signature of `policy_objective`."""
  del advantage, reference_logp, rows
  live = weights > 0
  loss = -jnp.sum(weights * jnp.where(live, logp, 0.0))
  bonus = jnp.sum(weights * jnp.where(live, entropy, 0.0))
  return loss, {'loss': loss, 'entropy': bonus}


def _sum_gradients(loss, params, batch, micro_batches):
  """Gradients and metrics of loss(params, *batch), a micro-batch at a time."""

  def split(x):
    # Every micro-batch takes rows of every device.
    return x.reshape(-1, micro_batches, *x.shape[1:]).swapaxes(0, 1)

  def add(total, part):
    found, metrics = jax.grad(loss, has_aux=True)(params, *part)
    return jax.tree.map(jnp.add, total, found), metrics

  zeros = jax.tree.map(jnp.zeros_like, params)
  total, metrics = jax.lax.scan(add, zeros, jax.tree.map(split, batch))
  return total, {
    name: values.max() if name == 'ratio_error' else values.sum()
    for name, values in metrics.items()
  }


def make_update(
  graphdef,
  optimizer: optax.GradientTransformation,
  objective: Callable,
  *,
  placement: TrainState,
  aggregation: str = 'token_mean',
  fixed_length: int | None = None,
  temperature: float = 1.0,
  micro_batches: int = 1,
  uses_reference: bool = False,
) -> Callable:
  """A jitted function that takes one optimizer step on one mini-batch.

  Gradients are summed over micro-batches; token weights are those of the whole
  mini-batch, so the split changes nothing beyond rounding. An advantage of 0
  everywhere gives gradients of exactly 0 (without KL and entropy), but AdamW
  still moves weights by its momentum and decay, unless it is fresh and without
  decay.

  Args:
    graphdef: of `nnx.split(decoder)`.
    optimizer: of `make_optimizer`.
    objective: `policy_objective` with its keywords bound, or
      `imitation_objective`.
    placement: shardings of the state, which it keeps.
    aggregation, fixed_length: see `loss.aggregation_weights`.
    temperature: the sampling temperature, applied in scoring too.
    micro_batches: parts of a mini-batch; divides R.
    uses_reference: score the rows under `reference` too.

  Returns:
    update(state, rows [R, L], advantage [R], reference) -> state, metrics;
    the state's buffers are donated. reference: parameters, or None.
  """

  def score(params, rows, with_entropy):
    decoder = nnx.merge(graphdef, params)
    return token_logps(
      decoder, rows.ids, temperature=temperature, with_entropy=with_entropy
    )

  def micro_loss(params, rows, advantage, weights, reference):
    logp, entropy = score(params, rows, True)
    reference_logp = None
    if uses_reference:
      reference_logp = jax.lax.stop_gradient(score(reference, rows, False))
    return objective(logp, entropy, rows, advantage, reference_logp, weights)

  def update(state, rows, advantage, reference=None):
    weights = losses.aggregation_weights(
      rows.response_mask, aggregation=aggregation, fixed_length=fixed_length
    )
    found, metrics = _sum_gradients(
      functools.partial(micro_loss, reference=reference),
      state.params,
      (rows, advantage, weights),
      micro_batches,
    )
    metrics['grad_norm'] = optax.tree.norm(found)
    change, opt_state = optimizer.update(found, state.opt_state, state.params)
    params = optax.apply_updates(state.params, change)
    return TrainState(params, opt_state, state.step + 1), metrics

  return jax.jit(update, donate_argnums=0, out_shardings=(placement, None))
