"""Numbers that describe rollouts and training, and where they are written."""

import numpy as np

from graphgpo_jax.segments import TIE
from graphgpo_jax.states import Steps


def episode_scores(
  steps: Steps,
  *,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
) -> tuple[np.ndarray, np.ndarray]:
  """R_i of every attempt, in float64.

    R_i = sum of rewards - invalid_action_penalty * number of invalid steps

  Returns:
    Task number and R_i per attempt, [attempts] each.
  """
  ends = np.flatnonzero(steps.last)
  starts = np.append(0, ends[:-1] + 1)
  reward = steps.reward
  if reward_source == 'success':
    reward = success_reward * steps.success
  score = reward - invalid_action_penalty * ~steps.valid
  total = np.add.reduceat(score, starts)
  size = np.add.reduceat(abs(score), starts)
  total[abs(total) <= TIE * size] = 0
  return steps.task[ends], total


def zero_signal_tasks(task: np.ndarray, score: np.ndarray) -> np.ndarray:
  """[tasks] bool: all attempts of the task scored the same (or it has one)."""
  size = task.max() + 1
  highest, lowest = np.full(size, -np.inf), np.full(size, np.inf)
  np.maximum.at(highest, task, score)
  np.minimum.at(lowest, task, score)
  largest = np.maximum(abs(highest), abs(lowest))
  return highest - lowest <= TIE * largest


def graph_statistics(steps: Steps, results: dict) -> dict:
  """What the pooled graphs of a log look like.

  Args:
    steps: N checked steps.
    results: 'distance', 'next_distance', 'reachable' of `credit_steps`.

  Returns:
    A flat dict of counts, means over tasks or attempts, and shares of steps in
    [0, 1]. A step makes progress if its next state is closer to the goal than
    its state is (arXiv:2605.26684, section on useful steps). A share of nothing
    is None.
  """
  order = steps.row
  distance, after = results['distance'][order], results['next_distance'][order]
  reachable = results['reachable'][order]
  attempt = np.cumsum(steps.last) - steps.last
  attempts = int(steps.last.sum())
  succeeded = steps.success[steps.last]
  solved = np.zeros(len(steps.tasks), bool)
  solved[steps.task[steps.success]] = True
  node = np.stack([steps.state, steps.next_state])
  stride = int(node.max()) + 1
  _, inverse, visits = np.unique(
    steps.task * stride + steps.state, return_inverse=True, return_counts=True
  )
  nodes = np.array([len(texts) + 1 for texts in steps.texts])
  edges = np.bincount(steps.task)
  progress = reachable & (after < distance - TIE * np.maximum(1, distance))
  failed_step = ~succeeded[attempt] & solved[steps.task]
  zero = zero_signal_tasks(*episode_scores(steps))
  return {
    'tasks': len(steps.tasks),
    'attempts': attempts,
    'steps': len(order),
    'success_rate': float(succeeded.mean()),
    'zero_signal_tasks': int(zero.sum()),
    'tasks_without_success': int((~solved).sum()),
    'nodes_per_task': float(nodes.mean()),
    'nodes_per_task_max': int(nodes.max()),
    'edges_per_task': float(edges.mean()),
    'edges_per_task_max': int(edges.max()),
    'singleton_share': float((visits[inverse] == 1).mean()),
    'unreachable_share': float((~reachable).mean()),
    'distinct_states_per_attempt': len(np.unique(attempt * stride + node))
    / attempts,
    'useful_share_failed': _share(progress, failed_step),
    'useless_share_successful': _share(~progress, succeeded[attempt]),
  }


def _share(values, among):
  return float(values[among].mean()) if among.any() else None
