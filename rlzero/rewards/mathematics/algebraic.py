"""Decides whether an algebraic number is zero, exactly, from enough of its digits.

A nonzero algebraic integer of degree D whose conjugates are all at most B in size is at least B^(1-D) in size, because
the product of its conjugates is a nonzero integer. So a sum of products of roots is zero if and only if it is smaller
than a bound that can be read off it. The bound is generous; where it asks for too many digits there is no answer.
"""

import dataclasses
import math
import threading
from fractions import Fraction
from typing import Any

import mpmath

from rlzero.rewards.mathematics.forms import ONE, UNITY, Form, Generator, I

_MAX_DIGITS = 3000
_SIGN_DIGITS = 80
# mpmath keeps its precision in a context; one for each thread, as graders may run in several.
_contexts = threading.local()


class NotAlgebraic(ValueError):
    """The form holds something else than roots of rational numbers and of sums of such."""


def context(digits: int) -> Any:
    """This thread's mpmath context, set to a precision."""
    if not hasattr(_contexts, "own"):
        _contexts.own = mpmath.ctx_mp.MPContext()
    _contexts.own.dps = digits
    return _contexts.own


def is_zero(form: Form) -> bool | None:
    """Whether a sum without variables is zero; None if this cannot be decided here."""
    if not form.top:
        return True
    try:
        bound = _Bound.of(form)
    except (NotAlgebraic, OverflowError):
        return None
    digits = bound.degree * bound.denominator + (bound.degree - 1) * max(bound.size, 0)
    if digits > _MAX_DIGITS:
        return None
    numbers = context(int(digits + max(bound.size, 0) + bound.degree) + 30)
    return bool(abs(value(form, numbers)) < numbers.mpf(10) ** -(int(digits) + 10))


def sign(form: Form) -> int:
    """The sign of a real algebraic number: 1 or -1, or 0 if it is zero, not real, or not known."""
    try:
        number = value(form, context(_SIGN_DIGITS))
    except (NotAlgebraic, ZeroDivisionError):
        return 0
    real, small = mpmath.re(number), mpmath.mpf(10) ** (-_SIGN_DIGITS // 2)
    if abs(mpmath.im(number)) > small or abs(real) < small:
        return 0
    return 1 if real > 0 else -1


@dataclasses.dataclass(frozen=True)
class _Bound:
    """Of a sum: the degree of a field it lies in, and decimal logarithms of what its conjugates and denominator are.

    Attributes:
      degree: an upper bound of the degree.
      size: no conjugate is larger than 10^size.
      denominator: 10^denominator times the sum is an algebraic integer, up to a whole factor that makes it one.
    """

    degree: int
    size: float
    denominator: float

    @classmethod
    def of(cls, form: Form) -> "_Bound":
        degrees: dict[str, int] = {}
        size, denominator = _bound_sum(form, degrees)
        return cls(math.prod(degrees.values()), size, denominator)


def _bound_sum(form: Form, degrees: dict[str, int]) -> tuple[float, float]:
    """Logarithms of size and denominator; notes the degree of every generator on the way."""
    if form.bottom != ONE:
        raise NotAlgebraic("a quotient")
    parts: dict[Generator, list[Fraction]] = {}
    for monomial in form.top:
        for generator, exponent in monomial:
            parts.setdefault(generator, []).append(exponent)
    bounds = {generator: _bound_generator(generator, exponents, degrees) for generator, exponents in parts.items()}
    sizes = [_log10(abs(c)) + sum(float(e) * bounds[g][0] for g, e in m) for m, c in form.top.items()]
    common = math.log10(math.lcm(*(c.denominator for c in form.top.values())))
    return max(sizes) + math.log10(len(sizes)), common + sum(denominator for _, denominator in bounds.values())


def _bound_generator(generator: Generator, exponents: list[Fraction], degrees: dict[str, int]) -> tuple[float, float]:
    """Logarithms of the size of the generator and of the denominator of its highest power."""
    order = math.lcm(*(exponent.denominator for exponent in exponents))
    name = f"{generator.kind}:{generator.name}"
    if min(exponents) < 0:
        raise NotAlgebraic("a negative power")
    if generator == I or generator == UNITY:
        degrees[name] = 2 * order
        return 0.0, 0.0
    degrees[name] = math.lcm(order, degrees.get(name, 1))
    if generator.kind == "prime":
        return math.log10(int(generator.name, 16)), 0.0
    if generator.kind != "root":
        raise NotAlgebraic(f"a generator of kind {generator.kind}")
    size, denominator = _bound_sum(generator.inside, degrees)
    return max(size, 0.0), denominator * order


def _log10(value: Fraction) -> float:
    return math.log10(value.numerator) - math.log10(value.denominator)


def value(form: Form, numbers: Any) -> Any:
    """The form as a number of an mpmath context; odd roots of negative numbers are negative."""
    return _sum_value(form.top, numbers) / (_sum_value(form.bottom, numbers) if form.bottom != ONE else 1)


def _sum_value(terms: Any, numbers: Any) -> Any:
    return numbers.fsum(
        numbers.mpf(c.numerator) / c.denominator * numbers.fprod(_power(g, e, numbers) for g, e in monomial)
        for monomial, c in terms.items())


def _power(generator: Generator, exponent: Fraction, numbers: Any) -> Any:
    exact = numbers.mpf(exponent.numerator) / exponent.denominator
    if generator == I:
        return numbers.mpc(0, 1) ** exact
    if generator == UNITY:
        return numbers.expjpi(exact)
    if generator.kind == "prime":
        return numbers.mpf(int(generator.name, 16)) ** exact
    if generator.kind != "root":
        raise NotAlgebraic(f"a generator of kind {generator.kind}")
    inside = value(generator.inside, numbers)
    if exponent.denominator % 2 and numbers.im(inside) == 0 and inside < 0:
        return (-1) ** exponent.numerator * (-inside) ** exact
    return inside**exact
