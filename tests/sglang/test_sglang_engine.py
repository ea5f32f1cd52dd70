"""The engine against every fault that a test can inject: nothing is lost, nothing is trained twice, all is counted."""

import dataclasses
import threading
import time

import faults
import pytest
from engines import MODEL, PARAMS, PATIENCE, PROBES, SAMPLING, counts, engine, fake_demo, requests, scaled
from fault_proxy import FaultProxy

from rlzero.rollout.engine import Request, RolloutError, Sampling, Span
from rlzero.rollout.handshake import HandshakeError

UPDATE = "/update_weights_from_disk"
IMPATIENT = dataclasses.replace(PATIENCE, stall_seconds=1.0, outage_seconds=3.0)


@pytest.fixture(scope="module")
def served():
    with fake_demo() as server:
        yield server


@pytest.fixture
def proxy(served):
    with FaultProxy(served.url) as proxy:
        yield proxy


@pytest.fixture
def running(proxy, tmp_path):
    """An engine behind a proxy without faults yet."""
    with engine(proxy.url, directory=tmp_path) as made:
        made.metrics()
        yield made


def assert_complete(completions, asked, *, version=0):
    """Each request has one completion, of the weights it should have."""
    assert sorted((c.request.prompt_id, c.request.sample_index) for c in completions) == sorted(
        (r.prompt_id, r.sample_index) for r in asked)
    for c in completions:
        assert c.finish_reason in ("stop", "length") and c.completion_ids and c.policy_version == version


# Without faults.


def test_completions_are_those_of_the_server_and_an_update_goes_step_by_step(proxy, tmp_path):
    asked = requests()
    with engine(proxy.url, directory=tmp_path) as made:
        assert_complete(list(made.generate(asked, SAMPLING)), asked)
        first = len(proxy.seen)
        made.update_weights(scaled(1.1), 1)
        paths = [seen.path for seen in proxy.seen[first:]]
        assert_complete(list(made.generate(asked, SAMPLING)), asked, version=1)
        metrics = made.metrics()
    assert paths == ["/model_info", "/server_info", "/pause_generation", UPDATE, "/flush_cache", "/model_info",
                     "/weights_checker", "/continue_generation", *["/generate"] * len(PROBES)]
    assert metrics["sync/seconds"][0] > 0 and metrics["sync/megabytes"][0] > 0.8
    assert metrics["sync/probe_mean_abs_logprob"][0] < 1e-4 and metrics["server/0_tokens_per_second"][0] > 0
    assert metrics["server/prefix_cache_fraction"][1] > 0


def test_the_seeds_of_requests_decide_on_a_server_that_honours_them(running):
    asked = requests(2, 8)
    twice = [{(c.request.prompt_id, c.request.sample_index): c.completion_ids
              for c in running.generate(asked, SAMPLING)} for _ in range(2)]
    assert twice[0] == twice[1]
    assert len({ids for (prompt, _), ids in twice[0].items() if prompt == "p1"}) > 1


def test_nothing_is_sent_that_kills_a_server_or_that_it_would_cut_short(running, proxy):
    before = len(proxy.seen)
    for ids, words in (((), "empty"), ((3, MODEL.vocab_size), "outside"), ((3,) * 110, "exceeds the servers' context")):
        with pytest.raises(ValueError, match=words):
            list(running.generate([Request("bad", 0, ids, 0)], SAMPLING))
    assert len(proxy.seen) == before


def test_a_closed_iterator_aborts_what_still_runs(served, running, proxy):
    served.seconds_per_token = 0.05
    try:
        stream = running.generate(requests(8, 4), SAMPLING)
        next(stream)
        stream.close()
    finally:
        served.seconds_per_token = 0.0
    aborted = {seen.body["rid"] for seen in proxy.seen if seen.path == "/abort_request"}
    assert aborted and counts(running)["abandoned"] == len(aborted)
    assert not served.running


