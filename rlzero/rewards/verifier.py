"""The verifier: a response and a gold answer in, a `Grade` out. Nothing a model wrote is run or evaluated."""

import dataclasses
import functools
import importlib.util

from rlzero.rewards import equivalence, extraction, gym_scorers

try:
    from rlzero.rewards import mathematics
except ModuleNotFoundError as error:
    if error.name != "mpmath":
        raise
    mathematics = None  # of the extra "math", which only that mode needs

MODES = ("integer", "math", gym_scorers.MODE)


@dataclasses.dataclass(frozen=True)
class Grade:
    """What the verifier says about one response.

    Attributes:
      correct: whether the answer is the gold answer. False whenever `error` is set.
      extracted: the text of the answer the response commits to; None if it commits to none.
      error: why no verdict was possible, or None. A response with an error was not graded: it is neither right nor
        wrong, and must not be trained on as if it were.
    """

    correct: bool
    extracted: str | None
    error: str | None = None


def grade(response: str, gold: str, *, mode: str = "integer") -> Grade:
    """Grades one response against its gold answer, in the calling process and thread.

    Work is bounded by the sizes of what is compared and not by a clock, so that a response has one grade everywhere.

    Args:
      response: the text of the response only: no prompt, no special tokens.
      gold: the gold answer.
      mode: how answers are compared. "integer" compares exact integers; "math" compares all kinds of answers, see
        `rlzero.rewards.mathematics`; "reasoning_gym" asks the scorer of a generated task, see
        `rlzero.rewards.gym_scorers`, and is the only one whose work has no bound.

    Returns:
      The grade. A gold answer that cannot be read gives a grade with an `error`.

    Raises:
      ValueError: for an unknown mode.
      TypeError: if response or gold is not text.
      ImportError: if the mode needs an extra that is not installed.
    """
    require_mode(mode)
    for name, value in (("response", response), ("gold", gold)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be text, got {type(value).__name__}; pass it as a str.")
    extracted = extraction.answer_text(response)
    fault = why_unreadable(gold, mode)
    if fault is not None:
        return Grade(False, extracted, f"the gold answer {gold[:80]!r} {fault}")
    return Grade(extracted is not None and _same(gold, extracted, mode), extracted)


def parses(gold: str, mode: str) -> bool:
    """Whether a gold answer is one that responses can be compared with; problems without one are to be left out."""
    return why_unreadable(gold, mode) is None


def why_unreadable(gold: str, mode: str) -> str | None:
    """What is wrong with a gold answer, as the end of a sentence, or None."""
    if mode == gym_scorers.MODE:
        return gym_scorers.why_unreadable(gold)
    if equivalence.canonical_integer(gold) is not None:
        return None
    return "is not an integer" if mode == "integer" else mathematics.why_unreadable(gold)


def require_mode(mode: str) -> None:
    """Checks that a mode exists and that what it needs is installed.

    Raises:
      ValueError: for an unknown mode.
      ImportError: if the mode needs an extra that is not installed; the sentence names it.
    """
    if mode not in MODES:
        raise ValueError(f"grade has no mode {mode!r}; available: {', '.join(map(repr, MODES))}.")
    if mode == gym_scorers.MODE:
        gym_scorers.require()
    if mode == "math" and not _has_math():
        raise ImportError("the mode 'math' needs math-verify, which is not installed; pip install 'rlzero[math]', or "
                          "use the mode 'integer'.")


@functools.cache
def _has_math() -> bool:
    return mathematics is not None and importlib.util.find_spec("math_verify") is not None


def _same(gold: str, given: str, mode: str) -> bool:
    if mode == gym_scorers.MODE:
        return gym_scorers.same(gold, given)
    expected, found = equivalence.canonical_integer(gold), equivalence.canonical_integer(given)
    plain = expected is not None and found is not None and "(" not in gold + given and "=" not in gold
    if mode == "integer" or plain:
        return expected == found
    return mathematics.same_answer(gold, given)
