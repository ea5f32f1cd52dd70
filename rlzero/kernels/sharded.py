"""The kernels that add over tokens or responses, on a mesh: each device its rows, then one psum of the sums.

Kernels whose rows are independent (`gae`, `group_relative`, `clipped_surrogate`, ...) need nothing from here. These
have a global sum in them, and a mean of local means would be wrong (arithmetic in `response_weights`). Rows are split
over `axes`; a mesh axis that is not among them replicates and is counted once. `check_vma` stays on: without it the
gradient inside shard_map is silently multiplied by the number of replicas.

The number of rows must be a multiple of the number of shards; rows of mask 0 fill up without changing anything.
"""

import math
from typing import Any, Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from rlzero.algorithms import Algorithm
from rlzero.kernels import advantages as _advantages
from rlzero.kernels import lm_head as _lm_head
from rlzero.kernels import policy as _policy
from rlzero.kernels import weights as _weights

Axes = tuple[str, ...]


def policy_loss(
    logprobs: jax.Array,
    old_logprobs: jax.Array | None,
    advantages: jax.Array,
    mask: jax.Array,
    weights: jax.Array,
    *,
    algorithm: Algorithm,
    mesh: Mesh,
    axes: Axes,
    **optional: jax.Array | None,
) -> tuple[jax.Array, _policy.Metrics]:
    """`kernels.policy_loss` with the responses split over mesh axes.

    Args:
      logprobs, old_logprobs, advantages, mask, weights: as there, B a multiple of the number of shards.
      algorithm: as there.
      mesh: the mesh.
      axes: its axes over which the responses are split.
      **optional: ref_logprobs, rollout_logprobs and entropy, as there.

    Returns:
      Loss and metrics of all responses, the same on every device.

    Raises:
      ValueError: as there, or the rows do not divide over the shards, or the mesh lacks an axis.
    """
    rows = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages, "mask": mask,
            "weights": weights, **optional}
    return _summed(lambda rows, _: _policy.policy_loss(**rows, algorithm=algorithm), rows, (), mesh, axes)


def fused_policy_loss(
    hidden: jax.Array,
    unembedding: jax.Array,
    targets: jax.Array,
    old_logprobs: jax.Array | None,
    advantages: jax.Array,
    weights: jax.Array,
    *,
    algorithm: Algorithm,
    mesh: Mesh,
    axes: Axes,
    temperature: float = 1.0,
    chunk: int | None = None,
    **optional: jax.Array | None,
) -> tuple[jax.Array, _policy.Metrics]:
    """`kernels.fused_policy_loss` with the tokens split over mesh axes and the unembedding whole on every device.

    Args:
      hidden, targets, old_logprobs, advantages, weights: as there, N a multiple of the number of shards.
      unembedding: as there; its gradient is added over the shards.
      algorithm, temperature: as there.
      mesh: the mesh.
      axes: its axes over which the tokens are split.
      chunk: as there, in tokens of one device.
      **optional: mask, ref_logprobs and rollout_logprobs, as there.

    Returns:
      Loss and metrics of all tokens, the same on every device.

    Raises:
      ValueError: as there, or the rows do not divide over the shards, or the mesh lacks an axis.
    """
    rows = {"hidden": hidden, "targets": targets, "old_logprobs": old_logprobs, "advantages": advantages,
            "weights": weights, **optional}

    def kernel(rows, unembedding):
        return _lm_head.fused_policy_loss(
            unembedding=unembedding, algorithm=algorithm, temperature=temperature, chunk=chunk, **rows
        )

    return _summed(kernel, rows, unembedding, mesh, axes)


def token_logprobs(
    hidden: jax.Array,
    unembedding: jax.Array,
    targets: jax.Array,
    *,
    mesh: Mesh,
    axes: Axes,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`kernels.token_logprobs` with the tokens split over mesh axes and the unembedding whole on every device.

    Args, returns and errors are those of `fused_policy_loss` above and `kernels.token_logprobs`.
    """
    def local(rows, unembedding):
        return _lm_head.token_logprobs(rows[0], unembedding, rows[1], temperature=temperature, chunk=chunk)

    return _mapped(local, (hidden, targets), unembedding, mesh, axes, PartitionSpec(axes))


def whiten(values: jax.Array, mask: jax.Array, *, mesh: Mesh, axes: Axes, **options: Any) -> jax.Array:
    """`kernels.whiten` over the rows of all devices.

    Args:
      values, mask: [B, ...], B a multiple of the number of shards.
      mesh: the mesh.
      axes: its axes over which the rows are split.
      **options: ddof and eps, as there.

    Returns:
      Whitened values, split as the values are.

    Raises:
      ValueError: as there, or the rows do not divide over the shards, or the mesh lacks an axis.
    """
    def local(rows, _):
        return _advantages.whiten(*rows, axis_names=tuple(axes), **options)

    return _mapped(local, (values, mask), (), mesh, axes, PartitionSpec(axes))


def response_weights(lengths: jax.Array, *, mesh: Mesh, axes: Axes, **options: Any) -> jax.Array:
    """`kernels.response_weights` over the prompts of all devices.

    Args:
      lengths: [P, G], P a multiple of the number of shards.
      mesh: the mesh.
      axes: its axes over which the prompts are split.
      **options: normalization, max_completion_length and num_responses (of all devices), as there.

    Returns:
      Weights [P, G], split as the lengths are.

    Raises:
      ValueError: as there, or the prompts do not divide over the shards, or the mesh lacks an axis.
    """
    def local(lengths, _):
        return _weights.response_weights(lengths, axis_names=tuple(axes), **options)

    return _mapped(local, lengths, (), mesh, axes, PartitionSpec(axes))


def _summed(kernel: Callable, rows: Any, whole: Any, mesh: Mesh, axes: Axes) -> Any:
    """Sums of a kernel's outputs over the shards of `rows`."""
    def local(rows, whole):
        return jax.lax.psum(kernel(rows, whole), tuple(axes))

    return _mapped(local, rows, whole, mesh, axes, PartitionSpec())


def _mapped(local: Callable, rows: Any, whole: Any, mesh: Mesh, axes: Axes, out_specs: PartitionSpec) -> Any:
    missing = [axis for axis in axes if axis not in mesh.shape]
    if missing or not axes:
        raise ValueError(f"expected axes among {tuple(mesh.shape)}, got {tuple(axes)}")
    shards = math.prod(mesh.shape[axis] for axis in axes)
    for row in jax.tree.leaves(rows):
        if jnp.ndim(row) == 0 or jnp.shape(row)[0] % shards:
            raise ValueError(f"expected a multiple of {shards} rows, one part per shard of {tuple(axes)}, got shape "
                             f"{list(jnp.shape(row))}; fill up with rows of mask 0")
    specs = (PartitionSpec(tuple(axes)), PartitionSpec())
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out_specs)(rows, whole)
