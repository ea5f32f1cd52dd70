"""Answers rewritten as integers: by hand, at random, what has no rule, and the program."""

import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

from rlzero import rewards
from rlzero.data import layouts
from rlzero.data.integer_answers import NotRewritten, rewrite

_ROOT = pathlib.Path(__file__).parents[2]
_QUESTION = "Find the value."

_BY_HAND = [
    ("34", "34", "integer"), ("-7", "-7", "integer"), ("042", "42", "integer"), ("1{,}234", "1234", "integer"),
    (r"1,\!722", "1722", "integer"), ("x=5", "5", "integer"), ("10.00", "10", "integer"), ("6!", "720", "integer"),
    ("2^{10}", "1024", "integer"), (r"\frac{8}{4}", "2", "integer"), (r"\sqrt{49}", "7", "integer"),
    (r"\log_2 8", "3", "integer"), ("12 million", "12000000", "integer"), (r"\$5", "5", "integer"),
    (r"\text{34}", "34", "integer"), ("0", "0", "integer"),
    ("12 cm", "12", "unit"), (r"50\%", "50", "unit"), (r"90^\circ", "90", "unit"), (r"25\text{ cm}^2", "25", "unit"),
    ("60 miles per hour", "60", "unit"), (r"7\text{ hours}.", "7", "unit"),
    (r"\frac34", "7", "fraction"), (r"\dfrac{2}{4}", "3", "fraction"), (r"\tfrac12", "3", "fraction"),
    (r"-\frac{3}{4}", "1", "fraction"), (r"\frac{-39}{19}", "-20", "fraction"), ("3/4", "7", "fraction"),
    (r"1\frac12", "5", "fraction"), ("0.125", "9", "fraction"), ("-.5", "1", "fraction"), ("11.25", "49", "fraction"),
    (r"0.\overline{3}", "4", "fraction"), (r"x=\frac{1}{3}", "4", "fraction"), (r"0.5\text{ m}", "3", "fraction"),
    (r"2^{-3}", "9", "fraction"), (r"\$ 251.60", "1263", "fraction"), (r"12.5\%", "27", "fraction"),
    (r"3\sqrt2", "5", "root"), (r"\sqrt{12}", "5", "root"), (r"-\sqrt{2}", "1", "root"), (r"\sqrt{65}", "66", "root"),
    (r"\frac{\sqrt3}{2}", "6", "root"), (r"\frac{3}{\sqrt{2}}", "7", "root"), (r"4\sqrt{5}/3", "12", "root"),
    ("2^{1/2}", "3", "root"), (r"\sqrt{\frac{1}{2}}", "5", "root"),
    (r"2+\sqrt3", "6", "sum"), (r"11-2\sqrt{6}", "15", "sum"), (r"\sqrt{6}-1", "6", "sum"),
    (r"\frac{1-\sqrt5}{2}", "7", "sum"), (r"\frac{2+2\sqrt5}{4}", "9", "sum"), (r"(1+\sqrt2)^2", "7", "sum"),
    (r"\frac{1}{2}+\frac{\sqrt{3}}{3}", "14", "sum"),
    (r"12\pi", "12", "pi"), (r"\pi", "1", "pi"), (r"\frac{2\pi}{3}", "5", "pi"), (r"-\frac{\pi}{3}", "2", "pi"),
    (r"32\pi-64", "-32", "pi"), (r"\frac{10-3\pi}{4}", "11", "pi"),
    ("3i", "3", "complex"), ("3-2i", "1", "complex"), (r"\frac{i}{2}", "3", "complex"),
    ("2,-3", "-1", "several"), (r"\{1,5\}", "6", "several"), (r"\pm 2", "0", "several"), ("(0,0,3)", "3", "several"),
    (r"6, 8\text{, and }10", "24", "several"), (r"x = 1 \text{ or } x = 4", "5", "several")]

_LEFT_OUT = [
    ("x+1", "has variables"), ("y = 2x + 1", "has variables"), (r"\text{yes}", "text"), (r"\text{October 30}", "text"),
    ("A", "a choice"), (r"\text{(B)}", "a choice"), ("10^{100}", "too large"), ("9^{9^{9}}", "too large"),
    ("1" * 40, "too large"), ("[1,2]", "a set of real numbers"), (r"(-\infty,3] \cup [4,\infty)", "a set of real numbers"),
    ("(1,2)", "a pair or an interval"), (r"\frac12, 3", "several, not all integers"),
    ("1,2,2", "several, with repeats"), ("52_8", "in another base"), ("2:3", "a ratio"),
    (r"\sqrt{2+\sqrt3}", "another expression"), (r"\sqrt2+\sqrt3", "another expression"),
    (r"\sqrt[3]{2}", "another expression"), ("e", "another expression"), (r"\frac{81}{\pi}", "another expression"),
    (r"\frac{1}{\sqrt{3}-1}", "another expression"),
    (r"\pi+\sqrt2", "another expression"), (r"\begin{pmatrix}1\\2\end{pmatrix}", "a matrix"),
    ("x + y = 0", "an equation or inequality"), ("", "unreadable"), (r"\frac{}{2}", "unreadable"),
    ("1/0", "unreadable"), (r"\frac{1}{2", "unreadable")]


