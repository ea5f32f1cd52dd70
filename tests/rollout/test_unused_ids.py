"""A vocabulary padded beyond its tokenizer: with the ids left out, engine, trainer and servers have one distribution."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from rlzero import algorithms
from rlzero.models import huggingface, transformer
from rlzero.rollout import handshake, sglang_reply
from rlzero.rollout.engine import Request, Sampling
from rlzero.rollout.local import LocalEngine
from rlzero.training import steps
from rlzero.training.batch import Rows
from rlzero.training.steps import Execution

quick_compilation = toys.quick_compilation
_SAMPLED = 16  # of 24
_MODEL = dataclasses.replace(toys.LLAMA, sampled_vocab_size=_SAMPLED)
_SAMPLING = Sampling(6, stop_ids=(1,))
_REQUESTS = [Request(f"p{p}", i, (3, 4, 5 + p), 100 * p + i) for p in range(4) for i in range(16)]


@pytest.fixture(scope="module")
def params():
    """Weights that like an unused id best, as an untrained padding row may."""
    params = toys.make_params()
    params["embedding"][20] = 3 * params["embedding"][7]
    return params


def _sampled(model, params):
    engine = LocalEngine(model)
    engine.update_weights(params, 0)
    return list(engine.generate(_REQUESTS, _SAMPLING))


def _rows(completions):
    """Rows as the learner scores them, one completion each, with their sampled log-probabilities."""
    width = 10
    rows = {name: np.zeros((len(completions), width), kind) for name, kind in (
        ("tokens", np.int32), ("targets", np.int32), ("positions", np.int32), ("segments", np.int32),
        ("trained", bool), ("rollout_logprobs", np.float32))}
    for row, completion in enumerate(completions):
        ids = [*completion.request.prompt_ids, *completion.completion_ids]
        start, end = len(completion.request.prompt_ids) - 1, len(ids) - 1
        rows["tokens"][row, :end], rows["targets"][row, :end] = ids[:-1], ids[1:]
        rows["positions"][row, :end], rows["segments"][row, :end] = np.arange(end), 1
        rows["trained"][row, start:end] = True
        rows["rollout_logprobs"][row, start:end] = completion.rollout_logprobs
    blank = np.zeros((len(completions), width), np.float32)
    names = [field.name for field in dataclasses.fields(Rows)]
    return Rows(**{name: rows.get(name, blank) for name in names})


def test_the_engine_samples_them_only_without_the_mask(params):
    assert any(max(c.completion_ids) >= _SAMPLED for c in _sampled(toys.LLAMA, params)), "else this tests nothing"
    assert all(max(c.completion_ids) < _SAMPLED for c in _sampled(_MODEL, params))


def test_the_trainer_scores_what_was_sampled_with_the_probability_it_was_sampled_with(params):
    rows = _rows(_sampled(_MODEL, params))
    scored = np.asarray(steps.score(params, rows, execution=Execution(_MODEL)))
    np.testing.assert_allclose(scored[rows.trained], rows.rollout_logprobs[rows.trained], atol=3e-5)  # float32
    whole = np.asarray(steps.score(params, rows, execution=Execution(toys.LLAMA)))
    assert np.abs(whole - scored)[rows.trained].max() > 0.1, "the unused ids had probability"


def test_the_policy_loss_has_no_gradient_in_their_columns_of_an_untied_head(params):
    model = dataclasses.replace(_MODEL, tie_embeddings=False)
    untied = params | {"lm_head": params["embedding"].T.copy()}
    rows = _rows(_sampled(_MODEL, params))
    rows = dataclasses.replace(rows, old_logprobs=rows.rollout_logprobs,
                               advantages=np.where(rows.trained, 1.0, 0.0).astype(np.float32),
                               weights=np.where(rows.trained, 0.1, 0.0).astype(np.float32))
    zero = jax.tree.map(jnp.zeros_like, untied)
    gradient, _, _ = steps.accumulate_policy(untied, zero, rows, execution=Execution(model),
                                             algorithm=algorithms.get("dr_grpo"))
    columns = np.abs(np.asarray(gradient["lm_head"])).max(axis=0)
    assert (columns[_SAMPLED:] == 0).all() and (columns[:_SAMPLED] > 0).all()


def test_probes_are_scored_with_the_mask(params):
    sample = handshake.ProbeSample((3, 4, 5), (6, 7), (0.0, 0.0), 0)
    masked, whole = (handshake.make_scorer(model, dtype="float32")(params, [sample], 1.0)[0]
                     for model in (_MODEL, toys.LLAMA))
    assert (masked > whole + 0.01).all()


def test_servers_are_told_and_answers_with_such_ids_are_refused():
    others = sglang_reply.unused_ids(_MODEL)
    body = sglang_reply.generate_body(_REQUESTS[0], _SAMPLING, "r", others)
    assert body["sampling_params"]["logit_bias"] == {str(token): -1e4 for token in range(_SAMPLED, 24)}
    assert "logit_bias" not in sglang_reply.generate_body(_REQUESTS[0], _SAMPLING, "r")["sampling_params"]
    assert sglang_reply.unused_ids(toys.LLAMA) == {}


def test_the_tokenizer_says_which_ids_are_used():
    tokenizer = huggingface.load_tokenizer("demo")
    model = huggingface.read_config("demo")
    assert huggingface.without_unused_ids(model, tokenizer) == model, "all of the demo's ids are used"
    padded = dataclasses.replace(model, vocab_size=model.vocab_size + 8)
    assert huggingface.without_unused_ids(padded, tokenizer).sampled_vocab_size == len(tokenizer) == model.vocab_size


def test_the_whole_head_is_the_default():
    params = toys.make_params()
    np.testing.assert_array_equal(transformer.sampling_head(params, toys.LLAMA), transformer.unembedding(params))
