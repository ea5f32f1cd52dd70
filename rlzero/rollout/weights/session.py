"""A server's side of an update that is sent to it: what it holds, how many ranks it has, and the frame around buckets.

SGLang takes tensors only between `/begin_weight_update` and `/end_weight_update`. A session that a trainer left open
(it was killed in between) would refuse every later one, so it is ended first.
"""

from collections.abc import Iterable, Sequence

from rlzero.rollout.handshake import HandshakeError
from rlzero.rollout.sglang_http import Malformed, Refused, Server, ServerError
from rlzero.rollout.weights.transport import Deadline, on_each

_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
          "up_proj": "gate_up_proj"}  # how SGLang stores them
_CLEANUP_SECONDS = 5.0


class KnownServers:
    """Those that were seen to hold the model that is sent to them.

    A server is looked at before its first update and before the one after a failure, when it may have been restarted.
    """

    def __init__(self):
        self._urls: set[str] = set()

    def forget(self, urls: Iterable[str]) -> None:
        """Has servers looked at again."""
        self._urls.difference_update(urls)

    async def expect_same_model(self, server: Server, names: Iterable[str], deadline: Deadline) -> None:
        """Compares the names of a checkpoint's tensors with what a server holds, before anything is sent.

        A server that cannot list its parameters is believed.

        Raises:
          HandshakeError: it has others.
          ServerError: no answer.
        """
        if server.url in self._urls:
            return
        try:
            reply = await server.post("/weights_checker", {"action": "checksum"}, timeout=deadline.left)
        except Refused:
            return
        try:
            held = {name for rank in reply["ranks"] for name in rank["checksums"]}
            stages = max(place["pp_size"] for rank in reply["ranks"] for place in rank["parallelism_info"])
        except (KeyError, TypeError, ValueError):
            raise Malformed(server.url, "/weights_checker", "no names of tensors in the answer") from None
        copied = {"lm_head.weight"} if stages > 1 else set()  # a tied head in another stage follows the embedding
        _compare(server.url, {_fused(name) for name in names}, held, copied)
        self._urls.add(server.url)


def _compare(url, sent: set[str], held: set[str], copied: set[str]):
    unknown = sorted(sent - held)
    stale = sorted(name for name in held - sent - copied if name.endswith((".weight", ".bias")))
    if unknown or stale:
        words = ["it does not have " + _first(unknown)] if unknown else []
        words += ["it has " + _first(stale) + ", which would stay as they are"] if stale else []
        raise HandshakeError(f"{url} does not hold the model that is trained: {'; '.join(words)}; start it with "
                             "--model-path of the trained model")


def _fused(name: str) -> str:
    return ".".join(_FUSED.get(part, part) for part in name.split("."))


async def ranks(server: Server, deadline: Deadline) -> int:
    """How many tensor-parallel ranks take the weights.

    Raises:
      Refused: it is parallel in a way in which weights cannot be sent to it.
    """
    info = await server.get("/server_info", timeout=deadline.left)
    for name in ("dp_size", "pp_size"):
        if int(info.get(name) or 1) > 1:
            raise Refused(server.url, "/server_info", f"{name} is {info[name]}, and SGLang takes weights over the "
                          "network only where it is 1; use --config.sync.method=disk")
    return int(info.get("tp_size") or 1)


async def begin(server: Server, deadline: Deadline) -> None:
    """Opens a session."""
    try:
        await server.post("/begin_weight_update", {}, timeout=deadline.left)
    except Refused:
        await server.post("/end_weight_update", {}, timeout=deadline.left)
        await server.post("/begin_weight_update", {}, timeout=deadline.left)


async def end(servers: Sequence[Server], failed: dict[str, ServerError], deadline: Deadline) -> dict[str, ServerError]:
    """Ends the sessions of all servers; returns `failed` with those added on which it did not work.

    For one that failed already this is a courtesy: so that it can be updated again, if it is still there.
    """
    def close(server):
        seconds = _CLEANUP_SECONDS if server.url in failed else max(deadline.left, _CLEANUP_SECONDS)
        return server.post("/end_weight_update", {}, timeout=seconds)

    return await on_each(servers, close) | failed


def _first(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
