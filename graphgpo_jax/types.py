"""The records that travel between the rooms, and the legend of their axes.

B tasks (groups)      M attempts per task     T steps per attempt
K node slots per task E = B * M * T edges     V = B * K nodes
R token rows          L tokens per row
"""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jraph
import numpy as np


@dataclasses.dataclass(frozen=True, slots=True)
class Transition:
  """One environment step on the host: one line of the rollout log.

  The fields up to `cost` are the log's. The token fields are filled by our own
  collector and never leave the process: ids are kept as sampled, since decoding
  and encoding again may give other ids.
  """

  task: str | int
  attempt: str | int
  step: int
  state: str
  action: str
  next_state: str
  reward: float
  success: bool
  terminal: bool
  truncated: bool
  valid: bool
  cost: float = 1.0
  prompt_ids: np.ndarray | None = None
  response_ids: np.ndarray | None = None
  response_logps: np.ndarray | None = None


@flax.struct.dataclass
class Rollouts:
  """A padded batch of attempts. Arrays are [B, M, T] unless said otherwise.

  Attributes:
    state: int32, node of the state inside its task; node 0 is the goal.
    next_state: int32, node that the step led to; 0 after success.
    action: int32, number of the (state, action) pair inside its task.
    reward: float32, as logged.
    cost: float32, > 0.
    valid: bool, the action was well-formed.
    success: bool, this step reached the goal.
    mask: bool, False for padding.
    credited: bool, False for steps that shape the graph and nothing else.
    truncated: [B, M] bool, the attempt was cut off.
    episode_return: [B, M] float32, sum of logged rewards (summed in float64).
    row: int32, index of the host row, -1 for padding.
    num_nodes: K, static.
  """

  state: jax.Array
  next_state: jax.Array
  action: jax.Array
  reward: jax.Array
  cost: jax.Array
  valid: jax.Array
  success: jax.Array
  mask: jax.Array
  credited: jax.Array
  truncated: jax.Array
  episode_return: jax.Array
  row: jax.Array
  num_nodes: int = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class TokenRows:
  """One row of tokens per environment step, right-padded. [R, L].

  Attributes:
    ids: int32, prompt, then response, then padding.
    response_mask: bool, True on the tokens that the policy sampled.
    behaviour_logp: float32, log-prob at sampling time, 0 elsewhere.
  """

  ids: jax.Array
  response_mask: jax.Array
  behaviour_logp: jax.Array


CreditFn = Callable[[Rollouts, jraph.GraphsTuple], jax.Array]
