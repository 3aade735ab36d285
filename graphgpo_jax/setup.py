"""From a config to the fixed parts of a run."""

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from graphgpo_jax import config as configs
from graphgpo_jax import credit, sharding
from graphgpo_jax.envs.base import Environment
from graphgpo_jax.models.decoder import (
  DecoderConfig,
  graph_definition,
  init_params,
)
from graphgpo_jax.models.sampling import make_sampler
from graphgpo_jax.models.tokenizer import CharTokenizer
from graphgpo_jax.rollout import Policy, make_policy
from graphgpo_jax.update import (
  TrainState,
  imitation_objective,
  init_state,
  make_optimizer,
  make_update,
  policy_objective,
)

# On accelerators too float32 shall mean float32, or the sampler's log-probs are
# not the scorer's. Does not touch bfloat16.
PRECISION = 'highest'


class Run(NamedTuple):
  """The fixed parts of a run, built from its config."""

  config: Any
  env: Environment
  panel: Environment
  tokenizer: Any
  sampler: Callable
  credit_fn: Callable
  optimizer: optax.GradientTransformation
  imitate: Callable
  improve: Callable
  mesh: jax.sharding.Mesh
  key: jax.Array


def build(config, credit_fn=None) -> tuple[Run, TrainState]:
  """Everything a run needs, and its first state."""
  if credit_fn is None:
    settings = config.credit.to_dict()
    scheme, preset = settings.pop('scheme'), settings.pop('preset')
    credit_fn = credit.bind(scheme, preset=preset, **settings)
  mesh = sharding.make_mesh(**config.mesh)
  env, panel = make_environments(config.env)
  tokenizer, decoder_config = make_model(config, env)
  check_sizes(config, env, tokenizer, mesh)
  graphdef = graph_definition(decoder_config)
  optimizer = make_optimizer(**config.optimizer)
  state = init_state(
    init_params(decoder_config, seed=config.seed), optimizer, mesh
  )
  imitate, improve = _updates(config, graphdef, optimizer, state)
  run = Run(
    config=config,
    env=env,
    panel=panel,
    tokenizer=tokenizer,
    sampler=make_sampler(
      graphdef,
      max_new_tokens=config.sampling.max_new_tokens,
      stop_tokens=(tokenizer.eos_id,),
    ),
    credit_fn=credit_fn,
    optimizer=optimizer,
    imitate=imitate,
    improve=improve,
    mesh=mesh,
    key=jax.random.key(config.seed),
  )
  return run, state


def _updates(config, graphdef, optimizer, state):
  """The supervised and the RL update function."""
  loss = config.loss.to_dict()
  common = {
    'placement': jax.tree.map(lambda x: x.sharding, state),
    'aggregation': loss.pop('aggregation'),
    'fixed_length': loss.pop('fixed_length'),
    'micro_batches': config.batch.micro_batches,
  }
  rate = {'learning_rate': config.warm_start.learning_rate}
  warm = make_optimizer(**config.optimizer.to_dict() | rate)
  imitate = make_update(graphdef, warm, imitation_objective, **common)
  improve = make_update(
    graphdef,
    optimizer,
    functools.partial(policy_objective, **loss),
    temperature=config.sampling.temperature,
    uses_reference=config.loss.kl_coefficient > 0,
    **common,
  )
  return imitate, improve


def make_environments(section) -> tuple[Environment, Environment]:
  """The training environment and the held-out panel of a config.

  Raises:
    ValueError: the factory does not exist or does not take the settings.
  """
  module, _, name = section.factory.partition(':')
  try:
    factory = getattr(importlib.import_module(module), name)
    return tuple(
      factory(**section.settings, **section[split])
      for split in ('train', 'panel')
    )
  except (ImportError, AttributeError, TypeError, ValueError) as problem:
    raise ValueError(f'config.env: {section.factory!r}: {problem}') from None


def check_sizes(config, env, tokenizer, mesh) -> None:
  """Raises ValueError for sizes that do not fit environment or mesh."""
  wanted = config.batch.tasks * (config.batch.resample_retries + 1)
  if wanted > env.num_tasks:
    raise ValueError(
      f'config.batch.tasks: found {config.batch.tasks}, with retries {wanted} '
      f'tasks per update, allowed: at most {env.num_tasks}, all there are'
    )
  prompt = env.prompt([], env.reset([0])[0])
  length = len(tokenizer.encode(prompt))
  if length > config.sampling.prompt_length:
    raise ValueError(
      f'config.sampling.prompt_length: found {config.sampling.prompt_length}, '
      f'allowed: at least {length}, the length of the first prompt'
    )
  parts = math.prod(mesh.shape[axis] for axis in sharding.BATCH)
  parts *= config.batch.micro_batches
  for key in ('batch.mini_batch_rows', 'warm_start.rows'):
    rows = configs.flatten(config.to_dict())[key]
    if rows % parts:
      raise ValueError(
        f'config.{key}: found {rows}, allowed: a multiple of {parts}, '
        'micro-batches times data and fsdp devices'
      )


def make_model(config, env) -> tuple[CharTokenizer, DecoderConfig]:
  """Tokenizer and decoder sizes of a config."""
  tokenizer = CharTokenizer(env.alphabet)
  try:
    sizes = DecoderConfig(
      vocab_size=tokenizer.vocab_size, **config.model.to_dict()
    )
  except (TypeError, ValueError) as problem:
    raise ValueError(f'config.model: {problem}') from None
  return tokenizer, sizes


def policy(run: Run, state: TrainState, *, temperature, greedy=False) -> Policy:
  """The policy of a state; see `rollout.make_policy`."""
  return make_policy(
    run.sampler,
    state.params,
    run.tokenizer,
    prompt_length=run.config.sampling.prompt_length,
    temperature=temperature,
    greedy=greedy,
  )
