r"""The trees that scalars are read into: tuples of an operation and its operands.

    ("num", Fraction)  ("sym", name)  ("const", "pi" | "e" | "i" | "inf")
    ("add", a, b, ...)  ("mul", a, b)  ("div", a, b)  ("neg", a)  ("pow", a, b)  ("fn", name, a, ...)
"""

from fractions import Fraction
from typing import Any

from rlzero.rewards.mathematics.tokens import Unreadable

Tree = tuple[Any, ...]

INFINITIES = (("const", "inf"), ("neg", ("const", "inf")))


def number(value: int | Fraction) -> Tree:
    return ("num", Fraction(value))


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


def symbols(tree: Tree) -> set[str]:
    """The names of the variables in a tree."""
    if tree[0] == "sym":
        return {tree[1]}
    return set().union(*(symbols(operand) for operand in tree[1:] if isinstance(operand, tuple)))


def contains(tree: Tree, leaf: Tree) -> bool:
    return tree == leaf or any(contains(operand, leaf) for operand in tree[1:] if isinstance(operand, tuple))


def size(tree: Tree) -> int:
    """The number of operations, numbers and names in a tree."""
    return 1 + sum(size(operand) for operand in tree[1:] if isinstance(operand, tuple))
