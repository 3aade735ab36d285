"""What `credit.check` says of our schemes, and of broken ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphgpo_jax import credit as credits
from graphgpo_jax import segments
from graphgpo_jax.credit import grpo

ALWAYS = {'padding', 'order', 'tasks', 'jit', 'vmap'}
ALWAYS |= {'finite', 'ties', 'gradient'}
CLAIMS = {  # beyond those that every scheme keeps
  'crbc': {'scale', 'edges'},
  'dr_grpo': set(),
  'g2po': set(),  # compares returns with success_reward
  'gagpo': {'scale'},
  'gigpo': {'scale'},
  'graphgpo': {'scale', 'monotone', 'edges'},
  'graphhca': {'scale'},  # a failed last step counts 0: neither 4.1 nor 4.2
  'grpo': {'scale'},
  'hgpo': {'scale'},
  'progress': {'scale'},
  'rewardflow': {'scale'},  # as graphhca
  'rloo': set(),
}


@pytest.mark.parametrize('scheme', credits.schemes())
def test_schemes_keep_what_they_claim(scheme):
  report = credits.check(credits.bind(scheme), show=False)
  assert {k for k, v in report.holds.items() if v} == ALWAYS | CLAIMS[scheme]


def test_averaged_outcomes_keep_4_2_and_not_4_1():
  credit_fn = credits.bind('graphgpo', backup='expected', omega=0.8)
  report = credits.check(credit_fn, show=False)
  held = {k for k, v in report.holds.items() if v}
  assert held == ALWAYS | {'scale', 'edges'}


def whole(rollouts, graph):
  """GRPO, of which the table above says what it keeps."""
  return grpo.advantages(rollouts, graph)


def pays_padding(rollouts, graph):
  return whole(rollouts, graph) + 0.1 * ~rollouts.mask


def counts_padding(rollouts, graph):
  return whole(rollouts, graph) * rollouts.mask.mean((1, 2), keepdims=True)


def prefers_early_attempts(rollouts, graph):
  places = jnp.arange(rollouts.state.shape[1])[:, None]
  return whole(rollouts, graph) * (1 + places)


def mixes_tasks(rollouts, graph):
  return whole(rollouts, graph) * rollouts.reward.max()


def knows_tracing(rollouts, graph):
  traced = isinstance(rollouts.reward, jax.core.Tracer)
  return whole(rollouts, graph) * (1 + traced)


def reads_numbers(rollouts, graph):
  return whole(rollouts, graph) * float(rollouts.cost.max())


def calls_the_host(rollouts, graph):
  credit = whole(rollouts, graph)
  shape = jax.ShapeDtypeStruct(credit.shape, credit.dtype)
  return jax.pure_callback(np.asarray, shape, credit)


def divides_by_zero(rollouts, graph):
  solved = rollouts.success.any((1, 2), keepdims=True)
  return whole(rollouts, graph) / solved * rollouts.mask


def leaves_rounding(rollouts, graph):
  """Population statistics without the rule of ties."""
  first = rollouts.episode_return[..., None] * jnp.float32(1 / 7)
  score = rollouts.episode_return[..., None]
  gap = score - first.sum(1, keepdims=True)
  spread = jnp.sqrt((gap**2).sum(1, keepdims=True) / 6)
  gap = jax.lax.stop_gradient(gap / (spread + 1e-6))
  return jnp.where(rollouts.mask, gap, 0.0)


def leaks_a_gradient(rollouts, graph):
  moved = rollouts.reward - jax.lax.stop_gradient(rollouts.reward)
  return whole(rollouts, graph) + jnp.where(rollouts.mask, moved, 0.0)


def keeps_the_scale(rollouts, graph):
  return grpo.advantages(rollouts, graph, mode='mean_norm')


def prefers_the_far(rollouts, graph):
  return -credits.load('graphgpo')(rollouts, graph, episode_weight=0.0)


def adds_the_step(rollouts, graph):
  step = credits.load('graphgpo')(rollouts, graph)
  late = 1e-2 * jnp.arange(rollouts.state.shape[2])
  return jnp.where(rollouts.mask, step + late * (step != 0), 0.0)


BROKEN = [
  ('padding', pays_padding, 'padding gets credit'),
  ('padding', counts_padding, 'differs by'),
  ('order', prefers_early_attempts, 'differs by'),
  ('tasks', mixes_tasks, 'differs by'),
  ('jit', knows_tracing, 'differs by'),
  ('jit', reads_numbers, 'ConcretizationTypeError'),
  ('vmap', calls_the_host, 'vmap'),
  ('finite', divides_by_zero, 'no success'),
  ('ties', leaves_rounding, 'found'),
  ('gradient', leaks_a_gradient, 'to reward'),
  ('scale', keeps_the_scale, 'differs by'),
  ('monotone', prefers_the_far, 'less credit'),
  ('edges', adds_the_step, 'apart'),
]


@pytest.mark.parametrize('invariant, scheme, note', BROKEN)
def test_a_broken_scheme_is_caught(invariant, scheme, note):
  report = credits.check(scheme, show=False)
  assert not report.holds[invariant]
  assert note in report.notes[invariant]


def returns_whole_numbers(rollouts, graph):
  return jnp.sign(whole(rollouts, graph)).astype(int)


def returns_one_number_an_attempt(rollouts, graph):
  return whole(rollouts, graph).max(-1)


def leaves_the_program(rollouts, graph):
  raise SystemExit('enough')


@pytest.mark.parametrize(
  'scheme, note',
  [
    (
      returns_whole_numbers,
      'returns int32 of shape (3, 7, 9), allowed: floats',
    ),
    (
      returns_one_number_an_attempt,
      'returns float32 of shape (3, 7), allowed:',
    ),
    (leaves_the_program, 'SystemExit: enough'),
  ],
)
def test_what_is_no_scheme_holds_little(scheme, note):
  report = credits.check(scheme, show=False)
  for name in ('order', 'tasks', 'scale', 'monotone', 'edges'):
    assert not report.holds[name] and note in report.notes[name]


def test_what_can_not_be_checked_is_refused():
  for fn, seed, words in (
    ('grpo', 0, "scheme: found 'grpo', allowed: a function"),
    (whole, -1, 'seed: found -1, allowed: 0, 1'),
    (whole, 1.5, 'seed: found 1.5, allowed: 0, 1'),
    (whole, True, 'seed: found True, allowed: 0, 1'),
  ):
    with pytest.raises(ValueError, match=f'^{words}'):
      credits.check(fn, seed=seed, show=False)


def test_report_is_a_table(capsys):
  report = credits.check(keeps_the_scale, seed=3)
  lines = str(report).splitlines()
  assert capsys.readouterr().out.splitlines() == lines
  assert len(lines) == len(report.holds) == 11
  assert lines[0] == 'padding   holds'
  (scale,) = (line for line in lines if line.startswith('scale'))
  assert scale.startswith('scale     BROKEN  differs by ')


def test_an_own_scheme_with_settings_is_checked():
  def bonus(rollouts, graph, *, weight):
    step = segments.standardise(
      weight * rollouts.reward, **segments.state_segments(rollouts)
    )
    return whole(rollouts, graph) + step

  report = credits.check(functools.partial(bonus, weight=2.0), show=False)
  assert {k for k, v in report.holds.items() if v} == ALWAYS | {'scale'}
