"""Statistics of evaluations, in NumPy."""

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
