"""How published problem sets lay out their rows, and how a row becomes a problem.

    fields           question and answer in fields that the config names, and an id where there is one
    dapo             DAPO-Math-17k and its AIME 2024: chat messages, reward_model.ground_truth, extra_info.index
    math             MATH: problem, answer (or the last box of the solution), level 1 to 5
    gsm8k            GSM8K: question, answer after ####
    orz              ORZ-57k: pairs of a question and a ground_truth
    benchmark        the five of Dr. GRPO, and ASDiv: problem, answer; lists of one answer, whole numbers as decimals

A set with rows that a layout cannot read is refused with the first of them, not read in part.
"""

import hashlib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rlzero.data import files
from rlzero.data.problems import Problem, normal_question
from rlzero.rewards.extraction import answer_text


# What a reader raises on a row of another layout.
_MISFIT = (AttributeError, KeyError, IndexError, TypeError, ValueError)


class Row(NamedTuple):
    """What a layout finds in a row.

    `answer` is empty where the row has none, which some rows of published sets do not; `level` is a difficulty, where
    there is one.
    """

    question: str
    answer: str
    id: str | None = None
    level: float | None = None


def load(path: str | pathlib.Path, layout: str, *, question_field: str = "question", answer_field: str = "answer",
         levels: tuple[float, float] | None = None) -> list[Problem]:
    """Reads a problem set.

    Args:
      path: see `files.rows`.
      layout: one of `LAYOUTS`.
      question_field: of layout "fields".
      answer_field: of layout "fields".
      levels: lowest and highest difficulty to keep; None keeps all.

    Returns:
      The problems, in the order of the file. Rows without an id of their own are named by a hash of their question, so
      that they are called the same in any order and under any path.

    Raises:
      FileNotFoundError: no such file.
      ValueError: unknown layout, a row that is not laid out so, levels where there are none, or nothing left.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"there is no layout {layout!r}; available: {', '.join(LAYOUTS)}")
    readers = LAYOUTS | {"fields": _fields(question_field, answer_field)}
    problems, seen = [], {}
    for number, raw in enumerate(files.rows(path)):
        row = _read(readers, layout, raw, path, number)
        if levels is not None and not _within(row, levels, path):
            continue
        name = row.id or hashlib.blake2b(normal_question(row.question).encode(), digest_size=6).hexdigest()
        # The same row again is the same problem, which `prepare` drops; another one under its id is told apart.
        name = name if seen.setdefault(name, row.question) == row.question else f"{name}-{number}"
        problems.append(Problem(name, row.question, row.answer))
    if not problems:
        raise ValueError(f"{path} holds no problem{f' of levels {levels[0]:g} to {levels[1]:g}' if levels else ''}")
    return problems


def _read(readers, layout, raw, path, number):
    try:
        row = readers[layout](raw)
    except _MISFIT as error:
        holds = f"it has {', '.join(raw)}" if isinstance(raw, Mapping) else f"it is of type {type(raw).__name__}"
        fitting = [repr(name) for name, reader in readers.items() if _reads(reader, raw)]
        remedy = (f"Layout {' or '.join(fitting)} reads it" if fitting else
                  "No other layout reads it; with 'fields', name the fields of question and answer")
        raise ValueError(f"{path}, row {number}: not laid out as {layout!r} ({type(error).__name__}: {error}); "
                         f"{holds}. {remedy}") from None
    if not row.question.strip():
        raise ValueError(f"{path}, row {number}: an empty question")
    return row


def _reads(reader, raw):
    try:
        return bool(reader(raw).question.strip())
    except _MISFIT:
        return False


def _within(row, levels, path):
    if row.level is None:
        raise ValueError(f"{path}: its rows have no level, so none can be chosen; leave --config.data.levels empty")
    return levels[0] <= row.level <= levels[1]


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return str(value)


def _fields(question_field, answer_field):
    def reader(row):
        name = row.get("id")
        return Row(_text(row[question_field]), _text(row[answer_field]), None if name is None else str(name))
    return reader


def _dapo(row):
    message, = row["prompt"]
    index = (row.get("extra_info") or {}).get("index")
    return Row(_text(message["content"]), _text(row["reward_model"]["ground_truth"]),
               None if index is None else str(index))


def _math(row):
    answer = row["answer"] if "answer" in row else answer_text(row["solution"])
    level = row.get("level", row.get("difficulty"))
    if isinstance(level, str):
        found = re.search(r"\d+", level)
        level = float(found[0]) if found else None
    return Row(_text(row["problem"]), "" if answer is None else _text(answer), row.get("unique_id"), level)


def _gsm8k(row):
    _, mark, answer = _text(row["answer"]).rpartition("####")
    if not mark:
        raise ValueError("no #### in the answer")
    return Row(_text(row["question"]), answer.strip().replace(",", ""))


def _orz(row):
    human, assistant = row
    return Row(_text(human["value"]), _text(assistant["ground_truth"]["value"]))


def _benchmark(row):
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    answer = ", ".join(_text(text).strip() for text in answers)
    if re.fullmatch(r"-?\d+\.0", answer):
        answer = answer[:-2]
    return Row(_text(row["problem"]), answer)


LAYOUTS: dict[str, Callable[[Any], Row] | None] = {
    "fields": None, "dapo": _dapo, "math": _math, "gsm8k": _gsm8k, "orz": _orz, "benchmark": _benchmark}

