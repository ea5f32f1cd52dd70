"""The fake server answers in the shapes of the real one, and behaves like it where a client could notice."""

import json
import threading
import urllib.error

import numpy as np
import pytest
import record
from fake_server import FakeServer
from real_server import RealServer, wait_until

RECORDED = json.loads(record.RECORDED.read_text())
_FREE = {"temperature": 1.0, "ignore_eos": True}


@pytest.fixture
def client(fake_server):
    return RealServer(fake_server.url)


@pytest.fixture
def slow():
    """A server that takes 20 ms for a token, and a client of it."""
    with FakeServer(seconds_per_token=0.02) as server:
        yield server, RealServer(server.url)


def in_background(client, server, rid, **parameters):
    """Starts a request, waits until it runs or is held, and returns a function that gives its answer."""
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(client.sample([3, 4, 5], rid=rid, **(_FREE | parameters))), daemon=True)
    thread.start()
    wait_until(lambda: rid in server.running or rid in server.held, f"request {rid} to arrive")

    def answer():
        thread.join(30)
        return answers[0]

    return answer


def test_every_answer_has_the_shape_of_the_real_one(client):
    found = dict(record.observe(client))
    assert list(found) == list(RECORDED)
    for name, recorded in RECORDED.items():
        assert found[name] == recorded, name


def test_same_seed_same_tokens(client):
    sampled = [client.sample([3, 4], rid=f"r{i}", max_new_tokens=20, sampling_seed=seed, **_FREE)["output_ids"]
               for i, seed in enumerate((7, 7, 8))]
    assert sampled[0] == sampled[1] != sampled[2]
    assert client.sample([3, 4], rid="r", max_new_tokens=20, **_FREE)["output_ids"] == client.sample(
        [3, 4], rid="r", max_new_tokens=20, **_FREE)["output_ids"]


@pytest.mark.parametrize("original", [False, True])
def test_logprobs_are_those_of_the_model_after_the_temperature_or_before(original):
    logits = np.random.default_rng(0).normal(size=24)
    with FakeServer(logits=lambda weights, ids: logits, original_logprobs=original) as server:
        meta = RealServer(server.url).sample([3], max_new_tokens=50, temperature=0.5, ignore_eos=True)["meta_info"]
    scaled = logits if original else logits / 0.5
    expected = scaled - np.log(np.exp(scaled).sum())
    for logprob, token, _ in meta["output_token_logprobs"]:
        assert logprob == pytest.approx(expected[token], abs=1e-12)


def test_a_stop_token_ends_a_completion_and_is_part_of_it(client):
    answer = client.sample([3], rid="a", max_new_tokens=100, temperature=1.0)
    assert answer["output_ids"][-1] == 1 and answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": 1}
    assert len(answer["output_ids"]) == len(answer["meta_info"]["output_token_logprobs"])
    assert 1 not in answer["output_ids"][:-1]


def test_an_abort_ends_every_request_whose_id_begins_so(slow):
    server, client = slow
    one, eleven, two = (in_background(client, server, rid, max_new_tokens=60) for rid in ("r1", "r11", "r2"))
    client.post("/abort_request", {"rid": "r1"})
    for answer in (one(), eleven()):
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) < 60
    assert two()["meta_info"]["finish_reason"] == {"type": "length", "length": 60}


