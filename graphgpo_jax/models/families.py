"""Model families: what their files call tensors and sizes."""

import dataclasses
from typing import NamedTuple

# Parameter path to tensor name; {} is the number of the layer.
_SHARED = {
  'embed/embedding': 'model.embed_tokens.weight',
  'layers/attention_norm/scale': 'model.layers.{}.input_layernorm.weight',
  'layers/query/kernel': 'model.layers.{}.self_attn.q_proj.weight',
  'layers/key/kernel': 'model.layers.{}.self_attn.k_proj.weight',
  'layers/value/kernel': 'model.layers.{}.self_attn.v_proj.weight',
  'layers/output/kernel': 'model.layers.{}.self_attn.o_proj.weight',
  'layers/mlp_norm/scale': 'model.layers.{}.post_attention_layernorm.weight',
  'layers/gate/kernel': 'model.layers.{}.mlp.gate_proj.weight',
  'layers/up/kernel': 'model.layers.{}.mlp.up_proj.weight',
  'layers/down/kernel': 'model.layers.{}.mlp.down_proj.weight',
  'final_norm/scale': 'model.norm.weight',
  'head/kernel': 'lm_head.weight',
}
_BIASES = {
  'layers/query/bias': 'model.layers.{}.self_attn.q_proj.bias',
  'layers/key/bias': 'model.layers.{}.self_attn.k_proj.bias',
  'layers/value/bias': 'model.layers.{}.self_attn.v_proj.bias',
}
_HEAD_NORMS = {
  'layers/query_norm/scale': 'model.layers.{}.self_attn.q_norm.weight',
  'layers/key_norm/scale': 'model.layers.{}.self_attn.k_norm.weight',
}
GGUF_NAMES = {
  'embed/embedding': 'token_embd.weight',
  'layers/attention_norm/scale': 'blk.{}.attn_norm.weight',
  'layers/query/kernel': 'blk.{}.attn_q.weight',
  'layers/key/kernel': 'blk.{}.attn_k.weight',
  'layers/value/kernel': 'blk.{}.attn_v.weight',
  'layers/output/kernel': 'blk.{}.attn_output.weight',
  'layers/mlp_norm/scale': 'blk.{}.ffn_norm.weight',
  'layers/gate/kernel': 'blk.{}.ffn_gate.weight',
  'layers/up/kernel': 'blk.{}.ffn_up.weight',
  'layers/down/kernel': 'blk.{}.ffn_down.weight',
  'final_norm/scale': 'output_norm.weight',
  'head/kernel': 'output.weight',
}


class Family(NamedTuple):
  """One model_type of config.json.

  Args:
    architecture: the class name that config.json gives.
    fields: of DecoderConfig, the same for the whole family.
    names: parameter path to tensor name.
    defaults: config.json keys that the family leaves out.
  """

  architecture: str
  fields: dict
  names: dict
  defaults: dict


FAMILIES = {
  'llama': Family('LlamaForCausalLM', {}, _SHARED, {}),
  'qwen2': Family(
    'Qwen2ForCausalLM', {'qkv_bias': True}, _SHARED | _BIASES, {}
  ),
  'qwen3': Family(
    'Qwen3ForCausalLM',
    {'qk_norm': True},
    _SHARED | _HEAD_NORMS,
    {'head_dim': 128},
  ),
}

# DecoderConfig field, config.json key, type, value where the key is absent.
_FIELDS = (
  ('vocab_size', 'vocab_size', int, None),
  ('num_layers', 'num_hidden_layers', int, None),
  ('embed_dim', 'hidden_size', int, None),
  ('mlp_dim', 'intermediate_size', int, None),
  ('num_heads', 'num_attention_heads', int, None),
  (
    'num_kv_heads',
    'num_key_value_heads',
    int,
    lambda fields: fields['num_heads'],
  ),
  (
    'head_dim',
    'head_dim',
    int,
    lambda fields: fields['embed_dim'] // fields['num_heads'],
  ),
  ('norm_eps', 'rms_norm_eps', float, lambda _: 1e-6),
  ('tie_embeddings', 'tie_word_embeddings', bool, lambda _: False),
  ('rope_theta', 'rope_theta', float, lambda _: 1e4),
)
# Keys that change the computation, and the one value that a Decoder can do.
_FIXED = {
  'hidden_act': 'silu',
  'attention_bias': False,
  'mlp_bias': False,
  'partial_rotary_factor': 1,
  'quantization_config': None,
}
_LLAMA3 = (
  ('factor', float),
  ('low_freq_factor', float),
  ('high_freq_factor', float),
  ('original_max_position_embeddings', int),
)


def family_of(record: dict, where: str) -> Family:
  """The family that a config.json names.

  Args:
    record: config.json.
    where: name of the file, for errors.

  Raises:
    ValueError: model_type or architectures names another.
  """
  by_architecture = {f.architecture: name for name, f in FAMILIES.items()}
  architectures = record.get('architectures') or []
  known = [a for a in architectures if a in by_architecture]
  kind = record.get('model_type')
  if kind is None and known:
    kind = by_architecture[known[0]]
  if kind not in FAMILIES:
    raise ValueError(
      f'{where}: model_type is {kind!r}, must be one of {sorted(FAMILIES)}'
    )
  family = FAMILIES[kind]
  if architectures and family.architecture not in architectures:
    raise ValueError(
      f'{where}: architectures is {architectures}, must hold '
      f'{family.architecture!r} as model_type is {kind!r}'
    )
  return family


