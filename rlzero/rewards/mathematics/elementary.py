r"""From a tree to its canonical form: roots, powers, logarithms, trigonometric and counting functions, all exact.

Functions are taken as real functions: the cube root of -8 is -2, and sqrt(x^2) is |x|. Two expressions count as equal
if they are so wherever both are defined, so that ln(x^2) is 2 ln(x). What has no exact rule here becomes a generator of
its own, and the ring then knows that different forms may still be equal.
"""

import math
from fractions import Fraction

from rlzero.rewards.mathematics import functions
from rlzero.rewards.mathematics.expressions import Tree, number
from rlzero.rewards.mathematics.forms import (E, I, ONE, PI, ZERO, Form, Generator, Monomial, Ring, Undefined, constant,
                                              content_of, order, prime_powers, single)
from rlzero.rewards.mathematics.tokens import Unreadable

_HALF = Fraction(1, 2)
_HYPERBOLIC = ("sinh", "cosh", "tanh")
_MINUS = Generator("function", "-1")
# Generators that are positive numbers, whose powers obey the rules without exception.
_POSITIVE = ("prime", "constant", "logarithm", "absolute")
_POSITIVE_BASES = ("prime:", "constant:")


def form_of(tree: Tree, ring: Ring) -> Form:
    """The canonical form of a tree.

    Raises:
      TooLarge: beyond the bounds of the ring.
      Undefined: for a division by zero and the like.
    """
    operation, *operands = tree
    if operation == "num":
        return constant(operands[0])
    if operation == "sym":
        return single(Generator("variable", operands[0]))
    if operation == "const":
        return _constant(operands[0])
    if operation == "fn":
        return _function(operands[0], operands[1:], ring)
    forms = [form_of(operand, ring) for operand in operands]
    if operation == "add":
        return ring.add(forms)
    if operation == "mul":
        return ring.multiply(*forms)
    if operation == "neg":
        return ring.scale(forms[0], -1)
    if operation == "div":
        return ring.multiply(forms[0], ring.inverse(forms[1]))
    return _power(tree, *forms, ring)


def _function(name: str, arguments: list[Tree], ring: Ring) -> Form:
    if name in _HYPERBOLIC:
        growing, falling = ("pow", ("const", "e"), arguments[0]), ("pow", ("const", "e"), ("neg", arguments[0]))
        difference, total = ("add", growing, ("neg", falling)), ("add", growing, falling)
        top, bottom = {"sinh": (difference, number(2)), "cosh": (total, number(2)), "tanh": (difference, total)}[name]
        return form_of(("div", top, bottom), ring)
    forms = [form_of(argument, ring) for argument in arguments]
    return absolute(forms[0], ring) if name == "abs" else functions.apply(name, forms, ring)


def _constant(name: str) -> Form:
    if name == "inf":
        raise Unreadable("infinity in an expression")
    return single({"pi": PI, "e": E, "i": I}[name])


def _power(tree: Tree, base: Form, exponent: Form, ring: Ring) -> Form:
    power = exponent.rational
    if power is None:
        return _symbolic_power(base, exponent, ring)
    if not base.top and power <= 0:
        raise Undefined("a power of zero")
    if power.denominator == 1:
        return ring.whole_power(base, int(power))
    inner = tree[1]
    if inner[0] == "pow" and len(base.top) > 1 and power.denominator % 2 == 0:
        lower = form_of(inner[2], ring).rational
        if lower is not None and lower.denominator == 1 and lower % 2 == 0:
            return _power(inner, absolute(form_of(inner[1], ring), ring), constant(lower * power), ring)
    return root(base, power, ring)


def root(base: Form, exponent: Fraction, ring: Ring) -> Form:
    """A power with a fractional exponent."""
    if not base.top:
        return ZERO
    if len(base.top) == 1 and base.bottom == ONE:
        return _root_of_term(base, exponent, ring)
    if exponent.denominator == 2 and (denested := _denested(base, ring)):
        return ring.whole_power(denested, exponent.numerator)
    content = content_of(base) if base.bottom == ONE else Fraction(1)
    leading = base.top[min(base.top, key=order)]
    sign = -1 if exponent.denominator % 2 and leading < 0 else 1
    inside = ring.scale(base, sign / content)
    ring.complete = False
    own = ring.monomial([(Generator("root", f"[{inside.key()}]", inside), exponent)], Fraction(sign**exponent.numerator))
    return ring.multiply(own, ring.positive_root(content, exponent))


def _root_of_term(base: Form, exponent: Fraction, ring: Ring) -> Form:
    (monomial, value), = base.top.items()
    result = constant(1)
    if value < 0:
        if exponent.denominator % 2:
            result = constant((-1) ** exponent.numerator)
        elif exponent.denominator == 2 and not any(g.kind == "variable" for g, _ in monomial):
            result = ring.whole_power(single(I), exponent.numerator)
        else:
            return ring.opaque("root of a negative", base, str(exponent))
    result = ring.multiply(result, ring.positive_root(abs(value), exponent))
    for generator, own in monomial:
        result = ring.multiply(result, _root_of_generator(generator, own, exponent, ring))
    return result


