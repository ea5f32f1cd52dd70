"""The grader of a run and what it makes of completions: with all parts of the reward in training, plain in evaluation.

Both use the same mode, the same workers and the same reward function, so that what is measured is what is trained.
"""

from collections.abc import Callable
from typing import Any

from rlzero import rewards
from rlzero.algorithms import Algorithm
from rlzero.data import templates
from rlzero.data.problems import Problem
from rlzero.rollout.engine import Completion
from rlzero.rollout.sampler import Sample
from rlzero.rollout.scoring import make_scorer
from rlzero.training.sections import RewardSection

Score = Callable[[Problem, Completion], Sample]


def make_grader(reward: RewardSection) -> rewards.Grader:
    """The grader of a run, with its workers if it has any; to be closed.

    Raises:
      ValueError, ImportError: for settings that cannot be followed.
    """
    return rewards.Grader(reward.mode, workers=reward.workers, deadline_seconds=reward.deadline_seconds,
                          max_error_rate=reward.max_error_rate)


def training_score(reward: RewardSection, template: str, algorithm: Algorithm, grader: rewards.Grader, tokenizer: Any,
                   max_completion_length: int) -> Score:
    """Scores completions to train on."""
    return make_scorer(
        tokenizer, max_completion_length=max_completion_length, truncated=algorithm.truncated, correct=reward.correct,
        wrong=reward.wrong, overlong_fraction=algorithm.overlong_fraction, grader=grader, function=_function(reward),
        format_bonus=reward.format_bonus, answer_tags=templates.asks_for_tags(template))


def evaluation_score(reward: RewardSection, template: str, grader: rewards.Grader, tokenizer: Any,
                     max_completion_length: int) -> Score:
    """Scores completions to count the right ones of: no penalty, no bonus, and what was cut is wrong."""
    return make_scorer(tokenizer, max_completion_length=max_completion_length, correct=reward.correct,
                       wrong=reward.wrong, grader=grader, function=_function(reward),
                       answer_tags=templates.asks_for_tags(template))


def _function(reward):
    return rewards.load_function(reward.function) if reward.function else None
