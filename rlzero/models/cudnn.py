"""Attention on an NVIDIA GPU: cuDNN's fused kernel, for rows of one right-padded sequence each."""

import jax
import jax.numpy as jnp


def cudnn_attention(query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array) -> jax.Array:
    """Softmax attention of rows to themselves, as `attention.attention` defines it, on one device.

    The kernel knows a row's length but no segments. A row that is anything else than one sequence from its first token
    on, then padding, cannot be refused under `jit`, where nobody knows its contents: it comes out as NaN.

    Args:
      query: `[B, S, H, head_dim]`, bfloat16 or float16.
      key: `[B, S, K, head_dim]`, K divides H.
      value: `[B, S, K, head_dim]`.
      segments: `[B, S]` int32, 0 for padding.

    Returns:
      `[B, S, H, head_dim]` in the dtype of `value`.
    """
    lengths, one_sequence = row_lengths(segments)
    out = jax.nn.dot_product_attention(query, key, value, is_causal=True, query_seq_lengths=lengths,
                                       key_value_seq_lengths=lengths, implementation="cudnn")
    real = (segments != 0)[:, :, None, None]
    return jnp.where(one_sequence[:, None, None, None], jnp.where(real, out, 0), jnp.nan).astype(value.dtype)


def row_lengths(segments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Tokens in each row `[B]` int32, at least 1, and whether they are one sequence from the first place on `[B]`."""
    lengths = jnp.sum(segments != 0, axis=1, dtype=jnp.int32)
    expected = jnp.where(jnp.arange(segments.shape[1]) < lengths[:, None], segments[:, :1], 0)
    return jnp.maximum(lengths, 1), jnp.all(segments == expected, axis=1)
