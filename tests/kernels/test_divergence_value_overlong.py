"""Divergences, entropy, the critic's loss and the overlong penalty."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlzero import kernels

GARBAGE = [np.nan, np.inf, -np.inf, 1e9]
ESTIMATORS = ["k1", "k2", "k3", "k3_unbiased"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("size", [20, 100, 1000])
def test_large_gaps_have_finite_values_and_gradients(estimator, size):
    logprobs, ref = np.full((1, 2), -1, np.float32), np.asarray([[-1 + size, -1 - size]], np.float32)

    def total(logprobs):
        return jnp.sum(kernels.kl(logprobs, ref, np.ones((1, 2)), estimator=estimator))

    value, gradient = jax.value_and_grad(total)(logprobs)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))
    if estimator in ("k2", "k3"):  # descending has to move logprobs towards ref
        assert gradient[0, 0] < 0 < gradient[0, 1]


def test_k3_is_never_negative_and_exact_near_zero():
    x = np.concatenate([np.linspace(-30, 30, 2001), np.logspace(-12, 0, 500), -np.logspace(-12, 0, 500)])
    value = kernels.kl(-x.astype(np.float32)[None], np.zeros((1, len(x)), np.float32), np.ones((1, len(x))),
                       estimator="k3")[0]
    assert np.all(value >= 0)
    small = np.abs(x) < 20
    np.testing.assert_allclose(value[small], (np.expm1(x) - x)[small], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_garbage_has_no_effect_and_nan_in_a_valid_token_shows(estimator, garbage):
    mask = np.asarray([[1, 0], [0, 0]])
    arrays = [np.where(mask, value, garbage).astype(np.float32) for value in (-1.0, -1.5, -1.2)]

    def total(logprobs):
        return jnp.sum(kernels.kl(logprobs, arrays[1], mask, estimator=estimator, old_logprobs=arrays[2]))

    value, gradient = jax.value_and_grad(total)(arrays[0])
    expected = {"k1": 0.5, "k2": 0.125, "k3": np.exp(-0.5) - 0.5, "k3_unbiased": np.exp(0.2) * (np.exp(-0.5) - 0.5)}
    np.testing.assert_allclose(value, expected[estimator], rtol=1e-6)
    assert gradient[0, 0] != 0 and not np.any(np.where(mask, 0, gradient))
    assert np.isnan(kernels.kl(arrays[0] * np.nan, arrays[1], mask, estimator=estimator)[0, 0])


def test_unbiased_k3_on_policy_is_k3_in_value():
    logprobs, ref, mask = np.full((2, 3), -1.0), np.full((2, 3), -1.3), np.ones((2, 3))
    np.testing.assert_allclose(*(kernels.kl(logprobs, ref, mask, estimator=e) for e in ("k3", "k3_unbiased")))


def test_kl_of_bad_input_raises():
    with pytest.raises(ValueError, match=r"expected ref_logprobs of shape \[2, 2\], got \[2\]"):
        kernels.kl(np.ones((2, 2)), np.ones(2), np.ones((2, 2)), estimator="k3")
    with pytest.raises(ValueError, match="expected estimator to be one of k1, k2, k3, k3_unbiased, got 'k4'"):
        kernels.kl(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), estimator="k4")


def test_entropy():
    np.testing.assert_allclose(kernels.entropy(np.zeros((2, 3, 8))), np.log(8), rtol=1e-6)
    np.testing.assert_allclose(kernels.entropy(np.asarray([0.0, 1000.0])), 0, atol=1e-6)
    p = np.asarray([0.5, 0.3, 0.2])
    np.testing.assert_allclose(kernels.entropy(np.log(p) + 9), -np.sum(p * np.log(p)), rtol=1e-5)


def value_loss(values, old, returns, mask=None, clip=0.2):
    mask = np.ones(len(values)) if mask is None else mask
    arrays = [np.asarray([x], np.float32) for x in (values, old, returns, mask)]
    losses = kernels.clipped_value_loss(*arrays, clip=clip)[0]
    slopes = jax.grad(lambda v: jnp.sum(kernels.clipped_value_loss(v, *arrays[1:], clip=clip)))(arrays[0])[0]
    return losses, slopes


def test_value_loss_and_its_gradient_by_hand():
    # inside; outside with the larger plain error; outside with the larger clipped error, whose gradient is 0
    losses, slopes = value_loss([0.1, 1.0, 1.0], [0, 0, 0], [0.5, 0.5, 2.0])
    np.testing.assert_allclose(losses, [0.08, 0.125, 1.62], rtol=1e-6)
    np.testing.assert_allclose(slopes, [-0.4, 0.5, 0], rtol=1e-6)
    losses, slopes = value_loss([1.0], [0], [2.0], clip=np.inf)
    np.testing.assert_allclose([losses[0], slopes[0]], [0.5, -1], rtol=1e-6)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_value_loss_ignores_what_is_masked(garbage):
    losses, slopes = value_loss([0.1, garbage], [0, garbage], [0.5, garbage], mask=[1, 0])
    np.testing.assert_allclose(losses, [0.08, 0], rtol=1e-6)
    np.testing.assert_allclose(slopes, [-0.4, 0], rtol=1e-6)


def test_value_loss_of_bad_input_raises():
    with pytest.raises(ValueError, match=r"expected returns of shape \[2, 2\], got \[2\]"):
        kernels.clipped_value_loss(np.ones((2, 2)), np.ones((2, 2)), np.ones(2), np.ones((2, 2)), clip=0.2)
    with pytest.raises(ValueError, match=r"expected clip in \(0, inf\], got 0.0"):
        kernels.clipped_value_loss(*[np.ones((2, 2))] * 4, clip=0.0)


def test_overlong_borders():
    lengths = np.asarray([[0, 79, 80], [81, 90, 99], [100, 101, 10**6]])
    penalties = kernels.soft_overlong_penalty(lengths, max_length=100, cache=20)
    np.testing.assert_allclose(penalties, [[0, 0, 0], [-0.05, -0.5, -0.95], [-1, -1, -1]], atol=1e-6)
    np.testing.assert_array_equal(kernels.soft_overlong_penalty(lengths, max_length=100, cache=0),
                                  [[0, 0, 0], [0, 0, 0], [0, -1, -1]])
    np.testing.assert_allclose(kernels.soft_overlong_penalty(np.asarray([0, 50, 100]), max_length=100, cache=100),
                               [0, -0.5, -1], atol=1e-6)


@pytest.mark.parametrize("options, message", [
    ({"max_length": 100, "cache": 101}, r"expected cache in \[0, 100\], got 101"),
    ({"max_length": 100, "cache": -1}, r"expected cache in \[0, 100\], got -1"),
    ({"max_length": 0, "cache": 0}, r"expected max_length in \(0, inf\), got 0"),
])
def test_overlong_of_bad_numbers_raises(options, message):
    with pytest.raises(ValueError, match=message):
        kernels.soft_overlong_penalty(np.ones(3), **options)
