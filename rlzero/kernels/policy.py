"""The policy loss: surrogate, divergence and entropy of every token, weighted and added.

`token_terms` is the only place where they meet. `policy_loss` applies it to log-probs [B, T] that came from anywhere,
`lm_head.fused_policy_loss` to log-probs that exist for one chunk of tokens at a time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlzero.algorithms import Algorithm
from rlzero.kernels.arrays import as_floats, as_mask, bounded_exp, clean, expect_rank, expect_shape, masked_sum
from rlzero.kernels.divergence import k3_of, kl_terms
from rlzero.kernels.surrogate import (
    capped_ratio,
    cispo_terms,
    clip_terms,
    per_token,
    sequence_anchor,
    truncated_importance,
)

Metrics = dict[str, tuple[jax.Array, jax.Array]]


class TokenConstants(NamedTuple):
    """What is known of each token besides its log-prob: arrays of one shape, or None where not given.

    Attributes:
      mask: bool.
      weights: response weight of the token's response.
      advantages: advantage.
      old_logprobs: of the policy that sampled, None when that is the current one.
      ref_logprobs: of the reference policy.
      rollout_logprobs: as reported by the rollout engine.
      anchor: replaces old_logprobs in the surrogate (GSPO).
      importance: weight of the objective that token-wise data cannot give (sequence level).
    """

    mask: jax.Array
    weights: jax.Array
    advantages: jax.Array
    old_logprobs: jax.Array | None = None
    ref_logprobs: jax.Array | None = None
    rollout_logprobs: jax.Array | None = None
    anchor: jax.Array | None = None
    importance: jax.Array | None = None


def policy_loss(
    logprobs: jax.Array,
    old_logprobs: jax.Array | None,
    advantages: jax.Array,
    mask: jax.Array,
    weights: jax.Array,
    *,
    algorithm: Algorithm,
    ref_logprobs: jax.Array | None = None,
    rollout_logprobs: jax.Array | None = None,
    entropy: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """The loss of every algorithm of `rlzero.algorithms`, a weighted sum over trained tokens.

        loss = Σ_i weights_i Σ_t (-importance_it · objective_it + kl_coef · kl_it - entropy_coef · entropy_it)

    objective is that of `algorithm.surrogate`. kl enters if `kl_placement` is "loss". importance is
    min(exp(old_logprobs - rollout_logprobs), importance_cap), per token or per response, and 1 without a cap; it
    multiplies the objective only. The weights come from `response_weights` over the whole optimizer batch. Nothing is
    divided here, so losses, gradients and metrics of micro-batches and devices add up to those of the batch.

    Args:
      logprobs: [B, T] in nats, differentiated.
      old_logprobs: [B, T], of the policy that sampled; None for exactly on-policy data (ratio 1 with gradient).
      advantages: [B, T], or [B, 1] for one per response.
      mask: [B, T], 1 for trained tokens. What the other arrays hold at mask 0 has no effect at all.
      weights: [B], from `response_weights`.
      algorithm: fields surrogate, clip_*, dual_clip, kl_*, entropy_coef and importance_* are read.
      ref_logprobs: [B, T], of the reference policy; needed if `algorithm` has a divergence in the loss.
      rollout_logprobs: [B, T], from the rollout engine; needed if `algorithm.importance_cap` is set.
      entropy: [B, T] in nats, differentiated; needed if `algorithm.entropy_coef` is not 0.

    Returns:
      The loss, a scalar, and metrics name -> (sum over tokens, number of tokens), merged by adding. They carry no
      gradient; those whose input is None are absent. `policy/kl_old`, `policy/kl_ref` and `mismatch/k3` are k3
      estimates of KL(old ‖ current), KL(current ‖ reference) and KL(rollout ‖ old), whatever estimator the loss has.

    Raises:
      ValueError: a shape is not as above or an array that the algorithm needs is None.
    """
    expect_rank("BT", logprobs=logprobs)
    shape = jnp.shape(logprobs)
    expect_shape(shape, old_logprobs=old_logprobs, mask=mask, ref_logprobs=ref_logprobs)
    expect_shape(shape, rollout_logprobs=rollout_logprobs, entropy=entropy)
    expect_shape(shape[:1], weights=weights)
    expect_inputs(algorithm, entropy=entropy, ref_logprobs=ref_logprobs, rollout_logprobs=rollout_logprobs)
    mask = as_mask(mask)
    arrays = as_floats(logprobs, entropy, weights, per_token(advantages, shape),
                       old_logprobs, ref_logprobs, rollout_logprobs)
    logprobs, entropy, weights, advantages, *constants = arrays
    weights = jnp.broadcast_to(weights[:, None], shape)
    logprobs, entropy, *constants = clean(mask, logprobs, entropy, weights, advantages, *constants)
    constants = _with_sequence_terms(TokenConstants(mask, *constants), logprobs, algorithm)
    terms, metrics = token_terms(logprobs, entropy, constants, algorithm)
    return jnp.sum(constants.weights * terms), metrics


def expect_inputs(algorithm: Algorithm, *, entropy, ref_logprobs, rollout_logprobs) -> None:
    """Raises ValueError where an array that the algorithm's loss is made of is None."""
    needs = (
        ("entropy", entropy, algorithm.entropy_coef > 0, "entropy_coef > 0"),
        ("ref_logprobs", ref_logprobs, algorithm.kl_placement == "loss" and algorithm.kl_coef > 0, "a kl in the loss"),
        ("rollout_logprobs", rollout_logprobs, algorithm.importance_cap is not None, "importance_cap"),
    )
    for name, array, needed, reason in needs:
        if needed and array is None:
            raise ValueError(f"expected {name} because algorithm {algorithm.name!r} has {reason}, got None")


