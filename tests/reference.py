"""The slow oracle: the papers' formulas in plain Python and float64.

Shares no code with graphgpo_jax. Every function takes
rows: a list of dicts with task, attempt, step, state, action, next_state,
reward, success, terminal, truncated, valid and optionally cost (1.0), in any
order; it returns float64 [N] in the order of the rows. Rows are trusted.
"""

import heapq
import math
from collections import defaultdict

import numpy as np

PAPER = {
  'mode': 'mean_std_norm',
  'eps': 0.0,
  'reward_source': 'log',
  'success_reward': 10.0,
  'invalid_action_penalty': 0.1,
  'invalid_action_penalty_in_step': False,
  'episode_statistics': 'trajectories',
  'episode_weight': 1.0,
  'step_weight': 1.0,
  'omega': 0.1,
  'exponent': 'paper',
  'gamma': 0.95,
  'history': 2,
  'length_weight_alpha': 1.0,
  'base_group': False,
}
REFERENCE = {
  **PAPER,
  'eps': 1e-6,
  'invalid_action_penalty_in_step': True,
  'episode_statistics': 'rows',
  'exponent': 'next_distance',
}
CHOICES = {
  'mode': ('mean_std_norm', 'mean_norm'),
  'reward_source': ('log', 'success'),
  'episode_statistics': ('trajectories', 'rows'),
  'exponent': ('paper', 'next_distance', 'relative'),
  'base_group': (False,),
}
TIE = 1e-6


def z(values, mode='mean_std_norm', eps=0.0, ddof=1):
  """(x - mean) / (std + eps) over one group, or x - mean under mean_norm.

  Fewer than two members, or max - min <= 1e-6 * max|x|: exact zeros.
  """
  x = np.asarray(values, np.float64)
  if len(x) < 2 or np.max(x) - np.min(x) <= TIE * np.max(np.abs(x)):
    return np.zeros(len(x))
  centred = x - math.fsum(x) / len(x)  # fsum: in any order of the rows
  if mode == 'mean_norm':
    return centred
  variance = math.fsum(centred**2) / (len(x) - ddof)
  return centred / (math.sqrt(variance) + eps)


def raw_distances(rows):
  """Observed path cost to the goal: (d_state [N], d_next [N]), inf if none.

  d(goal) = 0, d(s) = min over edges s -> s' of cost + d(s'), per task.
  """
  d_state, d_next = np.empty(len(rows)), np.empty(len(rows))
  for members in _groups(rows, 'task'):
    into, goal, out_of = defaultdict(list), object(), []
    for n in members:
      end = goal if rows[n]['success'] else rows[n]['next_state']
      out_of.append((rows[n]['state'], end))
      into[end].append((rows[n]['state'], _cost(rows[n])))
    found = _dijkstra(into, goal)
    both = [[found.get(x, math.inf) for x in edge] for edge in out_of]
    d_state[members], d_next[members] = np.transpose(both)
  return d_state, d_next


def distances(rows):
  """raw_distances with inf replaced by d_max + the task's largest cost."""
  d_state, d_next = raw_distances(rows)
  for members in _groups(rows, 'task'):
    both = [*d_state[members], *d_next[members], 0.0]
    no_path = max(d for d in both if d < math.inf)
    no_path += max(_cost(rows[n]) for n in members)
    for d in (d_state, d_next):
      d[members] = np.where(np.isinf(d[members]), no_path, d[members])
  return d_state, d_next


def grpo(rows, **settings):
  """Section 1 [N]: A = A_E, z of the attempt's return over its task.

  Settings of every scheme: any key of PAPER, which also gives the defaults.
  """
  s = _settings(settings)
  rewards, penalties = _rewards(rows, s), _penalties(rows, s)
  total = np.zeros(len(rows))
  for members in _groups(rows, 'task', 'attempt'):
    total[members] = math.fsum(rewards[members])
    if s['episode_statistics'] == 'trajectories':
      total[members] -= math.fsum(penalties[members])
  if s['episode_statistics'] == 'rows':
    total -= penalties
  out = np.zeros(len(rows))
  for members in _groups(rows, 'task'):
    if s['episode_statistics'] == 'rows':
      # The published code leaves a lone row as it is; elsewhere it would be 0.
      alone = len(members) == 1
      out[members] = total[members] if alone else _z(total[members], s)
      continue
    attempts = defaultdict(list)
    for n in members:
      attempts[rows[n]['attempt']].append(n)
    votes = _z([total[steps[0]] for steps in attempts.values()], s)
    for steps, vote in zip(attempts.values(), votes):
      out[steps] = vote
  return out


