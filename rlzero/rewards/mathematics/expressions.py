r"""Reads a scalar, such as `2\sqrt{3}` or `\frac{x}{2}+1`, into a tree of `trees.py`. Nothing is computed here.

What mathematicians read in two ways is `Unreadable`: `1/2x`, `\sin x/2`, `3 4`, `x2`, `\sqrt12`, `2\frac43`.
"""

from fractions import Fraction

from rlzero.rewards.mathematics.cursor import Cursor
from rlzero.rewards.mathematics.tokens import ACCENTS, MAX_DEPTH, Token, Unreadable
from rlzero.rewards.mathematics.trees import Tree, mixed_number, number, recurring_decimal

TRIGONOMETRIC = ("sin", "cos", "tan", "sec", "csc", "cot")
_ONE_ARGUMENT = (*TRIGONOMETRIC, "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log", "lg", "exp")
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_OPAQUE_FUNCTIONS = frozenset("fghFGH")
_STARTS = ("number", "recurring", "symbol", "constant", "function", "open")
_BRACKETS = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil", "||": "||"}
_BRACKET_FUNCTIONS = {r"\lfloor": "floor", r"\lceil": "ceil", "||": "abs"}


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
    tree = parser.divided(tree)
    if parser.at != len(tokens):
        raise Unreadable(f"{tokens[parser.at].value} in this place")
    return tree, parser.degrees


