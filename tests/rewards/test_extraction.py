"""What a response is taken to answer, before anybody asks whether that is right."""

import time

import pytest

from rlzero.rewards import extraction
from rlzero.rewards.extraction import answer_text


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"\boxed{34}", "34"),
        (r"\fbox{34}", "34"),
        (r"\boxed {34}", "34"),
        (r"so \boxed 34 it is", "34"),
        (r"$\boxed 2$.", "2"),
        (r"\boxed{ \frac{3}{4} }", r"\frac{3}{4}"),
        (r"\boxed{\boxed{34}}", "34"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        (r"\boxed{34}}}", "34"),
        (r"\boxed{12, then \boxed{34}", "34"),
        (r"\boxed{}", ""),
        (r"\boxed{34} and \boxed{35", None),
        (r"\boxed{34} and \boxed", None),
        (r"\boxedup{34}", None),
        (r"oxed{34}", None),
        ("34", None),
        ("", None),
    ],
)
def test_the_last_box_is_the_answer(response, expected):
    assert answer_text(response) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Answer: 34", "34"),
        ("Answer:34", "34"),
        ("answer : 34", "34"),
        ("**Answer:** 34", "** 34"),
        ("**Answer**: 34", "34"),
        ("### Final Answer: **73**", "**73**"),
        ("So the final answer: 34", "34"),
        ("Therefore, the answer: 34", "34"),
        ("Answer：34", "34"),
        ("Answer: 12\nAnswer: 34", "34"),
        ("**Answer:**\n\n34\nDone.", "34"),
        ('Answer: 34\nWrite it on the line after "Answer:".', "34"),
        ("not the answer: 34", None),
        ("The answer is 34", None),
        ("#### 34", None),
        ("Answer:", ""),
    ],
)
def test_the_last_answer_line_counts_where_there_is_no_box(response, expected):
    assert answer_text(response) == expected


def test_a_box_goes_before_an_answer_line():
    assert answer_text("\\boxed{35}\nAnswer: 34") == "35"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"<think>\boxed{35}</think>\boxed{34}", "34"),
        (r"<think>\boxed{35}</think>", None),
        (r"<think>so \boxed{34}", None),
        (r"opened in the prompt, \boxed{35}</think> \boxed{34}", "34"),
        (r"<think>a</think>\boxed{34}<think>\boxed{35}", "34"),
        (r"<think>a</think> 1 <think>b</think> \boxed{2}", "2"),
    ],
)
def test_only_text_outside_the_think_block_counts(response, expected):
    assert answer_text(response) == expected


def test_many_different_answers_are_a_bet_and_the_same_one_again_is_not():
    assert answer_text(r"\boxed{1} \boxed{2} \boxed{34}") == "34"
    assert answer_text(r"\boxed{1} \boxed{2} \boxed{3} \boxed{34}") is None
    assert answer_text(r"\boxed{34} " * 9) == "34"
    assert answer_text("\n".join(f"Answer: {n}" for n in range(4))) is None
    assert answer_text("Answer: 34\n" * 9) == "34"


@pytest.mark.parametrize(("response", "expected"), [
    (" work</think> <answer> 42 </answer>", "42"),
    ("<answer>\n1 2\n3 4\n</answer>", "1 2\n3 4"),
    ("<answer>7</answer></think> <answer>8</answer>", "8"),
    (r"</think><answer> so \boxed{3} </answer>", "3"),
    (r"\boxed{3} <answer>4</answer>", "3"),
    ("Answer: 3\n<answer>4</answer>", "3"),
    (r"<answer> \boxed{3 </answer>", None),
    (r"<answer> {3 </answer>", None),
    ("work</think> <answer>3</answer> User: 2+2? Assistant: <think>4</think> <answer>4</answer>", "3"),
    (r"<answer>3</answer><answer>4</answer> \boxed{5}", "3"),
    ("<answer>3", None), ("3</answer>", None), ("<answer>3<answer>4</answer>", "4"),
    ("<think><answer>3</answer>", None), ("", None), ("42", None)])
def test_tags_count_as_a_box_where_they_were_asked_for(response, expected):
    assert extraction.answer_text(extraction.with_tags_as_box(response)) == expected


def test_without_being_asked_for_tags_are_no_answer():
    assert extraction.answer_text("<answer>42</answer>") is None


def test_many_tags_are_read_in_linear_time():
    started = time.process_time()
    for text in ("<answer>" * 50_000, "</answer>" * 50_000, "<answer>" + "x" * 500_000, "</think><think>" * 20_000):
        assert extraction.answer_text(extraction.with_tags_as_box(text)) is None
    assert extraction.answer_text(extraction.with_tags_as_box("<answer>x</answer>" * 20_000)) == "x"
    assert time.process_time() - started < 2
