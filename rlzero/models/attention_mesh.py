"""Attention kernels on a mesh: each device takes its own rows and heads.

The compiler cannot split a hand-written kernel; without this it would gather all rows on every device.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rlzero.models.sharding import BATCH_AXES, free_axes


def on_each_device(function: Callable, query: jax.Array, key: jax.Array, value: jax.Array,
                   segments: jax.Array) -> jax.Array:
    """`function(query, key, value, segments)`, on the mesh in context by rows (data, fsdp) and heads (tensor).

    Rows or heads that an axis does not divide stay whole along it, and every device of the axis computes the same.
    Where `tensor` is larger than the number of key-value heads and a multiple of it, these are repeated.

    Args:
      function: of the four arrays, to `[B, S, H, head_dim]`, independent from row to row and head to head.
      query: `[B, S, H, head_dim]`.
      key: `[B, S, K, head_dim]`.
      value: `[B, S, K, head_dim]`.
      segments: `[B, S]`.

    Returns:
      `[B, S, H, head_dim]`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    free = free_axes()
    if math.prod(mesh.shape[name] for name in free) == 1:
        return function(query, key, value, segments)
    B, (H, K) = query.shape[0], (query.shape[2], key.shape[2])
    rows = tuple(axis for axis in BATCH_AXES if axis in free)
    rows = rows if B % math.prod(mesh.shape[axis] for axis in rows) == 0 else ()
    tensor = mesh.shape["tensor"] if "tensor" in free else 1
    if H % tensor == 0 and tensor % K == 0:
        key, value = (jnp.repeat(array, tensor // K, axis=2) for array in (key, value))
    heads = "tensor" if tensor > 1 and H % tensor == 0 and key.shape[2] % tensor == 0 else None
    split = PartitionSpec(rows, None, heads, None)
    # The kernels do not say along which axes their outputs vary, so that cannot be checked; no sum over devices inside
    # depends on it.
    return jax.shard_map(function, in_specs=(split, split, split, PartitionSpec(rows)), out_specs=split,
                         axis_names=set(free), check_vma=False)(query, key, value, segments)
