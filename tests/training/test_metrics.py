"""Metrics: exact however they were cut up; one line a step in the files, also after a resume."""

import json
import struct

import jax.numpy as jnp
import pytest
from tensorboardX.proto import event_pb2

from rlzero.training import metrics


def record(index, **fields):
    return {"prompt_id": "7+8", "sample_index": index, "text": "15", "completion_tokens": 3,
            "rewards": {"correct": 1.0}, "reward": 1.0, "finish_reason": "stop", "advantage": None, "policy_version": 4} | fields


def events(workdir):
    """(step, name, value) of the scalars in the event files, in the order of writing."""
    found = []
    for path in sorted((workdir / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            length, = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12:12 + length])
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            data = data[16 + length:]
    return found


def test_averages_do_not_depend_on_how_they_were_cut_up():
    parts = [{"a/x": (1.0, 1.0)}, {"a/x": (jnp.float32(8.0), jnp.float32(4.0)), "a/y": (2.0, 0.0)}]
    whole = metrics.merge(*parts)
    assert whole == {"a/x": (9.0, 5.0), "a/y": (2.0, 0.0)}
    assert metrics.merge(*reversed(parts)) == whole
    assert metrics.finalize(whole) == {"a/x": 1.8}  # the mean over five tokens, not the mean of the means 1 and 2


def test_sums_are_float64_on_the_host():
    accumulator = metrics.Accumulator()
    for _ in range(1000):
        accumulator.merge({"a/x": (jnp.float32(16777216.0), 1)})
        accumulator.add("a/x", 1.0, 0)
    assert accumulator.totals["a/x"] == (16777217000.0, 1000.0)


def test_metrics_reach_both_files(tmp_path):
    with metrics.MetricsWriter(tmp_path) as writer:
        writer.write(1, {"reward/mean": 0.5, "policy/kl": float("nan")})
        assert metrics.read_lines(tmp_path / "metrics.jsonl") == [{"step": 1, "reward/mean": 0.5, "policy/kl": None}]
        writer.write(2, {"reward/mean": 0.75})
        with pytest.raises(ValueError, match="holds step 2 already"):
            writer.write(2, {"reward/mean": 0.75})
        writer.write_text(2, "transcripts", "7+8=15")
    scalars = [event for event in events(tmp_path) if event[1] == "reward/mean"]
    assert scalars == [(1, "reward/mean", 0.5), (2, "reward/mean", 0.75)]


def test_resume_cuts_the_steps_after_it(tmp_path):
    with metrics.MetricsWriter(tmp_path) as writer:
        for step in range(6):
            writer.write(step, {"a/x": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "a/')  # killed while writing
    with metrics.MetricsWriter(tmp_path, resume_step=3) as writer:
        for step in (4, 5):
            writer.write(step, {"a/x": 10 * step})
    lines = metrics.read_lines(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["a/x"]) for line in lines] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 40), (5, 50)]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match="metrics.jsonl, line 2 is not JSON"):
        metrics.MetricsWriter(tmp_path, resume_step=3)


def test_rollouts_one_line_a_completion(tmp_path):
    writer = metrics.RolloutWriter(tmp_path)
    path = writer.write(12, [record(0, text="7+8=15\n\u2713"), record(1, advantage=float("inf"))])
    assert path == tmp_path / "rollouts" / "step_000012.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["text"] == "7+8=15\n\u2713"
    assert json.loads(lines[1])["advantage"] is None
    assert [path.name for path in path.parent.iterdir()] == ["step_000012.jsonl"]
    with pytest.raises(ValueError, match="lacks advantage, policy_version"):
        writer.write(13, [{name: None for name in metrics.ROLLOUT_FIELDS[:-2]}])
    assert not (tmp_path / "rollouts" / "step_000013.jsonl").exists()


def test_resume_removes_the_rollouts_after_it(tmp_path):
    writer = metrics.RolloutWriter(tmp_path)
    for step in (1, 2, 3):
        writer.write(step, [record(0)])
    metrics.RolloutWriter(tmp_path, resume_step=2)
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == ["step_000001.jsonl", "step_000002.jsonl"]
