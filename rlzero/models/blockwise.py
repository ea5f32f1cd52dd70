"""Causal attention in blocks: memory linear in the row's length, forward and backward, on any backend.

The scores of one block of queries against one block of keys are the largest array; softmax is carried across blocks of
keys (Milakov & Gimelshein, arXiv 1805.02867; Rabe & Staats, arXiv 2112.05682) and the backward pass recomputes the
scores from the stored log-sum-exp (Dao et al., arXiv 2205.14135). Blocks that lie wholly after the queries are skipped.
"""

import functools

import jax
import jax.numpy as jnp

from rlzero.models.attention_mask import visibility

_MASKED = -1e30  # finite, so that a row that sees nothing has finite values and gradients


def blockwise_attention(query: jax.Array, key: jax.Array, value: jax.Array, positions: jax.Array, segments: jax.Array,
                        *, block: int = 512) -> jax.Array:
    """Softmax attention of rows to themselves, as `attention.attention` defines it.

    Args:
      query: `[B, S, H, head_dim]`.
      key: `[B, S, K, head_dim]`, K divides H.
      value: `[B, S, K, head_dim]`.
      positions: `[B, S]` int32; within a segment they rise along the row.
      segments: `[B, S]` int32, 0 for padding.
      block: queries and keys per block; memory is about B·H·block² scores.

    Returns:
      `[B, S, H, head_dim]` in the dtype of `value`.
    """
    B, S, H, head_dim = query.shape
    K = key.shape[2]
    block = min(block, S)
    padding = -S % block
    query_BSKGh = query.reshape(B, S, K, H // K, head_dim) * jnp.asarray(head_dim**-0.5, query.dtype)
    pad = functools.partial(_pad_rows, padding=padding)
    out = _attend(pad(query_BSKGh), pad(key), pad(value), pad(positions), pad(segments), block)
    return out[:, :S].reshape(B, S, H, head_dim).astype(value.dtype)


def _pad_rows(array, padding):
    return jnp.pad(array, [(0, 0), (0, padding)] + [(0, 0)] * (array.ndim - 2))


def _block_at(array, index, block):
    return jax.lax.dynamic_slice_in_dim(array, index * block, block, axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(query, key, value, positions, segments, block):
    return _forward(query, key, value, positions, segments, block)[0]


def _scores(query, key, query_place, key_place):
    """`[B, K, G, q, k]` float32 scores of one block against another, masked; places are (positions, segments)."""
    scores = jnp.einsum("bqkgh,bckh->bkgqc", query, key, preferred_element_type=jnp.float32)
    visible = visibility(query_place[0], key_place[0], query_place[1], key_place[1])
    return jnp.where(visible[:, None, None], scores, _MASKED)


def _forward(query, key, value, positions, segments, block):
    """Output `[B, S, K, G, h]` float32 and log-sum-exp `[blocks, B, K, G, q]`."""

    def query_block(index):
        at = functools.partial(_block_at, block=block)
        query_q, place_q = at(query, index), (at(positions, index), at(segments, index))

        def key_block(j, carry):
            largest, total, weighted = carry
            scores = _scores(query_q, at(key, j), place_q, (at(positions, j), at(segments, j)))
            new_largest = jnp.maximum(largest, scores.max(axis=-1))
            weights, shrink = jnp.exp(scores - new_largest[..., None]), jnp.exp(largest - new_largest)
            part = jnp.einsum("bkgqc,bckh->bkgqh", weights.astype(value.dtype), at(value, j),
                              preferred_element_type=jnp.float32)
            return new_largest, total * shrink + weights.sum(axis=-1), weighted * shrink[..., None] + part

        blank = jnp.zeros_like(jnp.moveaxis(query_q, 1, 3), jnp.float32)
        start = (jnp.full_like(blank[..., 0], _MASKED), blank[..., 0], blank)
        largest, total, weighted = jax.lax.fori_loop(0, index + 1, key_block, start)
        return weighted / total[..., None], largest + jnp.log(total)

    out, log_sum_exp = jax.lax.map(query_block, jnp.arange(query.shape[1] // block))
    return _rows(out), log_sum_exp


def _rows(blocks):
    """`[blocks, B, K, G, q, h]` to `[B, S, K, G, h]`."""
    n, B, K, G, q, h = blocks.shape
    return blocks.transpose(1, 0, 4, 2, 3, 5).reshape(B, n * q, K, G, h)


def _attend_forward(query, key, value, positions, segments, block):
    out, log_sum_exp = _forward(query, key, value, positions, segments, block)
    return out, (query, key, value, positions, segments, out, log_sum_exp)


def _attend_backward(block, residuals, d_out):
    query, key, value, positions, segments, out, log_sum_exp = residuals
    at = functools.partial(_block_at, block=block)
    d_out = d_out.astype(jnp.float32)
    inner_BSKG = jnp.sum(out * d_out, axis=-1)

    def query_block(carry, index):
        query_q, place_q = at(query, index), (at(positions, index), at(segments, index))
        d_out_q, inner_q = at(d_out, index), jnp.moveaxis(at(inner_BSKG, index), 1, 3)
        lse_q = log_sum_exp[index]

        def key_block(j, carry):
            d_query_q, d_key, d_value = carry
            key_j, value_j = at(key, j), at(value, j)
            scores = _scores(query_q, key_j, place_q, (at(positions, j), at(segments, j)))
            weights = jnp.exp(scores - lse_q[..., None])
            d_weights = jnp.einsum("bqkgh,bckh->bkgqc", d_out_q, value_j, preferred_element_type=jnp.float32)
            d_scores = weights * (d_weights - inner_q[..., None])
            d_query_q += jnp.einsum("bkgqc,bckh->bqkgh", d_scores, key_j, preferred_element_type=jnp.float32)
            d_key = _add_block(d_key, jnp.einsum("bkgqc,bqkgh->bckh", d_scores, query_q,
                                                 preferred_element_type=jnp.float32), j, block)
            d_value = _add_block(d_value, jnp.einsum("bkgqc,bqkgh->bckh", weights, d_out_q), j, block)
            return d_query_q, d_key, d_value

        d_query_q, d_key, d_value = jax.lax.fori_loop(
            0, index + 1, key_block, (jnp.zeros_like(query_q, jnp.float32), *carry))
        return (d_key, d_value), d_query_q

    start = (jnp.zeros_like(key, jnp.float32), jnp.zeros_like(value, jnp.float32))
    (d_key, d_value), d_query = jax.lax.scan(query_block, start, jnp.arange(query.shape[1] // block))
    d_query = jnp.moveaxis(d_query, 0, 1).reshape(query.shape)
    return d_query.astype(query.dtype), d_key.astype(key.dtype), d_value.astype(value.dtype), None, None


def _add_block(array, update, index, block):
    return jax.lax.dynamic_update_slice_in_dim(array, _block_at(array, index, block) + update, index * block, axis=1)


_attend.defvjp(_attend_forward, _attend_backward)
