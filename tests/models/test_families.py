"""Every family says what transformers says: token log-probabilities and logits of tiny random checkpoints.

The checkpoints and the expected numbers are in fixtures/, made by make_fixtures.py. The test marked `torch` makes them
anew with the transformers that is installed: `pytest -m torch`, in an environment that has torch as well.
"""

import dataclasses
import importlib.util
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from make_fixtures import FAMILIES, FIXTURES, SHARDED, expected, make_checkpoint

from rlzero import kernels
from rlzero.models import huggingface, transformer

# Float32 sums in another order differ by some 1e-6; a wrong frequency, bias or norm by at least 1e-2.
_TOLERANCE = 1e-4


def scores(params, config, tokens):
    """Log-probabilities of each next token `[B, S-1]` and the logits after the last one `[B, V]`."""
    tokens = jnp.asarray(tokens, jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = transformer.forward(params, config, tokens, positions, jnp.ones_like(tokens))
    head = transformer.unembedding(params)
    flat = hidden[:, :-1].reshape(-1, config.hidden_size)
    logprobs, _ = kernels.token_logprobs(flat, head, tokens[:, 1:].reshape(-1))
    return np.asarray(logprobs).reshape(len(tokens), -1), np.asarray(hidden[:, -1] @ head)


def fixture(name):
    return pathlib.Path(FIXTURES) / name, np.load(FIXTURES / name / "expected.npz")


@pytest.mark.parametrize("name", [*FAMILIES, *SHARDED])
def test_logprobs_are_those_of_transformers(name):
    directory, wanted = fixture(name)
    logprobs, logits = scores(*huggingface.load(directory), wanted["tokens"])
    np.testing.assert_allclose(logprobs, wanted["logprobs"], rtol=0, atol=_TOLERANCE)
    np.testing.assert_allclose(logits, wanted["last_logits"], rtol=0, atol=_TOLERANCE)


@pytest.mark.parametrize("name, change", [
    ("llama3_1", {"rope_scaling": None}), ("llama3_2", {"rope_scaling": None}), ("llama3_1", {"rope_theta": 10_000.0}),
    ("qwen2_5", {"qkv_bias": False}), ("qwen2_5_math", {"rope_theta": 1e6}), ("qwen3", {"qk_norm": False}),
    ("smollm2", {"rope_theta": 10_000.0}), ("llama2", {"norm_eps": 1e-2})])
def test_the_comparison_would_notice_what_makes_a_family(name, change):
    directory, wanted = fixture(name)
    params, config = huggingface.load(directory)
    logprobs, _ = scores(params, dataclasses.replace(config, **change), wanted["tokens"])
    assert np.max(np.abs(logprobs - wanted["logprobs"])) > 100 * _TOLERANCE


def test_the_heads_of_tied_and_untied_models():
    for name in FAMILIES:
        params, config = huggingface.load(fixture(name)[0])
        assert config.tie_embeddings == json.loads((FIXTURES / name / "config.json").read_text())["tie_word_embeddings"]
        assert ("lm_head" in params) == (not config.tie_embeddings)


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_2", "llama3_1_sharded"])
def test_a_checkpoint_of_transformers_survives_reading_and_writing(name, tmp_path):
    directory, wanted = fixture(name)
    params, config = huggingface.load(directory)
    huggingface.save(tmp_path / "model", params, config, source=directory, dtype=jnp.bfloat16)
    again, config_again = huggingface.load(tmp_path / "model")
    assert config_again == config
    for (key, got), want in zip(again.items(), params.values(), strict=True):
        if key != "layers":
            np.testing.assert_array_equal(got, want.astype(jnp.bfloat16).astype(jnp.float32))
    logprobs, _ = scores(again, config, wanted["tokens"])
    if name != "llama3_1_sharded":  # that one is stored in float32
        np.testing.assert_allclose(logprobs, wanted["logprobs"], rtol=0, atol=_TOLERANCE)


@pytest.mark.torch
@pytest.mark.parametrize("name", [*FAMILIES, *SHARDED])
def test_logprobs_are_those_of_the_transformers_that_is_installed(name, tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed; the comparison with stored numbers runs without it")
    directory = tmp_path / name
    make_checkpoint(directory, (FAMILIES | SHARDED)[name], seed=100, sharded=name in SHARDED)
    wanted = expected(directory, seed=100)
    logprobs, logits = scores(*huggingface.load(directory), wanted["tokens"])
    np.testing.assert_allclose(logprobs, wanted["logprobs"], rtol=0, atol=_TOLERANCE)
    np.testing.assert_allclose(logits, wanted["last_logits"], rtol=0, atol=_TOLERANCE)