def _root_of_generator(generator: Generator, own: Fraction, exponent: Fraction, ring: Ring) -> Form:
    """(g^own)^exponent. An even root of an even power of a variable is a power of its absolute value."""
    total = own * exponent
    if generator.kind in _POSITIVE or (generator.kind == "power" and generator.name.startswith(_POSITIVE_BASES)):
        return ring.monomial([(generator, total)])
    if generator.kind == "variable":
        if own.denominator == 1 and own % 2 == 0 and exponent.denominator % 2 == 0 and total % 2 != 0:
            return _absolute_of(generator, total, ring)
        return ring.monomial([(generator, total)])
    inside = single(generator, own)
    ring.complete = False
    return ring.monomial([(Generator("root", f"[{inside.key()}]", inside), exponent)])


def _denested(base: Form, ring: Ring) -> Form | None:
    """sqrt(a + r sqrt(n)) as sqrt(x) + sqrt(y) or sqrt(x) - sqrt(y), if a*a - r*r*n is the square of a rational."""
    surds = [(monomial, value) for monomial, value in base.top.items() if monomial]
    if base.bottom != ONE or len(base.top) != 2 or len(surds) != 1:
        return None
    (monomial, value), whole = surds[0], base.top[()]
    if any(generator.kind != "prime" or exponent != _HALF for generator, exponent in monomial):
        return None
    square = value**2 * math.prod(int(generator.name, 16) for generator, _ in monomial)
    distance = _rational_root(whole**2 - square)
    if distance is None or whole <= 0:
        return None
    sign = 1 if value > 0 else -1
    return ring.add([ring.positive_root((whole + distance) / 2, _HALF),
                     ring.scale(ring.positive_root((whole - distance) / 2, _HALF), sign)])


def _rational_root(value: Fraction) -> Fraction | None:
    if value < 0:
        return None
    candidate = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return candidate if candidate**2 == value else None


def _symbolic_power(base: Form, exponent: Form, ring: Ring) -> Form:
    """A power whose exponent is no rational number: a generator for each factor of the base and each term above."""
    if not base.top or exponent.bottom != ONE:
        return ring.opaque("function", base, f"power {exponent.key()}")
    result = constant(1)
    for generator, power in _factors_of(base, ring):
        for monomial, coefficient in exponent.top.items():
            result = ring.multiply(result, _raised(generator, power * coefficient, monomial, ring))
    return result


def _factors_of(base: Form, ring: Ring) -> list[tuple[Generator, Fraction]]:
    """A form as a product of powers of generators."""
    if len(base.top) > 1 or base.bottom != ONE:
        ring.complete = False
        return [(Generator("root", f"[{base.key()}]", base), Fraction(1))]
    (monomial, value), = base.top.items()
    ring.complete = ring.complete and value > 0
    primes = [(Generator("prime", f"{p:x}"), Fraction(k)) for p, k in prime_powers(abs(value)).items()]
    return [*([(_MINUS, Fraction(1))] if value < 0 else []), *primes, *monomial]


def _raised(generator: Generator, power: Fraction, monomial: Monomial, ring: Ring) -> Form:
    """(generator^power)^monomial."""
    if generator == _MINUS and not monomial:
        return root(constant(-1), power, ring) if power.denominator > 1 else constant((-1) ** power.numerator)
    if not monomial:
        return ring.monomial([(generator, power)])
    if generator == E and monomial == ((PI, Fraction(1)), (I, Fraction(1))):
        angle = ring.monomial([(PI, Fraction(1))], power)
        return ring.add([functions.cosine(angle, ring), ring.multiply(single(I), functions.sine(angle, ring))])
    ring.complete = ring.complete and any(inner.kind == "variable" for inner, _ in monomial)
    name = f"{generator.kind}:{generator.name}|{order(monomial)}"
    return ring.monomial([(Generator("power", name, Form({monomial: Fraction(1)})), power)])


def absolute(form: Form, ring: Ring) -> Form:
    """The absolute value: exact for numbers and products, of a complex number without variables the modulus."""
    if form.rational is not None:
        return constant(abs(form.rational))
    if form.bottom != ONE:
        return ring.multiply(absolute(Form(form.top), ring), ring.inverse(absolute(Form(form.bottom), ring)))
    generators = {generator for monomial in form.top for generator, _ in monomial}
    if I in generators and all(g == I or g.kind in _POSITIVE for g in generators):
        return _modulus(form, ring)
    if len(form.top) == 1:
        (monomial, value), = form.top.items()
        result = constant(abs(value))
        for generator, exponent in monomial:
            result = ring.multiply(result, _absolute_of(generator, exponent, ring))
        return result
    sign = -1 if form.top[min(form.top, key=order)] < 0 else 1
    content = content_of(form)
    inside = ring.scale(form, sign / content)
    ring.complete = False
    return ring.monomial([(Generator("absolute", f"[{inside.key()}]", inside), Fraction(1))], content)


def _absolute_of(generator: Generator, exponent: Fraction, ring: Ring) -> Form:
    if generator.kind in _POSITIVE or (generator.kind == "power" and generator.name.startswith(_POSITIVE_BASES)):
        return ring.monomial([(generator, exponent)])
    ring.complete = False
    inside = single(generator)
    return ring.monomial([(Generator("absolute", f"[{inside.key()}]", inside), exponent)])


def _modulus(form: Form, ring: Ring) -> Form:
    imaginary = {tuple(pair for pair in m if pair[0] != I): v for m, v in form.top.items() if any(g == I for g, _ in m)}
    real = {m: v for m, v in form.top.items() if all(g != I for g, _ in m)}
    squares = [ring.multiply(part, part) for part in (Form(real), Form(imaginary)) if part.top]
    return root(ring.add(squares), _HALF, ring)
