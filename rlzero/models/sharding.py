"""How a model lies on a mesh: one table from logical axes to mesh axes, and constraints for activations.

The mesh has three axes. `data` replicates the model and splits the rows of a batch; `fsdp` splits rows too, and stores
each parameter in slices that are gathered layer by layer where they are used (Rajbhandari et al., arXiv 1910.02054);
`tensor` splits heads, the feed-forward width and the vocabulary (Shoeybi et al., arXiv 1909.08053). Left alone, the
compiler may move activations instead of weights; `gathered` and `constrain` tell it not to. Without a mesh in context
both do nothing, so the model runs the same in a notebook.
"""

import contextlib
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# Logical axis of a parameter -> mesh axis. Anything else is not split.
RULES = {"vocab": "tensor", "heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "embed": "fsdp"}


def make_mesh(data: int = 0, fsdp: int = 1, tensor: int = 1, *, devices: Any = None) -> Mesh:
    """A mesh with the axes `data`, `fsdp` and `tensor`, over the first data·fsdp·tensor devices.

    With data=0 it takes as many copies as there are devices for.

    Raises:
      ValueError: there are fewer devices.
    """
    devices = jax.devices() if devices is None else devices
    data = data or max(1, len(devices) // (fsdp * tensor))
    wanted = data * fsdp * tensor
    if wanted > len(devices):
        raise ValueError(f"a mesh of data={data}, fsdp={fsdp}, tensor={tensor} needs {wanted} devices, there are "
                         f"{len(devices)}; choose sizes whose product is at most {len(devices)}")
    return jax.make_mesh((data, fsdp, tensor), AXES, devices=devices[:wanted], axis_types=(AxisType.Auto,) * 3)


def parameter_partition(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Where a parameter with these logical axes lies; an axis whose size the mesh axis does not divide stays whole."""
    names = [RULES.get(axis) if axis is not None else None for axis in axes]
    return PartitionSpec(*(name if name is not None and size % mesh.shape[name] == 0 else None
                           for name, size in zip(names, shape, strict=True)))


def parameter_shardings(specs: Any, mesh: Mesh) -> Any:
    """The tree of `NamedSharding` for a tree of `transformer.ParameterSpec`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, parameter_partition(spec.axes, spec.shape, mesh)), specs,
                        is_leaf=lambda leaf: hasattr(leaf, "axes"))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch, split over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def batch_shards(mesh: Mesh | None) -> int:
    """Into how many parts the rows of a batch are split; 1 without a mesh."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def in_context(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    """`jax.set_mesh(mesh)`; nothing without a mesh."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def free_axes() -> tuple[str, ...]:
    """Axes of the mesh in context that the compiler splits, outside of a shard_map over them; none without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return ()
    return tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types) if kind != AxisType.Manual)


def replicated_unless_on(array: jax.Array, mesh: Mesh) -> jax.Array:
    """The array as it is if it lies on the mesh already, else a copy on every device: for counters and small heads."""
    if isinstance(array.sharding, NamedSharding) and array.sharding.mesh.devices.size == mesh.size:
        return array
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec()))


def constrain(array: jax.Array, *axes: Any) -> jax.Array:
    """Holds an activation to a layout, `axes` naming one mesh axis (or several, or None) per dimension.

    An axis that the mesh in context lacks, or whose size does not divide the dimension, is left out.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return array
    free = free_axes()

    def usable(entry, size):
        names = (entry,) if isinstance(entry, str) else tuple(entry or ())
        names = tuple(name for name in names if name in free)
        return names if names and size % _extent(*names) == 0 else None

    return jax.lax.with_sharding_constraint(array, PartitionSpec(*map(usable, axes, array.shape)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gathered(weight: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """A parameter as it is used: whole along `fsdp`, still split along `tensor`. Its gradient is scattered back."""
    return constrain(weight, *_used(axes))


def _gathered_forward(weight, axes):
    return gathered(weight, axes), None


def _gathered_backward(axes, _, cotangent):
    """The gradient laid out as the parameter is stored.

    Where the model has copies (`data`), it must be scattered first and only then summed over them, so its layout is
    asked for at once. Where it has none, a sum that is sliced afterwards is what compilers turn into a reduce-scatter;
    asked at once, the TPU's splits the product itself into many small steps.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape.get("data", 1) == 1:
        cotangent = constrain(cotangent, *_used(axes))
    return (constrain(cotangent, *(RULES.get(axis) for axis in axes)),)


def _used(axes):
    return (RULES.get(axis) if RULES.get(axis) == "tensor" else None for axis in axes)


gathered.defvjp(_gathered_forward, _gathered_backward)


def lookup(table: jax.Array, indices: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """`table[indices]` in `dtype`, for a `[V, D]` table whose columns are split over `fsdp`.

    Here it is cheaper to move activations: each device looks up its columns for the tokens of all, and the parts are
    exchanged. So neither the table nor its gradient, which is added up in the table's own dtype, is ever whole.

    Args:
      table: `[V, D]`, axes ("vocab", "embed").
      indices: `[N]` integers, split over the batch axes.
      dtype: of the result.

    Returns:
      `[N, D]`, split over the batch axes.
    """
    axes = free_batch_axes()
    if "fsdp" not in axes or table.shape[1] % _extent("fsdp") or indices.shape[0] % _extent(*axes):
        return table[indices].astype(dtype)

    def local(table, indices):
        parts = table[jax.lax.all_gather(indices, "fsdp", tiled=True)].astype(dtype)
        return jax.lax.all_to_all(parts, "fsdp", split_axis=0, concat_axis=1, tiled=True)

    return jax.shard_map(local, in_specs=(PartitionSpec(None, "fsdp"), PartitionSpec(axes)),
                         out_specs=PartitionSpec(axes), axis_names=set(axes))(table, indices)


def free_batch_axes() -> tuple[str, ...]:
    """Batch axes of the mesh in context with more than one device, outside of a shard_map over them."""
    free = free_axes()
    return tuple(axis for axis in BATCH_AXES if axis in free and _extent(axis) > 1)


def _extent(*axes: str) -> int:
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape[axis] for axis in axes)
