r"""Exact arithmetic with a canonical form: sums of monomials with rational coefficients, and quotients of such sums.

A monomial is a product of generators with rational exponents. Generators are variables, pi and e, the imaginary unit,
prime numbers under a root, logarithms of primes, and functions of other forms. The rules that make the form canonical
are few: a prime carries its whole powers into the coefficient (so that sqrt(12) is 2 sqrt(3)), i*i is -1, and sines and
cosines are written in powers of e. Products of roots of different primes are linearly independent over the rationals
(Besicovitch, J. London Math. Soc. 15, 1940), so two sums of them are equal exactly if their forms are.

Sizes are bounded: `Ring` raises `TooLarge` instead of multiplying on.
"""

import dataclasses
import math
from collections.abc import Iterable
from fractions import Fraction

MAX_BITS = 60_000
MAX_TERMS = 1500
MAX_WORK = 60_000  # generators looked at in products
_MAX_FACTOR = 20_000


class TooLarge(Exception):
    """The arithmetic would go beyond its bounds."""


class Undefined(Exception):
    """A division by zero or the like."""


@dataclasses.dataclass(frozen=True, order=True)
class Generator:
    """A factor of monomials.

    Attributes:
      kind: prime, constant, variable, imaginary, logarithm, root, absolute, power or function.
      name: tells generators of one kind apart.
      inside: the form of which it is a function.
    """

    kind: str
    name: str
    inside: "Form | None" = dataclasses.field(default=None, compare=False, repr=False)


Monomial = tuple[tuple[Generator, Fraction], ...]
Sum = dict[Monomial, Fraction]
ONE: Sum = {(): Fraction(1)}
I = Generator("imaginary", "i")
PI = Generator("constant", "pi")
E = Generator("constant", "e")
# e^(i pi), whose rational powers are the roots of unity.
UNITY = Generator("power", "constant:e|*constant:pi^1*imaginary:i^1")


@dataclasses.dataclass(frozen=True)
class Form:
    """A quotient of sums. The denominator is 1 unless it has several terms."""

    top: Sum
    bottom: Sum = dataclasses.field(default_factory=lambda: ONE)

    @property
    def rational(self) -> Fraction | None:
        """The number it is, if it is rational."""
        if not self.top:
            return Fraction(0)
        return self.top.get(()) if len(self.top) == 1 and self.bottom == ONE else None

    def key(self) -> str:
        """A text that is the same for the same sums. Hexadecimal, because Python limits long decimal numbers."""
        return _key(self.top) if self.bottom == ONE else f"({_key(self.top)})/({_key(self.bottom)})"


def order(monomial: Monomial) -> str:
    """The text by which monomials are sorted."""
    return "".join(f"*{generator.kind}:{generator.name}^{exponent}" for generator, exponent in monomial)


def _key(terms: Sum) -> str:
    return "+".join(sorted(f"{value.numerator:x}/{value.denominator:x}{order(m)}" for m, value in terms.items()))


def constant(value: int | Fraction) -> Form:
    return Form({(): Fraction(value)} if value else {})


def single(generator: Generator, exponent: int | Fraction = 1) -> Form:
    return Form({((generator, Fraction(exponent)),): Fraction(1)})


def content_of(form: Form) -> Fraction:
    """The positive rational that leaves whole coefficients without a common divisor."""
    values = form.top.values()
    return Fraction(math.gcd(*(v.numerator for v in values)), math.lcm(*(v.denominator for v in values)))


ZERO = constant(0)


