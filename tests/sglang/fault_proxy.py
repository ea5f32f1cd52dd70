"""A proxy in front of a server that lets everything pass, except for the faults a test asked for.

    with FaultProxy(server.url) as proxy:
        proxy.inject(faults.status(503), path="/generate", times=2)      # the next two requests
        proxy.inject(faults.hang(), skip=3, when=lambda body: body["rid"].endswith("7"))
        ...
        assert proxy.paths("/pause_generation", "/flush_cache") == ["/pause_generation", "/flush_cache"]

The faults are in `faults`.
"""

import asyncio
import collections
import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web
from http_thread import HttpThread, Seen

_SKIPPED_HEADERS = {"content-length", "transfer-encoding", "connection", "date", "server"}


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    def with_json(self, value: Any) -> "Reply":
        return dataclasses.replace(self, content=json.dumps(value).encode())

    def response(self) -> web.Response:
        return web.Response(status=self.status, headers=self.headers, body=self.content)


Fault = Callable[["Exchange"], Awaitable[web.StreamResponse]]


@dataclasses.dataclass
class Rule:
    """Which requests a fault meets.

    Attributes:
      fault: what happens to them.
      path: of the request; None for any.
      times: how many requests are left; None for all.
      skip: how many matching ones pass before.
      when: whether a body matches; None for any.
      hits: how many requests it met.
    """

    fault: Fault
    path: str | None
    times: int | None
    skip: int
    when: Callable[[Any], bool] | None
    hits: int = 0

    def meets(self, seen: Seen) -> bool:
        """Whether the fault happens to a request; counts it if so."""
        if self.path not in (None, seen.path) or self.times == 0 or (self.when and not self.when(seen.body)):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.count(1)
        return True

    def count(self, sign: int) -> None:
        self.hits += sign
        if self.times is not None:
            self.times -= sign


class Exchange:
    """One request on its way through the proxy, as a fault sees it.

    Attributes:
      request: the client's.
      seen: its record.
      applied: a fault that finds nothing to spoil in the answer sets it to False, and meets the next request instead.
    """

    def __init__(self, proxy: "FaultProxy", request: web.Request, seen: Seen):
        self._proxy, self.request, self.seen, self.applied = proxy, request, seen, True

    async def forward(self) -> Reply:
        """Has the server answer, and remembers what it said."""
        reply = await self._proxy.ask(self.request.method, self.request.path_qs, await self.request.read())
        self._proxy.latest[self.seen.path] = reply
        return reply

    async def ask(self, path: str, body: Any) -> Reply:
        """Sends the server another request."""
        return await self._proxy.ask("POST", path, json.dumps(body).encode())

    @property
    def earlier_reply(self) -> Reply | None:
        """What the server said to the latest request for this path."""
        return self._proxy.latest.get(self.seen.path)

    @property
    def others_running(self) -> int:
        """Generation requests under way."""
        return self._proxy.running["/generate"] - (self.seen.path == "/generate")


class FaultProxy(HttpThread):
    """Forwards to a server.

    Attributes:
      target: URL of the server; may be changed.
      latest: the server's latest reply, by path.
      running: how many requests are under way, by path.
    """

    def __init__(self, target: str, port: int = 0):
        super().__init__(port)
        self.target = target
        self.latest: dict[str, Reply] = {}
        self.running: collections.Counter[str] = collections.Counter()
        self._rules: list[Rule] = []

    def inject(self, fault: Fault, *, path: str | None = "/generate", times: int | None = 1, skip: int = 0,
               when: Callable[[Any], bool] | None = None) -> Rule:
        """Has a fault happen to requests to come; the oldest rule that meets a request gets it.

        Args:
          fault: one of `faults`.
          path: of the requests; None for any.
          times: to how many requests; None for all.
          skip: how many that match pass before.
          when: whether the body of a request matches, for example by its rid.

        Returns:
          The rule, whose `hits` counts.
        """
        rule = Rule(fault, path, times, skip, when)
        self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Forgets all rules; requests that hang go on hanging."""
        self._rules = []

    async def ask(self, method: str, path: str, content: bytes) -> Reply:
        """Sends a request to the server, on a connection of its own."""
        headers = {"Content-Type": "application/json"} if content else {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            async with session.request(method, self.target + path, data=content or None, headers=headers) as response:
                body = await response.read()
                kept = {name: value for name, value in response.headers.items()
                        if name.lower() not in _SKIPPED_HEADERS}
                return Reply(response.status, kept, body)

    async def handle(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        exchange = Exchange(self, request, seen)
        rule = next((rule for rule in self._rules if rule.meets(seen)), None)
        self.running[seen.path] += 1
        try:
            if rule is None:
                return (await exchange.forward()).response()
            seen.fault = rule.fault.__qualname__
            response = await rule.fault(exchange)
            if not exchange.applied:
                rule.count(-1)
                seen.fault = None
            return response
        except (aiohttp.ClientError, ConnectionError):
            # As if the client had talked to the server itself.
            request.transport.abort()
            return web.Response(status=502)
        except asyncio.CancelledError:
            seen.fault = seen.fault or "client left"
            raise
        finally:
            self.running[seen.path] -= 1
