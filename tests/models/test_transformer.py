"""The decoder: what a token may see, how it is written into a cache, and its numbers against NumPy loops."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import LLAMA, make_params

from rlzero.models import transformer
from rlzero.models.transformer import RopeScaling

VARIANTS = {
    "llama": LLAMA,
    "untied": dataclasses.replace(LLAMA, tie_embeddings=False),
    "qwen2": dataclasses.replace(LLAMA, qkv_bias=True),
    "qwen3": dataclasses.replace(LLAMA, qk_norm=True, head_dim=6, rope_theta=1e6),
}

forward = jax.jit(transformer.forward, static_argnames=("config", "dtype", "remat"))


def plain(lengths, width, seed=1):
    """Right-padded random rows: tokens, positions, segments."""
    tokens = np.random.default_rng(seed).integers(0, 24, (len(lengths), width))
    real = np.arange(width) < np.asarray(lengths)[:, None]
    positions = np.broadcast_to(np.arange(width), tokens.shape)
    return np.where(real, tokens, 0), np.where(real, positions, 0), real.astype(np.int32)


def hidden_of(params, config, tokens):
    """Hidden states of one row alone."""
    return np.asarray(forward(params, config, *plain_row(tokens))[0][0])


def plain_row(tokens):
    tokens = np.asarray(tokens)[None]
    return tokens, np.arange(tokens.shape[1])[None], np.ones_like(tokens)


# A decoder of loops in float64, written from the papers' formulas.


def oracle(params, config, tokens, positions, frequencies):
    """Hidden states [S, D] after the final norm of one sequence, token by token and head by head."""
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    group, states = config.num_heads // config.num_kv_heads, [params["embedding"][token] for token in tokens]
    for index in range(config.num_layers):
        weights = {name: value[index] for name, value in params["layers"].items()}
        keys, values, attended = [], [], []
        for state, position in zip(states, positions):
            normed = oracle_norm(state, weights["attention_norm"], config.norm_eps)
            heads = {name: oracle_heads(normed, weights, name, config) for name in ("query", "key", "value")}
            keys.append([oracle_rotate(head, position, frequencies) for head in heads["key"]])
            values.append(heads["value"])
            mixed = []
            for h, query in enumerate(heads["query"]):
                query = oracle_rotate(query, position, frequencies)
                scores = np.array([query @ key[h // group] for key in keys]) / math.sqrt(config.head_dim)
                shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
                mixed.append(sum(share * value[h // group] for share, value in zip(shares, values)))
            attended.append(np.concatenate(mixed) @ weights["output"])
        for s, update in enumerate(attended):
            state = states[s] + update
            normed = oracle_norm(state, weights["mlp_norm"], config.norm_eps)
            gate = normed @ weights["gate"]
            states[s] = state + (gate / (1 + np.exp(-gate)) * (normed @ weights["up"])) @ weights["down"]
    return np.array([oracle_norm(state, params["final_norm"], config.norm_eps) for state in states])


def oracle_norm(x, scale, eps):
    return x / math.sqrt((x * x).mean() + eps) * scale


def oracle_heads(x, weights, name, config):
    out = x @ weights[name] + weights.get(f"{name}_bias", 0)
    heads = np.split(out, len(out) // config.head_dim)
    scale = weights.get(f"{name}_norm")
    return heads if scale is None else [oracle_norm(head, scale, config.norm_eps) for head in heads]


def oracle_rotate(head, position, frequencies):
    """Pairs (i, i + head_dim/2) turned by position·frequency, as complex numbers."""
    half = len(head) // 2
    turned = (head[:half] + 1j * head[half:]) * np.exp(1j * position * np.asarray(frequencies))
    return np.concatenate([turned.real, turned.imag])


@pytest.mark.parametrize("name", VARIANTS)
def test_forward_equals_the_decoder_of_loops(name):
    config = VARIANTS[name]
    params, tokens = make_params(config), np.random.default_rng(3).integers(0, 24, 9)
    frequencies = [config.rope_theta ** (-2 * i / config.head_dim) for i in range(config.head_dim // 2)]
    want = oracle(params, config, tokens, range(9), frequencies)
    got = hidden_of(params, config, tokens)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)  # float32 against float64 through two layers
    head = params["embedding"].T if config.tie_embeddings else params["lm_head"]
    np.testing.assert_array_equal(transformer.unembedding(params), head)


def test_llama3_rope_scaling_has_the_frequencies_computed_by_hand():
    """Frequencies 1, 0.1, 0.01, 0.001 have wavelengths 6.28, 62.8, 628, 6283; kept under 256, divided by 8 over 1024.

    Between, the share kept is (1024/628.3185 - 1) / (4 - 1) = 0.2099155; that gives 0.2099155·0.01 + 0.7900845·0.00125.
    """
    config = dataclasses.replace(LLAMA, num_heads=2, num_kv_heads=1, head_dim=8, rope_theta=10_000.0,
                                 rope_scaling=RopeScaling(8.0, 1.0, 4.0, 1024))
    params, tokens, positions = make_params(config), np.array([3, 9, 1, 20]), np.array([0, 90, 300, 700])
    got = forward(params, config, tokens[None], positions[None], np.ones((1, 4), int))[0][0]
    want = oracle(params, config, tokens, positions, [1.0, 0.1, 0.003086761, 0.000125])
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)  # float32 angles of up to 700 radians
    unscaled = oracle(params, config, tokens, positions, [1.0, 0.1, 0.01, 0.001])
    assert np.abs(want - unscaled).max() > 0.05


# What a token may see.


def sensitivity(params, tokens, positions, segments):
    """[S, S] booleans: does the state at s depend on the token at r? All tokens of the row differ."""
    direction = jax.random.normal(jax.random.key(5), (LLAMA.hidden_size,))

    @jax.jit
    def jacobian(embedding):
        def states(embedding):
            return transformer.forward(params | {"embedding": embedding}, LLAMA, tokens, positions, segments)[0][0]

        return jax.jacrev(lambda embedding: states(embedding) @ direction)(embedding)

    return np.abs(np.asarray(jacobian(params["embedding"]))).max(axis=-1)[:, np.asarray(tokens[0])] > 0


def test_gradients_show_that_a_state_depends_on_its_past_and_on_nothing_else():
    tokens = np.random.default_rng(0).permutation(24)[None, :8]
    got = sensitivity(make_params(LLAMA), tokens, np.arange(8)[None], np.ones((1, 8), int))
    np.testing.assert_array_equal(got, np.tril(np.ones((8, 8), bool)))


def test_gradients_show_that_segments_and_padding_are_not_seen():
    tokens, segments = np.random.default_rng(0).permutation(24)[None, :9], np.array([0, 1, 1, 1, 2, 2, 2, 0, 0])
    got = sensitivity(make_params(LLAMA), tokens, np.array([[0, 0, 1, 2, 0, 1, 2, 0, 0]]), segments[None])
    same = (segments[:, None] == segments) & np.tril(np.ones((9, 9), bool))
    np.testing.assert_array_equal(got[segments > 0], same[segments > 0])


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_row_is_the_same_alone_in_a_batch_and_padded_on_either_side(name):
    config = VARIANTS[name]
    params, row = make_params(config), np.array([5, 1, 17, 8, 2])
    alone = hidden_of(params, config, row)
    tokens, positions, segments = plain([12, 12, 12, 12], 12)
    for index, start in enumerate((0, 7, 3)):
        span = slice(start, start + 5)
        tokens[index], positions[index], segments[index] = 23, 0, 0
        tokens[index, span], positions[index, span], segments[index, span] = row, np.arange(5), 1
    states = forward(params, config, tokens, positions, segments)[0]
    for index, start in enumerate((0, 7, 3)):
        np.testing.assert_allclose(states[index, start:start + 5], alone, atol=1e-5)  # float32, other GEMM shapes


def test_packed_sequences_are_the_same_as_separate_rows():
    params, lengths = make_params(LLAMA), (3, 4, 1)
    rows, positions, segments = plain(lengths, 10)
    packed = np.concatenate([*(row[:length] for row, length in zip(rows, lengths)), [11, 12]])
    starts = np.repeat([0, 3, 7, 8], [3, 4, 1, 2])
    tokens = np.stack([packed, *rows])
    positions = np.stack([np.arange(10) - starts, *positions])
    segments = np.stack([np.repeat([1, 2, 3, 0], [3, 4, 1, 2]), *segments])
    together, *apart = forward(params, LLAMA, tokens, positions, segments)[0]
    for number, (states, length) in enumerate(zip(apart, lengths), 1):
        np.testing.assert_allclose(together[segments[0] == number], states[:length], atol=1e-5)


@pytest.mark.parametrize("one_hot_vocabulary", [512, 0])
def test_what_stands_in_segment_0_changes_neither_states_nor_gradients(monkeypatch, one_hot_vocabulary):
    monkeypatch.setattr(transformer, "_ONE_HOT_VOCABULARY", one_hot_vocabulary)
    params = make_params(LLAMA)
    tokens, positions, segments = plain([6, 4], 8)
    positions[1, 4:] = 60

    @jax.jit
    def loss(params, tokens):
        states = transformer.forward(params, LLAMA, tokens, positions, segments)[0]
        return jnp.sum(jnp.where(segments[:, :, None] > 0, jnp.sin(states), 0))

    clean = jax.value_and_grad(loss)(params, tokens)
    for garbage in (-1, 23, 24, 2**31 - 1):
        dirty = jax.value_and_grad(loss)(params, np.where(segments > 0, tokens, garbage))
        jax.tree.map(np.testing.assert_array_equal, dirty, clean)


# The cache.


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_decoding_with_a_cache_equals_the_whole_sequence_at_once(name):
    """Rows of 3, 8 and 5 prompt tokens, padded on the left; then calls of two, one and one tokens."""
    config, prompts, total = VARIANTS[name], (3, 8, 5), 12
    lengths = [prompt + 4 for prompt in prompts]
    params, right = make_params(config), plain(lengths, total)
    # The same rows with their padding on the left, and something else in it.
    left = [np.stack([np.roll(row, total - length) for row, length in zip(array, lengths)]) for array in right]
    left[0] = np.where(left[2] > 0, left[0], 23)

    cache, pieces = transformer.init_cache(config, 3, total + 3), []
    for start, stop in ((0, 8), (8, 10), (10, 11), (11, 12)):
        states, cache = forward(params, config, *(array[:, start:stop] for array in left), cache=cache)
        pieces.append(states)
    assert int(cache.length) == total
    got, want = np.concatenate(pieces, axis=1), forward(params, config, *right)[0]
    for i, length in enumerate(lengths):
        np.testing.assert_allclose(got[i, total - length:], want[i, :length], atol=1e-5)  # float32, other GEMM shapes


def test_free_slots_of_a_cache_do_not_matter():
    params, (tokens, positions, segments) = make_params(LLAMA), plain([4, 4], 4)
    caches = [transformer.init_cache(LLAMA, 2, slots) for slots in (4, 9)]
    small, large = (forward(params, LLAMA, tokens, positions, segments, cache=cache)[0] for cache in caches)
    np.testing.assert_allclose(small, large, atol=1e-6)


# Parameters and variants.


@pytest.mark.parametrize("name", VARIANTS)
def test_initial_parameters_are_those_declared(name):
    config = VARIANTS[name]
    abstract = transformer.abstract_params(config, jnp.bfloat16)
    assert jax.eval_shape(lambda key: transformer.init_params(key, config, jnp.bfloat16), jax.random.key(0)) == abstract
    assert ("lm_head" in abstract) == (not config.tie_embeddings)
    assert ("query_bias" in abstract["layers"]) == config.qkv_bias
    assert ("query_norm" in abstract["layers"]) == config.qk_norm
    specs = transformer.parameter_specs(config)
    for spec in (*specs["layers"].values(), specs["embedding"], specs["final_norm"]):
        assert len(spec.axes) == len(spec.shape)


def test_initial_values_are_those_declared():
    layers = jax.jit(transformer.init_params, static_argnames="config")(jax.random.key(0), VARIANTS["qwen2"])["layers"]
    assert np.all(layers["mlp_norm"] == 1) and not np.any(layers["query_bias"])
    np.testing.assert_allclose(layers["gate"].std(), 16**-0.5, rtol=0.1)  # 768 draws
    np.testing.assert_allclose(layers["down"].std(), (2 * 2 * 24) ** -0.5, rtol=0.1)
    assert not np.array_equal(layers["gate"][0], layers["gate"][1])
    assert not np.array_equal(layers["gate"], layers["up"])


def test_grouped_queries_equal_many_heads_with_repeated_keys_and_values():
    params, (tokens, positions, segments) = make_params(LLAMA), plain([7, 5], 7)
    many = dataclasses.replace(LLAMA, num_kv_heads=4)

    def repeated(matrix):
        heads = matrix.reshape(2, 16, 2, 1, 4)
        return jnp.broadcast_to(heads, (2, 16, 2, 2, 4)).reshape(2, 16, 16)

    layers = params["layers"] | {name: repeated(params["layers"][name]) for name in ("key", "value")}
    got = forward(params | {"layers": layers}, many, tokens, positions, segments)[0]
    want = forward(params, LLAMA, tokens, positions, segments)[0]
    np.testing.assert_allclose(got[segments > 0], want[segments > 0], atol=1e-5)


def test_one_hot_and_gathered_embeddings_agree_in_value_and_gradient(monkeypatch):
    embedding, tokens = make_params(LLAMA)["embedding"], np.array([3, 3, 23, 0])

    def value_and_gradient():
        return jax.value_and_grad(lambda e: jnp.sum(jnp.sin(transformer._embed(e, tokens, jnp.float32))))(embedding)

    def lookup():
        return str(jax.make_jaxpr(lambda e: transformer._embed(e, tokens, jnp.float32))(embedding))

    one_hot = value_and_gradient()
    assert "gather" not in lookup()
    monkeypatch.setattr(transformer, "_ONE_HOT_VOCABULARY", 23)
    assert "gather" in lookup()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), value_and_gradient(), one_hot)


def test_bfloat16_weights_and_activations_stay_near_float32():
    params, (tokens, positions, segments) = make_params(LLAMA), plain([7], 7)
    low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    states = forward(low, LLAMA, tokens, positions, segments, dtype=jnp.bfloat16)[0]
    assert states.dtype == jnp.bfloat16
    want = forward(params, LLAMA, tokens, positions, segments)[0]
    np.testing.assert_allclose(np.asarray(states, np.float32), want, atol=0.15)  # eight bits through two layers


def test_rematerialization_changes_memory_and_not_the_gradient():
    config = dataclasses.replace(LLAMA, num_layers=6)
    params, batch = make_params(config), plain([32, 30], 32)

    def compiled(remat):
        def loss(params):
            return jnp.sum(jnp.sin(transformer.forward(params, config, *batch, remat=remat)[0]))

        return jax.jit(jax.grad(loss)).lower(params).compile()

    kept, recomputed = compiled(False), compiled(True)
    for a, b in zip(jax.tree.leaves(kept(params)), jax.tree.leaves(recomputed(params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)  # sums of 62 tokens in another order
    memory = [program.memory_analysis().temp_size_in_bytes for program in (kept, recomputed)]
    assert memory[1] < 0.5 * memory[0]


@pytest.mark.parametrize("change, message", [({"num_kv_heads": 3}, "num_kv_heads to divide num_heads, got 3 and 4"),
                                             ({"head_dim": 5}, "even head_dim .* got 5")])
def test_impossible_shapes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LLAMA, **change)
