"""Axis 1 in slices, for loops that hold one at a time."""

import jax.numpy as jnp


def to_slices(x, chunk):
  """[R, L, ...] to [slices, R, chunk, ...], the last one padded with 0."""
  padding = [(0, 0), (0, -x.shape[1] % chunk)] + [(0, 0)] * (x.ndim - 2)
  x = jnp.pad(x, padding).reshape(x.shape[0], -1, chunk, *x.shape[2:])
  return jnp.moveaxis(x, 1, 0)


def from_slices(x, length):
  """[slices, R, chunk, ...] to [R, L, ...], without the padding."""
  x = jnp.moveaxis(x, 0, 1)
  return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]