class Ring:
    """The arithmetic of one comparison.

    Attributes:
      complete: whether unequal forms are unequal values. False once a generator may depend on others in ways that are
        not known here, as roots of sums and trigonometric functions do.
    """

    def __init__(self):
        self.complete = True
        self._work = 0

    def opaque(self, kind: str, inside: Form, name: str = "") -> Form:
        """A generator that stands for a function of a form."""
        self.complete = False
        return single(Generator(kind, f"{name}[{inside.key()}]", inside))

    def add(self, forms: Iterable[Form]) -> Form:
        total = ZERO
        for form in forms:
            if total.bottom == form.bottom:
                total = Form(self._sum(total.top, form.top), total.bottom)
            else:
                top = self._sum(self._product(total.top, form.bottom), self._product(form.top, total.bottom))
                total = Form(top, self._product(total.bottom, form.bottom))
        return total if total.top else ZERO

    def scale(self, form: Form, factor: int | Fraction) -> Form:
        return self.multiply(form, constant(factor))

    def multiply(self, a: Form, b: Form) -> Form:
        top = self._product(a.top, b.top)
        return Form(top, self._product(a.bottom, b.bottom)) if top else ZERO

    def inverse(self, form: Form) -> Form:
        if not form.top:
            raise Undefined("division by zero")
        if len(form.top) > 1:
            return Form(form.bottom, form.top)
        (monomial, value), = form.top.items()
        return self.multiply(Form(form.bottom), self.monomial(((g, -e) for g, e in monomial), 1 / value))

    def equal(self, a: Form, b: Form) -> bool:
        return self._product(a.top, b.bottom) == self._product(b.top, a.bottom)

    def difference(self, a: Form, b: Form) -> Form:
        """A sum that is zero exactly if the forms are the same value: their difference without its denominators."""
        negative = {monomial: -value for monomial, value in self._product(b.top, a.bottom).items()}
        return Form(self._sum(self._product(a.top, b.bottom), negative))

    def whole_power(self, form: Form, exponent: int) -> Form:
        """The power with a whole exponent, by squaring."""
        if exponent < 0:
            return self.inverse(self.whole_power(form, -exponent))
        if len(form.top) == 1 and form.bottom == ONE:
            (monomial, value), = form.top.items()
            self._check(max(value.numerator.bit_length(), value.denominator.bit_length()) * exponent
                        if abs(value) != 1 else 0)
            return self.monomial(((g, e * exponent) for g, e in monomial), value**exponent)
        if exponent > 200 and form.top:
            raise TooLarge("a high power of a sum")
        result = constant(1)
        for bit in bin(exponent)[2:]:
            result = self.multiply(result, result)
            if bit == "1":
                result = self.multiply(result, form)
        return result

    def positive_root(self, value: Fraction, exponent: Fraction) -> Form:
        """A positive rational to a rational exponent, as primes under roots."""
        powers = prime_powers(value)
        self.complete = self.complete and all(p < _MAX_FACTOR**2 for p in powers)
        self._check(sum(abs(exponent) * abs(k) * p.bit_length() for p, k in powers.items()))
        return self.monomial((Generator("prime", f"{p:x}"), exponent * k) for p, k in sorted(powers.items()))

    def monomial(self, factors: Iterable[tuple[Generator, Fraction]], value: Fraction = Fraction(1)) -> Form:
        """The product of powers of generators, brought into canonical form."""
        kept, expanded = {}, []
        for generator, exponent in factors:
            if generator.kind == "prime":
                whole = math.floor(exponent)
                self._check(abs(whole) * 4 * len(generator.name))
                value, exponent = value * Fraction(int(generator.name, 16)) ** whole, exponent - whole
            elif generator == I:
                value, exponent = value * (-1 if exponent % 4 >= 2 else 1), exponent % 2
            elif generator.kind == "root" and not 0 <= exponent < 1:
                expanded.append((generator.inside, math.floor(exponent)))
                exponent -= math.floor(exponent)
            elif generator.kind == "absolute" and exponent % 2 == 0:
                expanded, exponent = [*expanded, (generator.inside, int(exponent))], Fraction(0)
            elif generator == UNITY:
                value, exponent = value * (-1 if exponent % 2 >= 1 else 1), exponent % 1
            if exponent:
                kept[generator] = exponent
        result = Form({tuple(sorted(kept.items(), key=lambda item: item[0])): value} if value else {})
        for form, exponent in expanded:
            result = self.multiply(result, self.whole_power(form, exponent))
        return result

    def _sum(self, a: Sum, b: Sum) -> Sum:
        self._spend(len(b))
        result = dict(a)
        for monomial, value in b.items():
            result[monomial] = result.get(monomial, 0) + value
            if not result[monomial]:
                del result[monomial]
        return result

    def _product(self, a: Sum, b: Sum) -> Sum:
        if a == ONE or b == ONE:
            return b if a == ONE else a
        result: Sum = {}
        for monomial_a, value_a in a.items():
            for monomial_b, value_b in b.items():
                self._check(value_a.numerator.bit_length() + value_b.numerator.bit_length())
                for monomial, value in self._joined(monomial_a, monomial_b, value_a * value_b).items():
                    result[monomial] = result.get(monomial, 0) + value
                    if not result[monomial]:
                        del result[monomial]
            if len(result) > MAX_TERMS:
                raise TooLarge("too many terms")
        return result

    def _joined(self, a: Monomial, b: Monomial, value: Fraction) -> Sum:
        """The product of two monomials; several terms when a root is expanded."""
        self._spend(1 + len(a) + len(b))
        if not a or not b:
            return {a or b: value}
        exponents = dict(a)
        for generator, exponent in b:
            exponents[generator] = exponents.get(generator, 0) + exponent
        form = self.monomial(exponents.items(), value)
        if form.bottom != ONE:
            raise TooLarge("a quotient under a root")
        return form.top

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK:
            raise TooLarge("too much work")

    def _check(self, bits: int | Fraction) -> None:
        if bits > MAX_BITS:
            raise TooLarge("numbers of too many digits")


def prime_powers(value: Fraction) -> dict[int, int]:
    """The prime factors of a positive rational; those of its denominator have negative powers."""
    return _factors(value.numerator) | {p: -k for p, k in _factors(value.denominator).items()}


def _factors(value: int) -> dict[int, int]:
    """Prime factors with their powers; what is left after small ones are divided out counts as a prime."""
    powers: dict[int, int] = {}
    divisor = 2
    while value > 1 and divisor * divisor <= value and divisor < _MAX_FACTOR:
        while value % divisor == 0:
            value //= divisor
            powers[divisor] = powers.get(divisor, 0) + 1
        divisor += 1 if divisor == 2 else 2
    return powers | {value: powers.get(value, 0) + 1} if value > 1 else powers
