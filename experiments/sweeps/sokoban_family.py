"""The other schemes on tiny Sokoban, one seed each.

  python experiments/sweep.py --sweep experiments/sweeps/sokoban_family.py \\
      --out experiments/results/sokoban_family

Eight runs of configs/sokoban_tiny.py, 5 to 7 minutes each on one core; the five
that sokoban_schemes.py compares over seeds are not among them.
"""

CONFIG = 'experiments/configs/sokoban_tiny.py'
SWEEP = [
  {'config': f'{CONFIG}:{scheme}', 'label': scheme, 'seed': 0}
  for scheme in (
    *('rloo', 'dr_grpo', 'hgpo', 'g2po', 'rewardflow', 'gagpo', 'progress'),
    'tigpo',
  )
]
