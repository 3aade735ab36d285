"""Tunix: its Qwen2, GRPO loss, trainer and sampler. See protocol.py.

Prompts are padded to the longest prompt of the whole list and responses to the
longest response, as Tunix pads to fixed lengths. It can pack rows too, but
without the attention kernel for TPU its Qwen2 then masks by row only and lets
tokens see later ones. Its GRPO loss also computes the entropy, as a metric.
Its sampler has no lengths by row: a batch ends with its longest response.
"""

import types

import jax
import jax.numpy as jnp
import optax
import protocol
from flax import nnx
from tunix.generate import sampler as sampling
from tunix.models.qwen2 import model as qwen2
from tunix.rl import algo_core, common
from tunix.sft import peft_trainer

PAD = 0
NEVER = -1  # No such token, so that none ends a response.


def make_model(sizes):
  model = qwen2.Qwen2(
    qwen2.ModelConfig(
      num_layers=sizes['num_layers'],
      vocab_size=sizes['vocab_size'],
      embed_dim=sizes['embed_dim'],
      hidden_dim=sizes['mlp_dim'],
      num_heads=sizes['num_heads'],
      head_dim=sizes['head_dim'],
      num_kv_heads=sizes['num_kv_heads'],
      rope_theta=1_000_000,
      norm_eps=1e-6,
      use_tied_embedding=True,
    ),
    rngs=nnx.Rngs(0),
  )
  # Tunix starts from MLPs of zeros.
  state = nnx.state(model)
  keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(state)))

  def fill(x, key):
    return 0.02 * jax.random.normal(key, x.shape) if x.ndim > 1 else x

  keys = jax.tree.unflatten(jax.tree.structure(state), list(keys))
  nnx.update(model, jax.tree.map(fill, state, keys))
  return model


def longest(rows):
  return max(map(len, rows))


def make_micro_batch(rows, part):
  width = longest(rows.response)
  prompt = protocol.pad(
    rows.prompt[part], left=True, width=longest(rows.prompt)
  )
  response = protocol.pad(rows.response[part], width=width)
  logp = protocol.pad(rows.behaviour_logp[part], width=width)
  return common.TrainExample(
    prompt_ids=jnp.array(prompt),
    prompt_mask=jnp.array(prompt != PAD),
    completion_ids=jnp.array(response),
    completion_mask=jnp.array(response != PAD),
    advantages=jnp.array(rows.advantage[part]),
    ref_per_token_logps=None,
    old_per_token_logps=jnp.array(logp),
  )


def loss(model, example):
  settings = types.SimpleNamespace(
    beta=0.0,
    epsilon=0.2,
    loss_algo='grpo',
    loss_agg_mode='token-mean',
    temperature=1.0,
  )
  return algo_core.grpo_loss_fn(model, example, settings, PAD, NEVER)


def prepare_training(rows, sizes, batch):
  micro_batches = [
    make_micro_batch(rows, slice(i, i + batch))
    for i in range(0, len(rows.prompt), batch)
  ]
  count = len(micro_batches)
  trainer = peft_trainer.PeftTrainer(
    make_model(sizes),
    optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6)),
    peft_trainer.TrainingConfig(
      eval_every_n_steps=10**9,
      gradient_accumulation_steps=count if count > 1 else None,
    ),
  )
  trainer.with_loss_fn(loss, has_aux=True)
  trainer.with_gen_model_input_fn(lambda example: {'example': example})
  trainer.is_managed_externally = True  # so that train() can be called again

  def run():
    trainer.train(micro_batches)
    jax.block_until_ready(nnx.state(trainer.model))
    # The trainer keeps the loss to itself. One that is not finite would have
    # spoilt all weights, through the norm of the gradients.
    protocol.check_loss(trainer.model.final_norm.w[0])

  return run


def prepare_sampling(rows, sizes, batch):
  tokenizer = types.SimpleNamespace(
    encode=list,
    decode=lambda ids: '',
    bos_id=lambda: None,
    eos_id=lambda: NEVER,
    pad_id=lambda: PAD,
  )
  cache = sampling.CacheConfig(
    cache_size=longest(rows.prompt) + longest(rows.response),
    num_layers=sizes['num_layers'],
    num_kv_heads=sizes['num_kv_heads'],
    head_dim=sizes['head_dim'],
  )
  sampler = sampling.Sampler(make_model(sizes), tokenizer, cache)

  def run():
    for i in range(0, len(rows.prompt), batch):
      part = slice(i, i + batch)
      steps = longest(rows.response[part])
      output = sampler(
        rows.prompt[part],
        max_generation_steps=steps,
        max_prompt_length=longest(rows.prompt),
        temperature=1.0,
        top_p=1.0,
        eos_tokens=[NEVER],
      )
      protocol.check_lengths(output.tokens, [steps] * len(output.tokens))

  return run


if __name__ == '__main__':
  protocol.main(prepare_training, prepare_sampling)