def decoder_fields(record: dict, where: str) -> dict:
  """Fields of DecoderConfig, from a config.json of any age.

  Raises:
    ValueError: a key is missing, of a wrong type, or asks for what a Decoder
      does not do (another rotary scaling, a sliding window, more biases).
  """
  family = family_of(record, where)
  rope, rope_scaling = _rope(record, where)
  # rope_parameters may hold keys that older files have at the top.
  record = family.defaults | record | rope
  _check_window(record, where)
  for key, allowed in _FIXED.items():
    if record.get(key, allowed) not in (None, allowed):
      raise ValueError(
        f'{where}: {key} is {record[key]!r}, only {allowed!r} is supported'
      )
  fields = {'rope_scaling': rope_scaling} | family.fields
  for name, key, kind, default in _FIELDS:
    if record.get(key) is None and default is not None:
      fields[name] = default(fields)
    else:
      fields[name] = _typed(record, key, kind, where)
  return fields


def _typed(record, key, kind, where):
  value = record.get(key)
  if value is None:
    raise ValueError(f'{where}: {key} is missing')
  allowed = (int, float) if kind is float else kind
  if not isinstance(value, allowed) or (
    isinstance(value, bool) and kind is not bool
  ):
    raise ValueError(f'{where}: {key} must be {kind.__name__}, got {value!r}')
  return kind(value)


def _rope(record, where):
  """(rotary keys of the record, rope_scaling of DecoderConfig)."""
  name = 'rope_parameters' if record.get('rope_parameters') else 'rope_scaling'
  rope = record.get(name) or {}
  kind = rope.get('rope_type', rope.get('type', 'default'))
  if kind == 'llama3':
    where = f'{where}: {name}'
    scaling = tuple(_typed(rope, key, kind, where) for key, kind in _LLAMA3)
  elif kind == 'default' and not any(
    isinstance(v, dict) for v in rope.values()
  ):
    scaling = None
  else:
    raise ValueError(
      f'{where}: {name} is {rope!r}, only types default and llama3 are '
      'supported'
    )
  kept = ('rope_theta', 'partial_rotary_factor')
  return {key: rope[key] for key in kept if key in rope}, scaling


def _check_window(record, where):
  kinds = set(record.get('layer_types') or ()) - {'full_attention'}
  if kinds:
    raise ValueError(
      f'{where}: layer_types holds {sorted(kinds)}, only full_attention is '
      'supported'
    )
  # Layers before max_window_layers see everything.
  first = record.get('max_window_layers') or 0
  windowed = record.get('use_sliding_window') and record.get('sliding_window')
  if windowed and first < record.get('num_hidden_layers', 0):
    raise ValueError(
      f'{where}: use_sliding_window is true and max_window_layers is {first}, '
      'sliding windows are not supported'
    )


def config_record(config, *, dtype: str) -> dict:
  """The config.json of a DecoderConfig, as old and new readers take it.

  Args:
    config: a DecoderConfig.
    dtype: of the tensors on disk.

  Raises:
    ValueError: no family has these switches.
  """
  kind = family_name(config)
  values = dataclasses.asdict(config)
  record = {
    'architectures': [FAMILIES[kind].architecture],
    'model_type': kind,
    'hidden_act': 'silu',
    'torch_dtype': dtype,
  }
  record |= {key: values[name] for name, key, *_ in _FIELDS}
  if config.rope_scaling is not None:
    keys = [key for key, _ in _LLAMA3]
    record['rope_scaling'] = {
      'rope_type': 'llama3',
      **dict(zip(keys, config.rope_scaling)),
    }
    factor, *_, context = config.rope_scaling
    record['max_position_embeddings'] = int(factor * context)
  return record


def family_name(config) -> str:
  """The model_type that has the switches of a DecoderConfig."""
  switches = {'qkv_bias': config.qkv_bias, 'qk_norm': config.qk_norm}
  used = {name: True for name, on in switches.items() if on}
  for kind, family in FAMILIES.items():
    if family.fields == used:
      return kind
  raise ValueError(
    f'no family of {sorted(FAMILIES)} has both {" and ".join(used)}'
  )


def gguf_fields(values: dict, tensors, where: str) -> dict:
  """Fields of DecoderConfig, from the metadata of a GGUF file.

  Args:
    values: metadata without the tokenizer's.
    tensors: names of the tensors.
    where: name of the file, for errors.

  Raises:
    ValueError: another architecture than llama, or keys missing.
  """
  kind = values.get('general.architecture')
  if kind != 'llama':
    raise ValueError(
      f"{where}: general.architecture is {kind!r}, must be 'llama'"
    )
  for key in ('llama.expert_count', 'llama.rope.scaling.type'):
    if values.get(key) not in (None, 0, 'none'):
      raise ValueError(f'{where}: {key} is {values[key]!r}, not supported')

  def field(key, kind=int):
    return _typed(values, f'llama.{key}', kind, where)

  heads, width = field('attention.head_count'), field('embedding_length')
  eps = field('attention.layer_norm_rms_epsilon', float)
  return {
    'vocab_size': field('vocab_size'),
    'num_layers': field('block_count'),
    'embed_dim': width,
    'mlp_dim': field('feed_forward_length'),
    'num_heads': heads,
    'num_kv_heads': field('attention.head_count_kv'),
    'head_dim': values.get('llama.rope.dimension_count') or width // heads,
    'rope_theta': field('rope.freq_base', float),
    'norm_eps': float(f'{eps:.7g}'),  # 1e-5 as float32 is 9.9999997e-06
    'tie_embeddings': 'output.weight' not in tensors,
  }
