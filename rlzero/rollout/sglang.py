"""`Engine` over SGLang servers on other hosts: the side that the trainer sees.

An event loop in a thread of its own talks to the servers (`fleet`); the methods here are called from the trainer's
threads. Weights are given only by the thread that owns the parameters, the one that calls `update_weights`, and only
while it is here: so they never move under the learner's feet. New weights are believed when the server reports their
version, its checksum moved, and a probe scores as the trainer scores it (`handshake`).

How an update goes is in `update`.
"""

import asyncio
import collections
import dataclasses
import queue
import secrets
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import jax
from absl import logging

from rlzero.models import transformer
from rlzero.models.sharding import in_context
from rlzero.rollout import handshake
from rlzero.rollout.dispatch import Call
from rlzero.rollout.engine import Completion, Pairs, Request, RolloutError, Sampling
from rlzero.rollout.fleet import Fleet, FleetOptions, Node
from rlzero.rollout.handshake import HandshakeError, ProbeSample
from rlzero.rollout.sglang_http import Server, make_session
from rlzero.rollout.sglang_reply import check_request
from rlzero.rollout.update import Updater
from rlzero.rollout.weights.transport import Transport

_POLL = 0.5  # seconds between looks at servers that came back


@dataclasses.dataclass(frozen=True)
class SGLangOptions:
    """Where the servers are and how they are used.

    Attributes:
      servers: their URLs.
      router: URL that generation requests go to instead; weights still go to each of `servers`. "" for none.
      fleet: limits of patience.
      architecture: of the model's config.json.
      context: most tokens of a prompt and its completion.
      temperature: of training, at which probes are sampled.
      dtype: that the trainer computes in.
      sent_dtype: that weights are sent in.
    """

    servers: tuple[str, ...]
    router: str = ""
    fleet: FleetOptions = FleetOptions()
    architecture: str = ""
    context: int = 2048
    temperature: float = 1.0
    dtype: str = "float32"
    sent_dtype: str = "float32"


