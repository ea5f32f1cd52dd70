"""Weights moved into real servers: every tensor is there, bit by bit, and servers get over updates that fail."""

import asyncio
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import sys
import time

import jax
import ml_dtypes
import numpy as np
import pytest
import real_server
from real_server import DEMO_MODEL
from toys import make_params

from rlzero.models import huggingface
from rlzero.rollout import handshake
from rlzero.rollout.handshake import HandshakeError
from rlzero.rollout.sglang_http import Refused, Server, Unreachable, make_session
from rlzero.rollout.weights import DiskTransport, DistributedTransport, TensorTransport

METHODS = ("disk", "tensor", "distributed")
BUCKET_BYTES = 50_000  # several buckets even of toys
SECONDS = 60.0  # for updates that succeed
QWEN2 = pathlib.Path(__file__).parents[1] / "models" / "fixtures" / "qwen2_5"


@pytest.fixture(scope="module")
def qwen2_server(make_server, tmp_path_factory):
    """A server of a Qwen2, which has biases and a head of its own where the demo model has neither."""
    shape, directory = tmp_path_factory.mktemp("shape"), tmp_path_factory.mktemp("qwen2") / "model"
    raw = json.loads((QWEN2 / "config.json").read_text()) | {"intermediate_size": 64}  # others are padded on a CPU
    (shape / "config.json").write_text(json.dumps(raw))
    for file in DEMO_MODEL.glob("tokenizer*"):
        shutil.copy(file, shape)
    config = huggingface.read_config(shape)
    huggingface.save(directory, make_params(config), config, source=shape)
    return make_server(model=directory)


@pytest.fixture(params=["demo", "qwen2"])
def server(request):
    """Each model in turn, as at its start."""
    found = request.getfixturevalue({"demo": "sglang_server", "qwen2": "qwen2_server"}[request.param])
    found.reset()
    yield found
    found.reset()


def torch_python():
    """An interpreter with torch: that of the server's environment."""
    home = real_server.home()
    return str(home / "server" / "bin" / "python") if home else sys.executable


def make_transport(method, source, tmp_path, *, dtype="float32", seconds=SECONDS):
    options = {"source": str(source), "dtype": dtype, "seconds": seconds}
    config = huggingface.read_config(source)
    if method == "disk":
        return DiskTransport(config, directory=tmp_path / "versions", **options)
    if method == "tensor":
        return TensorTransport(config, bucket_bytes=BUCKET_BYTES, **options)
    return DistributedTransport(config, bucket_bytes=BUCKET_BYTES, python=torch_python(), **options)


def other_weights(source, seed):
    """Parameters like those of a model, yet every one of them another number; and the config."""
    params, config = huggingface.load(source)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: np.asarray(
        leaf * (1 + 0.2 * rng.normal(size=leaf.shape)) + 0.01, np.float32), params), config


def checksums(server):
    """Hash of every tensor in the server's memory."""
    return server.post("/weights_checker", {"action": "checksum"})["ranks"][0]["checksums"]


_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
          "up_proj": "gate_up_proj"}


def expected_checksums(params, config, dtype="float32"):
    """Those of a CPU server in float32 that was sent `params` in a dtype.

    It stores some tensors as one, and vocabularies with rows of 0 up to a multiple of 64.
    """
    tensors, parts = huggingface.named_tensors(params, config), {}
    for name in sorted(tensors.shapes, key=_place):
        fused = ".".join(_FUSED.get(part, part) for part in name.split("."))
        tensor = tensors.fetch(name).astype(dtype).astype(np.float32)
        if tensor.shape[0] == config.vocab_size:
            tensor = np.pad(tensor, ((0, -len(tensor) % 64), (0, 0)))
        parts.setdefault(fused, []).append(tensor)
    return {name: hashlib.sha256(np.concatenate(arrays).tobytes()).digest()[:8].hex() for name, arrays in parts.items()}


def _place(name):
    part = name.split(".")[-2]
    return list(_FUSED).index(part) if part in _FUSED else -1


def logprob_gap(server, params, config):
    """Most that the server's log-probabilities of its own greedy continuation differ from the trainer's."""
    prompt = [8, 13, 9, 15]
    answer = server.sample(prompt, max_new_tokens=24, temperature=0.0, ignore_eos=True)
    logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    sample = handshake.ProbeSample(tuple(prompt), tuple(answer["output_ids"]), (), 0)
    scored = handshake.make_scorer(config, dtype="float32")(params, [sample], 1.0)[0]
    return np.abs(scored - logprobs).max()


