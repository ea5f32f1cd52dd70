"""Weights over a process group, with a child that needs no torch: who is told what, and who is to blame.

That tensors arrive is tested with a real server, in tests/sglang.
"""

import asyncio
import json
import sys
import threading
import time

import numpy as np
import pytest
from weight_servers import MODEL, PARAMS, Recorder, push

from rlzero.rollout.sglang_http import Refused, Unreachable
from rlzero.rollout.weights import DistributedTransport, distributed
from rlzero.rollout.weights.tensors import Outgoing
from rlzero.rollout.weights.transport import WeightSyncError

UPDATE, INIT = "/update_weights_from_distributed", "/init_weights_update_group"
CHILD = """
import json, mmap, pathlib, sys, time
memory, here = mmap.mmap(int(sys.argv[2]), int(sys.argv[3])), pathlib.Path(__file__).parent
for line in sys.stdin:
    order = json.loads(line)
    with open(here / "orders", "a") as orders:
        orders.write(line)
    answer = {"port": 4711} if order["op"] == "open" else {}
    if order["op"] == "broadcast":
        with open(here / "data", "ab") as data:
            data.write(memory[order["start"]:order["start"] + order["bytes"]])
    if (here / "script").exists():
        exec((here / "script").read_text())
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(autouse=True)
def impatience(monkeypatch):
    """Stand-ins notice at once that the child is gone."""
    monkeypatch.setattr(distributed, "_GRACE_SECONDS", 0.5)


def interpreter(path, words):
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return str(path)


def transport(path, script="", **changes):
    """A transport whose child runs `script` before it answers an order."""
    (path / "child.py").write_text(CHILD)
    if script:
        (path / "script").write_text(script)
    python = interpreter(path / "child", f'exec {sys.executable} {path / "child.py"} "$@"')
    settings = {"bucket_bytes": 200_000, "python": python, "seconds": 20.0, "host": "trainer"} | changes
    return DistributedTransport(MODEL, source="demo", dtype="bfloat16", **settings)


def orders(path):
    return [json.loads(line) for line in (path / "orders").read_text().splitlines()]


def outgoing():
    return Outgoing(PARAMS, MODEL, source="demo", dtype="bfloat16")


def test_every_bucket_is_broadcast_while_the_servers_are_told_what_is_in_it(tmp_path):
    server, wide, out = Recorder(), Recorder("http://b", tp_size=2), outgoing()
    found = push(transport(tmp_path), [server, wide])
    buckets = out.buckets(200_000)
    assert (tmp_path / "data").read_bytes() == out.flat(list(out.shapes)).tobytes() and len(buckets) > 2
    assert found.failed == {} and found.bytes == 2 * out.bytes and found.digest == out.digest
    first, second, *broadcasts = orders(tmp_path)
    assert (first["op"], first["host"]) == ("open", "trainer")
    assert (second["op"], second["size"], second["backend"]) == ("join", 4, "gloo")
    assert [order["bytes"] for order in broadcasts] == [out.size(names) for names in buckets]
    assert {order["op"] for order in broadcasts} == {"broadcast"}
    for recorder, offset in ((server, 1), (wide, 2)):
        (body,) = [body for path, body in recorder.asked if path == INIT]
        assert body == {"master_address": "trainer", "master_port": 4711, "world_size": 4, "rank_offset": offset,
                        "backend": "gloo", "group_name": second["name"]}
        bodies = [body for path, body in recorder.asked if path == UPDATE]
        assert [body["names"] for body in bodies] == buckets
        for body in bodies:
            assert body["shapes"] == [list(out.shapes[name]) for name in body["names"]]
            assert set(body["dtypes"]) == {"bfloat16"} and body["load_format"] == "flattened_bucket"
            assert body["group_name"] == second["name"]
        assert [body.get("weight_version") for body in bodies] == [None] * (len(bodies) - 1) + ["r.1"]
        assert [body["flush_cache"] for body in bodies] == [False] * (len(bodies) - 1) + [True]
        begin, end = recorder.paths.index("/begin_weight_update"), recorder.paths.index("/end_weight_update")
        assert recorder.paths[begin + 1:end] == [UPDATE] * len(bodies)
        assert recorder.paths[-1] == "/destroy_weights_update_group"  # when the transport was closed


def pushes(made, *rounds):
    """Pushes in one event loop; a round is a list of servers, or something to do."""
    async def run():
        found = []
        try:
            for step in rounds:
                if callable(step):
                    step()
                else:
                    found.append(await made.push(step, PARAMS, f"r.{len(found)}"))
        finally:
            await made.close()
        return found

    return asyncio.run(run())


def joins(path):
    return [order["size"] for order in orders(path) if order["op"] == "join"]


def test_a_group_lasts_until_its_members_change(tmp_path):
    a, b = Recorder(), Recorder("http://b")
    found = pushes(transport(tmp_path), [a, b], [a, b], [b], [b])
    assert all(pushed.failed == {} for pushed in found) and joins(tmp_path) == [3, 2]
    assert a.paths.count("/destroy_weights_update_group") == 1 and b.paths.count("/destroy_weights_update_group") == 2


def test_a_server_that_refuses_is_left_out_and_the_others_are_served(tmp_path):
    a, b = Recorder(), Recorder("http://b", errors={UPDATE: "no room"})
    (found,) = pushes(transport(tmp_path), [a, b])
    assert found.failed.keys() == {"http://b"} and isinstance(found.failed["http://b"], Refused)
    assert joins(tmp_path) == [3, 2] and found.bytes == outgoing().bytes and not a.session_open and not b.session_open


def test_a_restarted_server_that_does_not_know_the_group_is_invited_again(tmp_path):
    a, b = Recorder(), Recorder("http://b")

    class Restarted(dict):
        def get(self, path):
            known = sum(path == INIT for path in b.paths) > 1
            return "Group not in []" if path == UPDATE and not known else None

    found = pushes(transport(tmp_path), [a, b], lambda: setattr(b, "errors", Restarted()), [a, b])
    assert [pushed.failed for pushed in found] == [{}, {}] and joins(tmp_path) == [3, 3]


def test_a_silent_server_costs_half_the_time_and_the_others_nothing(tmp_path):
    silent = Recorder("http://b")
    silent.errors = {INIT: asyncio.Event()}
    started = time.monotonic()
    found = push(transport(tmp_path, 'time.sleep(9 * (order["op"] == "join" and order["size"] == 3))', seconds=4.0),
                 [Recorder(), silent])
    assert found.failed.keys() == {"http://b"} and "no answer within" in str(found.failed["http://b"])
    assert joins(tmp_path) == [3, 2] and time.monotonic() - started < 4.0


def test_a_server_that_dies_is_blamed_and_not_those_that_lost_the_group_by_it(tmp_path):
    dead = Unreachable("http://b", UPDATE, "connection closed")
    a, b = Recorder(), Recorder("http://b", errors={UPDATE: dead})

    class Lost(dict):
        def get(self, path):
            return "Failed to receive weights" if path == UPDATE and joins(tmp_path) == [3] else None

    a.errors = Lost()
    (found,) = pushes(transport(tmp_path), [a, b])
    assert found.failed == {"http://b": dead} and joins(tmp_path) == [3, 2]


@pytest.mark.parametrize("script, message", [
    ('if order["op"] == "broadcast": sys.exit("no memory")', "exit code 1; its last words: no memory"),
    ('import os\nif order["op"] == "broadcast": os.kill(os.getpid(), 9)', "was killed by signal 9"),
    ('if order["op"] == "broadcast": answer = {"error": "RuntimeError: no route"}', "RuntimeError: no route"),
    ('time.sleep(60 * (order["op"] == "join"))', "did not join within 2 s")])
def test_a_child_that_fails_is_the_failure_of_all_and_the_next_push_has_another(tmp_path, script, message):
    a, b = Recorder(), Recorder("http://b")
    first, second = pushes(transport(tmp_path, script, seconds=4.0), [a, b], (tmp_path / "script").unlink, [a, b])
    assert first.failed.keys() == {"http://a", "http://b"} and first.bytes == 0
    assert all(message in str(error) and isinstance(error, Unreachable) for error in first.failed.values())
    assert second.failed == {} and joins(tmp_path) == [3, 3] and not a.session_open


def test_without_torch_the_extra_is_named_and_no_server_is_asked_to_wait_for_a_group(tmp_path):
    (tmp_path / "blocked.py").write_text("import runpy, sys\nsys.modules['torch'] = None\ndel sys.argv[0]\n"
                                         "runpy.run_path(sys.argv[0], run_name='__main__')\n")
    python = interpreter(tmp_path / "python", f'exec {sys.executable} {tmp_path / "blocked.py"} "$@"')
    server = Recorder()
    with pytest.raises(WeightSyncError, match=r"python has no torch.*rlzero\[sync\].*sync\.python.*method=tensor"):
        push(transport(tmp_path, python=python), [server])
    assert server.paths == []


@pytest.mark.parametrize("words, message", [
    (None, r"cannot be run \(No such file"), ("exit 3", "did not start: .*exit code 3")])
def test_an_interpreter_that_is_none_ends_the_run(tmp_path, words, message):
    python = interpreter(tmp_path / "python", words) if words else str(tmp_path / "nothing")
    with pytest.raises(WeightSyncError, match=message):
        push(transport(tmp_path, python=python, seconds=2.0), [Recorder()])


def test_a_child_that_is_too_slow_to_start_fails_this_update_only(tmp_path):
    python = interpreter(tmp_path / "python", "exec sleep 60")
    found = push(transport(tmp_path, python=python, seconds=2.0), [Recorder()])
    assert "did not open within 2 s" in str(found.failed["http://a"])


def test_it_works_in_the_event_loop_of_a_thread(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(push(transport(tmp_path), [Recorder()])))
    thread.start()
    thread.join(30)
    assert found[0].failed == {} and np.frombuffer((tmp_path / "data").read_bytes(), np.uint8).size == outgoing().bytes
