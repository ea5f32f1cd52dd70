r"""Worked arithmetic as a careless pupil writes it: what the demo model is pretrained on.

    7+8-3=7+8=15; 15-3=12; \boxed{12}                  worked
    7+8-3=7+8=5; wait 7+8=15; 15-3=12; \boxed{12}      worked and rechecked
    7+8-3=\boxed{14}                                   guessed

A step that carries or borrows is done wrong more often than not. This is a misconception and not noise, so the most
probable answer of a model that learned it is wrong too, and reinforcement learning has something to correct. Some slips
are noticed and done again, mostly right: a habit that training can build on before the steps themselves become right.

All is generated in NumPy, a column of tokens at a time.
"""

import dataclasses

import numpy as np

from rlzero.data.tasks import arithmetic
from rlzero.data.tasks.arithmetic_tokenizer import EOS, ID, PAD

_NOTHING = -1


@dataclasses.dataclass(frozen=True)
class Habits:
    """How often the pupil does what, as probabilities.

    Attributes:
      guess: answers at once, without a step.
      guess_right: a guess is right; otherwise it is off by 1 ... `max_guess_error`.
      slip: a carry or a borrow is forgotten.
      doubt: a step that was right is written once more after `wait`, and the second result is taken.
      notice: the same for a step that was wrong.
      recheck_slip: a carry or a borrow is forgotten at the second time.
      max_guess_error: the largest error of a wrong guess.
    """

    guess: float = 0.35
    guess_right: float = 0.2
    slip: float = 0.7
    doubt: float = 0.05
    notice: float = 0.35
    recheck_slip: float = 0.25
    max_guess_error: int = 9


def sequences(count: int, rng: np.random.Generator, *, habits: Habits = Habits(), split: str = "train") -> np.ndarray:
    """Returns `count` solved questions with end of sequence.

    Args:
      count: rows.
      rng: the only source of chance.
      habits: how the pupil works.
      split: which questions are asked.

    Returns:
      int32 token ids [count, longest], padded on the right.
    """
    parts = [
        _compact(_solutions(digits.astype(np.int64), signs.astype(np.int64), rng, habits))
        for digits, signs in arithmetic.draw(split, count, rng, replace=True)
    ]
    width = max(part.shape[1] for part in parts)
    rows = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=ID[PAD]) for part in parts]
    return np.concatenate(rows)[rng.permutation(count)]


def _solutions(digits, signs, rng, habits) -> list[np.ndarray]:
    """Returns the columns [N] of question and answer; `_NOTHING` where a row has no token in a column."""
    N, num_operands = digits.shape
    columns = [digits[:, 0] + ID["0"]]
    for i in range(1, num_operands):
        columns += [_operator(signs[:, i]), digits[:, i] + ID["0"]]
    columns.append(np.full(N, ID["="]))

    guessed = rng.random(N) < habits.guess
    believed = digits[:, 0]
    for i in range(1, num_operands):
        term = digits[:, i] * signs[:, i]
        first = _step(believed, term, rng.random(N) < habits.slip)
        rechecked = rng.random(N) < np.where(first == believed + term, habits.doubt, habits.notice)
        second = _step(believed, term, rng.random(N) < habits.recheck_slip)
        columns += _where(~guessed, _step_columns(believed, term, first))
        again = [np.full(N, ID["wait "]), *_step_columns(believed, term, second)]
        columns += _where(~guessed & rechecked, again)
        believed = np.where(rechecked, second, first)

    answer = np.where(guessed, _guess(digits, signs, rng, habits), believed)
    columns += [np.full(N, ID["\\boxed{"]), *_number(answer), np.full(N, ID["}"]), np.full(N, ID[EOS])]
    return columns


def _step(total, term, slips):
    """Adds a single-digit term to a total below 100; a slip spoils steps that carry or borrow and no others.

    A forgotten carry leaves the ten out (7+8=5). A forgotten borrow takes the smaller unit from the larger (15-8=13).
    A total that went wrong before can be smaller than what is taken away; the pupil then always does the latter, so
    that no number is below zero.
    """
    right = total + term
    tens, units = total // 10 * 10, total % 10
    slipped = tens + np.where(term > 0, right % 10, np.abs(units + term))
    return np.where((right < 0) | (slips & (right // 10 != total // 10)), slipped, right)


def _guess(digits, signs, rng, habits):
    answer = (digits * signs).sum(axis=1)
    N = len(answer)
    error = rng.integers(1, habits.max_guess_error + 1, N) * rng.choice((-1, 1), N)
    wrong = np.where((answer + error < 0) | (answer + error > arithmetic.MAX_TOTAL), answer - error, answer + error)
    return np.where(rng.random(N) < habits.guess_right, answer, wrong)


def _step_columns(total, term, result):
    equals, end = np.full(len(total), ID["="]), np.full(len(total), ID["; "])
    return [*_number(total), _operator(term), np.abs(term) + ID["0"], equals, *_number(result), end]


def _number(value):
    """Two columns for a number below 100; the first is empty for a single digit."""
    tens, units = np.divmod(value, 10)
    return [np.where(tens > 0, tens + ID["0"], _NOTHING), units + ID["0"]]


def _operator(sign):
    return np.where(sign > 0, ID["+"], ID["-"])


def _where(present, columns):
    return [np.where(present, column, _NOTHING) for column in columns]


def _compact(columns: list[np.ndarray]) -> np.ndarray:
    """Moves the tokens of every row together and pads what is left over."""
    table = np.stack(columns, axis=1)
    order = np.argsort(table == _NOTHING, axis=1, kind="stable")
    table = np.take_along_axis(table, order, axis=1)
    width = int((table != _NOTHING).sum(axis=1).max())
    return np.where(table == _NOTHING, ID[PAD], table)[:, :width].astype(np.int32)
