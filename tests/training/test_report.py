"""What a run leaves behind: a line a step, a line a completion, transcripts, warnings, and the summary."""

import json
import types

import numpy as np
import pytest
from toys import completion, sample

from rlzero.data import Problem
from rlzero.rollout.sampler import Group, Rollout
from rlzero.training.config import Config
from rlzero.training.learner import StepResult
from rlzero.training.metrics import ROLLOUT_FIELDS, Accumulator, read_lines
from rlzero.training.report import Report

TIMES = {"time/rollout_seconds": (2.0, 1.0), "time/train_seconds": (1.0, 1.0), "time/evaluation_seconds": (5.0, 1.0)}
PROMPTS = types.SimpleNamespace(drawn=6, epochs=1.5)
ACCOUNT = {"generated": 6, "carried_in": 0, "trained": 2, "filtered": 2, "failed": 0, "abandoned": 0, "carried_out": 2}


def group(name, *rewards):
    samples = tuple(sample(completion(name, g, (7, 8, 1)[g:], seed=40 + g), reward, text=f"{name}{g}.")
                    for g, reward in enumerate(rewards))
    return Group(Problem(name, f"{name}? ", "5", (3, 4, 5)), samples)


TRAINED, FILTERED, CARRIED = group("p", 1.0, 0.0), group("q", 0.0, 0.0), group("r", 0.0, 1.0)


def rollout():
    return Rollout([TRAINED], [FILTERED, TRAINED, CARRIED], [CARRIED], ACCOUNT, 2)


def result(**metrics):
    accumulator = Accumulator()
    for name, pair in ({"policy/gradient_norm": (3.0, 2.0)} | {f"policy/{n}": p for n, p in metrics.items()}).items():
        accumulator.add(name, *pair)
    return StepResult(accumulator, np.array([[0.5, -0.5]], np.float32), True)


@pytest.fixture
def make_report(tmp_path):
    made = []

    def make(start_step=0, **settings):
        config = Config(steps=4)
        for path, value in settings.items():
            section, name = path.split("__")
            setattr(getattr(config, section), name, value)
        made.append(Report(config, tmp_path, start_step))
        return made[-1]

    yield make
    for report in made:
        report.close()


def steps_in(tmp_path, name="metrics"):
    return [record["step"] for record in read_lines(tmp_path / f"{name}.jsonl")]


def test_a_step_is_written_when_the_next_is_reported_or_at_a_flush(make_report, tmp_path, capsys):
    report = make_report()
    report.step(1, rollout(), result(), TIMES, PROMPTS)
    assert steps_in(tmp_path) == [] and "step 1/4" not in capsys.readouterr().out
    report.step(2, rollout(), result(), TIMES, PROMPTS)
    assert steps_in(tmp_path) == [1] and "step 1/4" in capsys.readouterr().out
    report.flush()
    report.flush()
    assert steps_in(tmp_path) == [1, 2]
    report.step(3, rollout(), result(), TIMES, PROMPTS)
    report.evaluation(3, {"accuracy": 0.5, "standard_error": 0.1, "greedy": 0.6}, {})
    assert steps_in(tmp_path) == [1, 2, 3] and steps_in(tmp_path, "evaluation") == [3]
    report.step(4, rollout(), result(), TIMES, PROMPTS)
    report.close()
    assert steps_in(tmp_path) == [1, 2, 3, 4]


def test_the_line_of_a_step(make_report, tmp_path, capsys):
    report = make_report()
    report.step(1, rollout(), result(loss=(0.25, 1.0)), TIMES, PROMPTS)
    report.flush()
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert line["policy/gradient_norm"] == 1.5 and line["policy/loss"] == 0.25
    assert line["reward/accuracy"] == pytest.approx(2 / 6) and line["rollout/trained"] == 2
    assert line["time/step_seconds"] == 3 and line["data/prompts"] == 6 and line["data/epochs"] == 1.5
    assert line["rollout/tokens_per_second"] == line["rollout/tokens"] / 2 == 15 / 2
    assert list((tmp_path / "tensorboard").iterdir())
    assert "right 0.333" in capsys.readouterr().out


def test_every_completion_has_one_record_with_its_fate(make_report, tmp_path):
    report = make_report()
    report.step(1, rollout(), result(), TIMES, PROMPTS)
    report.flush()
    records = read_lines(tmp_path / "rollouts" / "step_000001.jsonl")
    assert [(r["prompt_id"], r["sample_index"], r["fate"], r["advantage"]) for r in records] == [
        ("q", 0, "filtered", None), ("q", 1, "filtered", None), ("p", 0, "trained", 0.5), ("p", 1, "trained", -0.5),
        ("r", 0, "carried", None), ("r", 1, "carried", None)]
    assert all(set(ROLLOUT_FIELDS) <= set(record) for record in records)
    assert {name: records[2][name] for name in ("question", "text", "gold", "answer", "correct", "reward", "rewards",
                                                "completion_ids", "completion_tokens", "finish_reason",
                                                "policy_version", "seed")} == {
        "question": "p? ", "text": "p0.", "gold": "5", "answer": "1", "correct": True, "reward": 1.0,
        "rewards": {"correctness": 1.0}, "completion_ids": [7, 8, 1], "completion_tokens": 3, "finish_reason": "stop",
        "policy_version": 0, "seed": 40}


