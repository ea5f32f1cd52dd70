"""Whether two sets of real numbers are the same: intervals, unions, finite sets, and inequalities in one variable.

The ends of all intervals cut the line into points and gaps, and two sets are the same if they hold the same ones. Ends
are compared exactly; their order is taken from 50 digits, which is safe for numbers that are known to differ.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from rlzero.rewards.mathematics import numerics, scalars
from rlzero.rewards.mathematics.answers import Answer, Group, Interval, KnownSet, Named, Relation, Scalar, SetOperation
from rlzero.rewards.mathematics.elementary import form_of
from rlzero.rewards.mathematics.forms import ONE, Generator, Ring, TooLarge, Undefined
from rlzero.rewards.mathematics.tokens import Unreadable
from rlzero.rewards.mathematics.trees import Tree, number, symbols

_INFINITY = ("const", "inf")
_MINUS_INFINITY = ("neg", _INFINITY)
_TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Numbers between two ends."""

    low: Tree
    high: Tree
    low_closed: bool = False
    high_closed: bool = False


_Set = tuple  # ("piece", _Piece) or (operation, set, set)
_EVERYTHING = ("piece", _Piece(_MINUS_INFINITY, _INFINITY))
_NOTHING = (r"\setminus", _EVERYTHING, _EVERYTHING)


def same(a: Answer, b: Answer) -> bool:
    """Whether two answers are the same set of real numbers.

    Raises:
      Unreadable: if one of them is no such set, or the order of its ends is not known.
    """
    sets = _set_of(a), _set_of(b)
    ends = functools.reduce(_with_end, _ends(sets[0]) + _ends(sets[1]), [])
    places = range(2 * len(ends) + 1)
    return [_holds(sets[0], place, ends) for place in places] == [_holds(sets[1], place, ends) for place in places]


def variable_of(answer: Answer) -> str | None:
    """The variable that an inequality is about."""
    if isinstance(answer, Relation):
        names = set().union(*(symbols(operand) for operand in answer.operands))
        return names.pop() if len(names) == 1 else None
    if isinstance(answer, Group) and answer.items:
        names = {variable_of(item) for item in answer.items}
        return names.pop() if len(names) == 1 else None
    return answer.name if isinstance(answer, Named) else None


def _set_of(answer: Answer) -> _Set:
    if isinstance(answer, Interval):
        return "piece", _proper(_Piece(answer.low, answer.high, answer.low_closed, answer.high_closed))
    if isinstance(answer, KnownSet) and answer.name in ("empty", "R"):
        return _NOTHING if answer.name == "empty" else _EVERYTHING
    if isinstance(answer, SetOperation):
        return answer.operation, _set_of(answer.left), _set_of(answer.right)
    if isinstance(answer, Named):
        return _set_of(answer.value)
    if isinstance(answer, Group) and answer.kind == "set" and all(isinstance(item, Scalar) for item in answer.items):
        return _joined(r"\cup", [_point(item.tree) for item in answer.items])
    if isinstance(answer, Group) and answer.kind in ("and", "or") and variable_of(answer):
        return _joined(r"\cup" if answer.kind == "or" else r"\cap", [_set_of(item) for item in answer.items])
    if isinstance(answer, Relation) and variable_of(answer):
        return _solutions(answer)
    raise Unreadable("no set of real numbers")


def _proper(piece: _Piece) -> _Piece:
    """The piece, unless it holds infinity or its ends are in the wrong order: then it is a pair and no interval."""
    if (piece.low_closed and piece.low == _MINUS_INFINITY) or (piece.high_closed and piece.high == _INFINITY):
        raise Unreadable("an interval with infinity in it")
    if piece.low in (_INFINITY, piece.high) or piece.high == _MINUS_INFINITY or (
            piece.low != _MINUS_INFINITY and piece.high != _INFINITY and _value(piece.low) >= _value(piece.high)):
        raise Unreadable("no interval")
    return piece


def _point(tree: Tree) -> _Set:
    return "piece", _Piece(tree, tree, True, True)


def _joined(operation: str, sets: list[_Set]) -> _Set:
    return functools.reduce(lambda a, b: (operation, a, b), sets)


def _solutions(relation: Relation) -> _Set:
    """The solutions of a chain of linear inequalities."""
    pairs = zip(relation.operands, relation.operators, relation.operands[1:], strict=False)
    return _joined(r"\cap", [_half_line(left, operator, right) for left, operator, right in pairs])


