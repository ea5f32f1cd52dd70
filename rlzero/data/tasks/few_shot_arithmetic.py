r"""Small sums for base models: one-digit products, two-digit sums and maxima, each after three worked examples.

    Question: 7 * 8
    Answer: 56

    (two more)

    Question: 6 * 4

The prompt ends with its newline. A model that has only been taught to continue text goes on with `Answer: 24`, the line
the verifier reads, and ends it; `--config.rollout.stop_text` set to a newline ends the response there.

A hash of the numbers, whatever their order, decides whether a question is held out, so the splits share none. Examples
come from the training side in both. The same question returns with other examples, so there are always enough problems.
"""

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np

from rlzero.data.problems import Problem

NUM_EXAMPLES = 3
_HELD_OUT_ONE_IN = 6
_MOST_PROBLEMS = 100_000


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of question: numbers drawn uniformly, how they are written, and the answer."""

    name: str
    ranges: tuple[tuple[int, int], ...]  # first and last value of each number
    text: str
    answer: Callable[..., int]
    distinct: bool = False  # whether the numbers of a question differ from each other


KINDS = (
    Kind("product", ((2, 9), (2, 9)), "{} * {}", lambda a, b: a * b),
    Kind("sum", ((10, 99), (1, 9)), "{} + {}", lambda a, b: a + b),
    Kind("maximum", ((1, 99), (1, 99), (1, 99)), "max({}, {}, {})", max, distinct=True),
)


def problems(split: str, count: int, *, seed: int) -> list[Problem]:
    """Returns `count` problems with different prompts, as many of each kind as of the others.

    Args:
      split: "train" or "held_out".
      count: how many, up to 100,000.
      seed: which ones, and in which order.

    Raises:
      ValueError: for more than there should be.
    """
    if count > _MOST_PROBLEMS:
        raise ValueError(f"few_shot_arithmetic makes up to {_MOST_PROBLEMS} problems, {count} were asked for.")
    rng = np.random.default_rng(seed)
    made: dict[str, Problem] = {}
    while len(made) < count:
        problem = _problem(KINDS[len(made) % len(KINDS)], split, rng)
        made.setdefault(problem.question, problem)
    rows = list(made.values())
    return [rows[i] for i in rng.permutation(count)]


def is_held_out(kind: Kind, numbers: tuple[int, ...]) -> bool:
    """Whether a question belongs to the held-out split; 8 * 7 goes with 7 * 8."""
    key = f"{kind.name} {sorted(numbers)}".encode()
    return hashlib.blake2b(key, digest_size=8).digest()[0] % _HELD_OUT_ONE_IN == 0


def _problem(kind: Kind, split: str, rng: np.random.Generator) -> Problem:
    """A question of the split after examples of the training side, all about different numbers."""
    asked = [_draw(kind, split, rng)]
    while len(asked) <= NUM_EXAMPLES:
        example = _draw(kind, "train", rng)
        if sorted(example) not in map(sorted, asked):
            asked.append(example)
    question, *examples = asked
    worked = "".join(f"{_line(kind, numbers)}Answer: {kind.answer(*numbers)}\n\n" for numbers in examples)
    prompt = worked + _line(kind, question)
    digest = hashlib.blake2b(prompt.encode(), digest_size=6).hexdigest()
    name = kind.text.format(*question).replace(" ", "")
    return Problem(f"few_shot_arithmetic/{name}/{digest}", prompt, str(kind.answer(*question)))


def _draw(kind: Kind, split: str, rng: np.random.Generator) -> tuple[int, ...]:
    """The numbers of one question of the split."""
    while True:
        numbers = tuple(int(rng.integers(low, high + 1)) for low, high in kind.ranges)
        fits = not kind.distinct or len(set(numbers)) == len(numbers)
        if fits and is_held_out(kind, numbers) == (split == "held_out"):
            return numbers


def _line(kind: Kind, numbers: tuple[int, ...]) -> str:
    return f"Question: {kind.text.format(*numbers)}\n"