def test_an_abort_in_the_queue_is_answered_without_tokens():
    with FakeServer(seconds_per_token=0.02, max_running=1) as server:
        client = RealServer(server.url)
        first = in_background(client, server, "first", max_new_tokens=100)
        second = in_background(client, server, "second", max_new_tokens=100)
        client.post("/abort_request", {"rid": "second"})
        meta = second()["meta_info"]
        assert meta["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
        assert meta["completion_tokens"] == 0 and "cached_tokens" not in meta
        wait_until(lambda: server.progress("first") > 0, "a token")
        client.post("/abort_request", {"abort_all": True})
        assert 0 < first()["meta_info"]["completion_tokens"] < 100


def test_a_request_that_spans_an_update_names_both_versions(slow, tmp_path):
    server, client = slow
    answer = in_background(client, server, "spanning", max_new_tokens=20)
    wait_until(lambda: server.progress("spanning") > 2, "some tokens")
    client.post("/pause_generation", {"mode": "retract"})
    client.post("/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": "new"})
    client.post("/continue_generation")
    spans = answer()["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "new"]
    assert spans[0]["start"] == 0 < spans[0]["end"] == spans[1]["start"] < spans[1]["end"] == 20


def test_during_a_pause_new_requests_wait_and_an_abort_of_them_is_lost(slow):
    server, client = slow
    client.post("/pause_generation", {"mode": "retract"})
    answer = in_background(client, server, "held", max_new_tokens=5)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        client.get("/health_generate")
    client.post("/abort_request", {"rid": "held"})
    client.post("/continue_generation")
    assert answer()["meta_info"]["finish_reason"] == {"type": "length", "length": 5}


def test_a_cache_is_flushed_only_when_nothing_runs(slow):
    server, client = slow
    answer = in_background(client, server, "running", max_new_tokens=60)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.post("/flush_cache")
    client.post("/pause_generation", {"mode": "in_place"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.post("/flush_cache")
    client.post("/pause_generation", {"mode": "retract"})
    assert client.post("/flush_cache").startswith("Cache flushed")
    client.post("/continue_generation")
    client.post("/abort_request", {"abort_all": True})
    answer()


def test_a_pause_with_abort_ends_what_runs(slow):
    server, client = slow
    answer = in_background(client, server, "running", max_new_tokens=60)
    client.post("/pause_generation", {"mode": "abort"})
    assert answer()["meta_info"]["finish_reason"]["type"] == "abort"
    assert server.running == []


def test_without_a_pause_an_update_waits_for_what_runs(slow, tmp_path):
    server, client = slow
    answer = in_background(client, server, "running", max_new_tokens=10)
    client.post("/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": "new"})
    meta = answer()["meta_info"]
    assert [span["version"] for span in meta["weight_versions"]] == ["default"]
    assert client.get("/model_info")["weight_version"] == "new"


def test_a_cached_prompt_is_reported_until_the_flush(client):
    counts = []
    for ids in ([3, 4, 5, 6], [3, 4, 5, 6], [3, 4, 7]):
        counts.append(client.sample(ids, max_new_tokens=2, **_FREE)["meta_info"]["cached_tokens"])
    client.post("/flush_cache")
    counts.append(client.sample([3, 4, 5, 6], max_new_tokens=2, **_FREE)["meta_info"]["cached_tokens"])
    assert counts == [0, 3, 2, 0]


def test_weights_are_what_load_makes_of_an_update_and_decide_the_logits(tmp_path):
    def load(path, body):
        if body["weight_version"] == "bad":
            raise ValueError("no such tensor")
        return 5

    with FakeServer(weights=4, load=load, logits=lambda weights, ids: np.eye(24)[weights] * 9) as server:
        client = RealServer(server.url)
        greedy = {"temperature": 0.0, "max_new_tokens": 2}
        assert client.sample([3], **greedy)["output_ids"] == [4, 4]
        before = client.post("/weights_checker", {"action": "checksum"})["per_engine_checksum"]
        with pytest.raises(urllib.error.HTTPError, match="400"):
            client.post("/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": "bad"})
        assert client.post("/weights_checker", {"action": "checksum"})["per_engine_checksum"] == before
        client.post("/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": "good"})
        assert client.sample([3], **greedy)["output_ids"] == [5, 5]
        assert client.post("/weights_checker", {"action": "checksum"})["per_engine_checksum"] != before


@pytest.mark.parametrize("ids", [[24], [-1], []])
def test_an_id_outside_the_vocabulary_and_an_empty_prompt_kill_it(fake_server, client, ids):
    with pytest.raises(OSError):
        client.post("/generate", {"input_ids": [ids], "sampling_params": {"max_new_tokens": 2}})
    wait_until(lambda: not listens(client), "the port to be closed")
    fake_server.restart()
    assert client.get("/model_info")["weight_version"] == "default"


def listens(client):
    try:
        client.get("/model_info", seconds=5)
    except OSError:
        return False
    return True