def test_rollouts_are_kept_only_if_wanted(make_report, tmp_path):
    report = make_report(rollout__keep_rollouts=False)
    report.step(1, rollout(), result(), TIMES, PROMPTS)
    report.flush()
    assert not (tmp_path / "rollouts").exists() and steps_in(tmp_path) == [1]


def test_a_step_that_generated_nothing_is_a_line_like_others(make_report, tmp_path):
    report = make_report()
    report.step(1, Rollout([], [], [], ACCOUNT, 0), StepResult(Accumulator(), np.zeros((0, 2)), False), TIMES, PROMPTS)
    report.flush()
    assert steps_in(tmp_path) == [1] and read_lines(tmp_path / "rollouts" / "step_000001.jsonl") == []


def test_transcripts_show_a_right_and_a_wrong_answer_at_the_first_step_and_every_so_often(make_report, capsys):
    report = make_report(log__transcripts_every_steps=2, log__transcripts=3)
    shown = []
    for step in (1, 2, 3, 4):
        report.step(step, rollout(), result(), TIMES, PROMPTS)
        report.flush()
        shown.append(capsys.readouterr().out)
    for step in (0, 1, 3):
        for line in ("right  p?   p0.", "wrong  p?   p1.", "right  r?   r1."):
            assert line in shown[step]
        assert "q? " not in shown[step]  # groups with contrast say more
    assert "p? " not in shown[2]


def test_a_warning_is_printed_once(make_report, capsys):
    report = make_report(log__transcripts_every_steps=0)
    for step in (1, 2, 3):
        report.step(step, rollout(), result(gradient_norm=(0.0, 1.0)), TIMES, PROMPTS)
    report.flush()
    assert capsys.readouterr().out.count("warning: The gradient norm is exactly 0") == 1


def evaluation(accuracy):
    return {"accuracy": accuracy, "standard_error": 0.01, "greedy": accuracy + 0.1, "length": 8.0}


def test_the_summary_and_the_closing_table(make_report, tmp_path, capsys):
    make_report().closing(4, evaluation(0.25), evaluation(0.75), {"rollout": 3.0, "train": 1.0})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == {
        "accuracy_before": 0.25, "accuracy_after": 0.75, "standard_error_before": 0.01, "standard_error_after": 0.01,
        "greedy_before": 0.35, "greedy_after": 0.85, "length_before": 8.0, "length_after": 8.0, "steps": 4,
        "seconds": 4.0, "algorithm": "grpo", "seconds_by_phase": {"rollout": 3.0, "train": 1.0}}
    assert "+50.0 points" in capsys.readouterr().out


def test_the_opening_tells_what_changed_and_where_it_goes_on(make_report, capsys):
    make_report(2).opening("model x", "table y", ["--config.seed: 0 before, 1 now"], 2)
    out = capsys.readouterr().out
    assert all(text in out for text in ("model x", "table y", "--config.seed: 0 before, 1 now", "after step 2 of 4"))


def run_to(report, *steps):
    for step in steps:
        report.step(step, rollout(), result(), TIMES, PROMPTS)
        report.evaluation(step, evaluation(0.5), {})


def test_a_run_that_goes_on_has_every_step_once(make_report, tmp_path):
    first = make_report()
    first.evaluation(0, evaluation(0.25), {})
    run_to(first, 1, 2, 3)
    first.close()
    run_to(make_report(2), 3, 4)
    assert steps_in(tmp_path) == [1, 2, 3, 4] and steps_in(tmp_path, "evaluation") == [0, 1, 2, 3, 4]
    files = sorted(path.name for path in (tmp_path / "rollouts").iterdir())
    assert files == [f"step_{n:06}.jsonl" for n in (1, 2, 3, 4)]


def test_a_finished_or_unsaved_run_evaluates_again(make_report, tmp_path):
    """A run killed before its first checkpoint evaluates step 0 anew; a finished one the last step."""
    make_report().evaluation(0, evaluation(0.25), {})
    again = make_report()
    again.evaluation(0, evaluation(0.5), {})
    run_to(again, 1, 2, 3, 4)
    make_report(4).evaluation(4, evaluation(0.75), {})
    lines = read_lines(tmp_path / "evaluation.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert (lines[0]["evaluation/accuracy"], lines[-1]["evaluation/accuracy"]) == (0.5, 0.75)
