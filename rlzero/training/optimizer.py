"""AdamW with a schedule, the state it trains, and one update of it: all or nothing.

`apply` decides an update as a whole. If the accumulated gradient is not finite, parameters, moments and the schedule's
count stay bit-identical and a counter moves; the same holds for a batch without a trained token (`count_skipped`),
because AdamW moves weights even on a zero gradient.
"""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from rlzero.training.sections import OptimizerSection


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """AdamW with warm-up and global-norm clipping; counts are optimizer updates.

    `schedule` is "constant" or "cosine" (down to `end_fraction` of the peak at `total_updates`).
    """

    learning_rate: float
    warmup_updates: int = 0
    total_updates: int = 1
    schedule: str = "constant"
    end_fraction: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def learning_rate_at(self, count: Any) -> Any:
        """The learning rate of update number `count` (from 0): a function of the stored count alone."""
        if self.schedule == "cosine":
            body = optax.cosine_decay_schedule(self.learning_rate, max(1, self.total_updates - self.warmup_updates),
                                               self.end_fraction)
        else:
            body = optax.constant_schedule(self.learning_rate)
        if not self.warmup_updates:
            return body(count)
        warmup = optax.linear_schedule(self.learning_rate / self.warmup_updates, self.learning_rate,
                                       max(1, self.warmup_updates - 1))
        return optax.join_schedules([warmup, body], [self.warmup_updates])(count)

    def transformation(self) -> optax.GradientTransformation:
        """The optax chain: clip by global norm, then AdamW on the schedule."""
        return optax.chain(
            optax.clip_by_global_norm(self.max_grad_norm),
            optax.adamw(self.learning_rate_at, self.beta1, self.beta2, self.eps, weight_decay=self.weight_decay))


def optimizer_options(section: OptimizerSection, *, steps: int, updates_per_step: int = 1) -> OptimizerOptions:
    """The options of a config's section, whose warm-up, like `steps`, counts steps of `updates_per_step` updates."""
    return OptimizerOptions(
        learning_rate=section.learning_rate, warmup_updates=section.warmup_steps * updates_per_step,
        total_updates=steps * updates_per_step, schedule=section.schedule, end_fraction=section.end_fraction,
        beta1=section.beta1, beta2=section.beta2, eps=section.eps, weight_decay=section.weight_decay,
        max_grad_norm=section.max_grad_norm)


@flax.struct.dataclass
class TrainState:
    """Parameters with their optimizer; `updates` counts applied updates, `bad` the non-finite ones in a row."""

    params: Any
    opt_state: Any
    updates: jax.Array
    skipped: jax.Array
    bad: jax.Array


def init_train_state(params: Any, options: OptimizerOptions) -> TrainState:
    """A state that has seen no update."""
    zero = jnp.zeros((), jnp.int32)
    return TrainState(params, options.transformation().init(params), zero, jnp.copy(zero), jnp.copy(zero))


def zero_gradient(params: Any) -> Any:
    """A float32 accumulator in the shape of `params`, laid out on devices as they are."""
    return jax.tree.map(lambda p: jnp.zeros_like(p, jnp.float32), params)


@functools.partial(jax.jit, static_argnames="options", donate_argnames="state")
def apply(state: TrainState, gradient: Any, *, options: OptimizerOptions) -> tuple[TrainState, dict]:
    """One optimizer update, decided as a whole: if the gradient is not finite, nothing moves but a counter."""
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(norm)
    gradient = jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, state.params)
    changes, opt_state = options.transformation().update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, changes)
    keep = functools.partial(jax.tree.map, lambda new, old: jnp.where(finite, new, old))
    new_state = TrainState(
        params=keep(params, state.params), opt_state=keep(opt_state, state.opt_state),
        updates=state.updates + finite, skipped=state.skipped + ~finite, bad=jnp.where(finite, 0, state.bad + 1))
    one = jnp.ones_like(norm)
    return new_state, {"gradient_norm": (jnp.where(finite, norm, 0.0), one * finite),
                       "learning_rate": (options.learning_rate_at(state.updates) * one, one)}


@jax.jit
def count_skipped(state: TrainState) -> TrainState:
    """A batch without a trained token: parameters, moments and counts stay bit-identical, one counter moves."""
    return state.replace(skipped=state.skipped + 1)
