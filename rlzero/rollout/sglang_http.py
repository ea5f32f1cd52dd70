"""One SGLang server over HTTP: a JSON body out, a JSON body back, and every way in which that fails under its name.

What the paths mean is the business of `sglang_reply`, `handshake` and `weights`; who is asked what, of `fleet`.
Seen of SGLang 0.5.23: a bad request is answered 400; a dying server closes the connection without an answer and then
refuses new ones; an update that did not happen may be a 200 with `"success": false`.
"""

import asyncio
import io
import json
from typing import Any

import aiohttp

_KEPT_CONNECTION_SECONDS = 4  # the server closes idle connections after 5, and a request must not meet that moment
_RETRYABLE_4XX = (408, 429)


class ServerError(Exception):
    """A request that a server did not fulfil.

    Attributes:
      url: the server.
      path: what was asked.
      message: what went wrong, in the server's words where it had any.
    """

    def __init__(self, url: str, path: str, message: str):
        super().__init__(f"{url}{path}: {message}")
        self.url, self.path, self.message = url, path, message


class Refused(ServerError):
    """The server understood and said no: 4xx, or `success` false. The same request would be refused again."""


class Unreachable(ServerError):
    """No answer (refused, reset, closed, too late), or one that may be another next time: 5xx, 408, 429.

    `retry_after` is how many seconds the server asked to wait, 0 if it did not say.
    """

    def __init__(self, url: str, path: str, message: str, retry_after: float = 0.0):
        super().__init__(url, path, message)
        self.retry_after = retry_after


class Malformed(ServerError):
    """An answer that is not what this server should say: no JSON, or JSON that contradicts itself."""


def make_session() -> aiohttp.ClientSession:
    """A session for any number of servers; concurrency is bounded by the callers, proxies of the environment unused."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_CONNECTION_SECONDS)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None), trust_env=False)


class Server:
    """The HTTP interface of one server (or of a router in front of several)."""

    def __init__(self, url: str, session: aiohttp.ClientSession, *, seconds: float = 30.0):
        """Makes the handle; nothing is sent.

        Args:
          url: such as http://10.0.0.5:30000.
          session: of `make_session`, in whose event loop the methods are awaited.
          seconds: total deadline of a request that names none.
        """
        self.url, self._session, self._seconds = url.rstrip("/"), session, seconds

    async def get(self, path: str, *, timeout: float | None = None) -> dict[str, Any]:
        """The JSON object at `path`; {} for an answer that is no JSON, such as plain text or nothing."""
        return await self._request("GET", path, None, timeout)

    async def post(self, path: str, body: Any, *, timeout: float | None = None) -> dict[str, Any]:
        """Sends `body` as JSON; returns the JSON object of the answer, {} for one that is no JSON.

        Bytes are sent as they are: JSON that is already written, which for weights is most of the work.

        Raises:
          Refused, Unreachable, Malformed: see there.
        """
        return await self._request("POST", path, body, timeout)

    async def alive(self, seconds: float) -> bool:
        """Whether the server generates a token within so many seconds. A paused one does not."""
        try:
            await self.get("/health_generate", timeout=seconds)
        except ServerError:
            return False
        return True

    async def _request(self, method, path, body, timeout):
        deadline = aiohttp.ClientTimeout(total=self._seconds if timeout is None else max(timeout, 1e-3))
        sent = {"json": body}
        if isinstance(body, bytes):
            sent = {"data": io.BytesIO(body), "headers": {"Content-Type": "application/json"}}
        try:
            async with self._session.request(method, self.url + path, timeout=deadline, **sent) as response:
                content, kind = await response.read(), response.content_type
        except asyncio.TimeoutError:
            raise Unreachable(self.url, path, f"no answer within {deadline.total:.1f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            words = str(error) or type(error).__name__
            raise Unreachable(self.url, path, f"no answer ({words})") from error
        self._raise_for_status(path, response, content)
        return self._object(path, content, kind)

    def _raise_for_status(self, path, response, content):
        status = response.status
        if status < 400:
            return
        message = f"HTTP {status}: {_words(content)}"
        if status < 500 and status not in _RETRYABLE_4XX:
            raise Refused(self.url, path, message)
        raise Unreachable(self.url, path, message, _seconds(response.headers.get("Retry-After", "")))

    def _object(self, path, content, kind):
        if not content.strip() or kind != "application/json":
            return {}
        try:
            found = json.loads(content)
        except ValueError as error:
            raise Malformed(self.url, path, f"expected JSON, got {content[:80]!r} ({error})") from None
        if not isinstance(found, dict):
            raise Malformed(self.url, path, f"expected a JSON object, got {content[:80]!r}")
        if found.get("success") is False:
            raise Refused(self.url, path, str(found.get("message") or "success is false, without a reason"))
        return found


def _words(content: bytes) -> str:
    """The message in an error's body, wherever this version of the server put it."""
    text = content.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text[:500] or "no reason given"
    while isinstance(found, dict):
        found = found.get("error") or found.get("message") or found.get("detail") or text
    return str(found)[:500]


def _seconds(text: str) -> float:
    """Retry-After in seconds; a date, which no inference server sends, counts as none."""
    try:
        return max(float(text), 0.0)
    except ValueError:
        return 0.0
