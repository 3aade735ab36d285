"""Synthetic rollouts for property tests."""

import numpy as np


def random_rows(
  seed,
  *,
  tasks=3,
  attempts=5,
  steps=12,
  places=9,
  costs=False,
  success=0.15,
  rewards=(0.0, 1.0, -0.1, 10.0),
):
  """Walks on complete graphs: cycles, self-loops, parallel edges, dead ends.

  A step from an even place may succeed, with the probability `success` (0 in
  every third task); attempts differ in length.
  """
  rng = np.random.default_rng(seed)
  rows = []
  for task in range(tasks):
    chance = 0 if task % 3 == 2 else success
    for attempt in range(attempts):
      place, length = 0, int(rng.integers(1, steps + 1))
      for step in range(length):
        after = int(rng.integers(places))
        solved = place % 2 == 0 and rng.random() < chance
        end = solved or step == length - 1
        terminal = bool(solved or (end and rng.random() < 0.5))
        rows.append(
          {
            'task': f'task {task}',
            'attempt': attempt,
            'step': step,
            'state': f'place {place}',
            'action': f'go {after}',
            'next_state': f'place {after}',
            'reward': float(rng.choice(rewards)),
            'cost': float(rng.choice([0.5, 1, 2.5, 7])) if costs else 1.0,
            'success': bool(solved),
            'terminal': terminal,
            'truncated': bool(end and not terminal),
            'valid': bool(rng.random() < 0.8),
          }
        )
        if end:
          break
        place = after
  return rows


def attempt_rows(path, *, task='x', attempt=0, success=True, rewards=None):
  """One attempt through named states; the last name is where it ends."""
  last = len(path) - 2
  return [
    {
      'task': task,
      'attempt': attempt,
      'step': step,
      'state': here,
      'action': f'to {after}',
      'next_state': after,
      'reward': (10.0 * (success and step == last))
      if rewards is None
      else rewards[step],
      'success': bool(success and step == last),
      'terminal': step == last,
      'truncated': False,
      'valid': True,
    }
    for step, (here, after) in enumerate(zip(path, path[1:]))
  ]
