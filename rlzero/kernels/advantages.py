"""Advantages: how much better a response, or a token of it, was than expected.

Rewards come as [P, G]: P prompts with G responses each, grouped by prompt id before they get here. What weight a
response has in the loss is another question, answered by `weights.py`.
"""

import jax
import jax.numpy as jnp

from rlzero.algorithms import expect_choice, expect_within
from rlzero.kernels.arrays import as_floats, as_mask, clean, expect_rank, expect_shape, global_sum


def group_relative(
    rewards: jax.Array,
    *,
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    valid: jax.Array | None = None,
) -> jax.Array:
    """Rewards relative to their group, as in GRPO and Dr. GRPO.

        A_i = (R_i - mean(R)) / (std(R) + eps)        scale = "std",  arXiv 2402.03300 section 4.1.2
        A_i =  R_i - mean(R)                          scale = "none", arXiv 2503.20783 section 3.2

    A group without signal, all valid rewards equal or fewer than two of them, gets exactly 0. That is decided on the
    rewards themselves: seven float32 rewards of 0.9 have a nonzero computed deviation. The first valid reward is
    subtracted before the mean and the variance is the mean square of the residuals, so equal parts of large rewards
    cancel. The papers leave ddof and eps open.

    Args:
      rewards: [P, G], any unit.
      scale: "std" or "none".
      ddof: 1 for the sample deviation, 0 for the population's.
      eps: added to the deviation, in the unit of the rewards.
      valid: [P, G], 1 where a response was scored; None for all. An unscored response takes no part in the mean.

    Returns:
      Advantages [P, G], 0 where not valid. A NaN reward at a valid place makes its whole group NaN: it is not hidden.

    Raises:
      ValueError: a shape, scale, ddof or eps is not as above.
    """
    expect_choice(("std", "none"), scale=scale)
    expect_within("[0, inf)", eps=eps)
    if ddof not in (0, 1):
        raise ValueError(f"expected ddof to be 0 or 1, got {ddof!r}")
    shifted, valid, count = _shifted(rewards, valid)
    (centered,) = clean(valid, shifted - jnp.sum(shifted, axis=1, keepdims=True) / jnp.maximum(count, 1))
    signal = jnp.any(shifted != 0, axis=1, keepdims=True)
    if scale == "none":
        return jnp.where(signal, centered, 0)
    variance = jnp.sum(centered**2, axis=1, keepdims=True) / jnp.maximum(count - ddof, 1)
    deviation = jnp.sqrt(jnp.where(signal, variance, 1))
    return jnp.where(signal, centered / (deviation + eps), 0)


def leave_one_out(rewards: jax.Array, *, valid: jax.Array | None = None) -> jax.Array:
    """Rewards minus the mean of the other rewards of the group: RLOO (arXiv 2402.14740).

        A_i = R_i - (1/(n-1)) Σ_{j≠i} R_j = n/(n-1) (R_i - mean(R))

    The paper has no case for a group of one; here it gets 0, as every group without signal does.

    Args:
      rewards: [P, G], any unit.
      valid: [P, G], 1 where a response was scored; None for all. n counts the valid ones.

    Returns:
      Advantages [P, G], 0 where not valid.

    Raises:
      ValueError: a shape is not as above.
    """
    shifted, valid, count = _shifted(rewards, valid)
    total = jnp.sum(shifted, axis=1, keepdims=True)
    (advantages,) = clean(valid, shifted - (total - shifted) / jnp.maximum(count - 1, 1))
    return jnp.where(jnp.any(shifted != 0, axis=1, keepdims=True), advantages, 0)


def _shifted(rewards, valid):
    """Rewards minus the first valid one of their group, 0 where not valid; the mask; the count of valid ones [P, 1]."""
    expect_rank("PG", rewards=rewards)
    expect_shape(jnp.shape(rewards), valid=valid)
    (rewards,) = as_floats(rewards)
    valid = jnp.ones_like(rewards, dtype=bool) if valid is None else as_mask(valid)
    (rewards,) = clean(valid, rewards)
    if rewards.shape[1] == 0:
        return rewards, valid, jnp.zeros_like(rewards, shape=(rewards.shape[0], 1))
    first = jnp.take_along_axis(rewards, jnp.argmax(valid, axis=1, keepdims=True), axis=1)
    (shifted,) = clean(valid, rewards - first)
    return shifted, valid, jnp.sum(valid, axis=1, keepdims=True, dtype=rewards.dtype)


