"""One decoder for the Llama, Qwen2/2.5 and Qwen3 families: a pure pytree of stacked layers and one `forward`.

`parameter_specs` is the single declaration of every parameter (shape, logical axes, initializer); the abstract tree,
the random initialization and, on a mesh, the shardings all follow from it. `forward` serves training (no cache, whole
sequences) and decoding (a key-value cache, a few tokens) with the same lines. Matrix products run on 2-D `[B·S, D]`
operands, which XLA compiles to a plain GEMM forward and backward.

Not here: reading and writing model directories (`huggingface.py`), the critic (`value_head.py`), log-probabilities
(`rlzero.kernels.token_logprobs`).
"""

import dataclasses
from collections.abc import Mapping

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rlzero.models.attention import Places, attention
from rlzero.models.sharding import BATCH_AXES, RULES, constrain, gathered, lookup

_ONE_HOT_VOCABULARY = 512  # up to here a lookup as a matrix product beats a gather, whose backward is a serial scatter


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's rescaling: long wavelengths are stretched by `factor`, short ones left, the rest blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder. Hashable, so that it can be a static argument of a jitted function."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    tie_embeddings: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    # Ids from here on belong to no token and are never sampled: their logits count as -inf. None samples all.
    sampled_vocab_size: int | None = None

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"expected num_kv_heads to divide num_heads, got {self.num_kv_heads} and {self.num_heads}")
        if self.head_dim % 2:
            raise ValueError(f"expected an even head_dim for rotary embeddings, got {self.head_dim}")


@dataclasses.dataclass(frozen=True)
class ParameterSpec:
    """Declaration of one parameter: shape, a logical name for each axis, and its initializer's standard deviation."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    stddev: float | None  # None: filled with `fill`
    fill: float = 0.0


def parameter_specs(config: ModelConfig) -> dict:
    """The tree of `ParameterSpec`: every parameter of the model, declared once."""
    D, F, L, V = config.hidden_size, config.intermediate_size, config.num_layers, config.vocab_size
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def matrix(fan_in, fan_out, in_axis, out_axis, scale=1.0):
        return ParameterSpec((L, fan_in, fan_out), ("layers", in_axis, out_axis), scale * fan_in**-0.5)

    def vector(width, axis, fill):
        return ParameterSpec((L, width), ("layers", axis), None, fill)

    residual_scale = (2 * L) ** -0.5
    layers = {
        "attention_norm": vector(D, "embed", 1.0),
        "query": matrix(D, q_width, "embed", "heads"),
        "key": matrix(D, kv_width, "embed", "kv_heads"),
        "value": matrix(D, kv_width, "embed", "kv_heads"),
        "output": matrix(q_width, D, "heads", "embed", residual_scale),
        "mlp_norm": vector(D, "embed", 1.0),
        "gate": matrix(D, F, "embed", "mlp"),
        "up": matrix(D, F, "embed", "mlp"),
        "down": matrix(F, D, "mlp", "embed", residual_scale),
    }
    if config.qkv_bias:
        layers |= {"query_bias": vector(q_width, "heads", 0.0), "key_bias": vector(kv_width, "kv_heads", 0.0),
                   "value_bias": vector(kv_width, "kv_heads", 0.0)}
    if config.qk_norm:
        layers |= {"query_norm": vector(config.head_dim, None, 1.0), "key_norm": vector(config.head_dim, None, 1.0)}
    specs = {
        "embedding": ParameterSpec((V, D), ("vocab", "embed"), 0.02),
        "layers": layers,
        "final_norm": ParameterSpec((D,), ("embed",), None, 1.0),
    }
    if not config.tie_embeddings:
        specs["lm_head"] = ParameterSpec((D, V), ("embed", "vocab"), D**-0.5)
    return specs


def init_params(key: jax.Array, config: ModelConfig, dtype=jnp.float32) -> dict:
    """Random parameters: truncated normals with the specs' standard deviations, ones for norms, zeros for biases."""
    specs, treedef = jax.tree.flatten(parameter_specs(config), is_leaf=lambda leaf: isinstance(leaf, ParameterSpec))

    def init(key, spec):
        if spec.stddev is None:
            return jnp.full(spec.shape, spec.fill, dtype)
        return (spec.stddev * jax.random.truncated_normal(key, -3.0, 3.0, spec.shape)).astype(dtype)

    return treedef.unflatten([init(k, spec) for k, spec in zip(jax.random.split(key, len(specs)), specs)])


