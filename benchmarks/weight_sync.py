"""How fast weights get into SGLang servers: the three transports, against the disk and the network under them.

    python benchmarks/weight_sync.py --make=/tmp/llama            # a random Llama of 26 M parameters, to be served
    launch/sglang_cpu.sh start --model /tmp/llama --port 30000
    python benchmarks/weight_sync.py --model=/tmp/llama --server=http://127.0.0.1:30000 --python=PYTHON_WITH_TORCH

Each update sends the model's own weights, from the trainer's arrays until every server has answered. The transports
take turns, so that a busy machine slows all alike, and medians are shown; `first` is the update that also makes what
later ones find: the process group, and whatever the server sets up. They are compared with bytes and nothing else:

    disk      the same bytes written to a file of that directory and read again, by way of the page cache
    loopback  the same bytes through one TCP connection between two processes of this machine

`of disk` and `of loopback` are the speed of an update as a fraction of these. Where a server is on another host, its
network is what counts, not the loopback.
"""

import asyncio
import json
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from absl import app, flags

from rlzero.models import huggingface, transformer
from rlzero.rollout.sglang_http import Server, make_session
from rlzero.rollout.weights import Transport, make_transport
from rlzero.training.sections import SyncSection

_MODEL = flags.DEFINE_string("model", "demo", "Model directory that the servers serve, or demo.")
_SERVERS = flags.DEFINE_multi_string("server", [], "URL of a server; may be given several times.")
_METHODS = flags.DEFINE_multi_enum("method", ["disk", "tensor", "distributed"], ["disk", "tensor", "distributed"],
                                   "Transports to measure.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "That weights are sent in.")
_BUCKET = flags.DEFINE_integer("bucket_megabytes", SyncSection().bucket_megabytes, "Most MB in a request.",
                               lower_bound=1)
_DIRECTORY = flags.DEFINE_string("directory", "/tmp/weight_sync", "Of the disk transport, which the servers see as "
                                 "well; what is written there is removed in the end.")
_BACKEND = flags.DEFINE_enum("backend", "gloo", ["gloo", "nccl"], "Of the process group.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "This host as the servers reach it.")
_PYTHON = flags.DEFINE_string("python", "", "Interpreter with torch for the distributed transport; empty for this one.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Timed updates of each, after the first.", lower_bound=1)
_MAKE = flags.DEFINE_string("make", "", "Write a random model to this directory and do nothing else.")

_CHUNK = 1 << 20
_RECEIVER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as link:
    buffer = bytearray(1 << 20)
    while link.recv_into(buffer):
        pass
    link.sendall(b"1")
"""


def make_model(directory: pathlib.Path) -> None:
    """Writes a random Llama with the demo model's tokenizer."""
    model = transformer.ModelConfig(vocab_size=4096, hidden_size=512, intermediate_size=1408, num_layers=8, num_heads=8,
                                    num_kv_heads=4, head_dim=64, max_position_embeddings=512)
    shape = directory.with_name(directory.name + ".shape")
    shape.mkdir(parents=True)
    for file in huggingface.model_directory("demo").glob("*.json"):
        (shape / file.name).write_bytes(file.read_bytes())
    special = {name: value for name, value in json.loads((shape / "config.json").read_text()).items()
               if name.endswith("_token_id")}
    (shape / "config.json").write_text(json.dumps(huggingface.config_json(model) | special))
    huggingface.save(directory, transformer.init_params(jax.random.key(0), model), model, source=shape)
    for file in shape.iterdir():
        file.unlink()
    shape.rmdir()


def median_seconds(work: Callable[[], object]) -> float:
    def seconds():
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return statistics.median(seconds() for _ in range(_REPETITIONS.value))


def disk_seconds(data: np.ndarray, directory: pathlib.Path) -> float:
    """Seconds to write the bytes to a file and to read them again."""
    file = directory / "plain"
    read = np.empty_like(data)

    def copy():
        with open(file, "wb", buffering=0) as out:
            for start in range(0, data.size, _CHUNK):
                out.write(data[start:start + _CHUNK])
        with open(file, "rb", buffering=0) as source:
            source.readinto(read)
        file.unlink()

    return median_seconds(copy)


def loopback_seconds(data: np.ndarray) -> float:
    """Seconds to get the bytes to another process over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])

        def connect():
            child = subprocess.Popen([sys.executable, "-c", _RECEIVER, port])
            return child, listener.accept()[0]

        def copy(link):
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            link.recv(1)

        children, links = zip(*(connect() for _ in range(_REPETITIONS.value)))
        unused = iter(links)
        seconds = median_seconds(lambda: copy(next(unused)))
    for child, link in zip(children, links):
        link.close()
        child.wait()
    return seconds


def make_transports(model: transformer.ModelConfig, directory: pathlib.Path) -> dict[str, Transport]:
    def make(method):
        section = SyncSection(method=method, bucket_megabytes=_BUCKET.value, backend=_BACKEND.value, host=_HOST.value,
                              python=_PYTHON.value)
        return make_transport(section, model, source=_MODEL.value, dtype=_DTYPE.value, directory=directory)

    return {method: make(method) for method in _METHODS.value}


async def measure(params, model, directory) -> dict[str, Sequence[float]]:
    """Seconds of each update, the first one among them, by transport."""
    run = f"benchmark-{time.time_ns()}"
    transports = make_transports(model, directory)
    seconds = {method: [] for method in transports}
    async with make_session() as session:
        servers = [Server(url, session) for url in _SERVERS.value]
        try:
            for number in range(1 + _REPETITIONS.value):
                for method, transport in transports.items():
                    start = time.perf_counter()
                    pushed = await transport.push(servers, params, f"{run}.{method}.{number}")
                    seconds[method].append(time.perf_counter() - start)
                    for error in pushed.failed.values():
                        raise error
        finally:
            for transport in transports.values():
                await transport.close()
    return seconds


def main(_):
    if _MAKE.value:
        make_model(pathlib.Path(_MAKE.value))
        return
    if not _SERVERS.value:
        raise app.UsageError("--server names no server; launch/sglang_cpu.sh starts one")
    params, model = huggingface.load(_MODEL.value)
    tensors = huggingface.named_tensors(params, model, _DTYPE.value)
    data = np.concatenate([tensors.fetch(name).reshape(-1).view(np.uint8) for name in tensors.shapes])
    size, directory = data.size, pathlib.Path(_DIRECTORY.value) / f"{time.time_ns()}"
    directory.mkdir(parents=True)
    try:
        seconds = asyncio.run(measure(params, model, directory))
        disk = disk_seconds(data, directory)
    finally:
        shutil.rmtree(directory)
    loopback = loopback_seconds(data)
    count = len(_SERVERS.value)
    print(f"{_MODEL.value}, {_DTYPE.value}: {size / 1e6:.1f} MB in {len(tensors.shapes)} tensors, {count} server(s), "
          f"buckets of {_BUCKET.value} MB; medians of {_REPETITIONS.value}")
    print(f"{'':12}{'MB':>8}{'first s':>9}{'s':>9}{'GB/s':>8}{'of disk':>9}{'of loopback':>13}")
    for method, (first, *later) in seconds.items():
        took = statistics.median(later)
        print(f"{method:12}{count * size / 1e6:8.1f}{first:9.3f}{took:9.3f}{count * size / took / 1e9:8.2f}"
              f"{disk / took * count:9.2f}{loopback / took * count:13.2f}")
    for name, took in (("disk", disk), ("loopback", loopback)):
        print(f"{'bare ' + name:15}{size / 1e6:5.1f}{'':9}{took:9.3f}{size / took / 1e9:8.2f}")


if __name__ == "__main__":
    app.run(main)
