"""Whether two scalar expressions are equal: by form, by digits, by a value that differs, by a proof of the library."""

from rlzero.rewards.mathematics import algebraic, library, numerics
from rlzero.rewards.mathematics.elementary import form_of
from rlzero.rewards.mathematics.forms import Ring, TooLarge, Undefined
from rlzero.rewards.mathematics.trees import Tree


def equal(a: Tree, b: Tree) -> bool:
    """Decides it exactly. What cannot be decided within the bounds counts as different.

    1. The same tree is equal, whatever its size: a tower of powers is never computed.
    2. Equal canonical forms are equal; different ones are different where the ring is complete.
    3. Algebraic numbers are equal if enough of their digits are.
    4. Values that differ at one point refute.
    5. The rest, such as logarithms of sums, is up to the library's simplification.
    """
    if a == b:
        return True
    try:
        verdict = _by_form(a, b)
    except Undefined:
        return False
    except TooLarge:
        verdict = None
    if verdict is not None:
        return verdict
    return numerics.refuted(a, b) is False and library.proven_equal(a, b)


def _by_form(a: Tree, b: Tree) -> bool | None:
    ring = Ring()
    forms = form_of(a, ring), form_of(b, ring)
    if ring.equal(*forms):
        return True
    return False if ring.complete else algebraic.is_zero(ring.difference(*forms))
