"""What the settings of the data demand of each other; `validation.py` asks these rules with its own."""

import os
import re
from collections.abc import Callable

from rlzero.data import tasks, templates
from rlzero.data.tasks import gym
from rlzero.rewards import gym_scorers


def _task(task: str, files: str) -> str | None:
    if files or task in tasks.TASKS:
        return None
    if not task.startswith(gym.PREFIX):
        return (f"--config.data.task={task}: expected one of {', '.join(tasks.TASKS)}, or {gym.PREFIX}NAME, for "
                f"example --config.data.task={gym.PREFIX}chain_sum.")
    name = task.removeprefix(gym.PREFIX)
    try:
        reason = gym.why_unknown(name) or (name in gym_scorers.GAMED and f"no run is trained on it, as "
                                           f"{gym_scorers.GAMED[name]}; choose another")
    except ImportError as error:
        reason = str(error)
    return f"--config.data.task={task}: {reason}." if reason else None


def _mode_of_task(mode: str, task: str, files: str) -> str | None:
    generated = not files and task.startswith(gym.PREFIX)
    if generated == (mode == gym_scorers.MODE):
        return None
    if generated:
        return (f"--config.reward.mode={mode}: --config.data.task={task} has a scorer of its own; use "
                f"--config.reward.mode={gym_scorers.MODE}.")
    return (f"--config.reward.mode={mode}: only tasks of reasoning-gym have such a scorer; use "
            f"--config.data.task={gym.PREFIX}chain_sum without --config.data.files, or another mode.")


def _files(files: str) -> str | None:
    missing = [path.strip() for path in files.split(",") if path.strip() and not os.path.exists(path.strip())]
    if not missing:
        return None
    return (f"--config.data.files={files}: there is no {' and no '.join(missing)}; give the paths of problem sets, "
            "with commas between them, or nothing for the generated --config.data.task.")


def _evaluation_files(files: str, training: str) -> str | None:
    if not files:
        return None
    if not training:
        return (f"--config.evaluation.files={files}: a generated --config.data.task has held-out problems of its own; "
                "name training sets in --config.data.files, or no evaluation sets.")
    missing = [path.strip() for path in files.split(",") if not os.path.exists(path.strip())]
    if not missing:
        return None
    return (f"--config.evaluation.files={files}: there is no {' and no '.join(missing)}; give the paths of problem "
            "sets, with commas between them.")


def _levels(levels: str) -> str | None:
    if not levels or re.fullmatch(r"\d+(\.\d+)?(-\d+(\.\d+)?)?", levels):
        return None
    return f"--config.data.levels={levels}: expected a range such as --config.data.levels=3-5, or nothing for all."


def _template(template: str) -> str | None:
    if templates.known_template(template):
        return None
    return (f"--config.data.template={template}: expected {', '.join(templates.TEMPLATES)}, {templates.CHAT}, or a "
            "text file that holds {question}, for example --config.data.template=qwen_math.")


# The fields a rule reads -> the rule.
RULES: tuple[tuple[tuple[str, ...], Callable[..., str | None]], ...] = (
    (("data.task", "data.files"), _task),
    (("reward.mode", "data.task", "data.files"), _mode_of_task),
    (("data.files",), _files),
    (("evaluation.files", "data.files"), _evaluation_files),
    (("data.levels",), _levels),
    (("data.template",), _template),
)
