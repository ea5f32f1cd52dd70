"""Few-shot problems: the prompts are what they should be, the splits apart, and the examples follow the verifier."""

import re

import pytest

from rlzero.data import refuse_overlap, tasks
from rlzero.data.tasks import few_shot_arithmetic
from rlzero.rewards import grade

_SHAPE = re.compile(r"(Question: .+\nAnswer: \d+\n\n){3}Question: .+\n")


def _numbers(question):
    return tuple(map(int, re.findall(r"\d+", question)))


def _value(question):
    """The answer by a calculation of its own."""
    numbers = _numbers(question)
    return numbers[0] * numbers[1] if "*" in question else sum(numbers) if "+" in question else sorted(numbers)[-1]


def _questions(problem):
    return re.findall(r"Question: (.+)\n", problem.question)


@pytest.fixture(scope="module", params=["train", "held_out"])
def split(request):
    return request.param, tasks.problems("few_shot_arithmetic", request.param, 600, seed=0)


def test_prompts_are_three_worked_examples_and_a_question(split):
    _, problems = split
    for problem in problems:
        assert _SHAPE.fullmatch(problem.question)
        *examples, question = _questions(problem)
        answers = re.findall(r"Answer: (\d+)", problem.question)
        assert [int(answer) for answer in answers] == [_value(example) for example in examples]
        assert int(problem.answer) == _value(question)
        assert len({tuple(sorted(_numbers(each))) for each in (*examples, question)}) == 4
        assert len({re.sub(r"\d+", "", each) for each in (*examples, question)}) == 1


def test_kinds_come_in_equal_numbers(split):
    _, problems = split
    signs = [next(sign for sign in ("*", "+", "max") if sign in problem.question) for problem in problems]
    assert {sign: signs.count(sign) for sign in signs} == {"*": 200, "+": 200, "max": 200}


def test_an_answer_in_the_form_of_the_examples_is_graded_right(split):
    _, problems = split
    for problem in problems:
        assert grade(f"Answer: {problem.answer}\n", problem.answer).correct
        assert not grade(f"Answer: {int(problem.answer) + 1}\n", problem.answer).correct
        assert not grade(f"{problem.answer}\n", problem.answer).correct


def test_no_question_is_on_both_sides_in_any_order_and_examples_are_from_the_training_side():
    train = tasks.problems("few_shot_arithmetic", "train", 1500, seed=1)
    held_out = tasks.problems("few_shot_arithmetic", "held_out", 300, seed=2)
    refuse_overlap(train, held_out)

    def key(question):
        return re.sub(r"\d+", "", question), tuple(sorted(_numbers(question)))

    asked = {key(_questions(problem)[-1]) for problem in held_out}
    seen = {key(question) for problem in train for question in _questions(problem)}
    shown = {key(question) for problem in held_out for question in _questions(problem)[:-1]}
    assert not asked & seen and not asked & shown


def test_the_seed_decides_and_prompts_do_not_repeat():
    first, again, other = (tasks.problems("few_shot_arithmetic", "train", 900, seed=seed) for seed in (3, 3, 4))
    assert first == again and first != other
    assert len({problem.question for problem in first}) == len({problem.id for problem in first}) == 900


def test_there_are_limits():
    with pytest.raises(ValueError, match="up to 100000 problems, 100001 were asked for"):
        tasks.problems("few_shot_arithmetic", "train", 100_001, seed=0)
