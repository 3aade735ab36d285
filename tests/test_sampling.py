import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from graphgpo_jax.models import sampling
from graphgpo_jax.models.decoder import Decoder, DecoderConfig
from graphgpo_jax.models.sampling import make_sampler, sample
from graphgpo_jax.models.scoring import token_logps

CONFIG = DecoderConfig(
  vocab_size=7,
  num_layers=2,
  embed_dim=16,
  mlp_dim=16,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  rope_theta=50.0,
  embed_init_scale=0.5,
)
NEW = 5
PROMPTS = jnp.array(
  [[3, 1, 4, 1, 5, 2], [2, 6, 0, 0, 0, 0], [5, 3, 5, 0, 0, 0], [1] + [0] * 5],
  jnp.int32,
)
LENGTHS = jnp.array([6, 2, 3, 1], jnp.int32)
KEYS = jax.random.split(jax.random.key(7), 4)


RUNS = []  # the number of tokens in every run of the decoder

score = nnx.jit(token_logps)


class CountingDecoder(Decoder):
  def hidden(self, ids, *args, **kwargs):
    jax.debug.callback(lambda: RUNS.append(ids.shape[1]))
    return super().hidden(ids, *args, **kwargs)


@pytest.fixture(scope='module')
def decoder():
  graphdef, state = nnx.split(
    nnx.eval_shape(lambda: CountingDecoder(CONFIG, rngs=nnx.Rngs(0)))
  )
  generator = np.random.default_rng(0)
  state = jax.tree.map(
    lambda x: jnp.asarray(generator.normal(0, 0.5, x.shape), x.dtype), state
  )
  return nnx.merge(graphdef, state)


def draw(decoder, rows=slice(None), *, padding=0, **settings):
  settings = {'max_new_tokens': NEW, **settings}
  prompts = jnp.pad(PROMPTS, ((0, 0), (0, padding)))
  RUNS.clear()
  samples = sample(
    decoder, prompts[rows], LENGTHS[rows], KEYS[rows], **settings
  )
  jax.block_until_ready(samples)
  jax.effects_barrier()
  return samples


def joined(samples):
  """Rows [prompt, response, padding] and the slots of the response."""
  rows = np.zeros((4, 6 + NEW), np.int32)
  for row, prompt, length, ids in zip(rows, PROMPTS, LENGTHS, samples.ids):
    row[:length] = prompt[:length]
    row[length : length + NEW] = ids
  return jnp.asarray(rows), np.asarray(LENGTHS)[:, None] + np.arange(NEW)


def rescored(decoder, samples, temperature):
  rows, slots = joined(samples)
  logps = score(decoder, rows, lengths=LENGTHS + NEW, temperature=temperature)
  return np.take_along_axis(np.asarray(logps), slots, axis=1)


@pytest.mark.parametrize('temperature', [0.6, 1.0, 1.4])
@pytest.mark.parametrize('greedy', [False, True])
def test_logps_equal_the_scorer(decoder, temperature, greedy):
  samples = draw(decoder, temperature=temperature, greedy=greedy)
  assert RUNS == [6, 1, 1, 1, 1]  # the last token is not fed back
  assert samples.ids.dtype == samples.lengths.dtype == jnp.int32
  assert samples.logps.dtype == jnp.float32
  np.testing.assert_array_equal(samples.lengths, NEW)
  np.testing.assert_allclose(
    samples.logps, rescored(decoder, samples, temperature), atol=1e-4
  )


def test_greedy_takes_the_likeliest(decoder):
  samples = draw(decoder, greedy=True)
  rows, slots = joined(samples)
  steps = jnp.arange(rows.shape[1])
  mask = jnp.broadcast_to(steps[:, None] >= steps, (*rows.shape, len(steps)))
  positions = jnp.broadcast_to(steps, rows.shape)
  logits, _ = nnx.jit(Decoder.__call__)(decoder, rows, positions, mask)
  best = np.take_along_axis(np.asarray(logits.argmax(-1)), slots - 1, axis=1)
  np.testing.assert_array_equal(samples.ids, best)
  assert (draw(decoder).ids != best).any()


def test_rows_do_not_depend_on_mates_order_or_padding(decoder):
  expected = draw(decoder)
  assert len(np.unique(expected.ids, axis=0)) == 4
  others = {
    'order': draw(decoder, jnp.array([2, 0, 3, 1])),
    'alone and padded': draw(decoder, slice(2, 3), padding=3),
  }
  rows = {'order': [2, 0, 3, 1], 'alone and padded': [2]}
  for name, samples in others.items():
    ids, logps = expected.ids[rows[name],], expected.logps[rows[name],]
    np.testing.assert_array_equal(samples.ids, ids, err_msg=name)
    np.testing.assert_allclose(samples.logps, logps, atol=1e-5, err_msg=name)


