"""Where rows lie: mates, padding, compaction, meshes and compilations."""

import collections
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samplers import (
  CONFIG,
  KEYS,
  PARAMS,
  PROMPTS,
  ROWS,
  SETTINGS,
  STOPS,
  draw,
  sampler,
  spoken,
)

from graphgpo_jax import sharding
from graphgpo_jax.models import generation, sampling

NEW = SETTINGS['max_new_tokens']
WIDE = {'buckets': (6,), 'prefill_tokens': 4096}  # all in one call


@pytest.fixture
def compilations():
  """How often each part has been compiled, from here on."""
  count = collections.Counter()

  def hear(event, duration, fun_name='', **_):
    del duration
    if event == '/jax/core/compile/backend_compile_duration':
      count[fun_name.removeprefix('jit(').removesuffix(')')] += 1

  jax.monitoring.register_event_duration_secs_listener(hear)
  yield count
  jax.monitoring.unregister_event_duration_listener(hear)


# The first of the file: what was compiled before does not count.
def test_compilations_are_few(compilations):
  parts = ('empty', 'prefill', 'admit', 'decode', 'compact')
  rng = np.random.default_rng(0)
  for rows in range(1, ROWS + 1):
    longest = (3, 6)[rows % 2]
    prompts = [rng.integers(0, 7, rng.integers(1, longest + 1)) for _ in KEYS]
    sampler()(PARAMS, prompts[:rows], KEYS)
  buckets, sizes = 2, 3  # of 16, 32 and 64 rows
  assert compilations['prefill'] <= buckets
  assert compilations['decode'] <= buckets * sizes
  assert compilations['empty'] <= buckets * sizes
  assert compilations['compact'] <= buckets * sizes  # 64 to 32 or 16, 32 to 16
  # A short prompt has slots before it when a longer one is there.
  assert compilations['admit'] <= (buckets + 1) * sizes
  before = {part: compilations[part] for part in parts}
  for temperature in (0.6, 1, np.float32(1.4), jnp.float32(2)):
    for greedy in (False, True, np.bool_(True)):
      draw(range(16), temperature=temperature, greedy=greedy)
  assert {part: compilations[part] for part in parts} == before


@pytest.fixture(scope='module')
def expected():
  return draw()


@pytest.fixture
def calls(monkeypatch):
  """What the jitted parts were asked to do."""
  found = types.SimpleNamespace(
    prefilled=[],  # (rows, tokens)
    caches=[],  # shape on each device of the keys, or None
    steps=[],  # tokens of every decode loop
    sizes=[],  # (rows, rows that go on) of every compaction
  )
  prefill, admit = sampling.prefill, sampling.admit
  decode, compact = sampling.decode, sampling.compact

  def noted_prefill(settings, params, ids, *rest):
    found.prefilled.append(ids.shape)
    return prefill(settings, params, ids, *rest)

  def noted_admit(settings, params, batch, *rest):
    cache = batch.cache and batch.cache[0]
    found.caches.append(
      cache if cache is None else cache.sharding.shard_shape(cache.shape)
    )
    return admit(settings, params, batch, *rest)

  def noted_decode(settings, params, batch, t, *rest):
    end, batch = decode(settings, params, batch, t, *rest)
    found.steps.append(int(end) - int(t))
    return end, batch

  def noted_compact(settings, batch, index, padding):
    found.sizes.append((len(batch.stopped), len(index)))
    return compact(settings, batch, index, padding)

  monkeypatch.setattr(sampling, 'prefill', noted_prefill)
  monkeypatch.setattr(sampling, 'admit', noted_admit)
  monkeypatch.setattr(sampling, 'decode', noted_decode)
  monkeypatch.setattr(sampling, 'compact', noted_compact)
  return found


def check_equal(samples, expected, rows=slice(None)):
  np.testing.assert_array_equal(samples.ids, expected.ids[rows])
  np.testing.assert_array_equal(samples.lengths, expected.lengths[rows])
  np.testing.assert_allclose(samples.logps, expected.logps[rows], atol=1e-5)


