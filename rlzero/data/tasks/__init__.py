"""Generated tasks: problems made from a seed, in two splits that share no question.

A task is a module with `problems(split, count, *, seed) -> list[Problem]`.
"""

from rlzero.data.problems import Problem
from rlzero.data.tasks import arithmetic, few_shot_arithmetic

TASKS = {"arithmetic": arithmetic, "few_shot_arithmetic": few_shot_arithmetic}
SPLITS = ("train", "held_out")


def problems(task: str, split: str, count: int, *, seed: int) -> list[Problem]:
    """Returns `count` problems of a generated task.

    Raises:
      ValueError: for an unknown task or split, or if the split has fewer problems.
    """
    if task not in TASKS:
        raise ValueError(f"there is no generated task {task!r}; available: {', '.join(map(repr, TASKS))}.")
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; available: {', '.join(map(repr, SPLITS))}.")
    return TASKS[task].problems(split, count, seed=seed)
