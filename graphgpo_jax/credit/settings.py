"""What the settings of the schemes in this package may be, by their names."""

import numbers

from graphgpo_jax import segments

CHOICES = {
  'mode': segments.MODES,
  'reward_source': segments.REWARD_SOURCES,
  'episode_statistics': ('trajectories', 'rows'),
  'episode_attempts': ('credited', 'all'),
  'exponent': ('paper', 'next_distance', 'relative'),
  'backup': ('min', 'soft', 'expected'),
  'failed_ends': ('state', 'nothing'),
  'base_group': (False, True),
  'invalid_action_penalty_in_step': (False, True),
}
LARGEST = 1e30  # what is computed with must stay a float32 number
ANY = (lambda x: True, 'a finite number, up to 1e30')
NOT_BELOW_0 = (lambda x: x >= 0, 'a number >= 0, up to 1e30')
ABOVE_0 = (lambda x: x >= 1 / LARGEST, 'a number > 0, from 1e-30 to 1e30')
RANGES = {  # key: (holds, words), for numbers of a size up to LARGEST
  'eps': NOT_BELOW_0,
  'success_reward': ABOVE_0,
  'invalid_action_penalty': NOT_BELOW_0,
  'episode_weight': ANY,
  'step_weight': ANY,
  'omega': (lambda x: 0 < x < 1, 'a number with 0 < omega < 1'),
  'power': (lambda x: x >= 1, 'a number >= 1, up to 1e30'),
  'gamma': (lambda x: 0 <= x <= 1, 'a number with 0 <= gamma <= 1'),
  'lam': (lambda x: 0 <= x <= 1, 'a number with 0 <= lam <= 1'),
  'beta': (lambda x: 0 <= x <= 1, 'a number with 0 <= beta <= 1'),
  'sigma_floor': ABOVE_0,
  'discount': (lambda x: 0 < x < 1, 'a number with 0 < discount < 1'),
  'floor': (lambda x: 0 < x < 1, 'a number with 0 < floor < 1'),
  'history': (
    lambda x: isinstance(x, int) and 0 <= x <= 64,
    'an integer from 0 to 64',
  ),
  'length_weight_alpha': (lambda x: abs(x) <= 16, 'a number from -16 to 16'),
  'weight': ANY,
  'all_fail_share': (lambda x: 0 <= x <= 1, 'a number from 0 to 1'),
}


def check_value(key: str, value) -> None:
  """Raises ValueError for a value that a setting of this name cannot have."""
  allowed = None
  if key in CHOICES:
    fits = any(value == x and type(value) is type(x) for x in CHOICES[key])
    allowed = ', '.join(map(str, CHOICES[key]))
  elif key in RANGES:
    holds, allowed = RANGES[key]
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    fits = number and abs(value) <= LARGEST and holds(value)
  if allowed and not fits:
    found = ascii(value)[:60]
    raise ValueError(f'setting {key!r}: found {found}, allowed: {allowed}')