def test_rows_that_stop_leave_and_the_others_do_not_notice(expected, calls):
  check_equal(draw(), expected)
  assert calls.sizes == [(64, 32), (32, 16)]
  assert sum(calls.steps) == NEW - 1  # the last token is not fed back
  calls.sizes.clear()
  parts = [range(16), range(16, 32), range(32, 40)]
  for rows in parts:
    check_equal(draw(rows), expected, rows)
  assert not calls.sizes  # sixteen rows are never fewer
  assert expected.lengths.min() == 1 and expected.lengths.max() == NEW
  assert len(np.unique(expected.lengths)) > 5


@pytest.mark.parametrize('row', [0, 5, 11])
def test_rows_do_not_depend_on_mates(expected, row):
  check_equal(draw([row]), expected, [row])


def test_rows_do_not_depend_on_order(expected):
  check_equal(draw(reversed(range(ROWS))), expected, slice(None, None, -1))


def test_rows_do_not_depend_on_padding(expected):
  check_equal(draw(range(16), settings=WIDE), expected, range(16))
  short = [i for i in range(ROWS) if len(PROMPTS[i]) <= 3][:16]
  check_equal(draw(short), expected, short)


def test_equal_prompts_are_prefilled_once(expected, calls):
  same = [i for i in range(ROWS) if PROMPTS[i] == PROMPTS[5]]
  assert len(same) == 3
  check_equal(draw(same), expected, same)
  assert calls.prefilled == [(8, 6)]
  calls.prefilled.clear()
  keys = KEYS[np.array([0, 1, 0, 2])]
  samples = sampler()(PARAMS, [PROMPTS[0]] * 4, keys)
  np.testing.assert_array_equal(samples.ids[0], samples.ids[2])
  assert (samples.ids[0] != samples.ids[1]).any()
  assert calls.prefilled == [(16, 3)]


def test_prefill_is_cut_into_blocks(expected, calls):
  others = [[a, b, 1, 2] for a in range(5) for b in range(4)]
  keys = jax.random.split(jax.random.key(5), 20)
  samples = sampler()(
    PARAMS, [*others, PROMPTS[5]], jnp.append(keys, KEYS[5:6])
  )
  assert calls.prefilled == [(8, 6)] * 3
  last = jax.tree.map(lambda x: x[-1:], samples)
  check_equal(last, expected, [5])


def test_prompts_share_rows_of_a_prefill(expected, calls):
  assert len({tuple(prompt) for prompt in PROMPTS}) == 12
  check_equal(draw(), expected)
  assert calls.prefilled == [(8, 6)]  # 42 tokens


def test_blocks_pad_few_rows(expected, calls, monkeypatch):
  monkeypatch.setattr(generation, 'SMALLEST_PREFILL', 12)
  others = [[a, b, c, 1] for a in range(3) for b in range(3) for c in (0, 2)]
  keys = jax.random.split(jax.random.key(5), 18)
  samples = sampler(**WIDE)(
    PARAMS, [*others, PROMPTS[5]], jnp.append(keys, KEYS[5:6])
  )
  assert calls.prefilled == [(16, 6), (2, 6), (2, 6)]  # 19 rows
  check_equal(jax.tree.map(lambda x: x[-1:], samples), expected, [5])


def test_stop_tokens_end_rows(expected):
  rows = range(16)
  free = draw(rows, settings=WIDE | {'stop_tokens': ()})
  np.testing.assert_array_equal(free.lengths, NEW)
  lengths = [
    next((t + 1 for t, token in enumerate(row) if token in STOPS), NEW)
    for row in free.ids.tolist()
  ]
  assert min(lengths) == 1 and max(lengths) == NEW
  stopped = jax.tree.map(lambda x: x[:16], expected)
  np.testing.assert_array_equal(stopped.lengths, lengths)
  kept = spoken(stopped)
  np.testing.assert_array_equal(stopped.ids, np.where(kept, free.ids, 0))
  np.testing.assert_allclose(
    stopped.logps, np.where(kept, free.logps, 0), atol=1e-5
  )
  assert (stopped.logps[~kept] == 0).all()


