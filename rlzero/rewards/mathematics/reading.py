r"""From the text of an answer to one of the kinds in `answers.py`.

What is read as what:

* `1, 2, 3`, `1 and 2`, `\pm 2`, `x = 1 \text{ or } x = 2` are lists; `(3, 4)` is a pair or an open interval;
* `x = 5` is the value 5 with the name x; `y = 2x + 1` a value with the name y, and an equation where one is compared;
* inside brackets a comma separates, outside them `1,234` is one number;
* what is none of the kinds is text, which equals only the same text.
"""

import dataclasses

from rlzero.rewards.mathematics import naming, scalars, units
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
from rlzero.rewards.mathematics.expressions import parse
from rlzero.rewards.mathematics.tokens import Token, Unreadable, matching, tokenize
from rlzero.rewards.mathematics.trees import INFINITIES, Tree, contains, number

_JOINING = {",": "list", ";": "list", "and": "and", "or": "or"}
_SYSTEMS = ("cases", "aligned", "gathered")
_ENVIRONMENTS = ("pmatrix", "bmatrix", "vmatrix", "matrix", "smallmatrix", "array", "Bmatrix")


def read(text: str) -> Answer:
    """Reads an answer.

    Raises:
      Unreadable: if it cannot even be split into tokens.
    """
    return _read_list(tokenize(text))


def _split(tokens: list[Token], values: tuple[str, ...]) -> tuple[list[list[Token]], list[str]]:
    """Splits at signs that stand outside all brackets; the parts, and the signs between them."""
    parts, signs, depth = [[]], [], 0
    for token in tokens:
        depth += (token.kind == "open") - (token.kind == "close")
        value = token.value.lower() if token.kind == "word" else token.value
        if depth == 0 and value in values and token.kind not in ("close", "symbol"):
            parts.append([])
            signs.append(value)
        else:
            parts[-1].append(token)
    return parts, signs


def _read_list(tokens: list[Token]) -> Answer:
    tokens = _without_braces(tokens)
    parts, signs = _split(tokens, tuple(_JOINING))
    joining = {_JOINING[sign] for sign in signs}
    for place in range(len(parts) - 2, 0, -1):
        if not parts[place] and signs[place - 1] in ",;" and signs[place] not in ",;":
            del parts[place], signs[place - 1]  # the comma before a last `and`
    if len(parts) == 1:
        return _read_item(tokens)
    if not all(parts):
        return _text(tokens)
    word = joining - {"list"}
    return _joined([_read_item(part) for part in parts], word.pop() if len(word) == 1 else "list")


def _joined(items: list[Answer], kind: str) -> Answer:
    """A list of answers; one name before the first or before each belongs to the whole list."""
    names = [item.name if isinstance(item, Named) else None for item in items]
    if (
        names[0]
        and all(name in (None, names[0]) for name in names)
        and all(isinstance(item.value if isinstance(item, Named) else item, (Scalar, Group)) for item in items)
    ):
        return Named(names[0], _joined([item.value if isinstance(item, Named) else item for item in items], kind))
    flat = []
    for item in items:
        flat.extend(item.items if isinstance(item, Group) and item.kind == "list" else [item])
    return Group(kind if all(isinstance(item, Relation) for item in flat) else "list", tuple(flat))


def _without_braces(tokens: list[Token]) -> list[Token]:
    while len(tokens) > 2 and tokens[0].value == "{" and matching(tokens)[0] == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def _read_item(tokens: list[Token]) -> Answer:
    """One answer between separators. What none of the readers takes is text."""
    tokens = _without_braces(tokens)
    for reader in (_bracketed, _relation, _set_operation, _ratio, _based, _scalar):
        try:
            answer = reader(tokens)
        except Unreadable:
            continue
        if answer is not None:
            return answer
    return _text(tokens)


def _text(tokens: list[Token]) -> Text:
    """Words without regard to case, everything else as it is written, but for braces around a single sign."""
    around = {place for first in range(len(tokens) - 2) for place in (first, first + 2)
              if tokens[first].value == "{" and tokens[first + 2].value == "}" and tokens[first + 1].kind != "open"}
    return Text(
        tuple(
            token.value.casefold() if token.kind == "word" and len(token.value) > 1 else token.value
            for place, token in enumerate(tokens) if place not in around
        )
    )


