"""What can go wrong between a client and a server: each function makes one fault for `FaultProxy.inject`."""

import asyncio
import copy
import json
import socket
import struct
from collections.abc import Callable

from aiohttp import web
from fault_proxy import Exchange, Fault

UPDATES = ("/update_weights_from_disk", "/update_weights_from_tensor", "/update_weights_from_distributed")


def status(code: int, message: str = "injected", *, retry_after: float | None = None) -> Fault:
    """An error instead of an answer; the server is not asked."""
    async def fault(exchange: Exchange):
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        return web.json_response({"error": {"message": message}}, status=code, headers=headers)
    return _named(fault, f"status {code}")


def not_json() -> Fault:
    """A page of HTML that calls itself JSON."""
    async def fault(exchange: Exchange):
        return web.Response(text="<html>gateway</html>", content_type="application/json")
    return _named(fault, "not_json")


def wrong_json() -> Fault:
    """JSON of another shape."""
    return _named(said({"detail": "nothing of what was asked"}), "wrong_json")


def truncated_json() -> Fault:
    """The first half of the answer, as if it were all of it."""
    async def fault(exchange: Exchange):
        reply = await exchange.forward()
        return web.Response(body=reply.content[:len(reply.content) // 2], content_type="application/json")
    return _named(fault, "truncated_json")


def close_before_reply(*, after_work: bool = False) -> Fault:
    """The connection is closed instead of an answer; with `after_work`, once the server has done the work."""
    async def fault(exchange: Exchange):
        if after_work:
            await exchange.forward()
        exchange.request.transport.close()
        return web.Response()
    return _named(fault, "close_before_reply")


def reset() -> Fault:
    """The connection is reset instead of an answer."""
    async def fault(exchange: Exchange):
        transport = exchange.request.transport
        # Lingering for 0 seconds turns the closing of a socket into a reset.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
        return web.Response()
    return _named(fault, "reset")


def close_in_body() -> Fault:
    """The connection is closed in the middle of the answer."""
    async def fault(exchange: Exchange):
        reply = await exchange.forward()
        response = web.StreamResponse(headers=reply.headers)
        response.content_length = len(reply.content)
        await response.prepare(exchange.request)
        await response.write(reply.content[:len(reply.content) // 2])
        exchange.request.transport.close()
        return response
    return _named(fault, "close_in_body")


def hang() -> Fault:
    """Accepts the request and never answers."""
    async def fault(exchange: Exchange):
        await asyncio.Event().wait()
    return _named(fault, "hang")


def delay(seconds: float) -> Fault:
    """Waits before it asks the server."""
    async def fault(exchange: Exchange):
        await asyncio.sleep(seconds)
        return (await exchange.forward()).response()
    return _named(fault, "delay")


def late(seconds: float) -> Fault:
    """Has the server answer, whether the client still waits or not, and holds the answer back."""
    async def fault(exchange: Exchange):
        reply = await asyncio.shield(asyncio.ensure_future(exchange.forward()))
        await asyncio.sleep(seconds)
        return reply.response()
    return _named(fault, "late")


def answer_twice() -> Fault:
    """Sends the answer twice over the same connection, where the second could pass for that to the next request."""
    async def fault(exchange: Exchange):
        reply = await exchange.forward()
        response = reply.response()
        await response.prepare(exchange.request)
        await response.write_eof()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(reply.content)}\r\n\r\n"
        exchange.request.transport.write(head.encode() + reply.content)
        return response
    return _named(fault, "answer_twice")


def earlier_answer() -> Fault:
    """The answer to the latest request instead of this one; meets the second request at the earliest."""
    async def fault(exchange: Exchange):
        earlier = exchange.earlier_reply
        exchange.applied = earlier is not None
        return (earlier or await exchange.forward()).response()
    return _named(fault, "earlier_answer")


def edit(change: Callable[[dict], None], name: str = "edit") -> Fault:
    """Changes the JSON of the answer, item by item; an answer that `change` leaves alone is not met."""
    async def fault(exchange: Exchange):
        reply = await exchange.forward()
        try:
            before = reply.json
        except ValueError:
            exchange.applied = False
            return reply.response()
        after = copy.deepcopy(before)
        for item in after if isinstance(after, list) else [after]:
            change(item)
        exchange.applied = after != before
        return reply.with_json(after).response()
    return _named(fault, name)


def strip_logprobs() -> Fault:
    """An answer without log-probabilities."""
    return edit(lambda item: item.get("meta_info", {}).pop("output_token_logprobs", None), "strip_logprobs")


def drop_stop_token() -> Fault:
    """The stop token is missing from the ids, but not from the log-probabilities."""
    def change(item):
        if item.get("meta_info", {}).get("finish_reason", {}).get("type") == "stop":
            del item["output_ids"][-1]
    return edit(change, "drop_stop_token")


def abort_half() -> Fault:
    """The request was aborted half-way."""
    def change(item):
        meta = item.get("meta_info")
        if meta is None:
            return
        half = len(item["output_ids"]) // 2
        del item["output_ids"][half:]
        del meta["output_token_logprobs"][half:]
        meta["completion_tokens"] = meta["output_token_logprobs_length"] = half
        meta["weight_versions"] = [{"version": meta["weight_version"], "start": 0, "end": half}]
        meta["finish_reason"] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    return edit(change, "abort_half")


def other_version(version: str) -> Fault:
    """Another weight version than the server's, in completions and in /model_info."""
    def change(item):
        if "meta_info" in item:
            item["meta_info"]["weight_version"] = version
            for span in item["meta_info"].get("weight_versions", ()):
                span["version"] = version
        elif "weight_version" in item:
            item["weight_version"] = version
    return edit(change, "other_version")


def update_refused(message: str = "parameter not found") -> Fault:
    """An update that fails with HTTP 200; the server is not asked."""
    async def fault(exchange: Exchange):
        return web.json_response({"success": False, "message": message, "num_paused_requests": 0})
    return _named(fault, "update_refused")


def update_ignored(*, version: bool = True) -> Fault:
    """An update that says it succeeded and moved no weights; with `version`, the server even reports the new one."""
    async def fault(exchange: Exchange):
        label = (exchange.seen.body or {}).get("weight_version")
        if version and label is not None:
            await exchange.ask("/update_weight_version", {"new_version": label, "abort_all_requests": False})
        return web.json_response({"success": True, "message": "Succeeded to update model weights.",
                                  "num_paused_requests": 0})
    return _named(fault, "update_ignored")


def flush_refused(*, only_busy: bool = False) -> Fault:
    """A cache that is not flushed; with `only_busy`, as long as a generation request is under way."""
    async def fault(exchange: Exchange):
        if only_busy and not exchange.others_running:
            exchange.applied = False
            return (await exchange.forward()).response()
        return web.Response(status=400, text="Flush cache failed.\n")
    return _named(fault, "flush_refused")


def said(reply: dict, code: int = 200) -> Fault:
    """A fixed answer; the server is not asked."""
    async def fault(exchange: Exchange):
        return web.Response(status=code, body=json.dumps(reply).encode(), content_type="application/json")
    return _named(fault, "said")


def _named(fault: Fault, name: str) -> Fault:
    fault.__qualname__ = name
    return fault
