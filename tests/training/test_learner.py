"""The learner: its gradient against a plain one, invariances of an update, and updates that must not happen."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import LLAMA, completion, device, make_params, random_groups, sample

from rlzero import algorithms
from rlzero.algorithms import Algorithm
from rlzero.data import Problem
from rlzero.models import transformer
from rlzero.rollout.sampler import Group
from rlzero.training import batch as batch_lib
from rlzero.training import learner as learner_lib
from rlzero.training.learner import Learner, LearnerOptions, NonFiniteError
from rlzero.training.metrics import finalize
from rlzero.training.optimizer import OptimizerOptions

PARAMS = make_params()
# With eps = 1 and no clipping, an AdamW update is nearly proportional to the gradient. The usual eps would turn
# gradients that are zero up to rounding into full steps of either sign, and nothing could be compared.
OPTIMIZER = OptimizerOptions(0.3, eps=1.0, weight_decay=0.01, max_grad_norm=1e9)
OPTIONS = LearnerOptions(policy=OPTIMIZER, critic=OPTIMIZER, groups_per_step=2, group_size=4, max_completion_length=12,
                         temperature=0.7)
ALGORITHMS = algorithms.PRESETS | {
    "gspo": Algorithm(surrogate="gspo", normalization="sequence_mean", clip_low=0.01, clip_high=0.01),
    "cispo": Algorithm(surrogate="cispo", normalization="group_token_mean", importance_cap=2.0)}
GROUPS = random_groups(2, 4)  # eight rows of at most 16 predictions: one shape, so one compilation for all tests


def make_learner(algorithm="dapo", **options):
    algorithm = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    return Learner(LLAMA, algorithm, dataclasses.replace(OPTIONS, **options), device(PARAMS))


def fetched(tree):
    return jax.tree.map(np.array, tree)


def largest_change(params, before=PARAMS):
    return max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(before), strict=True))


def assert_same_bits(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, fetched(got), fetched(want))


def with_samples(groups, change):
    """The groups with every sample replaced by `change(p, g, sample)`."""
    return [Group(group.problem, tuple(change(p, g, s) for g, s in enumerate(group.samples)))
            for p, group in enumerate(groups)]


def unscored(p, g, old):
    return sample(old.completion, None)


@pytest.fixture
def gradients(monkeypatch):
    """The accumulated gradients of every update, in order."""
    recorded, apply = [], learner_lib.apply

    def spy(state, gradient, *, options):
        recorded.append(fetched(gradient))
        return apply(state, gradient, options=options)

    monkeypatch.setattr(learner_lib, "apply", spy)
    return recorded


@pytest.fixture
def batches(monkeypatch):
    """Every scored batch, in order."""
    recorded, assign = [], learner_lib.assign_advantages

    def spy(batch, algorithm):
        recorded.append(batch)
        return assign(batch, algorithm)

    monkeypatch.setattr(learner_lib, "assign_advantages", spy)
    return recorded


# The gradient, against one from full logits.


def padded_rows(groups):
    """ids [B, 17], positions of the sampled tokens [B, 17], lengths [B], from the completions themselves."""
    made = [s.completion for group in groups for s in group.samples]
    ids, sampled = np.zeros((len(made), 17), int), np.zeros((len(made), 17), bool)
    for row, c in enumerate(made):
        prompt, end = len(c.request.prompt_ids), len(c.request.prompt_ids) + len(c.completion_ids)
        ids[row, :end] = c.request.prompt_ids + c.completion_ids
        sampled[row, prompt:end] = True
    return ids, sampled, sampled.sum(axis=1)


def full_logprobs(params, ids, temperature=0.7):
    """log softmax(logits / temperature) of ids[1:], by way of all logits; pads are ordinary tokens of the future."""
    positions, ones = np.broadcast_to(np.arange(16), (len(ids), 16)), np.ones((len(ids), 16), int)
    hidden = transformer.forward(params, LLAMA, ids[:, :-1], positions, ones)[0]
    logits = hidden @ params["embedding"].T / temperature
    return jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], axis=-1)[..., 0]


@jax.jit
def reinforce_gradient(params, ids, coefficients):
    """Gradient of -Σ coefficient · log π over the tokens ids[:, 1:]."""
    return jax.grad(lambda params: -jnp.sum(coefficients[:, 1:] * full_logprobs(params, ids)))(params)


def plain_coefficients(name, groups):
    """c_i · A_it of each preset for its first, on-policy update, from the table of the papers."""
    _, sampled, lengths = padded_rows(groups)
    rewards = np.array([[s.reward.total for s in group.samples] for group in groups])
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    if name == "ppo":  # values are 0 and the divergence from the reference too: A_t = λ^(tokens after t) · R, whitened
        after = lengths[:, None] - np.cumsum(sampled, axis=1)
        advantages = 0.95**after * rewards.reshape(-1, 1)
        chosen = advantages[sampled]
        return np.where(sampled, (advantages - chosen.mean()) / chosen.std() / lengths.sum(), 0)
    advantages = {"grpo": centred / rewards.std(axis=1, ddof=1, keepdims=True), "dr_grpo": centred,
                  "rloo": centred * 4 / 3, "dapo": centred / rewards.std(axis=1, ddof=1, keepdims=True)}[name]
    weights = {"grpo": 1 / (8 * lengths), "dr_grpo": np.full(8, 1 / (8 * 12)), "rloo": np.full(8, 1 / (8 * 12)),
               "dapo": np.full(8, 1 / lengths.sum())}[name]
    return sampled * (weights * advantages.reshape(-1))[:, None]


@pytest.mark.parametrize("name", sorted(algorithms.PRESETS))
def test_the_first_update_is_reinforce_with_the_weights_of_the_papers(name, gradients):
    result = make_learner(name).step(GROUPS, 0, 0)
    want = reinforce_gradient(PARAMS, padded_rows(GROUPS)[0], plain_coefficients(name, GROUPS).astype(np.float32))
    for got, expected in zip(jax.tree.leaves(gradients[-1]), jax.tree.leaves(fetched(want)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=2e-6)  # float32 sums of some hundred terms
    values = finalize(result.metrics.totals)
    assert values["policy/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert values["policy/kl_old"] == pytest.approx(0, abs=1e-9)
    assert values["policy/clip_fraction_low"] == values["policy/clip_fraction_high"] == 0
    norm = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradients[-1])))
    assert values["policy/gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_a_divergence_in_the_loss_pulls_towards_the_reference(gradients, batches):
    """k3 against a reference of other weights, with the coefficient of each response's weight."""
    learner = make_learner(dataclasses.replace(ALGORITHMS["grpo"], kl_coef=0.1))
    reference = make_params(seed=1)
    learner.arrays["reference"] = device(reference)
    result = learner.step(GROUPS, 0, 0)
    ids, sampled, lengths = padded_rows(GROUPS)
    mask, ref_logprobs = sampled[:, 1:], np.asarray(full_logprobs(reference, ids))
    np.testing.assert_allclose(batches[0].rows.ref_logprobs[mask], ref_logprobs[mask], atol=1e-5)
    gap = (ref_logprobs - np.asarray(full_logprobs(PARAMS, ids))).astype(np.float64)
    k3 = np.exp(gap) - gap - 1
    assert finalize(result.metrics.totals)["policy/kl_ref"] == pytest.approx(k3[mask].mean(), rel=1e-4)
    # d k3 / d log π = 1 - exp(gap), so the divergence is one more term of REINFORCE's coefficients.
    coefficients = plain_coefficients("grpo", GROUPS)
    coefficients[:, 1:] -= np.where(mask, 0.1 * (1 - np.exp(gap)) / (8 * lengths[:, None]), 0)
    want = reinforce_gradient(PARAMS, ids, coefficients.astype(np.float32))
    for got, expected in zip(jax.tree.leaves(gradients[-1]), jax.tree.leaves(fetched(want)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)


def test_old_logprobs_are_those_of_the_policy_at_the_sampling_temperature(batches):
    make_learner().step(GROUPS, 0, 0)
    ids, sampled, _ = padded_rows(GROUPS)
    want = np.asarray(full_logprobs(PARAMS, ids))
    np.testing.assert_array_equal(batches[0].rows.mask, sampled[:, 1:])
    np.testing.assert_allclose(batches[0].rows.old_logprobs[sampled[:, 1:]], want[sampled[:, 1:]], atol=1e-5)
    assert np.abs(want - np.asarray(full_logprobs(PARAMS, ids, 1.0)))[sampled[:, 1:]].max() > 0.1


def test_fresh_rows_are_scored_anew_and_carried_ones_keep_what_was_recorded(batches):
    groups = random_groups(1, 4, version=4) + random_groups(2, 4, version=3)[1:]
    make_learner("grpo").step(groups, 0, 4)
    rows = batches[0].rows
    recorded = rows.rollout_logprobs == rows.old_logprobs
    assert recorded[4:].all() and not recorded[:4][rows.mask[:4]].any()
    assert rows.ref_logprobs[rows.mask].max() < 0  # the reference is scored for both


def test_the_critics_first_gradient_is_that_of_half_the_mean_square_error(gradients):
    make_learner("ppo").step(GROUPS, 0, 0)
    ids, sampled, lengths = padded_rows(GROUPS)
    rewards = np.array([s.reward.total for group in GROUPS for s in group.samples])
    after = lengths[:, None] - np.cumsum(sampled, axis=1)
    returns = np.where(sampled, 0.95**after * rewards[:, None], 0)  # values are 0, so returns are advantages
    # d/d(bias) of Σ 0.5 (V - R)² / tokens at V = 0
    np.testing.assert_allclose(gradients[0]["head"]["bias"], -returns.sum() / lengths.sum(), rtol=1e-4)
    positions, ones = np.broadcast_to(np.arange(17), ids.shape), np.ones_like(ids)
    hidden = np.asarray(transformer.forward(PARAMS, LLAMA, ids, positions, ones)[0])
    weight = -np.einsum("bs,bsd->d", returns[:, 1:], hidden[:, :-1]) / lengths.sum()
    np.testing.assert_allclose(gradients[0]["head"]["weight"], weight, rtol=1e-3, atol=1e-5)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradients[0]["trunk"]))  # behind a head of zeros