def test_a_request_that_is_under_way_in_an_update_names_both_versions(served, running):
    served.seconds_per_token = 0.1
    asked = requests(1, 4)
    found = []
    try:
        worker = threading.Thread(target=lambda: found.extend(running.generate(asked, SAMPLING)))
        worker.start()
        while len(served.running) < 4:
            time.sleep(0.01)
        time.sleep(0.15)
        running.update_weights(scaled(1.1), 1)
        worker.join(30)
    finally:
        served.seconds_per_token = 0.0
    assert len(found) == 4 and {c.policy_version for c in found} == {0}
    assert {tuple(span.version for span in c.spans) for c in found} == {(0, 1)}
    assert all(c.spans[-1].end == len(c.completion_ids) for c in found) and isinstance(found[0].spans[0], Span)


def test_what_servers_have_is_evaluated_as_it_is_also_after_a_restart(tmp_path):
    with fake_demo(seconds_per_token=0.01) as server, engine(server.url, directory=tmp_path, params=None) as made:
        made.use_served_weights()
        asked, found = requests(6, 4), []
        def restart():
            server.restart()
            server.weights = PARAMS

        timer = threading.Timer(1.0, restart)
        for number, completion in enumerate(made.generate(asked, SAMPLING)):
            found.append(completion)
            if number == 4:
                server.crash()
                timer.start()
        timer.join()
        assert_complete(found, asked)
        assert UPDATE not in [seen.path for seen in server.seen] and server.weight_version == "default"


# Single answers that go wrong.

_RETRIED = {
    "500": (faults.status(500), "unreachable"), "503": (faults.status(503), "unreachable"),
    "429": (faults.status(429, retry_after=0.2), "unreachable"), "HTML": (faults.not_json(), "malformed"),
    "other JSON": (faults.wrong_json(), "malformed"), "half the JSON": (faults.truncated_json(), "malformed"),
    "closed": (faults.close_before_reply(), "unreachable"), "closed late": (
        faults.close_before_reply(after_work=True), "unreachable"),
    "closed within": (faults.close_in_body(), "unreachable"), "reset": (faults.reset(), "unreachable"),
    "no log-probabilities": (faults.strip_logprobs(), "malformed"),
    "trimmed stop token": (faults.drop_stop_token(), "malformed"), "aborted": (faults.abort_half(), "aborted"),
    "another's answer": (faults.earlier_answer(), "malformed")}


@pytest.mark.parametrize("name", _RETRIED)
def test_an_answer_that_fails_is_asked_for_again(running, proxy, name):
    fault, kind = _RETRIED[name]
    rule = proxy.inject(fault, times=3)
    asked = requests()
    assert_complete(list(running.generate(asked, SAMPLING)), asked)
    assert rule.hits == 3
    found = counts(running)
    assert found[kind] == 3 and found["retries"] == 3 and "given_up" not in found


def test_two_answers_to_one_request_are_one_completion(running, proxy):
    proxy.inject(faults.answer_twice(), times=4)
    asked = requests()
    assert_complete(list(running.generate(asked, SAMPLING)), asked)


def test_a_refused_request_is_not_repeated_and_its_siblings_are_unharmed(running, proxy, caplog):
    rule = proxy.inject(faults.status(400, "bad luck"), times=None, when=lambda body: body["rid"].startswith("p1#2-"))
    asked = requests()
    found = list(running.generate(asked, SAMPLING))
    lost = [c for c in found if c.finish_reason == "abort"]
    assert [(c.request.prompt_id, c.request.sample_index) for c in lost] == [("p1", 2)] and rule.hits == 1
    others = [r for r in asked if (r.prompt_id, r.sample_index) != ("p1", 2)]
    assert_complete([c for c in found if c not in lost], others)
    assert counts(running)["refused"] == 1 and "bad luck" in caplog.text


