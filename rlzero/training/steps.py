"""The jitted functions of the learner: score given rows, and add the gradient of one micro-batch to a running sum.

The response weights in the rows were computed from the whole optimizer batch, so sums are all there is to do here:
nothing is divided by a local count, and neither the cut into micro-batches nor the mesh can change a loss. On a mesh
(`jax.set_mesh`), rows are split over its batch axes; each device adds over its own tokens, then one psum adds the sums.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rlzero import kernels
from rlzero.algorithms import Algorithm
from rlzero.models import transformer, value_head
from rlzero.models.sharding import free_batch_axes
from rlzero.training.batch import Rows


@dataclasses.dataclass(frozen=True)
class Execution:
    """How the model is computed; none of it changes what is computed, beyond rounding.

    Attributes:
      model: its shape.
      temperature: of the distribution that the completions were drawn from.
      dtype: of activations and matrix products.
      remat: recompute each layer in the backward pass.
      attention: one of `models.attention.IMPLEMENTATIONS`.
    """

    model: transformer.ModelConfig
    temperature: float = 1.0
    dtype: str = "float32"
    remat: bool = False
    attention: str = "xla"

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `transformer.forward`."""
        return {"dtype": jnp.dtype(self.dtype), "remat": self.remat, "attention_implementation": self.attention}


@functools.partial(jax.jit, static_argnames="execution")
def score(params: Any, rows: Rows, *, execution: Execution) -> jax.Array:
    """Log-probabilities `[B, S]` of the rows' targets, at the temperature they were sampled with."""
    return _logprobs(params, rows, execution)[0]


@functools.partial(jax.jit, static_argnames="execution")
def score_values(critic_params: Any, rows: Rows, *, execution: Execution) -> jax.Array:
    """The critic's values `[B, S]` of the states in which the rows' targets were chosen."""
    return value_head.values(critic_params, execution.model, rows.tokens, rows.positions, rows.segments,
                             **execution.options)


@functools.partial(jax.jit, static_argnames=("execution", "algorithm"), donate_argnames="gradient")
def accumulate_policy(params: Any, gradient: Any, rows: Rows, *, execution: Execution,
                      algorithm: Algorithm) -> tuple[Any, jax.Array, dict]:
    """Adds the policy gradient of one micro-batch to `gradient`; also returns its loss and (sum, weight) metrics."""
    loss = _row_loss if algorithm.needs_whole_responses else _token_loss
    value_and_grad = jax.value_and_grad(loss, has_aux=True)
    (value, metrics), new = value_and_grad(params, rows, execution, algorithm)
    return _added(gradient, new), value, metrics


@functools.partial(jax.jit, static_argnames=("execution", "algorithm"), donate_argnames="gradient")
def accumulate_critic(params: Any, gradient: Any, rows: Rows, *, execution: Execution,
                      algorithm: Algorithm) -> tuple[Any, jax.Array, dict]:
    """Adds the gradient of the clipped value loss, a token mean by `rows.weights`, to `gradient`."""

    def loss(params):
        values = value_head.values(params, execution.model, rows.tokens, rows.positions, rows.segments,
                                   **execution.options)
        losses = kernels.clipped_value_loss(values, rows.old_values, rows.returns, rows.trained,
                                            clip=algorithm.value_clip)
        return jnp.sum(losses * rows.weights)

    value, new = jax.value_and_grad(loss)(params)
    return _added(gradient, new), value, {}


def _added(gradient, new):
    return jax.tree.map(lambda total, part: total + part.astype(jnp.float32), gradient, new)


def _token_loss(params, rows, execution, algorithm):
    """The fused loss over the tokens of all rows, packed or not."""
    hidden, head = _hidden_and_head(params, rows, execution)
    tokens = {"targets": rows.targets, "old_logprobs": rows.old_logprobs, "advantages": rows.advantages,
              "weights": rows.weights, "mask": rows.trained, "rollout_logprobs": rows.rollout_logprobs}
    if algorithm.needs_reference:
        tokens["ref_logprobs"] = rows.ref_logprobs

    def loss(local, head):
        flat = jax.tree.map(lambda array: array.reshape(-1), {name: local[name] for name in tokens})
        return kernels.fused_policy_loss(local["hidden"].reshape(-1, head.shape[0]), head, **flat, algorithm=algorithm,
                                         temperature=execution.temperature)

    return over_rows(loss, tokens | {"hidden": hidden}, head, summed=True)


def _row_loss(params, rows, execution, algorithm):
    """The loss of algorithms that look at whole responses; every row holds one."""
    logprobs, entropy = _logprobs(params, rows, execution)
    return kernels.policy_loss(
        logprobs, rows.old_logprobs, rows.advantages, rows.trained, rows.weights.max(axis=1), algorithm=algorithm,
        ref_logprobs=rows.ref_logprobs if algorithm.needs_reference else None,
        rollout_logprobs=rows.rollout_logprobs, entropy=entropy)


def _logprobs(params, rows, execution):
    """Log-probabilities and entropies `[B, S]` of the targets under softmax(logits / temperature)."""
    hidden, head = _hidden_and_head(params, rows, execution)

    def logprobs(local, head):
        outputs = kernels.token_logprobs(local["hidden"].reshape(-1, head.shape[0]), head, local["targets"].reshape(-1),
                                         temperature=execution.temperature)
        return tuple(output.reshape(local["targets"].shape) for output in outputs)

    return over_rows(logprobs, {"hidden": hidden, "targets": rows.targets}, head, summed=False)


def _hidden_and_head(params, rows, execution):
    hidden, _ = transformer.forward(params, execution.model, rows.tokens, rows.positions, rows.segments,
                                    **execution.options)
    return hidden, transformer.sampling_head(params, execution.model).astype(hidden.dtype)


def over_rows(function: Callable, rows: Any, head: jax.Array, *, summed: bool) -> Any:
    """`function(rows, head)`, on a mesh with each device's own rows; sums are then added over the batch axes.

    The loop over chunks of tokens would otherwise run through the tokens of one device after the other's. The head is
    gathered inside, so that its gradient is scattered back instead of being whole on every device. The `tensor` axis
    stays with the compiler.
    """
    axes = free_batch_axes()
    if not axes:
        return function(rows, head)
    sliced = "fsdp" in axes and head.shape[0] % jax.sharding.get_abstract_mesh().shape["fsdp"] == 0

    def local(rows, head):
        if sliced:
            others = tuple(axis for axis in axes if axis != "fsdp")
            head = jax.lax.all_gather(jax.lax.pcast(head, others, to="varying"), "fsdp", tiled=True)
        outputs = function(rows, head)
        return jax.lax.psum(outputs, axes) if summed else outputs

    split = PartitionSpec(axes)
    return jax.shard_map(local, in_specs=(split, PartitionSpec("fsdp" if sliced else None)),
                         out_specs=PartitionSpec() if summed else split, axis_names=set(axes))(rows, head)
