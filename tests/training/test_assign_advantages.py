"""From rewards to advantages in rows: by hand, on the right tokens, and from what was scored only."""

import numpy as np
import pytest
from toys import completion, random_groups, sample

from rlzero import algorithms
from rlzero.data import Problem
from rlzero.rollout.sampler import Group
from rlzero.training.advantages import assign_advantages
from rlzero.training.batch import make_batch


def batch_of(*groups, size=None):
    """A batch from samples, with prompts of three tokens: the first sampled token is prediction 2."""
    made = [Group(Problem(f"p{i}", "q", "1", (3, 4, 5)), samples) for i, samples in enumerate(groups)]
    return make_batch(made, size or max(map(len, groups)), num_groups=len(groups), mask_truncated=False,
                      policy_version=0)


def samples(*rewards, length=2):
    return tuple(sample(completion("p", g, (7,) * length), reward) for g, reward in enumerate(rewards))


@pytest.mark.parametrize("name, overrides, want", [
    ("dr_grpo", {}, (0.75, -0.25, -0.25, -0.25)), ("rloo", {}, (1, -1 / 3, -1 / 3, -1 / 3)),
    ("grpo", {}, (1.5, -0.5, -0.5, -0.5)),
    ("dapo", {"advantage_ddof": 0}, (3**0.5, -(3**-0.5), -(3**-0.5), -(3**-0.5)))])
def test_each_response_has_one_advantage_on_its_sampled_tokens(name, overrides, want):
    batch = batch_of(samples(1.0, 0.0, 0.0, 0.0))
    assert assign_advantages(batch, algorithms.get(name, **overrides)) == {}
    np.testing.assert_allclose(batch.rows.advantages[:, 2:4], np.repeat(np.array(want)[:, None], 2, axis=1), rtol=1e-5)
    assert not batch.rows.advantages[:, :2].any() and not batch.rows.advantages[:, 4:].any()


@pytest.mark.parametrize("name, overrides, want", [
    ("rloo", {}, (1, 0, -1)), ("grpo", {"advantage_ddof": 0}, (1, 0, -1)), ("dr_grpo", {}, (0.5, 0, -0.5))])
def test_what_could_not_be_scored_takes_no_part(name, overrides, want):
    batch = batch_of(samples(1.0, None, 0.0), size=5)
    assign_advantages(batch, algorithms.get(name, **overrides))
    np.testing.assert_allclose(batch.rows.advantages[:, 2], [*want, 0, 0], rtol=1e-5)


def test_interleaved_groups_are_centred_apart():
    batch = batch_of(samples(1.0, 1.0), samples(0.0, 0.0))
    assign_advantages(batch, algorithms.get("grpo"))
    assert not batch.rows.advantages.any()


def test_a_divergence_in_the_reward_lowers_it_by_its_sum_over_the_response():
    """k1 of (0.2, 0.3) at coefficient 0.1 makes the reward 1 one of 0.95: advantages are ±0.475."""
    batch = batch_of(samples(1.0, 0.0))
    batch.rows.old_logprobs[:] = 7.0  # what stands outside the sampled tokens is ignored
    batch.rows.old_logprobs[:, 2:4] = [[-1.0, -1.0], [-2.0, -2.0]]
    batch.rows.ref_logprobs[:, 2:4] = [[-1.2, -1.3], [-2.0, -2.0]]
    algorithm = algorithms.get("dr_grpo", kl_placement="reward", kl_estimator="k1", kl_coef=0.1)
    metrics = assign_advantages(batch, algorithm)
    np.testing.assert_allclose(batch.rows.advantages[:, 2], [0.475, -0.475], rtol=1e-5)
    assert metrics["reward/kl_penalty"] == (pytest.approx(0.05, rel=1e-5), 4.0)


def gae_batch(width_of_second=3):
    """Two responses of 3 tokens and fewer; γ = 0.99, λ = 0.95; garbage around the sampled tokens."""
    first, second = completion("p", 0, (7, 8, 9)), completion("p", 1, (7,) * width_of_second)
    batch = batch_of((sample(first, 1.0), sample(second, 2.0)))
    batch.rows.old_values[:] = 99.0
    batch.rows.old_values[0, 2:5] = 0.5, 0.6, 0.7
    batch.rows.old_values[1, 2:2 + width_of_second] = 0.25
    return batch


