"""Export as a user does it: a run's newest checkpoint becomes a model directory that gives the same logits."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from rlzero.models import huggingface, transformer
from rlzero.training.checkpoints import Checkpoints
from rlzero.training.config import Config, save_resolved

_ROOT = pathlib.Path(__file__).parents[1]


def export(*arguments, code=0):
    done = subprocess.run([sys.executable, "-m", "rlzero.export", *map(str, arguments)], cwd=_ROOT, text=True,
                          env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def logits(params, config):
    tokens = jnp.arange(2, 22).reshape(2, 10)
    positions = jnp.broadcast_to(jnp.arange(10), (2, 10))
    hidden, _ = transformer.forward(params, config, tokens, positions, jnp.ones_like(tokens))
    return np.asarray(hidden @ transformer.unembedding(params))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A workdir with two checkpoints of the demo model, the newer one changed in every parameter."""
    workdir = tmp_path_factory.mktemp("run")
    save_resolved(Config(), workdir)
    params, _ = huggingface.load("demo")
    with Checkpoints(workdir) as checkpoints:
        checkpoints.save(1, {"params": params}, {})
        params = jax.tree.map(lambda leaf: leaf * 1.01 + 0.001, params)
        checkpoints.save(2, {"params": params, "policy": {"moment": jnp.ones(3)}}, {})
    return workdir, params


def test_the_exported_model_gives_the_checkpoints_logits(run, tmp_path):
    workdir, params = run
    done = export(f"--workdir={workdir}", f"--output={tmp_path / 'model'}")
    assert "after step 2" in done.stdout and "float32" in done.stdout and not done.stderr
    loaded, config = huggingface.load(tmp_path / "model")
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    np.testing.assert_array_equal(logits(loaded, config), logits(params, config))
    assert np.abs(logits(loaded, config) - logits(*huggingface.load("demo"))).max() > 0.01


def test_what_the_directory_holds_is_what_the_first_model_held(run, tmp_path):
    workdir, _ = run
    export(f"--workdir={workdir}", f"--output={tmp_path / 'model'}", "--dtype=bfloat16")
    demo, model = huggingface.DEMO_MODEL, tmp_path / "model"
    assert {path.name for path in model.iterdir()} == {path.name for path in demo.iterdir()}
    before, after = load_file(demo / "model.safetensors"), load_file(model / "model.safetensors")
    assert {name: tensor.shape for name, tensor in before.items()} == {n: tensor.shape for n, tensor in after.items()}
    assert {tensor.dtype for tensor in after.values()} == {np.dtype(jnp.bfloat16)}
    raw = json.loads((model / "config.json").read_text())
    assert raw["dtype"] == "bfloat16" and raw["tie_word_embeddings"] is True and "lm_head.weight" not in after
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (model / name).read_bytes() == (demo / name).read_bytes()


def test_a_changed_tied_embedding_changes_the_exported_logits(run, tmp_path):
    workdir, params = run
    changed = params | {"embedding": params["embedding"].at[7].add(1.0)}
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, {"params": changed}, {})
    (tmp_path / "run" / "config.json").write_bytes((workdir / "config.json").read_bytes())
    export(f"--workdir={tmp_path / 'run'}", f"--output={tmp_path / 'model'}")
    difference = logits(*huggingface.load(tmp_path / "model")) - logits(params, huggingface.read_config("demo"))
    assert np.abs(difference[..., 7]).min() > 0.1


@pytest.mark.parametrize("arguments, message", [
    (("--workdir={run}",), "error: --workdir and --output are needed"),
    (("--workdir={run}", "--output={tmp}/model", "extra"), "error: extra: this word belongs to no flag"),
    (("--workdir={tmp}/nothing", "--output={tmp}/model"), "error: {tmp}/nothing is no run"),
    (("--workdir={tmp}/empty", "--output={tmp}/model"), "error: {tmp}/empty holds no complete checkpoint"),
    (("--workdir={run}", "--output={tmp}"), "error: {tmp} exists already"),
])
def test_errors_are_one_line(run, tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_bytes((run[0] / "config.json").read_bytes())
    places = {"run": run[0], "tmp": tmp_path}
    done = export(*(argument.format(**places) for argument in arguments), code=1)
    assert done.stderr.startswith(message.format(**places)) and done.stderr.count("\n") == 1
    assert not (tmp_path / "model").exists()
