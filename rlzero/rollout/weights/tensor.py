"""Weights over HTTP: buckets of tensors, pickled as SGLang expects them, without torch on this side.

SGLang unpickles with a short list of what may be named in a pickle. A CPU tensor of torch is, within that list, a call
of `torch._utils._rebuild_tensor_v2` on a storage, and a storage a call of `torch.storage._load_from_bytes` on bytes as
`torch.save` wrote them before its zip format. Both are short enough to be written by hand; all tensors of a bucket are
views of one storage.

Everything passes through the server's JSON and its queues between processes, several copies of each byte: the way for
small models, and for servers that share neither a directory nor a process group with the trainer. Small buckets are
faster than large ones.
"""

import base64
import contextlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlzero.models.transformer import ModelConfig
from rlzero.rollout.sglang_http import Server, ServerError
from rlzero.rollout.weights import session
from rlzero.rollout.weights.tensors import Outgoing, one_ahead
from rlzero.rollout.weights.transport import Deadline, Pushed, on_each

_STORAGES = {"float32": "FloatStorage", "bfloat16": "BFloat16Storage"}
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of torch.save


class TensorTransport:
    """Posts the tensors themselves, in buckets of bounded size."""

    def __init__(self, model: ModelConfig, *, source: str, dtype: str, bucket_bytes: int = 16 * 10**6,
                 seconds: float = 600.0):
        """Makes the transport; sends nothing.

        Args:
          model: the shape.
          source: model directory that training started from; names and shapes must be its own.
          dtype: "float32" or "bfloat16".
          bucket_bytes: most bytes of tensors in a request; a larger tensor has one of its own.
          seconds: deadline of an update.
        """
        self._model, self._source, self._dtype = model, source, dtype
        self._bucket_bytes, self._seconds = bucket_bytes, seconds
        self._known = session.KnownServers()

    async def push(self, servers: Sequence[Server], params: Any, version: str) -> Pushed:
        """See `Transport.push`. Every rank of a server is sent all of it, inside the same request."""
        outgoing = Outgoing(params, self._model, source=self._source, dtype=self._dtype)
        deadline = Deadline(self._seconds)
        failed: dict[str, ServerError] = {}
        ranks: dict[str, int] = {}

        async def to_all(step):
            """A step on the servers that have not failed yet."""
            there = [server for server in servers if server.url not in failed]
            limit = deadline.shared(len(there))
            failed.update(await on_each(there, lambda server: step(server, limit)))

        async def look(server, limit):
            await self._known.expect_same_model(server, outgoing.shapes, limit)
            ranks[server.url] = await session.ranks(server, limit)

        await to_all(look)
        opened = [server for server in servers if server.url not in failed]
        try:
            await to_all(session.begin)
            await self._send(outgoing, version, ranks, to_all)
        finally:
            failed = await session.end(opened, failed, deadline)
            self._known.forget(failed)
        return Pushed(failed, outgoing.bytes * (len(servers) - len(failed)), outgoing.digest)

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _send(self, outgoing, version, ranks, to_all):
        buckets = outgoing.buckets(self._bucket_bytes)

        def prepare(number):
            tensors = {name: outgoing.shapes[name] for name in buckets[number]}
            return base64.b64encode(pickled(tensors, outgoing.flat(buckets[number]), outgoing.dtype.name))

        async with contextlib.aclosing(one_ahead(prepare, range(len(buckets)))) as payloads:
            number = 0
            async for payload in payloads:
                number += 1
                last = number == len(buckets)
                settings = {"flush_cache": last} | ({"weight_version": version} if last else {})
                bodies = {count: _body(payload, count, settings) for count in set(ranks.values())}

                await to_all(lambda server, limit, bodies=bodies: server.post(
                    "/update_weights_from_tensor", bodies[ranks[server.url]], timeout=limit.left))


def _body(payload: bytes, ranks: int, settings: Mapping[str, Any]) -> bytes:
    """JSON written by hand: base64 needs no escapes, and looking for them takes longer than all the rest."""
    tensors = b",".join([b'"%b"' % payload] * ranks)
    return b'{"serialized_named_tensors":[%b],%b' % (tensors, json.dumps(settings).encode()[1:])


def pickled(shapes: Mapping[str, Sequence[int]], flat: np.ndarray, dtype: str) -> bytes:
    """A pickle of `[(name, torch.Tensor), …]`.

    Args:
      shapes: name -> shape of the tensors.
      flat: their bytes, one after the other, as uint8.
      dtype: of all of them, "float32" or "bfloat16".

    Raises:
      ValueError: another dtype, no tensor, or bytes that are not theirs.
    """
    if dtype not in _STORAGES:
        raise ValueError(f"expected a dtype of {' or '.join(_STORAGES)}, got {dtype}")
    itemsize, sizes = np.dtype(dtype).itemsize, {name: int(np.prod(shape)) for name, shape in shapes.items()}
    if not shapes or sum(sizes.values()) * itemsize != flat.size:
        raise ValueError(f"expected the bytes of some {dtype} tensors, got {flat.size} for shapes {dict(shapes)}")
    head = _storage_head(flat.size // itemsize, dtype)
    stream = [b"\x80\x04",  # protocol 4; then the three things that every tensor needs, each put into the memo
              _global("torch.storage", "_load_from_bytes"), b"\x8e", struct.pack("<Q", len(head) + flat.size), head,
              flat.data, b"\x85R", b"q\x00", b"0", _global("torch._utils", "_rebuild_tensor_v2"), b"q\x01", b"0",
              _global("collections", "OrderedDict"), b")R", b"q\x02", b"0", b"("]
    offset = 0
    for name, shape in shapes.items():
        strides = [int(np.prod(shape[axis + 1:])) for axis in range(len(shape))]
        stream += [_text(name), b"h\x01", b"(", b"h\x00", _integer(offset), _integers(shape), _integers(strides),
                   b"\x89", b"h\x02", b"t", b"R", b"\x86"]
        offset += sizes[name]
    return b"".join([*stream, b"l", b"."])


def _storage_head(size: int, dtype: str) -> bytes:
    """What torch.save, in its format before zip files, writes of a CPU storage before its bytes."""
    header = [b"\x80\x02" + _integer(_LEGACY_MAGIC) + b".", b"\x80\x02" + _integer(_LEGACY_PROTOCOL) + b".",
              b"\x80\x02}(" + _text("protocol_version") + _integer(_LEGACY_PROTOCOL) + _text("little_endian") + b"\x88"
              + _text("type_sizes") + b"}(" + _text("short") + _integer(2) + _text("int") + _integer(4)
              + _text("long") + _integer(4) + b"u" + b"u."]
    persistent = (b"(" + _text("storage") + _global("torch", _STORAGES[dtype]) + _text("0") + _text("cpu")
                  + _integer(size) + b"N" + b"t" + b"Q")
    keys = b"\x80\x02](" + _text("0") + b"e."
    return b"".join([*header, b"\x80\x02" + persistent + b".", keys, struct.pack("<q", size)])


# The opcodes of pickle that are needed, each as it is written (pickletools.dis shows them).


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _integer(number: int) -> bytes:
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def _integers(numbers: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_integer, numbers)) + b"t"
