"""The soft overlong penalty, a reward term against running into the length limit."""

import jax
import jax.numpy as jnp

from rlzero.algorithms import expect_within
from rlzero.kernels.arrays import as_floats


def soft_overlong_penalty(lengths: jax.Array, *, max_length: int, cache: int) -> jax.Array:
    """Penalty that grows linearly from 0 to -1 over the last `cache` tokens of the budget (arXiv 2503.14476 eq. 13).

        0                                       len ≤ max_length - cache
        (max_length - cache - len) / cache      in between
        -1                                      len > max_length

    With cache = 0, which the paper does not have, it is 0 up to max_length and -1 beyond.

    Args:
      lengths: any shape, in tokens of the completion, EOS included.
      max_length: the completion budget in tokens.
      cache: in tokens, at most max_length.

    Returns:
      Penalties in [-1, 0], same shape as lengths.

    Raises:
      ValueError: max_length is not positive or cache is not within [0, max_length].
    """
    expect_within("(0, inf)", max_length=max_length)
    expect_within(f"[0, {max_length}]", cache=cache)
    (lengths,) = as_floats(lengths)
    if cache == 0:
        return jnp.where(lengths > max_length, -1, jnp.zeros_like(lengths))
    return jnp.clip((max_length - cache - lengths) / cache, -1, 0)
