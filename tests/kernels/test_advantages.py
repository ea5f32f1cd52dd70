"""Group-relative and leave-one-out advantages, GAE and whitening: identities, oracles and edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlzero import kernels

GARBAGE = [np.nan, np.inf, -np.inf, 1e9]


def rewards_of(groups=5, size=4, seed=0):
    return np.random.default_rng(seed).normal(size=(groups, size)).astype(np.float32)


@pytest.mark.parametrize("value", [0.1, 0.2, 0.3, 0.35, 0.7, 0.9, 1e6, 0.0])
def test_equal_rewards_give_exactly_zero(value):
    """Groups of every size up to 16: row n has n + 1 scored responses, the others hold a far reward."""
    valid = np.tri(16)
    rewards = np.where(valid, value, 5).astype(np.float32)
    for options in ({"eps": 0}, {"scale": "none"}):
        assert not np.any(kernels.group_relative(rewards, valid=valid, **options))
        assert not np.any(kernels.group_relative(rewards[6:7, :7], **options))
    assert not np.any(kernels.leave_one_out(rewards, valid=valid))


@pytest.mark.parametrize("size", [4, 5, 8, 16, 32, 64])
def test_lone_outlier_has_its_closed_form(size):
    rewards = np.zeros((1, size), np.float32)
    rewards[0, size // 2] = 1
    advantages = kernels.group_relative(rewards, eps=0)
    np.testing.assert_allclose(advantages[0, size // 2], (size - 1) / np.sqrt(size), rtol=1e-6)


def test_identities():
    rewards = rewards_of()
    centered = rewards - rewards.mean(1, keepdims=True)
    np.testing.assert_allclose(kernels.group_relative(rewards, scale="none"), centered, atol=1e-6)
    np.testing.assert_allclose(kernels.leave_one_out(rewards), 4 / 3 * centered, atol=1e-6)
    np.testing.assert_allclose(
        kernels.group_relative(rewards, eps=0), centered / rewards.std(1, ddof=1, keepdims=True), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(kernels.group_relative(-3 * rewards + 7, eps=0), -kernels.group_relative(rewards, eps=0),
                               rtol=1e-5, atol=1e-6)


def test_small_differences_on_large_rewards_survive_float32():
    rewards = np.asarray([[1e6, 1e6, 1e6, 1e6 + 1]], np.float32)
    np.testing.assert_allclose(kernels.group_relative(rewards), [[-0.5, -0.5, -0.5, 1.5]], rtol=1e-5)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_unscored_responses_take_no_part(garbage):
    rewards = np.asarray([[garbage, 1, 0, 1], [1, 0, garbage, garbage], [garbage, garbage, 1, garbage]], np.float32)
    valid = np.asarray([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 0]])
    for kernel in (kernels.leave_one_out, kernels.group_relative):
        advantages = kernel(rewards, valid=valid)
        np.testing.assert_allclose(advantages[0, 1:], kernel(rewards[:1, 1:])[0], rtol=1e-6)
        np.testing.assert_allclose(advantages[1, :2], kernel(rewards[1:2, :2])[0], rtol=1e-6)
        assert not np.any(advantages[2]) and advantages[0, 0] == 0
        gradient = jax.grad(lambda r: jnp.sum(kernel(r, valid=valid) ** 2))(rewards)
        assert np.all(np.isfinite(gradient)) and not np.any(np.where(valid, 0, gradient))


def test_all_invalid_is_zero_with_zero_gradient():
    rewards, valid = np.full((2, 3), np.nan, np.float32), np.zeros((2, 3))
    for kernel in (kernels.leave_one_out, kernels.group_relative):
        value, gradient = jax.value_and_grad(lambda r: jnp.sum(kernel(r, valid=valid)))(rewards)
        assert value == 0 and not np.any(gradient)


@pytest.mark.parametrize("kernel", [kernels.group_relative, kernels.leave_one_out])
def test_nan_rewards_stay_visible_and_in_their_group(kernel):
    rewards = np.asarray([[1, 0, np.nan], [1, 0, 0]], np.float32)
    advantages = kernel(rewards)
    assert np.all(np.isnan(advantages[0])) and np.all(np.isfinite(advantages[1]))
    assert np.isnan(kernel(rewards[:1, 2:])[0, 0])


def test_order_within_and_of_groups_does_not_matter():
    rewards = rewards_of()
    rows, columns = np.random.default_rng(1).permutation(5), np.random.default_rng(2).permutation(4)
    for kernel in (kernels.group_relative, kernels.leave_one_out):
        np.testing.assert_allclose(kernel(rewards[rows][:, columns]), kernel(rewards)[rows][:, columns], atol=1e-6)


def test_dtypes(x64):
    assert kernels.group_relative(np.ones((1, 2), np.float64)).dtype == jnp.float64
    assert kernels.group_relative(np.ones((1, 2), np.int32)).dtype == jnp.float64
    assert kernels.leave_one_out(jnp.ones((1, 2), jnp.bfloat16)).dtype == jnp.float32


def gae_oracle(rewards, values, mask, gamma, lam):
    """arXiv 1506.02438 by definition, on the trained tokens alone: A_t = Σ_l (γλ)^l δ_{t+l}."""
    advantages = np.zeros_like(rewards)
    for row in range(len(rewards)):
        (trained,) = np.nonzero(mask[row])
        r, v = rewards[row, trained], np.append(values[row, trained], 0)
        delta = r + gamma * v[1:] - v[:-1]
        for i, t in enumerate(trained):
            advantages[row, t] = sum((gamma * lam) ** (j - i) * delta[j] for j in range(i, len(trained)))
    return advantages


def gae_inputs():
    rng = np.random.default_rng(3)
    mask = (rng.random((6, 9)) < 0.7).astype(np.float32)
    mask[4] = 0
    return rng.normal(size=(6, 9)).astype(np.float32), rng.normal(size=(6, 9)).astype(np.float32), mask


@pytest.mark.parametrize("gamma, lam", [(1, 0.95), (0.9, 0.5), (0.99, 0), (0.97, 1)])
def test_gae_with_holes_is_the_definition_on_the_trained_tokens(gamma, lam):
    rewards, values, mask = gae_inputs()
    advantages, returns = kernels.gae(rewards, values, mask, gamma=gamma, lam=lam)
    expected = gae_oracle(rewards, values, mask, gamma, lam)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)
    np.testing.assert_allclose(returns, np.where(mask, expected + values, 0), atol=1e-5)


def test_gae_by_hand():
    def advantages(rewards, values, mask, gamma):
        row = [np.asarray([x], np.float32) for x in (rewards, values, mask)]
        return kernels.gae(*row, gamma=gamma, lam=0.95)[0][0]

    np.testing.assert_allclose(advantages((0, 0, 0, 1), (0.5, 9, 0.6, 0.7), (1, 0, 1, 1), 1), (0.46575, 0, 0.385, 0.3),
                               atol=1e-6)
    np.testing.assert_allclose(advantages((0, 0, 1), (0.5, 0.6, 0.7), (1, 1, 1), 0.99), (0.44682858, 0.37515, 0.3),
                               atol=1e-6)


def test_gae_lambda_one_is_return_minus_value_and_zero_is_one_step():
    rewards, values, _ = gae_inputs()
    mask = np.ones_like(rewards)
    future = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    advantages, returns = kernels.gae(rewards, values, mask, gamma=1, lam=1)
    np.testing.assert_allclose(advantages, future - values, atol=1e-5)
    np.testing.assert_allclose(returns, future, atol=1e-5)
    following = np.append(values[:, 1:], np.zeros((6, 1), np.float32), axis=1)
    one_step, _ = kernels.gae(rewards, values, mask, gamma=1, lam=0)
    np.testing.assert_allclose(one_step, rewards + following - values, atol=1e-6)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_gae_ignores_what_is_masked_and_how_wide_the_pad_is(garbage):
    rewards, values, mask = gae_inputs()

    def loss(rewards, values, mask):
        advantages, returns = kernels.gae(rewards, values, mask, gamma=0.9, lam=0.8)
        return jnp.sum(advantages**2 + returns), (advantages, returns)

    dirty = [np.where(mask, x, garbage).astype(np.float32) for x in (rewards, values)]
    widened = [np.pad(x, ((0, 0), (0, 3)), constant_values=garbage) for x in dirty] + [np.pad(mask, ((0, 0), (0, 3)))]
    clean = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(rewards, values, mask)
    for arrays in ((*dirty, mask), widened):
        other = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(*arrays)
        for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(other)):
            np.testing.assert_array_equal(np.asarray(a), b[..., :9] if b.ndim else b)
    assert not np.any(np.where(mask, 0, clean[1][0])) and not np.any(clean[0][1][0][4])


def test_whiten_by_hand_and_its_moments():
    np.testing.assert_allclose(kernels.whiten(np.asarray([1.0, 3, 100]), np.asarray([1, 1, 0])), [-1, 1, 0], atol=1e-6)
    assert not np.any(kernels.whiten(np.asarray([1.0, 3, 100]), np.asarray([1, 0, 0])))
    assert not np.any(kernels.whiten(np.full(7, 0.9, np.float32), np.ones(7), eps=0))
    values = np.random.default_rng(0).normal(1e4, 1, size=(8, 16)).astype(np.float32)
    mask = np.random.default_rng(1).random((8, 16)) < 0.5
    whitened = np.asarray(kernels.whiten(values, mask))[mask]
    np.testing.assert_allclose([whitened.mean(), whitened.std()], [0, 1], atol=1e-5)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_whiten_ignores_what_is_masked(garbage):
    values, mask = np.asarray([1.0, 2, 4, garbage], np.float32), np.asarray([1, 1, 1, 0])
    whitened = kernels.whiten(values, mask)
    np.testing.assert_array_equal(whitened[:3], kernels.whiten(values[:3], mask[:3]))
    assert whitened[3] == 0
    gradient = jax.grad(lambda x: jnp.sum(kernels.whiten(x, mask) ** 3))(values)
    assert np.all(np.isfinite(gradient)) and gradient[3] == 0
    gradient = jax.grad(lambda x: jnp.sum(kernels.whiten(x, np.zeros(4))))(values)
    assert not np.any(gradient)


def test_nan_is_not_whitened_away():
    assert np.all(np.isnan(kernels.whiten(np.asarray([1.0, np.nan]), np.ones(2))))


B, T = np.ones((3, 3)), np.ones((3, 4))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: kernels.group_relative(np.ones(4)), r"expected rewards of shape \[P, G\], got \[4\]"),
        (lambda: kernels.group_relative(B, valid=np.ones(3)), r"expected valid of shape \[3, 3\], got \[3\]"),
        (lambda: kernels.group_relative(B, scale="mad"), "expected scale to be one of std, none, got 'mad'"),
        (lambda: kernels.group_relative(B, ddof=2), "expected ddof to be 0 or 1, got 2"),
        (lambda: kernels.group_relative(B, eps=-1.0), r"expected eps in \[0, inf\), got -1.0"),
        (lambda: kernels.leave_one_out(np.ones((1, 2, 3))), r"expected rewards of shape \[P, G\]"),
        (lambda: kernels.gae(B, T, B, gamma=1, lam=1), r"expected values of shape \[3, 3\], got \[3, 4\]"),
        (lambda: kernels.gae(B, B, np.ones(3), gamma=1, lam=1), r"expected mask of shape \[3, 3\], got \[3\]"),
        (lambda: kernels.gae(B, B, B, gamma=1.1, lam=1), r"expected gamma in \[0, 1\], got 1.1"),
        (lambda: kernels.gae(B, B, B, gamma=1, lam=np.nan), r"expected lam in \[0, 1\], got nan"),
        (lambda: kernels.whiten(B, T), r"expected mask of shape \[3, 3\], got \[3, 4\]"),
        (lambda: kernels.whiten(B, B, ddof=3), "expected ddof to be 0 or 1, got 3"),
    ],
)
def test_bad_input_raises(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_jit_and_vmap():
    rewards, values, mask = gae_inputs()
    stacked = [np.stack([x, x[::-1]]) for x in (rewards, values, mask)]

    def kernel(*arrays):
        return kernels.gae(*arrays, gamma=0.9, lam=0.8), kernels.group_relative(arrays[0]), kernels.whiten(*arrays[1:])

    over_batches = jax.jit(jax.vmap(kernel))(*stacked)
    for a, b in zip(jax.tree.leaves(over_batches), jax.tree.leaves(kernel(rewards, values, mask))):
        np.testing.assert_allclose(a[0], b, atol=1e-6)
