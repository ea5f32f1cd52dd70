"""What leaves the trainer as weights: buckets, digests, pickles without torch, directories, refusals before sending."""

import asyncio
import base64
import collections
import contextlib
import io
import json
import os
import pickle
import struct
import threading

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from weight_servers import MODEL, PARAMS, Recorder, push

from rlzero.models import huggingface
from rlzero.models.tensor_files import TensorFiles
from rlzero.rollout.handshake import HandshakeError
from rlzero.rollout.sglang_http import ServerError, Unreachable
from rlzero.rollout.weights import DiskTransport, TensorTransport
from rlzero.rollout.weights.tensor import pickled
from rlzero.rollout.weights.tensors import Outgoing, one_ahead

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def outgoing(params=PARAMS, dtype="float32", source="demo"):
    return Outgoing(params, MODEL, source=source, dtype=dtype)


def sent(out):
    return {name: out.tensors.fetch(name) for name in out.shapes}


# Tensors.


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_names_and_values_of_the_checkpoint(dtype):
    files, found = TensorFiles(huggingface.DEMO_MODEL), sent(outgoing(dtype=dtype))
    assert found.keys() == files.names
    for name, array in found.items():
        assert array.dtype == DTYPES[dtype] and array.flags.c_contiguous
        np.testing.assert_array_equal(array, files.read(name, (slice(None),) * array.ndim).astype(array.dtype))


def test_buckets_hold_every_tensor_once_in_order_and_keep_to_the_limit():
    out = outgoing(dtype="bfloat16")
    for limit in (1, 10_000, 100_000, 10**9):
        buckets = out.buckets(limit)
        assert [name for names in buckets for name in names] == list(out.shapes)
        assert all(out.size(names) <= limit or len(names) == 1 for names in buckets)
    assert len(buckets) == 1 and out.bytes == sum(array.nbytes for array in sent(out).values())


def test_a_bucket_is_its_tensors_bytes_one_after_the_other_here_or_where_it_is_wanted():
    out = outgoing(dtype="bfloat16")
    names = list(out.shapes)[1:5]
    expected = b"".join(out.tensors.fetch(name).tobytes() for name in names)
    assert out.flat(names).tobytes() == expected
    memory = np.full(len(expected) + 3, 7, np.uint8)
    out.flat(names, memory)
    assert memory.tobytes() == expected + b"\7\7\7"


def changed(change):
    """A copy of the parameters after `change` of the embedding as NumPy."""
    embedding = np.array(PARAMS["embedding"])
    change(embedding)
    return PARAMS | {"embedding": embedding}


@pytest.mark.parametrize("change", [
    lambda e: e.__setitem__((3, 4), np.nextafter(e[3, 4], np.inf)),
    lambda e: e.__setitem__(slice(0, 2), e[1::-1].copy()),
    lambda e: e.__setitem__((0, slice(0, 2)), e[0, 1::-1].copy()),
    lambda e: e.__setitem__((0, slice(0, 4)), np.roll(e[0, :4], 2)),
])
def test_the_digest_shows_any_change_and_nothing_else(change):
    first, second, other = outgoing(), outgoing(), outgoing(changed(change))
    before = first.digest
    for out in (first, second, other):
        sent(out)
    assert before != first.digest == second.digest != other.digest


def test_the_dtype_is_part_of_the_digest():
    zero = jax.tree.map(np.zeros_like, jax.device_get(PARAMS))
    digests = set()
    for dtype in DTYPES:
        out = outgoing(zero, dtype)
        sent(out)
        digests.add(out.digest)
    assert len(digests) == 2


def altered_source(path, change):
    """A copy of the demo model whose checkpoint has other tensors than its config says."""
    files = TensorFiles(huggingface.DEMO_MODEL)
    tensors = {name: files.read(name, (slice(None),) * len(files.shape(name))) for name in sorted(files.names)}
    change(tensors)
    path.mkdir()
    (path / "config.json").write_text((huggingface.DEMO_MODEL / "config.json").read_text())
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("make", [
    lambda source, path: DiskTransport(MODEL, source=source, dtype="float32", directory=path / "w"),
    lambda source, path: TensorTransport(MODEL, source=source, dtype="float32")])
@pytest.mark.parametrize("change, message", [
    (lambda t: t.update({"model.norm.weight": np.ones(7, np.float32)}),
     r"in 1 tensors; the first is model\.norm\.weight: \(96,\) here, \(7,\) there"),
    (lambda t: t.pop("model.norm.weight"), r"model\.norm\.weight: \(96,\) here, unknown there"),
    (lambda t: t.update({"model.bias": np.ones(7, np.float32)}), r"model\.bias: not sent here, \(7,\) there")])
