r"""Answers rewritten as integers, with the question extended to ask for them (DAPO, arXiv 2503.14476, appendix B).

An integer can be compared without any doubt. DAPO's authors had a language model rewrite their problems; here rules do,
where one applies: the answer `\frac{3}{4}` becomes 7, and the question says that the answer is a fraction m/n in lowest
terms and asks for m + n. What has no rule is left out under a named reason, not guessed at.

    integer     34, 1{,}234, x = 5, 6!, 2^{10}         as it stands
    unit        12 cm, 50\%, 90^\circ, \$5             the number, and the question names the unit
    fraction    \frac34, 1\frac12, 0.125               m/n -> m + n
    root        3\sqrt2, \frac{\sqrt3}{2}              k \sqrt m / n -> k + m + n
    sum         2+\sqrt3, \frac{1-\sqrt5}{2}           (k + l \sqrt m) / n -> k + l + m + n
    pi          12\pi, \frac{2\pi}{3}, 32\pi - 64      (k + l \pi) / n -> k + l + n
    complex     3 - 2i, \frac{i}{2}                    (k + l i) / n -> k + l + n
    several     (1, 2, 3); 2, -3; \{1, 5\}             the sum of all integers; without order all different

n is left out where it is 1, k where it is 0. Letters that the question uses are not used again.
"""

import math
import re
from fractions import Fraction
from typing import NamedTuple

from rlzero.rewards import equivalence
from rlzero.rewards.mathematics import choices, reading, why_unreadable
from rlzero.rewards.mathematics.answers import (
    Answer,
    Based,
    Group,
    Interval,
    Matrix,
    Named,
    Ratio,
    Relation,
    Scalar,
    Text,
)
from rlzero.rewards.mathematics.elementary import form_of
from rlzero.rewards.mathematics.forms import ONE, PI, Form, I, Ring, TooLarge, Undefined
from rlzero.rewards.mathematics.tokens import Unreadable
from rlzero.rewards.mathematics.trees import Tree, symbols

MOST_DIGITS = 15
_LETTERS = "mnkpqrstuvwabcdfghj"  # in the order in which they are taken
_HALF = Fraction(1, 2)
_ALONE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_PAIR = re.compile(r"\b(?:pair|point|coordinate|vertex|cent(?:er|re)|vector|tuple|intersect)", re.IGNORECASE)
_WORDS = {"percent": "percent", "deg": "degrees", "usd": "dollars", "gbp": "pounds", "eur": "euros"}


class Rewritten(NamedTuple):
    """A problem with an integer answer, and the rule of the table above that made it."""

    question: str
    answer: str
    rule: str


class NotRewritten(ValueError):
    """The answer has no rule; the text is the reason, the same for all answers of a kind."""


def rewrite(question: str, answer: str) -> Rewritten:
    """Rewrites an answer as an integer and extends the question accordingly.

    Args:
      question: the problem's text.
      answer: its gold answer.

    Raises:
      NotRewritten: there is no rule for this answer; names the reason.
    """
    digits = equivalence.canonical_integer(answer)
    if digits is not None:
        return Rewritten(question, _bounded(digits), "integer")
    if why_unreadable(answer) is not None:
        raise NotRewritten("unreadable")
    if choices.gold_letter(answer) is not None:
        raise NotRewritten("a choice")
    try:
        found = reading.read(answer)
        return _rewritten(question, found.value if isinstance(found, Named) else found)
    except (Unreadable, Undefined):
        raise NotRewritten("unreadable") from None
    except TooLarge:
        raise NotRewritten("too large") from None


def _rewritten(question: str, answer: Answer) -> Rewritten:
    if isinstance(answer, Scalar):
        return _scalar(question, answer)
    if isinstance(answer, Group) and answer.kind != "or":
        return _several(question, answer.items, ordered=answer.kind in ("tuple", "array"))
    if isinstance(answer, Interval) and not answer.low_closed and not answer.high_closed:
        if not _PAIR.search(question):
            raise NotRewritten("a pair or an interval")
        return _several(question, (Scalar(answer.low), Scalar(answer.high)), ordered=True)
    for kind, reason in ((Text, "text"), (Relation, "an equation or inequality"), (Matrix, "a matrix"),
                         (Based, "in another base"), (Ratio, "a ratio")):
        if isinstance(answer, kind):
            raise NotRewritten(reason)
    raise NotRewritten("a set of real numbers" if not isinstance(answer, Group) else "alternatives")


def _scalar(question, answer):
    names = _unused_letters(question)
    tree = answer.tree if answer.unit.factor == 1 else ("mul", ("num", Fraction(answer.unit.factor)), answer.tree)
    value, demand, rule = _integer_of(_form(tree), names)
    demands = [demand] if demand else []
    if answer.unit.powers:
        demands.insert(0, f"The unit of the answer is {_unit_words(answer.unit.powers)}; leave it out.")
        rule = "unit" if rule == "integer" else rule
    return Rewritten(_extended(question, demands), _bounded(value), rule)


