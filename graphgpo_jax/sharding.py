"""The mesh, and one table that says where every array lives on it."""

import re

import jax
from jax.sharding import AxisType, Mesh, NamedSharding

AXES = ('data', 'fsdp', 'tensor')
BATCH = ('data', 'fsdp')  # axes that divide rows and tasks

# First match wins. Layers are stacked on axis 0, which stays whole.
RULES = (
  (r'embed/embedding', jax.P('tensor', 'fsdp')),
  (r'head/kernel', jax.P('fsdp', 'tensor')),
  (r'(query|key|value|gate|up)/kernel', jax.P(None, 'fsdp', 'tensor')),
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


def shardings(tree, mesh: Mesh):
  """Shardings of parameters, or of optimizer state that mirrors them.

  An axis that a dimension cannot be divided by is left whole. Paths are keys
  joined by '/'.
  """

  def place(path, leaf):
    name = '/'.join(str(getattr(k, 'key', getattr(k, 'name', k))) for k in path)
    spec = next(spec for rule, spec in RULES if re.search(rule, name))
    if len(spec) > leaf.ndim:
      spec = jax.P()
    fitting = [
      axis if axis and size % mesh.shape[axis] == 0 else None
      for axis, size in zip(spec, leaf.shape)
    ]
    return NamedSharding(mesh, jax.P(*fitting))

  return jax.tree_util.tree_map_with_path(place, tree)
