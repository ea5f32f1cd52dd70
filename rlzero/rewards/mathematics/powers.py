r"""Roots, powers and absolute values of forms.

They are those of real numbers: the cube root of -8 is -2, and sqrt(x^2) is |x|. Negative numbers have imaginary square
roots. Powers of e with an imaginary exponent are where sines and cosines come from.
"""

import math
from fractions import Fraction

from rlzero.rewards.mathematics import algebraic
from rlzero.rewards.mathematics.forms import (E, ONE, PI, UNITY, ZERO, Form, Generator, I, Monomial, Ring, Undefined,
                                              constant, content_of, order, prime_powers, single)

HALF = Fraction(1, 2)
_MINUS = Generator("function", "-1")
# Generators that are positive numbers, whose powers obey the rules without exception.
_POSITIVE = ("prime", "constant", "logarithm", "absolute")
_POSITIVE_BASES = ("prime:", "constant:")
# cos(r pi) as a sum of multiples of square roots: r -> {number under the root: coefficient}.
_COSINES = {
    Fraction(0): {1: "1"}, Fraction(1, 12): {6: "1/4", 2: "1/4"}, Fraction(1, 6): {3: "1/2"},
    Fraction(1, 4): {2: "1/2"}, Fraction(1, 3): {1: "1/2"}, Fraction(5, 12): {6: "1/4", 2: "-1/4"}, HALF: {}}


def power(base: Form, exponent: Form, ring: Ring) -> Form:
    """base^exponent."""
    number = exponent.rational
    if number is None:
        return _symbolic_power(base, exponent, ring)
    if not base.top and number <= 0:
        raise Undefined("a power of zero")
    return ring.whole_power(base, int(number)) if number.denominator == 1 else root(base, number, ring)


def root(base: Form, exponent: Fraction, ring: Ring) -> Form:
    """A power with a fractional exponent."""
    if not base.top:
        return ZERO
    if base.bottom != ONE:
        return _root_of_quotient(base, exponent, ring)
    if len(base.top) == 1:
        return _root_of_term(base, exponent, ring)
    if exponent.denominator == 2 and (denested := _denested(base, ring)):
        return ring.whole_power(denested, exponent.numerator)
    leading = base.top[min(base.top, key=order)]
    sign = -1 if exponent.denominator % 2 and leading < 0 else 1
    content = content_of(base)
    inside = ring.scale(base, sign / content)
    own = ring.scale(_opaque_root(inside, exponent, ring), sign**exponent.numerator)
    return ring.multiply(own, ring.positive_root(content, exponent))


def _root_of_quotient(base: Form, exponent: Fraction, ring: Ring) -> Form:
    """(a/b)^(p/q) as (a b^(q-1))^(p/q) / |b|^p, which keeps quotients from under the root."""
    bottom = Form(base.bottom)
    under = ring.multiply(Form(base.top), ring.whole_power(bottom, exponent.denominator - 1))
    below = bottom if exponent.denominator % 2 else absolute(bottom, ring)
    return ring.multiply(root(under, exponent, ring), ring.whole_power(below, -exponent.numerator))


def _opaque_root(inside: Form, exponent: Fraction, ring: Ring) -> Form:
    ring.complete = False
    return ring.monomial([(Generator("root", f"[{inside.key()}]", inside), exponent)])


def _root_of_term(base: Form, exponent: Fraction, ring: Ring) -> Form:
    (monomial, value), = base.top.items()
    result = constant(1)
    if value < 0:
        if exponent.denominator % 2:
            result = constant((-1) ** exponent.numerator)
        elif exponent.denominator == 2 and not any(generator.kind == "variable" for generator, _ in monomial):
            result = ring.whole_power(single(I), exponent.numerator)
        else:
            return ring.opaque("function", base, f"root {exponent}")
    result = ring.multiply(result, ring.positive_root(abs(value), exponent))
    for generator, own in monomial:
        result = ring.multiply(result, _root_of_generator(generator, own, exponent, ring))
    return result


def _root_of_generator(generator: Generator, own: Fraction, exponent: Fraction, ring: Ring) -> Form:
    """(g^own)^exponent. An even root of an even power of a variable is a power of its absolute value."""
    total = own * exponent
    if _is_positive(generator):
        return ring.monomial([(generator, total)])
    if generator.kind == "variable":
        if own.denominator == 1 and own % 2 == 0 and exponent.denominator % 2 == 0 and total % 2 != 0:
            return _absolute_of(generator, total, ring)
        return ring.monomial([(generator, total)])
    return _opaque_root(single(generator, own), exponent, ring)


def _is_positive(generator: Generator) -> bool:
    if generator.kind == "power":
        real = generator.inside is not None and all(g != I for monomial in generator.inside.top for g, _ in monomial)
        return real and generator.name.startswith(_POSITIVE_BASES)
    return generator.kind in _POSITIVE


def _denested(base: Form, ring: Ring) -> Form | None:
    """sqrt(a + r sqrt(n)) as sqrt(x) + sqrt(y) or sqrt(x) - sqrt(y), if a*a - r*r*n is the square of a rational."""
    surds = [(monomial, value) for monomial, value in base.top.items() if monomial]
    if len(base.top) != 2 or len(surds) != 1:
        return None
    (monomial, value), whole = surds[0], base.top[()]
    if any(generator.kind != "prime" or exponent != HALF for generator, exponent in monomial):
        return None
    square = value**2 * math.prod(int(generator.name, 16) for generator, _ in monomial)
    distance = _rational_root(whole**2 - square)
    if distance is None or whole <= 0:
        return None
    sign = 1 if value > 0 else -1
    return ring.add([ring.positive_root((whole + distance) / 2, HALF),
                     ring.scale(ring.positive_root((whole - distance) / 2, HALF), sign)])