# What must not matter.


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_and_order_do_not_change_an_update(name):
    """Two epochs, so that the second update is off-policy; micro-batches of 8, of 5 and 3, and of 3, 3 and 2 rows."""
    backwards = [Group(group.problem, group.samples[::-1]) for group in GROUPS[::-1]]
    results = []
    for size, groups in ((0, GROUPS), (5, GROUPS), (3, backwards)):
        learner = make_learner(name, micro_batch_size=size, epochs=2)
        step = learner.step(groups, 0, 0)
        results.append((fetched(learner.arrays), finalize(step.metrics.totals), step.advantages))
    (arrays, values, advantages), *others = results
    start = fetched(make_learner(name).arrays)
    assert int(arrays["policy"].updates) == 2 and largest_change(arrays["policy"].params) > 0.02
    for other, other_values, _ in others:
        for a, b, first in zip(*map(jax.tree.leaves, (other, arrays, start)), strict=True):
            # float32 sums in another order, against what the update changed; a mean of means is off by a tenth of it.
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b - first).max() + 1e-6)
        for metric in set(values) - {"batch/trained_token_fraction", "batch/filled_fraction", "policy/loss"}:
            assert other_values[metric] == pytest.approx(values[metric], rel=1e-4, abs=1e-6), metric
        assert other_values["policy/loss"] == pytest.approx(values["policy/loss"], abs=1e-5)
    np.testing.assert_allclose(results[1][2], advantages, atol=1e-6)
    np.testing.assert_allclose(results[2][2][::-1, ::-1], advantages, atol=1e-5)


