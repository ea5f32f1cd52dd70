"""What the rollouts of a step say, by hand: over all that was generated, with right, wrong and unscored kept apart."""

import math

import pytest
from toys import completion, sample

from rlzero.data import Problem
from rlzero.rewards import Reward
from rlzero.rollout.sampler import Group, Rollout, Sample
from rlzero.training.metrics import finalize
from rlzero.training.rollout_metrics import rollout_metrics

ACCOUNT = {"generated": 10, "carried_in": 2, "trained": 4, "filtered": 4, "failed": 2, "abandoned": 0, "carried_out": 2}


def shaped(prompt, index, length, correct, penalty, *, reason="stop", answer="1"):
    made = completion(prompt, index, (7,) * (length - 1) + (1,), reason=reason)
    return Sample(made, "text", answer, Reward(correct, {"correctness": float(correct), "overlong": penalty}))


def group(prompt, *samples):
    return Group(Problem(prompt, "question", "1", (3, 4, 5)), samples)


MIXED = group("p", shaped("p", 0, 4, True, 0.0), shaped("p", 1, 6, False, -0.25))
SHORT = group("q", shaped("q", 0, 16, False, -1.0, reason="length", answer=None),
              sample(completion("q", 1, (7, 8)), None))
SAME = group("r", shaped("r", 0, 3, True, 0.0), shaped("r", 1, 3, True, 0.0))
ABORTED = group("s", shaped("s", 0, 5, True, 0.0, reason="abort"))


def test_numbers_by_hand():
    """Usable: right 4, 3, 3 and wrong 6, 16 tokens long; beside them one unscored of 2 tokens and one aborted of 5."""
    metrics = finalize(rollout_metrics(Rollout([MIXED], [MIXED, SHORT, SAME, ABORTED], [], ACCOUNT, 3)))
    assert metrics == pytest.approx({
        "rollout/generated": 10, "rollout/carried_in": 2, "rollout/trained": 4, "rollout/filtered": 4,
        "rollout/failed": 2, "rollout/abandoned": 0,
        "rollout/carried_out": 2, "rollout/rounds": 3, "rollout/tokens": 39,
        "rollout/truncated_fraction": 1 / 7, "rollout/unknown_ids_fraction": 0,
        "reward/mean": (3 - 1.25) / 5, "reward/accuracy": 3 / 5, "reward/correctness": 3 / 5,
        "reward/overlong": -1.25 / 5, "reward/unscored_fraction": 2 / 7, "reward/unanswered_fraction": 2 / 7,
        "length/mean": 39 / 7, "length/min": 2, "length/max": 16, "length/correct_mean": 10 / 3,
        "length/wrong_mean": 11, "length/terminated_mean": 18 / 5,
        "group/mixed_fraction": 1 / 4, "group/all_correct_fraction": 1 / 4, "group/all_wrong_fraction": 1 / 4,
        "group/identical_fraction": 1 / 4})


def test_accuracy_is_over_what_was_generated_and_not_over_what_was_kept():
    solved = [group(f"g{i}", shaped(f"g{i}", 0, 3, True, 0.0), shaped(f"g{i}", 1, 4, True, 0.0)) for i in range(3)]
    metrics = finalize(rollout_metrics(Rollout([MIXED], [MIXED, *solved], [], ACCOUNT, 1)))
    assert metrics["reward/accuracy"] == 7 / 8 and metrics["group/mixed_fraction"] == 1 / 4


def test_a_step_without_generation_has_an_account_and_no_averages():
    metrics = finalize(rollout_metrics(Rollout([MIXED], [], [], ACCOUNT, 0)))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["rollout/tokens"] == metrics["rollout/rounds"] == 0
    assert not any(name.startswith(("reward/", "length/", "group/")) for name in metrics)


def test_a_group_of_one_is_not_called_identical():
    one = group("p", shaped("p", 0, 3, True, 0.0))
    assert finalize(rollout_metrics(Rollout([], [one], [], ACCOUNT, 1)))["group/identical_fraction"] == 0
