"""What is sent: a checkpoint's tensors in one dtype, those of what the run started from, in buckets, with a digest."""

import asyncio
import dataclasses
import functools
import hashlib
import math
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import ml_dtypes  # noqa: F401 (gives NumPy the name bfloat16)
import numpy as np

from rlzero.models import huggingface
from rlzero.models.tensor_files import TensorFiles
from rlzero.models.transformer import ModelConfig

_COLUMNS = 251  # of the digest's sums: a prime, so that equal words a row of any usual width apart are told apart

_Prepared = TypeVar("_Prepared")


class Outgoing:
    """A policy's tensors on their way out; what is fetched enters the digest.

    Attributes:
      tensors: name -> shape, in the order in which they are sent, and a function that fetches them.
      dtype: that they are sent in.
    """

    def __init__(self, params: Any, model: ModelConfig, *, source: str | os.PathLike, dtype: str):
        """Looks at names and shapes; fetches nothing.

        Args:
          params: tree of the trainer's parameters.
          model: their shape.
          source: model directory that training started from.
          dtype: "float32" or "bfloat16".

        Raises:
          ValueError: names or shapes are not those of `model` or not those of `source`.
        """
        self.dtype = np.dtype(dtype)
        named = huggingface.named_tensors(params, model, self.dtype)
        _expect_same_tensors(named.shapes, model, source)
        self._named, self._sums = named, {}
        self.tensors = dataclasses.replace(named, fetch=self._fetch)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.tensors.shapes

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return self.size(list(self.shapes))

    @property
    def digest(self) -> str:
        """A hash of dtype, names, shapes and sums over the bytes of what was fetched."""
        state = hashlib.blake2b(self.dtype.name.encode(), digest_size=16)
        for name, shape in self.shapes.items():
            state.update(f"{name} {shape}".encode() + self._sums.get(name, b"not fetched"))
        return state.hexdigest()

    def size(self, names: Sequence[str]) -> int:
        """Bytes of some tensors."""
        return sum(math.prod(self.shapes[name]) for name in names) * self.dtype.itemsize

    def buckets(self, limit: int) -> list[list[str]]:
        """All names, in order, cut into lists of at most `limit` bytes; a tensor above that is alone."""
        found, room = [], -1
        for name in self.shapes:
            size = self.size([name])
            if size > room:
                found.append([])
                room = limit
            found[-1].append(name)
            room -= size
        return found

    def flat(self, names: Sequence[str], out: np.ndarray | None = None) -> np.ndarray:
        """The bytes of some tensors, one after the other; written to `out` if given."""
        out = np.empty(self.size(names), np.uint8) if out is None else out[:self.size(names)]
        start = 0
        for name in names:
            data = self.tensors.fetch(name).reshape(-1).view(np.uint8)
            out[start:start + data.size] = data
            start += data.size
        return out

    def _fetch(self, name):
        tensor = np.ascontiguousarray(self._named.fetch(name))
        self._sums[name] = _sums(tensor.reshape(-1).view(np.uint8))
        return tensor


async def one_ahead(prepare: Callable[..., _Prepared], items: Sequence[Any]) -> AsyncIterator[_Prepared]:
    """Yields `prepare(item)` for each item, made in a thread while the one before it is in use.

    Close it (`contextlib.aclosing`) where the loop may end early: no thread is at work afterwards.
    """
    pending = None
    try:
        for item in items:
            made, pending = pending, asyncio.ensure_future(asyncio.to_thread(prepare, item))
            if made is not None:
                yield await made
        if pending is not None:
            yield await pending
    finally:
        if pending is not None:
            await asyncio.gather(pending, return_exceptions=True)


def _sums(data: np.ndarray) -> bytes:
    """Sums of 64-bit words, column by column: nearly as fast as memory, where a hash of every byte is not."""
    words = data[:data.size // 8 * 8].view(np.uint64)
    whole = words.size // _COLUMNS * _COLUMNS
    columns = words[:whole].reshape(-1, _COLUMNS).sum(axis=0, dtype=np.uint64)
    return columns.tobytes() + words[whole:].tobytes() + data[words.size * 8:].tobytes()


def _expect_same_tensors(shapes: Mapping[str, tuple[int, ...]], model: ModelConfig, source: str | os.PathLike) -> None:
    """A server takes an unknown name without a word and dies of a wrong shape: it must not see either."""
    there = _shapes_in(huggingface.model_directory(source), model.tie_embeddings)
    wrong = sorted(name for name in there.keys() | shapes.keys() if there.get(name) != shapes.get(name))
    if wrong:
        raise ValueError(f"the weights to send are not those of {source}, in {len(wrong)} tensors; the first is "
                         f"{wrong[0]}: {shapes.get(wrong[0], 'not sent')} here, {there.get(wrong[0], 'unknown')} there")


@functools.lru_cache(maxsize=4)
def _shapes_in(directory: pathlib.Path, tied: bool) -> Mapping[str, tuple[int, ...]]:
    """Name -> shape of the tensors of a directory that a model uses. Read once: every update is compared with it."""
    files = TensorFiles(directory)
    unused = {name for name in files.names if name.endswith("rotary_emb.inv_freq")}
    if tied:
        unused.add("lm_head.weight")
    return {name: files.shape(name) for name in files.names - unused}