class _Parser(Cursor):
    """A recursive descent over one token list."""

    def __init__(self, tokens: list[Token], plus_minus: int):
        super().__init__(tokens)
        self._plus_minus, self.degrees = plus_minus, False
        self._depth, self._bars, self._angles = 0, 0, 0

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
        sign = signs.get(self.peek().value, 0)
        self.at += bool(sign)
        return sign

    def _signed_product(self, sign: int) -> Tree:
        product = self._product()
        return product if sign > 0 else ("neg", product)

    def _product(self) -> Tree:
        """Factors with `*`, `/` or nothing between them; a quotient that goes on with nothing between is ambiguous."""
        product, divided = self._power(), False
        while True:
            if self.take("*"):
                product, divided = ("mul", product, self._factor()), False
            elif self.take("/"):
                product, divided = ("div", product, self._factor()), True
            elif self._starts_factor():
                number_follows = self.peek().kind in ("number", "recurring") and self.peek(1).value != "^"
                if divided or (number_follows and (self.peek(-1).value != "!" or self.peek().spaced)):
                    raise Unreadable("a product without a sign where it could mean two things")
                product = ("mul", product, self._power())
            else:
                return product

    def _factor(self) -> Tree:
        """A power, with a sign of its own as in `2 * -3`."""
        return ("neg", self._power()) if self.take("-") else self._power()

    def _starts_factor(self) -> bool:
        token = self.peek()
        return token.kind in _STARTS or token.value in ACCENTS or (token.value == "|" and not self._bars)

    def _power(self) -> Tree:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        tree = self._postfix(self._atom())
        while self.take("^"):
            if self.take("deg"):
                tree = self._degrees(tree)
            elif self.peek().value == "{" and self.peek(1).value == "deg" and self.peek(2).value == "}":
                self.at += 3
                tree = self._degrees(tree)
            else:
                tree = ("pow", tree, self._exponent())
            tree = self._postfix(tree)
        self._depth -= 1
        return tree

    def _exponent(self) -> Tree:
        """What stands after `^`; a further `^` belongs to it, as towers are read from the top."""
        if self.take("-"):
            return ("neg", self._exponent())
        return self._group() if self.peek().value == "{" and self.after_group().value != "^" else self._power()

    def _postfix(self, tree: Tree) -> Tree:
        while True:
            if self.take("!"):
                if self.peek().value == "!":
                    raise Unreadable("a double factorial")
                tree = ("fn", "factorial", tree)
            elif self.take("%"):
                tree = ("div", tree, number(100))
            else:
                return tree

    def _degrees(self, tree: Tree) -> Tree:
        if self._angles:
            return ("div", ("mul", tree, ("const", "pi")), number(180))
        self.degrees = True
        return tree

    def _atom(self) -> Tree:
        token = self.peek()
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
        if token.value in ACCENTS:
            return ("sym", self.accented_name())
        raise Unreadable(f"{token.value or 'the end'} where a number or symbol is due")

    def _bars_group(self) -> Tree:
        self.at += 1
        self._bars += 1
        inside = self.sum()
        self._bars -= 1
        self.expect("|")
        return ("fn", "abs", inside)

    def _group(self) -> Tree:
        """What stands in a pair of brackets."""
        opening = self.peek().value
        if opening not in _BRACKETS:
            raise Unreadable(f"{opening} around a scalar")
        self.at += 1
        bars, self._bars = self._bars, 0
        inside = self.sum()
        inside = self.divided(inside)
        self._bars = bars
        self.expect(_BRACKETS[opening])
        return ("fn", _BRACKET_FUNCTIONS[opening], inside) if opening in _BRACKET_FUNCTIONS else inside

    def divided(self, above: Tree) -> Tree:
        r"""What stands before `\over` or `\choose`, together with what follows; as it is if neither does."""
        if self.take(r"\over"):
            return ("div", above, self.sum())
        return ("fn", "binom", above, self.sum()) if self.take(r"\choose") else above

    def _number(self) -> Tree:
        token = self.peek()
        self.at += 1
        if token.kind == "recurring":
            return ("num", recurring_decimal(token.value))
        value = Fraction(token.value)
        if token.value.isdigit():
            if self.peek().value == "frac":
                return self._whole_and_fraction(value)
            if self.peek().kind == "number" and self.peek().spaced and self.peek(1).value == "/":
                top, bottom = self.peek(), self.peek(2)
                self.at += 3
                return mixed_number(value, ("div", _digits(top), _digits(bottom)))
        if self.peek().value == "_":
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
        name = self.peek().value
        self.at += 1
        if name in ("e", "i") and self.peek().value not in ("_", "'"):
            return ("const", name)
        if self.take("_"):
            name += "_" + self.index()
        while self.take("'") or self.take_raised_prime():
            name += "'"
        if name.rstrip("'") in _OPAQUE_FUNCTIONS and self.peek().value == "(":
            return ("fn", f"apply {name}", *self._arguments())
        return ("sym", name)

    def _arguments(self) -> list[Tree]:
        self.expect("(")
        arguments = [self.sum()]
        while self.take(","):
            arguments.append(self.sum())
        self.expect(")")
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
        token = self.peek()
        if token.kind == "number" and len(token.value) == 2 and token.value.isdigit():
            self.at += 1
            return number(int(token.value[0])), number(int(token.value[1]))
        return self._tex_argument(), self._tex_argument()

    def _tex_argument(self) -> Tree:
        token = self.peek()
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
        if not plain and self.take("["):
            degree = self.sum()
            self.expect("]")
        if self.peek().value in ("(", "["):
            inside = self._group()
        else:
            inside = self._atom() if plain else self._tex_argument()
        return ("pow", inside, ("div", number(1), degree))

    def _named(self, name: str) -> Tree:
        r"""A function such as `\sin^2 x` or `\log_2(8)`."""
        base = self._base() if name == "log" and self.take("_") else None
        exponent = self._exponent() if self.take("^") else None
        if name == "log" and base is None and self.take("_"):
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
        if self.peek().kind == "number":
            self.at += 1
            return _digits(self.tokens[self.at - 1])
        return self._tex_argument()

    def _argument(self) -> Tree:
        r"""What a function without a fixed end is applied to: brackets, or factors up to the next sign or function."""
        if self.peek().kind == "open" or self.peek().value == "|":
            braces = self.peek().value == "{"
            argument = self._atom()
            if braces and self.peek().value == "^":
                raise Unreadable("an exponent on a function or on its argument")
            return argument
        argument = self._power()
        while self.peek().kind in ("symbol", "constant") or self.peek().value in ("frac", "sqrt"):
            argument = ("mul", argument, self._power())
        if self.peek().value == "/" or (self.peek().kind == "open" and self.peek().value in _BRACKETS):
            raise Unreadable("a function whose argument could end in two places")
        return argument


def _digits(token: Token) -> Tree:
    if token.kind != "number" or not token.value.isdigit():
        raise Unreadable("digits are due here")
    return number(int(token.value))
