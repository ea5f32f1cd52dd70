"""Surrogates: signs of the clip, zero gradients, identities, GSPO, CISPO, importance weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlzero import kernels

DAPO = {"clip_low": 0.2, "clip_high": 0.28}
GARBAGE = [np.nan, np.inf, -np.inf, 1e9]
KERNELS = [kernels.clipped_surrogate, kernels.gspo_surrogate, kernels.cispo_surrogate]


def batch(seed=0, rows=5, width=7):
    rng = np.random.default_rng(seed)
    logprobs = -rng.random((rows, width)).astype(np.float32) * 3
    old = logprobs + rng.normal(0, 0.4, (rows, width)).astype(np.float32)
    mask = (rng.random((rows, width)) < 0.7).astype(np.float32)
    mask[-1] = 0
    return logprobs, old, rng.normal(size=(rows, width)).astype(np.float32), mask


def gradient(kernel, logprobs, *rest, **options):
    return jax.grad(lambda x: jnp.sum(kernel(x, *rest, **options).objective))(logprobs)


def test_signs_of_the_clip():
    ratio, advantage = np.asarray([[1.5, 0.5, 1.5, 0.5]]), np.asarray([[1, 1, -1, -1]])
    arguments = np.log(ratio), np.zeros((1, 4)), advantage, np.ones((1, 4))
    terms = kernels.clipped_surrogate(*arguments, **DAPO)
    np.testing.assert_allclose(terms.objective, [[1.28, 0.5, -1.5, -0.8]], rtol=1e-6)
    np.testing.assert_array_equal(terms.clipped_high, [[True, False, False, False]])
    np.testing.assert_array_equal(terms.clipped_low, [[False, False, False, True]])
    np.testing.assert_allclose(gradient(kernels.clipped_surrogate, *arguments, **DAPO), [[0, 0.5, -1.5, 0]], rtol=1e-6)


def test_dual_clip_bounds_the_loss_of_a_negative_advantage():
    arguments = np.log([[5.0, 2.0, 5.0]]), np.zeros((1, 3)), np.asarray([[-1, -1, 1]]), np.ones((1, 3))
    terms = kernels.clipped_surrogate(*arguments, dual_clip=3.0, **DAPO)
    np.testing.assert_allclose(terms.objective, [[-3, -2, 1.28]], rtol=1e-6)
    slopes = gradient(kernels.clipped_surrogate, *arguments, dual_clip=3.0, **DAPO)
    np.testing.assert_allclose(slopes, [[0, -2, 0]], rtol=1e-6)


def test_objective_is_the_papers_min_and_max():
    logprobs, old, advantages, mask = batch()
    ratio = np.exp(logprobs - old)
    plain = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.28) * advantages)
    dual = np.where(advantages < 0, np.maximum(plain, 1.5 * advantages), plain)
    for dual_clip, expected in ((None, plain), (1.5, dual)):
        terms = kernels.clipped_surrogate(logprobs, old, advantages, mask, dual_clip=dual_clip, **DAPO)
        np.testing.assert_allclose(terms.objective, expected * mask, rtol=1e-5)
        np.testing.assert_allclose(terms.ratio, ratio * mask, rtol=1e-5)


def test_equal_bounds_are_ppo_and_open_bounds_are_the_plain_ratio():
    logprobs, old, advantages, mask = batch()
    ratio = np.exp(logprobs - old)
    ppo = kernels.clipped_surrogate(logprobs, old, advantages, mask, clip_low=0.2, clip_high=0.2).objective
    expected = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages) * mask
    np.testing.assert_allclose(ppo, expected, rtol=1e-5)
    plain = kernels.clipped_surrogate(logprobs, old, advantages, mask, clip_low=1, clip_high=np.inf)
    np.testing.assert_allclose(plain.objective, ratio * advantages * mask, rtol=1e-5)
    assert not np.any(plain.clipped_low | plain.clipped_high)


@pytest.mark.parametrize("kernel", KERNELS)
def test_on_policy_gradient_is_reinforce(kernel):
    logprobs, _, advantages, mask = batch()
    advantages = np.broadcast_to(advantages[:, :1], advantages.shape)
    slopes = gradient(kernel, logprobs, logprobs, advantages, mask, **DAPO)
    np.testing.assert_allclose(slopes, advantages * mask, rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_is_masked_has_no_effect(kernel, garbage):
    logprobs, old, advantages, mask = batch()
    dirty = [np.where(mask, x, garbage).astype(np.float32) for x in (logprobs, old, advantages)]
    clean = kernel(logprobs, old, advantages, mask, **DAPO)
    for a, b in zip(clean, kernel(*dirty, mask, **DAPO)):
        np.testing.assert_array_equal(a, b)
        assert not np.any(np.where(mask, 0, a))
    slopes = gradient(kernel, *dirty, mask, **DAPO)
    np.testing.assert_array_equal(slopes, gradient(kernel, logprobs, old, advantages, mask, **DAPO))


@pytest.mark.parametrize("kernel", KERNELS)
def test_extreme_ratios_are_finite_and_nan_is_visible(kernel):
    x = np.asarray([[1000.0, -1000, 100, -100, 89, np.nan]], np.float32)[:, :, None].reshape(6, 1)
    arguments = x, np.zeros_like(x), -np.ones_like(x), np.ones_like(x)
    value, slopes = kernel(*arguments, **DAPO).objective, gradient(kernel, *arguments, **DAPO)
    assert np.all(np.isfinite(value[:5])) and np.all(np.isfinite(slopes[:5])) and np.isnan(value[5, 0])


def test_constants_get_no_gradient():
    logprobs, old, advantages, mask = batch()
    slopes = jax.grad(
        lambda old, advantages: jnp.sum(kernels.clipped_surrogate(logprobs, old, advantages, mask, **DAPO).objective),
        argnums=(0, 1),
    )(old, advantages)
    assert not np.any(slopes[0]) and not np.any(slopes[1])


def test_gspo_is_the_clipped_sequence_ratio():
    """The paper's loss per response: min(s A, clip(s) A) with s = exp(mean log-ratio), gradient s A / len per token."""
    logprobs, old, advantages, mask = batch()
    length = np.maximum(mask.sum(1), 1)
    clips = {"clip_low": 0.05, "clip_high": 0.05}

    def paper(logprobs):
        s, a = jnp.exp(jnp.sum((logprobs - old) * mask, axis=1) / length), advantages[:, 0]
        return jnp.sum(jnp.minimum(s * a, jnp.clip(s, 0.95, 1.05) * a) * (mask.sum(1) > 0))

    def ours(logprobs):
        terms = kernels.gspo_surrogate(logprobs, old, advantages[:, :1], mask, **clips)
        return jnp.sum(jnp.sum(terms.objective, axis=1) / length)

    for a, b in zip(jax.value_and_grad(paper)(logprobs), jax.value_and_grad(ours)(logprobs)):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    logprobs = np.log([[0.9, 0.9, 0.1]])
    arguments = logprobs, np.log([[0.3, 0.8, 0.9]]), np.asarray([[2, -1, 2]]), np.ones((1, 3))
    weight = np.asarray([[1.28, 0.9 / 0.8, 0.8]])
    terms = kernels.cispo_surrogate(*arguments, **DAPO)
    np.testing.assert_allclose(terms.objective, weight * arguments[2] * logprobs, rtol=1e-5)
    np.testing.assert_allclose(gradient(kernels.cispo_surrogate, *arguments, **DAPO), weight * arguments[2], rtol=1e-5)
    np.testing.assert_array_equal(terms.clipped_high, [[True, False, False]])
    np.testing.assert_array_equal(terms.clipped_low, [[False, False, True]])


