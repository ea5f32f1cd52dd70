"""Servers at work: who runs what, who is out of service, and what happens to a request whose server fails.

A request is tried on any server until it is done, refused, or out of tries or time; each is delivered at most once. A
server that closes connections, hangs or answers with weights it should not have is taken out of service: its requests
go to the others, and it waits, once it is alive again, in `returned` until the engine has given it weights and checked
them. Everything here runs in one event loop; `sglang.SGLangEngine` is the side that the trainer sees.
"""

import asyncio
import collections
import contextlib
import dataclasses
import random
import time
import uuid
from collections.abc import Callable, Sequence

from absl import logging

from rlzero.models.transformer import ModelConfig
from rlzero.rollout import sglang_reply
from rlzero.rollout.dispatch import Call, Item
from rlzero.rollout.engine import Completion, RolloutError
from rlzero.rollout.sglang_http import Malformed, Refused, Server, ServerError, Unreachable

_LONGEST_BACKOFF = 30.0  # seconds
_POLL = 1.0  # seconds between looks at a server that is out of service


@dataclasses.dataclass(frozen=True)
class FleetOptions:
    """Limits of patience. Times are in seconds.

    Attributes:
      concurrency: requests that a server has at a time.
      tries: how often a request is sent before it counts as lost.
      request_seconds: from its first sending to its completion, all tries together.
      stall_seconds: without any answer after which a server must prove that it still generates.
      outage_seconds: how long there may be no server in service before the rollout fails.
    """

    concurrency: int = 64
    tries: int = 5
    request_seconds: float = 1800.0
    stall_seconds: float = 60.0
    outage_seconds: float = 300.0


class Node:
    """Where generation requests go, and the servers behind it that hold weights: itself, or a router's workers."""

    def __init__(self, server: Server, controls: Sequence[Server], concurrency: int):
        self.server, self.controls = server, list(controls)
        self.ready = asyncio.Event()  # takes requests
        self.out = True  # of service, not known to be alive
        self.returned = False  # alive again, without weights that we know
        self.paused = False  # by us, for an update of weights
        self.slots = asyncio.Semaphore(concurrency)
        self.running: dict[str, asyncio.Task] = {}  # request id -> its try
        self.doubt = asyncio.Event()
        self.last_sign = time.monotonic()
        self.tally: collections.Counter[str] = collections.Counter()

    @property
    def url(self) -> str:
        return self.server.url

    def hold(self) -> None:
        """Sends nothing new until `admit`."""
        self.paused = True
        self.ready.clear()

    def admit(self) -> None:
        """Puts the server into service."""
        self.out = self.returned = self.paused = False
        self.last_sign = time.monotonic()
        self.doubt.clear()
        self.ready.set()


