"""From completions to samples: who grades, what of the completion it sees, and what the reward is made of."""

import dataclasses

import pytest

from rlzero import rewards
from rlzero.data.problems import Problem
from rlzero.models import huggingface
from rlzero.rollout.engine import Completion, Request
from rlzero.rollout.scoring import make_scorer

_TOKENIZER = huggingface.load_tokenizer(huggingface.DEMO_MODEL)
_PROBLEM = Problem("p", "6+7", "13")


def completion(text, reason="stop"):
    ids = tuple(_TOKENIZER.encode(text, add_special_tokens=False))
    return Completion(Request("p", 2, (1, 2), 0), ids, tuple(0.0 for _ in ids), reason, 0)


def score(text, reason="stop", **options):
    return make_scorer(_TOKENIZER, max_completion_length=50, **options)(_PROBLEM, completion(text, reason))


TEXT = _TOKENIZER.decode(_TOKENIZER.encode(r"\boxed{13}", add_special_tokens=False))


def test_the_verifier_grades_unless_told_otherwise():
    assert TEXT == r"\boxed{13}", "the demo's tokens can write a box"
    assert score(TEXT).reward == rewards.Reward(True, {"correctness": 1.0})
    assert score(TEXT, mode="math").answer == "13"
    with pytest.raises(ValueError, match="no mode"):
        make_scorer(_TOKENIZER, max_completion_length=50, mode="fuzzy")


def test_a_grader_with_workers_grades():
    with rewards.Grader("integer", workers=1) as grader:
        assert score(TEXT, grader=grader).reward.correct is True


def test_a_function_of_ones_own():
    seen = []

    def own(sample):
        seen.append(sample)
        return 0.25

    sample = score(TEXT, function=own, reason="length", truncated="score")
    assert sample.reward == rewards.Reward(False, {"correctness": 0.25})
    assert seen == [rewards.RewardSample("p", 2, "6+7", "13", TEXT, completion(TEXT).completion_ids, True)]
    assert score(TEXT, function=lambda sample: 1).reward.correct is True
    unscored = score(TEXT, function=lambda sample: None)
    assert unscored.reward.correct is None and not unscored.usable


def test_ids_that_the_tokenizer_lacks_are_counted_and_the_rest_is_graded():
    made = completion(TEXT)
    padded = dataclasses.replace(made, completion_ids=(*made.completion_ids[:1], 9999, *made.completion_ids[1:]),
                                 rollout_logprobs=(0.0, *made.rollout_logprobs))
    sample = make_scorer(_TOKENIZER, max_completion_length=50)(_PROBLEM, padded)
    assert (sample.unknown_ids, sample.text, sample.reward.correct) == (1, TEXT, True)


def test_the_bonus_for_the_layout():
    assert score(TEXT, format_bonus=0.1).reward.parts == {"correctness": 1.0, "format": 0.0}


def test_answers_in_tags_count_where_the_prompt_asks_for_them():
    tags = make_scorer(_Plain(), max_completion_length=50, answer_tags=True)(_PROBLEM, completion(TEXT))
    without = make_scorer(_Plain(), max_completion_length=50)(_PROBLEM, completion(TEXT))
    assert (tags.reward.correct, tags.answer, tags.text) == (True, "13", "so</think> <answer> 13 </answer>")
    assert (without.reward.correct, without.answer) == (False, None)


class _Plain:
    """A tokenizer whose every text is the same."""

    def __len__(self):
        return len(_TOKENIZER)

    def decode(self, ids, **_):
        return "so</think> <answer> 13 </answer>"
