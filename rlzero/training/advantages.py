"""From rewards to advantages, for the rows of a whole rollout step.

Advantages are computed once per rollout step, before it is cut into mini-batches. The kernels are jitted here because
their inputs come from the host; shapes are fixed by the config, apart from the few widths of rows.
"""

import jax
import numpy as np

from rlzero import kernels
from rlzero.algorithms import Algorithm
from rlzero.rollout.engine import Pairs
from rlzero.training.batch import Batch

_group_relative = jax.jit(kernels.group_relative, static_argnames=("scale", "ddof", "eps"))
_leave_one_out = jax.jit(kernels.leave_one_out)
_gae = jax.jit(kernels.gae, static_argnames=("gamma", "lam"))
_whiten = jax.jit(kernels.whiten)
_kl = jax.jit(kernels.kl, static_argnames="estimator")


def assign_advantages(batch: Batch, algorithm: Algorithm) -> Pairs:
    """Writes advantages, and with a critic returns, into the rows of a scored batch.

    With kl_placement "reward", each token's reward is reduced by kl_coef · kl(π_old, π_ref); group algorithms subtract
    the sum over a response from its reward.

    Args:
      batch: rows with `old_logprobs`, and `ref_logprobs` and `old_values` where the algorithm has them.
      algorithm: fields advantage*, gamma, gae_lambda, whiten_advantages and kl_* are read.

    Returns:
      Metrics as (sum, weight) pairs.
    """
    rows, metrics = batch.rows, {}
    penalty = np.zeros_like(rows.old_logprobs)
    if algorithm.needs_reference and algorithm.kl_placement == "reward":
        kl = _kl(rows.old_logprobs, rows.ref_logprobs, rows.mask, estimator=algorithm.kl_estimator)
        penalty = algorithm.kl_coef * np.asarray(kl)
        metrics["reward/kl_penalty"] = (float(penalty.sum()), float(rows.mask.sum()))
    if algorithm.advantage == "gae":
        return metrics | _assign_gae(batch, algorithm, penalty)
    rewards = batch.rewards - penalty.sum(axis=1).reshape(batch.shape)
    if algorithm.advantage == "leave_one_out":
        advantages = _leave_one_out(rewards, valid=batch.valid)
    else:
        advantages = _group_relative(rewards, scale=algorithm.advantage_scale, ddof=algorithm.advantage_ddof,
                                     eps=algorithm.advantage_eps, valid=batch.valid)
    rows.advantages[:] = np.asarray(advantages).reshape(-1, 1) * rows.mask
    return metrics


def _assign_gae(batch, algorithm, penalty) -> Pairs:
    """GAE over the sampled tokens; the reward of a response falls on its last token, whatever its id is."""
    rows, token_rewards = batch.rows, -penalty
    sampled = np.flatnonzero(rows.mask.any(axis=1))
    last = rows.mask.shape[1] - 1 - rows.mask[sampled, ::-1].argmax(axis=1)
    token_rewards[sampled, last] += batch.rewards.reshape(-1)[sampled]
    advantages, returns = _gae(token_rewards, rows.old_values, rows.mask, gamma=algorithm.gamma,
                               lam=algorithm.gae_lambda)
    if algorithm.whiten_advantages:
        advantages = _whiten(advantages, rows.trained)
    rows.advantages[:], rows.returns[:] = np.asarray(advantages), np.asarray(returns)
    values, target = rows.old_values[rows.trained], rows.returns[rows.trained]
    metrics = {"critic/value_mean": (float(values.sum()), float(values.size))}
    if target.size and target.var() > 0:
        metrics["critic/explained_variance"] = (float(1 - (target - values).var() / target.var()), 1.0)
    return metrics
