"""Whether two equations or inequalities are the same up to a constant factor: x + 2y = 4 and 2x + 4y = 8."""

from fractions import Fraction

from rlzero.rewards.mathematics import scalars
from rlzero.rewards.mathematics.answers import Answer, Named, Relation, Scalar
from rlzero.rewards.mathematics.elementary import form_of
from rlzero.rewards.mathematics.forms import ONE, Form, Generator, Monomial, Ring, TooLarge, Undefined
from rlzero.rewards.mathematics.tokens import Unreadable
from rlzero.rewards.mathematics.trees import Tree

_TURNED = {">": "<", r"\ge": r"\le"}


def same(a: Answer, b: Answer) -> bool:
    """Whether two relations say the same.

    Raises:
      Unreadable: if one of the answers is no single relation.
    """
    first, second = (_relation(answer) for answer in (a, b))
    if len(first.operators) > 1 or len(second.operators) > 1:
        return first.operators == second.operators and all(map(scalars.equal, first.operands, second.operands))
    (operator, left, right), (other, other_left, other_right) = _upward(first), _upward(second)
    if operator != other:
        return False
    if operator in ("=", r"\ne") and (
        _same_sides(left, right, other_left, other_right) or _same_sides(left, right, other_right, other_left)
    ):
        return True
    try:
        return _proportional(
            ("add", left, ("neg", right)),
            ("add", other_left, ("neg", other_right)),
            any_sign=operator in ("=", r"\ne"),
        )
    except (TooLarge, Undefined):
        return False


def _same_sides(left: Tree, right: Tree, other_left: Tree, other_right: Tree) -> bool:
    return scalars.equal(left, other_left) and scalars.equal(right, other_right)


def _relation(answer: Answer) -> Relation:
    if isinstance(answer, Named) and isinstance(answer.value, Scalar) and answer.name.replace("_", "").isalnum():
        return Relation(("=",), (("sym", answer.name), answer.value.tree))
    if not isinstance(answer, Relation):
        raise Unreadable("no relation")
    return answer


def _upward(relation: Relation) -> tuple[str, Tree, Tree]:
    """With < or <= in the place of > or >=."""
    (operator,), (left, right) = relation.operators, relation.operands
    return (_TURNED[operator], right, left) if operator in _TURNED else (operator, left, right)


def _proportional(a: Tree, b: Tree, any_sign: bool) -> bool:
    """Whether one expression is a constant times the other, a positive one unless any sign will do."""
    ring = Ring()
    forms = [form_of(tree, ring) for tree in (a, b)]
    if any_sign:
        forms = [_without_denominators(form, ring) for form in forms]
    elif any(form.bottom != ONE for form in forms):
        return False
    variables = max((_variables(m) for m in forms[0].top), default=())
    factors = [_coefficient(form, variables) for form in forms]
    if not variables or not all(factor.top for factor in factors):
        return False
    if not any_sign and not _same_sign(*factors):
        return False
    return ring.equal(ring.multiply(forms[0], factors[1]), ring.multiply(forms[1], factors[0]))


def _same_sign(a: Form, b: Form) -> bool:
    return a.rational is not None and b.rational is not None and a.rational * b.rational > 0


def _variables(monomial: Monomial) -> Monomial:
    return tuple(pair for pair in monomial if pair[0].kind not in ("prime", "constant", "imaginary", "logarithm"))


def _coefficient(form: Form, variables: Monomial) -> Form:
    """What stands before a product of variables."""
    return Form(
        {
            tuple(pair for pair in monomial if pair not in variables): value
            for monomial, value in form.top.items()
            if _variables(monomial) == variables
        }
    )


def _without_denominators(form: Form, ring: Ring) -> Form:
    lowest: dict[Generator, Fraction] = {}
    for monomial in form.top:
        for generator, exponent in monomial:
            if generator.kind == "variable" and exponent < lowest.get(generator, 0):
                lowest[generator] = exponent
    return ring.multiply(
        Form(form.top), ring.monomial((generator, -exponent) for generator, exponent in lowest.items())
    )
