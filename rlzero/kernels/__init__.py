"""Pure functions of arrays for reinforcement learning on language models.

They take no model, config or flag, so they can be used in any JAX project and in a notebook. Shapes are [P, G] (P
prompts with G responses each), [B, T] (B responses of T tokens, right-padded) or [N] (tokens, packed); hyperparameters
are keyword-only. What stands at mask 0 changes no value, gradient or metric; shapes are checked when tracing and never
broadcast; everything is computed in float32 or wider. The usual way through them:

    advantages = kernels.group_relative(rewards)                                                  # [P, G]
    weights = kernels.response_weights(lengths, normalization=algorithm.normalization)            # [P, G]
    loss, metrics = kernels.policy_loss(logprobs, old_logprobs, advantages.reshape(-1, 1), mask,
                                        weights.reshape(-1), algorithm=algorithm)

`kernels.sharded` has the ones that need sums over devices, on a mesh.
"""

from rlzero.kernels import sharded
from rlzero.kernels.advantages import gae, group_relative, leave_one_out, whiten
from rlzero.kernels.divergence import entropy, kl
from rlzero.kernels.lm_head import fused_policy_loss, token_logprobs
from rlzero.kernels.overlong import soft_overlong_penalty
from rlzero.kernels.policy import policy_loss
from rlzero.kernels.surrogate import (
    SurrogateTerms,
    cispo_surrogate,
    clipped_surrogate,
    gspo_surrogate,
    truncated_importance,
)
from rlzero.kernels.value import clipped_value_loss
from rlzero.kernels.weights import response_weights

__all__ = [
    "SurrogateTerms",
    "cispo_surrogate",
    "clipped_surrogate",
    "clipped_value_loss",
    "entropy",
    "fused_policy_loss",
    "gae",
    "group_relative",
    "gspo_surrogate",
    "kl",
    "leave_one_out",
    "policy_loss",
    "response_weights",
    "sharded",
    "soft_overlong_penalty",
    "token_logprobs",
    "truncated_importance",
    "whiten",
]
