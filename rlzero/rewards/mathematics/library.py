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

from rlzero.rewards.mathematics.trees import Tree, number, size

MAX_NODES = 60
MAX_CALLS = 250_000
_MAX_BITS = 128
_MAX_EXPONENT = 40
# sympy's caches and working precision belong to the process, so one thread uses it at a time.
_lock = threading.Lock()


class _OutOfCalls(BaseException):
    """Not an `Exception`, because the library goes on after those."""


class _Unsuitable(Exception):
    """The expression is not one to hand over."""


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
    if size(a) + size(b) > MAX_NODES:
        return False
    compare = load()
    try:
        with _lock, _CallLimit(MAX_CALLS):
            return bool(compare(_expression(a), _expression(b)))
    except (_OutOfCalls, _Unsuitable):
        return False


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
        if max(operands[0].numerator.bit_length(), operands[0].denominator.bit_length()) > _MAX_BITS:
            raise _Unsuitable
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
    if exponent.is_number and not abs(exponent) <= _MAX_EXPONENT:
        raise _Unsuitable
    if base.is_negative and exponent.is_Rational and exponent.q % 2:
        return (-1) ** exponent.p * (-base) ** exponent
    return base**exponent


def _function(name: str, arguments: list[Any]) -> Any:
    import sympy

    names = {
        "sin": sympy.sin,
        "cos": sympy.cos,
        "tan": sympy.tan,
        "sec": sympy.sec,
        "csc": sympy.csc,
        "cot": sympy.cot,
        "arcsin": sympy.asin,
        "arccos": sympy.acos,
        "arctan": sympy.atan,
        "sinh": sympy.sinh,
        "cosh": sympy.cosh,
        "tanh": sympy.tanh,
        "ln": sympy.log,
        "abs": sympy.Abs,
    }
    if name not in names:
        raise _Unsuitable
    return names[name](*arguments)
