"""The problems of a run: those it learns from and those it is measured on, encoded, and kept apart."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from rlzero import rewards
from rlzero.data import layouts, tasks
from rlzero.data import problems as problems_lib
from rlzero.data.problems import Problem, PromptReport
from rlzero.training.config import Config


def training_and_held_out(config: Config, tokenizer: Any) -> tuple[list[Problem], list[Problem], PromptReport]:
    """Makes or reads the problems of a run.

    Where `data.files` names no set, the task is generated, in two splits. Where it does and `evaluation.files` does
    not, `evaluation.problems` of its questions are held out, chosen by `data.task_seed`.

    Args:
      config: a valid one.
      tokenizer: of the model.

    Returns:
      Problems to train on, held-out ones, and the account of the former.

    Raises:
      FileNotFoundError, ValueError: a set is not there or not laid out so; nothing is left; a question is in both.
    """
    data, count = config.data, config.evaluation.problems
    if not data.files:
        training = tasks.problems(data.task, "train", data.task_problems, seed=data.task_seed)
        held_out = tasks.problems(data.task, "held_out", count, seed=data.task_seed)
    else:
        training = read_sets(data.files, config)
        held_out = read_sets(config.evaluation.files, config, layout=config.evaluation.layout)

    def prepare(problems):
        return problems_lib.prepare(
            problems, tokenizer, max_prompt_length=config.rollout.max_prompt_length, template=data.template,
            readable=lambda gold: rewards.parses(gold, config.reward.mode), deduplicate=data.deduplicate)

    training, report = prepare(training)
    if not held_out:
        training, held_out = _divided(training, count, data.task_seed)
    else:
        held_out = prepare(held_out)[0][:count]
    problems_lib.refuse_overlap(training, held_out)
    return training, held_out, report


def read_sets(paths: str, config: Config, *, layout: str | None = None) -> list[Problem]:
    """The problems of sets named with commas between them, one set after the other.

    Args:
      paths: files or directories; "" for none.
      config: where the fields and, for training sets, layout and levels are.
      layout: of evaluation sets; None for that of `config.data`, with its levels.
    """
    levels = levels_of(config.data.levels) if layout is None else None
    names = [path.strip() for path in paths.split(",") if path.strip()]
    problems = []
    for name in names:
        found = layouts.load(name, layout or config.data.layout, question_field=config.data.question_field,
                             answer_field=config.data.answer_field, levels=levels)
        if len(names) > 1:  # ids are unique within a set only
            found = [dataclasses.replace(problem, id=f"{pathlib.Path(name).stem}/{problem.id}") for problem in found]
        problems += found
    return problems


def levels_of(text: str) -> tuple[float, float] | None:
    """"3-5" or "3" as lowest and highest level; None for "".

    Raises:
      ValueError: anything else.
    """
    if not text:
        return None
    low, _, high = text.partition("-")
    try:
        return float(low), float(high or low)
    except ValueError:
        raise ValueError(f"expected levels such as 3-5, got {text!r}") from None


def _divided(problems, count, seed):
    """Some problems to train on and some to hold out."""
    if len(problems) < 2 * count:
        raise ValueError(f"{len(problems)} problems are too few to hold out {count} of them; name others in "
                         "--config.evaluation.files, or lower --config.evaluation.problems")
    held = set(np.random.default_rng(seed).choice(len(problems), count, replace=False).tolist())
    return ([problem for number, problem in enumerate(problems) if number not in held],
            [problem for number, problem in enumerate(problems) if number in held])
