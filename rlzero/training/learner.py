"""The learner: score a batch, accumulate gradients micro-batch by micro-batch, apply one optimizer update.

Jitted functions do all device work, and each is usable alone:

* `score` and `score_values`: log-probabilities and values of given rows, without gradients.
* `accumulate_policy` and `accumulate_critic`: add one micro-batch's gradient to a float32 sum. The response weights
  were computed from the whole optimizer batch, so sums are all there is to do: nothing is divided by a local count.
* `optimizer.apply`: one optimizer update, or none if the gradient is not finite.

`Learner` strings them together: P·G responses, `mini_batches` updates per epoch, several micro-batches each.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlzero import kernels
from rlzero.algorithms import Algorithm
from rlzero.models import transformer, value_head
from rlzero.rollout.sampler import Group
from rlzero.training.advantages import assign_advantages
from rlzero.training.batch import Batch, Rows, make_batch, micro_batches
from rlzero.training.metrics import Accumulator
from rlzero.training.optimizer import OptimizerOptions, apply, count_skipped, init_train_state, zero_gradient

_response_weights = jax.jit(kernels.response_weights, static_argnames=("normalization", "max_completion_length"))


def _logprobs(params, rows, model, temperature):
    """Log-probabilities and entropies `[B, S]` of the targets under softmax(logits / temperature)."""
    hidden, _ = transformer.forward(params, model, rows.tokens, rows.positions, rows.segments)
    shape = rows.targets.shape
    logprobs, entropy = kernels.token_logprobs(
        hidden.reshape(-1, hidden.shape[-1]), transformer.unembedding(params), rows.targets.reshape(-1),
        temperature=temperature)
    return logprobs.reshape(shape), entropy.reshape(shape)


@functools.partial(jax.jit, static_argnames=("model", "temperature"))
def score(params: Any, rows: Rows, *, model: transformer.ModelConfig, temperature: float) -> jax.Array:
    """Log-probabilities `[B, S]` of the rows' targets, at the temperature they were sampled with."""
    return _logprobs(params, rows, model, temperature)[0]


@functools.partial(jax.jit, static_argnames="model")
def score_values(critic_params: Any, rows: Rows, *, model: transformer.ModelConfig) -> jax.Array:
    """The critic's values `[B, S]` of the states in which the rows' targets were chosen."""
    return value_head.values(critic_params, model, rows.tokens, rows.positions, rows.segments)


@functools.partial(jax.jit, static_argnames=("model", "algorithm", "temperature"), donate_argnames="gradient")
def accumulate_policy(params: Any, gradient: Any, rows: Rows, *, model: transformer.ModelConfig, algorithm: Algorithm,
                      temperature: float) -> tuple[Any, jax.Array, dict]:
    """Adds the gradient on one micro-batch to `gradient`; also returns the loss and (sum, weight) metrics."""

    def loss(params):
        logprobs, entropy = _logprobs(params, rows, model, temperature)
        return kernels.policy_loss(
            logprobs, rows.old_logprobs, rows.advantages, rows.trained, rows.weights, algorithm=algorithm,
            ref_logprobs=rows.ref_logprobs if algorithm.needs_reference else None,
            rollout_logprobs=rows.rollout_logprobs, entropy=entropy)

    (value, metrics), new = jax.value_and_grad(loss, has_aux=True)(params)
    gradient = jax.tree.map(lambda total, part: total + part.astype(jnp.float32), gradient, new)
    return gradient, value, metrics


@functools.partial(jax.jit, static_argnames=("model", "algorithm"), donate_argnames="gradient")
def accumulate_critic(params: Any, gradient: Any, rows: Rows, *, model: transformer.ModelConfig,
                      algorithm: Algorithm) -> tuple[Any, jax.Array, dict]:
    """Adds the gradient of the clipped value loss, a token mean by `rows.weights`, to `gradient`."""

    def loss(params):
        values = value_head.values(params, model, rows.tokens, rows.positions, rows.segments)
        losses = kernels.clipped_value_loss(values, rows.old_values, rows.returns, rows.trained,
                                            clip=algorithm.value_clip)
        return jnp.sum(losses * rows.weights[:, None])

    value, new = jax.value_and_grad(loss)(params)
    gradient = jax.tree.map(lambda total, part: total + part.astype(jnp.float32), gradient, new)
    return gradient, value, {}


