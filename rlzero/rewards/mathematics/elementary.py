r"""From a tree to its canonical form.

Two expressions count as equal if they are so wherever both are defined, so that ln(x^2) is 2 ln(x). What has no exact
rule becomes a generator of its own, and the ring then knows that different forms may still be equal.
"""

from rlzero.rewards.mathematics import functions, powers
from rlzero.rewards.mathematics.forms import E, PI, Form, Generator, I, Ring, constant, single
from rlzero.rewards.mathematics.tokens import Unreadable
from rlzero.rewards.mathematics.trees import Tree


def form_of(tree: Tree, ring: Ring) -> Form:
    """The canonical form of a tree.

    Raises:
      TooLarge: beyond the bounds of the ring.
      Undefined: for a division by zero and the like.
    """
    operation, *operands = tree
    if operation == "num":
        return constant(operands[0])
    if operation == "sym":
        return single(Generator("variable", operands[0]))
    if operation == "const":
        return _constant(operands[0])
    if operation == "fn":
        return functions.apply(operands[0], [form_of(operand, ring) for operand in operands[1:]], ring)
    forms = [form_of(operand, ring) for operand in operands]
    if operation == "add":
        return ring.add(forms)
    if operation == "mul":
        return ring.multiply(*forms)
    if operation == "neg":
        return ring.scale(forms[0], -1)
    if operation == "div":
        return ring.multiply(forms[0], ring.inverse(forms[1]))
    return _power(operands[0], *forms, ring)


def _constant(name: str) -> Form:
    if name == "inf":
        raise Unreadable("infinity in an expression")
    return single({"pi": PI, "e": E, "i": I}[name])


def _power(base_tree: Tree, base: Form, exponent: Form, ring: Ring) -> Form:
    """A power. An even root of an even power of a sum, as it is written, is a power of the absolute value."""
    number = exponent.rational
    if number is not None and number.denominator % 2 == 0 and base_tree[0] == "pow" and len(base.top) > 1:
        lower = form_of(base_tree[2], ring).rational
        if lower is not None and lower.denominator == 1 and lower % 2 == 0:
            return powers.power(powers.absolute(form_of(base_tree[1], ring), ring), constant(lower * number), ring)
    return powers.power(base, exponent, ring)
