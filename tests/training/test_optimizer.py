"""The optimizer: the schedule as a function of the stored count, and updates that happen whole or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import device

from rlzero.training.optimizer import OptimizerOptions, apply, count_skipped, init_train_state, zero_gradient

PARAMS = {"w": np.array([1.0, -2.0, 3.0], np.float32), "b": np.float32(0.5)}
GRADIENT = {"w": np.array([0.3, -0.1, 0.0], np.float32), "b": np.float32(-0.2)}
OPTIONS = OptimizerOptions(0.1, weight_decay=0.1)


def fetched(state):
    return jax.tree.map(np.array, state)


def assert_same_bits(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("options, want", [
    (OptimizerOptions(2.0), {0: 2.0, 9: 2.0}),
    (OptimizerOptions(2.0, warmup_updates=1), {0: 2.0, 1: 2.0}),
    (OptimizerOptions(2.0, warmup_updates=4), {0: 0.5, 1: 1.0, 2: 1.5, 3: 2.0, 4: 2.0, 99: 2.0}),
    (OptimizerOptions(2.0, total_updates=8, schedule="cosine"),
     {0: 2.0, 2: 2 * (2 + 2**0.5) / 4, 4: 1.0, 8: 0.0, 9: 0.0}),
    (OptimizerOptions(2.0, warmup_updates=2, total_updates=10, schedule="cosine", end_fraction=0.1),
     {0: 1.0, 1: 2.0, 2: 2.0, 6: 0.2 + 1.8 * 0.5, 10: 0.2, 50: 0.2})])
def test_learning_rates_by_hand(options, want):
    got = {count: float(options.learning_rate_at(count)) for count in want}
    assert got == pytest.approx(want, abs=1e-6)


def test_every_update_takes_the_step_of_its_count():
    """With a constant gradient AdamW moves each weight by the learning rate, against the gradient's sign."""
    options = OptimizerOptions(0.4, warmup_updates=4)
    state = init_train_state(device(PARAMS), options)
    for rate in (0.1, 0.2, 0.3, 0.4, 0.4):
        before = fetched(state.params)
        state, metrics = apply(state, device(GRADIENT), options=options)
        np.testing.assert_allclose(before["w"][:2] - state.params["w"][:2], [rate, -rate], rtol=1e-5)
        assert float(metrics["learning_rate"][0]) == pytest.approx(rate)
    assert int(state.updates) == 5


def test_first_update_by_hand():
    """Clipped from norm √0.14 to 0.1, m̂ = g and v̂ = g² on the first update; weight decay is decoupled."""
    options = OptimizerOptions(0.1, eps=0.5, weight_decay=0.1, max_grad_norm=0.1)
    state, metrics = apply(init_train_state(device(PARAMS), options), device(GRADIENT), options=options)
    for name, value in PARAMS.items():
        g = GRADIENT[name] * 0.1 / np.sqrt(0.14)
        np.testing.assert_allclose(state.params[name], value - 0.1 * (g / (np.abs(g) + 0.5) + 0.1 * value), rtol=1e-5)
    assert float(metrics["gradient_norm"][0]) == pytest.approx(np.sqrt(0.14))  # before clipping


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_moves_nothing_but_counters(bad):
    state, _ = apply(init_train_state(device(PARAMS), OPTIONS), device(GRADIENT), options=OPTIONS)
    before = fetched(state)
    for times in range(1, 11):
        poisoned = GRADIENT | {"w": np.array([0.3, bad, 0.0], np.float32)}
        state, metrics = apply(state, device(poisoned), options=OPTIONS)
        after = fetched(state)
        assert_same_bits(after.params, before.params)
        assert_same_bits(after.opt_state, before.opt_state)
        assert (int(after.updates), int(after.skipped), int(after.bad)) == (1, times, times)
        assert metrics["gradient_norm"][1] == 0 and np.isfinite(metrics["gradient_norm"][0])
    state, _ = apply(state, device(GRADIENT), options=OPTIONS)
    assert (int(state.updates), int(state.skipped), int(state.bad)) == (2, 10, 0)
    reference = init_train_state(device(PARAMS), OPTIONS)
    for _ in range(2):
        reference, _ = apply(reference, device(GRADIENT), options=OPTIONS)
    assert_same_bits(fetched(state.params), fetched(reference.params))


def test_skipping_moves_one_counter():
    state, _ = apply(init_train_state(device(PARAMS), OPTIONS), device(GRADIENT), options=OPTIONS)
    before, after = fetched(state), fetched(count_skipped(state))
    assert_same_bits(after, before.replace(skipped=np.int32(1)))


def test_a_zero_gradient_would_move_weights_which_is_why_empty_batches_are_skipped():
    state, _ = apply(init_train_state(device(PARAMS), OPTIONS), device(zero_gradient(PARAMS)), options=OPTIONS)
    np.testing.assert_allclose(state.params["w"], 0.99 * PARAMS["w"], rtol=1e-6)


def test_states_are_donated_and_bfloat16_weights_have_float32_accumulators():
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), device(PARAMS))
    gradient = zero_gradient(low)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}
    state = init_train_state(low, OPTIONS)
    after, _ = apply(state, device(GRADIENT), options=OPTIONS)
    assert {leaf.dtype for leaf in jax.tree.leaves(after.params)} == {jnp.dtype("bfloat16")}
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