def _with_sequence_terms(constants: TokenConstants, logprobs: jax.Array, algorithm: Algorithm) -> TokenConstants:
    """Adds what needs the tokens of a whole response: GSPO's ratio and sequence-level importance weights."""
    logprobs = jax.lax.stop_gradient(logprobs)
    old_logprobs = logprobs if constants.old_logprobs is None else constants.old_logprobs
    if algorithm.surrogate == "gspo":
        constants = constants._replace(anchor=sequence_anchor(logprobs, old_logprobs, constants.mask))
    if algorithm.importance_cap is not None and algorithm.importance_level == "sequence":
        importance = truncated_importance(
            old_logprobs, constants.rollout_logprobs, constants.mask, cap=algorithm.importance_cap, level="sequence"
        )
        constants = constants._replace(importance=importance)
    return constants


def token_terms(
    logprobs: jax.Array, entropy: jax.Array | None, constants: TokenConstants, algorithm: Algorithm
) -> tuple[jax.Array, Metrics]:
    """The parenthesis of the formula of `policy_loss` for each token, and the metrics of all of them.

    Elementwise in arrays of any one shape, differentiable in logprobs and entropy, exactly 0 at mask 0.
    """
    constants = jax.lax.stop_gradient(constants)
    mask = constants.mask
    logprobs, entropy, *cleaned = clean(mask, logprobs, entropy, *constants[1:])
    _, advantages, old_logprobs, ref_logprobs, rollout_logprobs, anchor, importance = cleaned
    if old_logprobs is None:
        old_logprobs = jax.lax.stop_gradient(logprobs)
    surrogate, dual = _surrogate(logprobs, old_logprobs if anchor is None else anchor, advantages, algorithm)
    if algorithm.importance_cap is not None and importance is None:
        importance = capped_ratio(old_logprobs - rollout_logprobs, algorithm.importance_cap)
    loss = -surrogate.objective if importance is None else -importance * surrogate.objective
    if algorithm.kl_placement == "loss" and algorithm.kl_coef > 0:
        loss += algorithm.kl_coef * kl_terms(logprobs, ref_logprobs, old_logprobs, estimator=algorithm.kl_estimator)
    if algorithm.entropy_coef > 0:
        loss -= algorithm.entropy_coef * entropy
    values = {
        "policy/logprob_mean": logprobs,
        "policy/ratio_mean": surrogate.ratio,
        "policy/clip_fraction_low": surrogate.clipped_low,
        "policy/clip_fraction_high": surrogate.clipped_high,
        "policy/dual_clip_fraction": dual,
        "policy/kl_old": k3_of(logprobs - old_logprobs),
        "policy/kl_ref": None if ref_logprobs is None else k3_of(ref_logprobs - logprobs),
        "policy/entropy": entropy,
        "mismatch/importance_mean": importance,
    }
    if rollout_logprobs is not None:
        values |= _mismatch(old_logprobs - rollout_logprobs)
    return loss, _summed(values, mask)


def _surrogate(logprobs, old_logprobs, advantages, algorithm):
    bounds = {"clip_low": algorithm.clip_low, "clip_high": algorithm.clip_high}
    if algorithm.surrogate == "cispo":
        terms = cispo_terms(logprobs, old_logprobs, advantages, **bounds)
        return terms, jnp.zeros_like(terms.clipped_low)
    return clip_terms(logprobs, old_logprobs, advantages, dual_clip=algorithm.dual_clip, **bounds)


def _mismatch(delta):
    """How far the rollout engine's log-probs are from the trainer's for the same weights."""
    ratio = bounded_exp(delta)
    return {
        "mismatch/mean_abs_logprob": jnp.abs(delta),
        "mismatch/k3": k3_of(delta),
        "mismatch/outside_fraction": (ratio < 0.5) | (ratio > 2),
    }


def _summed(values, mask) -> Metrics:
    """Sums and counts of the metrics that are not None, in the dtype of the log-probs."""
    dtype = values["policy/logprob_mean"].dtype
    values = {name: jax.lax.stop_gradient(value).astype(dtype) for name, value in values.items() if value is not None}
    count = jnp.sum(mask, dtype=dtype)
    return {name: (masked_sum(mask, value), count) for name, value in values.items()}
