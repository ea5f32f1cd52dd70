"""What the real server does and says, as far as rlzero counts on it or has to beware of it."""

import dataclasses
import http.client
import json
import threading
import urllib.error

import numpy as np
import pytest
import record
from real_server import wait_until

from rlzero.models import huggingface
from rlzero.rollout import handshake, sglang_reply
from rlzero.rollout.engine import Request, Sampling
from rlzero.rollout.stopping import stop_text

_FREE = {"temperature": 1.0, "ignore_eos": True}
_PROMPT = [8, 13, 9, 15]  # 5+6=


def in_background(server, rid, **parameters):
    """Starts a request and returns a function that gives its answer, or the error that came instead."""
    answers = []

    def ask():
        try:
            answers.append(server.sample(_PROMPT, rid=rid, **(_FREE | parameters)))
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()

    def answer():
        thread.join(60)
        return answers[0]

    return answer


def test_answers_have_the_recorded_shapes(fresh_server):
    recorded = json.loads(record.RECORDED.read_text())
    for name, found in record.observe(fresh_server):
        assert found == recorded[name], name


def score(model, ids, completion, temperature):
    params, config = model
    sample = handshake.ProbeSample(tuple(ids), tuple(completion), (), 0)
    return handshake.make_scorer(config, dtype="float32")(params, [sample], temperature)[0]


@pytest.fixture(scope="module")
def demo_model():
    return huggingface.load("demo")


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_after_the_temperature(sglang_server, demo_model, temperature):
    answer = sglang_server.sample(_PROMPT, max_new_tokens=40, temperature=temperature, ignore_eos=True)
    logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    # Two implementations in float32 differ by rounding.
    np.testing.assert_allclose(logprobs, score(demo_model, _PROMPT, answer["output_ids"], temperature), atol=1e-4)


def test_ids_that_are_not_to_be_sampled_are_not_and_have_no_probability(sglang_server, demo_model):
    params, model = demo_model[0], dataclasses.replace(demo_model[1], sampled_vocab_size=12)  # digits below 9, +, -
    answer = sglang_server.sample(_PROMPT, max_new_tokens=40, temperature=1.0, ignore_eos=True,
                                  **sglang_reply.unused_ids(model))
    logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    assert max(answer["output_ids"]) < 12
    np.testing.assert_allclose(logprobs, score((params, model), _PROMPT, answer["output_ids"], 1.0), atol=1e-4)


def test_an_end_of_sequence_is_part_of_the_completion(sglang_server):
    answer = sglang_server.sample(_PROMPT, max_new_tokens=60, temperature=0.0)
    assert answer["output_ids"][-1] == 1 and answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 1}
    assert answer["text"].endswith("}"), "of the text, but not of the ids, the server cuts it off"


@pytest.mark.parametrize("text, ended", [("19}", True), ("1", True), ("}", True), ("=1", False)])
def test_a_text_ends_a_completion_with_the_token_that_completes_it(sglang_server, text, ended):
    tokenizer = huggingface.load_tokenizer("demo")
    sampling = Sampling(60, huggingface.stop_token_ids("demo", tokenizer), temperature=0.0,
                        stop_text=stop_text(text, tokenizer, len(tokenizer)))
    request = Request("p", 0, tuple(_PROMPT), 0)
    whole = sglang_server.sample(_PROMPT, max_new_tokens=60, temperature=0.0)["output_ids"]
    answer = sglang_server.post("/generate", sglang_reply.generate_body(request, sampling, "until"))
    found = sglang_reply.completion(answer, request, sampling, rid="until", vocab_size=len(tokenizer),
                                    version_of=lambda version: 0)
    end = sampling.stop_text.end(whole)
    assert answer["output_ids"] == whole[:end], "the server ends there by itself, and keeps the token"
    assert found.completion_ids == tuple(whole[:end]) and found.finish_reason == "stop"
    assert (end is not None) == ended == (text in tokenizer.decode(whole))


