"""Attention on a TPU: the splash kernel that ships with JAX, for rows of segments, with grouped heads.

It is causal along the row, skips blocks that lie wholly after the queries, and keeps blocks of scores on the chip:
memory is linear in the row's length. Here are its block sizes and padding; `attention_mesh.py` spreads it over a mesh.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

_LANES = 128
_BLOCK = 512


def splash_attention(query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array, *,
                     interpret: bool = False) -> jax.Array:
    """Softmax attention of rows to themselves, as `attention.attention` defines it, on one device.

    Args:
      query: `[B, S, H, head_dim]`.
      key: `[B, S, K, head_dim]`, K divides H.
      value: `[B, S, K, head_dim]`.
      segments: `[B, S]` int32; within a segment positions rise along the row.
      interpret: run the kernel's body as ordinary JAX, on any backend and slowly, to check it.

    Returns:
      `[B, S, H, head_dim]` in the dtype of `value`.
    """
    S, H, head_dim = query.shape[1:]
    width, block = padded_width(S)
    query = query * jnp.asarray(head_dim**-0.5, query.dtype)

    def by_head(array):
        return jnp.pad(array, [(0, 0), (0, width - S), (0, 0), (0, 0)]).transpose(0, 2, 1, 3)

    segments = jnp.pad(segments, [(0, 0), (0, width - S)])
    out = jax.vmap(_kernel(H, width, block, interpret))(
        by_head(query), by_head(key), by_head(value), splash.SegmentIds(segments, segments))
    return out.transpose(0, 2, 1, 3)[:, :S].astype(value.dtype)


def padded_width(row: int) -> tuple[int, int]:
    """Width to which a row is padded, and the kernel's block, which divides it: multiples of 128 tokens."""
    width = -(-row // _LANES) * _LANES
    if width <= _BLOCK:
        return width, width
    return -(-row // _BLOCK) * _BLOCK, _BLOCK


def _kernel(heads, width, block, interpret):
    mask = splash.MultiHeadMask([splash.CausalMask((width, width))] * heads)
    sizes = splash.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
        block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block)
    return splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret)
