"""Rewards: verdict, parts, and the soft overlong penalty."""

import numpy as np
import pytest

from rlzero import kernels
from rlzero.rewards import Grade, overlong_cache, overlong_penalty, reward

_RIGHT, _WRONG = Grade(True, "34"), Grade(False, "35")
_LENGTHS = [0, 16_384, 16_589, 18_432, 20_480, 20_481]


def test_penalty_at_its_borders():
    penalties = overlong_penalty(_LENGTHS, max_length=20_480, cache=4096)
    np.testing.assert_allclose(penalties, [0, 0, -205 / 4096, -0.5, -1, -1], rtol=1e-12)
    assert not np.signbit(penalties[:2]).any()


def test_penalty_without_a_slope_is_a_step():
    np.testing.assert_array_equal(overlong_penalty([0, 99, 100, 101], max_length=100, cache=0), [0, 0, 0, -1])


@pytest.mark.parametrize("cache", [-1, 101])
def test_penalty_refuses_a_slope_that_does_not_fit(cache):
    with pytest.raises(ValueError, match="cache must lie in"):
        overlong_penalty([1], max_length=100, cache=cache)


@pytest.mark.parametrize("cache", [0, 1, 4096, 20_480])
def test_penalty_is_the_kernel(cache):
    expected = kernels.soft_overlong_penalty(np.asarray(_LENGTHS), max_length=20_480, cache=cache)
    # The kernel computes in float32.
    np.testing.assert_allclose(
        overlong_penalty(_LENGTHS, max_length=20_480, cache=cache), np.asarray(expected), atol=1e-6
    )


@pytest.mark.parametrize(
    ("grade", "values", "total"), [(_RIGHT, (1, 0), 1), (_WRONG, (1, 0), 0), (_WRONG, (1, -1), -1)]
)
def test_correctness_pays_what_the_config_says(grade, values, total):
    result = reward(grade, 5, max_completion_length=10, correct=values[0], wrong=values[1])
    assert result.total == total
    assert result.parts == {"correctness": total}
    assert result.correct is grade.correct


def test_penalty_is_added_once_and_never_changes_the_verdict():
    assert overlong_cache(0.2, 10) == 2
    result = reward(_RIGHT, 9, max_completion_length=10, overlong_fraction=0.2)
    assert result.parts == {"correctness": 1.0, "overlong": -0.5}
    assert result.total == 0.5
    assert result.correct is True
    assert reward(_RIGHT, 8, max_completion_length=10, overlong_fraction=0.2).parts["overlong"] == 0


@pytest.mark.parametrize(("policy", "correct"), [("wrong", False), ("mask", False), ("score", True)])
def test_a_cut_response(policy, correct):
    result = reward(_RIGHT, 10, max_completion_length=10, truncated=True, truncated_policy=policy)
    assert result.correct is correct
    assert result.total == float(correct)


def test_what_could_not_be_graded_has_no_verdict():
    assert reward(Grade(False, "34", "no gold"), 5, max_completion_length=10).correct is None
