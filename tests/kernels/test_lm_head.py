"""Log-probs from hidden states, and the fused loss: equal to the plain way, without its memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlzero import kernels
from rlzero.algorithms import Algorithm, get

N, D, V = 13, 6, 11
TEMPERATURE = 0.7
EVERYTHING = Algorithm(
    "everything", clip_high=0.28, dual_clip=3.0, kl_placement="loss", kl_estimator="k3_unbiased", kl_coef=0.1,
    entropy_coef=0.05, importance_cap=2.0,
)
ALGORITHMS = [(EVERYTHING, "float64"), (EVERYTHING, "float32"), (get("dapo"), "float64"),
              (Algorithm("cispo", surrogate="cispo"), "float64")]


@functools.cache
def tokens():
    rng = np.random.default_rng(0)
    hidden, unembedding = rng.normal(size=(N, D)), rng.normal(size=(D, V))
    targets, mask = rng.integers(0, V, N), rng.random(N) < 0.7
    logits = hidden @ unembedding / TEMPERATURE
    logprobs = (logits - np.log(np.exp(logits).sum(1, keepdims=True)))[np.arange(N), targets]
    known = {name: logprobs + rng.normal(0, 0.3, N) for name in ("old_logprobs", "ref_logprobs", "rollout_logprobs")}
    return {"hidden": hidden, "unembedding": unembedding, "targets": targets, "mask": mask,
            "advantages": rng.normal(size=N), "weights": rng.random(N), **known}


def cast(arrays, dtype):
    return {name: array if array.dtype.kind in "bi" else array.astype(dtype) for name, array in arrays.items()}


@functools.partial(jax.jit, static_argnames=("algorithm", "chunk"))
def fused(arrays, algorithm, chunk=None):
    def loss(hidden, unembedding):
        return kernels.fused_policy_loss(**(arrays | {"hidden": hidden, "unembedding": unembedding}),
                                         algorithm=algorithm, temperature=TEMPERATURE, chunk=chunk)

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(arrays["hidden"], arrays["unembedding"])


def in_two_steps(arrays, algorithm, logprobs_and_entropy):
    column = {name: array[:, None] for name, array in arrays.items() if name not in (
        "hidden", "unembedding", "targets", "weights")}

    def loss(hidden, unembedding):
        logprobs, entropy = logprobs_and_entropy(hidden, unembedding, arrays["targets"])
        return kernels.policy_loss(logprobs[:, None], entropy=entropy[:, None], weights=arrays["weights"],
                                   algorithm=algorithm, **column)

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(arrays["hidden"], arrays["unembedding"])


def by_softmax(hidden, unembedding, targets):
    """The textbook, differentiated by JAX."""
    log_p = jax.nn.log_softmax(hidden @ unembedding / TEMPERATURE)
    return log_p[jnp.arange(len(targets)), targets], -jnp.sum(jnp.exp(log_p) * log_p, axis=1)


def by_kernel(chunk):
    return functools.partial(kernels.token_logprobs, temperature=TEMPERATURE, chunk=chunk)


@pytest.mark.parametrize("algorithm, dtype", ALGORITHMS, ids=lambda value: getattr(value, "name", value))
def test_fused_equals_two_steps_equals_softmax(algorithm, dtype):
    with jax.enable_x64(dtype == "float64"):
        arrays, rtol = cast(tokens(), dtype), {"float64": 1e-10, "float32": 1e-5}[dtype]
        plain = jax.jit(functools.partial(in_two_steps, algorithm=algorithm, logprobs_and_entropy=by_softmax))(arrays)
        stepwise = jax.jit(functools.partial(in_two_steps, algorithm=algorithm, logprobs_and_entropy=by_kernel(4)))
        for other in (stepwise(arrays), fused(arrays, algorithm), fused(arrays, algorithm, 4)):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * 10), plain, other)
            assert {leaf.dtype for leaf in jax.tree.leaves(other)} == {np.dtype(dtype)}


@pytest.mark.parametrize("chunk", [1, 4, 12, 64])
def test_chunks_with_and_without_a_tail(chunk):
    arrays = cast(tokens(), "float32")
    whole, split = fused(arrays, EVERYTHING), fused(arrays, EVERYTHING, chunk)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5), whole, split)
    a = kernels.token_logprobs(arrays["hidden"], arrays["unembedding"], arrays["targets"])
    b = kernels.token_logprobs(arrays["hidden"], arrays["unembedding"], arrays["targets"], chunk=chunk)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-6), a, b)


def test_a_vocabulary_of_several_blocks_of_columns():
    """On a CPU the head's gradient is added to block by block, the last one ragged."""
    rng = np.random.default_rng(2)
    arrays = cast(tokens(), "float32")
    arrays |= {"unembedding": rng.normal(size=(D, 9000)).astype(np.float32), "targets": rng.integers(0, 9000, N)}
    plain = jax.jit(functools.partial(in_two_steps, algorithm=EVERYTHING, logprobs_and_entropy=by_softmax))(arrays)
    blocks = fused(arrays, EVERYTHING, 4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-4), plain, blocks)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e9])
