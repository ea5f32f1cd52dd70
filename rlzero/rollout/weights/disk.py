"""Weights through a directory that trainer and servers share: safetensors out, and the servers read them."""

import asyncio
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from absl import logging

from rlzero.models import huggingface
from rlzero.models.transformer import ModelConfig
from rlzero.rollout.sglang_http import Server
from rlzero.rollout.weights.tensors import Outgoing
from rlzero.rollout.weights.transport import Pushed, on_each


class DiskTransport:
    """Writes each version to a directory of its own, complete or not at all, and keeps the last few."""

    def __init__(self, model: ModelConfig, *, source: str, dtype: str, directory: pathlib.Path,
                 server_directory: str = "", keep: int = 2, seconds: float = 600.0):
        """Makes the transport; writes nothing.

        Args:
          model: the shape.
          source: model directory whose config and tokenizer each version carries.
          dtype: of the files.
          directory: where versions go.
          server_directory: the same directory as the servers see it; "" if under the same name.
          keep: versions that stay.
          seconds: deadline for the servers to read one.
        """
        self._model, self._source, self._dtype = model, source, dtype
        self._directory, self._seen_as = pathlib.Path(directory).absolute(), server_directory
        self._keep, self._seconds = keep, seconds
        self._written: list[pathlib.Path] = []
        self._digest = ""

    async def push(self, servers: Sequence[Server], params: Any, version: str) -> Pushed:
        """See `Transport.push`. A version that is there already is not written again."""
        path = self._directory / version
        outgoing = Outgoing(huggingface.named_tensors(params, self._model), self._dtype)
        if path not in self._written:
            await asyncio.to_thread(self._write, path, outgoing)
            self._digest = outgoing.digest()
        body = {"model_path": str(pathlib.PurePosixPath(self._seen_as) / version) if self._seen_as else str(path),
                "weight_version": version, "flush_cache": True, "abort_all_requests": False}
        failed = await on_each(servers, lambda server: server.post("/update_weights_from_disk", body,
                                                                   timeout=self._seconds))
        self._prune()
        return Pushed(failed, outgoing.bytes * (len(servers) - len(failed)), self._digest)

    async def close(self) -> None:
        """Leaves the last versions where they are: a server may be restarted from them."""

    def _write(self, path, outgoing):
        try:
            huggingface.save_tensors(path, outgoing, source=self._source, dtype=outgoing.dtype)
        except OSError as error:
            raise OSError(f"weights could not be written to {path} ({error}); free {outgoing.bytes / 1e9:.2g} GB "
                          "there, or choose another --config.sync.directory") from error
        self._written.append(path)

    def _prune(self):
        """Removes versions that are too old; no server reads them any more, for all have answered."""
        while len(self._written) > self._keep:
            old = self._written.pop(0)
            try:
                shutil.rmtree(old)
            except OSError as error:
                logging.warning("%s could not be removed: %s", old, error)
