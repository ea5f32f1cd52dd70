"""The scorers of reasoning-gym: 1 or nothing, for the extracted answer, and nothing is evaluated."""

import functools
import json
import subprocess
import sys

import pytest

from rlzero import rewards
from rlzero.data import tasks
from rlzero.rewards import gym_scorers

pytest.importorskip("reasoning_gym", reason="needs reasoning-gym: pip install 'rlzero[gym]'")
from reasoning_gym.factory import DATASETS  # noqa: E402

_EVALUATING = ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion", "countdown", "puzzle24",
               "polynomial_multiplication", "simple_integration", "intermediate_integration"]
_SOME = ["chain_sum", "arc_1d", "rearc", "prime_factorization", "time_intervals", "graph_color", "word_ladder",
         "letter_counting", *_EVALUATING]
# "gold + junk" scores 1 with these: they look for a number or a formula in the text.
_LENIENT = {"fraction_simplification", "gsm_symbolic", "kakurasu", "knights_knaves", "letter_jumble", "quantum_lock",
            "sokoban", "survo"}
_HOSTILE = [
    "__import__('os').system('echo x')", "open('/tmp/hostile', 'w')", "[].__class__.__base__.__subclasses__()",
    "exec('1')", "(lambda: 1)()", "[print(c) for c in 'abc']", "9**9**9**9**9", "(((9**99)**99)**99)**99",
    "x.__class__", "f'{1}'", "1 if 1 else 1", "sympify('1')", "factorial(10**9)", "10**10**10", "\u2070", "0x10",
    "integrate(x)", "Symbol('x')", "x" * 20_000, "(" * 5000, "9" * 6000, "1;2", "1\n2", "a:=1", "{}[0]"]


@functools.cache
def problems(name, count=2):
    return tasks.problems(f"reasoning_gym/{name}", "held_out", count, seed=0)


def grade(answer, gold):
    return rewards.grade(f"work</think> \\boxed{{{answer}}}", gold, mode="reasoning_gym")


def check(name):
    for problem in problems(name):
        own = json.loads(problem.answer)["answer"]
        assert rewards.parses(problem.answer, "reasoning_gym"), problem.answer[:200]
        if own is not None:
            assert grade(own, problem.answer).correct, own
        junk = ["", "xyzzy", "[1]", "None", *_HOSTILE[:3]]
        if own is not None and name not in _LENIENT:
            junk += [f"{own} zzz", f"it is {own}, isn't it"]
        for answer in junk:
            found = grade(answer, problem.answer)
            assert not found.correct and found.error is None, (own, answer)


@pytest.mark.parametrize("name", _SOME)
def test_the_gold_answer_is_right_and_junk_is_wrong(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"composite", *gym_scorers.GAMED}))
def test_so_it_is_in_all_datasets(name):
    check(name)


def test_only_the_answer_that_is_committed_to_counts():
    problem = problems("chain_sum")[0]
    own = json.loads(problem.answer)["answer"]
    right = [f"Answer: {own}", f"\\boxed{{0}} no, \\boxed{{{own}}}"]
    wrong = [own, f"{own} \\boxed{{xyzzy}}", f"<think>\\boxed{{{own}}}</think>", f"\\boxed{{{own} or so}}"]
    assert [rewards.grade(text, problem.answer, mode="reasoning_gym").correct for text in right + wrong] == (
        [True] * len(right) + [False] * len(wrong))


def _gold(name, answer, **metadata):
    return json.dumps({"dataset": name, "answer": answer, "metadata": metadata})


@pytest.mark.parametrize(("answer", "right"), [
    ("(1+2)*3", True), ("3*(2 + 1)", True), ("9", False), ("(1+2)*3*1", False), ("1+2+3", False), ("(1+2)**1*3", False),
    ("(1+2)*3 or so", False), ("(1+2)*3 if 1 else 0", False), ("int('9')", False), ("3(1+2)", False), ("0x9", False)])
def test_a_countdown_has_numbers_signs_and_brackets(answer, right):
    gold = _gold("countdown", "(1+2)*3", numbers=[1, 2, 3], target=9)
    assert grade(answer, gold).correct is right


@pytest.mark.parametrize(("name", "answer", "hack", "metadata"), [
    ("number_sorting", "['1', '2', '3']", "[NaN, NaN, NaN]", {"direction": "ascending"}),
    ("number_sorting", "['1', '2', '3']", '["nan", "nan", "nan"]', {"direction": "ascending"}),
    ("complex_arithmetic", "3.0 + 2.0i", "nan", {"result": [3.0, 2.0]}),
    ("complex_arithmetic", "3.0 + 2.0i", "nan+nanj", {"result": [3.0, 2.0]}),
    ("countdown", "2*5-0*4", "2.5*4", {"numbers": [0, 2, 4, 5], "target": 10}),
    ("countdown", "2*5-0*4", "2.5*4+0", {"numbers": [0, 2, 4, 5], "target": 10})])