class SGLangEngine:
    """Samples with servers; every server in service has the newest weights, and was seen to have them."""

    def __init__(self, model: transformer.ModelConfig, options: SGLangOptions, transport: Transport | None, *,
                 probes: Sequence[Sequence[int]], mesh: jax.sharding.Mesh | None = None):
        """Makes an engine that has not talked to anyone; the first `update_weights` does.

        Args:
          model: shape of the trained model.
          options: where the servers are.
          transport: how weights get there; None where they never do (`use_served_weights`).
          probes: prompts, as ids, that servers and trainer compare log-probabilities of.
          mesh: mesh of the parameters.
        """
        self._model, self._options, self._transport = model, options, transport
        self._probes, self._mesh = [tuple(ids) for ids in probes], mesh
        self._score = handshake.make_scorer(model, dtype=options.dtype)
        self._run = secrets.token_hex(4)
        self._params, self._version, self._owner = None, -1, None
        self._served = False  # what the servers have is not ours
        self._fleet: Fleet | None = None
        self._updater: Updater | None = None
        self._sums: collections.Counter[str] = collections.Counter()
        self._drained = time.monotonic()
        self._agreement: handshake.Agreement | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # What the trainer calls.

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """See `Engine.generate`. A request that was refused or lost comes back with finish reason "abort".

        Raises:
          ValueError: a prompt that a server must not see.
          RolloutError: no server has been in service for too long.
        """
        if self._fleet is None:
            raise ValueError("the engine has no weights yet; call update_weights first")
        context = min(facts.context for facts in self._updater.facts.values())
        for request in requests:
            check_request(request, sampling, vocab_size=self._model.vocab_size, context=context)
        return self._generate(requests, sampling)

    def _generate(self, requests, sampling):
        call = self._await(self._make_call(requests, sampling))
        running = asyncio.run_coroutine_threadsafe(self._fleet.run(call), self._loop)
        try:
            while True:
                self.readmit()
                try:
                    item = call.results.get(timeout=_POLL)
                except queue.Empty:
                    continue
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if not running.done():
                self._loop.call_soon_threadsafe(call.cancel)
            running.result()

    def update_weights(self, params: Any, version: int) -> None:
        """Gives all servers new weights, and has them prove it.

        The first call waits for every server to be there. A server that fails is out of service until it is back.

        Raises:
          HandshakeError: a server answers, but does not serve these weights.
          RolloutError: no server took the weights in time.
        """
        self._owner, self._params, self._version = threading.get_ident(), params, version
        if self._fleet is None:
            self._connect()
        deadline = time.monotonic() + self._options.fleet.outage_seconds
        while not self._give(self._fleet.in_service + self._fleet.returned):
            if time.monotonic() > deadline:
                raise RolloutError(f"no rollout server took the weights of policy version {version} within "
                                   f"{self._options.fleet.outage_seconds:.0f} s; the warnings above say why")
            time.sleep(_POLL)

    def use_served_weights(self) -> None:
        """Instead of `update_weights`: takes completions of whatever the servers serve, for evaluation.

        Raises:
          HandshakeError: another architecture, or too little room.
          RolloutError: a server is not there.
        """
        self._served = True
        self._version = 0
        self._connect()
        self._await(self._adopt())

    async def _adopt(self):
        """Puts servers that are alive into service with what they have."""
        for node in self._fleet.returned:
            await self._updater.look(node)
            node.admit()

    def readmit(self) -> None:
        """Gives weights to servers that came back; does nothing in threads that do not own the parameters."""
        if self._fleet is None or not self._fleet.returned:
            return
        if self._served:
            self._await(self._adopt())
        if threading.get_ident() != self._owner:
            return
        for node in self._fleet.returned:
            try:
                if self._give([node]):
                    logging.warning("%s is in service again", node.url)
            except HandshakeError as error:
                self._await(self._take_out([node], str(error)))

    def metrics(self) -> Pairs:
        """Counts, rates and times since the last call, under `server/`, `sync/` and `rollout/`."""
        if self._fleet is None:
            return {}
        return self._await(self._drain())

    def close(self) -> None:
        """Ends the connections and the thread."""
        if self._loop is None:
            return
        self._await(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None

    @property
    def description(self) -> str:
        """See `Engine.description`."""
        return "; ".join(
            f"{url} ({facts.model_path}, {facts.dtype}, context {facts.context}"
            f"{', seeds count' if facts.deterministic else ''})" for url, facts in self._updater.facts.items())

    # The loop and its thread.

    def _await(self, coroutine: Coroutine) -> Any:
        """Runs a coroutine in the loop's thread and waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _connect(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout-servers", daemon=True)
        self._thread.start()
        self._await(self._open())
        self._await_servers()

    async def _open(self):
        self._session = make_session()
        servers = [Server(url, self._session) for url in self._options.servers]
        size, router = self._options.fleet.concurrency, self._options.router
        if router:
            nodes = [Node(Server(router, self._session), servers, size * len(servers))]
        else:
            nodes = [Node(server, [server], size) for server in servers]
        self._fleet = Fleet(nodes, self._options.fleet, model=self._model, version_of=self._version_of,
                            newest_version=lambda: self._version)
        self._updater = Updater(self._fleet, self._transport, model=self._model,
                                architecture=self._options.architecture, context=self._options.context,
                                temperature=self._options.temperature, probes=self._probes)

    def _await_servers(self):
        """Waits until every server is alive, saying for which it waits."""
        started, said = time.monotonic(), 3.0
        while absent := [node.url for node in self._fleet.nodes if not node.returned]:
            waited = time.monotonic() - started
            if waited > self._options.fleet.outage_seconds:
                raise RolloutError(f"no answer from {', '.join(absent)} within {waited:.0f} s; start the server, or "
                                   "correct --config.rollout.servers")
            if waited > said:
                logging.warning("waiting for %s to generate a token (%.0f of at most %.0f s)", ", ".join(absent),
                                waited, self._options.fleet.outage_seconds)
                said = waited + 10.0
            time.sleep(_POLL)

    async def _make_call(self, requests, sampling):
        return Call(requests, sampling, self._version)

    async def _take_out(self, nodes, reason):
        for node in nodes:
            self._fleet.take_out(node, reason)

    async def _shut(self):
        await self._fleet.close()
        if self._transport is not None:
            await self._transport.close()
        await self._session.close()

    def _version_of(self, text):
        if self._served:
            return 0
        run, _, number = str(text).partition(".")
        return int(number) if run == self._run and number.isdigit() else -1

    # Weights.

    def _give(self, nodes: Sequence[Node]) -> list[Node]:
        """Gives nodes the current weights, probes and admits them; returns those that have them now.

        Raises:
          HandshakeError: a node says that it has the weights, but does not serve them.
        """
        if not nodes:
            return []
        started = time.monotonic()
        given = self._await(self._updater.move(nodes, self._params, f"{self._run}.{self._version}"))
        with in_context(self._mesh):
            for node, samples in given.items():
                self._compare(node, samples)
        self._await(self._admit(given))
        self._sums["sync_seconds"] += time.monotonic() - started
        self._sums["syncs"] += 1
        return list(given)

    def _compare(self, node: Node, samples: Sequence[ProbeSample]):
        options = self._options
        served = {self._updater.facts[control.url].dtype for control in node.controls}
        dtypes = served | {options.dtype, options.sent_dtype}
        scored = self._score(self._params, samples, options.temperature)
        found = handshake.agreement(samples, scored, dtypes)
        self._agreement = found
        if not found.holds:
            raw = None
            if options.temperature != 1:
                raw = handshake.agreement(samples, self._score(self._params, samples, 1.0), dtypes)
            raise HandshakeError(handshake.disagreement(node.url, found, raw=raw))

    async def _admit(self, nodes):
        for node in nodes:
            node.admit()

    # Metrics.

    async def _drain(self):
        pairs: Pairs = {}
        now = time.monotonic()
        seconds, self._drained = now - self._drained, now
        for number, node in enumerate(self._fleet.nodes):
            tally, node.tally = node.tally, collections.Counter()
            pairs[f"server/{number}_tokens_per_second"] = (float(tally["tokens"]), seconds)
            pairs["server/prefix_cache_fraction"] = _added(
                pairs.get("server/prefix_cache_fraction"), tally["cached_tokens"], tally["prompt_tokens"])
            pairs["server/running_mean"] = _added(pairs.get("server/running_mean"), tally["busy_seconds"], seconds)
        counts, self._fleet.counts = self._fleet.counts, collections.Counter()
        for name in ("retries", "refused", "unreachable", "malformed", "aborted", "stale", "given_up", "late",
                     "abandoned", "finish_disagreements", "servers_lost"):
            pairs[f"server/{name}"] = (float(counts[name]), 1.0)
        pairs["server/in_service"] = (float(len(self._fleet.in_service)), 1.0)
        took, syncs = (self._sums.pop(name, 0.0) for name in ("sync_seconds", "syncs"))
        moved, self._updater.bytes = self._updater.bytes, 0
        if syncs:
            pairs |= {"sync/seconds": (took, 1.0), "sync/megabytes": (moved / 1e6, 1.0),
                      "sync/gigabytes_per_second": (moved / 1e9, took),
                      "sync/probe_mean_abs_logprob": (self._agreement.mean, 1.0),
                      "sync/probe_max_abs_logprob": (self._agreement.maximum, 1.0)}
        return pairs


def _added(pair, total, weight):
    before = pair or (0.0, 0.0)
    return before[0] + float(total), before[1] + float(weight)
