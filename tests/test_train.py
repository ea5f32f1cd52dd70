"""The training and evaluation programs as a user runs them: in a process of their own, stopped, resumed, misspelled."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from rlzero.models import huggingface
from rlzero.train import make_run
from rlzero.training.checkpoints import Checkpoints
from rlzero.training.config import Config

_ROOT = pathlib.Path(__file__).parents[1]
_SMALL = ("--config.prompts_per_step=8", "--config.group_size=4", "--config.learner.mini_batches=2",
          "--config.evaluation.problems=8", "--config.evaluation.samples_per_problem=2",
          "--config.rollout.max_completion_length=32")


def _command(module, *arguments):
    return [sys.executable, "-m", module, *map(str, arguments)]


def _environment():
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}


def _run(module, *arguments, code=0):
    done = subprocess.run(_command(module, *arguments), cwd=_ROOT, env=_environment(), capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def _train(workdir, algorithm, *arguments, code=0):
    return _run("rlzero.train", f"--config=configs/demo.py:{algorithm}", f"--workdir={workdir}", *_SMALL, *arguments,
                code=code)


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Four steps of DAPO in one go."""
    workdir = tmp_path_factory.mktemp("straight")
    return workdir, _train(workdir, "dapo", "--config.steps=4", "--config.checkpoint.every_steps=2")


def test_a_run_leaves_everything_it_promises(straight):
    workdir, done = straight
    summary = json.loads((workdir / "summary.json").read_text())
    assert {"accuracy_before", "accuracy_after", "greedy_before", "greedy_after", "steps", "seconds"} <= set(summary)
    assert summary["steps"] == 4 and 0 < summary["seconds"]
    metrics = _lines(workdir / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    for name in ("policy/entropy", "policy/gradient_norm", "policy/clip_fraction_high", "reward/accuracy",
                 "length/correct_mean", "rollout/truncated_fraction", "group/mixed_fraction", "time/rollout_seconds"):
        assert any(name in line for line in metrics), name
    for line in metrics:
        fates = {fate: line[f"rollout/{fate}"]
                 for fate in ("generated", "carried_in", "trained", "filtered", "failed", "abandoned", "carried_out")}
        assert fates["generated"] + fates["carried_in"] == (
            fates["trained"] + fates["filtered"] + fates["failed"] + fates["abandoned"] + fates["carried_out"])
        assert len(_lines(workdir / f"rollouts/step_{line['step']:06d}.jsonl")) == fates["generated"]
    assert list(workdir.glob("tensorboard/**/events*"))
    assert "prompts per step" in done.stdout and "step 4/4" in done.stdout and "held-out accuracy" in done.stdout
    assert "Traceback" not in done.stderr


def test_every_held_out_completion_is_on_disk_and_can_be_looked_at(straight):
    workdir, _ = straight
    for step in (0, 4):
        samples = _lines(workdir / "evaluations" / f"step_{step:06d}.jsonl")
        assert [sum(line["set"] == name for line in samples) for name in ("sampled", "greedy")] == [16, 8]
        accuracy = np.mean([line["correct"] for line in samples if line["set"] == "sampled"])
        values = {line["step"]: line for line in _lines(workdir / "evaluation.jsonl")}[step]
        assert accuracy == pytest.approx(values["evaluation/accuracy"])
    wrong = _run("rlzero.samples", f"--workdir={workdir}", "--evaluation", "--only=wrong", "--count=2").stdout
    assert "evaluations/step_000004.jsonl: 24 completions" in wrong and wrong.count(">>>") == 2
    assert wrong.count("    wrong; answer") == 2
    trained = _run("rlzero.samples", f"--workdir={workdir}", "--step=1", "--count=1000").stdout
    assert trained.count(">>>") == len(_lines(workdir / "rollouts" / "step_000001.jsonl"))
    assert "advantage" in trained and "reward correctness" in trained
    assert "there are 1 to 4" in _run("rlzero.samples", f"--workdir={workdir}", "--step=9", code=1).stderr
    assert "one of the two" in _run("rlzero.samples", code=1).stderr


def test_a_resumed_run_continues_as_if_it_had_never_stopped(straight, tmp_path):
    _train(tmp_path, "dapo", "--config.steps=2")
    done = _train(tmp_path, "dapo", "--config.steps=4")
    assert "going on after step 2 of 4" in done.stdout
    whole, resumed = (_lines(path / "metrics.jsonl") for path in (straight[0], tmp_path))
    assert [line["step"] for line in resumed] == [1, 2, 3, 4]
    for name in ("policy/loss", "policy/gradient_norm", "reward/mean", "length/mean"):
        expected = [line.get(name) for line in whole]
        assert [line.get(name) for line in resumed] == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    for step in (3, 4):
        paths = [path / f"rollouts/step_{step:06d}.jsonl" for path in (straight[0], tmp_path)]
        ids = [[line["completion_ids"] for line in _lines(path)] for path in paths]
        assert ids[0] == ids[1]


def test_a_finished_run_has_nothing_left_to_do(straight):
    workdir, _ = straight
    before = (workdir / "metrics.jsonl").read_text()
    _train(workdir, "dapo", "--config.steps=4")
    assert (workdir / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "dr_grpo", "rloo"])
def test_every_algorithm_runs(algorithm, tmp_path):
    _train(tmp_path, algorithm, "--config.steps=2", "--config.critic.policy_frozen_steps=1")
    last = _lines(tmp_path / "metrics.jsonl")[-1]
    assert np.isfinite(last["policy/loss"]) and last["policy/gradient_norm"] > 0
    assert ("critic/loss" in last) == (algorithm == "ppo")
    assert ("policy/kl_ref" in last) == (algorithm in ("ppo", "grpo"))