def version_of(server):
    return server.get("/model_info")["weight_version"]


def run(steps):
    """Runs `steps(session)` in an event loop."""
    async def inside():
        async with make_session() as session:
            return await steps(session)

    return asyncio.run(inside())


def push(transport, urls, params, version):
    """One update, after which the transport is closed."""
    async def steps(session):
        try:
            return await transport.push([Server(url, session) for url in urls], params, version)
        finally:
            await transport.close()

    return run(steps)


# Updates that succeed.


@pytest.mark.parametrize("method", METHODS)
def test_the_server_computes_with_the_new_weights(server, method, tmp_path):
    params, config = other_weights(server.model, seed=1)
    assert logprob_gap(server, params, config) > 0.05
    pushed = push(make_transport(method, server.model, tmp_path), [server.url], params, "r.1")
    assert pushed.failed == {} and pushed.bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert version_of(server) == "r.1" and checksums(server) == expected_checksums(params, config)
    assert logprob_gap(server, params, config) < 2e-4  # two implementations in float32 differ by rounding


@pytest.mark.parametrize("method", METHODS)
def test_weights_sent_in_bfloat16_are_rounded_and_nothing_else(server, method, tmp_path):
    params, config = other_weights(server.model, seed=2)
    pushed = push(make_transport(method, server.model, tmp_path, dtype="bfloat16"), [server.url], params, "r.1")
    assert pushed.failed == {} and checksums(server) == expected_checksums(params, config, ml_dtypes.bfloat16)


