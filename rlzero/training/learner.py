"""The learner: score a batch, accumulate gradients micro-batch by micro-batch, apply one optimizer update.

A rollout step has P·G responses and `mini_batches` updates per epoch, of several micro-batches each. The device work is
in `steps.py` and `optimizer.py`; here are their order and the arrays on the host.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlzero import kernels
from rlzero.algorithms import Algorithm
from rlzero.models import transformer, value_head
from rlzero.models.attention import choose, platform
from rlzero.models.sharding import batch_sharding, batch_shards, in_context, replicated_unless_on
from rlzero.rollout.sampler import Group
from rlzero.training.advantages import assign_advantages
from rlzero.training.batch import Batch, Rows, make_batch, micro_batches
from rlzero.training.metrics import Accumulator
from rlzero.training.optimizer import OptimizerOptions, apply, count_skipped, init_train_state, zero_gradient
from rlzero.training.steps import Execution, accumulate_critic, accumulate_policy, score, score_values

_response_weights = jax.jit(kernels.response_weights, static_argnames=("normalization", "max_completion_length"))


@dataclasses.dataclass(frozen=True)
class LearnerOptions:
    """How a rollout step becomes optimizer updates. See `LearnerSection` in `rlzero.training.sections`.

    `critic_mini_batches` is 0 for as many as the policy has, `dtype` that of activations and matrix products, and
    `attention` one of `models.attention.IMPLEMENTATIONS`.
    """

    policy: OptimizerOptions
    critic: OptimizerOptions | None
    groups_per_step: int
    group_size: int
    max_completion_length: int
    temperature: float
    mini_batches: int = 1
    critic_mini_batches: int = 0
    epochs: int = 1
    micro_batch_size: int = 0
    pack_tokens: int = 0
    dtype: str = "float32"
    remat: bool = False
    attention: str = "xla"
    critic_warmup_steps: int = 0
    reference_refresh_steps: int = 0
    max_bad_updates: int = 5
    seed: int = 0

    def execution(self, model: transformer.ModelConfig) -> Execution:
        """How a model of this shape is computed."""
        return Execution(model, self.temperature, self.dtype, self.remat, self.attention)


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

    def __init__(self, model: transformer.ModelConfig, algorithm: Algorithm, options: LearnerOptions, params: Any, *,
                 mesh: jax.sharding.Mesh | None = None):
        """Makes a learner that has seen no update.

        Args:
          model: the model's shape.
          algorithm: what is optimized.
          options: how.
          params: the policy's parameters, which the learner owns from here on; on a mesh, already laid out there.
          mesh: mesh of `models.sharding.make_mesh`; None computes on the default device.

        Raises:
          ValueError: `options.attention` is not possible on these devices or with packed rows.
        """
        self._algorithm, self._options, self._mesh = algorithm, options, mesh
        choose(options.attention, platform=platform(mesh), dtype=options.dtype, head_dim=model.head_dim,
               row_tokens=options.pack_tokens or options.max_completion_length, packed=options.pack_tokens > 0)
        self._execution = options.execution(model)
        self.arrays: dict[str, Any] = {"policy": init_train_state(params, options.policy)}
        if algorithm.needs_reference:
            self.arrays["reference"] = jax.tree.map(jnp.copy, params)
        if algorithm.needs_critic:
            self.arrays["critic"] = init_train_state(value_head.init_critic(params, model), options.critic)
        if mesh is not None:
            self.arrays = jax.tree.map(lambda array: replicated_unless_on(array, mesh), self.arrays)

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
        with in_context(self._mesh):
            return self._step(groups, rollout_step, policy_version)

    def _step(self, groups, rollout_step, policy_version):
        self._refresh_reference(rollout_step)
        options = self._options
        batch = make_batch(groups, options.group_size, num_groups=max(options.groups_per_step, len(groups)),
                           policy_version=policy_version, mask_truncated=self._algorithm.truncated == "mask")
        metrics, before = Accumulator(), self._counts()
        self._score(batch, metrics)
        for group in groups:
            ages = [policy_version - sample.completion.policy_version for sample in group.samples if sample.usable]
            metrics.add("rollout/staleness_mean", float(sum(ages)), float(len(ages)))
        metrics.merge(assign_advantages(batch, self._algorithm))
        for name in self._trained(rollout_step):
            for chosen in self._mini_batches(len(groups), rollout_step, name):
                self._update(name, batch, chosen, metrics)
        self._refuse_non_finite(batch)
        after = self._counts()
        for name, (updates, skipped) in after.items():
            metrics.add(f"{name}/updates", updates, 1.0)
            metrics.add(f"{name}/skipped_updates", skipped - before[name][1], 1.0)
        return StepResult(metrics, _response_means(batch)[:len(groups)], after["policy"][0] > before["policy"][0])

    def _counts(self):
        """Updates applied and skipped so far, by what is trained."""
        return {name: (int(self.arrays[name].updates), int(self.arrays[name].skipped))
                for name in ("policy", "critic") if name in self.arrays}

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

    def _score(self, batch, metrics):
        """Fills in old and reference log-probabilities and old values.

        π_old is the policy that sampled a response. For fresh responses its log-probabilities are recomputed here, by
        the function the loss uses; for older ones they are the recorded `rollout_logprobs`. With an importance cap they
        are recomputed for older ones as well: π_old is then the policy before this step, from which the clip counts,
        and the importance weight min(π_old / π_rollout, cap) makes up for where the response came from
        (arXiv 2505.24298, the decoupled objective).
        """
        rows, fresh = batch.rows, batch.fresh.reshape(-1, 1)
        for placement, micro in self._micro_batches(rows, np.arange(len(rows.weights))):
            micro = self._put(micro)
            outputs = {"old_logprobs": score(self.params, micro, execution=self._execution)}
            if "reference" in self.arrays:
                outputs["ref_logprobs"] = score(self.arrays["reference"], micro, execution=self._execution)
            if "critic" in self.arrays:
                outputs["old_values"] = score_values(self.arrays["critic"].params, micro, execution=self._execution)
            for name, value in outputs.items():
                placement.copy_back(np.asarray(value), getattr(rows, name))
        mismatch = np.abs(rows.old_logprobs - rows.rollout_logprobs)[rows.trained]
        metrics.add("mismatch/max_abs_logprob", float(mismatch.max(initial=0.0)), 1.0)
        if self._algorithm.importance_cap is None:
            np.copyto(rows.old_logprobs, rows.rollout_logprobs, where=~fresh)

    def _micro_batches(self, rows, indices):
        return micro_batches(rows, indices, self._options.micro_batch_size, row_tokens=self._options.pack_tokens,
                             row_multiple=batch_shards(self._mesh))

    def _put(self, micro):
        return jax.device_put(micro, None if self._mesh is None else batch_sharding(self._mesh))

    def _mini_batches(self, num_groups, rollout_step, name="policy"):
        """Group numbers of each optimizer batch; a seeded shuffle per epoch, groups kept whole.

        Where groups are missing some batches are empty; they are counted as skipped updates.
        """
        options = self._options
        count = (options.critic_mini_batches if name == "critic" else 0) or options.mini_batches
        for epoch in range(options.epochs):
            order = np.random.default_rng((options.seed, rollout_step, epoch)).permutation(num_groups)
            yield from np.array_split(order, count)

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
            num_responses=np.float32(len(chosen) * G) if normalization == "constant" else None)).reshape(-1, 1)
        indices = (chosen[:, None] * G + np.arange(G)).reshape(-1)
        gradient, loss = zero_gradient(state.params), 0.0
        accumulate = accumulate_policy if name == "policy" else accumulate_critic
        for _, micro in self._micro_batches(rows, indices):
            metrics.add("batch/trained_token_fraction", float(micro.trained.sum()), float(micro.trained.size))
            metrics.add("batch/filled_fraction", float(np.count_nonzero(micro.segments)), float(micro.segments.size))
            micro = self._put(micro)
            with jax.transfer_guard("disallow"):
                gradient, part, new = accumulate(state.params, gradient, micro, execution=self._execution,
                                                 algorithm=self._algorithm)
            metrics.merge(new)
            loss = loss + part
        options = self._options.policy if name == "policy" else self._options.critic
        with jax.transfer_guard("disallow"):
            self.arrays[name], new = apply(state, gradient, options=options)
        metrics.merge({f"{name}/{key}": pair for key, pair in new.items()} | {f"{name}/loss": (loss, 1.0)})


def _response_means(batch: Batch) -> np.ndarray:
    """Mean advantage of each response `[P, G]`, for people to read."""
    tokens = np.maximum(batch.rows.mask.sum(axis=1), 1)
    return ((batch.rows.advantages * batch.rows.mask).sum(axis=1) / tokens).reshape(batch.shape)
