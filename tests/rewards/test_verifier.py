"""The verifier as a whole: recorded cases, hostile input, and what is an error instead of a wrong answer."""

import json
import pathlib
import subprocess
import sys
import time

import pytest

from rlzero.rewards import Grade, grade

_FILE = pathlib.Path(__file__).parent / "verifier_cases.jsonl"
_CASES = [json.loads(line) for line in _FILE.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_recorded_case(case):
    result = grade(case["response"], case["gold"], mode="integer")
    assert result.error is None
    assert result.correct is case["correct"], case["why"]


_DIGITS = "1234567890" * 500


@pytest.mark.parametrize(
    ("response", "gold", "correct"),
    [
        (rf"\boxed{{{_DIGITS}}}", _DIGITS, True),
        (rf"\boxed{{{_DIGITS}}}", _DIGITS[:-1] + "1", False),
        (rf"\boxed{{{_DIGITS}x}}", _DIGITS, False),
        (r"\boxed{" + "(" * 5000 + "34" + ")" * 5000 + "}", "34", True),
        (r"\boxed{" + "{" * 5000 + "34" + "}" * 5000 + "}", "34", True),
        (r"\boxed{" + "{" * 5000 + "34" + "}" * 5000, "34", False),
        (r"\boxed{" * 50_000, "34", False),
        (r"\boxed{" * 50_000 + "34" + "}" * 50_000, "34", True),
        (r"\boxed{34} " * 50_000, "34", True),
        ("Answer: 34\n" * 50_000, "34", True),
        ("Answer: 34\n" + "It fits. " * 50_000, "34", True),
        (r"\text{" * 50_000, "34", False),
        (rf"\boxed{{{'1,234' * 20_000}}}", "34", False),
        (" " * 500_000 + "x", "34", False),
        (r"\boxed{9**9**9**9}", "34", False),
        (r"\boxed{9^{9^{9^{9}}}}", "34", False),
        (r"\boxed{exit()}", "34", False),
        ("\x00\ud800\boxed{34}", "34", False),
    ],
    ids=range(18),
)
def test_hostile_text_gets_a_label_at_once(response, gold, correct):
    start = time.process_time()
    result = grade(response, gold)
    assert result.correct is correct and result.error is None
    # The slowest takes 0.1 s on one busy core; anything quadratic takes minutes.
    assert time.process_time() - start < 2


@pytest.mark.parametrize("gold", ["", "x", "3/4", "0.5", "1,2", r"\frac{1}{2}", "True"])
def test_a_gold_that_is_no_integer_is_an_error_and_not_a_wrong_answer(gold):
    result = grade(rf"\boxed{{{gold}}}", gold)
    assert not result.correct
    assert "not an integer" in result.error


def test_a_grade_tells_what_was_read():
    assert grade(r"7+8=15; 15-3=12; \boxed{12}", "12") == Grade(True, "12")
    assert grade(r"\boxed{3, 4}", "34") == Grade(False, "3, 4")
    assert grade("no answer", "34") == Grade(False, None)


def test_the_prompt_earns_nothing():
    """A gold in the prompt's own box pays only if the caller hands the prompt over, which the contract forbids."""
    assert not grade("", "34").correct


def test_wrong_use_says_what_to_do():
    with pytest.raises(ValueError, match="no mode 'fuzzy'; available: 'integer', 'math'"):
        grade("", "34", mode="fuzzy")
    with pytest.raises(TypeError, match="gold must be text, got int"):
        grade("", 34)


@pytest.mark.parametrize("missing", ["mpmath", "math_verify"])
def test_math_without_the_extra_names_it_and_integers_need_none(missing):
    script = f"""import sys
sys.modules[{missing!r}] = None
from rlzero import rewards
assert rewards.grade("Answer: 34", "34").correct
try:
    rewards.grade("Answer: 34", "34", mode="math")
except ImportError as error:
    print(error)"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                            cwd=_FILE.parents[2])
    assert "pip install 'rlzero[math]'" in result.stdout, result.stderr
