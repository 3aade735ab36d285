"""--dry_run: its flags, and what it found in words and tables."""

import math

import absl.logging
import jax

from graphgpo_jax import config as configs
from graphgpo_jax.dry_run import Report, dry_run
from graphgpo_jax.sharding import AXES

# Memory of one chip, as its vendor publishes it: Google Cloud's pages on TPU
# v5e, v5p and v6e, NVIDIA's data sheets of H100 SXM and H200 SXM. GB is 1e9
# bytes; a runtime keeps some of it for itself.
MEMORY = {
  'v5e': 16 * 10**9,
  'v5p': 95 * 10**9,
  'v6e': 32 * 10**9,
  'h100': 80 * 10**9,
  'h200': 141 * 10**9,
}
_CPU = """\
Compiled for virtual CPU devices, which differ from others in this:
- Temporaries are an estimate, mostly a high one: a CPU multiplies bfloat16 as
  float32 and keeps float32 copies; nothing is recomputed or reordered to save
  memory; arrays are not padded to tiles as on a TPU.
- A CPU gathers in float32 what others gather in bfloat16, and keeps an
  all-reduce where others can reduce-scatter: bytes of collectives are high too.
- What runtimes, collectives and fragmentation take is not in any number."""


def show(config, *, mesh: str | None = None, device: str | None = None) -> None:
  """Prints a dry run on virtual CPU devices; before any other use of devices.

  Args:
    config: see `dry_run.dry_run`.
    mesh: see `parse_mesh`; None for config.mesh.
    device: of MEMORY; None compares with all of them.

  Raises:
    ValueError: a config, mesh or device that can't be.
  """
  configs.check(config)
  axes = parse_mesh(mesh) if mesh else config.mesh.to_dict()
  devices = (check_device(device),) if device else tuple(MEMORY)
  absl.logging.set_verbosity(absl.logging.WARNING)  # optax tells every schedule
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_num_cpu_devices', abs(math.prod(axes.values())))
  print(describe(dry_run(config, mesh=axes), devices))


def parse_mesh(text: str) -> dict:
  """'data=2,fsdp=8' -> {'data': 2, 'fsdp': 8, 'tensor': 1}.

  Raises:
    ValueError: anything but distinct axes with integers > 0.
  """
  sizes = {}
  for part in text.split(','):
    axis, _, number = part.strip().partition('=')
    known = axis in AXES and axis not in sizes
    if not known or not number.isdecimal() or int(number) < 1:
      raise ValueError(
        f'--mesh: found {text!r}, allowed: like data=2,fsdp=8,tensor=1, each '
        'axis once, with an integer > 0'
      )
    sizes[axis] = int(number)
  return {axis: sizes.get(axis, 1) for axis in AXES}


def check_device(device: str) -> str:
  """The device as MEMORY names it.

  Raises:
    ValueError: unknown.
  """
  if device.lower() not in MEMORY:
    raise ValueError(
      f'--device: found {device!r}, allowed: {", ".join(MEMORY)}'
    )
  return device.lower()


def verdict(report: Report, device: str) -> str:
  """One line: whether all programs fit the memory of a device.

  Args:
    device: of MEMORY.

  Raises:
    ValueError: an unknown device.
  """
  memory = MEMORY[check_device(device)]
  most = max(report.programs, key=lambda program: program.peak)
  least = max(program.least for program in report.programs)
  peak = f'{most.name} takes {_gigabytes(most.peak)}'
  if most.peak <= memory:
    answer = f'fits: {peak}'
  elif least > memory:
    answer = f'does not fit: {_gigabytes(least)} without any temporaries'
  elif report.platform == 'cpu':
    answer = (
      f'not shown to fit: {peak} as compiled for CPUs, '
      f'{_gigabytes(least)} without temporaries'
    )
  else:
    answer = f'does not fit: {peak}'
  return f'{device.lower()}, {memory:,} bytes as published: {answer}'


def describe(report: Report, devices=tuple(MEMORY)) -> str:
  """All of a report, as text.

  Args:
    devices: of MEMORY, to compare with.
  """
  axes = ' '.join(f'{axis}={size}' for axis, size in report.mesh.items())
  parts = [
    f'mesh {axes}, compiled for {report.platform}\n'
    f'parameters: {report.trainable:,} trained, {report.frozen:,} frozen',
    _table(
      ('GB per device', ''),
      [(name, _number(size)) for name, size in report.sizes.items()],
    ),
    _memory(report),
    _work(report.flops),
    _traffic(report),
    _largest(report),
    '\n'.join(verdict(report, device) for device in devices),
  ]
  if report.platform == 'cpu':
    parts.append(_CPU)
  return '\n\n'.join(parts)


def _gigabytes(size):
  return f'{_number(size)} GB'


def _number(size):
  return f'{size / 1e9:,.3f}'


def _table(head, rows):
  """Columns as wide as they need be; the first to the left."""
  rows = [head, *rows]
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join(
    '  '.join(
      cell.rjust(width) if i else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths))
    ).rstrip()
    for row in rows
  )


def _memory(report):
  rows = [
    (p.name, *map(_number, (p.held, p.made, p.temporaries, p.peak)))
    for p in report.programs
  ]
  head = ('program, GB per device', 'arrays', 'outputs', 'temporaries', 'peak')
  return f'{_table(head, rows)}\n(gradients are among the temporaries)'


def _work(flops):
  flops = dict(flops)
  rows, length = flops.pop('rows'), flops.pop('length')
  parts = ', '.join(f'{name} {count:.3e}' for name, count in flops.items())
  return (
    f'FLOPs per update: {sum(flops.values()):.3e} on all devices together, at '
    f'most ({rows} rows of {length} tokens)\n({parts})'
  )


def _traffic(report):
  rows = [
    (
      f'{program.name}: {part.kind}',
      'each turn' if part.open_loop else 'once',
      str(part.count),
      _number(part.size),
    )
    for program in report.programs
    for part in program.traffic
  ]
  head = ('collectives per device', 'when', 'count', 'GB')
  text = _table(head, rows) if rows else 'collectives: none'
  return f'{text}\n(a turn: of decode a token, of the others a micro-batch)'


def _largest(report):
  rows = [
    (
      f'{program.name}: {part.dtype}[{",".join(map(str, part.shape))}]',
      _number(part.size),
    )
    for program in report.programs
    for part in program.largest
  ]
  return _table(('largest results (they may share memory)', 'GB'), rows)
