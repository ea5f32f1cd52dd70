"""The critic's loss."""

import jax
import jax.numpy as jnp

from rlzero.algorithms import expect_within
from rlzero.kernels.arrays import as_floats, as_mask, clean, expect_rank, expect_shape


def clipped_value_loss(
    values: jax.Array, old_values: jax.Array, returns: jax.Array, mask: jax.Array, *, clip: float
) -> jax.Array:
    """Squared error that gives no credit for moving a value further than `clip` from its old one.

        0.5 · max((V - R)², (V_old + clip(V - V_old, -clip, clip) - R)²)

    Where the clipped error is the larger one the gradient is 0. PPO's implementations have this term, the paper
    (arXiv 1707.06347 equation 9) only the plain square; the factor 0.5 is of the implementations.

    Args:
      values: [B, T], differentiated.
      old_values: [B, T], values when the batch was sampled; a constant.
      returns: [B, T], regression targets; a constant.
      mask: [B, T], 1 for trained tokens.
      clip: in the unit of the values, positive; inf for the plain square.

    Returns:
      Losses [B, T], 0 at mask 0.

    Raises:
      ValueError: a shape differs or clip is not positive.
    """
    expect_rank("BT", values=values)
    expect_shape(jnp.shape(values), old_values=old_values, returns=returns, mask=mask)
    expect_within("(0, inf]", clip=clip)
    values, old_values, returns = clean(as_mask(mask), *as_floats(values, old_values, returns))
    old_values, returns = jax.lax.stop_gradient((old_values, returns))
    clipped = jax.lax.stop_gradient(old_values + jnp.clip(values - old_values, -clip, clip))
    error, clipped_error = (values - returns) ** 2, (clipped - returns) ** 2
    outside = jnp.abs(values - old_values) > clip
    return 0.5 * jnp.where(outside & (clipped_error > error), clipped_error, error)
