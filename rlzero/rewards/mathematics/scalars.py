"""Whether two scalar expressions are equal: by form, else by a value that differs, else by a proof of the library."""

from rlzero.rewards.mathematics import library, numerics
from rlzero.rewards.mathematics.elementary import form_of
from rlzero.rewards.mathematics.expressions import Tree
from rlzero.rewards.mathematics.forms import Ring, TooLarge, Undefined


def equal(a: Tree, b: Tree) -> bool:
    """Decides it exactly. What cannot be decided within the bounds counts as different.

    1. The same tree is equal, whatever its size: a tower of powers is never computed.
    2. Equal canonical forms are equal; different ones are different where the ring is complete.
    3. Values that differ at one point refute.
    4. The rest, such as identities between trigonometric functions, is up to the library's simplification.
    """
    if a == b:
        return True
    ring = Ring()
    try:
        if ring.equal(form_of(a, ring), form_of(b, ring)):
            return True
        if ring.complete:
            return False
    except Undefined:
        return False
    except TooLarge:
        pass
    return numerics.refuted(a, b) is False and library.proven_equal(a, b)
