"""Implementations of attention: each equals the plain one in value and gradient, or says why it cannot run here."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlzero.models import sharding, transformer
from rlzero.models.attention import Places, attention, choose
from rlzero.models.attention_mesh import on_each_device
from rlzero.models.blockwise import blockwise_attention
from rlzero.models.cudnn import cudnn_attention, row_lengths
from rlzero.models.splash import padded_width, splash_attention

# Two packed responses and padding; one right-padded response; a left-padded one; a row of padding.
LENGTHS = [(0, (17, 20), 6), (0, (30,), 13), (11, (32,), 0), (0, (), 43)]


@functools.cache
def inputs(heads=6, kv_heads=2, head_dim=8, dtype="float32"):
    rng = np.random.default_rng(0)
    segments = np.stack([np.concatenate([[0] * left, *([i + 1] * n for i, n in enumerate(parts)), [0] * right])
                         for left, parts, right in LENGTHS]).astype(np.int32)
    positions = np.stack([np.concatenate([np.arange(left), *map(np.arange, parts), np.arange(right)])
                          for left, parts, right in LENGTHS]).astype(np.int32)
    B, S = segments.shape
    arrays = [rng.normal(size=(B, S, h, head_dim)).astype(np.float32) for h in (heads, kv_heads, kv_heads, heads)]
    query, key, value, seen = (jnp.asarray(array, dtype) for array in arrays)
    seen = jnp.where((segments != 0)[:, :, None, None], seen, 0)  # what padding holds is looked at by nobody
    return query, key, value, Places(jnp.asarray(positions), jnp.asarray(segments)), seen


def results(function, arrays, *, query=None, key=None, value=None):
    """Output where tokens are real, and the gradients of a random projection of it, float32."""
    *qkv, places, seen = arrays
    qkv = [given if given is not None else array for given, array in zip((query, key, value), qkv)]

    def projected(*qkv):
        out = function(*qkv, places)
        return jnp.sum(out.astype(jnp.float32) * seen.astype(jnp.float32)), out

    (_, out), gradients = jax.jit(jax.value_and_grad(projected, argnums=(0, 1, 2), has_aux=True))(*qkv)
    real = (places.segments != 0)[:, :, None, None]
    return jax.tree.map(np.float32, (jnp.where(real, out, 0), *gradients))


def plain(query, key, value, places):
    return attention(query, key, value, places, implementation="xla")


def by_softmax(query, key, value):
    """One causal sequence `[S, heads, head_dim]`, in NumPy and float64."""
    key, value = (np.repeat(array.astype(np.float64), query.shape[1] // key.shape[1], axis=1) for array in (key, value))
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(query.shape[2])
    weights = np.exp(np.where(np.tri(len(query), dtype=bool), scores, -np.inf))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(axis=2, keepdims=True), value)


def in_blocks(block):
    return lambda query, key, value, places: blockwise_attention(query, key, value, *places, block=block)


def splash(query, key, value, places):
    return splash_attention(query, key, value, places.segments, interpret=True)


def assert_close(got, want, atol):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol * max(1, np.abs(b).max()))


@pytest.mark.parametrize("heads, kv_heads", [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("block", [8, 10, 43, 512])
def test_blocks_equal_the_whole(block, heads, kv_heads):
    arrays = inputs(heads, kv_heads)
    assert_close(results(in_blocks(block), arrays), results(plain, arrays), 1e-6)


def test_blocks_equal_the_whole_in_bfloat16():
    arrays = inputs(dtype="bfloat16")
    exact = results(plain, inputs())
    whole, blocks = results(plain, arrays), results(in_blocks(16), arrays)
    assert_close(blocks, whole, 0.03)  # 8 bits of mantissa, some sums deep
    for a, b, c in zip(blocks, whole, exact):  # and no worse than the plain one
        assert np.abs(a - c).max() < 1.5 * np.abs(b - c).max() + 1e-3


@pytest.mark.parametrize("head_dim, dtype, atol", [(8, "float32", 1e-5), (128, "bfloat16", 0.05)])
def test_the_tpu_kernel_equals_the_whole(head_dim, dtype, atol):
    arrays = inputs(head_dim=head_dim, dtype=dtype)
    assert_close(results(splash, arrays), results(plain, arrays), atol)


@pytest.mark.parametrize("function", [plain, in_blocks(16), splash], ids=["xla", "blockwise", "splash"])
def test_what_padding_holds_changes_nothing(function):
    arrays = inputs()
    padding = (arrays[3].segments == 0)[:, :, None, None]
    garbage = {name: jnp.where(padding, 1e4 * (i + 1), array)
               for i, (name, array) in enumerate(zip(("query", "key", "value"), arrays))}
    for a, b in zip(results(function, arrays, **garbage), results(function, arrays), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("function", [plain, in_blocks(8), splash], ids=["xla", "blockwise", "splash"])
def test_a_row_gives_what_its_responses_give_alone(function):
    query, key, value, places, _ = inputs()
    out = jax.jit(function)(query, key, value, places)
    for row, start, end in [(0, 0, 17), (0, 17, 37), (1, 0, 30), (2, 11, 43)]:
        alone = [np.asarray(array[row:row + 1, start:end]) for array in (query, key, value)]
        expected = by_softmax(*(array[0] for array in alone))
        np.testing.assert_allclose(out[row, start:end], expected, atol=2e-6)


@pytest.mark.parametrize("shape, heads, kv_heads", [
    ((2, 2, 2), 4, 2),  # rows over data and fsdp, heads over tensor
    ((1, 2, 4), 8, 2),  # more devices than key-value heads
    ((8, 1, 1), 3, 1),  # neither divides: all on every device
], ids=str)
def test_on_a_mesh_every_device_takes_its_rows_and_heads(shape, heads, kv_heads):
    arrays = inputs(heads, kv_heads)
    kernel = functools.partial(splash_attention, interpret=True)
    with jax.set_mesh(sharding.make_mesh(*shape)):
        got = results(lambda q, k, v, places: on_each_device(kernel, q, k, v, places.segments), arrays)
    assert_close(got, results(plain, arrays), 1e-5)


def test_splash_rows_are_padded_to_whole_blocks():
    assert [padded_width(row) for row in (1, 128, 129, 512, 513, 20_480)] == [
        (128, 128), (128, 128), (256, 256), (512, 512), (1024, 512), (20_480, 512)]


def test_a_row_of_several_segments_is_told_from_a_right_padded_one():
    segments = jnp.array([[1, 1, 1, 0], [2, 2, 2, 2], [1, 1, 2, 0], [0, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]])
    lengths, one_sequence = row_lengths(segments)
    np.testing.assert_array_equal(lengths[:2], [3, 4])
    np.testing.assert_array_equal(one_sequence, [True, True, False, False, False, True])


def test_the_kernels_are_in_the_programs_for_their_devices(monkeypatch):
    """Lowered, not run: this needs no device."""
    from jax._src.cudnn import fused_attention_stablehlo
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 90_800)
    shapes = [jax.ShapeDtypeStruct((2, 256, heads, 64), jnp.bfloat16) for heads in (4, 2, 2)]
    for kernel, device, call in ((splash_attention, "tpu", "tpu_custom_call"), (cudnn_attention, "cuda", "cudnn$fmha")):
        gradient = jax.grad(lambda q, k, v, segments: jnp.sum(kernel(q, k, v, segments).astype(jnp.float32)), (0, 1, 2))
        traced = jax.jit(gradient).trace(*shapes, jax.ShapeDtypeStruct((2, 256), jnp.int32))
        assert traced.lower(lowering_platforms=(device,)).as_text().count(call) >= 2, call


@pytest.mark.parametrize("options, expected", [
    ({"platform": "tpu", "row_tokens": 4096}, "splash"),
    ({"platform": "gpu", "row_tokens": 4096}, "blockwise"),
    ({"platform": "cpu", "row_tokens": 4096}, "blockwise"),
    ({"platform": "tpu", "row_tokens": 512}, "xla"),
    ({"platform": "tpu", "row_tokens": 4096, "cached": True}, "xla"),
])
def test_auto(options, expected):
    assert choose("auto", dtype=jnp.bfloat16, **options) == expected


@pytest.mark.parametrize("implementation, options, message", [
    ("flash", {}, "unknown attention implementation 'flash'; expected one of"),
    ("splash", {}, "'splash' runs on a TPU and this is a CPU; choose 'blockwise'"),
    ("cudnn", {"platform": "tpu"}, "'cudnn' runs on a GPU and this is a TPU; choose 'blockwise'"),
    ("cudnn", {"platform": "gpu", "packed": True}, "knows no segments and rows are packed; choose 'blockwise', or one"),
    ("cudnn", {"platform": "gpu", "dtype": "float32"}, "in bfloat16 or float16, got float32; compute in bfloat16, or"),
    ("cudnn", {"platform": "gpu", "head_dim": 20}, "a multiple of 8 up to 256, got 20"),
    ("blockwise", {"cached": True}, "cannot read a cache; decode with 'xla' or 'auto'"),
])
def test_what_is_not_possible_says_what_is(implementation, options, message):
    with pytest.raises(ValueError, match=message):
        choose(implementation, **({"platform": "cpu", "dtype": "bfloat16", "row_tokens": 64} | options))


CONFIG = transformer.ModelConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_layers=2, num_heads=2,
                                 num_kv_heads=1, head_dim=8)


def test_decoding_reads_its_cache_the_plain_way():
    params = transformer.init_params(jax.random.key(0), CONFIG)
    tokens, ones = jnp.arange(12).reshape(1, 12), jnp.ones((1, 12), jnp.int32)

    @functools.partial(jax.jit, static_argnames="implementation")
    def forward(tokens, positions, segments, cache, implementation):
        return transformer.forward(params, CONFIG, tokens, positions, segments, cache=cache,
                                   attention_implementation=implementation)

    whole, _ = forward(tokens, tokens, ones, None, "blockwise")
    cache, pieces = transformer.init_cache(CONFIG, 1, 16), []
    for piece in (slice(0, 6), slice(6, 12)):
        hidden, cache = forward(tokens[:, piece], tokens[:, piece], ones[:, piece], cache, "auto")
        pieces.append(hidden)
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), whole, atol=1e-5)
    with pytest.raises(ValueError, match="cannot read a cache"):
        forward(tokens, tokens, ones, cache, "blockwise")


def test_a_row_of_20480_tokens_trains_without_all_its_scores():
    """By the compiled programs' own account; nothing is run."""
    tokens = jax.ShapeDtypeStruct((1, 20_480), jnp.int32)
    params = transformer.abstract_params(CONFIG)
    scores = CONFIG.num_heads * 20_480**2 * 4

    def temporaries(implementation):
        def loss(params, tokens, positions, segments):
            hidden, _ = transformer.forward(params, CONFIG, tokens, positions, segments, remat=True,
                                            attention_implementation=implementation)
            return jnp.sum(hidden)

        compiled = jax.jit(jax.grad(loss)).lower(params, tokens, tokens, tokens).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries("xla") > scores
    assert temporaries("auto") < scores / 50