def test_the_reward_falls_on_the_last_sampled_token_and_values_elsewhere_are_never_read():
    batch = gae_batch(1)
    algorithm = algorithms.get("ppo", gamma=0.99, gae_lambda=0.95, whiten_advantages=False, kl_coef=0.0)
    metrics = assign_advantages(batch, algorithm)
    want = np.zeros((2, 16))
    want[0, 2:5] = 0.44682858, 0.37515, 0.3
    want[1, 2] = 1.75
    np.testing.assert_allclose(batch.rows.advantages, want, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(batch.rows.returns[0, 2:5], want[0, 2:5] + [0.5, 0.6, 0.7], rtol=1e-5)
    assert not batch.rows.returns[:, :2].any() and not batch.rows.returns[:, 5:].any()
    assert metrics["critic/value_mean"] == (pytest.approx(0.5 + 0.6 + 0.7 + 0.25), 4.0)
    values, returns = np.array([0.5, 0.6, 0.7, 0.25]), np.array([0.94682858, 0.97515, 1.0, 2.0])
    want = 1 - np.var(returns - values) / np.var(returns)
    assert metrics["critic/explained_variance"] == (pytest.approx(want, rel=1e-4), 1.0)


def test_a_divergence_in_the_reward_falls_on_its_own_token_under_gae():
    batch = gae_batch(1)
    batch.rows.old_logprobs[0, 2:5] = -1.0
    batch.rows.ref_logprobs[0, 2:5] = -1.0, -3.0, -1.0  # k1 is 2 on the middle token
    algorithm = algorithms.get("ppo", gamma=1.0, gae_lambda=0.0, whiten_advantages=False, kl_coef=0.1)
    assign_advantages(batch, algorithm)
    # δ: 0.6 - 0.5, -0.2 + 0.7 - 0.6, 1 - 0.7
    np.testing.assert_allclose(batch.rows.advantages[0, 2:5], [0.1, -0.1, 0.3], rtol=1e-5)


def test_whitening_is_over_the_trained_tokens_of_the_batch_and_leaves_returns_alone():
    plain, white = gae_batch(3), gae_batch(3)
    for batch, whiten in ((plain, False), (white, True)):
        batch.rows.trained[1, 4] = False
        assign_advantages(batch, algorithms.get("ppo", whiten_advantages=whiten, kl_coef=0.0))
    trained = plain.rows.trained
    raw = plain.rows.advantages[trained].astype(np.float64)
    np.testing.assert_allclose(white.rows.advantages[trained], (raw - raw.mean()) / raw.std(), rtol=1e-4)
    assert not white.rows.advantages[~trained].any()
    np.testing.assert_array_equal(white.rows.returns, plain.rows.returns)


@pytest.mark.parametrize("name", sorted(algorithms.PRESETS))
def test_nothing_to_learn_from_gives_numbers_or_nothing(name):
    empty = make_batch([], 4, num_groups=2, mask_truncated=False, policy_version=0)
    for batch in (empty, batch_of(samples(None, None))):
        metrics = assign_advantages(batch, algorithms.get(name))
        assert not batch.rows.advantages.any()
        assert all(np.isfinite(value) for pair in metrics.values() for value in pair)


@pytest.mark.parametrize("name", sorted(algorithms.PRESETS))
def test_samples_may_come_in_any_order(name):
    groups = random_groups(3, 4)
    order = np.random.default_rng(1).permutation(4)
    shuffled = [Group(group.problem, tuple(group.samples[i] for i in order)) for group in groups]
    rows = []
    for these in (groups, shuffled):
        batch = make_batch(these, 4, num_groups=3, mask_truncated=False, policy_version=0)
        assign_advantages(batch, algorithms.get(name))
        rows.append(batch.rows.advantages.reshape(3, 4, -1))
    np.testing.assert_allclose(rows[1], rows[0][:, order], atol=1e-6)  # float32 sums in another order
