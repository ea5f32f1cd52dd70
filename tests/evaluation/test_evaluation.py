"""Evaluation: the averages by hand, every sample graded, and no score from part of the samples."""

import math

import pytest
from toys import RIGHT, UNSCORED, WRONG, ScriptedEngine, score

from rlzero.data import Problem
from rlzero.evaluation import evaluate
from rlzero.rewards import GraderError
from rlzero.rollout.engine import RolloutError, Sampling
from rlzero.statistics import majority_share

SAMPLING = Sampling(max_new_tokens=4, stop_ids=(1,))


def problems(count):
    return [Problem(f"p{i}", f"question {i}", "1", (3,)) for i in range(count)]


def run(outcome, count, samples, *, seed=0, order=list):
    engine = ScriptedEngine(outcome, order=order)
    return evaluate(engine, problems(count), score, SAMPLING, samples_per_problem=samples, seed=seed), engine


def test_averages_by_hand():
    """p0 has 4 of 4 right, p1 1 of 4, p2 none; p2's are cut, and one of them has no answer."""
    def outcome(request):
        if request.prompt_id == "p2":
            return (8, 6, 6, 6) if request.sample_index == 3 else (6, 6, 6, 6)
        return RIGHT if request.prompt_id == "p0" or request.sample_index == 2 else WRONG

    result, _ = run(outcome, 3, 4, order=lambda requests: requests[::-1])
    assert result.accuracy == pytest.approx((1 + 0.25 + 0) / 3)
    # Deviations 7/12, -2/12, -5/12 over two degrees of freedom, over the root of three problems.
    assert result.standard_error == pytest.approx(math.sqrt((49 + 4 + 25) / 144 / 2 / 3))
    assert result.pass_at(1) == pytest.approx(result.accuracy)
    assert result.pass_at(2) == pytest.approx((1 + 0.5 + 0) / 3)  # one right in four: half of the pairs hold it
    assert result.pass_at(4) == pytest.approx(2 / 3)
    assert result.mean_length == pytest.approx((8 * 2 + 4 * 4) / 12)
    assert result.truncated_fraction == pytest.approx(4 / 12)
    assert result.unanswered_fraction == pytest.approx(1 / 12)


def test_a_single_problem_has_no_standard_error():
    result, _ = run(lambda request: RIGHT, 1, 2)
    assert result.accuracy == 1 and math.isnan(result.standard_error)


def test_all_30_problems_are_graded_once_each_with_all_their_samples():
    result, engine = run(lambda request: WRONG, 30, 3, order=lambda requests: requests[::-1])
    assert len(result.groups) == 30 and len(result.samples) == 90
    assert {group.problem.id for group in result.groups} == {problem.id for problem in problems(30)}
    assert len({request.seed for request in engine.calls[0]}) == 90


def test_the_same_seed_asks_for_the_same_random_numbers():
    calls = [run(lambda request: WRONG, 3, 2, seed=seed)[1].calls for seed in (1, 1, 2)]
    assert calls[0] == calls[1] and calls[0] != calls[2]


@pytest.mark.parametrize("trouble, error, words", [
    ("lost", RolloutError, "did not come back"), ("abort", RolloutError, "did not come back"),
    (UNSCORED, GraderError, "could not be graded")])
def test_a_sample_that_is_missing_or_cannot_be_graded_is_an_error(trouble, error, words):
    def outcome(request):
        return trouble if (request.prompt_id, request.sample_index) == ("p1", 1) else RIGHT

    with pytest.raises(error, match=f"1 of 6 evaluation samples {words}"):
        run(outcome, 3, 2)


def test_repeated_problems_are_refused():
    with pytest.raises(ValueError, match="unique ids"):
        evaluate(ScriptedEngine(lambda request: RIGHT), problems(2) + problems(1), score, SAMPLING,
                 samples_per_problem=1, seed=0)


def test_the_vote_counts_right_answers_as_one_and_shares_ties():
    assert majority_share([("2", True), ("2.0", True), ("3", False), ("3", False), ("3", False)]) == 0
    assert majority_share([("2", True), ("2.0", True), ("3", False), ("4", False)]) == 1
    assert majority_share([("2", True), ("3", False), (None, False), (None, False)]) == 0.5
    assert majority_share([(None, False)]) == 0
    assert run(lambda request: RIGHT if request.sample_index else WRONG, 2, 3)[0].majority == 1