@pytest.mark.parametrize(("answer", "integer", "rule"), _BY_HAND)
def test_by_hand(answer, integer, rule):
    question, found, name = rewrite(_QUESTION, answer)
    assert (found, name) == (integer, rule)
    assert rewards.parses(found, "integer") and question.startswith(_QUESTION)
    assert (question == _QUESTION) == (rule == "integer"), "only integers are asked for as before"


@pytest.mark.parametrize(("answer", "reason"), _LEFT_OUT)
def test_what_has_no_rule_has_a_reason(answer, reason):
    with pytest.raises(NotRewritten, match=f"^{re.escape(reason)}$"):
        rewrite(_QUESTION, answer)


def test_a_pair_is_one_where_the_question_says_so():
    assert rewrite("Give the ordered pair.", "(3,-1)")[1:] == ("2", "several")


def test_what_is_asked_for_by_hand():
    assert rewrite(_QUESTION, r"\frac{2+2\sqrt5}{4}").question == (
        r"Find the value." "\n\n" r"The answer has the form $\frac{k + p\sqrt{m}}{n}$ with integers $k$, $p$ and $n > 0$ "
        r"without a common divisor, where $m$ is a positive integer that no square of a prime divides. "
        r"Find $k + p + m + n$.")
    assert rewrite(_QUESTION, r"12.5\%").question.endswith(
        "The unit of the answer is percent; leave it out. The answer is a fraction $m/n$ in lowest terms with integers "
        "$m$ and $n > 0$. Find $m + n$.")


def test_letters_of_the_question_are_not_used_again():
    question = rewrite("If $m = 2n$ and k > 0, find p.", r"\frac34").question
    assert "$q/r$" in question
    with pytest.raises(NotRewritten, match="no letters left"):
        rewrite(" ".join("abcdefghijklmnopqrstuvw"), r"\frac34")


def _squarefree(number):
    return all(number % (p * p) for p in range(2, math.isqrt(number) + 1))


def test_numbers_at_random_have_the_sum_of_the_parts_of_their_lowest_form():
    """(k + l √m) / n, written with a common factor and the root with a square in it."""
    draw = random.Random(5)
    for _ in range(300):
        k, l, n, m = draw.randint(-20, 20), draw.choice([-3, -1, 1, 2, 7]), draw.randint(1, 9), draw.randint(2, 40)
        if not _squarefree(m) or math.gcd(k, l, n) != 1:
            continue
        factor, square = draw.randint(1, 4), draw.choice([1, 1, 2, 3])
        if (factor * l) % square:
            continue
        text = rf"\frac{{{factor * k} {factor * l // square:+d}\sqrt{{{square * square * m}}}}}{{{factor * n}}}"
        expected = k + l + m + (n if n > 1 else 0)
        assert rewrite(_QUESTION, text).answer == str(expected), text


def _program(*arguments, code=0):
    done = subprocess.run([sys.executable, "-m", "rlzero.integers", *arguments], cwd=_ROOT, text=True, timeout=300,
                          capture_output=True)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done


def test_the_program_writes_both_and_nothing_over_anything(tmp_path):
    problems = [{"id": f"q{i}", "question": f"Question {i}?", "answer": answer}
                for i, answer in enumerate(["3", r"\frac12", "x+1", "(1,2)"])]
    source, output = tmp_path / "set.jsonl", tmp_path / "integers.jsonl"
    source.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    done = _program(f"--files={source}", f"--output={output}")
    assert "2 of 4 problems" in done.stdout
    assert re.search(r"rewritten: fraction +1", done.stdout) and re.search(r"left out: has variables +1", done.stdout)
    again = layouts.load(output, "fields")
    assert [(p.id, p.answer) for p in again] == [("q0", "3"), ("q1", "3")]
    assert json.loads(output.read_text().splitlines()[1])["original_answer"] == r"\frac12"
    left_out = [json.loads(line) for line in (tmp_path / "integers.left_out.jsonl").read_text().splitlines()]
    assert [(line["id"], line["answer"], line["reason"]) for line in left_out] == [
        ("q2", "x+1", "has variables"), ("q3", "(1,2)", "a pair or an interval")]
    assert "exists already" in _program(f"--files={source}", f"--output={output}", code=1).stderr


@pytest.mark.parametrize("arguments, words", [
    ((), "--files=PATH"), (("--files=/no/such.jsonl", "--output=/tmp/never.jsonl"), "there is no /no/such.jsonl"),
    (("set.jsonl",), "belongs to no flag")])
def test_mistakes_are_answered_in_a_line(arguments, words):
    assert words in _program(*arguments, code=1).stderr


@pytest.mark.skipif("RLZERO_DATA" not in os.environ, reason="RLZERO_DATA names no directory of published sets")
def test_nine_tenths_of_math_have_a_rule():
    problems = layouts.load(pathlib.Path(os.environ["RLZERO_DATA"]) / "math_train.json", "math")
    answers = []
    for problem in problems:
        try:
            answers.append(rewrite(problem.question, problem.answer).answer)
        except NotRewritten:
            continue
    assert len(answers) > 0.89 * len(problems) and all(rewards.parses(answer, "integer") for answer in answers)
