"""What is drawn: the right distribution, and its log-probs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samplers import (
  PARAMS,
  PROMPTS,
  draw,
  logits_before,
  rescored,
  sampler,
  spoken,
)
from scipy import stats

from graphgpo_jax.models import sampling
from graphgpo_jax.models.generation import Samples


def log_softmax(logits):
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def at(table, ids):
  return np.take_along_axis(table, ids[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize('temperature', [0.6, 1.0, 1.4])
@pytest.mark.parametrize('greedy', [False, True])
def test_logps_equal_the_scorer(temperature, greedy):
  samples = draw(range(16), temperature=temperature, greedy=greedy)
  assert samples.ids.dtype == samples.lengths.dtype == np.int32
  assert samples.logps.dtype == np.float32
  assert greedy or len(np.unique(samples.lengths)) > 3
  np.testing.assert_allclose(
    samples.logps, rescored(samples, temperature), atol=1e-4
  )


def test_greedy_takes_the_likeliest():
  samples = draw(range(16), greedy=True)
  best = np.where(spoken(samples), logits_before(samples).argmax(-1), 0)
  np.testing.assert_array_equal(samples.ids, best)
  assert (draw(range(16)).ids != best).any()


CUT = {'top_k': 4, 'top_p': 0.8}


def test_cut_tokens_are_not_drawn_and_the_others_share_their_mass():
  temperature, changes = 1.3, {'max_new_tokens': 3, 'buckets': (6,)}
  samples = draw(
    range(16),
    settings=changes | {'stop_tokens': ()} | CUT,
    temperature=temperature,
  )
  logps = log_softmax(logits_before(samples) / temperature)
  fourth = np.sort(logps)[..., -4, None]
  logps = log_softmax(np.where(logps >= fourth, logps, -np.inf))
  # A token stays if those before it hold less than top_p.
  before = np.array(
    [[[row[row > x].sum() for x in row] for row in t] for t in np.exp(logps)]
  )
  assert abs(before - CUT['top_p']).min() > 1e-6  # rounding decides nowhere
  logps = np.where(before < CUT['top_p'], logps, -np.inf)
  assert {2, 3, 4} >= set(np.isfinite(logps).sum(-1).ravel().tolist()) != {4}
  logps = at(log_softmax(logps), samples.ids)
  np.testing.assert_allclose(samples.logps, logps, atol=1e-4)


@pytest.mark.parametrize(
  ('top_k', 'top_p', 'kept'),
  [
    (0, 1.0, [0, 1, 2, 3, 4]),
    (1, 1.0, [1]),
    (2, 1.0, [1, 2, 3]),  # the second and the third are alike
    (3, 1.0, [1, 2, 3]),
    (5, 1.0, [0, 1, 2, 3, 4]),
    (99, 1.0, [0, 1, 2, 3, 4]),
    (0, 1e-9, [1]),
    (0, 0.39, [1]),
    (0, 0.41, [1, 2, 3]),
    (0, 0.89, [1, 2, 3]),
    (0, 0.91, [0, 1, 2, 3]),
    (0, 0.97, [0, 1, 2, 3, 4]),
    # Of the first three: 0.44, 0.28, 0.28.
    (3, 0.43, [1]),
    (1, 0.9, [1]),
    (4, 0.99999, [0, 1, 2, 3]),
  ],
)
def test_cut_by_hand(top_k, top_p, kept):
  chances = np.array([[0.06, 0.4, 0.25, 0.25, 0.04]], np.float32)
  only = sampling.Settings(None, None, 1, (), top_k, top_p)
  found = np.asarray(sampling._cut(only, jnp.log(chances)))[0]
  assert np.flatnonzero(np.isfinite(found)).tolist() == kept
  np.testing.assert_array_equal(found[kept], np.log(chances)[0, kept])


def test_frequencies_follow_the_tempered_softmax():
  rows, temperature, prompt = 4000, 1.8, PROMPTS[1]
  samples = sampler(max_new_tokens=2, stop_tokens=())(
    PARAMS,
    [prompt] * rows,
    jax.random.split(jax.random.key(1), rows),
    temperature,
  )
  observed = np.bincount(samples.ids @ [7, 1], minlength=49)
  pairs = np.stack(np.divmod(np.arange(49), 7), axis=1)
  logits = logits_before(Samples(pairs, None, None), [prompt] * 49)

  def p_value(temperature):
    logps = at(log_softmax(logits / temperature), pairs).sum(axis=1)
    expected = rows * np.exp(logps)
    assert expected.min() > 2  # as the test needs
    return stats.chisquare(observed, expected).pvalue

  assert p_value(temperature) > 1e-3
  assert p_value(1.5) < 1e-6  # the test can tell


def test_every_token_is_drawn_with_a_number_of_its_own():
  logits = jnp.log(jnp.full((500, 7), 1 / 7))
  only = sampling.Settings(None, None, 2, (), 0, 1.0)
  keys = jax.random.key_data(jax.random.split(jax.random.key(3), 500))
  draw_at = jax.jit(
    lambda t: sampling._draw(only, logits, keys, t, 1.0, False)[0]
  )
  first, second, again = (np.asarray(draw_at(t)) for t in (0, 1, 0))
  np.testing.assert_array_equal(first, again)
  assert (
    stats.chi2_contingency(np.histogram2d(first, second, bins=7)[0]).pvalue
    > 1e-3
  )


VOCABULARIES = (1, 5, 127, 128, 129, 1000)
invert = jax.jit(sampling._invert)


def cumulative(chances):
  return np.cumsum(chances.astype(np.float64), axis=1)


@pytest.mark.parametrize('vocabulary', VOCABULARIES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.02, 0.3, 1.0]))
def test_inverse_is_exact_where_sums_are(vocabulary, seed, share):
  rng = np.random.default_rng(seed)
  weight = rng.random((64, vocabulary)) * (rng.random(vocabulary) < share)
  weight[:, rng.integers(vocabulary)] += 1e-3
  chances = rng.multinomial(2**16, weight / weight.sum(1, keepdims=True))
  chances = (chances / 2**16).astype(np.float32)  # all sums are exact
  total = cumulative(chances)
  uniform = rng.integers(0, 2**23, 64) / 2**23
  # Exactly on borders, those of blocks first.
  last = np.arange(127, vocabulary, 128)[:8]
  uniform[8 : 8 + len(last)] = total[np.arange(8, 8 + len(last)), last]
  borders = rng.integers(vocabulary, size=32)
  uniform[32:] = total[np.arange(32, 64), borders]
  uniform[:2] = 0, 1 - 2**-24
  uniform = np.minimum(uniform, 1 - 2**-24).astype(np.float32)
  expected = [np.searchsorted(t, u, 'right') for t, u in zip(total, uniform)]
  np.testing.assert_array_equal(invert(chances, uniform), expected)


@pytest.mark.parametrize('vocabulary', VOCABULARIES)
@settings(max_examples=40, deadline=None)
@given(
  seed=st.integers(0, 2**32 - 1),
  share=st.sampled_from([0.02, 0.3, 1.0]),
  power=st.sampled_from([1, 4, 12]),
)
def test_inverse_never_gives_what_has_no_mass(vocabulary, seed, share, power):
  rng, rows = np.random.default_rng(seed), np.arange(64)
  chances = rng.exponential(size=(64, vocabulary)) ** power
  chances *= rng.random((64, vocabulary)) < share
  chances[rows, rng.integers(vocabulary, size=64)] += 0.1
  chances = (chances / chances.sum(1, keepdims=True)).astype(np.float32)
  total = cumulative(chances)
  # As near to the borders as floats come: tokens' and, in half of the rows,
  # blocks'.
  border = rng.integers(vocabulary, size=64)
  border[::2] = np.minimum(border[::2] // 128 * 128 + 127, vocabulary - 1)
  uniform = total[rows, border].astype(np.float32)
  uniform[:2] = 0, 1
  uniform = np.minimum(uniform, np.float32(1 - 2**-24))
  token = np.asarray(invert(chances, uniform))
  mass, high = chances[rows, token], total[rows, token]
  assert (mass > 0).all()
  assert (high - mass - 1e-6 < uniform).all()
  assert (uniform < high + 1e-6).all()