def test_a_run_without_a_single_update_does_not_end_well(tmp_path):
    """A budget of one token leaves room for no answer, so no group has contrast."""
    done = _run("rlzero.train", "--config=configs/demo.py:dapo", f"--workdir={tmp_path}", *_SMALL[:-1],
                "--config.steps=1", "--config.rollout.max_completion_length=1",
                "--config.algorithm.overlong_fraction=0", code=7)
    assert "no update was made in 1 steps" in done.stderr and (tmp_path / "summary.json").exists()


def test_ctrl_c_leaves_a_readable_checkpoint_and_the_run_goes_on(tmp_path):
    arguments = ("--config=configs/demo.py:dr_grpo", f"--workdir={tmp_path}", *_SMALL)
    process = subprocess.Popen(_command("rlzero.train", *arguments, "--config.steps=500"), cwd=_ROOT, text=True,
                               env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in process.stdout:
        if line.startswith("step   1/500"):
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT, output + errors
    assert "stopping" in errors and "Traceback" not in errors
    params, _ = huggingface.load("demo")
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        stopped_at = checkpoints.restore({"params": params}, partial=True).step
    assert stopped_at >= 1
    done = _run("rlzero.train", *arguments, f"--config.steps={stopped_at + 1}")
    assert f"going on after step {stopped_at} of {stopped_at + 1}" in done.stdout


def test_evaluation_of_a_checkpoint_and_of_a_model(straight, tmp_path):
    workdir, _ = straight
    done = _run("rlzero.evaluate", f"--workdir={workdir}", "--problems=10", "--samples=4",
                f"--output={tmp_path / 'samples.jsonl'}")
    assert "checkpoint of step 4" in done.stdout and "pass@4" in done.stdout
    assert "stop tokens 1 '<eos>'\n" in done.stdout
    samples = _lines(tmp_path / "samples.jsonl")
    assert len(samples) == 40 and len({line["prompt_id"] for line in samples}) == 10
    accuracy = np.mean([line["correct"] for line in samples])
    assert f"{accuracy:.1%}" in done.stdout
    done = _run("rlzero.evaluate", "--model=demo", "--problems=10", "--samples=1", "--temperature=0")
    assert "avg@1" in done.stdout


@pytest.mark.parametrize("arguments, words", [
    (("--config=configs/demo.py", "--config.gruop_size=4"), "--config.group_size"),
    (("--config=configs/demo.py", "lr=1e-5"), "--config.optimizer.learning_rate=1e-5"),
    (("--config=configs/demo.py:dpao",), "dapo"),
    (("--config=configs/demo.py", "--config.optimizer.learning_rate=nan"), "learning_rate"),
    (("--config=configs/demo.py", "--config.model.path=/no/such/model"), "/no/such/model"),
])
def test_mistakes_on_the_command_line_are_answered_in_a_line(arguments, words, tmp_path):
    done = _run("rlzero.train", *arguments, f"--workdir={tmp_path}", code=2)
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


_FULL_DISK = """
import errno, pathlib, runpy, sys
write = pathlib.Path.write_text
def write_text(path, *args, **options):
    if "rollouts" in path.parts:
        raise OSError(errno.ENOSPC, "No space left on device")
    return write(path, *args, **options)
pathlib.Path.write_text = write_text
sys.argv[0] = "rlzero.train"
runpy.run_module("rlzero.train", run_name="__main__", alter_sys=True)
"""


def test_a_full_disk_ends_a_run_with_a_sentence_and_the_same_command_goes_on(tmp_path):
    arguments = ["--config=configs/demo.py:grpo", f"--workdir={tmp_path}", "--config.steps=2",
                 "--config.checkpoint.every_steps=1", *_SMALL]
    done = subprocess.run([sys.executable, "-c", _FULL_DISK, *arguments], cwd=_ROOT, env=_environment(),
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert re.search(r"error: .*No space left on device: '.*step_000001.jsonl'. Make room; the same command", done.stderr)
    assert _run("rlzero.train", *arguments).stdout.count("\nstep ") == 2


def test_evaluate_says_what_it_needs(tmp_path):
    assert "--workdir" in _run("rlzero.evaluate", code=1).stderr
    assert "config.json" in _run("rlzero.evaluate", f"--workdir={tmp_path}", code=1).stderr
    assert "no model at" in _run("rlzero.evaluate", f"--model={tmp_path}", code=1).stderr
    done = _run("rlzero.evaluate", "--model=demo", f"--output={tmp_path}", code=1)
    assert "is a directory; name a file in it" in done.stderr and not done.stdout  # before any sample


def test_a_text_ends_responses_in_training_and_evaluation_alike(tmp_path):
    config = Config()
    config.rollout.stop_text, config.evaluation.problems = "; ", 4
    run = make_run(config, tmp_path)
    assert run.sampling.stop_ids == (run.tokenizer.eos_token_id,) and run.sampling.stop_text.texts == ("; ",)
    assert "stop tokens 1 '<eos>', and the text '; '" in run.description
    done = _run("rlzero.evaluate", "--model=demo", "--problems=8", "--samples=1", "--stop_text=; ")
    # The demo writes its first step, `7+8=15; `, before it can box an answer; only guesses come without one.
    assert float(re.search(r"^ +arithmetic .* ([\d.]+)%$", done.stdout, re.MULTILINE)[1]) > 50
