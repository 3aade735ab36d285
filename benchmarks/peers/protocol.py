"""How throughput.py and an implementation talk: files in, one JSON line out.

  python IMPLEMENTATION.py ROWS.npz SETTINGS.json

Needs numpy only, so that it runs in everybody's environment.
"""

import json
import pathlib
import sys
import time
import types

import numpy as np


def load_rows(data, workload):
  """The rows of a workload, from the arrays of `throughput.make_rows`.

  Returns:
    prompt, response: lists of [length] int32, one per row; behaviour_logp: list
    of [length] float32, of the responses; advantage [rows] float32.
  """
  names = ('prompt_length', 'response_length', 'ids', 'behaviour_logp')
  prompt, response, ids, logp = (data[f'{workload}/{name}'] for name in names)
  ends = np.cumsum(prompt + response)
  lengths = list(zip(prompt, response, ends))
  return types.SimpleNamespace(
    prompt=[ids[end - r - p : end - r] for p, r, end in lengths],
    response=[ids[end - r : end] for _, r, end in lengths],
    behaviour_logp=[logp[end - r : end] for _, r, end in lengths],
    advantage=data[f'{workload}/advantage'],
  )


def pad(rows, *, left=False, width=None):
  """[rows, width] from rows of unequal lengths; zeros fill them up.

  Args:
    width: of the longest row by default.
  """
  width = width or max(map(len, rows))
  padded = np.zeros((len(rows), width), rows[0].dtype)
  for target, row in zip(padded, rows):
    begin = width - len(row) if left else 0
    target[begin : begin + len(row)] = row
  return padded


def check_loss(loss):
  """Raises ValueError unless the loss is finite."""
  if not np.isfinite(loss):
    raise ValueError(f'loss is {loss}, expected a finite number')


def check_lengths(responses, lengths):
  """Raises ValueError unless all rows have as many new tokens as they must."""
  found = [len(response) for response in responses]
  if found != list(lengths):
    raise ValueError(f'new tokens of rows are {found}, expected {lengths}')


def main(prepare_training, prepare_sampling):
  """Times workloads and prints {workload: [seconds of every repeat]}.

  Args:
    prepare_training, prepare_sampling: fn(rows, model, batch) -> run. model:
      sizes by name; batch: rows of one batch or micro-batch. run() does the
      workload once, returns when it is done and raises ValueError if it went
      wrong.
  """
  data = np.load(sys.argv[1])
  settings = json.loads(pathlib.Path(sys.argv[2]).read_text())
  seconds = {}
  for workload, batch in settings['batch'].items():
    rows = load_rows(data, workload)
    training = workload.startswith('train')
    prepare = prepare_training if training else prepare_sampling
    run = prepare(rows, settings['model'], batch)
    seconds[workload] = []
    for _ in range(1 + settings['repeats']):
      begun = time.perf_counter()
      run()
      seconds[workload].append(time.perf_counter() - begun)
    del seconds[workload][0]  # The warm-up: it compiles.
  print(json.dumps(seconds))
