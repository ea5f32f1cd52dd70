"""One device, eight devices and shard_map give one loss, gradient and set of metrics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rlzero import kernels
from rlzero.algorithms import Algorithm
from rlzero.kernels import sharded

ALGORITHM = Algorithm(
    "everything", clip_high=0.28, kl_placement="loss", kl_coef=0.1, entropy_coef=0.05, importance_cap=2.0
)
MESHES = [(1, 1), (2, 1), (8, 1), (4, 2)]
on_meshes = pytest.mark.parametrize("shape", MESHES, ids=str)


def mesh_of(shape):
    return jax.make_mesh(shape, ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)


@functools.cache
def batch(rows=16, width=6, depth=5, vocabulary=9):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, width + 1, rows)
    lengths[:2] = 0  # the first of eight devices has nothing to train
    mask = np.arange(width) < lengths[:, None]
    arrays = {"mask": mask, "advantages": rng.normal(size=(rows, width)), "entropy": rng.random((rows, width))}
    for name in ("logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs"):
        arrays[name] = -3 * rng.random((rows, width))
    arrays["weights"] = rng.random(rows)
    arrays = {name: array if array.dtype == bool else array.astype(np.float32) for name, array in arrays.items()}
    by_response = ("weights", "logprobs", "entropy")
    tokens = {name: array.reshape(-1) for name, array in arrays.items() if name not in by_response}
    tokens |= {"weights": np.repeat(arrays["weights"], width), "targets": rng.integers(0, vocabulary, rows * width),
               "hidden": rng.normal(size=(rows * width, depth)).astype(np.float32)}
    return arrays, tokens, rng.normal(size=(depth, vocabulary)).astype(np.float32)


def assert_same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-5), a, b)


def gradient_of_policy_loss(loss):
    arrays, _, _ = batch()
    return jax.jit(jax.value_and_grad(
        lambda logprobs, entropy: loss(**(arrays | {"logprobs": logprobs, "entropy": entropy}), algorithm=ALGORITHM),
        argnums=(0, 1), has_aux=True))(arrays["logprobs"], arrays["entropy"])


def gradient_of_fused_loss(loss, chunk):
    _, tokens, unembedding = batch()
    return jax.jit(jax.value_and_grad(
        lambda hidden, unembedding: loss(**(tokens | {"hidden": hidden, "unembedding": unembedding}),
                                         algorithm=ALGORITHM, chunk=chunk),
        argnums=(0, 1), has_aux=True))(tokens["hidden"], unembedding)


@functools.cache
def on_one_device(kind):
    if kind == "policy_loss":
        return gradient_of_policy_loss(kernels.policy_loss)
    return gradient_of_fused_loss(kernels.fused_policy_loss, None)


@on_meshes
def test_policy_loss(shape):
    loss = functools.partial(sharded.policy_loss, mesh=mesh_of(shape), axes=("data",))
    assert_same(on_one_device("policy_loss"), gradient_of_policy_loss(loss))


@pytest.mark.parametrize(
    "shape, axes, chunk",
    [((1, 1), ("data",), 5), ((8, 1), ("data",), None), ((4, 2), ("data",), 5), ((4, 2), ("data", "tensor"), 5)],
)
def test_fused_policy_loss(shape, axes, chunk):
    loss = functools.partial(sharded.fused_policy_loss, mesh=mesh_of(shape), axes=axes)
    assert_same(on_one_device("fused_policy_loss"), gradient_of_fused_loss(loss, chunk))


def test_kernels_inside_a_users_own_shard_map(chunk=4):
    """The gradient taken inside the body: the replicated head's comes out summed, once."""
    _, tokens, unembedding = batch()
    mesh = mesh_of((4, 2))

    def body(tokens, unembedding):
        def loss(unembedding):
            logprobs, entropy = kernels.token_logprobs(tokens["hidden"], unembedding, tokens["targets"], chunk=chunk)
            fused, _ = kernels.fused_policy_loss(**tokens, unembedding=unembedding, algorithm=ALGORITHM, chunk=chunk)
            return jax.lax.psum(fused + jnp.sum(jnp.where(tokens["mask"], logprobs + entropy, 0)), "data")

        return jax.value_and_grad(loss)(unembedding)

    specs = PartitionSpec("data"), PartitionSpec()
    over_mesh = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec()))
    single = jax.jit(jax.shard_map(body, mesh=mesh_of((1, 1)), in_specs=specs, out_specs=PartitionSpec()))
    assert_same(single(tokens, unembedding), over_mesh(tokens, unembedding))


