"""Weights through a directory that trainer and servers share: safetensors out, and the servers read them."""

import asyncio
import collections
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from absl import logging

from rlzero.models import huggingface
from rlzero.models.transformer import ModelConfig
from rlzero.rollout.sglang_http import Server, Unreachable
from rlzero.rollout.weights import session
from rlzero.rollout.weights.tensors import Outgoing
from rlzero.rollout.weights.transport import Deadline, Pushed, on_each

_PREFIX = "rlzero-weights-"  # of directories that may be removed; nothing else in the shared directory is touched


class DiskTransport:
    """Writes each version to a directory of its own, complete or not at all, and keeps the last few."""

    def __init__(self, model: ModelConfig, *, source: str, dtype: str, directory: pathlib.Path,
                 server_directory: str = "", keep: int = 2, seconds: float = 600.0):
        """Makes the transport; writes nothing.

        Args:
          model: the shape.
          source: model directory whose config and tokenizer each version carries.
          dtype: of the files.
          directory: where versions go, of this run alone.
          server_directory: the same directory as the servers see it; "" if under the same name.
          keep: versions that stay.
          seconds: deadline for the servers to read one.
        """
        self._model, self._source, self._dtype = model, source, dtype
        self._directory = pathlib.Path(directory).absolute()
        self._seen_as = pathlib.PurePosixPath(server_directory or self._directory)
        self._keep, self._seconds = keep, seconds
        self._known = session.KnownServers()
        self._digests: dict[pathlib.Path, str] = {}  # of the versions that are there, oldest first
        self._reading: dict[str, set[pathlib.Path]] = collections.defaultdict(set)  # URL -> what it may still read

    async def push(self, servers: Sequence[Server], params: Any, version: str) -> Pushed:
        """See `Transport.push`. A version that is there already is not written again."""
        path = self._directory / f"{_PREFIX}{version}"
        if path.parent != self._directory:
            raise ValueError(f"expected a version that can be the name of a directory, got {version!r}")
        outgoing = Outgoing(params, self._model, source=self._source, dtype=self._dtype)
        if path not in self._digests:
            await asyncio.to_thread(self._write, path, outgoing)
            self._digests[path] = outgoing.digest
        body = {"model_path": str(self._seen_as / path.name), "weight_version": version, "flush_cache": True,
                "abort_all_requests": False}
        deadline = Deadline(self._seconds)

        async def update(server):  # each by itself: a silent one holds up no other
            await self._known.expect_same_model(server, outgoing.shapes, deadline)
            self._reading[server.url].add(path)
            try:
                await server.post("/update_weights_from_disk", body, timeout=deadline.left)
            except Unreachable:  # it may be reading, however late it is
                raise
            except BaseException:
                self._reading.pop(server.url)
                raise
            self._reading.pop(server.url)

        failed = await on_each(servers, update)
        self._known.forget(failed)
        await asyncio.to_thread(self._prune, path)
        return Pushed(failed, outgoing.bytes * (len(servers) - len(failed)), self._digests[path])

    async def close(self) -> None:
        """Leaves the last versions where they are: a server may be reading, or be restarted from them."""

    def _write(self, path, outgoing):
        try:
            huggingface.save_tensors(path, outgoing.tensors, source=self._source, dtype=outgoing.dtype)
        except OSError as error:
            raise OSError(f"weights could not be written to {path} ({error}); free {outgoing.bytes / 1e9:.2g} GB "
                          "there, or choose another --config.sync.directory") from error

    def _prune(self, newest):
        """Removes versions that are too old, and those of earlier runs that nobody can be reading any more."""
        read = set().union(*self._reading.values())
        old = [path for path in list(self._digests)[:-self._keep] if path not in read]
        now = newest.stat().st_mtime
        old += [path for path in self._directory.glob(f"{_PREFIX}*")
                if path not in self._digests and path.is_dir() and now - path.stat().st_mtime > 2 * self._seconds]
        for path in old:
            try:
                shutil.rmtree(path)
            except OSError as error:
                logging.warning("%s could not be removed: %s", path, error)
            self._digests.pop(path, None)
