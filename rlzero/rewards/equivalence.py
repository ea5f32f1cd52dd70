r"""Exact comparison of integers in the forms that models write. No evaluation, no tolerance, no conversion to `int`.

An integer is read as a sign and a string of digits and compared as such, so numbers of any length cost a string
comparison and Python's limit on converting long digit strings is never met. Markup around the number is skipped. What
is then not plainly one integer (`34 or 35`, `\approx 34`, `3, 4`, `34!`, `9**9`) is not read at all: in doubt an answer
is wrong.
"""

import re

_BLANK = r"\s|\\[,;:! ]|\\q?quad(?![A-Za-z])"
_FONT = r"\\(?:text(?:bf|it|rm)?|math(?:bf|rm|it|sf)|boldsymbol|bm|mbox|boxed|fbox)(?=\{)"
_OPENING = re.compile(rf"(?:{_BLANK}|{_FONT}|[*`${{(\"']|\\[(\[$]|\\left(?=\()|\\(?:displaystyle|bf)(?![A-Za-z]))*")
_CLOSING = re.compile(rf"(?:{_BLANK}|[*`$}})\"'.,;:]|\\[)\]]|\\right(?=\)))*")
_GREEK = r"\\(?:alpha|beta|gamma|delta|epsilon|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|psi|omega)"
_LETTERS = rf"(?:[A-Za-z](?![A-Za-z])|[A-Z]{{2,3}}(?![A-Za-z])|{_GREEK})"
_NAME = re.compile(rf"{_LETTERS}(?:_[A-Za-z0-9]|_\{{[A-Za-z0-9]{{1,8}}\}})?{_CLOSING.pattern}=")
_MINUS = r"\u2212\u2013\uff0d-"
_SIGN = re.compile(rf"[+{_MINUS}]?")
_SEPARATOR = r",\\[!,]|\{\\?,\}|\\,|[,\u2009\u202f]"
_GROUPED = rf"[1-9][0-9]{{0,2}}({_SEPARATOR})[0-9]{{3}}(?:\1[0-9]{{3}})*"
_DIGITS = re.compile(rf"(?:{_GROUPED}|[0-9]+)(?:\.0*(?![0-9]))?(?![0-9])")
_NO_DIGIT = re.compile(r"[^0-9]")
_PAIRS = ("()", "{}")


def canonical_integer(text: str) -> str | None:
    r"""Returns the one way to write the integer in `text`, or None if the text is not plainly one integer.

    Read are a sign (also the typographic minus), leading zeros, thousands groups if every group has three digits
    (`1,234`, `1{,}234`, `1\,234`, `1,\!234`), a fraction of zeros (`34.0`), a name in front (`x = 5`), parentheses, and
    markup or punctuation around the number.

    Args:
      text: an answer as extracted, or a gold answer.

    Returns:
      Digits without leading zeros, with a `-` in front if the number is below zero.
    """
    start = _OPENING.match(text).end()
    if name := _NAME.match(text, start):
        start = _OPENING.match(text, name.end()).end()
    sign = _SIGN.match(text, start)
    start = _OPENING.match(text, sign.end()).end()
    number = _DIGITS.match(text, start)
    if number is None or not _CLOSING.fullmatch(text, number.end()):
        return None
    around = text[:start] + text[number.end() :]
    if any(around.count(opening) != around.count(closing) for opening, closing in _PAIRS):
        return None
    whole = number.group().partition(".")[0]
    digits = _NO_DIGIT.sub("", whole).lstrip("0") or "0"
    negative = sign.group() not in ("", "+") and digits != "0"
    return "-" + digits if negative else digits
