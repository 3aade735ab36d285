"""Compiled programs: their memory, collectives and largest results.

One compiled program is what every device of the mesh runs, so all bytes here
are those of one device.
"""

import collections
import math
import re
from typing import NamedTuple

import jax

COLLECTIVES = (
  'all-reduce',
  'all-gather',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)
_WIDTHS = {'pred': 1, 'bf16': 2, 'c64': 8, 'c128': 16}  # else in the name
_COMPUTATION = re.compile(r'(ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'\s+(?:ROOT )?%?[\w.-]+ = (\(.*?\)|\S+) ([\w-]+)\(')
_SHAPE = re.compile(r'([a-z]+\d*)\w*\[([\d,]*)\]')
_CALLED = re.compile(
  r'(?:calls|to_apply|body|condition|(?:true|false)_computation)=%?([\w.-]+)'
)
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRIPS = re.compile(r'"?known_trip_count"?:\{"n":"(\d+)"\}')
# CPUs multiply bfloat16 as float32, and would move the widening of all layers
# out of the loop over them. The rest saves time: these programs never run.
_CPU_OPTIONS = {
  'xla_disable_hlo_passes': 'while-loop-invariant-code-motion',
  'xla_backend_optimization_level': 0,
  'xla_llvm_disable_expensive_passes': True,
}
# Results that are no memory of their own.
_VIEWS = {'parameter', 'tuple', 'get-tuple-element', 'bitcast', 'while', 'call'}
_VIEWS |= {'conditional', 'constant', 'optimization-barrier'}


class Traffic(NamedTuple):
  """Collectives of one kind.

  Attributes:
    kind: of COLLECTIVES.
    open_loop: whether they lie in a loop whose count the program does not
      know; then count and size are those of one turn of it.
    count: how many, loops of known count unrolled.
    size: of their results, bytes per device.
  """

  kind: str
  open_loop: bool
  count: int
  size: int


class Result(NamedTuple):
  """The result of an instruction; size in bytes per device."""

  size: int
  dtype: str
  shape: tuple[int, ...]


class Compiled(NamedTuple):
  """A program that was compiled for abstract arguments.

  Attributes:
    made: its outputs, but those that take the place of inputs, in bytes.
    temporaries: in bytes; on a TPU what they add to the peak.
    traffic: of `collectives`.
    largest: of `largest_results`.
    outputs: abstract arrays, in the shardings that the compiler chose.
  """

  made: int
  temporaries: int
  traffic: list[Traffic]
  largest: list[Result]
  outputs: tuple


def compile_ahead(function, arguments, *, platform: str) -> Compiled:
  """Compiles a jitted function; nothing is allocated.

  Args:
    arguments: jax.ShapeDtypeStruct with shardings, and static ones.
    platform: of the devices in the shardings.
  """
  lowered = function.lower(*arguments)
  compiled = lowered.compile(_CPU_OPTIONS if platform == 'cpu' else None)
  memory, text = compiled.memory_analysis(), compiled.as_text()
  made = memory.output_size_in_bytes - memory.alias_size_in_bytes
  temporaries = memory.temp_size_in_bytes
  if platform == 'tpu':  # its temporaries also lie in places of dead inputs
    temporaries = memory.peak_memory_in_bytes
    temporaries -= memory.argument_size_in_bytes + made
  return Compiled(
    made=made,
    temporaries=temporaries,
    traffic=collectives(text),
    largest=largest_results(text),
    outputs=abstract(lowered.out_info, compiled.output_shardings),
  )


def abstract(tree, placement):
  """Shapes and types of a tree, in these shardings."""
  return jax.tree.map(
    lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    tree,
    placement,
  )


def collectives(text: str) -> list[Traffic]:
  """Collectives of a compiled program, sorted by size, largest first.

  Both branches of a condition count.

  Args:
    text: of the optimized program, as `compiled.as_text()`.
  """
  computations, entry = _parse(text)
  found = collections.defaultdict(lambda: [0, 0])

  def walk(name, times, open_loop):
    for shapes, operation, line in computations.get(name, ()):
      kind = operation.removesuffix('-start')
      if kind in COLLECTIVES:
        parts = _results(shapes)
        if operation != kind and kind != 'all-reduce':
          parts = parts[len(parts) // 2 :]  # the first half are the operands
        entry = found[kind, open_loop]
        entry[0] += times
        entry[1] += times * sum(part.size for part in parts)
      trips = _TRIPS.search(line) if operation == 'while' else None
      inside = times * int(trips[1]) if trips else times
      unknown = operation == 'while' and not trips
      if kind not in COLLECTIVES:  # theirs is a scalar sum
        for called in _called(line):
          walk(called, inside, open_loop or unknown)

  walk(entry, 1, False)
  rows = [Traffic(*key, *values) for key, values in found.items()]
  return sorted(rows, key=lambda row: -row.size)


def largest_results(text: str, count: int = 5) -> list[Result]:
  """The largest results of different shapes that a program computes.

  They share memory if they do not live at the same time, so their sum means
  nothing. Results inside fused loops are never in memory and left out.
  """
  computations, _ = _parse(text)
  found = set()
  for name, instructions in computations.items():
    if 'fused' in name or 'wrapped' in name:
      continue
    for shapes, operation, _ in instructions:
      if operation not in _VIEWS:
        found |= set(_results(shapes))
  return sorted(found, reverse=True)[:count]


def _parse(text):
  """(computation -> [(shapes, operation, line)], name of the entry)."""
  computations, name, entry = {}, None, None
  for line in text.splitlines():
    if header := _COMPUTATION.match(line):
      name = header[2]
      computations[name] = []
      entry = name if header[1] else entry
    elif name and (found := _INSTRUCTION.match(line)):
      computations[name].append((found[1], found[2], line))
  return computations, entry


def _called(line):
  names = _CALLED.findall(line)
  for group in _BRANCHES.findall(line):
    names += [name.strip(' %') for name in group.split(',')]
  return names


def _results(shapes):
  return [
    Result(math.prod(sizes) * _width(dtype), dtype, sizes)
    for dtype, sizes in (
      (dtype, tuple(int(n) for n in dims.split(',') if n))
      for dtype, dims in _SHAPE.findall(shapes)
    )
  ]


def _width(dtype):
  """Bytes of a number; a type that is not known has none."""
  digits = re.sub(r'\D', '', dtype)
  return _WIDTHS.get(dtype, int(digits) // 8 if digits else 0)