@pytest.mark.parametrize("name", ["ppo", "dr_grpo"])
def test_the_width_of_the_padding_does_not_change_an_update(name, monkeypatch):
    learners = []
    for width in (16, 40):
        monkeypatch.setattr(batch_lib, "width_bucket", lambda needed, width=width: width)
        learners.append(make_learner(name))
        learners[-1].step(GROUPS, 0, 0)
    for a, b in zip(*(jax.tree.leaves(fetched(learner.arrays)) for learner in learners), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_response_that_is_not_trained_is_as_good_as_absent():
    """A cut response under truncated="mask" keeps its reward in the baseline; its tokens change nothing.

    Not to the last bit: rows are sorted by length, so they are added up in another order.
    """
    algorithm = dataclasses.replace(ALGORITHMS["dapo"], truncated="mask")

    def cut(ids):
        def change(p, g, old):
            if (p, g) != (0, 1):
                return old
            made = completion("p0", 1, ids, prompt_ids=old.completion.request.prompt_ids, reason="length")
            return sample(made, old.reward.total)

        return with_samples(GROUPS, change)

    params = []
    for ids in ((7, 8), (9,) * 11):
        learner = make_learner(algorithm)
        learner.step(cut(ids), 0, 0)
        params.append(fetched(learner.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *params)
    assert largest_change(params[0]) > 1e-3


# How many updates, and of what.


def test_every_mini_batch_of_every_epoch_is_an_update():
    learner = make_learner(groups_per_step=4, mini_batches=2, epochs=3)
    result = learner.step(random_groups(4, 4), 0, 0)
    assert int(learner.arrays["policy"].updates) == 6
    assert result.metrics.totals["policy/gradient_norm"][1] == 6
    assert result.advantages.shape == (4, 4) and result.updated


def test_mini_batches_hold_every_group_once_an_epoch_in_a_seeded_order():
    learner = make_learner(mini_batches=3, epochs=2)
    chosen = list(learner._mini_batches(7, 0))
    assert [len(part) for part in chosen] == [3, 2, 2] * 2
    epochs = [np.concatenate(chosen[:3]).tolist(), np.concatenate(chosen[3:]).tolist()]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(7)) and epochs[0] != epochs[1]
    assert [part.tolist() for part in learner._mini_batches(7, 0)] == [part.tolist() for part in chosen]
    assert np.concatenate(list(learner._mini_batches(7, 1)))[:7].tolist() != epochs[0]
    assert np.concatenate(list(make_learner(seed=1)._mini_batches(7, 0))).tolist() != epochs[0]


def test_a_partial_step_divides_by_what_is_there():
    """One group in a learner made for two has the update of a learner made for one, also for `constant`."""
    params = []
    for size in (1, 2):
        learner = make_learner("dr_grpo", groups_per_step=size)
        learner.step(GROUPS[:1], 0, 0)
        params.append(fetched(learner.params))
    for a, b in zip(*map(jax.tree.leaves, params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_critic_warms_up_alone_and_then_both_learn():
    learner = make_learner("ppo", critic_warmup_steps=1)
    before = fetched(learner.arrays)
    first = learner.step(GROUPS, 0, 0)
    after = fetched(learner.arrays)
    assert_same_bits(after["policy"], before["policy"])
    assert largest_change(after["critic"].params, before["critic"].params) > 1e-3 and not first.updated
    assert "policy/loss" not in finalize(first.metrics.totals) and "critic/loss" in finalize(first.metrics.totals)
    second = learner.step(GROUPS, 1, 0)
    assert second.updated and largest_change(learner.params) > 1e-3
    values = finalize(second.metrics.totals)
    assert (values["critic/updates"], values["policy/updates"]) == (2, 1)
    assert values["critic/explained_variance"] <= 1


def test_the_critic_may_make_more_updates_than_the_policy_whose_own_they_do_not_touch():
    alike, other = make_learner("ppo"), make_learner("ppo", critic_mini_batches=2, epochs=2)
    other_alone = make_learner("ppo", epochs=2)
    for learner in (alike, other, other_alone):
        learner.step(GROUPS, 0, 0)
    updates = [tuple(int(learner.arrays[name].updates) for name in ("policy", "critic"))
               for learner in (alike, other, other_alone)]
    assert updates == [(1, 1), (2, 4), (2, 2)]
    assert_same_bits(fetched(other.params), fetched(other_alone.params))


def test_the_reference_is_the_first_policy_until_it_is_refreshed():
    learner = make_learner("grpo", reference_refresh_steps=2)
    for step in range(5):
        before = fetched(learner.params)
        learner.step(GROUPS, step, step)
        if step in (2, 4):
            assert_same_bits(learner.arrays["reference"], before)
            refreshed = before
        else:
            assert_same_bits(learner.arrays["reference"], PARAMS if step < 2 else refreshed)
    fixed = make_learner("grpo")
    fixed.step(GROUPS, 0, 0)
    fixed.step(GROUPS, 1, 1)
    assert_same_bits(fixed.arrays["reference"], PARAMS)


def test_a_learner_goes_on_from_a_saved_state():
    learner = make_learner("ppo")
    learner.step(GROUPS, 0, 0)
    other = make_learner("ppo")
    other.set_state(device(learner.get_state()))
    for each in (learner, other):
        each.step(random_groups(2, 4, seed=1), 1, 1)
    assert_same_bits(other.arrays, learner.arrays)


# Updates that must not happen.


@pytest.mark.parametrize("name", ["ppo", "dapo"])
def test_a_batch_without_a_trained_token_moves_nothing_but_a_counter(name):
    learner = make_learner(name, epochs=2)
    learner.step(GROUPS, 0, 0)
    before = fetched(learner.arrays)
    result = learner.step(with_samples(GROUPS, unscored), 1, 1)
    assert not result.updated
    for part in {"policy", "critic"} & before.keys():
        assert_same_bits(learner.arrays[part], before[part].replace(skipped=np.int32(2)))
    values = finalize(result.metrics.totals)
    assert values["policy/skipped_updates"] == 2 and np.all(np.isfinite(list(values.values())))
    assert np.isfinite(result.advantages).all()


def test_no_groups_at_all_are_counted_as_skipped_too():
    learner = make_learner("ppo")
    before = fetched(learner.arrays)
    result = learner.step([], 0, 0)
    assert not result.updated and result.advantages.shape == (0, 4)
    for part in ("policy", "critic"):
        assert_same_bits(learner.arrays[part], before[part].replace(skipped=np.int32(1)))
    assert finalize(result.metrics.totals)["policy/skipped_updates"] == 1


def test_non_finite_gradients_leave_the_state_as_it_was_and_end_the_run_in_the_end():
    """Carried responses are trained with their recorded log-probabilities, of which one is NaN here."""
    def poison(p, g, old):
        logprobs = np.array(old.completion.rollout_logprobs)
        logprobs[0] = np.nan if (p, g) == (1, 2) else logprobs[0]
        broken = dataclasses.replace(old.completion, rollout_logprobs=tuple(logprobs))
        return dataclasses.replace(old, completion=broken)

    bad, learner = with_samples(GROUPS, poison), make_learner(max_bad_updates=3)
    learner.step(GROUPS, 0, 0)
    before = fetched(learner.arrays["policy"])
    for times in (1, 2):
        result = learner.step(bad, times, 1)
        assert not result.updated
        assert_same_bits(learner.arrays["policy"], before.replace(skipped=np.int32(times), bad=np.int32(times)))
    assert "policy/gradient_norm" not in finalize(result.metrics.totals)
    learner.step(GROUPS, 3, 1)
    assert int(learner.arrays["policy"].bad) == 0 and int(learner.arrays["policy"].updates) == 2
    for step in (4, 5):
        learner.step(bad, step, 2)
    before = fetched(learner.params)
    with pytest.raises(NonFiniteError, match="3 policy updates in a row had a gradient that is not finite") as caught:
        learner.step(bad, 6, 2)
    assert not np.all(np.isfinite(caught.value.rows.old_logprobs))
    assert_same_bits(learner.params, before)


def test_garbage_in_the_engines_logprobs_is_harmless_where_nothing_reads_them():
    """Fresh rows are scored by the trainer; without an importance cap the engine's numbers are metrics only."""
    def garbage(p, g, old):
        broken = dataclasses.replace(old.completion, rollout_logprobs=(-1e9,) * len(old.completion.completion_ids))
        return dataclasses.replace(old, completion=broken)

    learners = [make_learner(), make_learner()]
    learners[0].step(GROUPS, 0, 0)
    learners[1].step(with_samples(GROUPS, garbage), 0, 0)
    assert_same_bits(learners[1].params, learners[0].params)


# Memory and compilations.


def test_buffers_are_donated_without_a_warning_and_nothing_piles_up():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = make_learner("ppo", micro_batch_size=4)
        old = learner.params
        counts = []
        for step in range(20):
            learner.step(random_groups(2, 4, seed=step), step, step)
            counts.append(len(jax.live_arrays()))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    assert max(counts[5:]) == min(counts[5:])


def test_nothing_is_compiled_again_for_other_lengths_of_the_same_bucket():
    learner, compiled = make_learner(), []
    learner.step(GROUPS, 0, 0)
    learner.step([], 1, 1)

    def listen(event, seconds, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for step in range(2, 22):
            learner.step(random_groups(1 + step % 2, 4, seed=step, longest=step % 11 + 1), step, step)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []


def test_bfloat16_weights_have_float32_gradients(gradients):
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), device(PARAMS))
    learner = Learner(LLAMA, ALGORITHMS["dapo"], OPTIONS, low)
    learner.step(GROUPS, 0, 0)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {np.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(learner.params)} == {jnp.dtype("bfloat16")}


def test_a_group_of_identical_rewards_teaches_nothing():
    groups = [Group(Problem("p", "q", "1", (3, 4)), tuple(
        sample(completion("p", g, (7, 8 + g), prompt_ids=(3, 4)), 0.9) for g in range(4)))]
    result = make_learner("dr_grpo").step(groups, 0, 0)
    assert finalize(result.metrics.totals)["policy/gradient_norm"] == 0 and not result.advantages.any()
