"""Exact values and forms of named functions: trigonometry, logarithms, counting, whole parts.

Sines and cosines are written in powers of e, which makes their identities plain algebra. `log` without a base is a
logarithm to a base that is not known, so that quotients of two are exact while its values are not guessed.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from rlzero.rewards.mathematics.forms import (E, ONE, PI, Form, Generator, I, Ring, Undefined, constant, content_of,
                                              prime_powers, single)
from rlzero.rewards.mathematics.powers import HALF, absolute, exponential

_MAX_FACTORIAL = 2500
_MAX_SHIFT = 30
_LOG_BASE = Generator("constant", "ln of the base of log")


def apply(name: str, arguments: list[Form], ring: Ring) -> Form:
    """The form of a function's value."""
    if name in _UNARY and len(arguments) == 1:
        return _UNARY[name](arguments[0], ring)
    numbers = [argument.rational for argument in arguments]
    whole = all(number is not None and number.denominator == 1 for number in numbers)
    if name in _COUNTING and whole:
        return constant(_COUNTING[name](*map(int, numbers)))
    if name in ("max", "min") and None not in numbers:
        return constant((max if name == "max" else min)(numbers))
    if name == "binom" and numbers[1] is not None and numbers[1].denominator == 1 and 0 <= numbers[1] <= _MAX_SHIFT:
        return _binomial(arguments[0], int(numbers[1]), ring)
    return ring.opaque("function", arguments[0], f"{name} of {' and '.join(argument.key() for argument in arguments)}")


def _cosine(angle: Form, ring: Ring) -> Form:
    """(e^(i angle) + e^(-i angle)) / 2."""
    turned = ring.multiply(angle, single(I))
    return ring.scale(ring.add([exponential(turned, ring), exponential(ring.scale(turned, -1), ring)]), HALF)


def _sine(angle: Form, ring: Ring) -> Form:
    """(e^(i angle) - e^(-i angle)) / 2i."""
    turned = ring.multiply(angle, single(I))
    difference = ring.add([exponential(turned, ring), ring.scale(exponential(ring.scale(turned, -1), ring), -1)])
    return ring.multiply(ring.scale(difference, -HALF), single(I))


def _quotient(top: str, bottom: str) -> Callable[[Form, Ring], Form]:
    return lambda form, ring: ring.multiply(_UNARY[top](form, ring), ring.inverse(_UNARY[bottom](form, ring)))


def _reciprocal(name: str) -> Callable[[Form, Ring], Form]:
    return lambda form, ring: ring.inverse(_UNARY[name](form, ring))


def _hyperbolic_cosine(form: Form, ring: Ring) -> Form:
    return ring.scale(ring.add([exponential(form, ring), exponential(ring.scale(form, -1), ring)]), HALF)


def _hyperbolic_sine(form: Form, ring: Ring) -> Form:
    falling = exponential(ring.scale(form, -1), ring)
    return ring.scale(ring.add([exponential(form, ring), ring.scale(falling, -1)]), HALF)


def _logarithm(form: Form, ring: Ring) -> Form:
    """The natural logarithm: of products the sum of those of their factors."""
    if not form.top:
        raise Undefined("the logarithm of zero")
    if form.bottom != ONE:
        return ring.add([_logarithm(Form(form.top), ring), ring.scale(_logarithm(Form(form.bottom), ring), -1)])
    content = content_of(form)
    primes = [ring.scale(single(Generator("logarithm", f"{prime:x}")), own)
              for prime, own in prime_powers(content).items()]
    rest = ring.scale(form, 1 / content)
    if len(rest.top) > 1 or -1 in rest.top.values():
        return ring.add([*primes, ring.opaque("function", rest, "ln")])
    (monomial, _), = rest.top.items()
    return ring.add([*primes, *(_logarithm_of(generator, exponent, ring) for generator, exponent in monomial)])


def _logarithm_of(generator: Generator, exponent: Fraction, ring: Ring) -> Form:
    if generator == E:
        return constant(exponent)
    if generator.kind == "prime":
        return ring.scale(single(Generator("logarithm", generator.name)), exponent)
    if generator.kind == "power" and generator.name.startswith("constant:e|"):
        return ring.scale(generator.inside, exponent)
    return ring.scale(ring.opaque("function", single(generator), "ln"), exponent)


