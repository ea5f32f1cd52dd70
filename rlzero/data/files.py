"""Rows of the files that problem sets are published in: JSONL, JSON, Parquet, and directories of `datasets`.

What a row means is the business of `layouts`. Nothing is downloaded.
"""

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

_EXTRA = "install rlzero[data], or convert it to JSONL"


def rows(path: str | pathlib.Path) -> Iterator[Any]:
    """The rows of a file or directory, in order.

    Args:
      path: a .jsonl, .json (a list) or .parquet file; or a directory: one that `datasets` saved to disk (Arrow files
        with a dataset_info.json), or one that holds .parquet or .jsonl files, read in the order of their names.

    Yields:
      What each row holds, mostly a dictionary.

    Raises:
      FileNotFoundError: nothing there, or nothing of these kinds.
      ValueError: a file is not what its name says; names file and line.
    """
    path = pathlib.Path(path).expanduser()
    if path.is_dir():
        for file in _parts(path):
            yield from _READERS[file.suffix](file)
    elif path.is_file() and path.suffix in _READERS:
        yield from _READERS[path.suffix](path)
    elif path.exists():
        raise ValueError(f"{path}: expected a file that ends with {', '.join(_READERS)}, or a directory of such")
    else:
        raise FileNotFoundError(f"there is no {path}; give the path of a problem set, or of a directory that holds it")


def _parts(directory):
    """The data files of a directory, all of one kind."""
    if (directory / "dataset_dict.json").is_file():
        splits = json.loads((directory / "dataset_dict.json").read_text())["splits"]
        if len(splits) > 1:
            raise ValueError(f"{directory} holds several sets; name one: "
                             f"{', '.join(str(directory / split) for split in splits)}")
        directory = directory / splits[0]
    for suffix in (".arrow", ".parquet", ".jsonl"):
        files = sorted(directory.glob(f"*{suffix}"))
        if files:
            return files
    raise FileNotFoundError(f"{directory} holds no .arrow, .parquet or .jsonl file")


def _jsonl(path):
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _parsed(line, f"{path}, line {number}")


def _json(path):
    found = _parsed(path.read_text(encoding="utf-8"), path)
    if not isinstance(found, list):
        raise ValueError(f"{path}: expected a list of problems, got {type(found).__name__}")
    yield from found


def _parsed(text, where):
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: expected JSON ({error})") from None


def _parquet(path):
    with _pyarrow(path) as pyarrow, pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def _arrow(path):
    with _pyarrow(path) as pyarrow, path.open("rb") as file:
        for batch in pyarrow.ipc.open_stream(file):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _pyarrow(path):
    """pyarrow, which only these two formats need; what it says of a broken file becomes a ValueError that names it."""
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{path} needs pyarrow: {_EXTRA}") from None
    try:
        yield pyarrow
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None


_READERS = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet, ".arrow": _arrow}