@on_meshes
def test_whiten_and_token_logprobs(shape):
    arrays, tokens, unembedding = batch()
    options = {"mesh": mesh_of(shape), "axes": ("data",)}
    whitened = jax.jit(functools.partial(sharded.whiten, ddof=1, **options))(arrays["advantages"], arrays["mask"])
    assert_same(kernels.whiten(arrays["advantages"], arrays["mask"], ddof=1), whitened)
    scores = jax.jit(functools.partial(sharded.token_logprobs, chunk=5, **options))
    assert_same(kernels.token_logprobs(tokens["hidden"], unembedding, tokens["targets"]),
                scores(tokens["hidden"], unembedding, tokens["targets"]))


@pytest.mark.parametrize("normalization", ["sequence_mean", "token_mean", "group_token_mean", "constant"])
def test_response_weights(normalization):
    lengths = batch()[0]["mask"].sum(1).reshape(8, 2)
    options = {"normalization": normalization, "max_completion_length": 6}
    on_mesh = functools.partial(sharded.response_weights, mesh=mesh_of((4, 2)), axes=("data",), **options)
    assert_same(kernels.response_weights(lengths, **options), jax.jit(on_mesh)(lengths))


def test_mean_of_device_means_is_not_what_comes_out():
    """Two devices, six tokens with losses summing to 12 and one token of loss 8: 20/7, not (2 + 8)/2."""
    losses = np.asarray([[2] * 6, [8] + [0] * 5], np.float32)
    mask = np.asarray([[1] * 6, [1] + [0] * 5])
    mesh = mesh_of((2, 4))
    weights_on_mesh = functools.partial(sharded.response_weights, normalization="token_mean", mesh=mesh, axes=("data",))
    weights = jax.jit(weights_on_mesh)(mask.sum(1)[:, None])
    loss_on_mesh = functools.partial(sharded.policy_loss, algorithm=Algorithm(), mesh=mesh, axes=("data",))
    loss, _ = jax.jit(loss_on_mesh)(losses, losses, -losses, mask, weights[:, 0])
    np.testing.assert_allclose(loss, 20 / 7, rtol=1e-6)


def test_row_kernels_inside_shard_map():
    """Scan carries and masks have to agree on what varies."""
    arrays, _, _ = batch()

    def body(rewards, values, mask):
        terms = kernels.clipped_surrogate(rewards, values, rewards, mask, clip_low=0.2, clip_high=0.2)
        return (kernels.gae(rewards, values, mask, gamma=0.9, lam=0.8), kernels.group_relative(rewards, valid=mask),
                kernels.kl(rewards, values, mask, estimator="k3"), terms.objective)

    rows = arrays["advantages"], arrays["logprobs"], arrays["mask"]
    spec = PartitionSpec("data")
    over_mesh = jax.jit(jax.shard_map(body, mesh=mesh_of((8, 1)), in_specs=spec, out_specs=spec))
    assert_same(jax.jit(body)(*rows), over_mesh(*rows))


def test_sharded_vocabulary_under_jit():
    """The head split over a mesh axis by jit alone, as in tensor parallelism: same numbers, no logits gathered."""
    _, tokens, unembedding = batch(vocabulary=16)
    mesh = mesh_of((2, 4))
    head = jax.device_put(unembedding, NamedSharding(mesh, PartitionSpec(None, "tensor")))

    def loss(unembedding):
        return kernels.fused_policy_loss(**tokens, unembedding=unembedding, algorithm=ALGORITHM, chunk=32)[0]

    split = jax.jit(jax.value_and_grad(loss)).lower(head).compile()
    assert "all-gather" not in split.as_text()
    assert_same(jax.jit(jax.value_and_grad(loss))(unembedding), split(head))


def test_rows_that_do_not_divide_are_refused():
    arrays, _, _ = batch()
    with pytest.raises(ValueError, match=r"expected a multiple of 8 rows, .* got shape \[3, 6\]; fill up with rows"):
        sharded.whiten(arrays["advantages"][:3], arrays["mask"][:3], mesh=mesh_of((8, 1)), axes=("data",))
    with pytest.raises(ValueError, match=r"expected axes among \('data', 'tensor'\), got \('fsdp',\)"):
        sharded.whiten(arrays["advantages"], arrays["mask"], mesh=mesh_of((8, 1)), axes=("fsdp",))