@pytest.mark.parametrize("method", METHODS)
def test_one_update_after_another_while_requests_are_held(fresh_server, method, tmp_path):
    """As the engine does it: paused, updated, continued; what was begun before goes on."""
    transport = make_transport(method, DEMO_MODEL, tmp_path)

    async def steps(session):
        server = Server(fresh_server.url, session)
        asked = asyncio.ensure_future(server.post("/generate", {
            "input_ids": [8, 13, 9, 15], "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}))
        digests = []
        try:
            for number in (1, 2, 2):
                params, config = other_weights(DEMO_MODEL, seed=number)
                await server.post("/pause_generation", {"mode": "retract"})
                pushed = await transport.push([server], params, f"r.{len(digests)}")
                await server.post("/continue_generation", {})
                assert pushed.failed == {}
                assert checksums(fresh_server) == expected_checksums(params, config)
                digests.append(pushed.digest)
        finally:
            await transport.close()
        assert digests[0] != digests[1] == digests[2]
        assert (await asked)["meta_info"]["completion_tokens"] == 100

    fresh_server.slow_down(0.01)
    run(steps)


@pytest.mark.parametrize("method", ["tensor", "distributed"])
def test_what_a_trainer_left_half_done_is_no_obstacle(fresh_server, method, tmp_path):
    fresh_server.post("/begin_weight_update")
    params, config = other_weights(DEMO_MODEL, seed=3)
    assert push(make_transport(method, DEMO_MODEL, tmp_path), [fresh_server.url], params, "r.1").failed == {}
    assert checksums(fresh_server) == expected_checksums(params, config)


# Updates that do not.


@pytest.mark.parametrize("method", METHODS)
def test_parameters_of_another_model_are_refused_before_anything_is_sent(fresh_server, method, tmp_path):
    before = checksums(fresh_server)
    params, _ = other_weights(DEMO_MODEL, seed=1)
    wrong = params | {"final_norm": params["final_norm"][:-1]}
    with pytest.raises(ValueError, match="final_norm"):
        push(make_transport(method, DEMO_MODEL, tmp_path), [fresh_server.url], wrong, "r.1")
    assert checksums(fresh_server) == before and version_of(fresh_server) == "default"


@pytest.mark.parametrize("method", ["tensor", "distributed"])
def test_a_server_of_another_model_is_sent_nothing(fresh_server, method, tmp_path):
    """It would take names that it does not know without a word."""
    before = checksums(fresh_server)
    params, _ = other_weights(QWEN2, seed=1)
    with pytest.raises(HandshakeError, match="does not hold the model that is trained"):
        push(make_transport(method, QWEN2, tmp_path), [fresh_server.url], params, "r.1")
    assert checksums(fresh_server) == before and version_of(fresh_server) == "default"


def test_a_directory_that_the_server_does_not_see_changes_nothing(fresh_server, tmp_path):
    params, config = other_weights(DEMO_MODEL, seed=1)
    before = checksums(fresh_server)
    transport = DiskTransport(config, source=str(DEMO_MODEL), dtype="float32", directory=tmp_path,
                              server_directory="/no/such/mount")
    failed = push(transport, [fresh_server.url], params, "r.1").failed[fresh_server.url]
    assert isinstance(failed, Refused) and "/no/such/mount" in str(failed)
    assert checksums(fresh_server) == before and version_of(fresh_server) == "default"


@pytest.mark.parametrize("method", METHODS)
def test_a_server_that_is_gone_does_not_keep_the_others_from_theirs(fresh_server, method, tmp_path):
    gone = f"http://127.0.0.1:{real_server.free_port()}"
    params, config = other_weights(DEMO_MODEL, seed=4)
    pushed = push(make_transport(method, DEMO_MODEL, tmp_path), [gone, fresh_server.url], params, "r.1")
    assert pushed.failed.keys() == {gone} and isinstance(pushed.failed[gone], Unreachable)
    assert checksums(fresh_server) == expected_checksums(params, config) and version_of(fresh_server) == "r.1"


class Silent(Server):
    """A server that says what it is and is never heard of again."""

    async def post(self, path, body, *, timeout=None):
        if path == "/weights_checker":
            return await super().post(path, body, timeout=timeout)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            deaf = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", self._session)
            return await deaf.post(path, body, timeout=timeout)


@pytest.mark.slow  # waits for half of the deadline, which must leave a child time to import torch
def test_a_server_that_never_joins_fails_alone_within_the_deadline(fresh_server, tmp_path):
    """The other one waits for it inside its scheduler, and must be freed from that."""
    params, config = other_weights(DEMO_MODEL, seed=5)
    transport = make_transport("distributed", DEMO_MODEL, tmp_path, seconds=60.0)

    async def steps(session):
        silent = Silent(fresh_server.url.replace("127.0.0.1", "localhost"), session)
        start = time.monotonic()
        try:
            pushed = await transport.push([silent, Server(fresh_server.url, session)], params, "r.1")
        finally:
            await transport.close()
        assert pushed.failed.keys() == {silent.url} and time.monotonic() - start < 70

    run(steps)
    assert checksums(fresh_server) == expected_checksums(params, config)


class Watched(Server):
    """A server that is told on: `asked` is set when a broadcast was announced to it."""

    def __init__(self, url, session):
        super().__init__(url, session)
        self.asked = asyncio.Event()

    async def post(self, path, body, *, timeout=None):
        if path == "/update_weights_from_distributed":
            self.asked.set()
        return await super().post(path, body, timeout=timeout)


def sender_pid():
    """Process id of the child that sends weights."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"weights/sender.py" in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
        except OSError:
            continue
    raise ProcessLookupError("no sender of weights is running")


def test_a_sender_killed_in_a_broadcast_is_an_error_and_the_next_update_has_another(fresh_server, tmp_path):
    params, config = other_weights(DEMO_MODEL, seed=6)
    transport = make_transport("distributed", DEMO_MODEL, tmp_path)

    async def steps(session):
        server = Watched(fresh_server.url, session)
        try:
            assert (await transport.push([server], params, "r.1")).failed == {}
            first = sender_pid()
            os.kill(first, signal.SIGSTOP)
            server.asked.clear()
            update = asyncio.ensure_future(transport.push([server], params, "r.2"))
            await server.asked.wait()
            os.kill(first, signal.SIGKILL)
            start = time.monotonic()
            # Whoever noticed first decides: the sender is to blame, or the server, which is then asked once more.
            failed = (await update).failed.get(server.url)
            assert failed is None or "was killed by signal 9" in str(failed)
            assert time.monotonic() - start < 30
            pushed = await transport.push([server], params, "r.3")
            assert pushed.failed == {} and sender_pid() != first
        finally:
            await transport.close()

    run(steps)
    assert checksums(fresh_server) == expected_checksums(params, config) and version_of(fresh_server) == "r.3"
    with pytest.raises(ProcessLookupError):
        sender_pid()
