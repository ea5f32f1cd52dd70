"""The requests of one call, handed to whichever server is free, one prompt's samples to the same server where possible.

A server computes a prompt once and keeps it, so the samples of a prompt are best sampled in one place. A server takes
the next sample of its own prompt, else a prompt nobody has begun, else it helps another server to finish one. Requests
that failed come back here and wait for their time.
"""

import asyncio
import collections
import dataclasses
import heapq
import itertools
import queue
import time
from collections.abc import Sequence

from rlzero.rollout.engine import Completion, Request, Sampling


@dataclasses.dataclass
class Item:
    """A request on its way: how often it was tried, and when it must be done (`time.monotonic`), once it was sent."""

    request: Request
    tries: int = 0
    deadline: float | None = None

    @property
    def name(self) -> str:
        return f"{self.request.prompt_id}#{self.request.sample_index}"


class Work:
    """Requests that are to be sent. Used within one event loop."""

    def __init__(self, requests: Sequence[Request]):
        prompts = collections.defaultdict(collections.deque)
        for request in requests:
            prompts[request.prompt_id].append(Item(request))
        self._untouched = collections.deque(prompts.values())
        self._begun: dict[str, collections.deque[Item]] = {}  # server -> rest of the prompt it is at
        self._again: list[tuple[float, int, Item]] = []  # heap of (not before, tie-break, item)
        self._numbers = itertools.count()
        self._changed = asyncio.Event()

    async def take(self, server: str) -> Item:
        """The next request for this server; waits until there is one."""
        while True:
            item = self._next(server)
            if item is not None:
                return item
            self._changed.clear()
            pause = max(self._again[0][0] - time.monotonic(), 0.0) if self._again else None
            try:
                await asyncio.wait_for(self._changed.wait(), pause)
            except asyncio.TimeoutError:
                pass  # the first of those that wait is due

    def put_back(self, item: Item, delay: float = 0.0) -> None:
        """Has a request sent again, by any server, after `delay` seconds."""
        heapq.heappush(self._again, (time.monotonic() + delay, next(self._numbers), item))
        self._changed.set()

    def _next(self, server):
        if self._again and self._again[0][0] <= time.monotonic():
            return heapq.heappop(self._again)[2]
        own = self._begun.get(server)
        if not own and self._untouched:
            own = self._begun[server] = self._untouched.popleft()
        if not own:
            own = max(self._begun.values(), key=len, default=None)
        return own.popleft() if own else None


class Call:
    """One call of `Engine.generate`: its work, and the queue on which its caller waits in another thread.

    `results` carries completions, then None; or an exception instead, after which nothing follows.
    """

    def __init__(self, requests: Sequence[Request], sampling: Sampling, oldest_version: int):
        self.sampling, self.oldest_version = sampling, oldest_version
        self.results: queue.SimpleQueue[Completion | Exception | None] = queue.SimpleQueue()
        self.work = Work(requests)
        self.over = asyncio.Event()
        self._open = {(request.prompt_id, request.sample_index) for request in requests}
        self._finish_if_done()

    def deliver(self, completion: Completion) -> bool:
        """Hands a completion to the caller, once: False for a second answer to the same request, or one too late."""
        key = completion.request.prompt_id, completion.request.sample_index
        if key not in self._open or self.over.is_set():
            return False
        self._open.remove(key)
        self.results.put(completion)
        self._finish_if_done()
        return True

    def fail(self, error: Exception) -> None:
        """Ends the call with an error."""
        if not self.over.is_set():
            self.over.set()
            self.results.put(error)

    def cancel(self) -> None:
        """Ends the call; nobody waits for the rest."""
        self.over.set()

    @property
    def missing(self) -> int:
        """Requests without a completion."""
        return len(self._open)

    def _finish_if_done(self):
        if not self._open:
            self.over.set()
            self.results.put(None)
