"""New weights into servers, step by step, each step confirmed by the server that it concerns.

Hold new requests, look at the server, pause it, move the weights, flush its cache, read the version back, compare its
checksum, let it continue, have it answer probes. Requests under way are retracted by the pause and go on afterwards
with the new weights; their answers name both versions. Whether a probe is right is decided by `sglang.SGLangEngine`, in
the thread that owns the parameters.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rlzero.models.transformer import ModelConfig
from rlzero.rollout import handshake
from rlzero.rollout.fleet import Fleet, Node
from rlzero.rollout.handshake import HandshakeError, ProbeSample, ServerFacts
from rlzero.rollout.sglang_http import Server, ServerError
from rlzero.rollout.sglang_reply import unused_ids
from rlzero.rollout.weights.transport import Pushed, Transport

_SECONDS = 60.0  # for each request around the transport


class Updater:
    """Moves weights into the servers of a fleet; lives in its event loop.

    Attributes:
      facts: what each server said of itself when it was last given weights, by URL.
      bytes: moved so far.
    """

    def __init__(self, fleet: Fleet, transport: Transport, *, model: ModelConfig, architecture: str, context: int,
                 temperature: float, probes: Sequence[Sequence[int]]):
        """Makes an updater; see `sglang.SGLangOptions` for the arguments."""
        self._unused_ids = unused_ids(model)
        self._fleet, self._transport = fleet, transport
        self._architecture, self._context = architecture, context
        self._temperature, self._probes = temperature, probes
        self._checksums: dict[str, str | None] = {}
        self._digest: str | None = None
        self.facts: dict[str, ServerFacts] = {}
        self.bytes = 0

    async def move(self, nodes: Sequence[Node], params: Any, label: str) -> dict[Node, list[ProbeSample]]:
        """Moves weights into nodes, which stay on hold.

        Args:
          nodes: alive ones.
          params: the trainer's parameters.
          label: the `weight_version` to be.

        Returns:
          The probes of the nodes that took the weights. The others are out of service.

        Raises:
          HandshakeError: a node does not serve this model, or says that it took weights that it does not have.
        """
        for node in nodes:
            node.hold()
        alive = await self._on_each(nodes, self._prepare)
        controls = [control for node in alive for control in node.controls]
        try:
            pushed = await self._transport.push(controls, params, label)
        except BaseException:
            await asyncio.gather(*map(self._continue, controls), return_exceptions=True)
            raise
        self.bytes += pushed.bytes
        changed, self._digest = pushed.digest != self._digest, pushed.digest
        return await self._on_each(alive, lambda node: self._finish(node, label, pushed, changed))

    async def _on_each(self, nodes: Sequence[Node], step: Callable[[Node], Awaitable]) -> dict[Node, Any]:
        """Runs a step on all nodes at once; those on which it fails are taken out of service."""
        results = await asyncio.gather(*(step(node) for node in nodes), return_exceptions=True)
        done = {}
        for node, result in zip(nodes, results, strict=True):
            if isinstance(result, (ServerError, HandshakeError)):
                node.paused = False
                self._fleet.take_out(node, str(result))
                if isinstance(result, HandshakeError):
                    raise result
            elif isinstance(result, BaseException):
                raise result
            else:
                done[node] = result
        return done

    async def look(self, node: Node) -> None:
        """Asks the servers of a node what they serve.

        Raises:
          HandshakeError, ServerError: see `handshake.facts`.
        """
        for control in node.controls:
            self.facts[control.url] = await handshake.facts(
                control, architecture=self._architecture, context=self._context)

    async def _prepare(self, node):
        await self.look(node)
        for control in node.controls:
            await control.post("/pause_generation", {"mode": "retract"}, timeout=_SECONDS)

    async def _finish(self, node, label, pushed: Pushed, changed):
        """Has a node go on with the weights it was given; returns its probes."""
        quiet = not node.running
        for control in node.controls:
            try:
                await self._confirm(control, label, pushed, changed)
            finally:
                await self._continue(control)
        samples = []
        for control in node.controls:
            found = await handshake.sample_probes(control, self._probes, self._temperature,
                                                  self._unused_ids)
            if quiet and found[0].cached_tokens:  # a later probe may share the beginning of the first one
                raise HandshakeError(f"{control.url} answers its first probe from {found[0].cached_tokens} cached "
                                     "tokens of older weights: its cache was not flushed")
            samples += found
        return samples

    async def _continue(self, control):
        """Ends a pause, also that of a server on which something failed: it need not stay paused as well."""
        with contextlib.suppress(ServerError):
            await control.post("/continue_generation", {}, timeout=_SECONDS)

    async def _confirm(self, control, label, pushed, changed):
        """Flushes a server's cache and asks what it has now."""
        if control.url in pushed.failed:
            raise pushed.failed[control.url]
        await control.post("/flush_cache", {}, timeout=_SECONDS)
        version = (await control.get("/model_info")).get("weight_version")
        if version != label:
            raise HandshakeError(f"{control.url} said that it took the weights, but reports version {version!r} "
                                 f"instead of {label!r}")
        await self._check_moved(control, changed)

    async def _check_moved(self, control: Server, changed):
        """A checksum that stays while other weights were sent is an update that did not happen."""
        before, now = self._checksums.get(control.url), await handshake.checksum(control)
        self._checksums[control.url] = now
        if changed and before is not None and before == now:
            raise HandshakeError(f"{control.url} said that it took the weights, but those in its memory are the same "
                                 "as before")
