"""What a run prints: aligned lines, and warnings for runs that are known to be bad and for no others."""

import pytest

from rlzero.training import diagnosis, display

HEALTHY = {"reward/mean": 0.5, "reward/accuracy": 0.5, "length/mean": 23.0, "rollout/truncated_fraction": 0.02,
           "group/mixed_fraction": 0.7, "group/identical_fraction": 0.1, "reward/unscored_fraction": 0.0,
           "policy/entropy": 0.2, "policy/clip_fraction_low": 0.01, "policy/clip_fraction_high": 0.02,
           "policy/gradient_norm": 0.8, "mismatch/mean_abs_logprob": 1e-6, "time/step_seconds": 3.0}


def test_lines_of_a_run_are_aligned():
    lines = [display.step_line(1, 60, HEALTHY), display.step_line(60, 60, HEALTHY | {"reward/mean": -0.5}),
             display.step_line(2, 60, {})]
    assert lines[0] == ("step  1/60  reward  0.500  right 0.500  tokens   23.0  cut 0.02  mixed 0.70  entropy 0.200  "
                        "clip 0.030  grad  0.800  sec   3.0")
    assert len({len(line) for line in lines}) == 1
    assert "reward      -" in lines[2]


def test_trouble_is_on_the_line_only_when_there_is_some():
    assert "failed" not in display.step_line(1, 9, {"rollout/failed": 0.0})
    assert display.step_line(1, 9, {"rollout/failed": 3.0}).endswith("  failed 3")


def test_closing_table():
    summary = {"accuracy_before": 0.26, "accuracy_after": 0.68, "greedy_before": 0.43, "greedy_after": 0.8}
    words = [line.split() for line in display.closing_table(summary, {"rollout": 75.0, "update": 25.0}).splitlines()]
    assert ["sampled", "26.0%", "68.0%", "+42.0", "points"] in words
    assert ["greedy", "43.0%", "80.0%", "+37.0", "points"] in words
    assert ["rollout", "75.0", "75%"] in words
    assert ["together", "100.0"] in words


def test_a_healthy_run_gives_no_warning():
    history = [HEALTHY | {"policy/entropy": 0.36 * 0.975**step, "reward/accuracy": 0.26 + 0.007 * step}
               for step in range(60)]
    assert all(not diagnosis.diagnose(history[:n]) for n in range(61))


@pytest.mark.parametrize("kind, steps", [
    ("zero_gradient", [{"policy/gradient_norm": 0.0}]),
    ("no_contrast", [{"group/mixed_fraction": 0.0}] * 3),
    ("identical_groups", [{"group/identical_fraction": 0.9}] * 3),
    ("entropy", [{"policy/entropy": 0.001}] * 3),
    ("clipping", [{"policy/clip_fraction_low": 0.3, "policy/clip_fraction_high": 0.2}] * 3),
    ("truncation", [{"rollout/truncated_fraction": 0.8}] * 3),
    ("unscored", [{"reward/unscored_fraction": 0.2}] * 3),
    ("mismatch", [{"mismatch/mean_abs_logprob": 0.5}] * 3),
    ("collapse", [{"reward/accuracy": 0.1}] * 3),
])
def test_bad_runs_are_told_once(kind, steps):
    history = [HEALTHY] * 5 + [HEALTHY | step for step in steps]
    assert list(diagnosis.diagnose(history)) == [kind]
    seen = set()
    assert len(diagnosis.new_warnings(history, seen)) == 1
    assert diagnosis.new_warnings(history + history[-1:], seen) == []


def test_a_solved_task_is_no_trouble():
    solved = HEALTHY | {"reward/accuracy": 1.0, "policy/entropy": 0.001, "group/mixed_fraction": 0.0,
                        "group/identical_fraction": 1.0}
    assert diagnosis.diagnose([solved] * 5) == {}
