"""The weighted sum: nothing but the batch decides loss, gradient and metrics."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlzero import algorithms, kernels
from rlzero.algorithms import Algorithm

P, G, T = 4, 4, 10
OPTIONAL = ("ref_logprobs", "rollout_logprobs", "entropy")
EVERYTHING = Algorithm(
    "everything", clip_high=0.28, dual_clip=3.0, kl_placement="loss", kl_estimator="k3_unbiased", kl_coef=0.1,
    entropy_coef=0.01, importance_cap=2.0,
)
# Many small programs are compiled here and each runs once, so XLA is told in `_evaluate` not to optimize them.
ALGORITHMS = [*algorithms.PRESETS.values(), EVERYTHING, Algorithm("gspo", surrogate="gspo", clip_low=0.05),
              Algorithm("cispo", surrogate="cispo", importance_cap=2.0, importance_level="sequence")]
by_name = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)


@functools.cache
def batch():
    """Rows of different lengths with a hole, an empty row and an empty group."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, T + 1, P * G)
    lengths[[1, 8, 9, 10, 11]] = 0
    mask = (np.arange(T) < lengths[:, None]) & ~((lengths[:, None] > 4) & (np.arange(T) == 2))
    logprobs = -3 * rng.random((P * G, T)).astype(np.float32)
    arrays = {"logprobs": logprobs, "mask": mask}
    for name in ("old_logprobs", "ref_logprobs", "rollout_logprobs"):
        arrays[name] = logprobs + rng.normal(0, 0.3, logprobs.shape).astype(np.float32)
    arrays["entropy"] = 2 * rng.random((P * G, T)).astype(np.float32)
    advantages = np.asarray(kernels.group_relative(rng.integers(0, 2, (P, G)) * 1.0)).reshape(-1, 1)
    arrays["advantages"] = np.repeat(advantages, T, axis=1)
    return arrays


def weights_of(mask, algorithm):
    return np.asarray(kernels.response_weights(
        np.sum(mask, axis=1).reshape(P, G), normalization=algorithm.normalization, max_completion_length=T
    )).reshape(-1)


def evaluate(arrays, weights, algorithm):
    """(loss, metrics), gradients in logprobs and entropy; compiled once for algorithms with one loss."""
    elsewhere = ("advantage", "normalization", "gae_lambda", "whiten_advantages", "dynamic_sampling")
    if algorithm.kl_placement == "reward":
        elsewhere += ("kl_placement", "kl_estimator", "kl_coef")
    default = Algorithm(name="")
    unread = {field: getattr(default, field) for field in ("name", "advantage_scale", "overlong_fraction", *elsewhere)}
    return _evaluate(arrays, weights, dataclasses.replace(algorithm, **unread))


@functools.partial(jax.jit, static_argnames="algorithm", compiler_options={"xla_backend_optimization_level": 0})
def _evaluate(arrays, weights, algorithm):
    def loss(logprobs, entropy):
        return kernels.policy_loss(**(arrays | {"logprobs": logprobs, "entropy": entropy}), weights=weights,
                                   algorithm=algorithm)

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(arrays["logprobs"], arrays["entropy"])


def rows_of(arrays, rows):
    return {name: array[rows] for name, array in arrays.items()}


def assert_same(a, b, rtol=1e-5, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


@by_name
def test_micro_batches_of_any_size_add_up(algorithm):
    arrays = batch()
    weights = weights_of(arrays["mask"], algorithm)
    whole, gradients = evaluate(arrays, weights, algorithm)
    for size in (1, 8):
        parts = [slice(i, i + size) for i in range(0, P * G, size)]
        results = [evaluate(rows_of(arrays, part), weights[part], algorithm) for part in parts]
        assert_same(whole, functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), [value for value, _ in results]))
        assert_same(gradients, jax.tree.map(lambda *x: np.concatenate(x), *[gradient for _, gradient in results]))


@by_name
def test_padding_and_order_of_rows_do_not_matter(algorithm):
    arrays = batch()
    weights = weights_of(arrays["mask"], algorithm)
    value, gradients = evaluate(arrays, weights, algorithm)
    order = np.random.default_rng(1).permutation(P * G)
    moved, moved_gradients = evaluate(rows_of(arrays, order), weights[order], algorithm)
    assert_same(value, moved)
    assert_same(jax.tree.map(lambda x: x[order], gradients), moved_gradients)
    wide = {name: np.pad(array, ((0, 0), (0, 6))) for name, array in arrays.items()}
    padded, padded_gradients = evaluate(wide, weights_of(wide["mask"], algorithm), algorithm)
    assert_same(value, padded)
    assert_same(gradients, jax.tree.map(lambda x: x[:, :T], padded_gradients))


