"""Causal grouped-query attention over positions and segments, with a choice of implementations.

Visibility is decided by two integers a token carries, never by where it lies in the row: a query sees a key when both
belong to the same segment and the key's position is not later. Left padding, right padding, a half-filled cache and
several packed responses in one row are then the same case. Segment 0 is padding and is seen by nothing real.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlzero.models.attention_mask import visibility
from rlzero.models.blockwise import blockwise_attention

IMPLEMENTATIONS = ("xla", "blockwise")


class Places(NamedTuple):
    """Where tokens are in their sequences."""

    positions: jax.Array  # [B, S] int32, from 0 in each segment
    segments: jax.Array  # [B, S] int32, 0 for padding


def attention(query: jax.Array, key: jax.Array, value: jax.Array, query_places: Places, key_places: Places, *,
              implementation: str = "xla") -> jax.Array:
    """Softmax attention with H query heads that share K key-value heads (Ainslie et al., arXiv 2305.13245).

        out[q] = Σ_k softmax_k(query[q]·key[k] / √head_dim, over visible k) · value[k]

    Args:
      query: `[B, S, H, head_dim]`.
      key: `[B, C, K, head_dim]`, K divides H.
      value: `[B, C, K, head_dim]`.
      query_places: positions and segments of the queries.
      key_places: those of the keys; of a cache, or the same as the queries'.
      implementation: "xla" holds all scores of a row, `[B, H, S, C]`; "blockwise" never does and takes rows to
        themselves only.

    Returns:
      `[B, S, H, head_dim]` in the dtype of `value`.

    Raises:
      ValueError: an unknown implementation.
    """
    if implementation == "blockwise":
        return blockwise_attention(query, key, value, *query_places)
    if implementation != "xla":
        raise ValueError(f"unknown attention implementation {implementation!r}; expected one of {IMPLEMENTATIONS}")
    visible = visibility(query_places.positions, key_places.positions, query_places.segments, key_places.segments)
    return _dot_product_attention(query, key, value, visible)


def _dot_product_attention(query, key, value, visible):
    """All scores at once, in float32 like their softmax. A row that sees nothing (padding) gets a finite average."""
    B, S, H, head_dim = query.shape
    K = key.shape[2]
    query_BSKGh = query.reshape(B, S, K, H // K, head_dim)
    scores = jnp.einsum("bskgh,bckh->bkgsc", query_BSKGh, key, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores * head_dim**-0.5, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bkgsc,bckh->bskgh", weights, value).reshape(B, S, H, head_dim)
