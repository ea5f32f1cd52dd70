"""What a problem is, and which problems are let in.

`prepare` encodes prompts and drops what cannot be used, with an account of it; `refuse_overlap` keeps training and
evaluation apart. The order in which problems come is in `prompts.py`.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Sequence

from rlzero.data import templates


@dataclasses.dataclass(frozen=True)
class Problem:
    """A question with a checkable answer.

    Attributes:
      id: names the problem across runs.
      question: the text before the template.
      answer: the gold answer, as text.
      prompt_ids: the token ids of the prompt; empty until `prepare` has filled it.
    """

    id: str
    question: str
    answer: str
    prompt_ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class PromptReport:
    """The account of `prepare`: given = kept + duplicates + too_long + unreadable.

    Attributes:
      given: problems that came in.
      kept: problems that are used.
      duplicates: problems left out because their question came before.
      conflicts: those among the duplicates whose answer differed from the first one's.
      too_long: ids of the problems whose prompt exceeds the limit.
      unreadable: ids of the problems without a gold answer that a response could be compared with.
    """

    given: int
    kept: int
    duplicates: int
    conflicts: int
    too_long: tuple[str, ...]
    unreadable: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.kept} of {self.given} problems"
        if self.duplicates:
            text += f", {self.duplicates} duplicates left out ({self.conflicts} with another answer)"
        for names, what in ((self.too_long, "prompts too long"), (self.unreadable, "gold answers unreadable")):
            if names:
                text += f", {len(names)} {what} ({', '.join(names[:5])}{' ...' if len(names) > 5 else ''})"
        return text

    def save(self, path: pathlib.Path) -> None:
        """Writes the ids of what was left out for a reason, if there are any."""
        left_out = {"prompt too long": self.too_long, "gold answer unreadable": self.unreadable}
        if any(left_out.values()):
            path.write_text(json.dumps(left_out, indent=2) + "\n", encoding="utf-8")


def prepare(
    problems: Iterable[Problem], tokenizer, *, max_prompt_length: int, template: str = "none",
    readable: Callable[[str], bool] = bool, deduplicate: bool = True,
) -> tuple[list[Problem], PromptReport]:
    """Encodes the prompts of problems, leaving out repeated questions, long prompts and answers nobody can give.

    A question is never cut to fit.

    Args:
      problems: what to take from, in order; of equal questions the first is kept.
      tokenizer: a tokenizer of `transformers`.
      max_prompt_length: limit in tokens.
      template: see `templates.apply_template`.
      readable: whether a gold answer is one that the verifier can compare with.
      deduplicate: whether to leave repeated questions out; where they stay, they get ids of their own.

    Returns:
      The problems with `prompt_ids`, and the account of what was left out.

    Raises:
      ValueError: if nothing is left, or two different questions have the same id.
    """
    answers: dict[str, str] = {}
    kept: list[Problem] = []
    too_long: list[str] = []
    unreadable: list[str] = []
    given = duplicates = conflicts = 0
    for problem in problems:
        given += 1
        key = normal_question(problem.question)
        if key in answers and deduplicate:
            duplicates += 1
            conflicts += answers[key] != problem.answer
            continue
        if key in answers:
            problem = dataclasses.replace(problem, id=f"{problem.id}-{given}")
        answers[key] = problem.answer
        ids = templates.encode_prompt(tokenizer, templates.apply_template(template, problem.question, tokenizer))
        if not readable(problem.answer):
            unreadable.append(problem.id)
        elif len(ids) > max_prompt_length:
            too_long.append(problem.id)
        else:
            kept.append(dataclasses.replace(problem, prompt_ids=ids))
    report = PromptReport(given, len(kept), duplicates, conflicts, tuple(too_long), tuple(unreadable))
    if not kept:
        raise ValueError(
            f"no problem is left ({report}); raise the prompt limit of {max_prompt_length} tokens or check the data."
        )
    _refuse_repeated_ids(kept)
    return kept, report


def refuse_overlap(training: Sequence[Problem], held_out: Sequence[Problem]) -> None:
    """Refuses to train on questions that are kept for evaluation.

    Raises:
      ValueError: if a question is in both.
    """
    training_questions = {normal_question(problem.question) for problem in training}
    shared = [problem.id for problem in held_out if normal_question(problem.question) in training_questions]
    if shared:
        raise ValueError(
            f"{len(shared)} of {len(held_out)} evaluation questions are also in the training data "
            f"({', '.join(shared[:5])} ...); remove them from one of the two."
        )


def fingerprint(problems: Sequence[Problem], *salt: object) -> str:
    """Returns a short hash of ids, answers, order and `salt`; equal exactly when the data is the same."""
    digest = hashlib.blake2b(repr(salt).encode(), digest_size=16)
    for problem in problems:
        digest.update(repr((problem.id, problem.answer)).encode())
    return digest.hexdigest()


def normal_question(question: str) -> str:
    """A question as it is compared with others: whatever its blanks."""
    return " ".join(question.split())


def _refuse_repeated_ids(problems: Sequence[Problem]) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise ValueError(f"two different questions have the id {problem.id!r}; ids must be unique.")
        seen.add(problem.id)