@by_name
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_what_is_masked_has_no_effect(algorithm, garbage):
    arrays = batch()
    mask, weights = arrays["mask"], weights_of(arrays["mask"], algorithm)
    dirty = {name: np.where(mask, array, garbage).astype(np.float32) for name, array in arrays.items()}
    dirty["mask"] = mask
    dirty_weights = np.where(mask.any(axis=1), weights, garbage).astype(np.float32)
    clean = evaluate(arrays, weights, algorithm)
    jax.tree.map(np.testing.assert_array_equal, clean, evaluate(dirty, dirty_weights, algorithm))
    assert not np.any(np.where(mask, 0, clean[1][0]))


@by_name
def test_nothing_trained_is_zero_with_zero_gradients(algorithm):
    arrays = {name: np.full_like(array, np.nan) for name, array in batch().items() if name != "mask"}
    (loss, metrics), gradients = evaluate(arrays | {"mask": np.zeros((P * G, T), bool)}, np.zeros(P * G), algorithm)
    assert loss == 0 and not np.any(gradients[0]) and not np.any(gradients[1])
    assert all(total == 0 and count == 0 for total, count in metrics.values())


def test_the_sum_by_hand():
    """One response of weight 0.5 and two tokens, every term switched on."""
    rows = {"logprobs": -1.0, "old_logprobs": -1.1, "ref_logprobs": -1.2, "rollout_logprobs": -2.1, "entropy": 0.7}
    arrays = {name: np.full((1, 2), value, np.float32) for name, value in rows.items()}
    arrays |= {"mask": np.ones((1, 2)), "advantages": np.full((1, 1), 2.0, np.float32)}
    (loss, metrics), _ = evaluate(arrays, np.full(1, 0.5, np.float32), EVERYTHING)
    ratio, k3 = np.exp(0.1), np.exp(-0.2) + 0.2 - 1
    per_token = -2.0 * ratio * 2.0 + 0.1 * ratio * k3 - 0.01 * 0.7  # the importance weight e is cut to 2
    np.testing.assert_allclose(loss, 0.5 * 2 * per_token, rtol=1e-5)
    means = {name: float(total / count) for name, (total, count) in metrics.items()}
    expected = {
        "policy/logprob_mean": -1.0, "policy/ratio_mean": ratio, "policy/entropy": 0.7, "policy/kl_ref": k3,
        "policy/kl_old": ratio - 1.1, "policy/clip_fraction_low": 0, "policy/clip_fraction_high": 0,
        "policy/dual_clip_fraction": 0, "mismatch/mean_abs_logprob": 1, "mismatch/k3": np.e - 2,
        "mismatch/outside_fraction": 1, "mismatch/importance_mean": 2,
    }
    assert means.keys() == expected.keys()
    np.testing.assert_allclose([means[name] for name in expected], list(expected.values()), rtol=1e-4, atol=1e-6)


def test_clip_fractions_count_active_branches():
    arrays = {"logprobs": np.log([[1.5, 0.5, 1.5, 0.5, 5.0]]), "old_logprobs": np.zeros((1, 5)),
              "advantages": np.asarray([[1, 1, -1, -1, -1]]), "mask": np.ones((1, 5)), "entropy": np.zeros((1, 5))}
    (_, metrics), _ = evaluate(arrays, np.ones(1), Algorithm(clip_high=0.28, dual_clip=3.0))
    for name in ("clip_fraction_low", "clip_fraction_high", "dual_clip_fraction"):
        np.testing.assert_array_equal(np.asarray(metrics[f"policy/{name}"]), [1, 5])


def test_on_policy_without_old_logprobs():
    """The same loss and gradient as with a copy of the log-probs."""
    arrays = batch()
    for algorithm in ALGORITHMS[-3:]:
        weights = weights_of(arrays["mask"], algorithm)
        copied = evaluate(dict(arrays, old_logprobs=arrays["logprobs"]), weights, algorithm)
        assert_same(copied, evaluate(dict(arrays, old_logprobs=None), weights, algorithm))


