"""The proxy lets everything pass but the faults that were asked for, and remembers what it saw."""

import http.client
import json
import re
import socket
import threading
import time
import urllib.error

import faults
import pytest
from real_server import RealServer, wait_until

_SHORT = {"max_new_tokens": 4, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture
def client(fake_proxy):
    return RealServer(fake_proxy.url)


def ask(client, rid="r", **parameters):
    return client.sample([3, 4], rid=rid, **(_SHORT | parameters))


def test_what_no_rule_meets_passes_unchanged(fake_server, fake_proxy, client):
    direct = RealServer(fake_server.url)
    through, straight = ask(client), ask(direct)
    for answer in (through, straight):
        for key in ("response_sent_to_client_ts", "cached_tokens", "cached_tokens_details"):
            del answer["meta_info"][key]
    assert through == straight
    assert client.post("/flush_cache").startswith("Cache flushed")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.post("/generate", {"input_ids": [3], "sampling_params": {"top_p": 2}})
    assert [seen.status for seen in fake_proxy.seen] == [200, 200, 400]
    assert fake_proxy.paths("/flush_cache") == ["/flush_cache"]
    assert fake_proxy.bodies("/generate")[0]["rid"] == "r" and fake_proxy.seen[0].time < fake_proxy.seen[1].time


def test_a_rule_says_which_requests_and_how_many(fake_proxy, client):
    rule = fake_proxy.inject(faults.status(503), times=2, skip=1, when=lambda body: body["rid"].startswith("bad"))
    codes = []
    for rid in ("bad1", "good1", "bad2", "bad3", "good2", "bad4"):
        try:
            ask(client, rid)
            codes.append(200)
        except urllib.error.HTTPError as error:
            codes.append(error.code)
    assert codes == [200, 200, 503, 503, 200, 200] and rule.hits == 2
    assert [seen.fault for seen in fake_proxy.seen].count("status 503") == 2
    fake_proxy.inject(faults.status(500), times=None)
    fake_proxy.clear()
    ask(client)


def test_statuses_carry_their_header_and_their_words(fake_proxy, client):
    fake_proxy.inject(faults.status(429, "slow down", retry_after=3))
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(client)
    assert (caught.value.code, caught.value.headers["Retry-After"]) == (429, "3")
    assert json.load(caught.value) == {"error": {"message": "slow down"}}


@pytest.mark.parametrize("fault, error", [
    (faults.close_before_reply(), http.client.RemoteDisconnected),
    (faults.close_before_reply(after_work=True), http.client.RemoteDisconnected),
    (faults.reset(), ConnectionResetError),
    (faults.close_in_body(), http.client.IncompleteRead)])
def test_broken_connections(fake_proxy, client, fault, error):
    fake_proxy.inject(fault)
    with pytest.raises(error):
        ask(client)
    ask(client)


def test_broken_answers(fake_proxy, client):
    fake_proxy.inject(faults.not_json())
    assert ask(client) == "<html>gateway</html>"
    fake_proxy.inject(faults.truncated_json())
    with pytest.raises(ValueError):
        json.loads(ask(client))
    fake_proxy.inject(faults.wrong_json())
    assert "meta_info" not in ask(client)
    fake_proxy.inject(faults.said({"success": True}), path="/begin_weight_update")
    assert client.post("/begin_weight_update") == {"success": True}


def test_one_that_hangs_does_until_its_client_leaves(fake_proxy, client):
    fake_proxy.inject(faults.hang())
    with pytest.raises(TimeoutError):
        client.post("/generate", {"input_ids": [3], "sampling_params": _SHORT}, seconds=0.2)
    wait_until(lambda: not fake_proxy.running["/generate"], "the proxy to notice")
    assert fake_proxy.seen[0].fault == "hang" and fake_proxy.seen[0].status is None


def test_delays(fake_server, fake_proxy, client):
    fake_proxy.inject(faults.delay(0.1))
    started = time.monotonic()
    ask(client)
    assert time.monotonic() - started > 0.1 and fake_server.seen[0].time - started > 0.1
    fake_proxy.inject(faults.late(0.1))
    with pytest.raises(TimeoutError):
        client.post("/generate", {"input_ids": [3], "rid": "left", "sampling_params": _SHORT}, seconds=0.05)
    wait_until(lambda: fake_server.bodies("/generate")[-1].get("rid") == "left" and fake_server.seen[-1].status,
               "the server to answer all the same")


def test_an_answer_that_comes_twice_comes_before_that_to_the_next_request(fake_proxy):
    fake_proxy.inject(faults.answer_twice())
    received = b""
    with socket.create_connection(("127.0.0.1", int(fake_proxy.url.rpartition(":")[2]))) as connection:
        for rid, answers in (("first", 2), ("second", 3)):
            body = json.dumps({"input_ids": [3], "rid": rid, "sampling_params": _SHORT})
            head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall((head + body).encode())
            while received.count(b'"response_sent_to_client_ts"') < answers:
                received += connection.recv(1 << 16)
    assert re.findall(rb'"id": "(\w+)"', received) == [b"first", b"first", b"second"]


def test_the_answer_to_an_earlier_request(fake_proxy, client):
    fake_proxy.inject(faults.earlier_answer())
    assert [ask(client, rid)["meta_info"]["id"] for rid in ("a", "b", "c")] == ["a", "a", "c"]


def test_answers_that_contradict_themselves(fake_proxy, client):
    fake_proxy.inject(faults.strip_logprobs())
    assert "output_token_logprobs" not in ask(client)["meta_info"]
    fake_proxy.inject(faults.abort_half())
    meta = ask(client)["meta_info"]
    assert meta["finish_reason"]["type"] == "abort" and len(meta["output_token_logprobs"]) == 2
    fake_proxy.inject(faults.other_version("elsewhere"), path=None, times=2)
    assert client.get("/model_info")["weight_version"] == "elsewhere"
    assert ask(client)["meta_info"]["weight_versions"] == [{"version": "elsewhere", "start": 0, "end": 4}]


def test_a_fault_waits_for_an_answer_that_it_can_spoil(fake_proxy, client):
    rule = fake_proxy.inject(faults.drop_stop_token())
    assert len(ask(client)["output_ids"]) == 4 and rule.hits == 0
    answer = ask(client, max_new_tokens=100, ignore_eos=False)
    assert answer["meta_info"]["finish_reason"]["type"] == "stop" and rule.hits == 1
    assert len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"] - 1


def test_updates_that_are_not(fake_server, fake_proxy, client, tmp_path):
    body = {"model_path": str(tmp_path), "weight_version": "new"}
    weights = fake_server.weights
    fake_proxy.inject(faults.update_refused(), path=faults.UPDATES[0])
    assert client.post(faults.UPDATES[0], body)["success"] is False
    fake_proxy.inject(faults.update_ignored(version=False), path=faults.UPDATES[0])
    assert client.post(faults.UPDATES[0], body)["success"] and fake_server.weight_version == "default"
    fake_proxy.inject(faults.update_ignored(), path=faults.UPDATES[0])
    assert client.post(faults.UPDATES[0], body)["success"] and fake_server.weight_version == "new"
    assert fake_server.weights == weights


def test_a_flush_can_be_refused_always_or_while_something_runs(fake_server, fake_proxy, client):
    fake_proxy.inject(faults.flush_refused(), path="/flush_cache")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.post("/flush_cache")
    fake_server.seconds_per_token = 0.02
    rule = fake_proxy.inject(faults.flush_refused(only_busy=True), path="/flush_cache", times=None)
    assert client.post("/flush_cache").startswith("Cache flushed") and rule.hits == 0
    thread = threading.Thread(target=ask, args=(client,), kwargs={"max_new_tokens": 20})
    thread.start()
    wait_until(lambda: fake_server.running, "the request to run")
    client.post("/pause_generation", {"mode": "retract"})  # now the server itself would flush
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.post("/flush_cache")
    assert rule.hits == 1
    client.post("/continue_generation")
    thread.join()


def test_down_and_up_again_on_the_same_port(fake_proxy, client):
    fake_proxy.down()
    with pytest.raises(urllib.error.URLError, match="refused"):
        ask(client)
    fake_proxy.up()
    ask(client)


def test_a_server_that_is_gone_looks_gone_through_the_proxy(fake_server, fake_proxy, client):
    fake_server.crash()
    with pytest.raises(OSError):
        ask(client)
    fake_server.restart()
    ask(client)
