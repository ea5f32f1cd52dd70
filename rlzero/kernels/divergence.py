"""How far two policies are apart on the sampled tokens, and how undecided one is."""

import jax
import jax.numpy as jnp

from rlzero.algorithms import CHOICES, expect_choice
from rlzero.kernels.arrays import as_floats, as_mask, bounded_exp, bounded_expm1, clean, expect_rank, expect_shape


def kl(
    logprobs: jax.Array,
    ref_logprobs: jax.Array,
    mask: jax.Array,
    *,
    estimator: str,
    old_logprobs: jax.Array | None = None,
) -> jax.Array:
    """Per-token estimates of KL(π ‖ π_ref) from tokens sampled by π (joschu.net/blog/kl-approx.html).

    With x = ref_logprobs - logprobs and ratio = exp(logprobs - old_logprobs):

        k1            -x                  unbiased, either sign
        k2            x² / 2              biased, never negative
        k3            exp(x) - x - 1      unbiased, never negative; arXiv 2402.03300 equation 4
        k3_unbiased   ratio · k3          same value on policy, other gradient

    As a term of the loss, differentiated through logprobs, only k2 and k3_unbiased pull along the gradient of the
    reverse divergence KL(π ‖ π_ref). k1 averages to zero gradient: it belongs in the reward. k3 has the gradient of the
    forward divergence KL(π_ref ‖ π), which is what GRPO trains with. exp is continued by its tangent above x = 20, so
    value and gradient stay finite; NaN in a valid token stays NaN.

    Args:
      logprobs: [B, T], of the policy that is trained.
      ref_logprobs: [B, T], of the reference policy; a constant.
      mask: [B, T], 1 for trained tokens.
      estimator: one of the four names.
      old_logprobs: [B, T], of the policy that sampled, for k3_unbiased; None when that is the policy itself, whose
        ratio is 1 with the gradient of logprobs.

    Returns:
      Estimates [B, T] in nats, 0 at mask 0.

    Raises:
      ValueError: a shape or the estimator is not as above.
    """
    expect_rank("BT", logprobs=logprobs)
    expect_shape(jnp.shape(logprobs), ref_logprobs=ref_logprobs, mask=mask, old_logprobs=old_logprobs)
    arrays = clean(as_mask(mask), *as_floats(logprobs, ref_logprobs, old_logprobs))
    return kl_terms(*arrays, estimator=estimator)


def kl_terms(logprobs, ref_logprobs, old_logprobs, *, estimator: str) -> jax.Array:
    """`kl` of clean arrays of any one shape; old_logprobs may be None."""
    expect_choice(CHOICES["kl_estimator"], estimator=estimator)
    x = jax.lax.stop_gradient(ref_logprobs) - logprobs
    if estimator == "k1":
        return -x
    if estimator == "k2":
        return x**2 / 2
    if estimator == "k3":
        return k3_of(x)
    return bounded_exp(logprobs - jax.lax.stop_gradient(logprobs if old_logprobs is None else old_logprobs)) * k3_of(x)


def k3_of(x: jax.Array) -> jax.Array:
    """exp(x) - x - 1 without cancellation near 0, never negative, exp continued by its tangent as in `bounded_exp`."""
    return jnp.maximum(bounded_expm1(x) - x, 0)


def entropy(logits: jax.Array) -> jax.Array:
    """Entropy of a categorical distribution over the last axis.

        H = -Σ_v p_v log p_v,    p = softmax(logits)

    Args:
      logits: [..., V], finite.

    Returns:
      Entropy [...] in nats.
    """
    (logits,) = as_floats(logits)
    return entropy_of(jax.nn.log_softmax(logits, axis=-1))


def entropy_of(log_probabilities: jax.Array) -> jax.Array:
    """`entropy` of normalized log-probabilities [..., V]."""
    return -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=-1)
