"""Tells expressions apart by their values at fixed points, with 50 digits and more. It can refute, never prove.

A difference is believed only if it is there at two precisions, so that digits lost to cancellation are not taken for
one. Expressions are real functions here, as in `elementary.py`: points at which either is not real are passed over,
unless the imaginary unit is in one of them.
"""

from fractions import Fraction
from typing import Any

import mpmath

from rlzero.rewards.mathematics import algebraic
from rlzero.rewards.mathematics.tokens import Unreadable
from rlzero.rewards.mathematics.trees import Tree, contains, symbols

_DIGITS = (50, 200, 500)
_AGREEMENT = 25  # digits that a real number has of its imaginary part at most
_LARGEST_LOGARITHM = 1e12
# Where the first variable is, and how far apart the others are: small, large, negative and mixed.
_POINTS = tuple(
    (Fraction(*start), Fraction(*step))
    for start, step in (
        ((61, 23), (37, 29)),
        ((7, 19), (11, 43)),
        ((-45, 31), (-5, 53)),
        ((-17, 27), (71, 59)),
        ((83, 31), (-67, 37)),
        ((1201, 17), (203, 13)),
        ((-1707, 19), (-31, 7)),
    )
)


class NoValue(ValueError):
    """The expression has no value here, or none that could be computed within bounds."""


_FAILURES = (ValueError, ZeroDivisionError, OverflowError, mpmath.libmp.ComplexResult)


def refuted(a: Tree, b: Tree) -> bool | None:
    """Whether the expressions differ somewhere.

    Returns:
      True if they do, False if they agree at every point at which both have values, None if there is no such point.
    """
    names = sorted(symbols(a) | symbols(b))
    complex_values = contains(a, ("const", "i")) or contains(b, ("const", "i"))
    agreed = None
    for start, step in _POINTS if names else _POINTS[:1]:
        point = {name: start + index * step for index, name in enumerate(names)}
        try:
            if _differ_at(a, b, point, complex_values):
                return True
            agreed = False
        except _FAILURES:
            continue
    return agreed


def real_value(tree: Tree) -> Any:
    """The value of an expression without variables with 50 digits, or None if it has none or is not real."""
    try:
        return _real(_value(tree, {}, algebraic.context(_DIGITS[0])), algebraic.context(_DIGITS[0]))
    except _FAILURES + (KeyError,):
        return None


def _differ_at(a: Tree, b: Tree, point: dict[str, Fraction], complex_values: bool) -> bool:
    """Whether the values differ by more than half of the digits, at two precisions in a row."""
    before = False
    for digits in _DIGITS:
        context = algebraic.context(digits)
        values = [_value(tree, point, context) for tree in (a, b)]
        if not complex_values:
            values = [_real(value, context) for value in values]
        difference = abs(values[0] - values[1])
        if not context.isfinite(difference):
            raise NoValue("no finite value")
        scale = max(abs(value) for value in values)
        ten = context.mpf(10)
        now = difference > scale * ten ** (-digits // 2) and difference > ten ** (-digits * 3 // 4)
        if now and before:
            return True
        before = now
    return False


def _real(value: Any, context: Any) -> Any:
    if abs(context.im(value)) > abs(value) * context.mpf(10) ** -_AGREEMENT:
        raise NoValue("not real")
    return context.re(value)


def _value(tree: Tree, point: dict[str, Fraction], context: Any) -> Any:
    operation, *operands = tree
    if operation in ("num", "sym"):
        exact = operands[0] if operation == "num" else point[operands[0]]
        return context.mpf(exact.numerator) / exact.denominator
    if operation == "const":
        return _constant(operands[0], context)
    if operation == "fn":
        return _function(operands[0], [_value(operand, point, context) for operand in operands[1:]], context)
    values = [_value(operand, point, context) for operand in operands]
    if operation == "pow":
        return _power(*values, _odd_root(operands[1]), context)
    return {"add": sum, "mul": lambda v: v[0] * v[1], "neg": lambda v: -v[0], "div": lambda v: v[0] / v[1]}[
        operation
    ](values)


def _constant(name: str, context: Any) -> Any:
    if name == "inf":
        raise Unreadable("infinity in an expression")
    return {"pi": context.pi, "e": context.e, "i": context.mpc(0, 1)}[name] + 0


def _odd_root(exponent: Tree) -> Fraction | None:
    """An exponent p/q with odd q, as it is written, for which negative numbers have real powers."""
    if exponent[0] == "neg":
        inner = _odd_root(exponent[1])
        return None if inner is None else -inner
    if exponent[0] == "div" and exponent[1][0] == exponent[2][0] == "num" and exponent[2][1]:
        value = exponent[1][1] / exponent[2][1]
        return value if value.denominator % 2 and value.denominator > 1 else None
    return None


def _power(base: Any, exponent: Any, odd_root: Fraction | None, context: Any) -> Any:
    if base == 0:
        if context.re(exponent) <= 0:
            raise NoValue("a power of zero")
        return base
    if abs(exponent * context.log(abs(base))) > _LARGEST_LOGARITHM or abs(exponent) > _LARGEST_LOGARITHM:
        raise NoValue("too large")
    if odd_root is not None and context.im(base) == 0 and base < 0:
        return (-1) ** odd_root.numerator * context.power(-base, exponent)
    return context.power(base, exponent)


def _function(name: str, values: list[Any], context: Any) -> Any:
    if name in ("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh") and abs(values[0]) > 1e6:
        raise NoValue("too large an argument")
    if name == "factorial" and abs(values[0]) < 1e6:
        return context.gamma(values[0] + 1)
    if name in _SAME_NAME:
        return getattr(context, _SAME_NAME[name])(values[0])
    if name == "lg":
        return context.log10(values[0])
    raise NoValue(f"no values of {name}")


_SAME_NAME = {name: name for name in ("sin cos tan sec csc cot sinh cosh tanh ln floor ceil").split()} | {
    "abs": "fabs",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
}