def _bracketed(tokens: list[Token]) -> Answer | None:
    """An answer that is one pair of brackets from end to end, or a set with a sign of its own."""
    if len(tokens) == 1 and (tokens[0].value == r"\emptyset" or tokens[0].value.startswith("set ")):
        return KnownSet("empty" if tokens[0].value == r"\emptyset" else tokens[0].value[4:])
    if not tokens or tokens[0].kind != "open" or matching(tokens)[0] != len(tokens) - 1:
        return None
    opening, closing, inside = tokens[0].value, tokens[-1].value, tokens[1:-1]
    if opening in _ENVIRONMENTS:
        return _matrix(inside, bars=opening == "vmatrix")
    if opening in _SYSTEMS:
        rows = [[token for token in row if token.value != "&"] for row in _split(inside, ("\\\\",))[0]]
        return _joined([_read_item(row) for row in rows if row], "list")
    if opening == r"\{":
        return _set(inside)
    parts, _ = _split(inside, (",", ";"))
    if opening == r"\langle":
        return Group("tuple", tuple(_read_item(part) for part in parts))
    if opening not in ("(", "["):
        return None
    if len(parts) == 1:
        return _read_item(inside) if {opening, closing} in ({"(", ")"}, {"[", "]"}) else None
    return _tuple(parts, opening == "[", closing == "]")


def _tuple(parts: list[list[Token]], low_closed: bool, high_closed: bool) -> Answer:
    items = tuple(_read_item(part) for part in parts)
    if len(items) == 2 and all(isinstance(item, Scalar) and item.unit == units.NONE for item in items):
        return Interval(items[0].tree, items[1].tree, low_closed, high_closed)
    if low_closed != high_closed or not all(parts):
        raise Unreadable("brackets of two kinds around what is no interval")
    return Group("array" if low_closed else "tuple", items)


def _set(tokens: list[Token]) -> Answer:
    """The inside of curly brackets: elements, or a variable and the condition on it."""
    if not tokens:
        return KnownSet("empty")
    parts, _ = _split(tokens, ("|", ":"))
    domain = [token.value for token in parts[0][1:]]
    if len(parts) == 2 and parts[0] and parts[0][0].kind == "symbol" and domain in ([], [r"\in", "set R"]):
        condition = _read_list(parts[1])
        if isinstance(condition, (Relation, Group)):
            return Named(parts[0][0].value, condition)
    answer = _read_list(tokens)
    return Group("set", answer.items if isinstance(answer, Group) and answer.kind != "tuple" else (answer,))


def _matrix(tokens: list[Token], bars: bool) -> Matrix:
    rows = [row for row in _split(tokens, ("\\\\",))[0] if row]
    cells = tuple(tuple(_tree(cell) for cell in _split(row, ("&",))[0]) for row in rows)
    if len({len(row) for row in cells}) != 1:
        raise Unreadable("rows of different lengths")
    return Matrix(cells, bars)


def _tree(tokens: list[Token]) -> Tree:
    """A scalar without a unit."""
    tree, degrees = parse(tokens)
    if degrees:
        raise Unreadable("a unit in this place")
    return tree


