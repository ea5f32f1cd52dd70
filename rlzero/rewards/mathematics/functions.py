"""Exact values and forms of named functions: trigonometry, logarithms, counting, whole parts.

Angles that are twelfths or tenths of pi have values in roots. Hyperbolic functions are written in powers of e and
logarithms in those of primes. `log` without a base is a logarithm to a base that is not known, so that quotients of two
are exact while its values are not guessed.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from rlzero.rewards.mathematics.forms import (E, ONE, PI, Form, Generator, Ring, Undefined, constant, content_of, order,
                                              prime_powers, single)

_MAX_FACTORIAL = 2500
_LOG_BASE = Generator("constant", "ln of the base of log")
_HALF = Fraction(1, 2)
# cos(r pi) as a sum of multiples of square roots: r -> {number under the root: coefficient}.
_COSINES = {
    Fraction(0): {1: 1}, Fraction(1, 12): {6: "1/4", 2: "1/4"}, Fraction(1, 6): {3: "1/2"},
    Fraction(1, 5): {1: "1/4", 5: "1/4"}, Fraction(1, 4): {2: "1/2"}, Fraction(1, 3): {1: "1/2"},
    Fraction(2, 5): {5: "1/4", 1: "-1/4"}, Fraction(5, 12): {6: "1/4", 2: "-1/4"}, Fraction(1, 2): {}}


def apply(name: str, arguments: list[Form], ring: Ring) -> Form:
    """The form of a function's value."""
    if name in _UNARY and len(arguments) == 1:
        return _UNARY[name](arguments[0], ring)
    numbers = [argument.rational for argument in arguments]
    if name in _COUNTING and all(number is not None and number.denominator == 1 for number in numbers):
        return constant(_COUNTING[name](*map(int, numbers)))
    if name in ("max", "min") and None not in numbers:
        return constant((max if name == "max" else min)(numbers))
    if name == "binom" and numbers[1] is not None and numbers[1].denominator == 1 and 0 <= numbers[1] <= 20:
        return _binomial(arguments[0], int(numbers[1]), ring)
    return ring.opaque("function", arguments[0], f"{name} of {' and '.join(argument.key() for argument in arguments)}")


def cosine(angle: Form, ring: Ring) -> Form:
    turns = _turns(angle)
    if turns is None:
        leading = angle.top[min(angle.top, key=order)]
        return _trigonometric("cosine", angle if leading > 0 else ring.scale(angle, -1), ring)
    turns = min(turns % 2, 2 - turns % 2)
    sign = 1 if turns <= _HALF else -1
    turns = min(turns, 1 - turns)
    if turns not in _COSINES:
        return ring.scale(ring.opaque("function", constant(turns), "cos of pi times"), sign)
    return ring.add(ring.scale(ring.positive_root(Fraction(under), _HALF), sign * Fraction(coefficient))
                    for under, coefficient in _COSINES[turns].items())


def sine(angle: Form, ring: Ring) -> Form:
    turns = _turns(angle)
    if turns is not None:
        return cosine(_angle(_HALF - turns, ring), ring)
    leading = angle.top[min(angle.top, key=order)]
    value = _trigonometric("sine", angle if leading > 0 else ring.scale(angle, -1), ring)
    return value if leading > 0 else ring.scale(value, -1)


def _turns(angle: Form) -> Fraction | None:
    """The rational r of an angle r pi."""
    if not angle.top:
        return Fraction(0)
    only = ((PI, Fraction(1)),)
    return angle.top[only] if angle.bottom == ONE and set(angle.top) == {only} else None


def _trigonometric(kind: str, angle: Form, ring: Ring) -> Form:
    ring.complete = False
    return single(Generator(kind, f"[{angle.key()}]", angle))


def tangent(angle: Form, ring: Ring) -> Form:
    return ring.multiply(sine(angle, ring), ring.inverse(cosine(angle, ring)))


def logarithm(form: Form, ring: Ring) -> Form:
    """The natural logarithm: of products the sum of those of their factors."""
    if not form.top:
        raise Undefined("the logarithm of zero")
    if form.bottom != ONE:
        return ring.add([logarithm(Form(form.top), ring), ring.scale(logarithm(Form(form.bottom), ring), -1)])
    content = content_of(form) if len(form.top) > 1 else abs(next(iter(form.top.values())))
    primes = [ring.scale(single(Generator("logarithm", f"{prime:x}")), power)
              for prime, power in prime_powers(content).items()]
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
    if generator.kind == "power" and generator.name.startswith("constant:e|") and generator.inside is not None:
        return ring.scale(generator.inside, exponent)
    return ring.scale(ring.opaque("function", single(generator), "ln"), exponent)


def _to_unknown_base(form: Form, ring: Ring) -> Form:
    return ring.multiply(logarithm(form, ring), single(_LOG_BASE, -1))


def _to_base_ten(form: Form, ring: Ring) -> Form:
    return ring.multiply(logarithm(form, ring), ring.inverse(logarithm(constant(10), ring)))


@functools.cache
def _known_angles() -> dict[str, dict[str, Fraction]]:
    """Keys of known values -> the turns r of the angle r pi, for each inverse function."""
    ring, found = Ring(), {"sine": {}, "tangent": {}}
    for turns in sorted({sign * (_HALF - r) for r in _COSINES for sign in (1, -1)}):
        angle = _angle(turns, ring)
        found["sine"][sine(angle, ring).key()] = turns
        if abs(turns) < _HALF and turns.denominator in (1, 3, 4, 6):
            found["tangent"][tangent(angle, ring).key()] = turns
    return found


def _arcsine(form: Form, ring: Ring) -> Form:
    turns = _known_angles()["sine"].get(form.key())
    return ring.opaque("function", form, "arcsin") if turns is None else _angle(turns, ring)


def _arccosine(form: Form, ring: Ring) -> Form:
    """pi/2 minus the arc sine."""
    return ring.add([_angle(_HALF, ring), ring.scale(_arcsine(form, ring), -1)])


def _arctangent(form: Form, ring: Ring) -> Form:
    turns = _known_angles()["tangent"].get(form.key())
    return ring.opaque("function", form, "arctan") if turns is None else _angle(turns, ring)


def _angle(turns: Fraction, ring: Ring) -> Form:
    return ring.monomial([(PI, Fraction(1))], turns)


def _factorial(form: Form, ring: Ring) -> Form:
    number = form.rational
    if number is None or number.denominator != 1 or not 0 <= number <= _MAX_FACTORIAL:
        return ring.opaque("function", form, "factorial")
    return constant(math.factorial(int(number)))


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


def _reciprocal(function: Callable[[Form, Ring], Form]) -> Callable[[Form, Ring], Form]:
    return lambda form, ring: ring.inverse(function(form, ring))


def _cotangent(form: Form, ring: Ring) -> Form:
    return ring.multiply(cosine(form, ring), ring.inverse(sine(form, ring)))


_COUNTING = {"gcd": math.gcd, "lcm": math.lcm, "binom": _choose}
_UNARY: dict[str, Callable[[Form, Ring], Form]] = {
    "sin": sine, "cos": cosine, "tan": tangent, "sec": _reciprocal(cosine), "csc": _reciprocal(sine), "cot": _cotangent,
    "arcsin": _arcsine, "arccos": _arccosine, "arctan": _arctangent, "ln": logarithm, "log": _to_unknown_base,
    "lg": _to_base_ten, "factorial": _factorial, "floor": _rounding("floor", math.floor),
    "ceil": _rounding("ceil", math.ceil)}
