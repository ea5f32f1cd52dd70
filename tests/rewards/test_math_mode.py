"""Mathematical answers: every recorded case, in any thread, within bounds, and golds that cannot be compared with."""

import concurrent.futures
import json
import pathlib
import time

import pytest

from rlzero.rewards import grade, parses

_HERE = pathlib.Path(__file__).parent
_CASES = [json.loads(line) for name in ("math_cases", "verifier_policy_cases")
          for line in (_HERE / f"{name}.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_recorded_case(case):
    start = time.process_time()
    result = grade(case["response"], case["gold"], mode="math")
    assert result.error is None and result.correct is case["correct"], case["why"]
    assert time.process_time() - start < 2 + 3  # the first to need the library loads it


def test_other_threads_give_the_same_verdicts():
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda case: grade(case["response"], case["gold"], mode="math").correct, _CASES))
    assert found == [case["correct"] for case in _CASES]


@pytest.mark.parametrize("gold, given, correct", [
    (r"\frac{1}{2}", "0.5", True), (r"\frac{1}{2}", "0.50001", False), ("3:2", "2:3", False),
    (r"\{1,2,3\}", r"\{3,2,1\}", True), ("(1,2)", "(2,1)", False), ("[0,1)", "[0,1]", False),
    (r"2\sqrt{3}", r"\sqrt{12}", True), (r"\sin^2 x+\cos^2 x", "1", True), ("x=5", "5", True), ("5", "x=5", True),
    (r"\frac{\pi}{6}", r"30^\circ", True), ("10!", "3628800", True), (r"x^2-1", "(x-1)(x+1)", True),
    (r"\text{(C)}", "C", True), ("1{,}234", "1234", True), ("9^{9^{9^{9}}}", "9^{9^{9^{8}}}", False)])
def test_pairs(gold, given, correct):
    assert grade(rf"\boxed{{{given}}}", gold, mode="math").correct is correct


def test_golds_without_an_answer_are_told_apart():
    assert parses(r"\frac12", "math") and parses("42", "integer")
    assert not parses("", "math") and not parses("", "integer") and not parses(r"\frac12", "integer")
