"""Slow oracles of the schemes beyond `reference`, in plain Python and float64.

Shares no code with graphgpo_jax. Rows as in `reference`; every function returns
the step term alone, float64 [N] in the order of the rows, unless it says
otherwise. Costs discount as that many steps.

TOY is the check table typed in, of numbers that no code here made: step
terms of `reference.toy_rows` by edge, or by edge and attempt.
"""

import math
from collections import Counter, defaultdict

import numpy as np
import reference

GOAL = object()
COLUMNS = ('gigpo', 'graphgpo .1', 'graphgpo .8')
COLUMNS += ('hgpo', 'g2po C1', 'crbc', 'graphhca')
TOY = {
  'A-a1-B': (0.7894, 1.0954, 1.095, 0.8826, 1.0954, 1.2247, 1.0954),
  'A-a2-C t1': (0.6059, -0.7303, -0.730, 0.6775, -0.7303, -0.8165, -0.7303),
  'A-a2-C': (-1.0924, -0.7303, -0.730, -1.2213, -0.7303, -0.8165, -0.7303),
  'C-c1-A': (1.5000, 1.4942, 1.346, 1.5413, 1.3696, 1.6383, 1.1444),
  'C-c3-C': (-0.5000, -0.3735, 0.176, -0.6552, 0.1202, -0.0162, 0.5328),
  'C-c2-D t2': (-0.5000, -0.5603, -0.761, -0.6552, -0.7449, -0.8111, -0.8386),
  'C-c2-D t3': (-0.5000, -0.5603, -0.761, -0.5774, -0.7449, -0.8111, -0.8386),
  'B-b1-G': (0, 0, 0, 0, 0, 0, 0),
  'D-d1-E': (0, 0, 0, 0, 0, 0, 0),
}


def toy_column(name):
  """A column of TOY for every row of `reference.toy_rows`."""
  column, credit = COLUMNS.index(name), []
  for row in reference.toy_rows():
    edge = f'{row["state"]}-{row["action"]}-{row["next_state"]}'
    line = TOY.get(f'{edge} {row["attempt"]}') or TOY[edge]
    credit.append(line[column])
  return np.array(credit)


def groups(rows, *fields):
  """Row numbers of the rows that agree on fields."""
  found = defaultdict(list)
  for number, row in enumerate(rows):
    found[tuple(row[field] for field in fields)].append(number)
  return list(found.values())


def last_rows(rows):
  """Row numbers of the last steps of the attempts."""
  return {
    max(members, key=lambda n: rows[n]['step'])
    for members in groups(rows, 'task', 'attempt')
  }


def z_within(rows, values, *fields, **options):
  result = np.zeros(len(rows))
  for members in groups(rows, *fields):
    result[members] = reference.z(values[members], **options)
  return result


def ends(rows):
  """Node that each row's value comes from; None after a failed last step."""
  last = last_rows(rows)
  return [
    GOAL
    if row['success']
    else None
    if n in last
    else (row['task'], row['next_state'])
    for n, row in enumerate(rows)
  ]


def costs(rows):
  return np.array([row.get('cost', 1.0) for row in rows])


def mean_values(rows, discount, power=1.0):
  """{node: V}, V(s) = (mean over edges of (discount^cost V)^p)^(1 / p)."""
  factors, after = discount ** (power * costs(rows)), ends(rows)
  nodes = sorted({(row['task'], row['state']) for row in rows}, key=str)
  place = {node: i for i, node in enumerate(nodes)}
  matrix, right = np.eye(len(nodes)), np.zeros(len(nodes))
  for members in groups(rows, 'task', 'state'):
    here = place[rows[members[0]]['task'], rows[members[0]]['state']]
    for n in members:
      share = factors[n] / len(members)
      if after[n] is GOAL:
        right[here] += share
      elif after[n] is not None:
        matrix[here, place[after[n]]] -= share
  solution = np.linalg.solve(matrix, right).clip(0) ** (1 / power)
  return {**dict(zip(nodes, solution)), GOAL: 1.0, None: 0.0}


def crbc(rows, *, beta=0.98, sigma_floor=0.1):
  """Section 6: (Q - V) / max(sigma, sigma_floor), from counts per action."""
  value = mean_values(rows, beta)
  back = beta ** costs(rows) * [value[end] for end in ends(rows)]
  quality, result = np.zeros(len(rows)), np.zeros(len(rows))
  for members in groups(rows, 'task', 'state', 'action'):
    quality[members] = back[members].mean()
  for members in groups(rows, 'task', 'state'):
    if len({rows[n]['action'] for n in members}) > 1:
      here = value[rows[members[0]]['task'], rows[members[0]]['state']]
      gap = quality[members] - here
      if np.ptp(gap) > 1e-6 * abs(quality[members]).max():
        result[members] = gap / max(np.sqrt((gap**2).mean()), sigma_floor)
  return result


