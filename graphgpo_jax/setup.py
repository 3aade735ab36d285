"""From a config to the fixed parts of a run."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from graphgpo_jax import checks, credit, merging, sharding
from graphgpo_jax import config as configs
from graphgpo_jax.envs import worker
from graphgpo_jax.envs.base import Environment
from graphgpo_jax.envs.pool import Pool
from graphgpo_jax.models import gguf_tensors, weights
from graphgpo_jax.models.decoder import DecoderConfig
from graphgpo_jax.models.generation import make_sampler
from graphgpo_jax.models.parameters import (
  abstract_params,
  divide,
  init_params,
  join,
)
from graphgpo_jax.models.tokenizer import (
  CharTokenizer,
  check_vocabulary,
  load_tokenizer,
)
from graphgpo_jax.models.words import WordTokenizer
from graphgpo_jax.rollout import Policy, make_policy
from graphgpo_jax.update import (
  TrainState,
  imitation_objective,
  init_state,
  make_optimizer,
  make_scorer,
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
  decoder_config: DecoderConfig
  frozen: dict  # parameters that are not trained
  sampler: Callable  # of rollouts
  panel_sampler: Callable
  credit_fn: Callable
  merge: Callable | None  # of similar states
  optimizer: optax.GradientTransformation
  imitate: Callable
  improve: Callable
  score: Callable  # log-probs under the reference
  mesh: jax.sharding.Mesh
  key: jax.Array

  def close(self) -> None:
    """Ends the processes of the environments, if they have any."""
    _close(self.env, self.panel)


def _close(*environments):
  for env in environments:
    if hasattr(env, 'close'):
      env.close()


def build(config, credit_fn=None) -> tuple[Run, TrainState]:
  """Everything a run needs, and its first state; `close` the run at its end."""
  if credit_fn is None:
    settings = config.credit.to_dict()
    scheme, preset = settings.pop('scheme'), settings.pop('preset')
    credit_fn = credit.bind(scheme, preset=preset, **settings)
  mesh = sharding.make_mesh(**config.mesh)
  env, panel = make_environments(config.env)
  try:
    return _build(config, env, panel, credit_fn, mesh)
  except BaseException:
    _close(env, panel)
    raise


def _build(config, env, panel, credit_fn, mesh):
  tokenizer, decoder_config = make_model(config, env)
  checks.check_sizes(config, env, tokenizer, mesh)
  checks.check_scheme(config, env, credit_fn)
  params, frozen = divide(_parameters(config, decoder_config, mesh))
  optimizer = make_optimizer(**config.optimizer)
  state = init_state(params, optimizer, mesh)
  imitate, improve, score = _updates(config, decoder_config, optimizer, state)
  sampler = functools.partial(
    make_sampler,
    decoder_config,
    max_new_tokens=config.sampling.max_new_tokens,
    buckets=tuple(config.sampling.prompt_lengths),
    stop_tokens=tokenizer.stop_ids,
    mesh=mesh,
    prefill_tokens=config.sampling.prefill_tokens,
  )
  run = Run(
    config=config,
    env=env,
    panel=panel,
    tokenizer=tokenizer,
    decoder_config=decoder_config,
    frozen=frozen,
    sampler=sampler(),
    panel_sampler=sampler(
      top_k=config.evaluation.top_k, top_p=config.evaluation.top_p
    ),
    credit_fn=credit_fn,
    merge=merging.bind(config.env.get('merge')),
    optimizer=optimizer,
    imitate=imitate,
    improve=improve,
    score=score,
    mesh=mesh,
    key=jax.random.key(config.seed),
  )
  return run, state


def _updates(config, decoder_config, optimizer, state):
  """The supervised and the RL update function, and the scorer."""
  loss = config.loss.to_dict()
  loss.pop('reference')
  common = {
    'placement': jax.tree.map(lambda x: x.sharding, state),
    'aggregation': loss.pop('aggregation'),
    'fixed_length': loss.pop('fixed_length'),
    'chunk': config.batch.logit_chunk,
  }
  rate = {'learning_rate': config.warm_start.learning_rate}
  warm = make_optimizer(**config.optimizer.to_dict() | rate)
  imitate = make_update(decoder_config, warm, imitation_objective, **common)
  improve = make_update(
    decoder_config,
    optimizer,
    functools.partial(policy_objective, **loss),
    temperature=config.sampling.temperature,
    **common,
  )
  score = make_scorer(
    decoder_config,
    mesh=jax.tree.leaves(common['placement'])[0].mesh,
    temperature=config.sampling.temperature,
    chunk=config.batch.logit_chunk,
  )
  return imitate, improve, score


def _parameters(config, decoder_config, mesh):
  """Parameters of the decoder on the mesh: drawn, or of a checkpoint."""
  path = _checkpoint(config)
  if path is None:
    params = init_params(decoder_config, seed=config.seed)
    return jax.device_put(params, sharding.shardings(params, mesh))
  placement = sharding.shardings(abstract_params(decoder_config), mesh)
  return weights.load(
    path, decoder_config, placement=placement, seed=config.seed
  )


def _checkpoint(config):
  """Path of the pretrained model, or None; 'smollm2' is the installed one."""
  path = config.model.get('checkpoint')
  return gguf_tensors.smollm2_path() if path == 'smollm2' else path


def make_environments(section) -> tuple[Environment, Environment]:
  """The training environment and the held-out panel of a config.

  Raises:
    ValueError: the factory does not exist or does not take the settings.
  """
  factory = section.factory
  try:
    function = worker.load(factory)
    for name in ('settings', 'train', 'panel'):
      configs.check_keywords(f'env.{name}', function, section[name].to_dict())
    return tuple(
      _make_environment(section, section.settings.to_dict() | own.to_dict())
      for own in (section.train, section.panel)
    )
  except (ImportError, AttributeError, TypeError, ValueError) as problem:
    if str(problem).startswith('config.'):
      raise
    # A ValueError says what is wrong; of other mistakes the line helps.
    known = isinstance(problem, ValueError)
    words = problem if known else worker.words(problem)
    raise ValueError(f'config.env: {factory!r}: {words}') from problem


def _make_environment(section, settings):
  """One split, here or in worker processes; their cores are this process's."""
  if not section.workers:
    return worker.make(section.factory, settings)
  cores, first = section.cores, jax.process_index() * section.workers
  return Pool(
    section.factory,
    settings,
    workers=section.workers,
    timeout=section.timeout,
    cores=[cores[(first + i) % len(cores)] for i in range(len(cores))],
  )


