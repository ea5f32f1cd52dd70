"""The safetensors files of a model directory: parts of tensors out, whole sets of tensors in.

`TensorFiles` reads any rectangle of any tensor without touching the rest, in every dtype that NumPy knows through
ml_dtypes, so bfloat16 needs no torch. `write` streams tensors into files of bounded size. Which tensors a model has and
what they mean is the business of `huggingface.py`.
"""

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

import ml_dtypes  # noqa: F401 (gives NumPy the bfloat16 in which safetensors hands out such tensors)
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class TensorFiles:
    """The tensors of a directory by name.

    Where there is an index, it is the list of contents: files it does not mention are not looked at, and what it says
    must be so. Without one, all *.safetensors files together are the checkpoint.
    """

    def __init__(self, directory: pathlib.Path):
        """Opens the files; reads their headers only.

        Raises:
          FileNotFoundError: no safetensors file, or one that the index lists is missing.
          ValueError: index and files disagree, or a tensor is in two files.
        """
        index = directory / INDEX
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.is_file() else None
        names = set(weight_map.values()) if weight_map else {path.name for path in directory.glob("*.safetensors")}
        if not names:
            raise FileNotFoundError(f"no *.safetensors in {directory}")
        absent = [name for name in sorted(names) if not (directory / name).is_file()]
        if absent:
            raise FileNotFoundError(f"{index} lists files that are not there: {', '.join(absent[:8])}")
        self._handles = {}
        files = {}
        for file in sorted(names):
            handle = safe_open(directory / file, framework="numpy")
            for name in handle.keys():
                if name in files:
                    raise ValueError(f"tensor {name} is in two files of {directory}: {files[name]} and {file}")
                files[name], self._handles[name] = file, handle
        if weight_map is not None:
            _check_index(index, weight_map, files)

    @property
    def names(self) -> set[str]:
        return set(self._handles)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handles[name].get_slice(name).get_shape())

    def read(self, name: str, index: Sequence[slice]) -> np.ndarray:
        """The part `index` of a tensor, one slice a dimension; nothing else is read."""
        return np.asarray(self._handles[name].get_slice(name)[tuple(index)])


def write(directory: pathlib.Path, shapes: Mapping[str, tuple[int, ...]], fetch: Callable[[str], np.ndarray], *,
          dtype: np.typing.DTypeLike, max_shard_bytes: int) -> None:
    """Writes tensors to one file, or to several with an index; holds the tensors of one file at a time.

    Args:
      directory: where the files go.
      shapes: name -> shape of every tensor, in the order in which they are stored.
      fetch: gives a tensor by name.
      dtype: of the stored tensors.
      max_shard_bytes: limit of a file's tensors; a tensor above it has a file of its own.
    """
    itemsize = np.dtype(dtype).itemsize
    sizes = {name: math.prod(shape) * itemsize for name, shape in shapes.items()}
    shards = _divide(sizes, max_shard_bytes)
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: np.ascontiguousarray(fetch(name), dtype) for name in names}, directory / file,
                  metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _divide(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Fills files in order, each up to the limit."""
    shards, room = [], 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards


def _check_index(index: os.PathLike, weight_map: Mapping[str, str], files: Mapping[str, str]) -> None:
    missing = sorted(set(weight_map) - set(files))
    if missing:
        raise ValueError(f"{index} lists tensors that no file holds: {', '.join(missing[:8])}")
    unlisted = sorted(set(files) - set(weight_map))
    if unlisted:
        raise ValueError(f"{index} does not list tensors that its files hold: {', '.join(unlisted[:8])}")
    elsewhere = sorted(name for name, file in files.items() if weight_map[name] != file)
    if elsewhere:
        raise ValueError(f"{index} names the wrong file for {', '.join(elsewhere[:8])}")
