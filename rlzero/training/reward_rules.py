"""What the settings of the reward demand of each other; `validation.py` asks these rules with its own."""

from collections.abc import Callable

from rlzero import rewards
from rlzero.rewards import gym_scorers


def _order(correct: float, wrong: float) -> str | None:
    if correct > wrong:
        return None
    return (f"--config.reward.correct={correct}: must be above --config.reward.wrong={wrong}, or right answers are "
            "unlearned; for example --config.reward.correct=1 --config.reward.wrong=0.")


def _mode(mode: str) -> str | None:
    try:
        rewards.require_mode(mode)
    except ImportError as error:
        return f"--config.reward.mode={mode}: {error}"
    return None


def _scorer_in_workers(workers: int, mode: str) -> str | None:
    if mode != gym_scorers.MODE or workers:
        return None
    return (f"--config.reward.workers={workers}: the scorers of --config.reward.mode={mode} have no clock and must run "
            "where they can be killed; use at least --config.reward.workers=1.")


def _function(function: str, workers: int) -> str | None:
    if not function:
        return None
    if workers:
        return (f"--config.reward.function={function}: a function of one's own runs in the process that trains, and "
                f"--config.reward.workers={workers} would do nothing; use --config.reward.workers=0.")
    try:
        rewards.load_function(function)
    except ValueError as error:
        return f"--config.reward.function={function}: {error}."
    return None


def _format_bonus(bonus: float, correct: float, wrong: float) -> str | None:
    """The layout must never pay more than the answer, neither as a difference nor as a number."""
    most = min(correct - wrong, correct)
    if bonus == 0 or bonus < most:
        return None
    if most <= 0:
        return (f"--config.reward.format_bonus={bonus}: with --config.reward.correct={correct} no bonus is below what "
                "a right answer pays; use --config.reward.format_bonus=0.")
    return (f"--config.reward.format_bonus={bonus}: must be below {most:g}, what being right adds with "
            f"--config.reward.correct={correct} and --config.reward.wrong={wrong}; for example "
            f"--config.reward.format_bonus={most / 10:g}.")


# The fields a rule reads -> the rule.
RULES: tuple[tuple[tuple[str, ...], Callable[..., str | None]], ...] = (
    (("reward.correct", "reward.wrong"), _order),
    (("reward.mode",), _mode),
    (("reward.workers", "reward.mode"), _scorer_in_workers),
    (("reward.function", "reward.workers"), _function),
    (("reward.format_bonus", "reward.correct", "reward.wrong"), _format_bonus),
)