def _rational_root(value: Fraction) -> Fraction | None:
    if value <= 0:
        return None
    candidate = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return candidate if candidate**2 == value else None


def _symbolic_power(base: Form, exponent: Form, ring: Ring) -> Form:
    """A power whose exponent is no rational number: a generator for each factor of the base and each term above."""
    if not base.top or exponent.bottom != ONE:
        return ring.opaque("function", base, f"power {exponent.key()}")
    result = constant(1)
    for generator, own in _factors_of(base, ring):
        for monomial, coefficient in exponent.top.items():
            result = ring.multiply(result, _raised(generator, own * coefficient, monomial, ring))
    return result


def exponential(exponent: Form, ring: Ring) -> Form:
    """e^exponent."""
    return power(single(E), exponent, ring)


def _factors_of(base: Form, ring: Ring) -> list[tuple[Generator, Fraction]]:
    """A form as a product of powers of generators."""
    if len(base.top) > 1 or base.bottom != ONE:
        ring.complete = False
        return [(Generator("root", f"[{base.key()}]", base), Fraction(1))]
    (monomial, value), = base.top.items()
    ring.complete = ring.complete and value > 0
    primes = [(Generator("prime", f"{p:x}"), Fraction(k)) for p, k in prime_powers(abs(value)).items()]
    return [*([(_MINUS, Fraction(1))] if value < 0 else []), *primes, *monomial]


def _raised(generator: Generator, own: Fraction, monomial: Monomial, ring: Ring) -> Form:
    """(generator^own)^monomial."""
    if not monomial:
        return root(constant(-1), own, ring) if generator == _MINUS and own.denominator > 1 else (
            constant((-1) ** own.numerator) if generator == _MINUS else ring.monomial([(generator, own)]))
    if generator == E and monomial == ((PI, Fraction(1)), (I, Fraction(1))):
        return _root_of_unity(own, ring)
    logarithms = [pair for pair in monomial if pair[0].kind == "logarithm" or pair[0].name.startswith("ln[")]
    if generator == E and logarithms and logarithms[0][1] == 1:
        rest = tuple(pair for pair in monomial if pair != logarithms[0])
        return power(_inside_logarithm(logarithms[0][0]), Form({rest: own}), ring)
    ring.complete = ring.complete and any(inner.kind == "variable" for inner, _ in monomial)
    name = f"{generator.kind}:{generator.name}|{order(monomial)}"
    return ring.monomial([(Generator("power", name, Form({monomial: Fraction(1)})), own)])


def _inside_logarithm(generator: Generator) -> Form:
    return constant(int(generator.name, 16)) if generator.kind == "logarithm" else generator.inside


def _root_of_unity(turns: Fraction, ring: Ring) -> Form:
    """e^(i pi turns): in square roots for multiples of 15 degrees."""
    real, imaginary = _cosine_of_turns(turns, ring), _cosine_of_turns(HALF - turns, ring)
    if real is None:
        ring.complete = False
        return ring.monomial([(UNITY, turns)])
    return ring.add([real, ring.multiply(single(I), imaginary)])


def _cosine_of_turns(turns: Fraction, ring: Ring) -> Form | None:
    turns = min(turns % 2, 2 - turns % 2)
    folded = min(turns, 1 - turns)
    if folded not in _COSINES:
        return None
    sign = 1 if turns <= HALF else -1
    return ring.add(ring.scale(ring.positive_root(Fraction(under), HALF), sign * Fraction(coefficient))
                    for under, coefficient in _COSINES[folded].items())


def absolute(form: Form, ring: Ring) -> Form:
    """The absolute value: of numbers by their sign, of complex numbers the modulus, of products that of each factor."""
    if form.rational is not None:
        return constant(abs(form.rational))
    if form.bottom != ONE:
        return ring.multiply(absolute(Form(form.top), ring), ring.inverse(absolute(Form(form.bottom), ring)))
    if sign := algebraic.sign(form):
        return ring.scale(form, sign)
    generators = {generator for monomial in form.top for generator, _ in monomial}
    if I in generators and all(generator == I or generator.kind in _POSITIVE for generator in generators):
        return _modulus(form, ring)
    if len(form.top) == 1:
        (monomial, value), = form.top.items()
        result = constant(abs(value))
        for generator, exponent in monomial:
            result = ring.multiply(result, _absolute_of(generator, exponent, ring))
        return result
    content = content_of(form)
    leading = 1 if form.top[min(form.top, key=order)] > 0 else -1
    return ring.scale(_opaque_absolute(ring.scale(form, leading / content), Fraction(1), ring), content)


def _absolute_of(generator: Generator, exponent: Fraction, ring: Ring) -> Form:
    if _is_positive(generator):
        return ring.monomial([(generator, exponent)])
    return _opaque_absolute(single(generator), exponent, ring)


def _opaque_absolute(inside: Form, exponent: Fraction, ring: Ring) -> Form:
    ring.complete = False
    return ring.monomial([(Generator("absolute", f"[{inside.key()}]", inside), exponent)])


def _modulus(form: Form, ring: Ring) -> Form:
    imaginary = {tuple(pair for pair in m if pair[0] != I): v for m, v in form.top.items() if any(g == I for g, _ in m)}
    real = {monomial: value for monomial, value in form.top.items() if all(g != I for g, _ in monomial)}
    squares = [ring.multiply(part, part) for part in (Form(real), Form(imaginary)) if part.top]
    return root(ring.add(squares), HALF, ring)