def _relation(tokens: list[Token]) -> Answer | None:
    parts, signs = _split(tokens, ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in"))
    if not signs:
        return None
    if not all(parts):
        raise Unreadable("a relation without a side")
    if signs == [r"\in"]:
        name = naming.name_of(parts[0])
        return None if name is None else Named(name, _read_list(parts[1]))
    if set(signs) == {"="}:
        return _equation(parts)
    if "=" in signs or r"\in" in signs or (r"\ne" in signs and len(signs) > 1):
        raise Unreadable("relations of several kinds")
    return Relation(tuple(signs), tuple(_tree(part) for part in parts))


def _equation(parts: list[list[Token]]) -> Answer:
    """x = 5 and 5 = x as the value of x, 2 + 3 = 5 as 5, and anything else as an equation."""
    name = naming.name_of(parts[0])
    if name is None and len(parts) == 2 and len(parts[1]) == 1 and parts[1][0].kind == "symbol":
        parts, name = parts[::-1], naming.name_of(parts[1])
    values = [_read_item(part) for part in (parts if name is None else parts[1:])]
    if name is not None and all(naming.name_of(part) for part in parts[:-1]) and len(parts) > 2:
        return Group("list", tuple(Named(naming.name_of(part), values[-1]) for part in parts[:-1]))
    if name is not None and not _mentions(values[-1], name):
        return Named(name, _one_value(values))
    if name is None and len(parts) > 1 and all(isinstance(v, Scalar) and naming.is_constant(v.tree) for v in values):
        return _one_value(values)
    if len(parts) != 2:
        raise Unreadable("a chain of equations")
    return Relation(("=",), tuple(_tree(part) for part in parts))


def _one_value(values: list[Answer]) -> Answer:
    """The last of several values that are said to be equal, if they are."""
    for value in values[:-1]:
        if not (
            isinstance(value, Scalar)
            and isinstance(values[-1], Scalar)
            and scalars.equal(value.tree, values[-1].tree)
        ):
            raise Unreadable("values that are not equal")
    return values[-1]


def _mentions(value: Answer, name: str) -> bool:
    return isinstance(value, Scalar) and contains(value.tree, ("sym", name))


def _set_operation(tokens: list[Token]) -> Answer | None:
    parts, signs = _split(tokens, (r"\cup", r"\cap", r"\setminus"))
    if not signs:
        return None
    if len(set(signs)) > 1 or not all(parts) or (signs[0] == r"\setminus" and len(signs) > 1):
        raise Unreadable("set operations whose order is not said")
    answer = _read_item(parts[0])
    for part in parts[1:]:
        answer = SetOperation(signs[0], answer, _read_item(part))
    return answer


def _ratio(tokens: list[Token]) -> Answer | None:
    parts, signs = _split(tokens, (":", "to"))
    return Ratio(tuple(_tree(part) for part in parts)) if signs else None


def _based(tokens: list[Token]) -> Answer | None:
    """52_8: digits with an index, perhaps behind a minus."""
    minus = "-" if tokens and tokens[0].value == "-" else ""
    tokens = tokens[len(minus) :]
    for place, token in enumerate(tokens):
        if token.value == "_" and place:
            digits, base = tokens[:place], [t for t in tokens[place + 1 :] if t.value not in ("{", "}")]
            if digits[0].value == "(" and digits[-1].value == ")":
                digits = digits[1:-1]
            if (
                digits
                and all(t.kind in ("number", "symbol") for t in digits)
                and digits[0].kind == "number"
                and len(base) == 1
                and (base[0].kind == "number")
            ):
                return Based(minus + ("".join(t.value for t in digits).upper().lstrip("0") or "0"), base[0].value)
            return None
    return None


def _scalar(tokens: list[Token]) -> Answer:
    """A number or expression, before which a currency and behind which a unit may stand."""
    number_tokens, unit = _without_unit(tokens)
    signs = [token.value for token in number_tokens if token.value in (r"\pm", r"\mp")]
    if not signs:
        return _with_unit(*parse(number_tokens), unit)
    if len(signs) > 1 and r"\mp" not in signs:
        raise Unreadable("several signs that are plus or minus")
    return Group("list", tuple(_with_unit(*parse(number_tokens, plus_minus=sign), unit) for sign in (1, -1)))


def _with_unit(tree: Tree, degrees: bool, unit: units.Unit) -> Scalar:
    if degrees:
        unit = {units.NONE: units.DEGREE}.get(unit, unit)
        if unit not in (units.DEGREE, *units.TEMPERATURES):
            raise Unreadable("degrees of something else")
    if contains(tree, ("const", "inf")) and tree not in INFINITIES:
        raise Unreadable("infinity in an expression")
    if unit == units.PERCENT and tree[0] == "add":
        raise Unreadable("percent of a sum or of its last term")
    if unit.factor != 1:
        tree = ("mul", tree, number(unit.factor))
    return Scalar(tree, dataclasses.replace(unit, factor=1))


def _without_unit(tokens: list[Token]) -> tuple[list[Token], units.Unit]:
    """Splits a currency in front, also behind a minus, and a unit at the end from the tokens of the number."""
    minus = tokens[:1] if tokens and tokens[0].value == "-" else []
    rest = tokens[len(minus) :]
    currency = rest[:1] if rest and rest[0].value in units.CURRENCIES else []
    rest = rest[len(currency) :]
    place = _place_of_unit(rest)
    if place == len(rest) and not currency:
        return tokens, units.NONE
    amount = rest[:place]
    while amount and amount[-1].value == "{":
        amount = amount[:-1]
    return [*minus, *amount], units.read_unit([*currency, *rest[place:]])


def _place_of_unit(tokens: list[Token]) -> int:
    """Where a unit begins: at the first word outside brackets, or at a percent sign that ends the answer."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token.kind == "open" and token.value != "{") - (token.kind == "close" and token.value != "}")
        last = all(after.value in ("%", "}") for after in tokens[place:]) if token.value == "%" else False
        if depth == 0 and (last or token.kind == "word" or token.value in units.CURRENCIES):
            return place
    return len(tokens)
