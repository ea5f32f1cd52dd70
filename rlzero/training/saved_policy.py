"""The policy a run has come to: what programs read of a run that they do not continue."""

import dataclasses
import os
import pathlib
from typing import Any

from rlzero.models import huggingface, transformer
from rlzero.training import config as config_lib
from rlzero.training.checkpoints import Checkpoints


@dataclasses.dataclass(frozen=True)
class SavedPolicy:
    """The newest parameters of a run.

    Attributes:
      params: the parameters.
      model: their shape.
      config: the run's settings; `config.model.path` is the model it began with.
      step: the number of finished steps.
    """

    params: Any
    model: transformer.ModelConfig
    config: config_lib.Config
    step: int


def load(workdir: str | os.PathLike) -> SavedPolicy:
    """Reads the parameters of a run's newest complete checkpoint, also while the run goes on.

    Raises:
      FileNotFoundError: no run there, no complete checkpoint, or its first model is gone. ValueError: they do not fit.
    """
    if not (pathlib.Path(workdir) / "config.json").is_file():
        raise FileNotFoundError(f"{workdir} is no run: expected a --workdir of rlzero.train with its config.json")
    config = config_lib.load(pathlib.Path(workdir) / "config.json")
    model = huggingface.read_config(config.model.path)
    with Checkpoints(workdir, read_only=True) as checkpoints:
        restored = checkpoints.restore({"params": transformer.abstract_params(model, config.model.dtype)}, partial=True)
    if restored is None:
        raise FileNotFoundError(f"{workdir} holds no complete checkpoint; train first")
    return SavedPolicy(restored.arrays["params"], model, config, restored.step)
