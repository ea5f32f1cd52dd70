"""From a completion to a scored sample: decode, grade the response alone, turn the grade into a reward."""

from collections.abc import Callable
from typing import Any

from rlzero import rewards
from rlzero.data import templates
from rlzero.data.problems import Problem
from rlzero.rollout.engine import Completion
from rlzero.rollout.sampler import Sample


def make_scorer(tokenizer: Any, *, max_completion_length: int, truncated: str = "wrong", correct: float = 1.0,
                wrong: float = 0.0, overlong_fraction: float = 0.0, mode: str = "integer",
                grader: rewards.Grader | None = None, function: Callable | None = None,
                format_bonus: float = 0.0, answer_tags: bool = False) -> Callable[[Problem, Completion], Sample]:
    """Makes the function that scores one completion.

    The verifier sees the text of the response: never the prompt, never special tokens.

    Args:
      tokenizer: a tokenizer of `transformers`.
      max_completion_length: the generation budget in tokens, which the overlong penalty refers to.
      truncated: what a response cut at the budget is worth, see `rewards.reward`.
      correct: reward of a right answer.
      wrong: reward of a wrong answer.
      overlong_fraction: share of the budget over which the soft overlong penalty grows; 0 for none.
      mode: how answers are compared, one of `rewards.MODES`; only without a grader.
      grader: what grades; None for one in the calling thread.
      function: a reward function of one's own in the place of the verifier, see `rewards.RewardSample`. What it says
        counts as a right answer from `correct` on.
      format_bonus: added for a response that thinks once and answers once.
      answer_tags: the prompt asks for the answer in `<answer>` tags, so it is also read there.
    """
    grader = grader or rewards.Grader(mode)

    def graded(problem: Problem, completion: Completion, text: str) -> tuple[rewards.Grade, float | None]:
        request = completion.request
        if function is None:
            text = rewards.with_tags_as_box(text) if answer_tags else text
            return grader.grade(f"{request.prompt_id}/{request.sample_index}", text, problem.answer), None
        value = rewards.own_reward(function, rewards.RewardSample(
            request.prompt_id, request.sample_index, problem.question, problem.answer, text,
            tuple(completion.completion_ids), completion.finish_reason == "length"))
        if value is None:
            return rewards.Grade(False, None, "the reward function gave no score"), None
        return rewards.Grade(value >= correct, None), value

    def score(problem: Problem, completion: Completion) -> Sample:
        text = templates.decode(tokenizer, completion.completion_ids)
        grade, value = graded(problem, completion, text)
        reward = rewards.reward(
            grade, len(completion.completion_ids), truncated=completion.finish_reason == "length",
            max_completion_length=max_completion_length, truncated_policy=truncated, correct=correct, wrong=wrong,
            overlong_fraction=overlong_fraction, value=value, format_bonus=format_bonus,
            well_formed=bool(format_bonus) and rewards.is_well_formed(text))
        size = len(tokenizer)
        return Sample(completion, text, grade.extracted, reward,
                      unknown_ids=sum(token >= size for token in completion.completion_ids))

    return score