def graphhca(rows, *, discount=0.95, floor=0.01, power=1.0):
  """Section 7: z of Psi(s') - Psi(s) among the steps of a state."""
  value = mean_values(rows, discount, power)
  psi = [math.log(max(value[end], floor)) for end in ends(rows)]
  own = np.array(
    [math.log(max(value[r['task'], r['state']], floor)) for r in rows]
  )
  gain = np.array(psi) - own + math.log(discount) * costs(rows)
  # Equal chances of a linear system leave rounding, also in float64.
  return z_within(rows, gain.round(7), 'task', 'state')


def rewardflow(rows, *, gamma=0.95, success_reward=10.0):
  """Section 8: z of V(s'); r(s) is what steps that lead on to s received."""
  after, value = ends(rows), defaultdict(float)
  for n, row in enumerate(rows):
    if after[n] not in (None, GOAL):
      value[after[n]] = max(value[after[n]], row['reward'])
  value[GOAL] = success_reward
  factors, changed = gamma ** costs(rows), True
  while changed:
    changed = False
    for n, row in enumerate(rows):
      through = factors[n] * value[after[n]]
      if through > value[row['task'], row['state']]:
        value[row['task'], row['state']], changed = through, True
  scores, extra = np.array([value[end] for end in after]), costs(rows)
  for members in groups(rows, 'task', 'state'):
    extra[members] -= extra[members].min()
  return z_within(rows, gamma**extra * scores, 'task', 'state')


def gagpo(rows, *, gamma=0.95, lam=0.95, penalty=0.1):
  """Section 9: GAE on the mean returns of states, z over the task."""
  rewards = np.array([r['reward'] - penalty * (not r['valid']) for r in rows])
  returns, delta, result = np.zeros((3, len(rows)))
  attempts = [
    sorted(members, key=lambda n: rows[n]['step'])
    for members in groups(rows, 'task', 'attempt')
  ]
  for steps in attempts:
    following = 0.0
    for n in reversed(steps):
      following = returns[n] = rewards[n] + gamma * following
  value = {GOAL: 0.0, None: 0.0}
  for members in groups(rows, 'task', 'state'):
    row = rows[members[0]]
    value[row['task'], row['state']] = returns[members].mean()
  for n, (row, end) in enumerate(zip(rows, ends(rows))):
    here = value[row['task'], row['state']]
    delta[n] = rewards[n] + gamma * value[end] - here
  for steps in attempts:
    following = 0.0
    for n in reversed(steps):
      following = result[n] = delta[n] + gamma * lam * following
  return z_within(rows, result, 'task')


def progress(rows, *, weight=0.3, all_fail_share=1.0):
  """Section 11, the whole advantage.

  A_E; where no attempt succeeded z of (distinct states - 1) / T_i in its place.
  """
  result = reference.grpo(rows)
  for task in groups(rows, 'task'):
    if any(rows[n]['success'] for n in task):
      continue
    rates = {}
    for n in task:
      seen, length = rates.setdefault(rows[n]['attempt'], (set(), []))
      seen.update((rows[n]['state'], rows[n]['next_state']))
      length.append(n)
    scores = [(len(seen) - 1) / len(own) for seen, own in rates.values()]
    votes = reference.z(scores)
    for (_, own), vote in zip(rates.values(), votes):
      result[own] = weight * all_fail_share * vote
  return result


def dr_grpo(rows):
  """Section 1: R_i - mean, R_i with penalties; the whole advantage."""
  return reference.grpo(rows, mode='mean_norm')


def rloo(rows):
  """Section 1: M / (M - 1) * (R_i - mean); the whole advantage."""
  attempts = Counter(
    rows[members[0]]['task'] for members in groups(rows, 'task', 'attempt')
  )
  factor = [attempts[row['task']] for row in rows]
  return dr_grpo(rows) * [m / max(m - 1, 1) for m in factor]


def expected_values(rows, omega):
  """{node: best action's mean of omega^cost V}, failed ends lead nowhere."""
  value, after = defaultdict(float), ends(rows)
  value[GOAL], factors = 1.0, omega ** costs(rows)
  for _ in range(400):
    best = defaultdict(float)
    for members in groups(rows, 'task', 'state', 'action'):
      mean = np.mean([factors[n] * value[after[n]] for n in members])
      node = rows[members[0]]['task'], rows[members[0]]['state']
      best[node] = max(best[node], mean)
    value.update(best)
  return value