def test_a_request_that_always_fails_is_given_up_after_its_tries(running, proxy):
    rule = proxy.inject(faults.not_json(), times=None, when=lambda body: body["rid"].startswith("p0#0-"))
    asked = requests(1, 2)
    assert sorted(c.finish_reason == "abort" for c in running.generate(asked, SAMPLING)) == [False, True]
    assert rule.hits == PATIENCE.tries and counts(running)["given_up"] == 1


def test_an_end_of_sequence_id_that_the_trainer_lacks_is_named(running, caplog):
    asked = requests(1, 1)
    found = list(running.generate(asked, Sampling(24, (0,))))
    assert [c.finish_reason for c in found] == ["abort"] and counts(running)["given_up"] == 1
    assert "an end-of-sequence id that the trainer lacks" in caplog.text


def test_a_request_without_an_answer_ends_at_its_deadline(served, tmp_path):
    patience = dataclasses.replace(PATIENCE, request_seconds=1.5)
    with FaultProxy(served.url) as proxy, engine(proxy.url, directory=tmp_path, patience=patience) as made:
        proxy.inject(faults.hang(), times=None, when=lambda body: body.get("rid", "").startswith("p0#0-"))
        start = time.monotonic()
        reasons = sorted(c.finish_reason == "abort" for c in made.generate(requests(1, 2), SAMPLING))
        assert reasons == [False, True] and time.monotonic() - start < 10


# Servers that go wrong.


def test_a_server_that_is_not_there_is_named_and_waited_for_in_vain(tmp_path, caplog):
    with engine("http://127.0.0.1:9", directory=tmp_path, patience=IMPATIENT, params=None) as made:
        with pytest.raises(RolloutError, match=r"no answer from http://127\.0\.0\.1:9 within \d+ s; start the server"):
            made.update_weights(PARAMS, 0)


def test_a_server_that_comes_late_is_waited_for(tmp_path):
    with fake_demo() as server:
        server.crash()
        timer = threading.Timer(1.5, server.restart)
        timer.start()
        server.weights = PARAMS
        with engine(server.url, directory=tmp_path) as made:
            asked = requests(1, 2)
            assert_complete(list(made.generate(asked, SAMPLING)), asked)
        timer.join()


def test_a_server_that_was_left_paused_goes_on(tmp_path):
    with fake_demo() as server:
        server.paused = "retract"
        with engine(server.url, directory=tmp_path) as made:
            asked = requests(1, 2)
            assert_complete(list(made.generate(asked, SAMPLING)), asked)


def test_the_work_of_a_server_that_dies_goes_to_the_others_and_it_comes_back_with_weights(served, tmp_path):
    with fake_demo(seconds_per_token=0.01) as dying, engine(served.url, dying.url, directory=tmp_path) as made:
        made.update_weights(scaled(1.05), 1)
        asked, found = requests(24, 4), []
        timer = threading.Timer(2.0, dying.restart)
        for number, completion in enumerate(made.generate(asked, SAMPLING)):
            found.append(completion)
            if number == 8:
                dying.crash()
                timer.start()
        assert_complete(found, asked, version=1)
        deadline = time.monotonic() + 20
        while made.metrics()["server/in_service"][0] < 2 and time.monotonic() < deadline:
            made.readmit()
            time.sleep(0.1)
        start = len(dying.seen)
        more = requests(16, 4, first=30)
        assert_complete(list(made.generate(more, SAMPLING)), more, version=1)
        assert any(seen.path == "/generate" for seen in dying.seen[start:])
        timer.join()


def test_a_server_that_restarted_unnoticed_is_not_believed(tmp_path):
    """It answers, with the weights it was started with; these are rejected, and it gets its weights again."""
    with fake_demo() as server, engine(server.url, directory=tmp_path) as made:
        made.update_weights(scaled(1.05), 1)
        server.weights, server.weight_version = PARAMS, "default"
        asked = requests()
        assert_complete(list(made.generate(asked, SAMPLING)), asked, version=1)
        assert counts(made)["stale"] >= 1 and server.weight_version != "default"


