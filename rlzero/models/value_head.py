"""The critic of PPO: the decoder's trunk with one linear output, initialized from the policy's weights."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rlzero.models import transformer


def init_critic(policy_params: Mapping, config: transformer.ModelConfig) -> dict:
    """Critic parameters: a copy of the policy's trunk and a zero head, so that the first values are exactly 0.

    The head is float32 and independent of the sampling temperature.
    """
    trunk = {name: jax.tree.map(jnp.copy, value) for name, value in policy_params.items() if name != "lm_head"}
    return {"trunk": trunk, "head": {"weight": jnp.zeros((config.hidden_size,)), "bias": jnp.zeros(())}}


def values(critic_params: Mapping, config: transformer.ModelConfig, tokens: jax.Array, positions: jax.Array,
           segments: jax.Array, **options: Any) -> jax.Array:
    """V(s_t) for the state before each next token: `[B, S]` float32, aligned with the policy's log-probabilities.

    Entry t values the prefix that ends with token t, that is the state in which token t + 1 is chosen. `options` are
    those of `transformer.forward`.
    """
    hidden, _ = transformer.forward(critic_params["trunk"], config, tokens, positions, segments, **options)
    head = critic_params["head"]
    return hidden.astype(jnp.float32) @ head["weight"] + head["bias"]