def test_keys_decide(decoder):
  same = sample(
    decoder,
    jnp.tile(PROMPTS[:1], (4, 1)),
    jnp.tile(LENGTHS[:1], 4),
    KEYS[jnp.array([0, 1, 0, 2])],
    max_new_tokens=NEW,
  )
  np.testing.assert_array_equal(same.ids[0], same.ids[2])
  assert (same.ids[0] != same.ids[1]).any()


def test_stop_tokens_end_rows(decoder):
  free = draw(decoder)
  # Every row stops by its third token, the second row at its first.
  stops = {int(free.ids[1, 0]), *free.ids[:, 2].tolist()}
  stopped = draw(decoder, stop_tokens=stops)
  lengths = [
    next(t + 1 for t, token in enumerate(row) if token in stops)
    for row in free.ids.tolist()
  ]
  assert min(lengths) == 1
  assert max(lengths) == 3
  assert RUNS == [6, 1, 1]  # stops when all rows have
  np.testing.assert_array_equal(stopped.lengths, lengths)
  kept = np.arange(NEW) < np.array(lengths)[:, None]
  np.testing.assert_array_equal(stopped.ids, np.where(kept, free.ids, 0))
  np.testing.assert_allclose(
    stopped.logps, np.where(kept, free.logps, 0), atol=1e-6
  )
  np.testing.assert_array_equal(stopped.logps[~kept], 0)


def test_one_token_is_the_first_of_many_without_a_loop(decoder):
  many, one = draw(decoder), draw(decoder, max_new_tokens=1)
  assert RUNS == [6]
  np.testing.assert_array_equal(one.ids, many.ids[:, :1])
  np.testing.assert_allclose(one.logps, many.logps[:, :1], atol=1e-5)
  for count, loops in ((1, False), (2, True)):
    program = jax.make_jaxpr(
      lambda keys, n=count: sample(
        decoder, PROMPTS, LENGTHS, keys, max_new_tokens=n
      )
    )(KEYS)
    assert (' while[' in str(program)) == loops


def test_frequencies_follow_the_tempered_softmax(decoder):
  rows, temperature = 4000, 1.2
  samples = sample(
    decoder,
    jnp.tile(PROMPTS[1:2, :3], (rows, 1)),
    jnp.tile(LENGTHS[1:2], rows),
    jax.random.split(jax.random.key(1), rows),
    max_new_tokens=2,
    temperature=temperature,
  )
  pairs = np.asarray(samples.ids[:, 0] * 7 + samples.ids[:, 1])
  observed = np.bincount(pairs, minlength=49)
  tails = np.stack(np.divmod(np.arange(49), 7), axis=1)
  continued = jnp.concatenate(
    [jnp.tile(PROMPTS[1, :2], (49, 1)), jnp.asarray(tails)], axis=1
  )

  def p_value(temperature):
    logps = score(decoder, continued, temperature=temperature)
    expected = rows * np.exp(np.asarray(logps[:, 2:].sum(1), np.float64))
    expected *= rows / expected.sum()
    assert expected.min() > 5  # as the test needs
    return stats.chisquare(observed, expected).pvalue

  assert p_value(temperature) > 1e-3
  assert p_value(1.0) < 1e-6  # the test can tell


def test_one_compilation_for_all_temperatures(decoder):
  graphdef, state = nnx.split(decoder)
  draw(decoder)
  before = sampling._generate._cache_size()
  assert before > 0
  for temperature in (0.6, 1, np.float32(1.4), jnp.float32(2)):
    # Split again: an equal decoder is the same program.
    draw(decoder, temperature=temperature, greedy=temperature == 1)
    sampler = make_sampler(graphdef, max_new_tokens=NEW)
    sampler(state, PROMPTS, LENGTHS, KEYS, temperature=temperature)
  assert sampling._generate._cache_size() == before


def test_misuse_is_refused(decoder):
  with pytest.raises(ValueError, match='max_new_tokens must be >= 1, got 0'):
    draw(decoder, max_new_tokens=0)
  with pytest.raises(ValueError, match='keys must be threefry2x32, got rbg'):
    sample(
      decoder,
      PROMPTS,
      LENGTHS,
      jax.random.split(jax.random.key(0, impl='rbg'), 4),
      max_new_tokens=1,
    )
