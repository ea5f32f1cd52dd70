"""What the three ways of moving weights into servers have in common.

A transport moves bytes and reports which server did not take them. Pausing servers, flushing caches, and finding out
whether they serve what they were given is the business of `rlzero.rollout.update`.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from rlzero.rollout.sglang_http import Server, ServerError


@dataclasses.dataclass(frozen=True)
class Pushed:
    """What became of an update.

    Attributes:
      failed: URL -> error, of the servers that did not take the weights.
      bytes: moved, over all servers.
      digest: hash of names, shapes and bytes of what was sent; equal digests, equal weights.
    """

    failed: dict[str, ServerError]
    bytes: int
    digest: str


class Transport(Protocol):
    """Moves weights; used in one event loop."""

    async def push(self, servers: Sequence[Server], params: Any, version: str) -> Pushed:
        """Gives servers new weights under the label `version`; one that fails does not keep the others from theirs.

        Raises:
          OSError: the weights could not be written, for all servers alike.
        """

    async def close(self) -> None:
        """Lets go of processes and files."""


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