def test_an_abort_ends_every_request_whose_id_begins_so(fresh_server):
    fresh_server.slow_down(0.03)
    answers = [in_background(fresh_server, rid, max_new_tokens=100) for rid in ("r1", "r11", "r2")]
    wait_until(lambda: fresh_server.running == 3, "three requests to run")
    fresh_server.post("/abort_request", {"rid": "r1"})
    one, eleven, two = (answer()["meta_info"]["finish_reason"]["type"] for answer in answers)
    assert (one, eleven, two) == ("abort", "abort", "length")


def test_during_a_pause_new_requests_wait_and_an_abort_of_them_is_lost(fresh_server):
    fresh_server.post("/pause_generation", {"mode": "retract"})
    body = {"input_ids": _PROMPT, "rid": "held", "sampling_params": _FREE | {"max_new_tokens": 5}}
    connection = http.client.HTTPConnection("127.0.0.1", int(fresh_server.url.rpartition(":")[2]))
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        fresh_server.post("/generate", body)
    assert "Duplicate request ID detected" in caught.value.read().decode(), "the first one is known to the server"
    fresh_server.post("/abort_request", {"rid": "held"})
    fresh_server.post("/continue_generation")
    answer = json.load(connection.getresponse())
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    connection.close()


def test_a_retracted_request_goes_on_under_the_new_version(fresh_server):
    fresh_server.slow_down(0.03)
    answer = in_background(fresh_server, "spanning", max_new_tokens=40)
    wait_until(lambda: fresh_server.running, "the request to run")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        fresh_server.post("/flush_cache")
    fresh_server.post("/pause_generation", {"mode": "retract"})
    fresh_server.post("/update_weights_from_disk", {"model_path": str(fresh_server.model), "weight_version": "new"})
    assert fresh_server.post("/flush_cache").startswith("Cache flushed")
    fresh_server.post("/continue_generation")
    spans = answer()["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "new"] and spans[-1]["end"] == 40


def test_a_router_passes_ids_and_refusals_on_but_not_aborts(make_server, sglang_server):
    router = make_server.router(sglang_server.url)
    meta = router.sample(_PROMPT, rid="through", max_new_tokens=3, **_FREE)["meta_info"]
    assert meta["id"] == "through" and len(meta["output_token_logprobs"]) == 3
    with pytest.raises(urllib.error.HTTPError, match="400"):
        router.sample([3] * 130, max_new_tokens=1)
    for path in ("/abort_request", "/pause_generation", "/update_weights_from_disk"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            router.post(path)
    router.kill()


def test_frozen_terminated_and_killed(make_server):
    """One after the other, since each start takes a while."""
    server = make_server()
    server.freeze()
    with pytest.raises(TimeoutError):
        server.post("/generate", {"input_ids": [3], "sampling_params": {"max_new_tokens": 1}}, seconds=0.5)
    server.thaw()
    server.freeze_scheduler()
    assert server.get("/model_info")["weight_version"] == "default"
    server.thaw()

    server.slow_down(0.02)
    answer = in_background(server, "last", max_new_tokens=100)
    wait_until(lambda: server.running, "the request to run")
    server.terminate()
    assert answer()["meta_info"]["finish_reason"] == {"type": "length", "length": 100}
    wait_until(lambda: not server.alive, "the server to end")

    again = make_server(port=int(server.url.rpartition(":")[2]), environment={"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"})
    assert again.url == server.url
    meta = [again.sample(_PROMPT, max_new_tokens=8, temperature=t, ignore_eos=True)["meta_info"] for t in (1.0, 0.5)]
    again.slow_down(0.05)
    answer = in_background(again, "lost", max_new_tokens=100)
    wait_until(lambda: again.running, "the request to run")
    again.kill_scheduler()
    assert isinstance(answer(), OSError)
    wait_until(lambda: not again.alive, "the server to end")
    params = huggingface.load("demo")
    for entries in meta:
        ids = [entry[1] for entry in entries["output_token_logprobs"]]
        np.testing.assert_allclose([entry[0] for entry in entries["output_token_logprobs"]],
                                   score(params, _PROMPT, ids, 1.0), atol=1e-4)