def test_what_knows_nothing_of_the_problem_is_wrong(name, answer, hack, metadata):
    gold = _gold(name, answer, **metadata)
    assert rewards.parses(gold, "reasoning_gym") and not grade(hack, gold).correct


@pytest.mark.parametrize(("answer", "right"), [
    ("x**3/3 + C", True), ("x**3/3", True), ("(x**3)/3 + 7", True), ("x**(3)/3", True), ("x**(6/2)/3", True),
    ("x**2/3", False), ("y**3/3", False), ("x**x**3", False), ("x^3/3", False), ("diff(x**4/12, x)", False)])
def test_an_integral_has_known_names_and_plain_powers(answer, right):
    gold = _gold("simple_integration", "x**3/3 + C", integrand="x**2", variable="x")
    assert grade(answer, gold).correct is right


@pytest.mark.parametrize("gold", ["12", "{}", "[]", "null", '{"dataset": "chain_sum", "answer": "1"}',
                                  _gold("no_such", "1")])
def test_what_is_no_problem_is_an_error_and_no_wrong_answer(gold):
    assert not rewards.parses(gold, "reasoning_gym")
    assert grade("1", gold).error is not None


@pytest.mark.parametrize("make", [
    lambda code: _gold("number_sorting", code, direction="ascending"),
    lambda code: _gold("bitwise_arithmetic", "0x1", problem=code),
    lambda code: _gold("polynomial_multiplication", code),
    lambda code: _gold("simple_integration", "x + C", variable="x", integrand=code),
    lambda code: _gold("intermediate_integration", "x + C", variable="eval", integrand=code)])
def test_a_problem_from_a_file_is_not_evaluated_either(make, tmp_path):
    gold = make(f"__import__('pathlib').Path('{tmp_path / 'made'}').touch() or 1")
    assert "would evaluate" in rewards.why_unreadable(gold, "reasoning_gym")
    for answer in ("1", "x", "[1]", "x + C"):
        assert grade(answer, gold).error is not None
    assert not list(tmp_path.iterdir())


_AUDITED = """
import json, sys
from rlzero import rewards
from rlzero.rewards import gym_scorers
gym_scorers.load()
golds, hostile = json.loads(sys.stdin.read())
for gold in golds:
    rewards.parses(gold, "reasoning_gym")
events = []

def watch(event, args):
    if event == "compile" and isinstance(args[0], (str, bytes)):
        events.append(args[0] if isinstance(args[0], str) else args[0].decode("utf-8", "replace"))
    elif event.startswith(("os.system", "subprocess", "os.exec", "os.posix_spawn", "shutil", "socket")) or (
            event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")):
        events.append(f"{event} {args}")

sys.addaudithook(watch)
for gold in golds:
    for answer in hostile:
        assert not rewards.grade(f"\\\\boxed{{{answer}}}", gold, mode="reasoning_gym").correct, (gold[:80], answer[:80])
json.dump(events, sys.stdout)
"""


def test_nothing_of_a_hostile_answer_is_evaluated():
    golds = [problem.answer for name in _EVALUATING + ["chain_sum", "number_sorting", "codeio", "jugs", "pool_matrix"]
             for problem in problems(name)[:1]]
    done = subprocess.run([sys.executable, "-c", _AUDITED], input=json.dumps([golds, _HOSTILE]), text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    events = [event for event in json.loads(done.stdout) if event != "from sympy import *"]  # the parser's own
    words = ("import", "open", "class", "exec", "lambda", "print", "sympify", "factorial", "if ", "**9", "**10", "0x",
             "integrate", ":=", ";")
    assert not [event for event in events if any(word in event for word in words)]


@pytest.mark.parametrize(("name", "answer"), [("rush_hour", "A+999999999999"), ("rubiks_cube", "R99999999999")])
def test_moves_repeated_for_ever_are_wrong_at_once(name, answer):
    assert grade(answer, problems(name)[0].answer) == rewards.Grade(False, answer)


def test_it_grades_in_workers_that_can_be_killed():
    asked = problems("chain_sum")
    samples = [(problem.id, f"\\boxed{{{json.loads(problem.answer)['answer']}}}", problem.answer) for problem in asked]
    with rewards.GradingPool(workers=1, deadline_seconds=20.0, mode="reasoning_gym") as pool:
        assert [grade.correct for grade in pool.grade(samples)] == [True] * 2