def test_a_server_that_hangs_while_alive_loses_its_work_to_the_others(served, tmp_path):
    with fake_demo() as other, FaultProxy(other.url) as hanging, engine(served.url, hanging.url,
                                                                        directory=tmp_path) as made:
        hanging.inject(faults.hang(), path=None, times=None)
        asked = requests(8, 4)
        assert_complete(list(made.generate(asked, SAMPLING)), asked)
        assert counts(made)["servers_lost"] == 1


def test_without_any_server_left_the_rollout_fails_in_time(tmp_path):
    with fake_demo(seconds_per_token=0.02) as server, engine(server.url, directory=tmp_path,
                                                            patience=IMPATIENT) as made:
        stream = made.generate(requests(), SAMPLING)
        next(stream)
        server.crash()
        start = time.monotonic()
        with pytest.raises(RolloutError, match=r"no rollout server has been in service.*completions are missing"):
            list(stream)
        assert time.monotonic() - start < 20


# Updates that go wrong.


def test_a_refused_update_takes_the_server_out_until_it_takes_the_weights(running, proxy):
    rule = proxy.inject(faults.update_refused("no room"), path=UPDATE, times=1)
    running.update_weights(scaled(1.1), 1)
    asked = requests()
    assert_complete(list(running.generate(asked, SAMPLING)), asked, version=1)
    assert rule.hits == 1 and counts(running)["servers_lost"] == 1
    assert [seen.path for seen in proxy.seen].count(UPDATE) == 3


@pytest.mark.parametrize("version, words", [(False, "reports version"), (True, "are the same as before")])
def test_an_update_that_only_says_it_happened_ends_the_run(running, proxy, version, words):
    proxy.inject(faults.update_ignored(version=version), path=UPDATE)
    with pytest.raises(HandshakeError, match=words):
        running.update_weights(scaled(1.1), 1)


def test_the_probe_finds_wrong_weights_where_version_and_checksum_look_right(running, proxy, served):
    proxy.inject(faults.edit(lambda item: item.update(per_engine_checksum="moved")), path="/weights_checker")
    proxy.inject(faults.update_ignored(), path=UPDATE)
    with pytest.raises(HandshakeError, match=r"differ from the trainer's by [\d.]+ on average.*other weights"):
        running.update_weights(scaled(1.3), 1)


def test_a_cache_that_was_not_flushed_is_found_out_by_the_first_probe(running, proxy):
    proxy.inject(faults.said({}), path="/flush_cache")
    proxy.inject(faults.edit(lambda item: item.get("meta_info", {}).update(cached_tokens=3)), times=1)
    with pytest.raises(HandshakeError, match="first probe from 3 cached tokens of older weights"):
        running.update_weights(scaled(1.1), 1)


def test_a_flush_that_is_refused_is_tried_again(running, proxy):
    proxy.inject(faults.flush_refused(), path="/flush_cache", times=1)
    running.update_weights(scaled(1.1), 1)
    asked = requests()
    assert_complete(list(running.generate(asked, SAMPLING)), asked, version=1)


def test_log_probabilities_of_before_the_temperature_are_recognized(tmp_path):
    with fake_demo(original_logprobs=True) as server, engine(server.url, directory=tmp_path, temperature=0.6,
                                                             params=None) as made:
        with pytest.raises(HandshakeError, match="without SGLANG_RETURN_ORIGINAL_LOGPROB"):
            made.update_weights(PARAMS, 0)


def test_another_architecture_and_too_little_room_are_refused_before_anything_is_sent(tmp_path):
    for options, words in (({"context": 40}, "--context-length 66"), ({}, "LlamaForCausalLM is trained")):
        with fake_demo(**options) as server:
            if not options:
                server.architecture = "Qwen2ForCausalLM"
            with engine(server.url, directory=tmp_path, params=None) as made:
                with pytest.raises(HandshakeError, match=words):
                    made.update_weights(PARAMS, 0)
                assert UPDATE not in [seen.path for seen in server.seen]
