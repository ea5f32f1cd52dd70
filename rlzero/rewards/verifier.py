"""The verifier: a response and a gold answer in, a `Grade` out. Nothing a model wrote is run or evaluated."""

import dataclasses

from rlzero.rewards import equivalence, extraction

MODES = ("integer",)


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
    """Grades one response against its gold answer.

    Args:
      response: the text of the response only: no prompt, no special tokens.
      gold: the gold answer.
      mode: how answers are compared. "integer" compares exact integers.

    Returns:
      The grade. A gold answer that cannot be read gives a grade with an `error`.

    Raises:
      ValueError: for an unknown mode.
      TypeError: if response or gold is not text.
    """
    if mode not in MODES:
        raise ValueError(f"grade has no mode {mode!r}; available: {', '.join(map(repr, MODES))}.")
    for name, value in (("response", response), ("gold", gold)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be text, got {type(value).__name__}; pass it as a str.")
    extracted = extraction.answer_text(response)
    expected = equivalence.canonical_integer(gold)
    if expected is None:
        return Grade(False, extracted, f"the gold answer {gold[:80]!r} is not an integer")
    given = None if extracted is None else equivalence.canonical_integer(extracted)
    return Grade(given == expected, extracted)