def test_what_the_run_did_not_start_from_is_sent_to_nobody(tmp_path, make, change, message):
    server = Recorder()
    with pytest.raises(ValueError, match=message):
        push(make(altered_source(tmp_path / "source", change), tmp_path), [server])
    assert server.asked == [] and not (tmp_path / "w").exists()


def test_parameters_of_another_shape_are_sent_to_nobody():
    server = Recorder()
    with pytest.raises(ValueError, match=r"expected final_norm \(96,\), got \(5,\)"):
        push(TensorTransport(MODEL, source="demo", dtype="float32"), [server],
             PARAMS | {"final_norm": np.ones(5, np.float32)})
    assert server.asked == []


def test_a_copy_of_a_tied_head_in_the_checkpoint_is_not_missed(tmp_path):
    source = altered_source(tmp_path / "source", lambda t: t.update({"lm_head.weight": np.ones((24, 96), np.float32)}))
    assert "lm_head.weight" not in outgoing(source=source).shapes


@pytest.mark.parametrize("make", [
    lambda path: DiskTransport(MODEL, source="demo", dtype="float32", directory=path / "w"),
    lambda path: TensorTransport(MODEL, source="demo", dtype="float32")])
@pytest.mark.parametrize("change, message", [
    (lambda held: held - {"model.layers.1.mlp.down_proj.weight", "model.norm.weight"},
     r"it does not have model\.layers\.1\.mlp\.down_proj\.weight and 1 more; start it with"),
    (lambda held: held | {"model.layers.0.self_attn.qkv_proj.bias"},
     r"it has model\.layers\.0\.self_attn\.qkv_proj\.bias, which would stay"),
    (lambda held: held | {"lm_head.weight"}, r"it has lm_head\.weight, which would stay")])
def test_a_server_that_holds_another_model_is_sent_nothing(tmp_path, make, change, message):
    server = Recorder()
    server.held = change(server.held)
    with pytest.raises(HandshakeError, match=message):
        push(make(tmp_path), [server])
    assert server.paths == []


def test_a_tied_head_that_is_copied_to_another_pipeline_stage_is_no_other_model(tmp_path):
    server = Recorder(pp_size=2)
    server.held |= {"lm_head.weight"}
    assert push(DiskTransport(MODEL, source="demo", dtype="float32", directory=tmp_path), [server]).failed == {}


def test_a_server_is_looked_at_again_only_after_a_failure():
    server, transport = Recorder(), TensorTransport(MODEL, source="demo", dtype="float32")
    looks = []
    for errors in ({}, {"/update_weights_from_tensor": "no"}, {}, {}):
        server.errors = errors
        push(transport, [server])
        looks.append(sum(path == "/weights_checker" for path, _ in server.asked))
    assert looks == [1, 1, 2, 2]


def test_a_server_that_cannot_list_its_parameters_is_believed():
    server = Recorder(errors={"/weights_checker": "unknown path"})
    assert push(TensorTransport(MODEL, source="demo", dtype="float32"), [server]).failed == {}


def test_the_next_bucket_is_made_in_a_thread_and_none_is_at_work_after_an_early_end():
    running, made = threading.Event(), []

    def prepare(item):
        if item == 2:
            running.set()
        made.append((item, threading.current_thread()))
        return item * 10

    async def run():
        found = []
        async with contextlib.aclosing(one_ahead(prepare, range(5))) as values:
            async for value in values:
                found.append(value)
                if value == 10:
                    await asyncio.to_thread(running.wait, 10)
                    break
        return found

    assert asyncio.run(run()) == [0, 10] and [item for item, _ in made] == [0, 1, 2]
    assert all(thread is not threading.main_thread() for _, thread in made)

    async def collect():
        return [value async for value in one_ahead(lambda item: -item, range(3))]

    assert asyncio.run(collect()) == [0, -1, -2]


# Pickles.


class Torch(pickle.Unpickler):
    """Reads what the transport pickles the way torch does, with NumPy arrays for tensors."""

    ALLOWED = {("torch.storage", "_load_from_bytes"), ("torch._utils", "_rebuild_tensor_v2"),
               ("collections", "OrderedDict")}

    def find_class(self, module, name):
        assert (module, name) in self.ALLOWED, f"a server would not unpickle {module}.{name}"
        return {"_load_from_bytes": storage, "_rebuild_tensor_v2": tensor, "OrderedDict": collections.OrderedDict}[name]


