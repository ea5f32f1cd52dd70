"""Which keys a query may see; shared by all implementations of attention."""

import jax


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
