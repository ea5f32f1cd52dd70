"""Statistics of evaluations, in NumPy."""

import collections
from collections.abc import Sequence

import numpy as np


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that at least one of k samples is correct, estimated without bias from n of them.

        1 - C(n - c, k) / C(n, k) = 1 - Π_{j = n-c+1..n} (1 - k/j)

    (arXiv 2107.03374 equation 1.) 1 - (1 - c/n)^k would be biased downwards.

    Args:
      num_samples: n, the samples drawn for one problem.
      num_correct: c, how many of them are correct.
      k: at most n.

    Returns:
      The estimate, in [0, 1].

    Raises:
      ValueError: the numbers do not fit each other.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"expected k in [1, {num_samples}], the number of samples, got {k}")
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"expected num_correct in [0, {num_samples}], the number of samples, got {num_correct}")
    if num_samples - num_correct < k:
        return 1.0
    return float(1 - np.prod(1 - k / np.arange(num_samples - num_correct + 1, num_samples + 1)))


def majority_share(answers: Sequence[tuple[str | None, bool]]) -> float:
    """Whether the answer that most samples of a problem give is correct: 1 or 0, between them where answers tie.

    Correct answers are one answer, however they are written; wrong ones are told apart by their text. Samples without
    an answer do not vote. (arXiv 2203.11171, self-consistency.)

    Args:
      answers: of each sample, the answer found in it (or None) and whether it is correct.

    Returns:
      The share of correct ones among the most frequent answers; 0 if nobody answered.
    """
    votes = collections.Counter((correct, None if correct else answer) for answer, correct in answers
                                if correct or answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    winners = [correct for (correct, _), count in votes.items() if count == most]
    return sum(winners) / len(winners)
