"""Surrogate objectives: what a token contributes, given its ratio and advantage, before any weight.

All of them are maximized. `old_logprobs` and `advantages` are constants: no gradient passes through them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlzero.algorithms import CHOICES, expect_choice, expect_within
from rlzero.kernels.arrays import as_floats, as_mask, bounded_exp, clean, expect_rank, expect_shape


class SurrogateTerms(NamedTuple):
    """Per-token parts of a surrogate, all [B, T] and 0 (False) at mask 0.

    clipped_low and clipped_high are true only where the clipped branch is the active one: where the ratio is out of
    bounds and the advantage pushes it further out. A ratio within rounding of a bound counts as inside.
    """

    objective: jax.Array
    ratio: jax.Array
    clipped_low: jax.Array
    clipped_high: jax.Array


def clipped_surrogate(
    logprobs: jax.Array,
    old_logprobs: jax.Array,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> SurrogateTerms:
    """PPO's clipped objective with separate bounds (arXiv 1707.06347 equation 7; 2503.14476 equation 8).

        ratio = exp(logprobs - old_logprobs)
        objective = min(ratio · A, clip(ratio, 1 - clip_low, 1 + clip_high) · A)
        objective = max(objective, dual_clip · A)   where A < 0   (dual clip, arXiv 1912.09729)

    The gradient is exactly 0 where a clipped branch is active, and the unclipped one at a bound itself, where min of
    two equal numbers would halve it. Above e^20 the ratio grows linearly and stays finite.

    Args:
      logprobs: [B, T] in nats, differentiated.
      old_logprobs: [B, T], of the policy that sampled.
      advantages: [B, T], or [B, 1] for one per response.
      mask: [B, T], 1 for trained tokens.
      clip_low: in (0, 1]; 1 never clips.
      clip_high: in (0, inf]; inf never clips.
      dual_clip: above 1, or None.

    Returns:
      SurrogateTerms.

    Raises:
      ValueError: a shape is not as above or a bound is out of range.
    """
    mask, logprobs, old_logprobs, advantages = _prepare(logprobs, old_logprobs, advantages, mask)
    terms, _ = clip_terms(
        logprobs, old_logprobs, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    return terms._replace(ratio=clean(mask, terms.ratio)[0])


def gspo_surrogate(
    logprobs: jax.Array,
    old_logprobs: jax.Array,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> SurrogateTerms:
    """GSPO: the clipped objective of one ratio per response (arXiv 2507.18071 equations 5 and 7).

        ratio_i = exp(mean_t(logprobs - old_logprobs))

    Written in its token form (equations 13 and 14), where every token carries ratio_i · π_t / sg[π_t]: the same value
    and gradient for one advantage per response, and with weights 1 / (N · len_i) exactly the paper's loss.

    Args, returns and errors are those of `clipped_surrogate`; the paper's bounds are about 3e-4 and 4e-4.
    """
    mask, logprobs, old_logprobs, advantages = _prepare(logprobs, old_logprobs, advantages, mask)
    anchor = sequence_anchor(logprobs, old_logprobs, mask)
    terms, _ = clip_terms(logprobs, anchor, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    return terms._replace(ratio=clean(mask, terms.ratio)[0])


def cispo_surrogate(
    logprobs: jax.Array,
    old_logprobs: jax.Array,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    clip_low: float,
    clip_high: float,
) -> SurrogateTerms:
    """CISPO: REINFORCE with a clipped importance weight, so that no token loses its gradient (arXiv 2506.13585 eq. 4).

        objective = sg[clip(ratio, 1 - clip_low, 1 + clip_high)] · A · logprobs

    clipped_low and clipped_high tell where the weight is clipped, whatever the sign of the advantage. The paper has no
    lower bound, which is clip_low = 1 here.

    Args, returns and errors are those of `clipped_surrogate`.
    """
    mask, logprobs, old_logprobs, advantages = _prepare(logprobs, old_logprobs, advantages, mask)
    terms = cispo_terms(logprobs, old_logprobs, advantages, clip_low=clip_low, clip_high=clip_high)
    return terms._replace(ratio=clean(mask, terms.ratio)[0])


def truncated_importance(
    logprobs_trainer: jax.Array,
    logprobs_rollout: jax.Array,
    mask: jax.Array,
    *,
    cap: float,
    level: str = "token",
) -> jax.Array:
    """Weights that correct for a rollout engine whose probabilities differ from the trainer's.

        token       w_t = min(exp(Δ_t), cap),          Δ = logprobs_trainer - logprobs_rollout
        sequence    w_t = min(exp(Σ_s Δ_s), cap)       the same for all tokens of a response

    Truncated importance sampling (Ionides 2008); the token form is that of fengyao.notion.site/off-policy-rl.

    Args:
      logprobs_trainer: [B, T], scored by the trainer with the weights that sampled.
      logprobs_rollout: [B, T], as reported by the engine.
      mask: [B, T], 1 for trained tokens.
      cap: largest weight, positive.
      level: "token" or "sequence".

    Returns:
      Weights [B, T] without gradient, 0 at mask 0.

    Raises:
      ValueError: a shape, cap or level is not as above.
    """
    expect_rank("BT", logprobs_trainer=logprobs_trainer)
    expect_shape(jnp.shape(logprobs_trainer), logprobs_rollout=logprobs_rollout, mask=mask)
    expect_choice(CHOICES["importance_level"], level=level)
    expect_within("(0, inf]", cap=cap)
    mask = as_mask(mask)
    trainer, rollout = clean(mask, *as_floats(logprobs_trainer, logprobs_rollout))
    delta = trainer - rollout
    if level == "sequence":
        delta = jnp.broadcast_to(jnp.sum(delta, axis=1, keepdims=True), delta.shape)
    return clean(mask, capped_ratio(delta, cap))[0]


def capped_ratio(delta: jax.Array, cap: float) -> jax.Array:
    """min(exp(delta), cap), elementwise, without gradient."""
    return jax.lax.stop_gradient(jnp.minimum(bounded_exp(delta), cap))


def sequence_anchor(logprobs: jax.Array, old_logprobs: jax.Array, mask: jax.Array) -> jax.Array:
    """Old log-probs under which each token's ratio is GSPO's ratio of its response; clean [B, T] in and out."""
    length = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
    mean = jnp.sum(logprobs - old_logprobs, axis=1, keepdims=True) / length
    return clean(mask, jax.lax.stop_gradient(logprobs - mean))[0]


def clip_terms(
    logprobs, old_logprobs, advantages, *, clip_low, clip_high, dual_clip
) -> tuple[SurrogateTerms, jax.Array]:
    """`clipped_surrogate` of clean arrays of any one shape, and where the dual clip is active."""
    ratio, advantages, below, above = _compare(logprobs, old_logprobs, advantages, clip_low, clip_high)
    expect_within("(1, inf]", dual_clip=dual_clip)
    clipped_low, clipped_high = below & (advantages < 0), above & (advantages > 0)
    bound = jax.lax.stop_gradient(jnp.clip(ratio, 1 - clip_low, 1 + clip_high))
    effective = jnp.where(clipped_low | clipped_high, bound, ratio)
    dual = jnp.zeros_like(clipped_low)
    if dual_clip is not None:
        dual = (advantages < 0) & (ratio > dual_clip * (1 + _slack(ratio)))
        effective = jnp.where(dual, dual_clip, effective)
    return SurrogateTerms(effective * advantages, ratio, clipped_low, clipped_high), dual


def cispo_terms(logprobs, old_logprobs, advantages, *, clip_low, clip_high) -> SurrogateTerms:
    """`cispo_surrogate` of clean arrays of any one shape."""
    ratio, advantages, below, above = _compare(logprobs, old_logprobs, advantages, clip_low, clip_high)
    weight = jax.lax.stop_gradient(jnp.clip(ratio, 1 - clip_low, 1 + clip_high))
    return SurrogateTerms(weight * advantages * logprobs, ratio, below, above)


def _compare(logprobs, old_logprobs, advantages, clip_low, clip_high):
    """The ratio, the advantages as constants, and where the ratio is out of bounds."""
    expect_within("(0, 1]", clip_low=clip_low)
    expect_within("(0, inf]", clip_high=clip_high)
    old_logprobs, advantages = jax.lax.stop_gradient((old_logprobs, advantages))
    ratio = bounded_exp(logprobs - old_logprobs)
    slack = _slack(ratio)
    return ratio, advantages, ratio < (1 - clip_low) * (1 - slack), ratio > (1 + clip_high) * (1 + slack)


def _slack(ratio):
    """Relative rounding error of a ratio that went through log and exp."""
    return 4 * float(jnp.finfo(ratio.dtype).eps)


def _prepare(logprobs, old_logprobs, advantages, mask):
    expect_rank("BT", logprobs=logprobs)
    shape = jnp.shape(logprobs)
    expect_shape(shape, old_logprobs=old_logprobs, mask=mask)
    advantages = per_token(advantages, shape)
    mask = as_mask(mask)
    return mask, *clean(mask, *as_floats(logprobs, old_logprobs, advantages))


def per_token(advantages: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Advantages [B, T] or [B, 1] as [B, T]; nothing else is broadcast."""
    if jnp.shape(advantages) != (shape[0], 1):
        expect_shape(shape, advantages=advantages)
    return jnp.broadcast_to(jnp.asarray(advantages), shape)
