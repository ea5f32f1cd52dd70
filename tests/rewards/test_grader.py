"""The grader of a run, rewards of one's own, and the bonus for the layout."""

import math

import pytest

from rlzero.rewards import (ErrorRate, Grade, Grader, GraderError, RewardSample, is_well_formed, load_function, own_reward,
                            reward)

_SAMPLE = RewardSample("p7", 3, "6 x 7?", "42", "It is 42.", (5, 6, 1), False)


def test_errors_below_the_rate_pass_and_above_it_stop():
    rate = ErrorRate(0.05)
    for n in range(2000):
        rate.note("late" if n % 20 == 19 else None)
    with pytest.raises(GraderError, match=r"of the last 1000 responses .*--config.reward.max_error_rate=0.05.*: broken"):
        for _ in range(10):
            rate.note("broken")


def test_few_samples_count_as_a_hundred():
    rate = ErrorRate(0.05)
    for _ in range(5):
        rate.note("late")
    with pytest.raises(GraderError):
        rate.note("late")
    with pytest.raises(GraderError):
        ErrorRate(0.0).note("late")
    never = ErrorRate(1.0)
    for _ in range(1500):
        never.note("late")


@pytest.mark.parametrize("workers", [0, 1])
def test_grading_here_and_in_workers_is_the_same(workers):
    with Grader("math", workers=workers, max_error_rate=0.01) as grader:
        assert grader.grade("a", r"\boxed{0.5}", r"\frac12") == Grade(True, "0.5")
        grades = grader.grade_all([("a", r"\boxed{1}", "1"), ("b", r"\boxed{1}", "{"), ("c", "", "1")])
        assert [grade.correct for grade in grades] == [True, False, False]
        assert [grade.error is None for grade in grades] == [True, False, True]
        with pytest.raises(GraderError, match="2 of the last 5"):
            grader.grade("d", r"\boxed{1}", "{")


def test_own_rewards_are_numbers_or_none():
    assert own_reward(lambda sample: len(sample.text) / 10, _SAMPLE) == 0.9
    assert own_reward(lambda sample: None, _SAMPLE) is None
    for value in (True, "1", [1.0]):
        with pytest.raises(TypeError, match="sample 3 of prompt p7 returned .*a number or None"):
            own_reward(lambda sample, value=value: value, _SAMPLE)
    with pytest.raises(ValueError, match="finite"):
        own_reward(lambda sample: math.nan, _SAMPLE)


def test_errors_of_own_rewards_say_which_sample():
    with pytest.raises(ZeroDivisionError) as caught:
        own_reward(lambda sample: 1 / 0, _SAMPLE)
    assert "on sample 3 of prompt p7" in caught.value.__notes__[0]


@pytest.mark.parametrize("path, sentence", [
    ("no_colon", "expected an import path"), ("module:", "expected an import path"), (":name", "expected an import path"),
    ("rlzero.nowhere:name", "no module 'rlzero.nowhere'"), ("rlzero.rewards:nobody", "no function 'nobody'"),
    ("rlzero.rewards:MODES", "no function 'MODES'")])
def test_functions_that_are_not_there(path, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_function(path)


def test_functions_that_are_there():
    assert load_function("rlzero.rewards:reward") is reward


@pytest.mark.parametrize("text", [
    "<think>a</think>b", " <think>\na\n</think>\n b ", "a</think>b", "a</think> <answer>b</answer>",
    "<think>a</think><answer> b </answer>\n"])
def test_one_thinking_part_and_one_answer(text):
    assert is_well_formed(text)


@pytest.mark.parametrize("text", [
    "", "b", "<think>a", "<think></think>b", "<think> </think>b", "<think>a</think>", "<think>a</think> ", "</think>b",
    "<think>a</think>b</think>c", "<think><think>a</think>b", "x<think>a</think>b", "a</think>b<think>",
    "a</think><answer></answer>", "a</think><answer> </answer>", "a</think><answer>b", "a</think>b</answer>",
    "a</think><answer>b</answer>c", "a</think>c<answer>b</answer>", "a</think><answer>b</answer><answer>c</answer>",
    "<answer>a</answer></think>b", "<answer>a</think>b</answer>"])
def test_other_layouts(text):
    assert not is_well_formed(text)


def test_the_bonus_is_a_part_of_its_own():
    right, wrong = Grade(True, "1"), Grade(False, "2")
    options = dict(max_completion_length=10, format_bonus=0.1)
    assert reward(right, 5, well_formed=True, **options).parts == {"correctness": 1.0, "format": 0.1}
    assert reward(wrong, 5, well_formed=True, **options).parts == {"correctness": 0.0, "format": 0.1}
    assert reward(wrong, 5, well_formed=False, **options).parts == {"correctness": 0.0, "format": 0.0}
    assert reward(wrong, 5, well_formed=True, **options).correct is False
    assert reward(wrong, 5, max_completion_length=10).parts == {"correctness": 0.0}


def test_own_values_take_the_place_of_right_and_wrong():
    half = reward(Grade(False, None), 5, max_completion_length=10, value=0.5)
    assert half.parts == {"correctness": 0.5} and half.correct is False
    cut = reward(Grade(True, None), 10, max_completion_length=10, truncated=True, value=2.0, wrong=-1.0)
    assert cut.parts == {"correctness": -1.0} and cut.correct is False