def _to_unknown_base(form: Form, ring: Ring) -> Form:
    return ring.multiply(_logarithm(form, ring), single(_LOG_BASE, -1))


def _to_base_ten(form: Form, ring: Ring) -> Form:
    return ring.multiply(_logarithm(form, ring), ring.inverse(_logarithm(constant(10), ring)))


@functools.cache
def _known_angles(name: str) -> dict[str, Fraction]:
    """Keys of the values that sine or tangent has at multiples of 15 degrees -> the part of pi."""
    ring, found = Ring(), {}
    for turns in (Fraction(n, 12) for n in range(-6, 7)):
        if name == "sin" or turns.denominator in (1, 3, 4, 6):
            found[_UNARY[name](_angle(turns, ring), ring).key()] = turns
    return found


def _inverse(name: str) -> Callable[[Form, Ring], Form]:
    def inverse(form: Form, ring: Ring) -> Form:
        turns = _known_angles(name).get(form.key())
        return ring.opaque("function", form, f"arc{name}") if turns is None else _angle(turns, ring)
    return inverse


def _arccosine(form: Form, ring: Ring) -> Form:
    """pi/2 minus the arc sine."""
    return ring.add([_angle(HALF, ring), ring.scale(_UNARY["arcsin"](form, ring), -1)])


def _angle(turns: Fraction, ring: Ring) -> Form:
    return ring.scale(single(PI), turns)


def _factorial(form: Form, ring: Ring) -> Form:
    """n!, and (n+2)! as (n+2)(n+1) n!, so that quotients of neighbours cancel."""
    number = form.rational
    if number is not None and number.denominator == 1 and 0 <= number <= _MAX_FACTORIAL:
        return constant(math.factorial(int(number)))
    shift = form.top.get((), Fraction(0)) if form.bottom == ONE else Fraction(0)
    if number is not None or shift.denominator != 1 or not 0 < abs(shift) <= _MAX_SHIFT:
        return ring.opaque("function", form, "factorial")
    start = ring.add([form, constant(-shift)])
    steps = range(1, int(shift) + 1) if shift > 0 else range(int(shift) + 1, 1)
    product = constant(1)
    for step in steps:
        product = ring.multiply(product, ring.add([start, constant(step)]))
    whole = ring.opaque("function", start, "factorial")
    return ring.multiply(whole, product if shift > 0 else ring.inverse(product))


def _binomial(n: Form, k: int, ring: Ring) -> Form:
    """n (n-1) ... (n-k+1) / k!."""
    result = constant(Fraction(1, math.factorial(k)))
    for step in range(k):
        result = ring.multiply(result, ring.add([n, constant(-step)]))
    return result


def _choose(n: int, k: int) -> int:
    if not 0 <= k <= n <= _MAX_FACTORIAL:
        raise Undefined("a binomial coefficient outside the bounds")
    return math.comb(n, k)


def _rounding(name: str, function: Callable[[Fraction], int]) -> Callable[[Form, Ring], Form]:
    def rounded(form: Form, ring: Ring) -> Form:
        return ring.opaque("function", form, name) if form.rational is None else constant(function(form.rational))
    return rounded


_COUNTING = {"gcd": math.gcd, "lcm": math.lcm, "binom": _choose}
_UNARY: dict[str, Callable[[Form, Ring], Form]] = {
    "sin": _sine, "cos": _cosine, "tan": _quotient("sin", "cos"), "cot": _quotient("cos", "sin"),
    "sec": _reciprocal("cos"), "csc": _reciprocal("sin"), "arcsin": _inverse("sin"), "arccos": _arccosine,
    "arctan": _inverse("tan"), "sinh": _hyperbolic_sine, "cosh": _hyperbolic_cosine, "tanh": _quotient("sinh", "cosh"),
    "ln": _logarithm, "log": _to_unknown_base, "lg": _to_base_ten, "abs": absolute, "factorial": _factorial,
    "floor": _rounding("floor", math.floor), "ceil": _rounding("ceil", math.ceil)}