def _several(question, items, *, ordered):
    values = []
    for item in items:
        if not isinstance(item, Scalar) or item.unit.powers or symbols(item.tree):
            raise NotRewritten("several, not all integers")
        values.append(_form(item.tree).rational)
    if any(value is None or value.denominator != 1 for value in values):
        raise NotRewritten("several, not all integers")
    if not ordered and len(set(values)) < len(values):
        raise NotRewritten("several, with repeats")
    demand = "The answer consists of several integers. Give their sum."
    return Rewritten(_extended(question, [demand]), _bounded(sum(values)), "several")


def _form(tree: Tree) -> Form:
    """The canonical form of a number."""
    if symbols(tree):
        raise NotRewritten("has variables")
    ring = Ring()
    form = form_of(tree, ring)
    if not ring.complete or form.bottom != ONE:
        raise NotRewritten("another expression")
    return form


def _integer_of(form: Form, letters: list[str]) -> tuple[int, str, str]:
    """The integer that stands for a number, what has to be asked for, and the rule."""
    m, n, k, l = letters
    number = form.rational
    if number is not None and number.denominator == 1:
        return int(number), "", "integer"
    if number is not None:
        return (number.numerator + number.denominator, f"The answer is a fraction ${m}/{n}$ in lowest terms with "
                f"integers ${m}$ and ${n} > 0$. Find ${m} + {n}$.", "fraction")
    terms = dict(form.top)
    plain = terms.pop((), Fraction(0))
    if len(terms) != 1:
        raise NotRewritten("another expression")
    (monomial, factor), = terms.items()
    what, radicand = _irrational(monomial, m)
    bottom = math.lcm(plain.denominator, factor.denominator)
    # The parts in the order of the formula (k + l · what) / n, each with its value, where it is there.
    above = ([(k, plain * bottom)] if plain else []) + [(l if plain else k, factor * bottom)]
    parts = above + ([(m, radicand)] if radicand else []) + ([(n, bottom)] if bottom > 1 else [])
    shape = " + ".join(name for name, _ in above) + what
    shape = rf"\frac{{{shape}}}{{{n}}}" if bottom > 1 else shape
    names = [f"${name}$" for name, _ in above] + ([f"${n} > 0$ without a common divisor"] if bottom > 1 else [])
    kinds = f"an integer {names[0]}" if len(names) == 1 else f"integers {', '.join(names[:-1])} and {names[-1]}"
    condition = f", where ${m}$ is a positive integer that no square of a prime divides" if radicand else ""
    asked = f"Give ${k}$." if len(parts) == 1 else f"Find ${' + '.join(name for name, _ in parts)}$."
    total = int(sum(value for _, value in parts))
    rule = {r"\pi": "pi", "i": "complex"}.get(what, "sum" if plain else "root")
    return total, f"The answer has the form ${shape}$ with {kinds}{condition}. {asked}", rule


def _irrational(monomial, letter: str) -> tuple[str, int]:
    """How the irrational part of a number is written, and what is under its root, if it is one."""
    if monomial in (((PI, Fraction(1)),), ((I, Fraction(1)),)):
        return (r"\pi" if monomial[0][0] == PI else "i"), 0
    if any(generator.kind != "prime" or exponent != _HALF for generator, exponent in monomial):
        raise NotRewritten("another expression")
    return rf"\sqrt{{{letter}}}", math.prod(int(generator.name, 16) for generator, _ in monomial)


def _unused_letters(question: str) -> list[str]:
    """Four letters that do not stand alone in the question: for a numerator, a denominator, and two factors."""
    used = set(_ALONE.findall(question))
    free = [letter for letter in _LETTERS if letter not in used]
    if len(free) < 4:
        raise NotRewritten("no letters left")
    return free[:4]


def _unit_words(powers) -> str:
    above = [_power_word(name, power) for name, power in powers if power > 0]
    below = [_power_word(name, -power) for name, power in powers if power < 0]
    return " ".join(above or ["1"]) + "".join(f" per {word}" for word in below)


def _power_word(name, power):
    word = {1: "", 2: "square ", 3: "cubic "}.get(power)
    return f"{_WORDS.get(name, name)}^{power}" if word is None else word + _WORDS.get(name, name)


def _extended(question: str, demands: list[str]) -> str:
    return "\n\n".join([question.rstrip(), " ".join(demands)]) if demands else question


def _bounded(value: int | str | Fraction) -> str:
    if len(str(value).lstrip("-")) > MOST_DIGITS if isinstance(value, str) else abs(value) >= 10**MOST_DIGITS:
        raise NotRewritten("too large")
    return str(value)
