"""From a grade to a reward: named parts that are logged apart and added once.

NumPy and plain floats only, because processes that grade answers have no use for an accelerator. The penalty is the
same function as `rlzero.kernels.soft_overlong_penalty`, the one to use under `jit`; a test holds them together.
"""

import dataclasses

import numpy as np

from rlzero.rewards.verifier import Grade


@dataclasses.dataclass(frozen=True)
class Reward:
    """The reward of one response.

    Attributes:
      correct: the verdict that accuracy and dynamic sampling count. None: not graded, and not to be trained on.
      parts: what the reward is the sum of, by name. "correctness" is always there; "overlong" and "format" are there
        when penalty or bonus are in use, also when they are 0 for this response.
    """

    correct: bool | None
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def overlong_cache(overlong_fraction: float, max_completion_length: int) -> int:
    """Returns the length in tokens of the zone before the limit in which the penalty grows."""
    return round(overlong_fraction * max_completion_length)


def overlong_penalty(lengths: np.ndarray, *, max_length: int, cache: int) -> np.ndarray:
    """The soft overlong penalty on the host.

    0 up to max_length - cache, then falling in a straight line to -1 at max_length, and -1 beyond (DAPO, arXiv
    2503.14476, eq. 13). With cache 0 there is no slope: 0 up to and at max_length, -1 beyond.

    Args:
      lengths: response lengths in tokens, end of sequence included; any shape.
      max_length: the limit in tokens.
      cache: length of the slope in tokens, 0 ... max_length.

    Returns:
      float64 penalties in [-1, 0], of the shape of `lengths`.

    Raises:
      ValueError: if the slope does not fit below the limit.
    """
    if not 0 <= cache <= max_length:
        raise ValueError(f"cache must lie in 0 ... max_length, got cache {cache} with max_length {max_length}.")
    lengths = np.asarray(lengths, np.float64)
    if cache == 0:
        return np.where(lengths > max_length, -1.0, 0.0)
    return np.clip((max_length - cache - lengths) / cache, -1.0, 0.0) + 0.0


def reward(
    grade: Grade,
    completion_length: int,
    *,
    max_completion_length: int,
    truncated: bool = False,
    truncated_policy: str = "wrong",
    correct: float = 1.0,
    wrong: float = 0.0,
    overlong_fraction: float = 0.0,
    value: float | None = None,
    format_bonus: float = 0.0,
    well_formed: bool = False,
) -> Reward:
    """Turns a grade into the reward of one response.

    Neither penalty nor bonus changes the verdict: `Reward.correct` is about the answer alone.

    Args:
      grade: the verifier's grade of the response.
      completion_length: tokens of the response, end of sequence included.
      max_completion_length: the limit the response was sampled under, in tokens.
      truncated: whether the response was cut at that limit.
      truncated_policy: "score" grades a cut response by its text; "wrong" and "mask" count it as wrong whatever it
        says ("mask" in addition keeps it out of the loss, which is the learner's part).
      correct: reward of a right answer.
      wrong: reward of a wrong answer.
      overlong_fraction: share of `max_completion_length` in which the soft overlong penalty grows; 0 is no penalty.
      value: what the answer is worth by a reward function of one's own, in the place of `correct` and `wrong`.
      format_bonus: added for a layout of reasoning and answer; less than what being right adds.
      well_formed: whether the response has this layout.

    Returns:
      The reward; for a response that could not be graded one with `correct` None and correctness 0.
    """
    if grade.error is not None:
        return Reward(None, {"correctness": 0.0})
    counted = not truncated or truncated_policy == "score"
    verdict = grade.correct and counted
    worth = value if value is not None and counted else correct if verdict else wrong
    parts = {"correctness": float(worth)}
    if format_bonus:
        parts["format"] = format_bonus if well_formed else 0.0
    if overlong_fraction > 0:
        cache = overlong_cache(overlong_fraction, max_completion_length)
        penalty = overlong_penalty(completion_length, max_length=max_completion_length, cache=cache)
        parts["overlong"] = float(penalty)
    return Reward(verdict, parts)
