r"""Turns the newest checkpoint of a run into an ordinary model directory.

    python -m rlzero.export --workdir=/tmp/rlzero --output=/tmp/rlzero/model

The directory holds weights, config, tokenizer and generation settings, and is what transformers, inference servers and
`--config.model.path` of another run read. It appears whole or not at all.
"""

import json
import pathlib
import sys

import jax
from absl import app, flags

from rlzero.models import huggingface
from rlzero.training import flags as flags_lib
from rlzero.training import saved_policy

_USAGE = "python -m rlzero.export --workdir=RUN --output=DIRECTORY"
_DTYPES = ("float32", "bfloat16")


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "Run whose newest checkpoint is exported.")
    flags.DEFINE_string("output", None, "Model directory to create; must not exist yet.")
    flags.DEFINE_enum("dtype", None, _DTYPES, "Of the stored weights; by default that of the model the run began with.")


def stored_dtype(path: str) -> str:
    """The dtype in which a model directory says its weights are; float32 where it is none that we write."""
    raw = json.loads((huggingface.model_directory(path) / "config.json").read_text(encoding="utf-8"))
    dtype = raw.get("dtype") or raw.get("torch_dtype")
    return dtype if dtype in _DTYPES else "float32"


def export(workdir: str, output: str, dtype: str | None = None) -> str:
    """Writes the model directory; returns a line about it."""
    if pathlib.Path(output).exists():
        raise FileExistsError(f"{output} exists already; choose another --output or remove it")
    policy = saved_policy.load(workdir)
    source = policy.config.model.path
    dtype = dtype or stored_dtype(source)
    huggingface.save(output, policy.params, policy.model, source=source, dtype=dtype)
    size = sum(leaf.size for leaf in jax.tree.leaves(policy.params))
    return f"The model after step {policy.step} of {workdir}, {size:,} parameters in {dtype}, is in {output}."


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    flags_lib.quiet()
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