@pytest.mark.parametrize(
  ('longest', 'sizes'), [(1, []), (5, [(32, 16)]), (7, [(32, 16)])]
)
def test_decoding_ends_with_the_last_row(expected, calls, longest, sizes):
  rows = np.flatnonzero(expected.lengths <= longest)
  assert expected.lengths[rows].max() == longest
  check_equal(draw(rows), expected, rows)
  assert sum(calls.steps) == longest - 1
  assert calls.sizes == sizes


def test_limits_end_rows_early(expected, calls, compilations):
  limits = np.arange(ROWS) % 5 + 1
  samples = sampler()(PARAMS, PROMPTS, KEYS, limits=limits)
  np.testing.assert_array_equal(
    samples.lengths, np.minimum(expected.lengths, limits)
  )
  kept = spoken(samples)
  np.testing.assert_array_equal(samples.ids, np.where(kept, expected.ids, 0))
  np.testing.assert_allclose(
    samples.logps, np.where(kept, expected.logps, 0), atol=1e-5
  )
  assert sum(calls.steps) == samples.lengths.max() - 1 == 4
  assert not compilations['admit'] and not compilations['decode']


def test_one_token_needs_no_cache_and_no_loop(expected, calls):
  one = draw(range(16), settings=WIDE | {'max_new_tokens': 1})
  assert calls.caches == [None] and calls.steps == []
  np.testing.assert_array_equal(one.ids, expected.ids[:16, :1])
  np.testing.assert_allclose(one.logps, expected.logps[:16, :1], atol=1e-5)
  np.testing.assert_array_equal(one.lengths, 1)


@pytest.mark.parametrize(
  ('axes', 'rows', 'sizes', 'cache'),
  [
    ({'data': 8}, 13, [], (2, 2, 17, 2, 4)),
    (
      {'data': 2, 'fsdp': 2, 'tensor': 2},
      21,
      [(32, 16)],
      (2, 8, 17, 1, 4),  # layers, rows, slots, heads, their size
    ),
  ],
)
def test_a_mesh_equals_one_device(expected, calls, axes, rows, sizes, cache):
  mesh = sharding.make_mesh(**axes)
  params = jax.device_put(PARAMS, sharding.shardings(PARAMS, mesh))
  samples = draw(range(rows), settings=WIDE | {'mesh': mesh}, params=params)
  check_equal(samples, expected, range(rows))
  assert calls.sizes == sizes
  assert calls.caches == [cache]


def test_no_prompts_give_no_samples():
  samples = sampler()(PARAMS, [], KEYS)
  assert samples.ids.shape == samples.logps.shape == (0, NEW)
  assert samples.lengths.shape == (0,)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'max_new_tokens': 0}, 'max_new_tokens must be >= 1, got 0'),
    ({'top_p': 0}, 'top_k and top_p out of range, got 0 and 0'),
    ({'top_p': 2}, 'top_k and top_p out of range, got 0 and 2'),
    ({'top_k': -1}, 'top_k and top_p out of range, got -1 and 1.0'),
    ({'buckets': ()}, r'buckets must be integers >= 1, got \(\)'),
    ({'buckets': (0, 3)}, r'buckets must be integers >= 1, got \(0, 3\)'),
  ],
)
def test_settings_out_of_range_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    generation.make_sampler(CONFIG, **SETTINGS | changes)


@pytest.mark.parametrize(
  ('prompts', 'keys', 'message'),
  [
    ([[1], []], KEYS, 'prompts must have 1 to 6 tokens, got 0 in row 1'),
    ([[1], [2], [3] * 7], KEYS, 'must have 1 to 6 tokens, got 7 in row 2'),
    ([[1], [2]], KEYS[:1], '2 prompts need as many keys, got 1'),
    (
      [[1]],
      jax.random.split(jax.random.key(0, impl='rbg'), 1),
      'keys must be threefry2x32, got rbg',
    ),
  ],
)
def test_prompts_and_keys_are_checked(prompts, keys, message):
  with pytest.raises(ValueError, match=message):
    sampler()(PARAMS, prompts, keys)
