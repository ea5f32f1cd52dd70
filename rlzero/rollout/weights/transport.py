"""What the three ways of moving weights into servers have in common.

A transport moves bytes and reports which server did not take them. Pausing servers, flushing caches, and finding out
whether they serve what they were given is the business of `rlzero.rollout.update`.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from rlzero.rollout.sglang_http import Server, ServerError


class WeightSyncError(RuntimeError):
    """No server can be given weights in this way; says what to change."""


@dataclasses.dataclass(frozen=True)
class Pushed:
    """What became of an update.

    Attributes:
      failed: URL -> error, of the servers that did not take the weights.
      bytes: of tensors, over all servers that took them.
      digest: of what was sent: other weights, another digest.
    """

    failed: dict[str, ServerError]
    bytes: int
    digest: str


class Transport(Protocol):
    """Moves weights; used in one event loop."""

    async def push(self, servers: Sequence[Server], params: Any, version: str) -> Pushed:
        """Gives servers new weights under the label `version`; one that fails does not keep the others from theirs.

        Nothing reads `params` any more when this returns or raises.

        Raises:
          ValueError: names or shapes are not those of the model that training started from; nothing was sent.
          HandshakeError: a server holds a model with other parameters; it was sent nothing.
          WeightSyncError, OSError: weights cannot be moved in this way, whatever the server.
        """

    async def close(self) -> None:
        """Lets go of processes and files."""


class Deadline:
    """A moment after which nothing is waited for."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then, at least 0."""
        return max(self._end - time.monotonic(), 0.0)

    def shared(self, servers: int) -> "Deadline":
        """For a step of several servers: half of what is left, so that a silent one leaves time for the others."""
        return Deadline(self.left / 2) if servers > 1 else self


async def on_each(servers: Sequence[Server], step: Callable[[Server], Awaitable]) -> dict[str, ServerError]:
    """Runs a step on all servers at once; returns the errors of those on which it failed, by URL."""
    results = await asyncio.gather(*(step(server) for server in servers), return_exceptions=True)
    failed = {}
    for server, result in zip(servers, results, strict=True):
        if isinstance(result, ServerError):
            failed[server.url] = result
        elif isinstance(result, BaseException):
            raise result
    return failed