def test_a_rejected_token_leaves_numerator_and_denominator():
    """Losses 1, 2, 3 and a masked 94: the mean is 6/3, not 6/8 or 100/4."""
    losses, mask = np.asarray([[1, 2, 3, 94]], np.float32), np.asarray([[1, 1, 1, 0]])
    weights = kernels.response_weights(mask.sum(1)[None], normalization="token_mean")[0]
    loss, _ = kernels.policy_loss(losses, losses, -losses, mask, weights, algorithm=Algorithm())
    np.testing.assert_allclose(loss, 2, rtol=1e-6)


def test_mean_of_means_is_not_what_comes_out():
    """Four tokens of loss 1 and one of loss 5 in micro-batches of one row: 9/5, not 3."""
    losses = np.asarray([[1, 1, 1, 1], [5, 0, 0, 0]], np.float32)
    mask = np.asarray([[1, 1, 1, 1], [1, 0, 0, 0]])
    weights = kernels.response_weights(mask.sum(1)[None], normalization="token_mean")[0]
    parts = [kernels.policy_loss(losses[i:i + 1], losses[i:i + 1], -losses[i:i + 1], mask[i:i + 1], weights[i:i + 1],
                                 algorithm=Algorithm())[0] for i in range(2)]
    np.testing.assert_allclose(sum(parts), 1.8, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_computed_in_float32(dtype):
    arrays = {name: jnp.asarray(array, dtype) for name, array in batch().items()}
    (loss, metrics), _ = evaluate(arrays, jnp.asarray(np.ones(P * G), dtype), EVERYTHING)
    assert loss.dtype == jnp.float32 and all(total.dtype == jnp.float32 for total, _ in metrics.values())


def test_float64_stays_float64(x64):
    arrays = {name: array.astype(np.float64) for name, array in batch().items()}
    (loss, metrics), gradients = evaluate(arrays, np.ones(P * G), EVERYTHING)
    assert {x.dtype for x in jax.tree.leaves((loss, metrics, gradients))} == {np.dtype("float64")}


S = np.ones((3, 3), np.float32)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"weights": np.ones((3, 1))}, r"expected weights of shape \[3\], got \[3, 1\]"),
        ({"advantages": np.ones(3)}, r"expected advantages of shape \[3, 3\], got \[3\]"),
        ({"mask": np.ones(3)}, r"expected mask of shape \[3, 3\], got \[3\]"),
        ({"entropy": np.ones((3, 4))}, r"expected entropy of shape \[3, 3\], got \[3, 4\]"),
        ({"logprobs": np.ones(3)}, r"expected logprobs of shape \[B, T\], got \[3\]"),
        ({"ref_logprobs": None}, "expected ref_logprobs because algorithm 'everything' has a kl in the loss, got None"),
        ({"rollout_logprobs": None}, "expected rollout_logprobs because .* has importance_cap, got None"),
        ({"entropy": None}, "expected entropy because .* has entropy_coef > 0, got None"),
    ],
)
def test_bad_input_raises(changes, message):
    arrays = {"logprobs": S, "old_logprobs": S, "advantages": S, "mask": S, "weights": np.ones(3)}
    arrays |= dict.fromkeys(OPTIONAL, S)
    with pytest.raises(ValueError, match=message):
        kernels.policy_loss(**(arrays | changes), algorithm=EVERYTHING)


def test_equal_sides_are_no_accident():
    """B = T and the same rows one column wider give the same loss."""
    arrays = rows_of(batch(), slice(0, T))
    wide = {name: np.pad(array, ((0, 0), (0, 1))) for name, array in arrays.items()}
    weights = np.arange(1, T + 1, dtype=np.float32)
    assert_same(evaluate(arrays, weights, EVERYTHING)[0], evaluate(wide, weights, EVERYTHING)[0])


def test_vmap_over_batches():
    arrays = batch()
    stacked = {name: np.stack([array, array[::-1]]) for name, array in arrays.items()}
    weights = weights_of(arrays["mask"], EVERYTHING)
    losses = jax.vmap(lambda arrays, weights: evaluate(arrays, weights, EVERYTHING)[0][0])(
        stacked, np.stack([weights, weights[::-1]])
    )
    np.testing.assert_allclose(losses, np.repeat(evaluate(arrays, weights, EVERYTHING)[0][0], 2), rtol=1e-5)
