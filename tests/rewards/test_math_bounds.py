"""Hostile answers in math mode: a label at once, in bounded memory, without running anything, in any thread."""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import time

import pytest

from rlzero.rewards import grade

_HERE = pathlib.Path(__file__).parent
_SECONDS = 2.0
_DIGITS = "1234567890" * 500
_HOSTILE = [
    "9**9**9**9", "9^{9^{9^{9}}}", "((((9!)!)!)!)", "100000!", r"\binom{10^{9}}{5\cdot 10^{8}}", "10^{9999999}",
    r"e^{e^{e^{e^{e}}}}", r"\sin(10^{10^{5}})", r"\sum_{k=1}^{10^{12}} k^{k}", r"\int_0^1 x^x dx",
    "(x+y+z)^{1000}", "(x+y+z+w)^{100}-(x+y)^{99}", "2^" * 500 + "2", "-" * 5000 + "34", "|" * 5000 + "34" + "|" * 5000,
    "{" * 5000 + "x", "(" * 5000 + "x" + ")" * 5000, r"\sqrt{" * 39 + "2" + "}" * 39, r"\sqrt{" * 5000 + "2" + "}" * 5000,
    r"\frac{1}{1+" * 30 + "2" + "}" * 30, r"\frac" * 3000, "1," * 5000, "_" * 5000, "^" * 5000, r"\text{" * 2000,
    _DIGITS, _DIGITS + "/" + _DIGITS[:-1], "0." + _DIGITS, "0.\\overline{" + _DIGITS + "}", "1" + "e" * 3000, "1e999",
    r"\begin{pmatrix}" + "1&" * 1500 + r"1\end{pmatrix}", r"\{" * 39 + r"\}" * 39, "\x00", "\ud800", " " * 100_000 + "x",
    "+".join(f"x_{{{n}}}^{{{n}}}" for n in range(150)), "+".join(rf"\sqrt{{{n}}}" for n in range(2, 150)),
    "*".join(rf"(1+\sqrt{{{n}}})" for n in range(2, 60)), r"\sqrt[97]{" + "+".join(rf"\sqrt{{{n}}}" for n in range(2, 9)) + "}",
    "__import__('os').system('true')", "exit()", "lambda: 34", "34; import os", r"\input{/etc/passwd}", ".*", "(?:a+)+b",
    "x" * 5000, "sin" * 2000, r"\sin" * 2000 + "x", r"\log_" * 1000 + "2", "<" * 3000, "1<" * 1500 + "x", "x=" * 3000 + "1"]


@pytest.mark.parametrize("answer", _HOSTILE, ids=range(len(_HOSTILE)))
@pytest.mark.parametrize("gold", ["34", r"x+\sqrt{2}"])
def test_hostile_answers_get_a_label_at_once(answer, gold):
    for response in (rf"\boxed{{{answer}}}", f"Answer: {answer}"):
        start = time.process_time()
        result = grade(response, gold, mode="math")
        assert time.process_time() - start < _SECONDS
        assert not result.correct and result.error is None


@pytest.mark.parametrize("answer", [answer for answer in _HOSTILE if answer.isascii() and answer.count("{") < 3000
                                    and answer.count("{") == answer.count("}") and "\x00" not in answer],
                         ids=lambda answer: answer[:12])
def test_what_is_too_large_to_compute_is_still_equal_to_itself(answer):
    start = time.process_time()
    result = grade(rf"\boxed{{{answer}}}", answer, mode="math")
    assert time.process_time() - start < _SECONDS
    assert result.correct or result.error


@pytest.mark.parametrize("response, correct", [
    (r"\boxed{" * 50_000, False), (r"\boxed{" * 50_000 + "34" + "}" * 50_000, True), (r"\boxed{34} " * 50_000, True),
    (r"\boxed{" + "(" * 5000 + "34" + ")" * 5000 + "}", True), (r"\boxed{" + "{" * 5000 + "34" + "}" * 5000 + "}", True),
    ("<think>" * 50_000 + r"\boxed{34}", False), ("Answer: 34\n" * 50_000, True)], ids=range(7))
def test_long_responses(response, correct):
    start = time.process_time()
    assert grade(response, "34", mode="math").correct is correct
    assert time.process_time() - start < _SECONDS


def test_long_numbers_are_compared_digit_by_digit():
    assert grade(rf"\boxed{{{_DIGITS}}}", _DIGITS, mode="math").correct
    assert not grade(rf"\boxed{{{_DIGITS[:-1]}1}}", _DIGITS, mode="math").correct


_SCRIPT = r"""
import json, resource, sys, threading
from rlzero.rewards import grade
pairs = json.load(open(sys.argv[1]))
seen, watching = [], []
watched = ("compile", "exec", "open", "import", "os.", "subprocess.", "socket.", "pickle.", "ctypes.", "code.")
sys.addaudithook(lambda name, arguments: watching and name.startswith(watched) and seen.append((name, str(arguments))))
resource.setrlimit(resource.RLIMIT_AS, (1500 << 20, 1500 << 20))
def run():
    return [grade(f"\\boxed{{{answer}}}", gold, mode="math").correct for answer, gold in pairs]
watching.append(True)
found = run()
watching.clear()
again = []
thread = threading.Thread(target=lambda: again.extend(run()))
thread.start()
thread.join()
print(json.dumps([found, again, seen]))
"""


def test_nothing_is_run_or_opened_and_memory_is_bounded_in_any_thread(tmp_path):
    """In a fresh process, before anything was graded, so that what is loaded late would show."""
    lines = (_HERE / "math_pairs.jsonl").read_text("utf-8").splitlines()
    pairs = [(pair["answer"], pair["gold"]) for pair in map(json.loads, lines)]
    pairs += [(answer, gold) for answer in _HOSTILE for gold in ("34", "x") if answer != "\ud800"]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    result = subprocess.run([sys.executable, "-c", _SCRIPT, str(tmp_path / "pairs.json")], capture_output=True, text=True,
                            check=False, cwd=_HERE.parents[1])
    assert result.returncode == 0, result.stderr
    found, again, seen = json.loads(result.stdout)
    assert seen == []
    assert found == again == [grade(rf"\boxed{{{answer}}}", gold, mode="math").correct for answer, gold in pairs]


def test_threads_at_once_give_the_same_labels():
    pairs = [(r"\sqrt{1-\cos^2 x}", r"|\sin x|", True), (r"\cos 20^\circ\cos 40^\circ\cos 80^\circ", r"\frac18", True),
             (r"\sqrt{10-2\sqrt5}", r"4\sin 36^\circ", True), (r"\sin 1", r"\sin 1+10^{-60}", False),
             (r"\sqrt{1-\sin^2 x}", r"|\sin x|", False)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda pair: grade(rf"\boxed{{{pair[0]}}}", pair[1], mode="math").correct, pairs * 8))
    assert found == [correct for _, _, correct in pairs] * 8
