"""Ways to move the trainer's weights into SGLang servers; `transport` says what they have in common."""

import pathlib
from typing import Any

from rlzero.models.transformer import ModelConfig
from rlzero.rollout.weights.disk import DiskTransport
from rlzero.rollout.weights.distributed import DistributedTransport
from rlzero.rollout.weights.tensor import TensorTransport
from rlzero.rollout.weights.transport import Pushed, Transport, WeightSyncError

__all__ = ["DiskTransport", "DistributedTransport", "Pushed", "TensorTransport", "Transport", "WeightSyncError",
           "make_transport"]


def make_transport(section: Any, model: ModelConfig, *, source: str, dtype: str,
                   directory: pathlib.Path) -> Transport:
    """The transport that `rlzero.training.sections.SyncSection` names.

    Args:
      section: the settings.
      model: the shape.
      source: model directory that training started from.
      dtype: that weights are sent in.
      directory: where the disk transport writes.
    """
    shared = {"source": source, "dtype": dtype, "seconds": section.seconds}
    if section.method == "disk":
        return DiskTransport(model, directory=directory, server_directory=section.server_directory, keep=section.keep,
                             **shared)
    shared["bucket_bytes"] = section.bucket_megabytes * 10**6
    if section.method == "tensor":
        return TensorTransport(model, **shared)
    return DistributedTransport(model, backend=section.backend, host=section.host, python=section.python, **shared)