def gigpo(rows, **settings):
  """Section 2 [N]: A = episode_weight * A_E + step_weight * z(G_t | state)."""
  s = _settings(settings)
  step = _z_within(rows, _step_returns(rows, s), s, 'task', 'state')
  return _combine(rows, s, step)


def graphgpo(rows, **settings):
  """Section 3 [N]: A = episode_weight * A_E + step_weight * A_G."""
  s = _settings(settings)
  return _combine(rows, s, graph_term(rows, **s))


def graph_term(rows, **settings):
  """A_G [N] = z(success_reward * omega^exponent - penalty | same state).

  No success in the task: exponent='paper' brings the paper's rule A_G = 0, the
  exponents of the published code keep the formula. It decides in two cases
  only, costs that differ among the edges of a state and
  invalid_action_penalty_in_step: otherwise all R_G of a state are equal there
  and the tie rule gives 0 for every exponent.
  """
  s = _settings(settings)
  d_state, exponent = distances(rows)
  if s['exponent'] != 'next_distance':
    exponent = exponent + np.array([_cost(row) for row in rows])
  if s['exponent'] == 'relative':
    exponent = exponent - d_state
  penalties = _penalties(rows, s) * s['invalid_action_penalty_in_step']
  solved = {row['task'] for row in rows if row['success']}
  out = np.zeros(len(rows))
  for members in _groups(rows, 'task', 'state'):
    first = members[0]
    if s['exponent'] == 'paper' and rows[first]['task'] not in solved:
      continue
    best = min(exponent[members])
    excess = exponent[members] - best
    # Path lengths tie within 1e-6 * max(1, d).
    excess[excess <= TIE * max(1.0, d_state[first])] = 0.0
    # omega^best cancels in a z without eps, unless a penalty stands beside it;
    # leaving it out keeps the z exact where omega^d underflows.
    cancels = s['mode'] == 'mean_std_norm' and s['eps'] == 0
    if cancels and not penalties[members].any():
      best = 0.0
    power = np.array([s['omega'] ** float(best + e) for e in excess])
    out[members] = _z(s['success_reward'] * power - penalties[members], s)
  return out


def hgpo(rows, **settings):
  """Section 4 [N]: levels k = 1..history+1 of z(G_t | last k states), ddof 0.

  A = sum_k (k+1)^alpha A_k / sum_k (k+1)^alpha over levels with A_k != 0. That
  is 0 too where G_t is its group's mean, to 5e-7 of the largest |G_t|.
  """
  s = _settings(settings)
  returns = _step_returns(rows, s)
  visited = {}
  for steps in _groups(rows, 'task', 'attempt'):
    states = [rows[n]['state'] for n in steps]
    visited.update((n, states[: t + 1]) for t, n in enumerate(steps))
  total, weights = np.zeros(len(rows)), np.zeros(len(rows))
  for k in range(1, s['history'] + 2):
    groups = defaultdict(list)
    for n, states in visited.items():
      if len(states) >= k:
        groups[rows[n]['task'], *states[-k:]].append(n)
    level = np.zeros(len(rows))
    for members in groups.values():
      x = returns[members]
      differs = abs(x - x.mean()) > 5e-7 * abs(x).max()
      level[members] = _z(x, s, ddof=0) * differs
    weight = (k + 1.0) ** s['length_weight_alpha']
    total += weight * level
    weights += weight * (level != 0)
  return np.divide(total, weights, out=total, where=weights > 0)


def g2po(rows, **settings):
  """Section 5 [N]: A = episode_weight * A_E + step_weight * (C1 + C2)."""
  s = _settings(settings)
  return _combine(rows, s, sum(g2po_terms(rows, **s)))


def g2po_terms(rows, **settings):
  """(C1 [N], C2 [N]): z of V(s') per state, z of V(s') - V(s) per task.

  V(s) = mean over visits of gamma^max(T_i - t, 1) * R_i, R_i without penalty;
  after a last step success_reward or 0. C1 always subtracts the penalty.
  """
  s = _settings(settings)
  rewards = _rewards(rows, s)
  visits, after = np.zeros(len(rows)), {}
  for steps in _groups(rows, 'task', 'attempt'):
    score = math.fsum(rewards[steps])
    for t, n in enumerate(steps):
      visits[n] = s['gamma'] ** max(len(steps) - t, 1) * score
    last = rows[steps[-1]]
    after[steps[-1]] = s['success_reward'] if last['success'] else 0.0
  value = {}
  for members in _groups(rows, 'task', 'state'):
    row = rows[members[0]]
    value[row['task'], row['state']] = visits[members].mean()
  here = np.array([value[row['task'], row['state']] for row in rows])
  there = here.copy()
  for n, row in enumerate(rows):
    key = row['task'], row['next_state']
    there[n] = after[n] if n in after else value[key]
  c1 = _z_within(rows, there - _penalties(rows, s), s, 'task', 'state')
  return c1, _z_within(rows, there - here, s, 'task')