def storage(data):
    stream = io.BytesIO(data)
    assert pickle.load(stream) == 0x1950A86A20F9469CFC6C and pickle.load(stream) == 1001
    assert pickle.load(stream)["little_endian"] is True

    class Persistent(pickle.Unpickler):
        def find_class(self, module, name):
            assert module == "torch"
            return name

        def persistent_load(self, identity):
            return identity

    kind, dtype, key, location, size, view = Persistent(stream).load()
    assert (kind, location, view) == ("storage", "cpu", None) and pickle.load(stream) == [key]
    assert struct.unpack("<q", stream.read(8)) == (size,)
    array = np.frombuffer(stream.read(), DTYPES[{"FloatStorage": "float32", "BFloat16Storage": "bfloat16"}[dtype]])
    assert array.size == size
    return array


def tensor(storage, offset, shape, strides, requires_grad, hooks):
    assert requires_grad is False and not hooks
    assert tuple(strides) == np.empty(shape, bool).strides
    return storage[offset:offset + int(np.prod(shape))].reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pickle_made_without_torch_is_what_a_server_may_read(dtype):
    arrays = {"a": np.arange(6).reshape(2, 3), "b.weight": np.array([7.5]), "c": np.ones((2, 1, 300)), "é": np.ones(9)}
    arrays = {name: array.astype(DTYPES[dtype]) for name, array in arrays.items()}
    flat = np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays.values()])
    found = Torch(io.BytesIO(pickled({name: array.shape for name, array in arrays.items()}, flat, dtype))).load()
    assert [name for name, _ in found] == list(arrays)
    for name, array in found:
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])


def test_what_is_no_bucket_is_not_pickled():
    with pytest.raises(ValueError, match="a dtype of float32 or bfloat16, got float16"):
        pickled({"a": (2,)}, np.zeros(4, np.uint8), "float16")
    for shapes, size in (({}, 0), ({"a": (2,)}, 4), ({"a": (2,)}, 12)):
        with pytest.raises(ValueError, match=f"expected the bytes of some float32 tensors, got {size} for"):
            pickled(shapes, np.zeros(size, np.uint8), "float32")


# Over HTTP.


def bodies(server):
    """Of the buckets that a server was sent, as it reads them."""
    return [json.loads(body) for path, body in server.asked if path == "/update_weights_from_tensor"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensor_sends_every_tensor_between_begin_and_end_one_payload_a_rank(dtype):
    transport = TensorTransport(MODEL, source="demo", dtype=dtype, bucket_bytes=200_000)
    server, wide = Recorder(), Recorder("http://b", tp_size=2)
    found, out = push(transport, [server, wide]), outgoing(dtype=dtype)
    expected = sent(out)
    assert found.failed == {} and found.bytes == 2 * out.bytes and found.digest == out.digest
    assert server.paths[0] == "/begin_weight_update" and server.paths[-1] == "/end_weight_update"
    received = {}
    for body in bodies(server):
        (payload,) = body["serialized_named_tensors"]
        received |= dict(Torch(io.BytesIO(base64.b64decode(payload))).load())
    assert list(received) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(received[name], array)
    assert len(bodies(server)) == len(out.buckets(200_000)) > 1
    *others, last = bodies(server)
    assert last["weight_version"] == "r.1" and last["flush_cache"] is True
    assert all("weight_version" not in body and body["flush_cache"] is False for body in others)
    for body, narrow in zip(bodies(wide), bodies(server), strict=True):
        assert body["serialized_named_tensors"] == narrow["serialized_named_tensors"] * 2


def test_tensor_goes_on_with_the_servers_that_have_not_failed_and_ends_what_it_began():
    transport = TensorTransport(MODEL, source="demo", dtype="float32", bucket_bytes=200_000)
    server, failing = Recorder(), Recorder("http://b", errors={"/update_weights_from_tensor": "no"})
    found = push(transport, [server, failing])
    assert found.failed.keys() == {"http://b"} and isinstance(found.failed["http://b"], ServerError)
    assert found.bytes == outgoing().bytes
    assert failing.paths == ["/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update"]
    assert server.paths[-1] == "/end_weight_update" and len(server.paths) > 4


def test_tensor_ends_a_session_that_another_trainer_left_open():
    server = Recorder()
    server.session_open = True
    assert push(TensorTransport(MODEL, source="demo", dtype="float32"), [server]).failed == {}
    assert server.paths[:3] == ["/begin_weight_update", "/end_weight_update", "/begin_weight_update"]


@pytest.mark.parametrize("info", [{"dp_size": 2}, {"pp_size": 4}])
def test_tensor_says_where_sglang_takes_no_tensors(info):
    server = Recorder(**info)
    found = push(TensorTransport(MODEL, source="demo", dtype="float32"), [server])
    assert "use --config.sync.method=disk" in str(found.failed["http://a"]) and server.paths == []


# Through a directory.


def disk(path, **changes):
    return DiskTransport(MODEL, source="demo", dtype="bfloat16", directory=path / "w", **changes)


def versions(path):
    return sorted(child.name.removeprefix("rlzero-weights-") for child in (path / "w").iterdir())


def test_disk_writes_versions_whole_keeps_the_last_and_tells_servers_their_name_for_it(tmp_path):
    transport = disk(tmp_path, server_directory="/mnt/w", keep=2)
    server, failing = Recorder(), Recorder("http://b", errors={"/update_weights_from_disk": "no such directory"})
    for version in ("r.0", "r.1", "r.2"):
        found = push(transport, [server, failing], PARAMS, version)
        assert found.failed.keys() == {"http://b"} and found.bytes == outgoing(dtype="bfloat16").bytes
    assert versions(tmp_path) == ["r.1", "r.2"]
    assert server.asked[-1] == ("/update_weights_from_disk", {
        "model_path": "/mnt/w/rlzero-weights-r.2", "weight_version": "r.2", "flush_cache": True,
        "abort_all_requests": False})
    params, _ = huggingface.load(tmp_path / "w/rlzero-weights-r.2")
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(ml_dtypes.bfloat16)), params, PARAMS)
    assert json.loads((tmp_path / "w/rlzero-weights-r.2/config.json").read_text())["dtype"] == "bfloat16"


