r"""What may stand before an equals sign as the name of a value: x, x_1, AB, \angle ABC, f(x), \sin A, (x, y), area."""

from rlzero.rewards.mathematics.expressions import TRIGONOMETRIC
from rlzero.rewards.mathematics.tokens import ACCENTS, Token
from rlzero.rewards.mathematics.trees import Tree

_NO_NAME = frozenset("not no never is are isnt neither nor or and if true false".split())
_MAX_WORDS = 3


def name_of(tokens: list[Token]) -> str | None:
    """The name that the tokens spell, or None if they are no plain name."""
    shapes = [token.value for token in tokens if token.value in (r"\angle", r"\triangle", "|", "||")]
    tokens = [token for token in tokens if token.value not in (*shapes, "{", "}")]
    if not tokens or len(tokens) > 12:
        return None
    if all(token.kind == "word" for token in tokens):
        words = [token.value.casefold() if len(token.value) > 1 else token.value for token in tokens]
        return " ".join(words) if len(words) <= _MAX_WORDS and not _NO_NAME & set(words) else None
    if tokens[0].value in ACCENTS and len(tokens) == 2 and tokens[1].kind == "symbol":
        return " ".join(token.value for token in tokens)
    if tokens[0].value == "frac" and all(token.kind == "symbol" for token in tokens[1:]) and [
            token.value for token in tokens[1:]].count("d") == 2:
        return " ".join(token.value for token in tokens)  # a derivative
    if tokens[0].value in TRIGONOMETRIC and len(tokens) == 2 and tokens[1].kind == "symbol":
        return " ".join(token.value for token in tokens)
    if (
        tokens[0].value == "("
        and tokens[-1].value == ")"
        and all(token.kind == "symbol" or token.value in (",", "_") for token in tokens[1:-1])
    ):
        return "".join(token.value for token in tokens)
    return _letters(tokens, shaped=bool(shapes))


def _letters(tokens: list[Token], shaped: bool) -> str | None:
    letters = [token for token in tokens if token.kind == "symbol"]
    if tokens[0].kind != "symbol":
        return None
    if len(letters) == len(tokens):
        plain = len(letters) == 1 or shaped or (len(letters) <= 4 and all(token.value.isupper() for token in letters))
        return "".join(token.value for token in letters) if plain else None
    rest = tokens[1:]
    while rest and rest[0].value == "'":
        rest = rest[1:]
    if not rest:
        return "".join(token.value for token in tokens)
    if [token.value for token in rest[:4]] == ["^", "-", "1", "("]:
        rest = rest[3:]
    if (
        rest[0].value == "_"
        and len(rest) <= 3
        and all(token.kind in ("symbol", "number", "word") for token in rest[1:])
    ):
        return f"{tokens[0].value}_{' '.join(token.value for token in rest[1:])}"
    if (
        rest[0].value == "("
        and rest[-1].value == ")"
        and len(rest) > 2
        and all(token.kind in ("symbol", "number") or token.value in (",", "-", "/", "_") for token in rest[1:-1])
    ):
        return "".join(token.value for token in tokens)
    return None


def is_constant(tree: Tree) -> bool:
    """Whether a tree has neither variables nor unknown functions."""
    if tree[0] == "sym" or (tree[0] == "fn" and tree[1].startswith("apply")):
        return False
    return all(is_constant(operand) for operand in tree[1:] if isinstance(operand, tuple))
