"""Weights over a process group of torch: each bucket is broadcast once, to all servers together.

The trainer's side of the group is a child process (`sender`), which has torch; this process puts bytes into memory that
both see. A group cannot lose a member. When one fails, the child is ended, whereupon the servers that wait for it see
closed connections; the servers that are not to blame are then tried again, in a new group.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Sequence
from typing import Any

from rlzero.models.transformer import ModelConfig
from rlzero.rollout.sglang_http import Server, ServerError, Unreachable
from rlzero.rollout.weights import session
from rlzero.rollout.weights.child import Child, ChildError, ChildLate
from rlzero.rollout.weights.tensors import Outgoing, one_ahead
from rlzero.rollout.weights.transport import Deadline, Pushed, WeightSyncError, on_each

_UPDATE = "/update_weights_from_distributed"
_GRACE_SECONDS = 10.0  # for servers to notice that the child is gone; one whose scheduler died takes 6


class _Failed(Exception):
    """An attempt that failed: `blamed` by URL; `sender` is what the child said, if it is to blame."""

    def __init__(self, blamed: dict[str, ServerError], sender: str = ""):
        super().__init__(sender)
        self.blamed, self.sender = blamed, sender


class DistributedTransport:
    """Broadcasts buckets of tensors in a process group that lasts as long as its members do."""

    def __init__(self, model: ModelConfig, *, source: str, dtype: str, bucket_bytes: int = 16 * 10**6,
                 backend: str = "gloo", host: str = "127.0.0.1", python: str = "", seconds: float = 600.0):
        """Makes the transport; the child starts with the first push.

        Args:
          model: the shape.
          source: model directory that training started from; names and shapes must be its own.
          dtype: "float32" or "bfloat16".
          bucket_bytes: most bytes of tensors in a broadcast; a larger tensor has one of its own.
          backend: "gloo" between CPUs, "nccl" between GPUs.
          host: this host as the servers reach it.
          python: interpreter with torch for the child; "" for this one.
          seconds: deadline of an update.
        """
        self._model, self._source, self._dtype = model, source, dtype
        self._bucket_bytes, self._backend, self._host = bucket_bytes, backend, host
        self._python, self._seconds = python, seconds
        self._known = session.KnownServers()
        self._child: Child | None = None
        self._members: list[Server] = []
        self._group = ""

    async def push(self, servers: Sequence[Server], params: Any, version: str) -> Pushed:
        """See `Transport.push`."""
        outgoing = Outgoing(params, self._model, source=self._source, dtype=self._dtype)
        deadline = Deadline(self._seconds)
        ranks: dict[str, int] = {}

        async def look(server):
            await self._known.expect_same_model(server, outgoing.shapes, limit)
            ranks[server.url] = await session.ranks(server, limit)

        limit = deadline.shared(len(servers))
        failed = await on_each(servers, look)
        while remaining := [server for server in servers if server.url not in failed]:
            fresh = self._child is None or not self._child.alive or self._urls != [s.url for s in remaining]
            limit = deadline.shared(len(remaining))
            try:
                if fresh:
                    await self._join(remaining, ranks, outgoing, limit)
                await self._send(remaining, outgoing, version, limit)
                break
            except _Failed as error:
                await self._leave()
                failed |= self._excluded(error, remaining, fresh)
            except BaseException:
                await self._leave()
                raise
        self._known.forget(failed)
        return Pushed(failed, outgoing.bytes * (len(servers) - len(failed)), outgoing.digest)

    async def close(self) -> None:
        """Ends the child and tells the servers that its group is no more."""
        await self._leave()

    @property
    def _urls(self):
        return [server.url for server in self._members]

    def _excluded(self, error, servers, fresh):
        """Who is not tried again.

        A refusal in a group of earlier may only mean that the server was restarted and does not know of it.
        """
        if error.blamed:
            return {url: reason for url, reason in error.blamed.items() if fresh or isinstance(reason, Unreachable)}
        return {server.url: Unreachable(server.url, _UPDATE, error.sender) for server in servers}

    async def _join(self, servers, ranks, outgoing, deadline):
        """Makes a new group of the child and all ranks of all servers."""
        await self._leave()
        largest = max(outgoing.size(names) for names in outgoing.buckets(self._bucket_bytes))
        self._child = await Child.start(self._python, 2 * largest)
        try:
            port = (await self._child.order("open", deadline, host=self._host, seconds=self._seconds))["port"]
        except ChildLate as error:
            raise _Failed({}, str(error)) from None
        except ChildError as error:
            raise WeightSyncError(_startup_words(error, self._python)) from None
        self._members, self._group = list(servers), f"rlzero-{secrets.token_hex(4)}"
        world = 1 + sum(ranks[server.url] for server in servers)
        shared = {"master_address": self._host, "master_port": port, "world_size": world, "backend": self._backend,
                  "group_name": self._group}
        asked, offset = {}, 1
        for server in servers:
            asked[server] = "/init_weights_update_group", shared | {"rank_offset": offset}
            offset += ranks[server.url]
        joined = self._child.order("join", deadline, name=self._group, backend=self._backend, size=world,
                                   seconds=self._seconds)
        await self._together(joined, asked, deadline)

    async def _send(self, servers, outgoing, version, deadline):
        """Broadcasts all buckets inside a session of each server."""
        failed = await on_each(servers, lambda server: session.begin(server, deadline))
        if failed:
            raise _Failed(failed)
        buckets = outgoing.buckets(self._bucket_bytes)
        half = self._child.memory.size // 2  # one bucket is made while the other is sent

        def prepare(number):
            outgoing.flat(buckets[number], self._child.memory[number % 2 * half:])
            return number

        async with contextlib.aclosing(one_ahead(prepare, range(len(buckets)))) as numbers:
            async for number in numbers:
                names, last = buckets[number], number == len(buckets) - 1
                body = {"names": names, "dtypes": [outgoing.dtype.name] * len(names),
                        "shapes": [list(outgoing.shapes[name]) for name in names], "group_name": self._group,
                        "load_format": "flattened_bucket", "flush_cache": last}
                body |= {"weight_version": version} if last else {}
                sent = self._child.order("broadcast", deadline, start=number % 2 * half, bytes=outgoing.size(names))
                await self._together(sent, {server: (_UPDATE, body) for server in servers}, deadline)
        failed = await session.end(servers, {}, deadline)
        if failed:
            raise _Failed(failed)

    async def _together(self, sender: Awaitable, asked: dict[Server, tuple[str, dict]], deadline: Deadline):
        """Waits for the child and all servers; the first failure ends the child, or the others would wait for ever.

        Raises:
          _Failed: blames whom no answer comes from; if all answer, those that failed before the child was ended.
        """
        child = asyncio.ensure_future(sender)
        # The child's time is up first: those who then answer were only waiting for the one who does not.
        tasks = {server.url: asyncio.ensure_future(server.post(path, body, timeout=deadline.left + 2 * _GRACE_SECONDS))
                 for server, (path, body) in asked.items()}
        try:
            await asyncio.wait([child, *tasks.values()], return_when=asyncio.FIRST_EXCEPTION)
            first = {url: error for url, task in tasks.items() if (error := _error(task))}
            if not first and not _error(child):
                return
            await self._child.end()
            await asyncio.wait([child, *tasks.values()], timeout=_GRACE_SECONDS)
            silent = {url: Unreachable(url, _UPDATE, f"no answer within {deadline.seconds:.0f} s")
                      for url, task in tasks.items() if not task.done()}
            silent |= {url: error for url, task in tasks.items() if isinstance(error := _error(task), Unreachable)}
            raise _Failed(silent or first, str(_error(child) or ""))
        finally:
            for task in (child, *tasks.values()):
                task.cancel()
            await asyncio.gather(child, *tasks.values(), return_exceptions=True)

    async def _leave(self):
        """Ends the child, and has the servers forget the group and the session in it."""
        if self._child is not None:
            await self._child.end()
        members, group = self._members, self._group
        self._child, self._members, self._group = None, [], ""
        if group:
            limit = Deadline(_GRACE_SECONDS / 2)
            await on_each(members, lambda server: server.post("/end_weight_update", {}, timeout=limit.left))
            await on_each(members, lambda server: server.post("/destroy_weights_update_group", {"group_name": group},
                                                              timeout=limit.left))


def _error(task: asyncio.Future) -> ServerError | ChildError | None:
    """What a task failed with; what is neither a server's nor the child's failure is raised."""
    if not task.done() or task.exception() is None:
        return None
    if not isinstance(task.exception(), ServerError | ChildError):
        raise task.exception()
    return task.exception()


def _startup_words(error: ChildError, python: str) -> str:
    if "No module named 'torch" in str(error) or "import of torch halted" in str(error):
        return (f"{python or 'this interpreter'} has no torch, which --config.sync.method=distributed needs: pip "
                "install 'rlzero[sync]', name another interpreter with --config.sync.python, or use "
                "--config.sync.method=tensor")
    return f"the process that sends weights did not start: {error}"
