"""GRPO, GiGPO and GraphGPO on tiny Sokoban, three seeds each.

  python experiments/sweep.py --sweep experiments/sweeps/sokoban_schemes.py \\
      --out experiments/results/sokoban_schemes

Nine runs of configs/sokoban_tiny.py, about 5 minutes each on 2 cores.
"""

CONFIG = 'experiments/configs/sokoban_tiny.py'
SWEEP = [
  {'config': f'{CONFIG}:{scheme}', 'label': scheme, 'seed': seed}
  for seed in range(3)
  for scheme in ('graphgpo', 'gigpo', 'grpo')
]