@dataclasses.dataclass(frozen=True)
class LearnerOptions:
    """How a rollout step becomes optimizer updates. See `LearnerSection` in `rlzero.training.config`."""

    policy: OptimizerOptions
    critic: OptimizerOptions | None
    groups_per_step: int
    group_size: int
    max_completion_length: int
    temperature: float
    mini_batches: int = 1
    epochs: int = 1
    micro_batch_size: int = 0
    critic_warmup_steps: int = 0
    reference_refresh_steps: int = 0
    max_bad_updates: int = 5
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What a training step did.

    Attributes:
      metrics: (sum, weight) pairs, fetched from the device when they are read.
      advantages: `[P, G]` mean advantage of each response.
      updated: whether the policy's parameters changed.
    """

    metrics: Accumulator
    advantages: np.ndarray
    updated: bool


class NonFiniteError(FloatingPointError):
    """Too many updates in a row were not finite; `rows` is the batch of the last one."""

    def __init__(self, message: str, rows: Rows):
        super().__init__(message)
        self.rows = rows


class Learner:
    """Owns the trained state and turns the groups of one rollout step into updates.

    `arrays` is all it has on the device: the policy's and the critic's `TrainState` and the reference parameters, the
    last two only where the algorithm has them.
    """

    def __init__(self, model: transformer.ModelConfig, algorithm: Algorithm, options: LearnerOptions, params: Any):
        self._model, self._algorithm, self._options = model, algorithm, options
        self.arrays: dict[str, Any] = {"policy": init_train_state(params, options.policy)}
        if algorithm.needs_reference:
            self.arrays["reference"] = jax.tree.map(jnp.copy, params)
        if algorithm.needs_critic:
            self.arrays["critic"] = init_train_state(value_head.init_critic(params, model), options.critic)

    @property
    def params(self) -> Any:
        return self.arrays["policy"].params

    def get_state(self) -> dict[str, Any]:
        """Everything a checkpoint must hold, the policy's parameters under a name of their own, "params"."""
        return self.arrays | {"params": self.params, "policy": self.arrays["policy"].replace(params=None)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what `get_state` returned."""
        policy = state["policy"].replace(params=state["params"])
        self.arrays = {name: state[name] for name in self.arrays} | {"policy": policy}

    def step(self, groups: Sequence[Group], rollout_step: int, policy_version: int) -> StepResult:
        """Trains on the groups of one rollout step.

        Args:
          groups: what the sampler returned; may be empty, then nothing moves.
          rollout_step: number of the step, from 0: decides warm-ups and the order of mini-batches.
          policy_version: version of the current policy; older samples keep their recorded log-probabilities.

        Raises:
          NonFiniteError: `max_bad_updates` updates in a row had a gradient that is not finite.
        """
        self._refresh_reference(rollout_step)
        options = self._options
        batch = make_batch(groups, options.group_size, num_groups=max(options.groups_per_step, len(groups)),
                           policy_version=policy_version, mask_truncated=self._algorithm.truncated == "mask")
        self._score(batch)
        metrics, updates_before = Accumulator(), int(self.arrays["policy"].updates)
        metrics.merge(assign_advantages(batch, self._algorithm))
        for chosen in self._mini_batches(len(groups), rollout_step):
            for name in self._trained(rollout_step):
                self._update(name, batch, chosen, metrics)
        self._refuse_non_finite(batch)
        updates = int(self.arrays["policy"].updates)
        for name in ("policy", "critic"):
            if name in self.arrays:
                metrics.add(f"{name}/updates", jnp.copy(self.arrays[name].updates), 1.0)
                metrics.add(f"{name}/skipped_updates", jnp.copy(self.arrays[name].skipped), 1.0)
        return StepResult(metrics, _response_means(batch)[:len(groups)], updates > updates_before)

    def _trained(self, rollout_step):
        """What this step trains: during the critic's warm-up the policy stands still."""
        if not self._algorithm.needs_critic:
            return ("policy",)
        return ("critic",) if rollout_step < self._options.critic_warmup_steps else ("critic", "policy")

    def _refuse_non_finite(self, batch):
        for name in ("policy", "critic"):
            if name in self.arrays and int(self.arrays[name].bad) >= self._options.max_bad_updates:
                raise NonFiniteError(
                    f"{int(self.arrays[name].bad)} {name} updates in a row had a gradient that is not finite; the "
                    "parameters are as before them. Look at the saved batch, lower the learning rate, or compute in "
                    "float32", batch.rows)

    def _refresh_reference(self, rollout_step):
        every = self._options.reference_refresh_steps
        if "reference" in self.arrays and every and rollout_step and rollout_step % every == 0:
            self.arrays["reference"] = jax.tree.map(jnp.copy, self.params)

    def _score(self, batch):
        """Fills in old and reference log-probabilities and old values.

        π_old is the policy that sampled a response. For fresh responses its log-probabilities are recomputed here, by
        the function the loss uses; for carried ones they are the recorded `rollout_logprobs`.
        """
        rows, model, temperature = batch.rows, self._model, self._options.temperature
        fresh = batch.fresh.reshape(-1, 1)
        for chosen, micro in micro_batches(rows, np.arange(len(rows.weights)), self._options.micro_batch_size):
            micro = jax.device_put(micro)
            outputs = {"old_logprobs": score(self.params, micro, model=model, temperature=temperature)}
            if "reference" in self.arrays:
                outputs["ref_logprobs"] = score(self.arrays["reference"], micro, model=model, temperature=temperature)
            if "critic" in self.arrays:
                outputs["old_values"] = score_values(self.arrays["critic"].params, micro, model=model)
            for name, value in outputs.items():
                width = min(value.shape[1], rows.tokens.shape[1])
                getattr(rows, name)[chosen, :width] = np.asarray(value)[:len(chosen), :width]
        np.copyto(rows.old_logprobs, rows.rollout_logprobs, where=~fresh)

    def _mini_batches(self, num_groups, rollout_step):
        """Group numbers of each optimizer batch; a seeded shuffle per epoch, groups kept whole.

        Where groups are missing some batches are empty; they are counted as skipped updates.
        """
        for epoch in range(self._options.epochs):
            order = np.random.default_rng((self._options.seed, rollout_step, epoch)).permutation(num_groups)
            yield from np.array_split(order, self._options.mini_batches)

    def _update(self, name, batch, chosen, metrics):
        """One optimizer update of the policy or the critic on the groups `chosen`."""
        if not batch.lengths[chosen].any():
            self.arrays[name] = count_skipped(self.arrays[name])
            return
        rows, (_, G), state = batch.rows, batch.shape, self.arrays[name]
        normalization = self._algorithm.normalization if name == "policy" else "token_mean"
        in_batch = np.isin(np.arange(len(batch.lengths)), chosen)[:, None]
        rows.weights[:] = np.asarray(_response_weights(
            batch.lengths * in_batch, normalization=normalization,
            max_completion_length=self._options.max_completion_length,
            num_responses=np.float32(len(chosen) * G) if normalization == "constant" else None)).reshape(-1)
        indices = (chosen[:, None] * G + np.arange(G)).reshape(-1)
        gradient, loss = zero_gradient(state.params), 0.0
        for _, micro in micro_batches(rows, indices, self._options.micro_batch_size):
            metrics.add("batch/useful_token_fraction", float(micro.mask.sum()), float(micro.mask.size))
            micro = jax.device_put(micro)
            with jax.transfer_guard("disallow"):
                gradient, part, new = self._accumulate(name, state.params, gradient, micro)
            metrics.merge(new)
            loss = loss + part
        options = self._options.policy if name == "policy" else self._options.critic
        with jax.transfer_guard("disallow"):
            self.arrays[name], new = apply(state, gradient, options=options)
        metrics.merge({f"{name}/{key}": pair for key, pair in new.items()} | {f"{name}/loss": (loss, 1.0)})

    def _accumulate(self, name, params, gradient, micro):
        if name == "critic":
            return accumulate_critic(params, gradient, micro, model=self._model, algorithm=self._algorithm)
        return accumulate_policy(params, gradient, micro, model=self._model, algorithm=self._algorithm,
                                 temperature=self._options.temperature)


def _response_means(batch: Batch) -> np.ndarray:
    """Mean advantage of each response `[P, G]`, for people to read."""
    tokens = np.maximum(batch.rows.mask.sum(axis=1), 1)
    return ((batch.rows.advantages * batch.rows.mask).sum(axis=1) / tokens).reshape(batch.shape)
