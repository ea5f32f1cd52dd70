"""SGLang's HTTP interface without SGLang, for tests of a client that need no model: answers at once, always the same.

    with FakeServer() as server:
        ...  # server.url, server.seen, server.weight_version, server.crash()

Modelled on the real server, in its oddities too: it dies of ids outside its vocabulary; an abort ends every request
whose id begins with the one named; an abort of a request that waits for the end of a pause is lost; a cache is not
flushed while requests run. `test_fake_server` compares its answers with recorded and, where there is one, with a real
server's. Other than the real one it answers /health_generate at once and honours `sampling_seed`.
"""

import asyncio
import base64
import hashlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import fake_replies as replies
import numpy as np
from aiohttp import web
from fake_requests import FEWEST_FREE, Invalid, Item, items_of
from http_thread import HttpThread, Seen


class FakeServer(HttpThread):
    """A server with a toy model, or with one that is given as a function.

    Attributes:
      weights: what `load` made of the latest update; at first the argument.
      weight_version: as served.
      paused: mode of the pause; None outside of one.
      seconds_per_token: time that each token takes; may be changed.
    """

    def __init__(self, *, vocab_size: int = 24, eos_id: int = 1, context: int = 128, max_running: int = 32,
                 seconds_per_token: float = 0.0, weights: Any = "initial",
                 logits: Callable[[Any, Sequence[int]], np.ndarray] | None = None,
                 load: Callable[[str, dict], Any] | None = None, architecture: str = "LlamaForCausalLM",
                 original_logprobs: bool = False, port: int = 0):
        """Makes a server that does not listen yet.

        Args:
          vocab_size: ids lie below it.
          eos_id: ends a completion like a stop id, unless `ignore_eos`.
          context: tokens of prompt and completion.
          max_running: requests at a time; further ones queue.
          seconds_per_token: time that each token takes.
          weights: first argument of `logits`.
          logits: `logits(weights, ids)` [vocab_size] of the next token; by default pseudo-random ones, which depend on
            the weights and the last three ids.
          load: `load(path, body)` gives the weights of an update, ValueError refuses it; by default a digest of what
            was sent, so that the same weights behave the same.
          architecture: reported in /model_info.
          original_logprobs: report log-probabilities before the temperature is applied.
          port: to listen on; 0 for any.
        """
        super().__init__(port)
        self.vocab_size, self.eos_id, self.context = vocab_size, eos_id, context
        self.max_running, self.seconds_per_token = max_running, seconds_per_token
        self.weights, self.weight_version, self.architecture = weights, "default", architecture
        self.original_logprobs = original_logprobs
        self._logits, self._load = logits or self._toy_logits, load or _digest
        self.paused: str | None = None
        self._session_open = False
        self._checksum = hashlib.sha256(b"initial").hexdigest()
        self._held: set[str] = set()  # not let in yet
        self._running: dict[str, Item] = {}
        self._abort_sent: set[str] = set()  # of those, once is all the server does
        self._updating = False
        self._cached: list[tuple[int, ...]] = []

    @property
    def running(self) -> list[str]:
        """Ids of the requests that were let in and are not answered."""
        return list(self._running)

    @property
    def held(self) -> list[str]:
        """Ids of the requests that wait for the end of a pause or of an update."""
        return list(self._held)

    def progress(self, rid: str) -> int:
        """How many tokens a running request has."""
        return len(self._running[rid].output_ids)

    def crash(self) -> None:
        """Closes all connections, and refuses new ones."""
        self.down()

    def restart(self) -> None:
        """Listens again, with the weights and the version that it had at first and an empty cache."""
        self.weights, self.weight_version, self.paused = "initial", "default", None
        self._session_open, self._updating, self._cached = False, False, []
        self._running.clear()
        self.up()

    # Requests.

    async def handle(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        handler = self._HANDLERS.get(request.path.replace("/get_", "/"))
        if handler is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return await handler(self, seen.body or {})

    async def _generate(self, body):
        try:
            items = items_of(body, context=self.context, running=self._running.keys() | self._held)
        except Invalid as error:
            return error.response
        if any(not item.ids or min(item.ids) < 0 or max(item.ids) >= self.vocab_size for item in items):
            # The real server's scheduler dies, and takes everything with it.
            asyncio.ensure_future(self._down())
            await asyncio.Event().wait()
        answers = await asyncio.gather(*(self._complete(item) for item in items))
        return web.json_response(answers[0] if items[0].single else list(answers))

    async def _complete(self, item: Item):
        self._held.add(item.rid)
        try:
            while self.paused or self._updating:
                await asyncio.sleep(0.002)
        finally:
            self._held.discard(item.rid)
        self._running[item.rid] = item
        try:
            while list(self._running).index(item.rid) >= self.max_running:
                await asyncio.sleep(0.002)
                if item.aborted:
                    return replies.aborted_in_queue(item, self.weight_version)
            return await self._sample(item)
        finally:
            self._running.pop(item.rid, None)
            self._abort_sent.discard(item.rid)

    async def _sample(self, item: Item):
        generator = np.random.default_rng(_number(item.seed if item.seed is not None else item.rid))
        cached = self._prefix(item.ids)
        while not item.finished:
            await asyncio.sleep(self.seconds_per_token)
            while self.paused in ("retract", "in_place") and not item.aborted:
                await asyncio.sleep(0.002)
            if item.aborted:
                if self.paused == "retract":
                    return replies.aborted_in_queue(item, self.weight_version)
                break
            self._step(item, generator)
        self._cached.append(tuple(item.ids + item.output_ids))
        return replies.completion(item, cached=cached, version=self.weight_version)

    def _step(self, item, generator):
        logits = np.asarray(self._logits(self.weights, item.ids + item.output_ids), np.float64)
        temperature = item.parameters.get("temperature", 1.0)
        raw = _log_softmax(logits)
        tempered = raw if temperature == 0 else _log_softmax(logits / temperature)
        token = int(raw.argmax()) if temperature == 0 else int(generator.choice(len(raw), p=np.exp(tempered)))
        reported = raw if self.original_logprobs else tempered
        item.add(token, float(reported[token]), self.weight_version, eos_id=self.eos_id)

    def _toy_logits(self, weights, ids):
        return 2.0 * np.random.default_rng(_number(f"{weights} {list(ids[-3:])}")).normal(size=self.vocab_size)

    def _prefix(self, ids):
        """Length of the longest prefix of a prompt that is cached; the last id is always computed."""
        best = 0
        for known in self._cached:
            same = next((i for i, pair in enumerate(zip(known, ids)) if pair[0] != pair[1]), min(len(known), len(ids)))
            best = max(best, same)
        return min(best, len(ids) - 1)

    async def _abort(self, body):
        rid, everything = body.get("rid") or "", bool(body.get("abort_all"))
        if not everything:
            if rid not in self._running.keys() | self._held or rid in self._abort_sent:
                return web.Response()
            self._abort_sent.add(rid)
        for name, item in self._running.items():
            item.aborted |= everything or name.startswith(rid)
        return web.Response()

    async def _pause(self, body):
        self.paused = body.get("mode", "abort")
        while self.paused == "abort" and self._running:
            await self._abort({"abort_all": True})
            await asyncio.sleep(0.002)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, body):
        self.paused = None
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, body):
        if self._running and self.paused != "retract":
            return web.Response(status=400, text="Flush cache failed.\n")
        self._cached = []
        return web.Response(text=replies.FLUSHED)

    # Weights.

    async def _update_from_disk(self, body):
        if not pathlib.Path(body.get("model_path", "")).is_dir():
            return replies.updated(False, "Failed to get weights iterator: Repo id must be in the form 'repo_name' or "
                                          f"'namespace/repo_name': '{body.get('model_path')}'.", paused_requests=True)
        return await self._update("/update_weights_from_disk", body, paused_requests=True)

    async def _update_from_tensor(self, body):
        return await self._update_in_session("/update_weights_from_tensor", body)

    async def _update_from_distributed(self, body):
        return await self._update_in_session("/update_weights_from_distributed", body)

    async def _update_in_session(self, path, body):
        if not self._session_open:
            return replies.updated(False, f"{path[1:]} must run between begin_weight_update() and end_weight_update()")
        return await self._update(path, body)

    async def _update(self, path, body, **options):
        """Takes new weights, once nothing runs or while it is paused."""
        if body.get("abort_all_requests"):
            await self._abort({"abort_all": True})
        self._updating = True
        try:
            while self._running and not self.paused:
                await asyncio.sleep(0.002)
            self.weights = self._load(path, body)
        except ValueError as error:
            return replies.updated(False, str(error), **options)
        finally:
            self._updating = False
        self._checksum = hashlib.sha256(_digest(path, body).encode()).hexdigest()
        words = "Succeeded to update model weights." if path.endswith("disk") else "Success"
        if body.get("flush_cache", True):
            self._cached = []
        if body.get("weight_version") is not None:
            self.weight_version = body["weight_version"]
            words += f" Weight version updated to {self.weight_version}."
        return replies.updated(True, words, **options)

    async def _begin(self, body):
        return self._session(True, "a weight-update session is already open; call end_weight_update() first")

    async def _end(self, body):
        return self._session(False, "no weight-update session is open; call begin_weight_update() first")

    def _session(self, wanted, complaint):
        if self._session_open == wanted:
            return replies.updated(False, complaint)
        self._session_open = wanted
        return replies.updated(True, "Success")

    async def _group(self, body):
        return replies.updated(True, "Succeeded to initialize custom process group.")

    async def _destroy_group(self, body):
        return replies.updated(True, "Succeeded to destroy custom process group.")

    async def _set_version(self, body):
        self.weight_version = body["new_version"]
        return web.json_response({"success": True, "message": f"Weight version updated to {self.weight_version}",
                                  "new_version": self.weight_version})

    async def _check_weights(self, body):
        return web.json_response(replies.checked(self._checksum))

    # What it is.

    async def _model_info(self, body):
        return web.json_response(replies.model_info(self.architecture, self.weight_version))

    async def _server_info(self, body):
        return web.json_response(replies.server_info(
            context=self.context, max_running=self.max_running, longest_prompt=self.context - FEWEST_FREE))

    async def _health(self, body):
        return web.Response(status=503 if self.paused else 200)

    _HANDLERS = {
        "/generate": _generate, "/abort_request": _abort, "/pause_generation": _pause,
        "/continue_generation": _continue, "/flush_cache": _flush,
        "/update_weights_from_disk": _update_from_disk, "/update_weights_from_tensor": _update_from_tensor,
        "/update_weights_from_distributed": _update_from_distributed, "/begin_weight_update": _begin,
        "/end_weight_update": _end, "/init_weights_update_group": _group,
        "/destroy_weights_update_group": _destroy_group, "/update_weight_version": _set_version,
        "/weights_checker": _check_weights, "/model_info": _model_info,
        "/server_info": _server_info, "/health": _health, "/health_generate": _health, "/ready": _health}


def _digest(path: str, body: dict) -> str:
    """Stands for the weights that an update brings."""
    digest = hashlib.sha256()
    if path.endswith("disk"):
        for file in sorted(pathlib.Path(body["model_path"]).glob("*.safetensors")):
            digest.update(file.read_bytes())
    else:
        for part in body.get("serialized_named_tensors") or body.get("names") or []:
            digest.update(base64.b64decode(part) if path.endswith("tensor") else str(part).encode())
    return digest.hexdigest()


def _number(text: Any) -> int:
    return int.from_bytes(hashlib.sha256(str(text).encode()).digest()[:8], "big")


def _log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
