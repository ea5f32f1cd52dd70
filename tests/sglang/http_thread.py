"""An HTTP server in a thread of the test process, which can go down and come up again on its port.

`fault_proxy.FaultProxy` and `fake_server.FakeServer` are two of them.
"""

import asyncio
import dataclasses
import json
import threading
import time
from typing import Any

from aiohttp import web


@dataclasses.dataclass
class Seen:
    """One request, as it arrived.

    Attributes:
      path: such as /generate.
      body: the JSON that was sent; None without one.
      time: when it arrived, on time.monotonic's clock.
      status: of the answer; None as long as, or because, there is none.
      fault: name of the fault that was injected; None if there was none.
    """

    path: str
    body: Any
    time: float
    status: int | None = None
    fault: str | None = None


class HttpThread:
    """Serves `handle` on a port of 127.0.0.1; a context manager.

    Attributes:
      seen: every request, in the order of arrival.
    """

    def __init__(self, port: int = 0):
        self.seen: list[Seen] = []
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=type(self).__name__, daemon=True)
        self._runner: web.AppRunner | None = None

    async def handle(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        """Answers one request; cancelled when its client goes away."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def paths(self, *wanted: str) -> list[str]:
        """Paths of the requests so far, in order; only those in `wanted`, if any are named."""
        return [seen.path for seen in self.seen if not wanted or seen.path in wanted]

    def bodies(self, path: str) -> list[Any]:
        """What was sent to a path, in order."""
        return [seen.body for seen in self.seen if seen.path == path]

    def up(self) -> None:
        """Listens, on the same port as before."""
        self.run(self._up())

    def down(self) -> None:
        """Closes all connections, answered or not; new ones are refused."""
        self.run(self._down())

    def run(self, coroutine) -> Any:
        """Runs a coroutine in the server's thread and waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def __enter__(self):
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *_):
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self):
        await self._down()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _up(self):
        if self._runner is not None:
            return
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", self._receive)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _down(self):
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for site in list(runner.sites):
            await site.stop()
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def _receive(self, request):
        content = await request.read()
        seen = Seen(request.path, json.loads(content) if content.strip() else None, time.monotonic())
        self.seen.append(seen)
        response = await self.handle(request, seen)
        seen.status = response.status
        return response
