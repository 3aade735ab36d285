"""The mesh, and one table that says where every array lives on it."""

import re

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding

AXES = ('data', 'fsdp', 'tensor')
BATCH = ('data', 'fsdp')  # axes that divide rows and tasks

# First match wins. Layers are stacked on axis 0, which stays whole.
RULES = (
  (r'embed/embedding', jax.P('tensor', 'fsdp')),
  (r'head/kernel', jax.P('fsdp', 'tensor')),
  (r'(query|key|value|gate|up)/kernel', jax.P(None, 'fsdp', 'tensor')),
  (r'(query|key|value|gate|up)/lora_a', jax.P(None, 'fsdp')),
  (r'(query|key|value|gate|up)/lora_b', jax.P(None, None, 'tensor')),
  (r'(output|down)/lora_a', jax.P(None, 'tensor')),
  (r'(output|down)/lora_b', jax.P(None, None, 'fsdp')),
  (r'(query|key|value)/bias', jax.P(None, 'tensor')),
  (r'(output|down)/kernel', jax.P(None, 'tensor', 'fsdp')),
  (r'.*', jax.P()),
)


def make_mesh(*, data: int = -1, fsdp: int = 1, tensor: int = 1) -> Mesh:
  """A mesh of all devices; data = -1 takes what the others leave.

  Raises:
    ValueError: the axes do not multiply to the number of devices.
  """
  devices = jax.device_count()
  sizes = {'data': data, 'fsdp': fsdp, 'tensor': tensor}
  if data == -1 and fsdp > 0 and tensor > 0:
    sizes['data'] = devices // (fsdp * tensor)
  product = sizes['data'] * fsdp * tensor
  if min(sizes.values()) < 1 or product != devices:
    raise ValueError(f'mesh {sizes} does not fit {devices} devices')
  return jax.make_mesh(
    tuple(sizes[axis] for axis in AXES), AXES, (AxisType.Auto,) * len(AXES)
  )


def by_row(mesh: Mesh) -> NamedSharding:
  """Sharding of arrays whose first axis is rows or tasks."""
  return NamedSharding(mesh, jax.P(BATCH))


def shardings(tree, mesh: Mesh, *, whole: tuple = ()):
  """Shardings of parameters, or of optimizer state that mirrors them.

  An axis that a dimension cannot be divided by is left whole. Paths are keys
  joined by '/'. Nothing is divided over the axes in `whole`.
  """

  undivided = (None, *whole)

  def place(path, leaf):
    name = '/'.join(str(getattr(k, 'key', getattr(k, 'name', k))) for k in path)
    spec = next(spec for rule, spec in RULES if re.search(rule, name))
    if len(spec) > leaf.ndim:
      spec = jax.P()
    fitting = [
      axis if axis not in undivided and size % mesh.shape[axis] == 0 else None
      for axis, size in zip(spec, leaf.shape)
    ]
    return NamedSharding(mesh, jax.P(*fitting))

  return jax.tree_util.tree_map_with_path(place, tree)


def parts(mesh: Mesh) -> int:
  """Devices that rows are divided over."""
  return mesh.shape['data'] * mesh.shape['fsdp']


def put_rows(tree, mesh: Mesh, *, axis: int = 0):
  """Arrays of all processes, from the rows (on `axis`) that each one holds."""
  placement = NamedSharding(mesh, jax.P(*[None] * axis, BATCH))

  def put(x):
    return jax.make_array_from_process_local_data(placement, np.asarray(x))

  return jax.tree.map(put, tree)


def local_rows(tree):
  """The rows of this process, as numpy; arrays are divided on axis 0."""

  def fetch(x):
    if x.is_fully_addressable:
      return np.asarray(x)
    shards = {s.index[0].start: s.data for s in x.addressable_shards}
    return np.concatenate([np.asarray(shards[i]) for i in sorted(shards)])

  return jax.tree.map(fetch, tree)


def everywhere(numbers) -> np.ndarray:
  """What every process holds, [processes, n]; all must call it."""
  numbers = np.asarray(numbers)
  if jax.process_count() == 1:
    return numbers[None]
  return np.asarray(multihost_utils.process_allgather(numbers))


def most(numbers) -> np.ndarray:
  """The largest of each number over all processes, [n]."""
  return everywhere(numbers).max(axis=0)


def mine(items):
  """Every n-th item, for this one of n processes."""
  return items[jax.process_index() :: jax.process_count()]


def local_mesh() -> Mesh:
  """A mesh of this process's devices, for work that it does alone."""
  devices = jax.local_devices()
  return jax.make_mesh(
    (len(devices), 1, 1), AXES, (AxisType.Auto,) * 3, devices=devices
  )
