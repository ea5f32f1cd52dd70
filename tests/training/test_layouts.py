"""Packing, attention in blocks, rematerialization and the mesh lay the same sums out differently."""

import dataclasses

import jax
import numpy as np
import pytest
from toys import LLAMA, make_params, random_groups

from rlzero import algorithms
from rlzero.models import sharding, transformer
from rlzero.training.learner import Learner, LearnerOptions
from rlzero.training.metrics import finalize
from rlzero.training.optimizer import OptimizerOptions

# With eps = 1 an AdamW update is nearly proportional to the gradient; see test_learner.py.
_OPTIMIZER = OptimizerOptions(0.3, eps=1.0, weight_decay=0.01, max_grad_norm=1e9)
_OPTIONS = LearnerOptions(policy=_OPTIMIZER, critic=_OPTIMIZER, groups_per_step=4, group_size=4,
                          max_completion_length=12, temperature=0.7, mini_batches=1, epochs=3)
_GROUPS = random_groups(4, 4)


def _trained(name, mesh=None, **options):
    """Parameters, critic included, and metrics after three updates."""
    params = make_params()
    if mesh is not None:
        params = jax.device_put(params, sharding.parameter_shardings(transformer.parameter_specs(LLAMA), mesh))
    learner = Learner(LLAMA, algorithms.get(name), dataclasses.replace(_OPTIONS, **options),
                      jax.tree.map(jax.numpy.array, params), mesh=mesh)
    step = learner.step(_GROUPS, 0, 0)
    return learner, jax.device_get(learner.arrays), finalize(step.metrics.totals)


@pytest.fixture(scope="module")
def plain():
    """Three updates with one response per row on one device, by algorithm."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = _trained(name)[1:]
        return made[name]

    return get


def _assert_same(got, want):
    start = make_params()
    (arrays, values), (expected, expected_values) = got, want
    changes = jax.tree.map(lambda a, b: np.abs(a - b).max(), expected["policy"].params, jax.device_get(start))
    assert max(jax.tree.leaves(changes)) > 0.02
    for a, b in zip(jax.tree.leaves(arrays), jax.tree.leaves(expected), strict=True):
        # float32 sums in another order, over three updates; a mean of means is off by a tenth of a moment.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-3 * np.abs(b).max() + 1e-6)
    for name in set(expected_values) - {"batch/trained_token_fraction", "batch/filled_fraction"}:
        assert values[name] == pytest.approx(expected_values[name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("name", algorithms.PRESETS)
def test_packed_rows_give_the_same_updates(name, plain):
    _, *got = _trained(name, pack_tokens=48, micro_batch_size=5)
    _assert_same(got, plain(name))
    assert got[1]["batch/filled_fraction"] != plain(name)[1]["batch/filled_fraction"]


@pytest.mark.parametrize("options", [{"attention": "blockwise"}, {"remat": True},
                                     {"attention": "blockwise", "remat": True, "pack_tokens": 48}], ids=str)
def test_ways_to_save_memory_give_the_same_updates(options, plain):
    _assert_same(_trained("dapo", **options)[1:], plain("dapo"))


@pytest.mark.parametrize("name", ["dapo", "ppo"])
@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2)], ids=str)
def test_eight_devices_give_the_same_updates(name, shape, plain):
    mesh = sharding.make_mesh(*shape)
    learner, *got = _trained(name, mesh, pack_tokens=48)
    _assert_same(got, plain(name))
    expected = sharding.parameter_shardings(transformer.parameter_specs(LLAMA), mesh)
    for path in ("params",):
        layouts = jax.tree.map(lambda array: array.sharding, getattr(learner.arrays["policy"], path))
        assert jax.tree.all(jax.tree.map(lambda a, b, p: a.is_equivalent_to(b, p.ndim), layouts, expected,
                                         learner.params)), "parameters moved"
    moments = learner.arrays["policy"].opt_state[1][0].mu
    assert jax.tree.all(jax.tree.map(lambda a, b: a.sharding.is_equivalent_to(b, a.ndim), moments, expected))


@pytest.mark.parametrize("attention, message", [("splash", "runs on a TPU and this is a CPU; choose 'blockwise'"),
                                                ("flash", "unknown attention implementation 'flash'")])
def test_attention_that_is_not_possible_is_refused_before_any_work(attention, message):
    with pytest.raises(ValueError, match=message):
        Learner(LLAMA, algorithms.get("dapo"), dataclasses.replace(_OPTIONS, attention=attention), make_params())