def make_model(config, env) -> tuple[Any, DecoderConfig]:
  """Tokenizer and decoder sizes of a config."""
  settings = config.model.to_dict()
  settings.pop('checkpoint', None)
  configs.check_keywords('model', DecoderConfig, settings)
  path = _checkpoint(config)
  if path is None and not env.alphabet:
    raise ValueError(
      'config.model.checkpoint: missing, allowed: a folder with a model and '
      'its tokenizer; the texts of this environment are free'
    )
  try:
    if path is None:
      tokenizer = _plain_tokenizer(env.alphabet)
      sizes = DecoderConfig(vocab_size=tokenizer.vocab_size, **settings)
    else:
      sizes = weights.read_config(path, **settings)
      tokenizer = load_tokenizer(path)
      check_vocabulary(tokenizer, sizes.vocab_size)
  except (TypeError, ValueError) as problem:
    raise ValueError(f'config.model: {problem}') from None
  return tokenizer, sizes


def _plain_tokenizer(alphabet):
  """Characters, or words."""
  if isinstance(alphabet, str):
    return CharTokenizer(alphabet)
  return WordTokenizer(alphabet)


def policy(run: Run, state: TrainState, *, sampler=None, **settings) -> Policy:
  """The policy of a state; see `rollout.make_policy`."""
  sampling = run.config.sampling
  params = for_sampling(
    run.decoder_config,
    join(state.params, run.frozen),
    run.mesh,
    gather=sampling.gather_weights,
  )
  return make_policy(
    sampler or run.sampler,
    params,
    run.tokenizer,
    limit=sampling.prompt_lengths[-1],
    overflow=sampling.overflow,
    **settings,
  )


def for_sampling(decoder_config, params, mesh, *, gather: bool):
  """Parameters in the type of the computation; `gather`: whole over fsdp.

  Decoding reads all weights once per token: a copy in the right type and place
  is made once per rollout instead. Norms stay as they are.
  """
  dtypes = _sampling_dtypes(decoder_config, params)
  same = jax.tree.map(lambda x, dtype: x.dtype == dtype, params, dtypes)
  if not gather and all(jax.tree.leaves(same)):
    return params
  return _make_cast(decoder_config, mesh, gather)(params)


def _sampling_dtypes(decoder_config, params):
  return jax.tree_util.tree_map_with_path(
    lambda path, x: jnp.dtype(
      x.dtype if path[-1].key == 'scale' else decoder_config.dtype
    ),
    params,
  )


@functools.lru_cache(4)  # compiled once, not for every rollout
def _make_cast(decoder_config, mesh, gather):
  shapes = abstract_params(decoder_config)
  dtypes = _sampling_dtypes(decoder_config, shapes)
  whole = ('fsdp',) if gather else ()
  return jax.jit(
    lambda params: jax.tree.map(lambda x, d: x.astype(d), params, dtypes),
    out_shardings=sharding.shardings(shapes, mesh, whole=whole),
  )
