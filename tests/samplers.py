"""A decoder of seven tokens, prompts for it, and what it should have said."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from graphgpo_jax.models import generation
from graphgpo_jax.models.decoder import DecoderConfig
from graphgpo_jax.models.parameters import assemble, init_params
from graphgpo_jax.models.scoring import token_logps

CONFIG = DecoderConfig(
  vocab_size=7,
  num_layers=2,
  embed_dim=16,
  mlp_dim=16,
  num_heads=4,
  num_kv_heads=2,
  head_dim=4,
  rope_theta=50.0,
  embed_init_scale=0.25,
)
PARAMS = init_params(CONFIG, seed=0)
STOPS = (0, 2)  # 0 is also what fills up rows
SETTINGS = {
  'max_new_tokens': 12,
  'buckets': (3, 6),
  'stop_tokens': STOPS,
  'prefill_tokens': 48,
}
ROWS = 40
# Twelve prompts of 1 to 6 tokens; each starts three or four rows.
SOME = [
  np.random.default_rng(i).integers(0, 7, 1 + i % 6).tolist() for i in range(12)
]
PROMPTS = [SOME[i % 12] for i in range(ROWS)]
KEYS = jax.random.split(jax.random.key(7), ROWS)


@functools.cache
def sampler(**changes):
  return generation.make_sampler(CONFIG, **SETTINGS | changes)


def draw(rows=range(ROWS), *, settings=None, params=PARAMS, **chance):
  """Samples of some of the rows."""
  rows = list(rows)
  prompts = [PROMPTS[i] for i in rows]
  fn = sampler(**settings or {})
  return fn(params, prompts, KEYS[np.array(rows)], **chance)


@jax.jit
def _score(params, ids, temperature):
  decoder = assemble(CONFIG, params)
  return token_logps(decoder, ids, temperature=temperature)[0]


@jax.jit
def _logits(params, ids):
  steps = jnp.arange(ids.shape[1])
  positions = jnp.broadcast_to(steps, ids.shape)
  mask = jnp.broadcast_to(steps[:, None] >= steps, (*ids.shape, len(steps)))
  return assemble(CONFIG, params)(ids, positions, mask)[0]


def _joined(prompts, samples):
  """Rows [prompt, response, padding] and the slots of the responses."""
  new = samples.ids.shape[1]
  lengths = np.array([len(p) for p in prompts[: len(samples.ids)]])
  # Of one shape, for one compilation.
  ids = np.zeros((64, 6 + SETTINGS['max_new_tokens']), np.int32)
  for row, prompt, said in zip(ids, prompts, samples.ids):
    row[: len(prompt) + new] = [*prompt, *said]
  return ids, lengths[:, None] + np.arange(new)


def spoken(samples):
  """[n, N] bool: before the end."""
  return np.arange(samples.ids.shape[1]) < samples.lengths[:, None]


def rescored(samples, temperature, prompts=PROMPTS):
  """Log-probs of samples by the scorer, [n, N]; 0 after the end."""
  ids, slots = _joined(prompts, samples)
  logps = np.asarray(_score(PARAMS, ids, jnp.float32(temperature)))
  found = np.take_along_axis(logps[: len(slots)], slots, axis=1)
  return np.where(spoken(samples), found, 0)


def logits_before(samples, prompts=PROMPTS):
  """Logits [n, N, V] that each token was drawn from, float64."""
  ids, slots = _joined(prompts, samples)
  logits = np.asarray(_logits(PARAMS, ids), np.float64)[: len(slots)]
  return np.take_along_axis(logits, slots[..., None] - 1, axis=1)
