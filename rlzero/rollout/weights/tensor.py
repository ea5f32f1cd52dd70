"""Weights over HTTP: buckets of tensors, pickled as SGLang expects them, without torch on this side.

SGLang unpickles with a short list of what may be named in a pickle. A CPU tensor of torch is, within that list, a call
of `torch._utils._rebuild_tensor_v2` on a storage, and a storage a call of `torch.storage._load_from_bytes` on bytes as
`torch.save` wrote them before its zip format. Both are short enough to be written by hand: all tensors of a bucket are
views of one storage, so their bytes are copied once.
"""

import base64
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlzero.models import huggingface
from rlzero.models.transformer import ModelConfig
from rlzero.rollout.sglang_http import Server, ServerError
from rlzero.rollout.weights.tensors import Outgoing, expect_same_tensors
from rlzero.rollout.weights.transport import Pushed, on_each

_STORAGES = {"float32": "FloatStorage", "bfloat16": "BFloat16Storage"}
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of torch.save


class TensorTransport:
    """Posts the tensors themselves, in buckets of bounded size."""

    def __init__(self, model: ModelConfig, *, source: str, dtype: str, bucket_bytes: int = 256 * 10**6,
                 seconds: float = 600.0):
        """Makes the transport; sends nothing.

        Args:
          model: the shape.
          source: model directory that the servers were started with; names and shapes must be its own.
          dtype: "float32" or "bfloat16".
          bucket_bytes: most bytes of tensors in a request.
          seconds: deadline of each request.
        """
        self._model, self._source, self._dtype = model, source, dtype
        self._bucket_bytes, self._seconds = bucket_bytes, seconds
        self._checked = False

    async def push(self, servers: Sequence[Server], params: Any, version: str) -> Pushed:
        """See `Transport.push`.

        Raises:
          ValueError: names or shapes are not those of the model that is served; nothing was sent.
        """
        outgoing = Outgoing(huggingface.named_tensors(params, self._model), self._dtype)
        if not self._checked:
            expect_same_tensors(outgoing, self._source)
            self._checked = True
        failed: dict[str, ServerError] = {}
        ranks: dict[str, int] = {}

        async def to_all(step):
            """A step on the servers that have not failed yet."""
            failed.update(await on_each([server for server in servers if server.url not in failed], step))

        async def begin(server):
            ranks[server.url] = int((await server.get("/server_info")).get("tp_size") or 1)
            await server.post("/begin_weight_update", {}, timeout=self._seconds)

        await to_all(begin)
        begun, sent = [server for server in servers if server.url not in failed], 0
        buckets = list(outgoing.buckets(self._bucket_bytes))
        for number, names in enumerate(buckets, start=1):
            payload = base64.b64encode(pickled_tensors([(name, outgoing.fetch(name)) for name in names])).decode()
            last = number == len(buckets)

            async def send(server, payload=payload, last=last):
                body = {"serialized_named_tensors": [payload] * ranks[server.url], "flush_cache": last}
                await server.post("/update_weights_from_tensor", body | ({"weight_version": version} if last else {}),
                                  timeout=self._seconds)

            await to_all(send)
            sent += len(payload) * (len(servers) - len(failed))
        for url, error in (await on_each(begun, self._end)).items():
            failed.setdefault(url, error)
        return Pushed(failed, sent, outgoing.digest())

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _end(self, server):
        await server.post("/end_weight_update", {}, timeout=self._seconds)


def pickled_tensors(tensors: Sequence[tuple[str, np.ndarray]]) -> bytes:
    """A pickle of `[(name, torch.Tensor), …]`, of arrays of one dtype, float32 or bfloat16.

    Raises:
      ValueError: no arrays, several dtypes, or another one.
    """
    dtypes = {array.dtype.name for _, array in tensors}
    if len(dtypes) != 1 or not dtypes <= _STORAGES.keys():
        raise ValueError(f"expected tensors of one dtype, {' or '.join(_STORAGES)}, got {sorted(dtypes)}")
    flat = np.concatenate([array.reshape(-1) for _, array in tensors])
    stream = [b"\x80\x04",  # protocol 4
              _global("torch.storage", "_load_from_bytes"), _bytes(_storage(flat, *dtypes)), b"\x85R", b"q\x00", b"0",
              _global("torch._utils", "_rebuild_tensor_v2"), b"q\x01", b"0",
              _global("collections", "OrderedDict"), b")R", b"q\x02", b"0", b"("]
    offset = 0
    for name, array in tensors:
        strides = np.empty(array.shape, np.bool_).strides  # of a contiguous array, in elements
        stream += [_text(name), b"h\x01", b"(", b"h\x00", _integer(offset), _integers(array.shape), _integers(strides),
                   b"\x89", b"h\x02", b"t", b"R", b"\x86"]
        offset += array.size
    return b"".join([*stream, b"l", b"."])


def _storage(flat: np.ndarray, dtype: str) -> bytes:
    """What torch.save writes for a CPU storage, in its format before zip files."""
    header = [b"\x80\x02" + _integer(_LEGACY_MAGIC) + b".", b"\x80\x02" + _integer(_LEGACY_PROTOCOL) + b".",
              b"\x80\x02}(" + _text("protocol_version") + _integer(_LEGACY_PROTOCOL) + _text("little_endian") + b"\x88"
              + _text("type_sizes") + b"}(" + _text("short") + _integer(2) + _text("int") + _integer(4)
              + _text("long") + _integer(4) + b"u" + b"u."]
    persistent = (b"(" + _text("storage") + _global("torch", _STORAGES[dtype]) + _text("0") + _text("cpu")
                  + _integer(flat.size) + b"N" + b"t" + b"Q")
    keys = b"\x80\x02](" + _text("0") + b"e."
    return b"".join([*header, b"\x80\x02" + persistent + b".", keys, struct.pack("<q", flat.size),
                     flat.view(np.uint8).tobytes()])


# The opcodes of pickle that are needed, each as it is written (pickletools.dis shows them).


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return b"\x8e" + struct.pack("<Q", len(data)) + data


def _integer(number: int) -> bytes:
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def _integers(numbers: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_integer, numbers)) + b"t"
