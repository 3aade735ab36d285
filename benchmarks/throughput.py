"""Training and sampling throughput beside transformers + torch and Tunix.

  python benchmarks/throughput.py [--size large] [--json FILE] [--venvs DIR]

One Qwen2 with random weights, float32, two CPU cores, the same rows for all:

  train_dense      32 rows of 128 tokens, loss on all but the first of a row
  train_ragged     256 agent steps of unequal lengths, loss on the responses
  generate_dense   64 prompts of 64 tokens, 32 new tokens for each
  generate_ragged  128 prompts of unequal lengths, each with a length of its own
                   to reach; half of them are 8 attempts at each of 8 prompts

Training is a whole optimizer step: forward, clipped policy loss against stored
log-probs, backward, clipping by global norm, AdamW. Its tokens are those of
prompts and responses. Those of sampling, at temperature 1, are the new ones
that a row keeps. Padding never counts.

Each peer is installed once into an environment of its own (torch is large).
Everybody runs in turn, in a process of their own, --rounds times; every repeat
after the first, which compiles, is timed alone. Figures are medians over all
repeats, with the slowest and the fastest. The small size has 5.9 million
parameters, the large one 92 million and fewer rows.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import venv

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
CORES = 2
ATTEMPTS = 8
# Arguments of pip, a list for each call.
PEERS = {
  'torch': [['torch==2.13.0', 'transformers==5.24.0']],
  # Tunix declares far more than it imports here.
  'tunix': [
    ['jax==0.10.2', 'flax==0.12.8', 'huggingface_hub', 'humanize', 'jaxtyping']
    + ['ml-collections', 'pandas', 'perfetto', 'pillow', 'safetensors<0.8']
    + ['sentencepiece', 'tensorboardX', 'tqdm', 'wrapt'],
    ['--no-deps', 'google-tunix==0.1.7', 'google-metrax==0.2.4', 'clu==0.0.12'],
  ],
}
SCRIPTS = {name: HERE / 'peers' / f'{name}_peer.py' for name in PEERS}
SCRIPTS['ours'] = HERE / 'ours.py'
# Rows of a workload, and of one batch or micro-batch of it.
SIZES = {
  'small': {
    'model': {
      'vocab_size': 8192,
      'embed_dim': 256,
      'mlp_dim': 1024,
      'num_layers': 4,
      'num_heads': 8,
      'num_kv_heads': 2,
      'head_dim': 32,
    },
    'train_dense': (32, 32),
    'train_ragged': (256, 16),
    'generate_dense': (64, 64),
    'generate_ragged': (128, 32),
  },
  'large': {
    'model': {
      'vocab_size': 32768,
      'embed_dim': 640,
      'mlp_dim': 2560,
      'num_layers': 12,
      'num_heads': 10,
      'num_kv_heads': 2,
      'head_dim': 64,
    },
    'train_dense': (8, 8),
    'train_ragged': (32, 8),
    'generate_dense': (16, 16),
    'generate_ragged': (32, 16),
  },
}
WORKLOADS = tuple(name for name in SIZES['small'] if name != 'model')


def make_lengths(workload, rows, generator):
  """Prompt and response lengths of rows, in tokens, [rows] int32 each."""
  if workload == 'train_dense':
    prompt, response = np.full(rows, 1), np.full(rows, 127)
  elif workload == 'generate_dense':
    prompt, response = np.full(rows, 64), np.full(rows, 32)
  else:
    # As of the steps of an agent.
    prompt = np.clip(generator.lognormal(np.log(90), 0.5, rows), 32, 300)
    response = np.clip(generator.geometric(1 / 20, rows), 1, 64)
  return prompt.astype(np.int32), response.astype(np.int32)


def make_rows(size, workload, seed=0):
  """The rows of a workload, the same for all implementations.

  Returns:
    dict of arrays, their names prefixed by 'workload/': prompt_length and
    response_length [rows] int32; ids [tokens] int32 in 1 .. vocab_size - 1, of
    all rows one after the other, prompt before response (of rows to generate,
    responses only take up their place); advantage [rows] and behaviour_logp
    [tokens] float32.
  """
  generator = np.random.default_rng([seed, WORKLOADS.index(workload)])
  vocab_size = SIZES[size]['model']['vocab_size']
  rows, _ = SIZES[size][workload]
  prompt, response = make_lengths(workload, rows, generator)
  shared = workload == 'generate_ragged'
  first = np.arange(rows // 2 if shared else 0) // ATTEMPTS * ATTEMPTS
  prompt[: len(first)] = prompt[first]
  ids = [generator.integers(1, vocab_size, n) for n in prompt + response]
  for row, source in enumerate(first):
    ids[row][: prompt[row]] = ids[source][: prompt[row]]
  tokens = sum(map(len, ids))
  logp = generator.normal(-np.log(vocab_size), 0.1, tokens)
  arrays = {
    'prompt_length': prompt,
    'response_length': response,
    'ids': np.concatenate(ids).astype(np.int32),
    'advantage': generator.normal(size=rows).astype(np.float32),
    'behaviour_logp': logp.astype(np.float32),
  }
  return {f'{workload}/{name}': array for name, array in arrays.items()}


def count_tokens(data, workload):
  """Tokens that a workload is credited with: trained on, or new."""
  tokens = data[f'{workload}/response_length'].sum()
  if workload.startswith('train'):
    tokens += data[f'{workload}/prompt_length'].sum()
  return int(tokens)


def find_python(name, folder):
  """The Python of an implementation; installs a peer at the first call."""
  if name not in PEERS:
    return sys.executable
  target = folder / name
  python = target / 'bin' / 'python'
  marker, wanted = target / 'installed.json', json.dumps(PEERS[name])
  if not marker.exists() or marker.read_text() != wanted:
    venv.create(target, with_pip=True, clear=True)
    for arguments in PEERS[name]:
      command = [python, '-m', 'pip', 'install', '--quiet', *arguments]
      subprocess.run(command, check=True, stdout=sys.stderr)
    marker.write_text(wanted)
  return python


def measure(pythons, data, settings, rounds):
  """Runs everybody in turn.

  Returns:
    {implementation: {workload: [seconds]}}, the repeats of all rounds.
  """
  seconds = {name: {w: [] for w in settings['batch']} for name in pythons}
  with tempfile.TemporaryDirectory() as folder:
    files = [pathlib.Path(folder) / name for name in ('rows.npz', 'set.json')]
    np.savez(files[0], **data)
    files[1].write_text(json.dumps(settings))
    for _ in range(rounds):
      for name, python in pythons.items():
        printed = subprocess.run(
          [python, SCRIPTS[name], *files],
          check=True,
          stdout=subprocess.PIPE,
          text=True,
          env=os.environ | {'JAX_PLATFORMS': 'cpu', 'HF_HUB_OFFLINE': '1'},
        ).stdout
        for workload, found in json.loads(printed.splitlines()[-1]).items():
          seconds[name][workload] += found
  return seconds


def summarise(tokens, seconds):
  """Tokens per second and ratios to ours.

  Returns:
    {workload: {'tokens', 'median', 'slowest', 'fastest', 'ratio'}}; the last
    four by implementation, in tokens per second; ratio: ours over theirs.
  """
  summary = {}
  for workload, count in tokens.items():
    rates = {
      name: [count / x for x in found[workload]]
      for name, found in seconds.items()
    }
    middle = {name: statistics.median(x) for name, x in rates.items()}
    summary[workload] = {
      'tokens': count,
      'median': middle,
      'slowest': {name: min(x) for name, x in rates.items()},
      'fastest': {name: max(x) for name, x in rates.items()},
      'ratio': {
        name: middle['ours'] / x
        for name, x in middle.items()
        if 'ours' in middle and name != 'ours'
      },
    }
  return summary


def print_table(summary, names):
  """A Markdown table of the summary."""
  peers = [name for name in names if name != 'ours' and 'ours' in names]
  cells = ['tokens/s', *names, *(f'ours / {name}' for name in peers)]
  print('|', ' | '.join(cells), '|')
  print('|', ' | '.join('---' for _ in cells), '|')
  for workload, row in summary.items():
    cells = [f'{workload} ({row["tokens"]:,} tokens)']
    for name in names:
      slow, fast = row['slowest'][name], row['fastest'][name]
      cells.append(f'{row["median"][name]:,.0f} ({slow:,.0f} to {fast:,.0f})')
    cells += [f'{row["ratio"][name]:.2f}' for name in peers]
    print('|', ' | '.join(cells), '|')


def parse_arguments():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  cache = pathlib.Path.home() / '.cache' / 'graphgpo_jax' / 'peers'
  parser.add_argument('--size', choices=SIZES, default='small')
  parser.add_argument('--workloads', nargs='+', choices=WORKLOADS)
  parser.add_argument('--implementations', nargs='+', choices=SCRIPTS)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--rounds', type=int, default=2)
  parser.add_argument('--venvs', type=pathlib.Path, default=cache)
  parser.add_argument('--json', type=pathlib.Path)
  return parser.parse_args()


def main():
  """Installs, runs, prints."""
  options = parse_arguments()
  if hasattr(os, 'sched_setaffinity'):  # Inherited by all processes.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
  names = options.implementations or list(SCRIPTS)
  for name in [name for name in names if not SCRIPTS[name].exists()]:
    print(f'{SCRIPTS[name]} is missing: left out', file=sys.stderr)
    names.remove(name)
  pythons = {name: find_python(name, options.venvs) for name in names}
  size, workloads = SIZES[options.size], options.workloads or WORKLOADS
  settings = {
    'model': size['model'],
    'batch': {workload: size[workload][1] for workload in workloads},
    'repeats': options.repeats,
  }
  data = {}
  for workload in workloads:
    data |= make_rows(options.size, workload)
  tokens = {workload: count_tokens(data, workload) for workload in workloads}
  seconds = measure(pythons, data, settings, options.rounds)
  summary = summarise(tokens, seconds)
  print_table(summary, names)
  if options.json:
    result = {'size': options.size, 'summary': summary, 'seconds': seconds}
    options.json.write_text(json.dumps(result, indent=1))


if __name__ == '__main__':
  main()
