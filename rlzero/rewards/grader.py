"""The verifier of a run: in this process or in a pool, with a count of what it could not grade."""

import collections
import threading
from collections.abc import Sequence

from rlzero.rewards.pool import GradingPool
from rlzero.rewards.verifier import Grade, grade, require_mode

_WINDOW = 1000
_FEWEST = 100


class GraderError(RuntimeError):
    """Too many responses could not be graded for the run to go on."""


class ErrorRate:
    """Watches how often grading fails, over the last 1000 samples.

    An error is not a wrong answer: the sample is left out of training. Where many are left out something is broken, and
    going on would train on what is left.
    """

    def __init__(self, limit: float):
        """Makes a counter.

        Args:
          limit: share of the last samples that may fail; fewer than 100 samples count as 100. 1 never raises.
        """
        self._limit, self._recent = limit, collections.deque(maxlen=_WINDOW)
        self._lock = threading.Lock()

    def note(self, error: str | None) -> None:
        """Counts one sample.

        Raises:
          GraderError: if more than the limit failed.
        """
        with self._lock:
            self._recent.append(error is not None)
            failed, seen = sum(self._recent) if error is not None else 0, len(self._recent)
        if failed > self._limit * max(seen, _FEWEST):
            raise GraderError(
                f"{failed} of the last {seen} responses could not be graded, more than "
                f"--config.reward.max_error_rate={self._limit:g} allows; the last error: {error}")


class Grader:
    """Grades the responses of a run; a context manager, for the workers it may have."""

    def __init__(self, mode: str = "integer", *, workers: int = 0, deadline_seconds: float = 5.0,
                 max_error_rate: float = 1.0):
        """Starts the workers, if there are to be any.

        Args:
          mode: see `rlzero.rewards.grade`.
          workers: processes that grade; 0 grades in the calling thread.
          deadline_seconds: of a sample in a worker.
          max_error_rate: see `ErrorRate`.

        Raises:
          ValueError, ImportError: for settings that cannot be followed.
        """
        require_mode(mode)
        self.mode = mode
        self._rate = ErrorRate(max_error_rate)
        self._pool = GradingPool(workers, deadline_seconds, mode).__enter__() if workers else None

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers."""
        if self._pool is not None:
            self._pool.close()

    def grade(self, sample_id: str, response: str, gold: str) -> Grade:
        """Grades one response.

        Raises:
          GraderError: if too many could not be graded lately.
        """
        return self.grade_all([(sample_id, response, gold)])[0]

    def grade_all(self, samples: Sequence[tuple[str, str, str]]) -> list[Grade]:
        """Grades samples (sample_id, response, gold), in the order given."""
        if self._pool is None:
            grades = [grade(response, gold, mode=self.mode) for _, response, gold in samples]
        else:
            grades = self._pool.grade(samples)
        for result in grades:
            self._rate.note(result.error)
        return grades
