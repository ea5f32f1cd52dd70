"""Causal grouped-query attention over positions and segments.

Visibility is decided by two integers a token carries, never by where it lies in the row: a query sees a key when both
belong to the same segment and the key's position is not later. Left padding, right padding, a half-filled cache and
several packed responses in one row are then the same case. Segment 0 is padding and is seen by nothing real.
"""

import jax
import jax.numpy as jnp


def visibility(query_positions: jax.Array, key_positions: jax.Array, query_segments: jax.Array,
               key_segments: jax.Array) -> jax.Array:
    """Which keys each query may attend to.

        visible[b, q, k] = (segment_q = segment_k) ∧ (position_k ≤ position_q)

    Args:
      query_positions: `[B, S]` integers, position of each query in its own sequence.
      key_positions: `[B, C]` integers.
      query_segments: `[B, S]` integers, 0 for padding.
      key_segments: `[B, C]` integers, 0 for padding.

    Returns:
      `[B, S, C]` booleans.
    """
    same_segment = query_segments[:, :, None] == key_segments[:, None, :]
    return same_segment & (key_positions[:, None, :] <= query_positions[:, :, None])


def dot_product_attention(query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array) -> jax.Array:
    """Softmax attention with H query heads that share K key-value heads (Ainslie et al., arXiv 2305.13245).

        out[q] = Σ_k softmax_k(query[q]·key[k] / √head_dim, over visible k) · value[k]

    Scores and softmax are float32 whatever the operands are. A row that sees nothing (padding) gets a finite average.

    Args:
      query: `[B, S, H, head_dim]`.
      key: `[B, C, K, head_dim]`, K divides H.
      value: `[B, C, K, head_dim]`.
      visible: `[B, S, C]` booleans from `visibility`.

    Returns:
      `[B, S, H, head_dim]` in the dtype of `value`.
    """
    B, S, H, head_dim = query.shape
    K = key.shape[2]
    query_BSKGh = query.reshape(B, S, K, H // K, head_dim)
    scores = jnp.einsum("bskgh,bckh->bkgsc", query_BSKGh, key, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, None, None], scores * head_dim**-0.5, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bkgsc,bckh->bskgh", weights, value).reshape(B, S, H, head_dim)
