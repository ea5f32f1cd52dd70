r"""Reads a scalar, such as `2\sqrt{3}` or `\frac{x}{2}+1`, into a tree. Nothing is computed here.

A tree is a tuple of an operation and its operands:

    ("num", Fraction)  ("sym", name)  ("const", "pi" | "e" | "i" | "inf")
    ("add", a, b, ...)  ("mul", a, b, ...)  ("div", a, b)  ("neg", a)  ("pow", a, b)  ("fn", name, a, ...)

What mathematicians read in two ways is `Unreadable`: `1/2x`, `\sin x/2`, `3 4`, `x2`, `\sqrt12`, `2\frac43`.
"""

from fractions import Fraction
from typing import Any

from rlzero.rewards.mathematics.tokens import MAX_DEPTH, Token, Unreadable, matching

Tree = tuple[Any, ...]

TRIGONOMETRIC = ("sin", "cos", "tan", "sec", "csc", "cot")
_ONE_ARGUMENT = (*TRIGONOMETRIC, "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "lg", "exp")
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_OPAQUE_FUNCTIONS = frozenset("fghFGH")
_STARTS = ("number", "recurring", "symbol", "constant", "function", "open")
_BRACKETS = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", "||": "||"}
_BRACKET_FUNCTIONS = {r"\lfloor": "floor", r"\lceil": "ceil", "||": "abs"}


def number(value: int | Fraction) -> Tree:
    return ("num", Fraction(value))


def parse(tokens: list[Token], *, plus_minus: int = 1) -> tuple[Tree, bool]:
    r"""Reads a whole token list as one scalar.

    Args:
      tokens: what `tokens.tokenize` returned, or a balanced part of it.
      plus_minus: the sign that `\pm` stands for; `\mp` is its opposite.

    Returns:
      The tree, and whether a degree sign stood outside the arguments of trigonometric functions, where it is a unit.

    Raises:
      Unreadable: if the tokens are not one scalar, or could mean two things.
    """
    parser = _Parser(tokens, plus_minus)
    tree = parser.sum()
    if parser.at != len(tokens):
        raise Unreadable(f"{tokens[parser.at].value} in this place")
    return tree, parser.degrees


class _Parser:
    """A recursive descent over one token list."""

    def __init__(self, tokens: list[Token], plus_minus: int):
        self._tokens, self._plus_minus = tokens, plus_minus
        self._pairs = matching(tokens)
        self.at, self.degrees = 0, False
        self._depth, self._bars, self._angles = 0, 0, 0

    def _peek(self, ahead: int = 0) -> Token:
        place = self.at + ahead
        return self._tokens[place] if place < len(self._tokens) else Token("end", "")

    def _take(self, value: str) -> bool:
        found = self._peek().value == value
        self.at += found
        return found

    def _expect(self, value: str) -> None:
        if not self._take(value):
            raise Unreadable(f"expected {value}")

    def sum(self) -> Tree:
        """Terms with signs between them."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        terms = [self._signed_product(self._sign() or 1)]
        while sign := self._sign():
            terms.append(self._signed_product(sign))
        self._depth -= 1
        return terms[0] if len(terms) == 1 else ("add", *terms)

    def _sign(self) -> int:
        r"""The sign that comes next: 1, -1, or 0 if none does."""
        signs = {"+": 1, "-": -1, r"\pm": self._plus_minus, r"\mp": -self._plus_minus}
        sign = signs.get(self._peek().value, 0)
        self.at += bool(sign)
        return sign

    def _signed_product(self, sign: int) -> Tree:
        product = self._product()
        return product if sign > 0 else ("neg", product)

    def _product(self) -> Tree:
        """Factors with `*`, `/` or nothing between them; a quotient that goes on with nothing between is ambiguous."""
        product, divided = self._power(), False
        while True:
            if self._take("*"):
                product, divided = ("mul", product, self._factor()), False
            elif self._take("/"):
                product, divided = ("div", product, self._factor()), True
            elif self._starts_factor():
                if divided or self._peek().kind in ("number", "recurring"):
                    raise Unreadable("a product without a sign where it could mean two things")
                product = ("mul", product, self._power())
            else:
                return product

    def _factor(self) -> Tree:
        """A power, with a sign of its own as in `2 * -3`."""
        return ("neg", self._power()) if self._take("-") else self._power()

    def _starts_factor(self) -> bool:
        token = self._peek()
        return token.kind in _STARTS or (token.value == "|" and not self._bars)

    def _power(self) -> Tree:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        tree = self._postfix(self._atom())
        while self._take("^"):
            if self._take("deg"):
                tree = self._degrees(tree)
            elif self._peek().value == "{" and self._peek(1).value == "deg" and self._peek(2).value == "}":
                self.at += 3
                tree = self._degrees(tree)
            else:
                tree = ("pow", tree, self._exponent())
            tree = self._postfix(tree)
        self._depth -= 1
        return tree

    def _exponent(self) -> Tree:
        """What stands after `^`; a further `^` belongs to it, as towers are read from the top."""
        if self._take("-"):
            return ("neg", self._exponent())
        return self._group() if self._peek().value == "{" and self._after_group().value != "^" else self._power()

    def _after_group(self) -> Token:
        place = self._pairs[self.at] + 1
        return self._tokens[place] if place < len(self._tokens) else Token("end", "")

    def _postfix(self, tree: Tree) -> Tree:
        while True:
            if self._take("!"):
                if self._peek().value == "!":
                    raise Unreadable("a double factorial")
                tree = ("fn", "factorial", tree)
            elif self._take("%"):
                tree = ("div", tree, number(100))
            else:
                return tree

    def _degrees(self, tree: Tree) -> Tree:
        if self._angles:
            return ("div", ("mul", tree, ("const", "pi")), number(180))
        self.degrees = True
        return tree

    def _atom(self) -> Tree:
        token = self._peek()
        if token.kind in ("number", "recurring"):
            return self._number()
        if token.kind == "symbol":
            return self._symbol()
        if token.kind == "constant":
            self.at += 1
            return ("const", token.value)
        if token.kind == "function":
            self.at += 1
            return self._function(token.value)
        if token.kind == "open":
            return self._group()
        if token.value == "|" and not self._bars:
            return self._bars_group()
        raise Unreadable(f"{token.value or 'the end'} where a number or symbol is due")

    def _bars_group(self) -> Tree:
        self.at += 1
        self._bars += 1
        inside = self.sum()
        self._bars -= 1
        self._expect("|")
        return ("fn", "abs", inside)

    def _group(self) -> Tree:
        """What stands in a pair of brackets."""
        opening = self._peek().value
        if opening not in _BRACKETS:
            raise Unreadable(f"{opening} around a scalar")
        self.at += 1
        bars, self._bars = self._bars, 0
        inside = self.sum()
        if self._take(r"\choose"):
            inside = ("fn", "binom", inside, self.sum())
        self._bars = bars
        self._expect(_BRACKETS[opening])
        return ("fn", _BRACKET_FUNCTIONS[opening], inside) if opening in _BRACKET_FUNCTIONS else inside

    def _number(self) -> Tree:
        token = self._peek()
        self.at += 1
        if token.kind == "recurring":
            return ("num", recurring_decimal(token.value))
        value = Fraction(token.value)
        if token.value.isdigit():
            if self._peek().value == "frac":
                return self._whole_and_fraction(value)
            if self._peek().kind == "number" and self._peek().spaced and self._peek(1).value == "/":
                top, bottom = self._peek(), self._peek(2)
                self.at += 3
                return mixed_number(value, ("div", _digits(top), _digits(bottom)))
        if self._peek().value == "_":
            raise Unreadable("an index on a number")
        return ("num", value)

    def _whole_and_fraction(self, value: Fraction) -> Tree:
        self.at += 1
        fraction = self._function("frac")
        if fraction[1][0] == "num" and fraction[2][0] == "num":
            return mixed_number(value, fraction)
        return ("mul", ("num", value), fraction)

    def _symbol(self) -> Tree:
        """A letter with its index and primes, the constants e and i, or a function such as f with its arguments."""
        name = self._peek().value
        self.at += 1
        if name in ("e", "i") and self._peek().value not in ("_", "'"):
            return ("const", name)
        if self._take("_"):
            name += "_" + self._index()
        while self._take("'") or self._take_raised_prime():
            name += "'"
        if name.rstrip("'") in _OPAQUE_FUNCTIONS and self._peek().value == "(":
            return ("fn", f"apply {name}", *self._arguments())
        return ("sym", name)

    def _take_raised_prime(self) -> bool:
        if self._peek().value == "^" and self._peek(1).value == "'":
            self.at += 2
            return True
        values = [self._peek(ahead).value for ahead in range(4)]
        found = values == ["^", "{", "'", "}"]
        self.at += 4 * found
        return found

    def _index(self) -> str:
        """The text of an index: one token, or a group taken as it stands."""
        start = self.at
        self.at = self._pairs[start] + 1 if start in self._pairs else start + 1
        inside = self._tokens[start : self.at]
        if not inside:
            raise Unreadable("an empty index")
        return " ".join(token.value for token in inside if token.value not in ("{", "}"))

    def _arguments(self) -> list[Tree]:
        self._expect("(")
        arguments = [self.sum()]
        while self._take(","):
            arguments.append(self.sum())
        self._expect(")")
        return arguments

    def _function(self, name: str) -> Tree:
        if name == "frac":
            return ("div", *self._two_arguments())
        if name == "binom":
            return ("fn", "binom", *self._two_arguments())
        if name in ("sqrt", "surd"):
            return self._root(plain=name == "surd")
        if name in ("gcd", "lcm", "max", "min"):
            return ("fn", name, *self._arguments())
        if name in _ONE_ARGUMENT:
            return self._named(name)
        raise Unreadable(f"{name} in a scalar")

    def _two_arguments(self) -> tuple[Tree, Tree]:
        r"""The arguments of `\frac`: groups or single signs, so that `\frac34` is 3/4."""
        token = self._peek()
        if token.kind == "number" and len(token.value) == 2 and token.value.isdigit():
            self.at += 1
            return number(int(token.value[0])), number(int(token.value[1]))
        return self._tex_argument(), self._tex_argument()

    def _tex_argument(self) -> Tree:
        token = self._peek()
        if token.value == "{":
            return self._group()
        if token.kind == "number" and len(token.value) == 1:
            self.at += 1
            return _digits(token)
        if token.kind in ("symbol", "constant"):
            return self._symbol() if token.kind == "symbol" else self._atom()
        raise Unreadable("an argument that could end in two places")

    def _root(self, plain: bool) -> Tree:
        degree = number(2)
        if not plain and self._take("["):
            degree = self.sum()
            self._expect("]")
        if self._peek().value in ("(", "["):
            inside = self._group()
        else:
            inside = self._atom() if plain else self._tex_argument()
        return ("pow", inside, ("div", number(1), degree))

    def _named(self, name: str) -> Tree:
        r"""A function such as `\sin^2 x` or `\log_2(8)`."""
        base = self._base() if name == "log" and self._take("_") else None
        exponent = self._exponent() if self._take("^") else None
        if name == "log" and base is None and self._take("_"):
            base = self._base()
        if exponent == ("neg", number(1)) and name in _INVERSES:
            name, exponent = _INVERSES[name], None
        self._angles += name in TRIGONOMETRIC
        argument = self._argument()
        self._angles -= name in TRIGONOMETRIC
        tree = ("pow", ("const", "e"), argument) if name == "exp" else ("fn", name, argument)
        if base is not None:
            tree = ("div", ("fn", "ln", argument), ("fn", "ln", base))
        return tree if exponent is None else ("pow", tree, exponent)

    def _base(self) -> Tree:
        if self._peek().kind == "number":
            self.at += 1
            return _digits(self._tokens[self.at - 1])
        return self._tex_argument()

    def _argument(self) -> Tree:
        r"""What a function without a fixed end is applied to: brackets, or factors up to the next sign or function."""
        if self._peek().kind == "open" or self._peek().value == "|":
            braces = self._peek().value == "{"
            argument = self._atom()
            if braces and self._peek().value == "^":
                raise Unreadable("an exponent on a function or on its argument")
            return argument
        argument = self._power()
        while self._peek().kind in ("symbol", "constant") or self._peek().value in ("frac", "sqrt"):
            argument = ("mul", argument, self._power())
        if self._peek().value == "/" or (self._peek().kind == "open" and self._peek().value in _BRACKETS):
            raise Unreadable("a function whose argument could end in two places")
        return argument


def mixed_number(whole: Fraction, fraction: Tree) -> Tree:
    """3 and 1/2. With an improper fraction it could as well be a product, which is `Unreadable`."""
    top, bottom = fraction[1][1], fraction[2][1]
    if not 0 < top < bottom or top.denominator != 1 or bottom.denominator != 1:
        raise Unreadable("a mixed number or a product")
    return ("num", whole + top / bottom)


def recurring_decimal(text: str) -> Fraction:
    """0.1|6 -> 1/6: the digits after the bar repeat without end."""
    start, _, period = text.partition("|")
    whole, _, digits = start.partition(".")
    shift = 10 ** len(digits)
    return Fraction(int(whole or "0")) + Fraction(int(digits or "0"), shift) + Fraction(
        int(period), shift * (10 ** len(period) - 1))


def _digits(token: Token) -> Tree:
    if token.kind != "number" or not token.value.isdigit():
        raise Unreadable("digits are due here")
    return number(int(token.value))
