"""Weights over a process group of torch: each bucket is broadcast once, to all servers together.

The trainer's side of the group is a child process (`sender`), which has torch; this process hands it bytes through a
pipe. A group cannot lose a member: when a server or the child fails, the group is given up, the servers are told so by
their closed connections, and the next push makes a new one from the servers that are there then.
"""

import asyncio
import json
import pathlib
import secrets
import socket
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlzero.models import huggingface
from rlzero.models.transformer import ModelConfig
from rlzero.rollout.sglang_http import Server, ServerError, Unreachable
from rlzero.rollout.weights import sender
from rlzero.rollout.weights.tensors import Outgoing, expect_same_tensors
from rlzero.rollout.weights.transport import Pushed, on_each


class DistributedTransport:
    """Broadcasts buckets of tensors in a process group."""

    def __init__(self, model: ModelConfig, *, source: str, dtype: str, bucket_bytes: int = 256 * 10**6,
                 backend: str = "gloo", host: str = "127.0.0.1", python: str = "", seconds: float = 600.0):
        """Makes the transport; the child starts with the first push.

        Args:
          model: the shape.
          source: model directory that the servers were started with; names and shapes must be its own.
          dtype: "float32" or "bfloat16".
          bucket_bytes: most bytes of tensors in a broadcast.
          backend: "gloo" between CPUs, "nccl" between GPUs.
          host: this host as the servers reach it.
          python: interpreter with torch for the child; "" for this one.
          seconds: deadline of every step.
        """
        self._model, self._source, self._dtype = model, source, dtype
        self._bucket_bytes, self._backend, self._host = bucket_bytes, backend, host
        self._python, self._seconds = python or sys.executable, seconds
        self._child: asyncio.subprocess.Process | None = None
        self._members: tuple[str, ...] = ()
        self._group = ""
        self._checked = False

    async def push(self, servers: Sequence[Server], params: Any, version: str) -> Pushed:
        """See `Transport.push`. One server that fails is the failure of all: their group is gone.

        Raises:
          ValueError: names or shapes are not those of the model that is served; nothing was sent.
          RuntimeError: the child has no torch.
        """
        outgoing = Outgoing(huggingface.named_tensors(params, self._model), self._dtype)
        if not self._checked:
            expect_same_tensors(outgoing, self._source)
            self._checked = True
        try:
            await asyncio.wait_for(self._push(servers, outgoing, version), self._seconds)
        except (ServerError, asyncio.TimeoutError) as error:
            await self._give_up(servers)
            words = "no answer within {:.0f} s".format(self._seconds) if not str(error) else str(error)
            failed = {server.url: Unreachable(server.url, "/update_weights_from_distributed", words)
                      for server in servers}
            return Pushed(failed, 0, "")
        return Pushed({}, outgoing.bytes * len(servers), outgoing.digest())

    async def close(self) -> None:
        """Ends the child."""
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()
        self._child, self._members = None, ()

    async def _push(self, servers, outgoing, version):
        if self._members != tuple(server.url for server in servers):
            await self._join(servers)
        _raise_first(await on_each(servers, lambda server: self._post(server, "/begin_weight_update", {})))
        buckets = list(outgoing.buckets(self._bucket_bytes))
        for number, names in enumerate(buckets, start=1):
            data = await asyncio.to_thread(_flat, outgoing, names)
            body = {"names": names, "dtypes": [outgoing.dtype.name] * len(names),
                    "shapes": [list(outgoing.shapes[name]) for name in names], "group_name": self._group,
                    "load_format": "flattened_bucket", "flush_cache": number == len(buckets)}
            if number == len(buckets):
                body["weight_version"] = version
            await self._together(
                on_each(servers, lambda server, body=body: self._post(
                    server, "/update_weights_from_distributed", body)),
                self._order({"op": "broadcast", "bytes": len(data)}, data))
        _raise_first(await on_each(servers, lambda server: self._post(server, "/end_weight_update", {})))

    async def _join(self, servers):
        """Makes a new group of the child and all ranks of all servers."""
        await self._give_up(servers)
        ranks = [int((await server.get("/server_info")).get("tp_size") or 1) for server in servers]
        offsets = {server.url: 1 + sum(ranks[:number]) for number, server in enumerate(servers)}
        self._group = f"rlzero-{secrets.token_hex(4)}"
        shared = {"world_size": 1 + sum(ranks), "backend": self._backend}
        port = _free_port(self._host)
        self._child = await asyncio.create_subprocess_exec(
            self._python, str(pathlib.Path(sender.__file__)), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE)
        order = {"op": "join", "host": self._host, "port": port, "group": self._group, "seconds": self._seconds}

        def ask(server):
            return self._post(server, "/init_weights_update_group", shared | {
                "master_address": self._host, "master_port": port, "group_name": self._group,
                "rank_offset": offsets[server.url]})

        await self._together(on_each(servers, ask), self._order(order | shared))
        self._members = tuple(server.url for server in servers)

    async def _together(self, servers, child):
        """Waits for servers and child; the first failure ends the wait, for the other side would wait for ever."""
        tasks = [asyncio.ensure_future(servers), asyncio.ensure_future(child)]
        try:
            for task in asyncio.as_completed(tasks):
                _raise_first(await task or {})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _order(self, order, data=b""):
        """Has the child do something, and waits until it has."""
        try:
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
            self._child.stdin.write(data)
            await self._child.stdin.drain()
            line = await self._child.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            raise ServerError("child process", "", f"the sender of weights ({self._python}) died; its words are above")
        answer = json.loads(line)
        if "torch" in answer.get("error", "") and "No module" in answer["error"]:
            raise RuntimeError(f"{self._python} has no torch, which --config.sync.method=distributed needs; install "
                               "rlzero[sync], name another interpreter with --config.sync.python, or use "
                               "--config.sync.method=tensor")
        if "error" in answer:
            raise ServerError("child process", "", answer["error"])

    async def _post(self, server, path, body):
        return await server.post(path, body, timeout=self._seconds)

    async def _give_up(self, servers):
        """Leaves the group; servers that are still in it are told, as far as they listen."""
        await self.close()
        if self._group:
            await asyncio.gather(
                *(server.post(path, body, timeout=5.0) for server in servers for path, body in (
                    ("/end_weight_update", {}), ("/destroy_weights_update_group", {"group_name": self._group}))),
                return_exceptions=True)
            self._group = ""


def _flat(outgoing: Outgoing, names: Sequence[str]) -> bytes:
    return np.concatenate([outgoing.fetch(name).reshape(-1).view(np.uint8) for name in names]).tobytes()


def _raise_first(failed: dict[str, ServerError]) -> None:
    for error in failed.values():
        raise error


def _free_port(host: str) -> int:
    with socket.socket() as listener:
        listener.bind((host, 0))
        return listener.getsockname()[1]
