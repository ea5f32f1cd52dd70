"""Unbiased pass@k."""

import itertools

import numpy as np
import pytest

from rlzero.statistics import pass_at_k


@pytest.mark.parametrize("n, c", [(1, 0), (1, 1), (5, 2), (6, 6), (7, 0)])
def test_equals_the_count_over_all_subsets(n, c):
    for k in range(1, n + 1):
        hits = [any(index < c for index in subset) for subset in itertools.combinations(range(n), k)]
        np.testing.assert_allclose(pass_at_k(n, c, k), np.mean(hits), rtol=1e-12)


def test_large_counts_stay_finite():
    assert 0 < pass_at_k(4096, 1, 2048) < 1


@pytest.mark.parametrize(
    "arguments, message",
    [((4, 2, 5), r"k in \[1, 4\]"), ((4, 2, 0), "k in"), ((4, 5, 1), r"correct in \[0, 4\]"),
     ((4, -1, 1), "correct in")],
)
def test_numbers_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(*arguments)
