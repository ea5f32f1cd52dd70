"""Generated tasks: problems made from a seed, in two splits that share no question.

A task is a module with `problems(split, count, *, seed) -> list[Problem]`; `gym` has all those of reasoning-gym.
"""

from rlzero.data.problems import Problem
from rlzero.data.tasks import arithmetic, few_shot_arithmetic, gym

TASKS = {"arithmetic": arithmetic, "few_shot_arithmetic": few_shot_arithmetic}
SPLITS = ("train", "held_out")


def problems(task: str, split: str, count: int, *, seed: int) -> list[Problem]:
    """Returns `count` problems of a generated task; of reasoning-gym's as many as there are.

    Raises:
      ValueError: for an unknown task or split, or if the split has fewer problems.
      ImportError: the task is one of reasoning-gym, which is not installed.
    """
    if task not in TASKS and not task.startswith(gym.PREFIX):
        raise ValueError(f"there is no generated task {task!r}; available: {', '.join(map(repr, TASKS))}, or "
                         f"{gym.PREFIX}NAME, such as '{gym.PREFIX}chain_sum'.")
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; available: {', '.join(map(repr, SPLITS))}.")
    if task.startswith(gym.PREFIX):
        return gym.problems(task, split, count, seed=seed)
    return TASKS[task].problems(split, count, seed=seed)
