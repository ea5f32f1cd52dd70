"""The kinds of answers, as data. `reading.py` makes them from tokens, `comparison.py` compares them."""

import dataclasses
from typing import Union

from rlzero.rewards.mathematics.trees import Tree
from rlzero.rewards.mathematics.units import NONE, Unit


@dataclasses.dataclass(frozen=True)
class Scalar:
    """A number or an expression, perhaps with a unit."""

    tree: Tree
    unit: Unit = NONE


@dataclasses.dataclass(frozen=True)
class Based:
    """A number written in another base than ten, kept as it is written."""

    digits: str
    base: str


@dataclasses.dataclass(frozen=True)
class Ratio:
    """2:3, or with more parts."""

    parts: tuple[Tree, ...]


@dataclasses.dataclass(frozen=True)
class Group:
    """Several answers: a tuple or array is ordered, a set has no repeats, a list neither.

    Lists are written without brackets. "or" and "and" are lists whose joining word matters, as between inequalities.
    """

    kind: str
    items: tuple["Answer", ...]


@dataclasses.dataclass(frozen=True)
class Interval:
    """Two ends in brackets. With two round ones it may as well be a pair; the comparison treats both alike."""

    low: Tree
    high: Tree
    low_closed: bool
    high_closed: bool


@dataclasses.dataclass(frozen=True)
class SetOperation:
    r"""Two sets joined by `\\cup`, `\\cap` or `\\setminus`."""

    operation: str
    left: "Answer"
    right: "Answer"


@dataclasses.dataclass(frozen=True)
class KnownSet:
    """A set with a sign of its own: "empty", "R", "Z" and so on."""

    name: str


@dataclasses.dataclass(frozen=True)
class Relation:
    """An equation, or a chain of inequalities such as 0 <= x < 1."""

    operators: tuple[str, ...]
    operands: tuple[Tree, ...]


@dataclasses.dataclass(frozen=True)
class Named:
    """A value with what it is the value of: x = 5, f(x) = 2x + 1, x in [0, 1)."""

    name: str
    value: "Answer"


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Rows of expressions, and whether it stands between bars, as a determinant."""

    rows: tuple[tuple[Tree, ...], ...]
    bars: bool


@dataclasses.dataclass(frozen=True)
class Text:
    """Words, or a formula that is only compared as it is written."""

    values: tuple[str, ...]


Answer = Union[Scalar, Based, Ratio, Group, Interval, SetOperation, KnownSet, Relation, Named, Matrix, Text]
