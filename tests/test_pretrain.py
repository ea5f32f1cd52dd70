"""The pretraining program: as a function, as a user runs it, and the model it made for the demo."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from transformers import AutoTokenizer

from rlzero import pretrain
from rlzero.data import prepare, tasks
from rlzero.data.tasks.arithmetic_tokenizer import ID, make_tokenizer
from rlzero.evaluation import evaluate
from rlzero.models import huggingface, transformer
from rlzero.models.sharding import make_mesh, parameter_shardings
from rlzero.rollout.engine import Sampling
from rlzero.rollout.local import LocalEngine
from rlzero.rollout.scoring import make_scorer
from rlzero.training import pretrain_config
from rlzero.training.pretrain_config import PretrainConfig

_ROOT = pathlib.Path(__file__).parents[1]


def _config(**settings):
    config = PretrainConfig(steps=3, batch_size=8, sequence_length=64, evaluation_batches=1)
    config.optimizer.warmup_steps = 1
    for name, value in settings.items():
        *sections, field = name.split("__")
        section = config
        for part in sections:
            section = getattr(section, part)
        setattr(section, field, value)
    return config


def _run(config):
    params, model = huggingface.load("demo")
    lines = []
    params, summary = pretrain.pretrain(config, params, model, make_tokenizer(), report=lines.append)
    return params, summary, lines


def test_micro_batches_change_nothing():
    # With a large eps Adam does not magnify the rounding of tiny gradients.
    smooth = {"optimizer__eps": 1.0, "optimizer__learning_rate": 0.5}
    whole, whole_summary, lines = _run(_config(**smooth))
    split, split_summary, _ = _run(_config(**smooth, micro_batch_size=2))
    before, _ = huggingface.load("demo")
    assert whole_summary["tokens"] == split_summary["tokens"] > 0
    assert any("tokens/s" in line for line in lines) and any("held-out loss" in line for line in lines)
    np.testing.assert_allclose(whole_summary["loss"], split_summary["loss"], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole, split)
    assert np.abs(whole["embedding"] - before["embedding"]).max() > 1e-3


@pytest.mark.parametrize("sizes", [(1, 8, 1), (2, 2, 2)], ids=str)
def test_several_devices_change_nothing(sizes):
    smooth = {"optimizer__eps": 1.0, "optimizer__learning_rate": 0.5, "model__remat": True}
    config = _config(**smooth)
    alone, alone_summary, _ = _run(config)
    mesh = make_mesh(*sizes)
    params, model = huggingface.load("demo")
    params = jax.device_put(params, parameter_shardings(transformer.parameter_specs(model), mesh))
    together, summary = pretrain.pretrain(config, params, model, make_tokenizer(), report=lambda line: None, mesh=mesh)
    for name in ("loss", "held_out_loss"):
        np.testing.assert_allclose(summary[name], alone_summary[name], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), together, alone)
    gate = together["layers"]["gate"]
    assert gate.addressable_shards[0].data.size * sizes[1] * sizes[2] == gate.size  # sliced to the end


def test_rows_that_the_mesh_does_not_divide_are_refused():
    params, model = huggingface.load("demo")
    with pytest.raises(ValueError, match="6 rows in memory at a time cannot be shared by 8 devices"):
        pretrain.pretrain(_config(batch_size=6), params, model, make_tokenizer(), mesh=make_mesh())


def test_a_run_ends_when_its_texts_do(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"q": f"{n}+1=", "a": "2; " * 20}) + "\n" for n in range(10, 90)))
    config = _config(steps=1000, data__corpus="texts", data__files=str(path), data__field="q,a", data__epochs=2)
    _, summary, lines = _run(config)
    # Each text has 64 tokens or fewer and more than 32, so it is a row; 2 x 80 rows are 20 batches of 8, less the last,
    # which could still grow.
    assert summary["steps"] == 19 and "at most 1000 updates" in lines[0] and "step     19" in lines[-1]
    with pytest.raises(ValueError, match="too few to fill a batch"):
        _run(dataclasses.replace(config, batch_size=512))


def test_a_model_goes_on_with_texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"content": f"{n}={n}. " * 8}) + "\n" for n in range(10, 90)))
    config = _config(steps=20, data__corpus="texts", data__files=str(path), data__held_out_files=str(path),
                     data__field="content", evaluate_every_steps=10, optimizer__learning_rate=3e-3)
    pretrain_config.validate(dataclasses.replace(config, model=dataclasses.replace(config.model, path="demo")))
    _, summary, lines = _run(config)
    first, last = (float(line.split()[-1]) for line in lines if "held-out" in line)
    assert last < first
    assert summary["held_out_loss"] == pytest.approx(last, abs=1e-4)


def test_a_loss_that_is_not_finite_ends_the_run():
    params, model = huggingface.load("demo")
    params["final_norm"] = params["final_norm"] * np.nan
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        pretrain.pretrain(_config(), params, model, make_tokenizer(), report=lambda line: None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "--config.steps=0"),
        ({"optimizer__learning_rate": float("nan")}, "--config.optimizer.learning_rate=nan"),
        ({"micro_batch_size": 3}, "expected a divisor of the batch_size 8"),
        ({"sequence_length": 200}, "context of 128 tokens"),
        ({"model__path": "demo", "sequence_length": 200}, "context of 128 tokens"),
        ({"model__path": "nowhere"}, "--config.model.path=nowhere"),
        ({"model__num_kv_heads": 3}, "expected a divisor of num_heads 4"),
        ({"model__hidden_size": 90}, "for example --config.model.hidden_size=96"),
        ({"data__corpus": "texts"}, "files and the corpus texts go together"),
        ({"data__files": "x.jsonl"}, "files and the corpus texts go together"),
        ({"data__corpus": "texts", "data__files": "nowhere/*.jsonl"}, "there is no such file"),
        ({"data__epochs": 2}, "generated arithmetic has no end"),
        ({"mesh__fsdp": 3}, "--config.batch_size=8: expected a multiple of the 3 devices .*batch_size=9"),
        ({"mesh__fsdp": 4, "micro_batch_size": 2}, "--config.micro_batch_size=2: .*micro_batch_size=4"),
    ],
)
def test_a_config_that_cannot_run_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        pretrain_config.validate(_config(**settings))


def test_generated_arithmetic_wants_the_tokenizer_it_is_written_in(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["more"])
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="--config.data.corpus=texts"):
        pretrain_config.validate(_config(model__tokenizer=str(tmp_path)))


def _program(*arguments):
    command = [sys.executable, "-m", "rlzero.pretrain", "--config=configs/demo_pretrain.py", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_program_leaves_an_ordinary_model_directory(tmp_path):
    arguments = (f"--workdir={tmp_path}", "--config.steps=2", "--config.batch_size=4", "--config.evaluation_batches=1")
    done = _program(*arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 2
    params, model = huggingface.load(tmp_path / "model")
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 223_968
    assert model == huggingface.read_config("demo")
    assert AutoTokenizer.from_pretrained(tmp_path / "model").get_vocab() == ID
    again = _program(*arguments)
    assert again.returncode == 1 and "exists already" in again.stderr and "Traceback" not in again.stderr


def test_a_misspelled_setting_is_answered(tmp_path):
    done = _program(f"--workdir={tmp_path}", "--config.sequnce_length=32")
    assert done.returncode == 2 and "--config.sequence_length" in done.stderr


def test_the_demo_model_is_small_and_has_something_to_learn():
    directory = huggingface.model_directory("demo")
    assert sum(file.stat().st_size for file in directory.iterdir()) < 2_000_000
    assert huggingface.stop_token_ids(directory) == (ID["<eos>"],)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.get_vocab() == ID
    problems, _ = prepare(tasks.problems("arithmetic", "held_out", 256, seed=0), tokenizer, max_prompt_length=16)
    params, model = huggingface.load(directory)
    engine = LocalEngine(model)
    engine.update_weights(params, 0)
    score = make_scorer(tokenizer, max_completion_length=48)
    sampled, greedy = (
        evaluate(engine, problems, score, Sampling(48, (ID["<eos>"],), temperature), samples_per_problem=1, seed=0)
        for temperature in (1.0, 0.0)
    )
    # Three standard errors of 256 problems are 0.09; the model is at 0.36 and 0.35.
    assert 0.25 < sampled.accuracy < 0.45
    assert 0.25 < greedy.accuracy < 0.45
    assert sampled.truncated_fraction < 0.02 and sampled.mean_length < 25
    assert sampled.unanswered_fraction < 0.02
