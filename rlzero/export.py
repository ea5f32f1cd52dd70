r"""Turns the newest checkpoint of a run into an ordinary model directory.

    python -m rlzero.export --workdir=/tmp/rlzero --output=/tmp/rlzero/model

The directory holds weights, config, tokenizer and generation settings, and is what transformers, inference servers and
`--config.model.path` of another run read. It appears whole or not at all.
"""

import json
import pathlib
import sys
from typing import Any

import jax
from absl import app, flags, logging

from rlzero.models import huggingface, transformer
from rlzero.training import config as config_lib
from rlzero.training.checkpoints import Checkpoints

_USAGE = "python -m rlzero.export --workdir=RUN --output=DIRECTORY"
_DTYPES = ("float32", "bfloat16")


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "Run whose newest checkpoint is exported.")
    flags.DEFINE_string("output", None, "Model directory to create; must not exist yet.")
    flags.DEFINE_enum("dtype", None, _DTYPES, "Of the stored weights; by default that of the model the run began with.")


def load_checkpoint(workdir: str) -> tuple[Any, transformer.ModelConfig, str, int]:
    """The newest parameters of a run.

    Returns:
      The parameters, their shape, the path of the model the run began with, and the number of finished steps.

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
    return restored.arrays["params"], model, config.model.path, restored.step


def stored_dtype(path: str) -> str:
    """The dtype in which a model directory says its weights are; float32 where it is none that we write."""
    raw = json.loads((huggingface.model_directory(path) / "config.json").read_text(encoding="utf-8"))
    dtype = raw.get("dtype") or raw.get("torch_dtype")
    return dtype if dtype in _DTYPES else "float32"


def export(workdir: str, output: str, dtype: str | None = None) -> str:
    """Writes the model directory; returns a line about it."""
    if pathlib.Path(output).exists():
        raise FileExistsError(f"{output} exists already; choose another --output or remove it")
    params, model, source, step = load_checkpoint(workdir)
    dtype = dtype or stored_dtype(source)
    huggingface.save(output, params, model, source=source, dtype=dtype)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    return f"The model after step {step} of {workdir}, {size:,} parameters in {dtype}, is in {output}."


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    if not values["verbosity"].present:
        logging.set_verbosity(logging.WARNING)  # jax and orbax chat at level info
    if len(argv) > 1:
        sys.exit(f"error: {argv[1]}: this word belongs to no flag; {_USAGE}")
    if values.workdir is None or values.output is None:
        sys.exit(f"error: --workdir and --output are needed; {_USAGE}")
    try:
        print(export(values.workdir, values.output, values.dtype))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