class Fleet:
    """All servers of an engine."""

    def __init__(self, nodes: Sequence[Node], options: FleetOptions, *, model: ModelConfig,
                 version_of: Callable[[str], int], newest_version: Callable[[], int]):
        """Makes the fleet, with every server out of service.

        Args:
          nodes: the servers.
          options: limits of patience.
          model: shape of the model; says which ids may be sampled.
          version_of: policy version behind a server's `weight_version`, -1 for one that is not ours.
          newest_version: the version that servers in service have.
        """
        self.nodes, self._options = list(nodes), options
        self._vocab_size = model.sampled_vocab_size or model.vocab_size
        self._unused_ids = sglang_reply.unused_ids(model)
        self._version_of, self._newest_version = version_of, newest_version
        self.counts: collections.Counter[str] = collections.Counter()
        self._out_since: float | None = None
        self._shown: set[tuple[str, str]] = set()
        self._calls: set[Call] = set()
        self._watchers = [asyncio.ensure_future(self._watch(node)) for node in self.nodes]

    @property
    def in_service(self) -> list[Node]:
        """Servers with weights that we know, paused ones included."""
        return [node for node in self.nodes if not node.out and not node.returned]

    @property
    def returned(self) -> list[Node]:
        return [node for node in self.nodes if node.returned]

    async def close(self) -> None:
        """Ends the calls that are under way, with an error, and all tasks."""
        for call in self._calls:
            call.fail(RolloutError("the rollout engine was closed"))
        while self._calls:
            await asyncio.sleep(0.01)
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)

    async def run(self, call: Call) -> None:
        """Completes the requests of a call, or fails it; returns when it is over and nothing of it runs any more."""
        feeders = [asyncio.ensure_future(self._feed(call, node)) for node in self.nodes]
        self._calls.add(call)
        try:
            while not call.over.is_set():
                try:
                    await asyncio.wait_for(call.over.wait(), _POLL)
                except asyncio.TimeoutError:
                    self._fail_after_outage(call)
                broken = [feeder.exception() for feeder in feeders if feeder.done()]
                if broken:
                    call.fail(broken[0])
        finally:
            for feeder in feeders:
                feeder.cancel()
            await asyncio.gather(*feeders, return_exceptions=True)
            await self._abandon(call)
            self._calls.discard(call)

    def take_out(self, node: Node, reason: str) -> None:
        """Takes a server out of service; what it was working on goes to the others."""
        if node.out:
            return
        node.out, node.returned, node.paused = True, False, False
        node.ready.clear()
        self.counts["servers_lost"] += 1
        logging.warning("%s is out of service: %s", node.url, reason)
        for task in list(node.running.values()):
            task.cancel()

    async def _feed(self, call, node):
        """Sends requests of a call to one server as long as it has room."""
        while True:
            await node.ready.wait()
            await node.slots.acquire()
            try:
                item = await call.work.take(node.url)
            except asyncio.CancelledError:
                node.slots.release()
                raise
            if not node.ready.is_set():
                call.work.put_back(item)
                node.slots.release()
                continue
            rid = f"{item.name}-{uuid.uuid4().hex[:12]}"
            task = asyncio.ensure_future(self._try(call, node, item, rid))
            task.call = call
            node.running[rid] = task
            task.add_done_callback(lambda _, rid=rid: (node.running.pop(rid), node.slots.release()))

    async def _try(self, call: Call, node: Node, item: Item, rid: str) -> None:
        """One try of a request; leaves it delivered, lost, or put back."""
        now = time.monotonic()
        item.tries += 1
        item.deadline = item.deadline or now + self._options.request_seconds
        body = sglang_reply.generate_body(item.request, call.sampling, rid, self._unused_ids)
        try:
            reply = await node.server.post("/generate", body, timeout=item.deadline - now)
            completion = self._completion(reply, call, item, rid, node)
        except asyncio.CancelledError:
            if not call.over.is_set():  # the server was taken out of service, which is not the request's fault
                item.tries -= 1
                call.work.put_back(item)
            raise
        except Refused as error:
            self._lose(call, item, "refused", error)
        except Unreachable as error:
            node.doubt.set()
            self._again(call, item, "unreachable", error, error.retry_after)
        except Malformed as error:
            self._again(call, item, "malformed", error)
        else:
            self._accept(call, node, item, completion, reply["meta_info"], time.monotonic() - now)

    def _completion(self, reply, call, item, rid, node):
        try:
            return sglang_reply.completion(reply, item.request, call.sampling, rid=rid, vocab_size=self._vocab_size,
                                           version_of=self._version_of)
        except ValueError as error:
            raise Malformed(node.url, "/generate", f"request {item.name}: {error}") from None

    def _accept(self, call, node, item, completion: Completion, meta, seconds):
        node.last_sign = time.monotonic()
        if completion.finish_reason == "abort":
            error = ServerError(node.url, "/generate", f"request {item.name} was aborted by the server")
            self._again(call, item, "aborted", error)
            return
        newest = self._newest_version()
        if not all(call.oldest_version <= span.version <= newest for span in completion.spans):
            served = sorted({span.version for span in completion.spans})
            error = Malformed(node.url, "/generate", f"request {item.name} was sampled by policy version {served}, "
                              f"expected {call.oldest_version} to {newest} (-1: weights that are not of this run)")
            self.take_out(node, str(error))
            self._again(call, item, "stale", error)
            return
        ids, cut = completion.completion_ids, completion.finish_reason == "length"
        if not call.deliver(completion):
            self.counts["late"] += 1
            return
        self.counts["finish_disagreements"] += cut and call.sampling.end(ids) is not None
        node.tally.update(completions=1, tokens=len(ids), prompt_tokens=len(item.request.prompt_ids),
                          cached_tokens=int(meta.get("cached_tokens") or 0), busy_seconds=seconds)

    def _again(self, call, item, kind, error, delay=0.0):
        """Has a failed request sent again after a growing, jittered pause; or gives it up."""
        self.counts[kind] += 1
        self._show(kind, error)
        pause = max(delay, min(0.25 * 2 ** item.tries, _LONGEST_BACKOFF) * random.uniform(0.5, 1.0))
        if item.tries >= self._options.tries or time.monotonic() + pause > item.deadline:
            self._lose(call, item, "given_up", error)
            return
        self.counts["retries"] += 1
        call.work.put_back(item, pause)

    def _lose(self, call, item, kind, error):
        self.counts[kind] += 1
        self._show(kind, error)
        call.deliver(Completion(item.request, (), (), "abort", self._newest_version()))

    def _show(self, kind, error):
        """Logs an error the first time that a server has one of this kind; the others are counted."""
        if (kind, error.url) not in self._shown:
            self._shown.add((kind, error.url))
            logging.warning("%s (%s; further ones of this server are only counted)", error, kind)

    def _fail_after_outage(self, call):
        if self.in_service:
            self._out_since = None
            return
        self._out_since = self._out_since or time.monotonic()
        seconds = time.monotonic() - self._out_since
        if seconds > self._options.outage_seconds:
            call.fail(RolloutError(
                f"no rollout server has been in service for {seconds:.0f} s ({', '.join(n.url for n in self.nodes)}), "
                f"{call.missing} completions are missing; start them again, and the same command goes on"))

    async def _abandon(self, call):
        """Stops what still runs of a call that is over, here and on the servers."""
        for node in self.nodes:
            left = {rid: task for rid, task in node.running.items() if task.call is call}
            for task in left.values():
                task.cancel()
            self.counts["abandoned"] += len(left)
            await asyncio.gather(*left.values(), return_exceptions=True)
            await asyncio.gather(*(control.post("/abort_request", {"rid": rid}, timeout=5.0)
                                   for rid in left for control in node.controls), return_exceptions=True)

    async def _watch(self, node: Node) -> None:
        """Notices that a server died or hangs, and when it is alive again."""
        while True:
            try:
                await asyncio.wait_for(node.doubt.wait(), _POLL)
            except asyncio.TimeoutError:
                pass
            if node.paused or node.returned:
                node.doubt.clear()
                continue
            if not node.out:
                silent = node.running and time.monotonic() - node.last_sign > self._options.stall_seconds
                if not node.doubt.is_set() and not silent:
                    continue
                node.doubt.clear()
                if await node.server.alive(self._options.stall_seconds):
                    node.last_sign = time.monotonic()
                elif not node.paused:
                    self.take_out(node, "it gives no sign of life")
                continue
            await self._unpause(node)
            if await node.server.alive(self._options.stall_seconds):
                node.out, node.returned = False, True
            else:
                await asyncio.sleep(_POLL)

    async def _unpause(self, node):
        """Has a server go on that was left paused by a trainer that died in an update; it would look dead for ever."""
        for control in node.controls:
            with contextlib.suppress(ServerError):
                await control.post("/continue_generation", {}, timeout=_POLL)
