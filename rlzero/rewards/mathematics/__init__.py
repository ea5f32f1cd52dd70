r"""Answers of mathematics in LaTeX or plain text, compared by kind and exactly.

The way of an answer: `tokens.py` splits it, `reading.py` finds its kind (`answers.py`) and `expressions.py` reads its
scalars into trees; `comparison.py` compares kinds and `scalars.py` decides whether two trees are equal, with the exact
arithmetic of `forms.py`. Only pairs that this cannot decide reach the library behind `library.py`. Nothing a model
wrote is evaluated as code, and all work is bounded by sizes, not by a clock, so that a pair has one verdict everywhere.
"""

import re

from rlzero.rewards.mathematics import choices, library, reading
from rlzero.rewards.mathematics.answers import Answer, Text
from rlzero.rewards.mathematics.comparison import same
from rlzero.rewards.mathematics.tokens import MAX_CHARACTERS, Unreadable

__all__ = ["library", "same_answer", "why_unreadable"]

_SPACE = re.compile(r"\s+|\\[,;:! ]|~")
_BESIDE_A_SIGN = re.compile(r" ?([^0-9A-Za-z ]) ?")
_EMPTY_ARGUMENT = re.compile(r"\\(?:[dt]?frac|sqrt|text|d?binom)\s*(?:\{[^{}]*\}\s*)?\{\s*\}|\^\s*\{\s*\}")
_ESCAPED = re.compile(r"\\.", re.DOTALL)


def same_answer(gold: str, given: str) -> bool:
    """Whether an answer is the gold answer: the same letter, the same text, or the same value of the same kind."""
    letter = choices.gold_letter(gold)
    if letter is not None and choices.chosen_letter(given) == letter:
        return True
    if _squeezed(gold) == _squeezed(given):
        return True
    try:
        expected = _read(gold)
        return same(expected, _read(given)) or _says(expected, given)
    except Unreadable:
        return False


def _says(expected: Answer, given: str) -> bool:
    """Whether an answer consists of the letters of a gold answer in words, such as NO for `\\text{No}`."""
    if not isinstance(expected, Text) or not all(word.isalpha() for word in expected.values):
        return False
    words = " ".join(expected.values)
    return len(words) > 1 and choices.unwrapped(given).rstrip(".").casefold() == words


def why_unreadable(gold: str) -> str | None:
    """What is wrong with a gold answer that no answer could be compared with, or None."""
    text = _squeezed(gold)
    if not re.search(r"[0-9A-Za-z\u0080-\uffff]|\\\{", text):
        return "is empty"
    if len(gold) > MAX_CHARACTERS:
        return f"is longer than {MAX_CHARACTERS} characters"
    braces = _ESCAPED.sub("", gold)
    if braces.count("{") != braces.count("}"):
        return "has braces that do not pair up"
    if _EMPTY_ARGUMENT.search(gold):
        return "has an empty argument"
    return None


def _read(text: str) -> Answer:
    return reading.read(text)


def _squeezed(text: str) -> str:
    """The text without blanks, except between letters and digits, where they matter."""
    text = _SPACE.sub(" ", text.strip()).strip(" $*`").rstrip(".").strip(" $*`")
    return _BESIDE_A_SIGN.sub(r"\1", text)
