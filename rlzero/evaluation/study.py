"""The study of base models before any training (arXiv 2503.20783, section 2): what does each template make of each?

A row is a model under a template: how many responses try to answer, how many are right, pass@8, length, and how many
reflect on themselves; and whether those are right more often. Reflection comes with harder questions, so the shares of
right answers with and without it are also compared within questions that have both.
"""

import collections
import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlzero.data.problems import Problem
from rlzero.evaluation.judge import Judge, Response
from rlzero.evaluation.measure import Evaluation
from rlzero.evaluation.reflection import keywords_in
from rlzero.rollout.sampler import Sample
from rlzero.training import display

PASS_AT = 8


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is said of one sample.

    Attributes:
      answering: whether it tries to answer; None where the judge had no verdict.
      keywords: those of `reflection` that it holds.
      reflecting: whether it holds a keyword and the judge agrees; None where the judge had no verdict.
    """

    answering: bool | None
    keywords: tuple[str, ...]
    reflecting: bool | None


@dataclasses.dataclass(frozen=True)
class Cell:
    """A model under a template: its samples with their verdicts, in the same order."""

    model: str
    template: str
    evaluation: Evaluation
    verdicts: list[Verdict]

    def samples(self) -> Iterator[tuple[Problem, Sample, Verdict]]:
        verdicts = iter(self.verdicts)
        for group in self.evaluation.groups:
            for sample in group.samples:
                yield group.problem, sample, next(verdicts)


def judged(model: str, template: str, evaluation: Evaluation, judge: Judge) -> Cell:
    """Has a judge look at every sample; at reflection only where there is a keyword."""
    responses = [Response(group.problem.question, sample.text, sample.answer)
                 for group in evaluation.groups for sample in group.samples]
    found = [keywords_in(response.text) for response in responses]
    marked = [number for number, keywords in enumerate(found) if keywords]
    reflecting: list[bool | None] = [False] * len(responses)
    if marked:
        for number, verdict in zip(marked, judge.reflecting([responses[n] for n in marked]), strict=True):
            reflecting[number] = verdict
    verdicts = [Verdict(*parts) for parts in zip(judge.answering(responses), found, reflecting, strict=True)]
    return Cell(model, template, evaluation, verdicts)


def numbers(cell: Cell) -> dict[str, Any]:
    """What a cell amounts to; shares in [0, 1], None where there is nothing to average over.

    `accuracy_reflecting` and `accuracy_others` are over samples; `same_question_difference` is the mean, over the
    `same_question_count` questions with samples of both kinds, of the difference between the two.
    """
    evaluation, rows = cell.evaluation, list(cell.samples())
    right = {True: [], False: []}
    by_question = collections.defaultdict(lambda: {True: [], False: []})
    for problem, sample, verdict in rows:
        if verdict.reflecting is not None:
            right[verdict.reflecting].append(bool(sample.reward.correct))
            by_question[problem.id][verdict.reflecting].append(bool(sample.reward.correct))
    both = [np.mean(kinds[True]) - np.mean(kinds[False]) for kinds in by_question.values() if all(kinds.values())]
    k = min(PASS_AT, min(len(group.samples) for group in evaluation.groups))
    return {
        "model": cell.model, "template": cell.template, "problems": len(evaluation.groups), "samples": len(rows),
        "answering_rate": _mean(verdict.answering for _, _, verdict in rows if verdict.answering is not None),
        "accuracy": evaluation.accuracy, "standard_error": _number(evaluation.standard_error),
        "k": k, "pass_at_k": evaluation.pass_at(k),
        "length_tokens": evaluation.mean_length, "length_characters": _mean(len(sample.text) for _, sample, _ in rows),
        "truncated_fraction": evaluation.truncated_fraction, "unanswered_fraction": evaluation.unanswered_fraction,
        "reflecting_rate": _mean(verdict.reflecting for _, _, verdict in rows if verdict.reflecting is not None),
        "reflecting_questions": _mean(bool(kinds[True]) for kinds in by_question.values()),
        "accuracy_reflecting": _mean(right[True]), "accuracy_others": _mean(right[False]),
        "same_question_difference": _mean(both), "same_question_count": len(both),
        "keywords": dict(collections.Counter(word for _, _, verdict in rows for word in verdict.keywords)),
        "without_verdict": sum(verdict.answering is None or verdict.reflecting is None for _, _, verdict in rows)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `numbers` as aligned text; "-" where there is nothing to average over."""
    k = min((row["k"] for row in rows), default=PASS_AT)
    head = ("", "answers", "right", "s.e.", f"pass@{k}", "tokens", "cut", "reflects", "questions",
            "right if so", "if not", "same question")
    shown = [head]
    for row in rows:
        difference = row["same_question_difference"]
        shown.append((
            f"{row['model']} {row['template']}", *map(_share, (row["answering_rate"], row["accuracy"],
                                                              row["standard_error"], row["pass_at_k"])),
            f"{row['length_tokens']:.1f}", *map(_share, (
                row["truncated_fraction"], row["reflecting_rate"], row["reflecting_questions"],
                row["accuracy_reflecting"], row["accuracy_others"])),
            "-" if difference is None else f"{100 * difference:+.1f} points"))
    return display.table(shown)


def row_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One JSON line per row."""
    for row in rows:
        yield json.dumps(row) + "\n"


def sample_lines(cells: Sequence[Cell]) -> Iterator[str]:
    """One JSON line per sample, with what was said of it."""
    for cell in cells:
        for problem, sample, verdict in cell.samples():
            yield json.dumps({"model": cell.model, "template": cell.template} | sample.record(problem)
                             | dataclasses.asdict(verdict)) + "\n"


def _share(value):
    return "-" if value is None else f"{value:.1%}"


def _mean(values) -> float | None:
    values = [float(value) for value in values]
    return sum(values) / len(values) if values else None


def _number(value):
    return None if math.isnan(value) else value
