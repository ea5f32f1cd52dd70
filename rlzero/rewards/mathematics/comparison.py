"""Whether a given answer is the gold answer, by kind. Whatever is not plainly the same is different.

The gold answer decides what may be left out: its name (y = 2x + 1 against 2x + 1), its unit (12 cm against 12), the
percent sign. Kinds do not mix: a list is no pair, a set no number, a ratio no fraction.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from rlzero.rewards.mathematics import equations, real_sets, scalars, units
from rlzero.rewards.mathematics.answers import (
    Answer,
    Based,
    Group,
    Interval,
    KnownSet,
    Matrix,
    Named,
    Ratio,
    Relation,
    Scalar,
    SetOperation,
    Text,
)
from rlzero.rewards.mathematics.tokens import Unreadable
from rlzero.rewards.mathematics.trees import INFINITIES, Tree, contains, number

_SETS = (Interval, SetOperation, KnownSet, Relation)
_UNORDERED = ("list", "set", "and", "or")
_MAX_ITEMS = 60
_AS_NUMBERS = {units.PERCENT: number(Fraction(1, 100)), units.DEGREE: ("div", ("const", "pi"), number(180))}


def same(gold: Answer, given: Answer) -> bool:
    """Whether the given answer is right."""
    if isinstance(gold, Named) or isinstance(given, Named):
        return _named(gold, given)
    if type(gold) is type(given) and type(gold) in _BY_KIND and _BY_KIND[type(gold)](gold, given):
        return True
    if _is_pair(gold) and (named := _bindings(given)) is not None:
        return _in_order(named) and _groups(_as_pair(gold), Group("tuple", tuple(named.values())))
    if isinstance(gold, Interval) != isinstance(given, Interval) and _is_pair(gold) and _is_pair(given):
        return _groups(_as_pair(gold), _as_pair(given))
    if isinstance(gold, Text) and isinstance(given, Scalar) or isinstance(gold, Scalar) and isinstance(given, Text):
        text, scalar = (gold, given) if isinstance(gold, Text) else (given, gold)
        return scalar.unit == units.NONE and scalar.tree == ("sym", text.values[0] if len(text.values) == 1 else "")
    return _as_sets(gold, given)


def _named(gold: Answer, given: Answer) -> bool:
    """With a name on both sides it must be the same one, unless the two are one equation."""
    if isinstance(gold, Named) and isinstance(given, Named):
        if gold.name == given.name:
            return same(gold.value, given.value)
        return _system(gold, given) or _equations(gold, given)
    name, value, other = (
        (gold.name, gold.value, given) if isinstance(gold, Named) else (given.name, given.value, gold)
    )
    if name.startswith("(") and not _in_order(name.strip("()").split(",")):
        return _system(gold, given)
    if isinstance(other, Relation) and isinstance(value, Scalar):
        return _equations(gold, given)
    if isinstance(other, Group) and name.startswith("("):
        return _system(gold, given) or same(value, other)
    if isinstance(other, Relation) or (isinstance(value, (Relation, Group)) and isinstance(other, Relation)):
        return real_sets.variable_of(other) in (None, name) and _as_sets(value, other)
    return same(value, other) if isinstance(gold, Named) else same(other, value)


def _system(gold: Answer, given: Answer) -> bool:
    """(x, y) = (1, 2) against x = 1, y = 2."""
    systems = [_bindings(answer) for answer in (gold, given)]
    return (
        None not in systems
        and systems[0].keys() == systems[1].keys()
        and all(same(value, systems[1][name]) for name, value in systems[0].items())
    )


def _in_order(names: Iterable[str]) -> bool:
    """Whether it goes without saying which value is whose, as in (3, -4) for (x, y)."""
    names = list(names)
    return names == sorted(names)


def _bindings(answer: Answer) -> dict[str, Answer] | None:
    if isinstance(answer, Named) and answer.name.startswith("(") and _is_pair(answer.value):
        names, values = answer.name.strip("()").split(","), _as_pair(answer.value).items
        return dict(zip(names, values, strict=True)) if len(names) == len(values) else None
    if isinstance(answer, Group) and all(isinstance(item, Named) for item in answer.items):
        found = {item.name: item.value for item in answer.items}
        return found if len(found) == len(answer.items) else None
    return None


def _is_pair(answer: Answer) -> bool:
    if isinstance(answer, Interval):
        ends = (answer.low, answer.high)
        return not answer.low_closed and not answer.high_closed and not any(end in INFINITIES for end in ends)
    return isinstance(answer, Group) and answer.kind == "tuple"


def _as_pair(answer: Answer) -> Group:
    return Group("tuple", (Scalar(answer.low), Scalar(answer.high))) if isinstance(answer, Interval) else answer


def _scalars(gold: Scalar, given: Scalar) -> bool:
    """Equal values in the same unit. A unit may be left out or added.

    Percent and degrees are also numbers: 50% is 0.5 as well as 50, and 180 degrees are pi as well as 180.
    """
    if gold.unit.powers == given.unit.powers:
        return _values(gold.tree, given.tree)
    plain = gold if gold.unit in (units.NONE, units.RADIAN) and given.unit != units.NONE else given
    measured = given if plain is gold else gold
    comparable = plain.unit == units.NONE or (plain.unit, measured.unit) == (units.RADIAN, units.DEGREE)
    if not comparable or not given.unit.known:
        return False
    if measured.unit in _AS_NUMBERS and _values(("mul", measured.tree, _AS_NUMBERS[measured.unit]), plain.tree):
        return True
    return plain.unit == units.NONE and _values(gold.tree, given.tree)


def _values(a: Tree, b: Tree) -> bool:
    if any(contains(tree, ("const", "inf")) for tree in (a, b)):
        return a == b
    return scalars.equal(a, b)


def _intervals(gold: Interval, given: Interval) -> bool:
    closed = (gold.low_closed, gold.high_closed) == (given.low_closed, given.high_closed)
    return closed and _values(gold.low, given.low) and _values(gold.high, given.high)


def _groups(gold: Group, given: Group) -> bool:
    if max(len(gold.items), len(given.items)) > _MAX_ITEMS:
        return gold == given
    if gold.kind in _UNORDERED and given.kind in _UNORDERED:
        if {gold.kind, given.kind} == {"and", "or"}:
            return False
        if "set" in (gold.kind, given.kind):
            return _covers(gold.items, given.items, same) and _covers(
                given.items, gold.items, lambda a, b: same(b, a)
            )
        return _matched(gold.items, given.items)
    return gold.kind == given.kind and len(gold.items) == len(given.items) and all(map(same, gold.items, given.items))


def _covers(items: tuple[Answer, ...], others: tuple[Answer, ...], equal: Callable[[Answer, Answer], bool]) -> bool:
    return all(any(equal(item, other) for other in others) for item in items)


def _matched(gold: tuple[Answer, ...], given: tuple[Answer, ...]) -> bool:
    """Whether the items can be paired off."""
    left = list(given)
    for item in gold:
        match = next((other for other in left if same(item, other)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _matrices(gold: Matrix, given: Matrix) -> bool:
    shapes = [[len(row) for row in matrix.rows] for matrix in (gold, given)]
    return (
        gold.bars == given.bars
        and shapes[0] == shapes[1]
        and all(_values(a, b) for rows in zip(gold.rows, given.rows, strict=True) for a, b in zip(*rows, strict=True))
    )


def _ratios(gold: Ratio, given: Ratio) -> bool:
    """Equal up to a factor: 4:6 is 2:3."""
    return (
        len(gold.parts) == len(given.parts)
        and all(
            _values(("mul", gold.parts[0], b), ("mul", a, given.parts[0]))
            for a, b in zip(gold.parts, given.parts, strict=True)
        )
        and not any(_values(part, number(0)) for part in gold.parts + given.parts)
    )


def _equations(gold: Answer, given: Answer) -> bool:
    try:
        return equations.same(gold, given)
    except Unreadable:
        return False


def _set_operations(gold: SetOperation, given: SetOperation) -> bool:
    """The same parts in any order; for ends that are no numbers."""
    return gold.operation == given.operation and (
        same(gold.left, given.left)
        and same(gold.right, given.right)
        or gold.operation != r"\setminus"
        and same(gold.left, given.right)
        and same(gold.right, given.left)
    )


def _as_sets(gold: Answer, given: Answer) -> bool:
    """Sets of numbers however they are written; with a variable on both sides it must be the same one."""
    if not (_is_set(gold) and _is_set(given)):
        return False
    names = {real_sets.variable_of(answer) for answer in (gold, given)} - {None}
    try:
        return len(names) < 2 and real_sets.same(gold, given)
    except Unreadable:
        return False


def _is_set(answer: Answer) -> bool:
    return isinstance(answer, _SETS) or (isinstance(answer, Group) and answer.kind in ("set", "and", "or"))


_BY_KIND: dict[type, Callable[[Any, Any], bool]] = {
    Scalar: _scalars,
    Interval: _intervals,
    Group: _groups,
    Matrix: _matrices,
    Ratio: _ratios,
    Relation: _equations,
    SetOperation: _set_operations,
    Based: lambda a, b: a == b,
    KnownSet: lambda a, b: a == b,
    Text: lambda a, b: a == b,
}