def test_what_is_masked_has_no_effect(garbage):
    arrays = cast(tokens(), "float32")
    mask = arrays["mask"]
    dirty = {name: np.where(mask, array, garbage).astype(np.float32) for name, array in arrays.items()
             if array.shape == (N,) and array.dtype.kind == "f"}
    dirty["hidden"] = np.where(mask[:, None], arrays["hidden"], garbage).astype(np.float32)
    dirty["targets"] = np.where(mask, arrays["targets"], -100)
    for chunk in (None, 4):
        clean, other = fused(arrays, EVERYTHING, chunk), fused(arrays | dirty, EVERYTHING, chunk)
        jax.tree.map(np.testing.assert_array_equal, clean, other)
        assert not np.any(np.where(mask[:, None], 0, clean[1][0]))
    clean = in_two_steps(arrays, EVERYTHING, by_kernel(4))
    other = in_two_steps(arrays | dirty, EVERYTHING, by_kernel(4))
    jax.tree.map(np.testing.assert_array_equal, clean, other)


def test_without_a_mask_the_weights_tell():
    arrays = cast(tokens(), "float32")
    unmasked = {name: array for name, array in arrays.items() if name != "mask"}
    unmasked["weights"] = np.where(arrays["mask"], arrays["weights"], 0)
    jax.tree.map(np.testing.assert_array_equal, fused(arrays, EVERYTHING), fused(unmasked, EVERYTHING))


def test_nothing_trained_is_zero_with_zero_gradients():
    arrays = {name: np.full_like(array, np.nan) for name, array in cast(tokens(), "float32").items()
              if array.dtype.kind == "f"}
    arrays |= {"unembedding": cast(tokens(), "float32")["unembedding"], "targets": tokens()["targets"]}
    (loss, metrics), gradients = fused(arrays | {"mask": np.zeros(N, bool)}, EVERYTHING, 4)
    assert loss == 0 and not np.any(gradients[0]) and not np.any(gradients[1])
    assert all(total == 0 and count == 0 for total, count in metrics.values())


def test_the_gradient_is_scaled_by_its_cotangent():
    arrays = cast(tokens(), "float32")

    def scaled(unembedding):
        return -3 * kernels.fused_policy_loss(**(arrays | {"unembedding": unembedding}), algorithm=EVERYTHING,
                                              temperature=TEMPERATURE)[0]

    gradient = jax.jit(jax.grad(scaled))(arrays["unembedding"])
    np.testing.assert_allclose(gradient, -3 * fused(arrays, EVERYTHING)[1][1], rtol=1e-5, atol=1e-5)


def test_vmap_over_batches():
    arrays = cast(tokens(), "float32")
    head = arrays.pop("unembedding")

    def loss(arrays, head):
        return kernels.fused_policy_loss(**arrays, unembedding=head, algorithm=get("dapo"), chunk=5)[0]

    stacked = {name: np.stack([array, array[::-1]]) for name, array in arrays.items()}
    gradients = jax.jit(jax.vmap(jax.grad(loss, argnums=1), in_axes=(0, None)))(stacked, head)
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-5)


def test_logprobs_are_never_positive_and_extreme_logits_finite():
    rng = np.random.default_rng(1)
    hidden = (rng.normal(size=(64, 4)) * np.logspace(-3, 4, 64)[:, None]).astype(np.float32)
    unembedding = rng.normal(size=(4, 50)).astype(np.float32)
    targets = np.argmax(hidden @ unembedding, axis=1)
    logprobs, entropy = kernels.token_logprobs(hidden, unembedding, targets)
    assert np.all(logprobs <= 0) and np.all(np.isfinite(logprobs)) and np.all(np.isfinite(entropy))
    gradients = jax.grad(lambda h: jnp.sum(jnp.stack(kernels.token_logprobs(h, unembedding, targets))))(hidden)
    assert np.all(np.isfinite(gradients))


