"""Response weights: the one scalar per response that is the whole normalization of the loss."""

import jax
import jax.numpy as jnp

from rlzero.algorithms import CHOICES, expect_choice, expect_within
from rlzero.kernels.arrays import as_floats, expect_rank, global_sum


def response_weights(
    lengths: jax.Array,
    *,
    normalization: str,
    max_completion_length: int | None = None,
    num_responses: int | None = None,
    axis_names: tuple[str, ...] = (),
) -> jax.Array:
    """The factor c_i of each response i in `loss = -Σ_i c_i Σ_t f_it`.

        sequence_mean      c_i = 1 / (N · len_i)                    GRPO, arXiv 2402.03300 equation 3
        token_mean         c_i = 1 / Σ_j len_j                      DAPO as its code runs it
        group_token_mean   c_i = 1 / (P · Σ_{j in group} len_j)     DAPO, arXiv 2503.14476 equation 8
        constant           c_i = 1 / (N · max_completion_length)    Dr. GRPO, arXiv 2503.20783 (its code's constant)

    A response of length 0 (filtered, unscored, aborted) gets weight 0 and takes no part in any sum. N is the number of
    kept responses, for `constant` that of all responses; P is the number of groups with a kept response. The weights
    are computed once over the whole optimizer batch; after that nothing divides, so the loss is linear and cannot
    depend on micro-batches, devices, padding or order.

    Args:
      lengths: [P, G], trained tokens of each response.
      normalization: one of the four names.
      max_completion_length: the fixed budget L in tokens, needed by `constant`; never the padded width. With L = 1,
        `constant` is the mean over responses of their token sums.
      num_responses: N, where responses without a trained token shall count in `sequence_mean` or shall not in
        `constant`; the token means have no N and ignore it.
      axis_names: mesh axes of the enclosing shard_map over which the prompts are spread; sums are then global.

    Returns:
      Weights [P, G], 0 for length 0.

    Raises:
      ValueError: a shape or name is not as above, or `constant` lacks max_completion_length.
    """
    expect_rank("PG", lengths=lengths)
    expect_choice(CHOICES["normalization"], normalization=normalization)
    expect_within("(0, inf)", max_completion_length=max_completion_length, num_responses=num_responses)
    if normalization == "constant" and max_completion_length is None:
        raise ValueError("expected max_completion_length in tokens for normalization='constant', got None; it is the "
                         "generation budget, which the lengths of one batch do not tell")
    (lengths,) = as_floats(lengths)
    kept = lengths > 0
    lengths = jnp.where(kept, lengths, 0)

    def count(flags):
        return global_sum(jnp.sum(flags, dtype=lengths.dtype), axis_names)

    if normalization == "sequence_mean":
        denominator = (count(kept) if num_responses is None else num_responses) * lengths
    elif normalization == "token_mean":
        denominator = global_sum(jnp.sum(lengths), axis_names)
    elif normalization == "group_token_mean":
        denominator = count(jnp.any(kept, axis=1)) * jnp.sum(lengths, axis=1, keepdims=True)
    else:
        denominator = (count(jnp.ones_like(kept)) if num_responses is None else num_responses) * max_completion_length
    return jnp.where(kept, 1 / jnp.where(kept, denominator, 1), 0).astype(lengths.dtype)