def abstract_params(config: ModelConfig, dtype=jnp.float32) -> dict:
    """The parameters' shapes and dtypes without their values, for restoring and ahead-of-time compilation."""
    return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, dtype), parameter_specs(config),
                        is_leaf=lambda leaf: isinstance(leaf, ParameterSpec))


@flax.struct.dataclass
class Cache:
    """Keys and values of the tokens seen so far; slot j of every row was written by the same call.

    Rows of unequal length are padded on the left, so that all rows write at `length`; `positions` and `segments` tell
    attention which slots are real. `C` is the number of slots.
    """

    key: jax.Array  # [L, B, K, C, head_dim]
    value: jax.Array  # [L, B, K, C, head_dim]
    positions: jax.Array  # [B, C] int32
    segments: jax.Array  # [B, C] int32, 0 = empty
    length: jax.Array  # scalar int32, slots in use


def init_cache(config: ModelConfig, batch: int, capacity: int, dtype=jnp.float32) -> Cache:
    """An empty cache of `capacity` slots for `batch` rows."""
    shape = (config.num_layers, batch, config.num_kv_heads, capacity, config.head_dim)
    keys, values = (constrain(jnp.zeros(shape, dtype), None, BATCH_AXES, RULES["kv_heads"]) for _ in range(2))
    slots = constrain(jnp.zeros((batch, capacity), jnp.int32), BATCH_AXES)
    return Cache(keys, values, slots, slots, jnp.zeros((), jnp.int32))


def grown_cache(cache: Cache, capacity: int) -> Cache:
    """A copy of the cache with `capacity` slots, the new ones empty."""

    def grow(array, axis):
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, capacity - array.shape[axis])
        return jnp.pad(array, widths)

    return cache.replace(key=grow(cache.key, 3), value=grow(cache.value, 3), positions=grow(cache.positions, 1),
                         segments=grow(cache.segments, 1))


def forward(params: Mapping, config: ModelConfig, tokens: jax.Array, positions: jax.Array, segments: jax.Array, *,
            cache: Cache | None = None, dtype=jnp.float32, remat: bool = False,
            attention_implementation: str = "xla") -> tuple[jax.Array, Cache | None]:
    """Runs the decoder over `tokens` and returns the hidden state that predicts each next token.

    Args:
      params: tree of `parameter_specs(config)`, any float dtype.
      config: the model's shape.
      tokens: `[B, S]` int32 token ids; whatever stands in segment 0 is ignored.
      positions: `[B, S]` int32 position of each token in its own sequence, from 0.
      segments: `[B, S]` int32: 0 for padding, equal numbers for tokens of one sequence.
      cache: keys and values of earlier tokens of the same rows; these tokens are appended at `cache.length`.
      dtype: compute dtype of activations and matrix products; norms and softmax are float32.
      remat: recompute each layer in the backward pass instead of keeping its activations.
      attention_implementation: one of `attention.IMPLEMENTATIONS`.

    Returns:
      Hidden states `[B, S, D]` after the final norm, and the cache with these tokens appended (None without one).
    """
    B, S = tokens.shape
    cos, sin = _rotary_angles(config, positions)
    places, key_places = Places(positions, segments), None
    if cache is not None:
        key_places = Places(*(jax.lax.dynamic_update_slice(slots, new, (0, cache.length))
                              for slots, new in zip((cache.positions, cache.segments), places)))
        cache = cache.replace(positions=key_places.positions, segments=key_places.segments)

    axes = {name: spec.axes[1:] for name, spec in parameter_specs(config)["layers"].items()}

    def layer(carry, scanned):
        x_ND, keys_values = carry
        weights, index = scanned
        weights = {name: gathered(weights[name].astype(dtype), axes[name]) for name in axes}
        x_ND = constrain(x_ND, BATCH_AXES, None)
        normed_ND = _rms_norm(x_ND, weights["attention_norm"], config.norm_eps)
        query, key, value = _query_key_value(normed_ND, weights, config, B, S)
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        if cache is not None:
            keys_values, (key, value) = _append(keys_values, (key, value), index, cache.length)
        attended = attention(query, key.astype(dtype), value.astype(dtype), places, key_places,
                             implementation=attention_implementation)
        x_ND = x_ND + attended.reshape(B * S, -1) @ weights["output"]
        x_ND = x_ND + _swiglu(_rms_norm(x_ND, weights["mlp_norm"], config.norm_eps), weights)
        return (x_ND, keys_values), None

    x_ND = _embed(params["embedding"], tokens.reshape(-1), dtype)
    carry = (x_ND, None if cache is None else (cache.key, cache.value))
    (x_ND, keys_values), _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, carry,
                                          (params["layers"], jnp.arange(config.num_layers)))
    hidden_BSD = _rms_norm(x_ND, params["final_norm"], config.norm_eps).reshape(B, S, -1)
    if cache is not None:
        cache = cache.replace(key=keys_values[0], value=keys_values[1], length=cache.length + S)
    return hidden_BSD, cache


