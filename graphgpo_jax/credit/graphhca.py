"""GraphHCA: by how much a step raises the log of the chance of success."""

import jax
import jax.numpy as jnp
import jraph

from graphgpo_jax import segments
from graphgpo_jax.credit import grpo
from graphgpo_jax.graph import without_failed_ends
from graphgpo_jax.types import Rollouts
from graphgpo_jax.values import (
  TIE,
  mean_values,
  soft_distances,
  values_after,
)


def advantages(
  rollouts: Rollouts,
  graph: jraph.GraphsTuple,
  *,
  discount: float = 0.95,
  floor: float = 0.01,
  power: float = 1.0,
  mode: str = 'mean_std_norm',
  eps: float = 0.0,
  reward_source: str = 'log',
  success_reward: float = 10.0,
  invalid_action_penalty: float = 0.1,
  episode_statistics: str = 'trajectories',
  episode_weight: float = 1.0,
  step_weight: float = 1.0,
) -> jax.Array:
  """A = episode_weight * A_E + step_weight * A_S.

    A_S = z(Psi(s') - Psi(s) | steps from one state)
    Psi(s) = log max(Phi(s), floor)
    Phi(s) = mean over edges s -> s' of discount^cost Phi(s')

  with Phi = 1 after success and 0 after a failed or truncated last step.
  Source: arXiv:2609.35084; deviations: power, and costs other than 1 discount
  as that many steps, the step's own too. A_E is `grpo.advantages`. Gains tie
  within 1e-4 (of at least 1), since Phi solves a linear system in float32,
  which is that far from exact.

  Args:
    rollouts: arrays [B, M, T].
    graph: of `build_graph(rollouts)`.
    discount: in (0, 1).
    floor: of Phi, in (0, 1).
    power: p >= 1 of the power mean over edges. 1 is the paper; large ones come
      to the best edge, discount^d, and to GraphGPO's ordering.
    mode: 'mean_std_norm' or 'mean_norm'.
    eps: added to the standard deviations.
    reward_source: of A_E: 'log', or 'success' (success_reward at a success).
    success_reward: > 0.
    invalid_action_penalty: >= 0.
    episode_statistics: 'trajectories' or 'rows'.
    episode_weight: of A_E.
    step_weight: of A_S.

  Returns:
    [B, M, T] float32, 0 on padding.
  """
  episode = grpo.advantages(
    rollouts,
    graph,
    mode=mode,
    eps=eps,
    reward_source=reward_source,
    success_reward=success_reward,
    invalid_action_penalty=invalid_action_penalty,
    episode_statistics=episode_statistics,
  )
  if power == 1:
    chance = mean_values(graph, discount=discount)
  else:
    ways = without_failed_ends(graph)
    chance = discount ** soft_distances(ways, omega=discount, power=power)
  after = values_after(chance, rollouts, success=1.0, failure=0.0)
  # Psi(s) is the same for all that are compared, and left out.
  step = segments.standardise(
    jnp.log(jnp.maximum(after, floor)) + jnp.log(discount) * rollouts.cost,
    mode=mode,
    eps=eps,
    tie=TIE,
    unit=1.0,
    **segments.state_segments(rollouts),
  )
  return episode_weight * episode + step_weight * step