def test_one_advantage_per_response_equals_its_copies():
    logprobs, old, advantages, mask = batch()
    for kernel in KERNELS:
        one = kernel(logprobs, old, advantages[:, :1], mask, **DAPO)
        many = kernel(logprobs, old, np.repeat(advantages[:, :1], 7, axis=1), mask, **DAPO)
        np.testing.assert_array_equal(one.objective, many.objective)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_importance_is_capped_masked_and_constant(level, garbage):
    trainer, rollout, _, mask = batch()
    delta = (trainer - rollout) * mask
    delta = delta if level == "token" else np.broadcast_to(delta.sum(1, keepdims=True), delta.shape)
    dirty = [np.where(mask, x, garbage).astype(np.float32) for x in (trainer, rollout)]
    weights = kernels.truncated_importance(*dirty, mask, cap=1.2, level=level)
    np.testing.assert_allclose(weights, np.minimum(np.exp(delta), 1.2) * mask, rtol=1e-5)
    slopes = jax.grad(lambda a, b: jnp.sum(kernels.truncated_importance(a, b, mask, cap=1.2, level=level)), (0, 1))
    assert not any(np.any(slope) for slope in slopes(*dirty))


S, T = np.ones((3, 3)), np.ones((3, 4))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((S, S, np.ones(3), S), {}, r"expected advantages of shape \[3, 3\], got \[3\]"),
        ((S, S, np.ones((1, 3)), S), {}, r"expected advantages of shape \[3, 3\], got \[1, 3\]"),
        ((S, T, S, S), {}, r"expected old_logprobs of shape \[3, 3\], got \[3, 4\]"),
        ((S, S, S, np.ones(3)), {}, r"expected mask of shape \[3, 3\], got \[3\]"),
        ((np.ones(3),) * 4, {}, r"expected logprobs of shape \[B, T\], got \[3\]"),
        ((S, S, S, S), {"clip_low": 0.0}, r"expected clip_low in \(0, 1\], got 0.0"),
        ((S, S, S, S), {"clip_high": -0.2}, r"expected clip_high in \(0, inf\], got -0.2"),
    ],
)
def test_bad_input_raises(kernel, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        kernel(*arguments, **(DAPO | options))


def test_dual_clip_and_cap_are_checked():
    with pytest.raises(ValueError, match=r"expected dual_clip in \(1, inf\], got 1.0"):
        kernels.clipped_surrogate(S, S, S, S, dual_clip=1.0, **DAPO)
    with pytest.raises(ValueError, match=r"expected cap in \(0, inf\], got 0"):
        kernels.truncated_importance(S, S, S, cap=0)
    with pytest.raises(ValueError, match="expected level to be one of token, sequence, got 'row'"):
        kernels.truncated_importance(S, S, S, cap=2, level="row")
