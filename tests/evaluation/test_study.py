"""The rows of a study by hand, and the program on the demo model."""

import json
import pathlib
import subprocess
import sys

import pytest
from toys import completion, sample

from rlzero.data import Problem
from rlzero.evaluation import Evaluation, plot, study
from rlzero.evaluation.judge import RuleJudge
from rlzero.rollout.sampler import Group

_ROOT = pathlib.Path(__file__).parents[2]


class Picky(RuleJudge):
    """Agrees that a response reflects unless it says "mind", and has no verdict on answers that say "odd"."""

    def reflecting(self, responses):
        return [None if "odd" in r.text else "mind" not in r.text for r in responses]

    def answering(self, responses):
        return [None if "odd" in r.text else bool(r.answer) for r in responses]


def group(name, *responses):
    """Responses as (text, answer, whether it is right)."""
    samples = tuple(sample(completion(name, index, (5,) * (index + 1)), float(right), answer=answer, text=text)
                    for index, (text, answer, right) in enumerate(responses))
    return Group(Problem(name, f"question {name}", "1", (3,)), samples)


EVALUATION = Evaluation([
    group("p", ("recheck: 1", "1", True), ("1", "1", True), ("2", "2", False), ("let me recheck", None, False)),
    group("q", ("never mind the recheck", "1", True), ("1", "1", True), ("1", "1", True), ("no", None, False)),
    group("r", ("an odd recheck", None, False), ("think again", "3", False), ("4", "4", False), ("1", "1", True))])


def test_numbers_by_hand():
    row = study.numbers(study.judged("model", "r1", EVALUATION, Picky()))
    assert row.pop("keywords") == {"recheck": 4, "think again": 1}
    assert row == pytest.approx({
        "model": "model", "template": "r1", "problems": 3, "samples": 12, "answering_rate": 9 / 11,
        "accuracy": (2 + 3 + 1) / 12, "standard_error": (2 / 16 / 2 / 3) ** 0.5, "k": 4, "pass_at_k": 1.0,
        "length_tokens": 2.5, "length_characters": sum(len(s.text) for s in EVALUATION.samples) / 12,
        "truncated_fraction": 0.0, "unanswered_fraction": 3 / 12,
        # p: two of four reflect; q: its one is no reflection to the judge; r: one has no verdict, one of three reflects.
        "reflecting_rate": 3 / 11, "reflecting_questions": 2 / 3, "accuracy_reflecting": 1 / 3,
        "accuracy_others": 5 / 8, "same_question_difference": ((1 / 2 - 1 / 2) + (0 - 1 / 2)) / 2,
        "same_question_count": 2, "without_verdict": 1})


def test_where_nobody_reflects_there_is_nothing_to_compare():
    cell = study.judged("model", "none", Evaluation([group("p", ("1", "1", True))]), RuleJudge())
    row = study.numbers(cell)
    assert row["accuracy_reflecting"] is row["same_question_difference"] is row["standard_error"] is None
    assert row["reflecting_rate"] == 0 and json.loads(next(study.row_lines([row]))) == row
    assert study.table([row]).splitlines()[-1].split() == [
        "model", "none", "100.0%", "100.0%", "-", "100.0%", "1.0", "0.0%", "0.0%", "0.0%", "-", "100.0%", "-"]


def test_the_judge_is_asked_about_reflection_only_where_there_is_a_keyword():
    asked = []

    class Noting(RuleJudge):
        def reflecting(self, responses):
            asked.extend(r.text for r in responses)
            return super().reflecting(responses)

    study.judged("model", "r1", EVALUATION, Noting())
    assert len(asked) == 5 and all("recheck" in text or "again" in text for text in asked)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture_has_a_bar_for_what_was_asked(tmp_path, ending):
    rows = [study.numbers(study.judged(model, template, EVALUATION, Picky()))
            for model, template in (("a", "none"), ("a", "r1"), ("b", "none"))]
    plot.save(rows, tmp_path / f"study.{ending}")
    assert (tmp_path / f"study.{ending}").stat().st_size > 5000


def _evaluate(*arguments, code=0):
    done = subprocess.run([sys.executable, "-m", "rlzero.evaluate", *arguments], cwd=_ROOT, text=True, timeout=300,
                          capture_output=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_the_program_asks_under_each_template_and_says_which_it_cannot(tmp_path):
    own, output = tmp_path / "twice.txt", tmp_path / "study"
    own.write_text("{question}\n{question}")
    done = _evaluate("--study", "--model=demo", f"--template=none,{own},r1,chat", "--problems=5", "--samples=4",
                     f"--output={output}")
    assert "demo r1: left out" in done.stdout and "demo chat: left out, the tokenizer has no chat" in done.stdout
    rows, samples = ([json.loads(line) for line in (output / name).read_text().splitlines()]
                     for name in ("study.jsonl", "samples.jsonl"))
    assert [(row["model"], row["template"], row["problems"], row["k"]) for row in rows] == [
        ("demo", "none", 5, 4), ("demo", str(own), 5, 4)]
    assert len(samples) == 40 and {"question", "text", "correct", "answering", "keywords"} <= samples[0].keys()
    for row in rows:
        own_samples = [s for s in samples if s["template"] == row["template"]]
        assert row["accuracy"] == pytest.approx(sum(s["correct"] for s in own_samples) / 20)
        assert row["answering_rate"] == pytest.approx(sum(s["answering"] for s in own_samples) / 20)
    assert (output / "study.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("arguments, words", [
    (("--study", "--model=demo", "--template=r2"), "no template 'r2'"),
    (("--study", "--model=demo", "--template=none,none"), "named twice"),
    (("--study", "--model=demo", "--template=r1"), "no model could be asked"),
    (("--study", "--model=demo", "--sets=/no/such/file.jsonl"), "there is no /no/such/file.jsonl"),
    (("--study", "--model=demo", "--judge=http://127.0.0.1:9/v1"), "go together"),
    (("--study", "--model=demo,/no/such/model"), "no model at /no/such/model"),
    (("--study", "--model=demo", "--judge=http://127.0.0.1:9/v1", "--judge_model=m"), "1 of 1 requests to the judge"),
    (("--model=demo", "--judge=http://127.0.0.1:9/v1", "--judge_model=m"), "are for a --study"),
    (("--study", "--model=demo,demo", "--servers=http://127.0.0.1:9"), "servers serve one model"),
    (("--workdir=/tmp", "--mode=math"), "--mode is the run's own")])
def test_mistakes_are_answered_in_a_line(arguments, words):
    done = _evaluate(*arguments, "--problems=2", code=1)
    assert words in done.stderr and "Traceback" not in done.stderr
    assert "% right" not in done.stdout  # before any model is asked