def test_targets_out_of_range_are_nan():
    hidden, unembedding = np.ones((3, 2), np.float32), np.ones((2, 4), np.float32)
    logprobs, _ = kernels.token_logprobs(hidden, unembedding, np.asarray([-1, 4, 0]))
    np.testing.assert_array_equal(np.isnan(logprobs), [True, True, False])


def test_bfloat16_inputs_accumulate_in_float32():
    arrays = {name: jnp.asarray(array, jnp.bfloat16) if name in ("hidden", "unembedding") else array
              for name, array in cast(tokens(), "float32").items()}
    logprobs, entropy = kernels.token_logprobs(arrays["hidden"], arrays["unembedding"], arrays["targets"])
    assert logprobs.dtype == entropy.dtype == jnp.float32
    (loss, _), gradients = fused(arrays, EVERYTHING, 4)
    assert loss.dtype == jnp.float32 and {gradient.dtype for gradient in gradients} == {jnp.dtype("bfloat16")}
    exact = fused(jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == jnp.bfloat16 else x, arrays), EVERYTHING, 4)
    np.testing.assert_allclose(loss, exact[0][0], rtol=1e-5)
    np.testing.assert_allclose(np.float32(gradients[1]), exact[1][1], atol=0.02 * np.abs(exact[1][1]).max())


@pytest.mark.parametrize("chunk", [128, None])
@pytest.mark.parametrize("kind", ["fused", "two steps"])
def test_no_array_of_tokens_by_vocabulary(kind, chunk):
    tokens, width, vocabulary = 1024, 64, 150_000

    def loss(hidden, unembedding, targets, old):
        if kind == "fused":
            return kernels.fused_policy_loss(hidden, unembedding, targets, old, old, old, algorithm=get("dapo"),
                                             chunk=chunk)[0]
        return jnp.sum(jnp.stack(kernels.token_logprobs(hidden, unembedding, targets, chunk=chunk)))

    shapes = [((tokens, width), "float32"), ((width, vocabulary), "float32"), ((tokens,), "int32"),
              ((tokens,), "float32")]
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*(jax.ShapeDtypeStruct(*s) for s in shapes)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < (0.8 if chunk is None else 0.4) * tokens * vocabulary * 4


def test_a_value_alone_needs_no_gradient_arrays():
    width, vocabulary = 512, 4096
    shapes = [((256, width), "float32"), ((width, vocabulary), "float32"), ((256,), "int32"), ((256,), "float32")]
    compiled = jax.jit(
        lambda hidden, unembedding, targets, old: kernels.fused_policy_loss(
            hidden, unembedding, targets, old, old, old, algorithm=get("dapo"), chunk=16)
    ).lower(*(jax.ShapeDtypeStruct(*s) for s in shapes)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < width * vocabulary * 4


H, W, I, F = np.ones((3, 2)), np.ones((2, 4)), np.ones(3, int), np.ones(3)


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((H, np.ones((3, 4)), I), {}, r"expected unembedding of shape \[2, 4\], got \[3, 4\]"),
        ((F, W, I), {}, r"expected hidden of shape \[N, D\], got \[3\]"),
        ((H, W, np.ones(4, int)), {}, r"expected targets of shape \[3\], got \[4\]"),
        ((H, W, F), {}, "expected targets to be integers, got float"),
        ((H, W, I), {"temperature": 0.0}, r"expected temperature in \(0, inf\), got 0.0"),
        ((H, W, I), {"chunk": 0}, "expected chunk to be a positive int or None, got 0"),
    ],
)
def test_bad_input_raises(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        kernels.token_logprobs(*arguments, **options)
    with pytest.raises(ValueError, match=message):
        kernels.fused_policy_loss(*arguments, F, F, F, algorithm=get("dapo"), **options)


@pytest.mark.parametrize(
    "algorithm, message",
    [
        (Algorithm(surrogate="gspo"), "use policy_loss on the result of token_logprobs"),
        (Algorithm(importance_cap=2.0, importance_level="sequence"), "multiply the advantages by truncated_importance"),
        (Algorithm(importance_cap=2.0), "expected rollout_logprobs because"),
    ],
)
def test_what_cannot_be_fused_is_refused(algorithm, message):
    rollout = {"rollout_logprobs": F} if algorithm.importance_level == "sequence" else {}
    with pytest.raises(ValueError, match=message):
        kernels.fused_policy_loss(H, W, I, F, F, F, algorithm=algorithm, **rollout)


def test_rows_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match=r"expected advantages of shape \[3\], got \[3, 1\]"):
        kernels.fused_policy_loss(H, W, I, F, np.ones((3, 1)), F, algorithm=get("dapo"))
