"""Sums of a few single-digit numbers, like `7+8-3=`, answered by an integer.

All questions there can be are enumerated, and a hash of the question alone decides whether it is held out. So the
splits cannot overlap, whatever the seed, and a corpus that draws from the training side never shows a held-out
question.
"""

import functools
import hashlib
import itertools

import numpy as np

from rlzero.data.problems import Problem

NUM_OPERANDS = (3, 4)
MAX_TOTAL = 99
_HELD_OUT_ONE_IN = 6


@functools.cache
def questions(split: str, num_operands: int) -> tuple[np.ndarray, np.ndarray]:
    """All questions of one split with `num_operands` numbers, N of them.

    The running total of a question never leaves 0 ... `MAX_TOTAL`.

    Returns:
      digits [N, num_operands] in 1 ... 9, and signs [N, num_operands] in {1, -1}, the first of them 1; both int8.
    """
    digits = np.array(list(itertools.product(range(1, 10), repeat=num_operands)), np.int8)
    signs = np.array(list(itertools.product((1,), *[(1, -1)] * (num_operands - 1))), np.int8)
    digits, signs = np.repeat(digits, len(signs), axis=0), np.tile(signs, (len(digits), 1))
    totals = np.cumsum(digits * signs, axis=1)
    possible = ((totals >= 0) & (totals <= MAX_TOTAL)).all(axis=1)
    digits, signs = digits[possible], signs[possible]
    held_out = np.array([_held_out(question_text(d, s)) for d, s in zip(digits, signs, strict=True)])
    chosen = held_out == (split == "held_out")
    return digits[chosen], signs[chosen]


def draw(split: str, count: int, rng: np.random.Generator, *, replace: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draws `count` questions, as many of each number of operands as of the others.

    Returns:
      For each number of operands, digits and signs as in `questions`, int8.
    """
    shares = np.full(len(NUM_OPERANDS), count // len(NUM_OPERANDS))
    shares[: count % len(NUM_OPERANDS)] += 1
    drawn = []
    for num_operands, share in zip(NUM_OPERANDS, shares, strict=True):
        digits, signs = questions(split, num_operands)
        if not replace and share > len(digits):
            raise ValueError(
                f"the {split} split has {len(digits)} questions with {num_operands} numbers, {share} were asked for; "
                f"ask for at most {len(digits) * len(NUM_OPERANDS)} problems."
            )
        rows = rng.choice(len(digits), size=share, replace=replace)
        drawn.append((digits[rows], signs[rows]))
    return drawn


def problems(split: str, count: int, *, seed: int) -> list[Problem]:
    """Returns `count` different problems of a split.

    Args:
      split: "train" or "held_out".
      count: how many; half of them have three numbers, half four.
      seed: which ones, and in which order.

    Raises:
      ValueError: if the split has fewer.
    """
    rng = np.random.default_rng(seed)
    made = []
    for digits, signs in draw(split, count, rng, replace=False):
        for row_digits, row_signs in zip(digits, signs, strict=True):
            question = question_text(row_digits, row_signs)
            answer = int(np.dot(row_digits.astype(int), row_signs))
            made.append(Problem(f"arithmetic/{question}", question, str(answer)))
    return [made[i] for i in rng.permutation(len(made))]


def question_text(digits: np.ndarray, signs: np.ndarray) -> str:
    """Returns a question as it is asked: `7+8-3=`."""
    terms = (f"{digit:+d}" for digit in (digits * signs).tolist())
    return "".join(terms).removeprefix("+") + "="


def _held_out(question: str) -> bool:
    return hashlib.blake2b(question.encode(), digest_size=8).digest()[0] % _HELD_OUT_ONE_IN == 0
