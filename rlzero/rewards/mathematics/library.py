"""The last resort for two expressions that agree in value but not in form: simplification by math-verify.

It is handed expressions that were built here from numbers and names, never text: the parsers of math-verify and sympy
evaluate what they read. Their time limits are signals, which work in the main thread only; here the number of Python
calls is bounded instead, so that the same pair gets the same verdict in any thread, in any process, and under any load.
"""

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from rlzero.rewards.mathematics import numerics
from rlzero.rewards.mathematics.trees import Tree, number, size, symbols

MAX_NODES = 60
MAX_CALLS = 250_000
_MAX_BITS = 128
_MAX_EXPONENT = 40
_MAX_POWER = 1e300
# sympy's caches and working precision belong to the process, so one thread uses it at a time.
_lock = threading.Lock()


class _OutOfCalls(BaseException):
    """Not an `Exception`, because the library goes on after those."""


@functools.cache
def load() -> Callable[[Any, Any], bool]:
    """Imports the library, which takes a second, and does one comparison so that it also loads what it loads late.

    Returns:
      Its exact comparison: whether the difference of two expressions simplifies to zero.
    """
    from math_verify import grader

    sine, cosine = (("pow", ("fn", name, ("sym", "x")), number(2)) for name in ("sin", "cos"))
    with _lock:
        grader.sympy_symbolic_eq(_expression(("add", sine, cosine)), _expression(number(1)))
    return grader.sympy_symbolic_eq


def proven_equal(a: Tree, b: Tree) -> bool:
    """Whether the difference of two expressions simplifies to zero within the bounds."""
    if size(a) + size(b) > MAX_NODES or not (_is_suitable(a) and _is_suitable(b)):
        return False
    compare = load()
    try:
        with _lock, _CallLimit(MAX_CALLS):
            return bool(compare(_expression(a), _expression(b)))
    except _OutOfCalls:
        return False


def _is_suitable(tree: Tree) -> bool:
    """Whether a tree holds nothing that the library would compute without bounds, and only functions it is given."""
    if tree[0] == "num":
        return max(tree[1].numerator.bit_length(), tree[1].denominator.bit_length()) <= _MAX_BITS
    if tree[0] == "pow" and not (_is_moderate(tree[2], _MAX_EXPONENT) and _is_moderate(tree, _MAX_POWER)):
        return False
    if tree[0] == "fn" and tree[1] not in _FUNCTIONS:
        return False
    return all(_is_suitable(operand) for operand in tree[1:] if isinstance(operand, tuple))


def _is_moderate(tree: Tree, most: float) -> bool:
    """Whether a tree has variables, or a value that is not too large."""
    if symbols(tree):
        return True
    value = numerics.real_value(tree)
    return value is not None and abs(value) <= most


class _CallLimit:
    """Ends the block with `_OutOfCalls` after a number of Python calls; an earlier profiler comes back after it."""

    def __init__(self, calls: int):
        self._left = calls

    def __enter__(self):
        self._before = sys.getprofile()
        sys.setprofile(self._count)

    def __exit__(self, *_):
        sys.setprofile(self._before)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._left -= 1
            if self._left < 0:
                raise _OutOfCalls


def _expression(tree: Tree) -> Any:
    """The tree as an object of sympy; variables are positive there, as `numerics` has looked at negative ones."""
    import sympy

    operation, *operands = tree
    if operation == "num":
        return sympy.Rational(operands[0].numerator, operands[0].denominator)
    if operation == "sym":
        return sympy.Symbol(operands[0], positive=True)
    if operation == "const":
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}[operands[0]]
    if operation == "fn":
        return _function(operands[0], [_expression(operand) for operand in operands[1:]])
    values = [_expression(operand) for operand in operands]
    if operation == "pow":
        return _power(*values)
    return {
        "add": lambda: sympy.Add(*values),
        "mul": lambda: sympy.Mul(*values),
        "neg": lambda: -values[0],
        "div": lambda: values[0] / values[1],
    }[operation]()


def _power(base: Any, exponent: Any) -> Any:
    if base.is_negative and exponent.is_Rational and exponent.q % 2:
        return (-1) ** exponent.p * (-base) ** exponent
    return base**exponent


def _function(name: str, arguments: list[Any]) -> Any:
    import sympy

    return getattr(sympy, _FUNCTIONS[name])(*arguments)


_FUNCTIONS = {name: name for name in "sin cos tan sec csc cot sinh cosh tanh".split()} | {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "ln": "log", "abs": "Abs"}
