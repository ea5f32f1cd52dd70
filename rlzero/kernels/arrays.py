"""What every kernel does to its arguments: check shapes, pick a dtype, remove what stands at mask 0.

The checks run at trace time and cost nothing in the compiled program.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

_LARGEST_EXPONENT = 20.0


def expect_rank(dims: str, **arrays: Any) -> None:
    """Raises ValueError unless every named array has one axis per letter of `dims`, such as "BT"."""
    for name, array in arrays.items():
        if jnp.ndim(array) != len(dims):
            raise ValueError(f"expected {name} of shape [{', '.join(dims)}], got {list(jnp.shape(array))}")


def expect_shape(shape: tuple[int, ...], **arrays: Any) -> None:
    """Raises ValueError unless every named array has exactly this shape; None passes.

    No kernel broadcasts its arguments: [B] against [B, T] is right by accident when B == T and wrong always.
    """
    for name, array in arrays.items():
        if array is not None and jnp.shape(array) != tuple(shape):
            raise ValueError(f"expected {name} of shape {list(shape)}, got {list(jnp.shape(array))}")


def as_floats(*arrays: Any) -> tuple[Any, ...]:
    """Casts arrays to one dtype: the widest float among them, float32 at least; None stays None."""
    arrays = tuple(array if array is None else jnp.asarray(array) for array in arrays)
    floats = [array.dtype for array in arrays if array is not None and jnp.issubdtype(array.dtype, jnp.floating)]
    dtype = jnp.result_type(float)
    if floats:
        dtype = jnp.float32
        for candidate in floats:
            dtype = jnp.promote_types(dtype, candidate)
    return tuple(array if array is None else array.astype(dtype) for array in arrays)


def as_mask(mask: Any) -> jax.Array:
    """Reads a mask, bool or 0/1 of any dtype, as bool."""
    return jnp.asarray(mask).astype(bool)


def clean(mask: jax.Array, *arrays: Any) -> tuple[Any, ...]:
    """Replaces what stands at mask 0 by 0; None stays None.

    This has to happen before any `exp`: `0 * exp(garbage)` is NaN, and so is the gradient of
    `where(mask, exp(garbage), 0)`.
    """
    return tuple(array if array is None else jnp.where(mask, array, jnp.zeros_like(array)) for array in arrays)


def masked_sum(mask: jax.Array, values: jax.Array) -> jax.Array:
    """Σ values where mask is 1."""
    return jnp.sum(jnp.where(mask, values, jnp.zeros_like(values)))


def bounded_exp(x: jax.Array) -> jax.Array:
    """exp(x) up to x = 20, above it the tangent at 20: convex, increasing, finite in value and gradient.

    A plain clip would stop the gradient of exactly the tokens that went furthest astray, and exp itself overflows
    float32 at 89. NaN stays NaN.
    """
    return jnp.exp(jnp.minimum(x, _LARGEST_EXPONENT)) * (1 + jnp.maximum(x - _LARGEST_EXPONENT, 0))


def bounded_expm1(x: jax.Array) -> jax.Array:
    """`bounded_exp(x) - 1`, exact near 0."""
    slope = math.exp(_LARGEST_EXPONENT)
    return jnp.expm1(jnp.minimum(x, _LARGEST_EXPONENT)) + slope * jnp.maximum(x - _LARGEST_EXPONENT, 0)


def global_sum(x: jax.Array, axis_names: tuple[str, ...]) -> jax.Array:
    """Adds over mesh axes inside a shard_map; the identity where there are none."""
    return jax.lax.psum(x, axis_names) if axis_names else x


def match_varying(tree: Any) -> Any:
    """Makes all leaves vary over every mesh axis that any of them varies over; a no-op outside shard_map.

    An operation on a varying and a replicated array marks the replicated one as varying, and the transpose of the mark
    is a psum. So the gradient of a replicated head is added over the devices that used it even where a custom_vjp hides
    the head from shard_map's own bookkeeping. The operation here is a `where` that always picks the leaf.
    """
    tree = jax.tree.map(jnp.asarray, tree)
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return tree
    never = [jnp.any(jnp.zeros_like(leaf.ravel()[:1], dtype=bool)) for leaf in jax.tree.leaves(tree)]
    never = functools.reduce(jnp.logical_or, never)
    return jax.tree.map(lambda leaf: jnp.where(never, jnp.zeros_like(leaf), leaf), tree)
