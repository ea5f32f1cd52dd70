"""Causal grouped-query attention over positions and segments, with a choice of implementations.

Visibility is decided by two integers a token carries, never by where it lies in the row: a query sees a key when both
belong to the same segment and the key's position is not later. Left padding, right padding, a half-filled cache and
several packed responses in one row are then the same case. Segment 0 is padding and is seen by nothing real.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlzero.models.attention_mask import visibility
from rlzero.models.attention_mesh import on_each_device
from rlzero.models.blockwise import blockwise_attention
from rlzero.models.cudnn import cudnn_attention
from rlzero.models.splash import splash_attention

IMPLEMENTATIONS = ("auto", "xla", "blockwise", "splash", "cudnn")

_LONG_ROW = 1024  # tokens; below, all scores of a row at once are small and quick
_PLATFORMS = {"splash": "tpu", "cudnn": "gpu"}
_PORTABLE = "choose 'blockwise', which runs everywhere, or 'auto'"


class Places(NamedTuple):
    """Where tokens are in their sequences."""

    positions: jax.Array  # [B, S] int32, from 0 in each segment
    segments: jax.Array  # [B, S] int32, 0 for padding


def attention(query: jax.Array, key: jax.Array, value: jax.Array, query_places: Places,
              key_places: Places | None = None, *, implementation: str = "xla") -> jax.Array:
    """Softmax attention with H query heads that share K key-value heads (Ainslie et al., arXiv 2305.13245).

        out[q] = Σ_k softmax_k(query[q]·key[k] / √head_dim, over visible k) · value[k]

    "xla" holds all scores, `[B, H, S, C]`. The others never do; they take rows to themselves, in which the positions of
    a segment rise. "blockwise" runs anywhere, "splash" on TPUs, "cudnn" on NVIDIA GPUs in half precision and for rows
    of one right-padded sequence each. "auto" is "xla" for a cache and for rows of up to 1024 tokens, else "splash" on a
    TPU and "blockwise" elsewhere.

    Args:
      query: `[B, S, H, head_dim]`.
      key: `[B, C, K, head_dim]`, K divides H.
      value: `[B, C, K, head_dim]`.
      query_places: positions and segments of the queries.
      key_places: those of the keys of a cache; None where rows attend to themselves, C = S.
      implementation: one of `IMPLEMENTATIONS`.

    Returns:
      `[B, S, H, head_dim]` in the dtype of `value`. What it holds for queries in segment 0 is finite and means nothing.

    Raises:
      ValueError: the implementation is unknown, or not possible here.
    """
    cached = key_places is not None
    implementation = choose(implementation, platform=platform(), dtype=value.dtype, head_dim=value.shape[-1],
                            cached=cached, row_tokens=query.shape[1])
    if implementation == "blockwise":
        return blockwise_attention(query, key, value, *query_places)
    if implementation in _PLATFORMS:
        kernel = splash_attention if implementation == "splash" else cudnn_attention
        return on_each_device(kernel, query, key, value, query_places.segments)
    key_places = key_places or query_places
    visible = visibility(query_places.positions, key_places.positions, query_places.segments, key_places.segments)
    return _dot_product_attention(query, key, value, visible)


def platform(mesh: jax.sharding.Mesh | None = None) -> str:
    """"cpu", "gpu" or "tpu": that of a mesh, which may be of machines elsewhere, else of this process.

    Args:
      mesh: None looks at the mesh in context.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device if mesh is None else mesh.devices.flat[0]
    name = jax.default_backend() if device is None else device.platform
    return "gpu" if name in ("cuda", "rocm") else name


def choose(implementation: str, *, platform: str, dtype: jnp.dtype, row_tokens: int, head_dim: int = 64,
           packed: bool = False, cached: bool = False) -> str:
    """The implementation that will run; "auto" is settled and what is not possible is refused.

    Args:
      implementation: one of `IMPLEMENTATIONS`.
      platform: "cpu", "gpu" or "tpu".
      dtype: of queries, keys and values.
      row_tokens: tokens per row.
      head_dim: width of a head.
      packed: several sequences share a row.
      cached: keys and values come from a cache.

    Raises:
      ValueError: with what to choose instead.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"unknown attention implementation {implementation!r}; expected one of {IMPLEMENTATIONS}")
    if implementation == "auto":
        if cached or row_tokens <= _LONG_ROW:
            return "xla"
        return "splash" if platform == "tpu" else "blockwise"
    if cached and implementation != "xla":
        raise ValueError(f"attention {implementation!r} takes rows to themselves and cannot read a cache; decode with "
                         "'xla' or 'auto'")
    if platform != _PLATFORMS.get(implementation, platform):
        raise ValueError(f"attention {implementation!r} runs on a {_PLATFORMS[implementation].upper()} and this is a "
                         f"{platform.upper()}; {_PORTABLE}")
    if implementation == "cudnn":
        _expect_cudnn_can(jnp.dtype(dtype), head_dim, packed)
    return implementation


def _expect_cudnn_can(dtype, head_dim, packed):
    if packed:
        raise ValueError("attention 'cudnn' knows no segments and rows are packed; choose 'blockwise', or one response "
                         "per row (pack_tokens=0)")
    if dtype not in (jnp.bfloat16, jnp.float16):
        raise ValueError(f"attention 'cudnn' computes in bfloat16 or float16, got {dtype}; compute in bfloat16, or "
                         f"{_PORTABLE}")
    if head_dim % 8 or head_dim > 256:
        raise ValueError(f"attention 'cudnn' takes heads whose width is a multiple of 8 up to 256, got {head_dim}; "
                         f"{_PORTABLE}")


def _dot_product_attention(query, key, value, visible):
    """All scores at once, in float32 like their softmax. A row that sees nothing (padding) gets a finite average."""
    B, S, H, head_dim = query.shape
    K = key.shape[2]
    query_BSKGh = query.reshape(B, S, K, H // K, head_dim)
    scores = jnp.einsum("bskgh,bckh->bkgsc", query_BSKGh, key, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores * head_dim**-0.5, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bkgsc,bckh->bskgh", weights, value).reshape(B, S, H, head_dim)
