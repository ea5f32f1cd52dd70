r"""Letters of multiple-choice questions: A, (A), A., \textbf{(A)}, and the letter followed by what the option says."""

import re

_WRAPPERS = re.compile(
    r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|boxed|fbox|bf|rm|left|right)(?![A-Za-z])"
    r"|\\q?quad(?![A-Za-z])|[{}$*_`~]|\\[ ,;:!()]"
)
_LETTER = re.compile(r"\(?\s*([A-J])\s*\)?\s*[.:)]?")
_CHOSEN = re.compile(r"(?:(?:option|choice|answer)\s+)?\(?([A-J])(?:\s*\)\s*[.:]?|\s*[.:])\s*(\S.*)", re.IGNORECASE)
_ALONE = re.compile(r"(?:(?:option|choice|answer)\s+)?\(?\s*([A-J])\s*\)?\s*[.:)]?", re.IGNORECASE)
_ANOTHER = re.compile(r"(?<![A-Za-z])(?:\(?[A-J]\)|[A-J](?![A-Za-z])|(?:or|and|not|nor|but|both|either)(?![A-Za-z]))")


def gold_letter(gold: str) -> str | None:
    """The letter a gold answer consists of, or begins with if it stands in brackets there."""
    text = unwrapped(gold)
    letter = _LETTER.fullmatch(text) or re.fullmatch(r"\(\s*([A-J])\s*\)\s*\S.*", text)
    return letter[1] if letter else None


def chosen_letter(answer: str) -> str | None:
    """The one letter an answer chooses; None if it names several, or none."""
    text = unwrapped(answer)
    if alone := _ALONE.fullmatch(text):
        return alone[1].upper()
    chosen = _CHOSEN.fullmatch(text)
    if chosen is None or not chosen[1].isupper() or _ANOTHER.search(chosen[2]):
        return None
    return chosen[1]


def unwrapped(text: str) -> str:
    """The text without fonts, braces and doubled blanks; empty if it is too long for a choice or a word."""
    return " ".join(_WRAPPERS.sub(" ", text[:500]).split()) if len(text) <= 500 else ""
