"""Rewards of one's own: a plain function of a sample, named in the config by its import path."""

import dataclasses
import math
import numbers
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class RewardSample:
    """What a reward function of one's own sees.

    Attributes:
      prompt_id: names the problem.
      sample_index: which of the responses to it this is.
      question: the problem's text, before the template.
      gold: the gold answer.
      text: the response alone, without special tokens.
      completion_ids: its tokens, the one that ends it included.
      truncated: whether it was cut at the length limit.
    """

    prompt_id: str
    sample_index: int
    question: str
    gold: str
    text: str
    completion_ids: tuple[int, ...]
    truncated: bool


RewardFunction = Callable[[RewardSample], float | None]


def own_reward(function: RewardFunction, sample: RewardSample) -> float | None:
    """Calls a reward function and checks what it says.

    Args:
      function: returns the reward of a sample, or None for one that is not to be trained on.
      sample: the sample.

    Raises:
      TypeError, ValueError: if it returns something else than None or a finite number.
      Exception: whatever the function raises, with a note that says for which sample.
    """
    where = f"{function.__module__}:{function.__name__} on sample {sample.sample_index} of prompt {sample.prompt_id}"
    try:
        value = function(sample)
    except Exception as error:
        error.add_note(f"in the reward function {where}")
        raise
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"the reward function {where} returned {value!r}; expected a number or None.")
    if not math.isfinite(value):
        raise ValueError(f"the reward function {where} returned {value!r}; expected a finite number or None.")
    return float(value)