def statistics(rows):
  """Shares of section 3: {'useful_share_failed', 'useless_share_successful'}.

  A step makes progress if d(s') < d(s) by more than a tie and s' has a path.
  A share of no steps is nan.
  """
  d_state, d_next = raw_distances(rows)
  solved = {row['task'] for row in rows if row['success']}
  useful, useless = [], []
  for steps in _groups(rows, 'task', 'attempt'):
    if rows[steps[0]]['task'] not in solved:
      continue
    successful = any(rows[n]['success'] for n in steps)
    for n in steps:
      gain = d_state[n] - d_next[n] if d_next[n] < math.inf else 0.0
      progress = gain > TIE * max(1.0, d_state[n])
      (useless if successful else useful).append(progress != successful)
  names = ('useful_share_failed', 'useless_share_successful')
  return {
    name: sum(steps) / len(steps) if steps else math.nan
    for name, steps in zip(names, (useful, useless))
  }


def toy_rows():
  """The check table's task: 12 rows, reward 10 on a successful last step."""
  paths = {
    't0': 'A-a1-B-b1-G',
    't1': 'A-a2-C-c1-A-a1-B-b1-G',
    't2': 'A-a2-C-c2-D-d1-E',
    't3': 'A-a2-C-c3-C-c2-D',
  }
  rows = []
  for attempt, path in paths.items():
    words = path.split('-')
    for t in range(len(words) // 2):
      state, action, next_state = words[2 * t : 2 * t + 3]
      success, terminal = next_state == 'G', 2 * t + 3 == len(words)
      row = {'task': 'toy', 'attempt': attempt, 'step': t, 'state': state}
      row |= {'action': action, 'next_state': next_state}
      row |= {'reward': 10.0 * success, 'success': success, 'valid': True}
      rows.append(row | {'terminal': terminal, 'truncated': False})
  return rows


def _settings(overrides):
  for key in overrides.keys() - PAPER.keys():
    raise ValueError(f'unknown setting {key!r}')
  settings = {**PAPER, **overrides}
  for key, choices in CHOICES.items():
    if settings[key] not in choices:
      raise ValueError(f'{key}: {settings[key]!r} is not one of {choices}')
  return settings


def _groups(rows, *fields):
  """Row numbers of the rows that agree on fields, in the order of steps."""
  groups = defaultdict(list)
  for n in sorted(range(len(rows)), key=lambda n: rows[n]['step']):
    groups[tuple(rows[n][field] for field in fields)].append(n)
  return list(groups.values())


def _cost(row):
  return float(row.get('cost', 1.0))


def _dijkstra(into, goal):
  """{node: distance} of the nodes with a path to goal, from edges reversed."""
  distance, heap, pushes = {}, [(0.0, 0, goal)], 0
  while heap:
    d, _, node = heapq.heappop(heap)
    if node in distance:
      continue
    distance[node] = d
    for source, cost in into[node]:
      pushes += 1  # breaks ties, so that nodes are never compared
      heapq.heappush(heap, (d + cost, pushes, source))
  return distance


def _rewards(rows, s):
  if s['reward_source'] == 'log':
    return np.array([float(row['reward']) for row in rows])
  return np.array([s['success_reward'] * row['success'] for row in rows])


def _penalties(rows, s):
  penalty = s['invalid_action_penalty']
  return np.array([0.0 if row['valid'] else penalty for row in rows])


def _step_returns(rows, s):
  """G_t = r_t + gamma G_{t+1} [N], then the penalty of the step itself."""
  rewards, returns = _rewards(rows, s), np.zeros(len(rows))
  for steps in _groups(rows, 'task', 'attempt'):
    following = 0.0
    for n in reversed(steps):
      following = returns[n] = rewards[n] + s['gamma'] * following
  return returns - _penalties(rows, s) * s['invalid_action_penalty_in_step']


def _z(values, s, ddof=1):
  return z(values, s['mode'], s['eps'], ddof)


def _z_within(rows, values, s, *fields):
  out = np.zeros(len(rows))
  for members in _groups(rows, *fields):
    out[members] = _z(values[members], s)
  return out


def _combine(rows, s, step):
  return s['episode_weight'] * grpo(rows, **s) + s['step_weight'] * step