def gae(
    rewards: jax.Array, values: jax.Array, mask: jax.Array, *, gamma: float, lam: float
) -> tuple[jax.Array, jax.Array]:
    """Generalized advantage estimation over the trained tokens (arXiv 1506.02438 equation 16, 1707.06347 11-12).

        δ_t = r_t + γ V_{t'} - V_t,    A_t = δ_t + γλ A_{t'},    returns_t = A_t + V_t

    t' is the next token with mask 1, and V and A after the last one are 0. Tokens at mask 0 are skipped, as if they
    were cut out: a tool's output or a pad costs no factor γλ and its value is never used. The papers know no masks.

    Args:
      rewards: [B, T], reward of each token; the terminal one stands at the last trained token.
      values: [B, T], the critic's value before each token.
      mask: [B, T], 1 for trained tokens.
      gamma: discount γ per trained token, in [0, 1].
      lam: λ in [0, 1]; 0 gives δ, 1 gives discounted returns minus values.

    Returns:
      Advantages and returns, [B, T] each, 0 at mask 0.

    Raises:
      ValueError: a shape differs or γ or λ is out of range.
    """
    expect_rank("BT", rewards=rewards)
    expect_shape(jnp.shape(rewards), values=values, mask=mask)
    expect_within("[0, 1]", gamma=gamma, lam=lam)
    mask = as_mask(mask)
    rewards, values = clean(mask, *as_floats(rewards, values))

    def step(carry, token):
        next_value, next_advantage = carry
        reward, value, trained = token
        advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
        carry = jnp.where(trained, value, next_value), jnp.where(trained, advantage, next_advantage)
        return carry, jnp.where(trained, advantage, 0)

    end = jnp.zeros_like(jnp.sum(rewards + values, axis=1))
    _, advantages = jax.lax.scan(step, (end, end), (rewards.T, values.T, mask.T), reverse=True)
    return advantages.T, advantages.T + values


def whiten(
    values: jax.Array,
    mask: jax.Array,
    *,
    ddof: int = 0,
    eps: float = 1e-8,
    axis_names: tuple[str, ...] = (),
) -> jax.Array:
    """Shifts and scales the trained entries to mean 0 and variance 1.

        w = (x - mean(x)) / √(var(x) + eps)

    Constant entries, one among them, give exactly 0.

    Args:
      values: any shape.
      mask: same shape, 1 for entries that count.
      ddof: 0 for the population variance, 1 for the sample variance.
      eps: added to the variance.
      axis_names: mesh axes of the enclosing shard_map over which the entries are spread; the statistics are global.

    Returns:
      Same shape, 0 at mask 0.

    Raises:
      ValueError: shapes differ, or ddof or eps is out of range.
    """
    expect_shape(jnp.shape(values), mask=mask)
    expect_within("[0, inf)", eps=eps)
    if ddof not in (0, 1):
        raise ValueError(f"expected ddof to be 0 or 1, got {ddof!r}")
    mask = as_mask(mask)
    (values,) = clean(mask, *as_floats(values))
    count = global_sum(jnp.sum(mask, dtype=values.dtype), axis_names)

    def centered(x):
        return clean(mask, x - global_sum(jnp.sum(x), axis_names) / jnp.maximum(count, 1))[0]

    low, high = (bound(values, mask, axis_names) for bound in (_smallest, _largest))
    residuals = centered(centered(values))
    variance = global_sum(jnp.sum(residuals**2), axis_names) / jnp.maximum(count - ddof, 1)
    constant = (low >= high) | (count == 0)
    return jnp.where(constant, 0, residuals / jnp.sqrt(jnp.where(constant, 1, variance + eps)))


def _largest(values, mask, axis_names):
    largest = jnp.max(jax.lax.stop_gradient(values), initial=-jnp.inf, where=mask)
    return jax.lax.pmax(largest, axis_names) if axis_names else largest


def _smallest(values, mask, axis_names):
    return -_largest(-values, mask, axis_names)