def unembedding(params: Mapping) -> jax.Array:
    """The `[D, V]` matrix that turns hidden states into logits: the head, or the transposed embedding when tied."""
    return params["lm_head"] if "lm_head" in params else params["embedding"].T


def sampling_head(params: Mapping, config: ModelConfig) -> jax.Array:
    """The columns of `unembedding` whose ids are sampled: the head of the distribution that a policy is."""
    return unembedding(params)[:, :config.sampled_vocab_size]


def _embed(embedding_VD, tokens_N, dtype):
    if embedding_VD.shape[0] <= _ONE_HOT_VOCABULARY:
        return (jax.nn.one_hot(tokens_N, embedding_VD.shape[0], dtype=embedding_VD.dtype) @ embedding_VD).astype(dtype)
    return lookup(embedding_VD, tokens_N, dtype)


def _rms_norm(x, scale, eps):
    x_f32 = x.astype(jnp.float32)
    inverse_rms = jax.lax.rsqrt(jnp.mean(x_f32 * x_f32, axis=-1, keepdims=True) + eps)
    return (x_f32 * inverse_rms * scale.astype(jnp.float32)).astype(x.dtype)


def _query_key_value(x_ND, weights, config, B, S):
    def project(name, heads):
        out = x_ND @ weights[name]
        if config.qkv_bias:
            out = out + weights[f"{name}_bias"]
        out = out.reshape(B, S, heads, config.head_dim)
        if config.qk_norm and name != "value":
            out = _rms_norm(out, weights[f"{name}_norm"], config.norm_eps)
        return out

    kv_heads = config.num_kv_heads
    return project("query", config.num_heads), project("key", kv_heads), project("value", kv_heads)


def _append(cached, new, layer, slot):
    """Writes this call's keys and values into their layer's slots; returns the whole buffers and the layer's slices.

    Heads lie outside slots, as the products of attention want them: reading a layer transposes nothing.
    """
    updates = (jnp.swapaxes(array, 1, 2)[None].astype(buffer.dtype) for array, buffer in zip(new, cached))
    cached = tuple(jax.lax.dynamic_update_slice(buffer, update, (layer, 0, 0, slot, 0))
                   for buffer, update in zip(cached, updates))
    layers = (jax.lax.dynamic_index_in_dim(buffer, layer, keepdims=False) for buffer in cached)
    return cached, tuple(jnp.swapaxes(array, 1, 2) for array in layers)


def _swiglu(x_ND, weights):
    gate_NF = jax.nn.silu(x_ND @ weights["gate"])
    return (gate_NF * (x_ND @ weights["up"])) @ weights["down"]


def _rotary_angles(config, positions_BS):
    """cos and sin `[B, S, 1, head_dim/2]` of the rotary embedding (Su et al., arXiv 2104.09864), in float32."""
    frequencies = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    if config.rope_scaling is not None:
        frequencies = _scaled_frequencies(frequencies, config.rope_scaling)
    angles = positions_BS[:, :, None, None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def _scaled_frequencies(frequencies, scaling):
    """Llama 3.1: keep wavelengths below original/high, divide those above original/low by the factor, blend between."""
    turns = scaling.original_max_position_embeddings * frequencies / (2 * np.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def _rotate(x_BSHh, cos, sin):
    """Rotates the two halves of each head against each other, the layout of Hugging Face checkpoints."""
    first, second = jnp.split(x_BSHh.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BSHh.dtype)
