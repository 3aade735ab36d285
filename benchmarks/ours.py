"""This project in the throughput benchmark; see throughput.py, protocol.py."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parent / 'peers'))

import functools  # noqa: E402

import jax  # noqa: E402
import numpy as np  # noqa: E402
import protocol  # noqa: E402

from graphgpo_jax import sharding, update  # noqa: E402
from graphgpo_jax.models import generation, parameters  # noqa: E402
from graphgpo_jax.models.decoder import DecoderConfig  # noqa: E402
from graphgpo_jax.packing import pack  # noqa: E402
from graphgpo_jax.types import Transition  # noqa: E402

CHUNK = 32  # tokens per slice of the vocabulary projection
ATTENTION_CHUNK = 64  # queries that attend at once


def make_model(sizes):
  config = DecoderConfig(qkv_bias=True, **sizes)
  return config, parameters.init_params(config, seed=0)


def transition(prompt, response, logps):
  return Transition(
    task='', attempt=0, step=0, state='', action='', next_state='',
    reward=0.0, success=False, terminal=True, truncated=False, valid=True,
    prompt_ids=prompt, response_ids=response, response_logps=logps,
  )  # fmt: skip


def _next_64(length):
  return -(-length // 64) * 64


def prepare_training(rows, sizes, batch):
  mesh = sharding.make_mesh()
  steps = list(map(transition, rows.prompt, rows.response, rows.behaviour_logp))
  lengths = [len(p) + len(r) for p, r in zip(rows.prompt, rows.response)]
  dense = min(lengths) == max(lengths)
  length, size, chunk = max(lengths), batch, None
  if not dense:  # short rows, since attention grows with their length
    sizes = sizes | {'attention_chunk': ATTENTION_CHUNK}
    length, size, chunk = _next_64(max(lengths)), 4, CHUNK
  config, params = make_model(sizes)
  count = -(-len(steps) // size)
  packed = pack(steps, rows.advantage, shape=(count, size, length))
  packed = sharding.put_rows(packed, mesh, axis=1)
  optimizer = update.make_optimizer(learning_rate=1e-6)
  state = update.init_state(params, optimizer, mesh)
  step = update.make_update(
    config,
    optimizer,
    functools.partial(
      update.policy_objective,
      clip_low=0.2,
      clip_high=0.2,
      kl_coefficient=0.0,
      kl_estimator='k3',
      entropy_coefficient=0.0,
    ),
    placement=jax.tree.map(lambda x: x.sharding, state),
    chunk=chunk,
  )
  box = [state]

  def run():
    box[0], metrics = step(box[0], packed, {})
    if not np.isfinite(metrics['loss']):
      raise ValueError(f'loss is {metrics["loss"]}')

  return run


def prepare_sampling(rows, sizes, batch):
  del batch  # all rows at once: they leave when they stop
  config, params = make_model(sizes)
  params = jax.tree.map(jax.numpy.asarray, params)
  lengths = [len(x) for x in rows.response]
  sampler = generation.make_sampler(
    config,
    max_new_tokens=max(lengths),
    buckets=[_next_64(max(map(len, rows.prompt)))],
  )
  keys = jax.random.split(jax.random.key(0), len(lengths))

  def run():
    samples = sampler(params, rows.prompt, keys, limits=lengths)
    said = [ids[:n] for ids, n in zip(samples.ids, samples.lengths)]
    protocol.check_lengths(said, lengths)

  return run


if __name__ == '__main__':
  protocol.main(prepare_training, prepare_sampling)
