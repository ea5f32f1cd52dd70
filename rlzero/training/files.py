"""Files that are either the old ones or the new ones, never half of each."""

import os
import pathlib
import tempfile


def require_writable(path: str | os.PathLike) -> None:
    """Makes sure, before the work whose result it is to hold, that a file can be written.

    Raises:
      OSError: it cannot; names it.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def write_atomically(path: str | os.PathLike, text: str) -> None:
    """Replaces the text of a file in one step, so that a killed process leaves a whole file behind.

    Args:
      path: file to write; its directory is created when missing.
      text: whole content, written as UTF-8.

    Raises:
      OSError: it cannot be written; names the file, which is the old one still.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name of the process keeps two writers of one file from sharing a half-written copy.
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)
