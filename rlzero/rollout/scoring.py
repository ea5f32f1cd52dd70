"""From a completion to a scored sample: decode, grade the response alone, turn the grade into a reward."""

from collections.abc import Callable
from typing import Any

from rlzero import rewards
from rlzero.data import templates
from rlzero.data.problems import Problem
from rlzero.rollout.engine import Completion
from rlzero.rollout.sampler import Sample


def make_scorer(tokenizer: Any, *, max_completion_length: int, truncated: str = "wrong", correct: float = 1.0,
                wrong: float = 0.0, overlong_fraction: float = 0.0) -> Callable[[Problem, Completion], Sample]:
    """Makes the function that scores one completion.

    The verifier sees the text of the response: never the prompt, never special tokens.

    Args:
      tokenizer: a tokenizer of `transformers`.
      max_completion_length: the generation budget in tokens, which the overlong penalty refers to.
      truncated: what a response cut at the budget is worth, see `rewards.reward`.
      correct: reward of a right answer.
      wrong: reward of a wrong answer.
      overlong_fraction: share of the budget over which the soft overlong penalty grows; 0 for none.
    """

    def score(problem: Problem, completion: Completion) -> Sample:
        text = templates.decode(tokenizer, completion.completion_ids)
        grade = rewards.grade(text, problem.answer)
        reward = rewards.reward(
            grade, len(completion.completion_ids), truncated=completion.finish_reason == "length",
            max_completion_length=max_completion_length, truncated_policy=truncated, correct=correct, wrong=wrong,
            overlong_fraction=overlong_fraction)
        return Sample(completion, text, grade.extracted, reward)

    return score