def test_disk_names_the_directory_in_full_and_gives_a_version_again_without_writing_it_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    transport = DiskTransport(MODEL, source="demo", dtype="float32", directory="w")
    server = Recorder()
    first, written = push(transport, [server]), (tmp_path / "w/rlzero-weights-r.1").stat().st_mtime_ns
    again = push(transport, [server])
    assert again == first and first.digest and (tmp_path / "w/rlzero-weights-r.1").stat().st_mtime_ns == written
    assert server.asked[-1][1]["model_path"] == str(tmp_path / "w/rlzero-weights-r.1")


def test_disk_keeps_what_a_server_may_still_be_reading(tmp_path):
    transport, late = disk(tmp_path, keep=1), Unreachable("http://a", "/update_weights_from_disk", "no answer")
    server, other = Recorder(errors={"/update_weights_from_disk": late}), Recorder("http://b")
    assert push(transport, [server, other], PARAMS, "r.0").failed == {"http://a": late}
    for version in ("r.1", "r.2"):
        push(transport, [other], PARAMS, version)
    assert versions(tmp_path) == ["r.0", "r.2"]
    server.errors = {}
    push(transport, [server, other], PARAMS, "r.3")
    assert versions(tmp_path) == ["r.3"]


def test_disk_removes_what_earlier_runs_left_and_nothing_else(tmp_path):
    for name, age in (("rlzero-weights-old.7", 100), ("rlzero-weights-old.8.partial", 100),
                      ("rlzero-weights-recent.1", 5), ("Qwen2.5-7B", 100)):
        path = tmp_path / "w" / name
        path.mkdir(parents=True)
        past = path.stat().st_mtime - age
        os.utime(path, (past, past))
    push(disk(tmp_path, seconds=30.0), [Recorder()], PARAMS, "r.0")
    assert versions(tmp_path) == ["Qwen2.5-7B", "r.0", "recent.1"]


def test_disk_says_how_much_room_a_version_needs_where_it_cannot_be_written(tmp_path):
    (tmp_path / "w").write_text("a file")
    server = Recorder()
    with pytest.raises(OSError, match=r"could not be written to .*free 0\.00045 GB there.*sync\.directory"):
        push(disk(tmp_path), [server])
    assert server.asked == []


def test_disk_refuses_a_version_that_is_no_name(tmp_path):
    with pytest.raises(ValueError, match="can be the name of a directory, got '../r'"):
        push(disk(tmp_path), [Recorder()], PARAMS, "../r")