def _half_line(left: Tree, operator: str, right: Tree) -> _Set:
    if left[:2] == ("fn", "abs") and not symbols(right):
        return _absolute(left[2], operator, right)
    slope, end = _solved(("add", left, ("neg", right)))
    operator = operator if slope > 0 else _TURNED[operator]
    if operator == r"\ne":
        return r"\setminus", _EVERYTHING, _point(end)
    closed = operator in (r"\le", r"\ge")
    below = _Piece(_MINUS_INFINITY, end, False, closed)
    return "piece", below if operator in ("<", r"\le") else _Piece(end, _INFINITY, closed, False)


def _absolute(inside: Tree, operator: str, bound: Tree) -> _Set:
    """|u| < c as -c < u < c, and |u| > c as u < -c or u > c."""
    if _value(bound) <= 0 or operator == r"\ne":
        raise Unreadable("an absolute value that is not compared with a positive number")
    joining = r"\cap" if operator in ("<", r"\le") else r"\cup"
    return joining, _half_line(inside, operator, bound), _half_line(inside, _TURNED[operator], ("neg", bound))


def _solved(tree: Tree) -> tuple[int, Tree]:
    """The sign of a and the tree of -b/a for a linear expression a x + b with rational a and b."""
    try:
        form = form_of(tree, Ring())
    except (TooLarge, Undefined):
        raise Unreadable("an inequality that cannot be solved") from None
    names = symbols(tree)
    linear = ((Generator("variable", next(iter(names))), 1),) if len(names) == 1 else ()
    slope = form.top.get(linear)
    if slope is None or form.bottom != ONE or sum(bool(m) and _has_variable(m) for m in form.top) != 1:
        raise Unreadable("no linear inequality")
    if set(form.top) <= {linear, ()}:
        return (1 if slope > 0 else -1), number(-form.top.get((), 0) / slope)
    return (1 if slope > 0 else -1), _end_of_lone(tree)


def _has_variable(monomial: tuple) -> bool:
    return any(generator.kind == "variable" for generator, _ in monomial)


def _end_of_lone(tree: Tree) -> Tree:
    """The end of x < c or c < x with any number c, such as a root."""
    left, right = tree[1], tree[2][1]
    if left[0] == "sym":
        return right
    if right[0] == "sym":
        return left
    raise Unreadable("an inequality with roots that is not solved")


def _ends(expression: _Set) -> list[Tree]:
    if expression[0] == "piece":
        piece = expression[1]
        return [end for end in (piece.low, piece.high) if end not in (_INFINITY, _MINUS_INFINITY)]
    return _ends(expression[1]) + _ends(expression[2])


def _value(tree: Tree) -> Any:
    value = numerics.real_value(tree)
    if value is None:
        raise Unreadable("an end without a value")
    return value


def _with_end(ends: list[Tree], end: Tree) -> list[Tree]:
    """Puts an end where it belongs in the order, unless it is there."""
    if any(scalars.equal(end, other) for other in ends):
        return ends
    if any(_value(end) == _value(other) for other in ends):
        raise Unreadable("ends whose order is not known")
    return sorted([*ends, end], key=_value)


def _place(end: Tree, ends: list[Tree]) -> int:
    """Where an end is among points and gaps: gap 0, first end 1, gap 2, second end 3, ..."""
    if end in (_INFINITY, _MINUS_INFINITY):
        return 2 * len(ends) + 1 if end == _INFINITY else -1
    return next(2 * index + 1 for index, other in enumerate(ends) if scalars.equal(end, other))


_OPERATIONS: dict[str, Callable[[bool, bool], bool]] = {
    r"\cup": lambda a, b: a or b, r"\cap": lambda a, b: a and b, r"\setminus": lambda a, b: a and not b}


def _holds(expression: _Set, place: int, ends: list[Tree]) -> bool:
    if expression[0] == "piece":
        piece = expression[1]
        low, high = _place(piece.low, ends), _place(piece.high, ends)
        return low < place < high or (place == low and piece.low_closed and (low < high or piece.high_closed)) or (
            place == high and piece.high_closed and low < high)
    return _OPERATIONS[expression[0]](_holds(expression[1], place, ends), _holds(expression[2], place, ends))
