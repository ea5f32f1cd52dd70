"""Checkpoints: asynchronous saves through Orbax, and the newest whole one back onto today's devices.

A checkpoint holds named pytrees of arrays (parameters, optimizer, critic, …) and the host's state as JSON (counters,
position in the prompts, carried groups, seeds). Around Orbax's CheckpointManager three things are made strict:

* Whole or nothing. The last file of a checkpoint is `commit.json`, with size and checksum of all others. What has no
  such file, or other contents than it says, is named, set aside and never restored; Orbax alone takes an empty
  directory `9` for the latest step.
* No silent casts. Orbax restores float32 weights into a bfloat16 tree without a word; here every name, shape and dtype
  must agree.
* No lost errors. A save that fails in the background raises at the next save or `wait`, and says where and how big.

Arrays are stored under readable names ("params/layers/attention/query"), one Orbax item per pytree, so that
`orbax.checkpoint.PyTreeCheckpointer` reads an item without any code from here.
"""

import dataclasses
import json
import pathlib
import shutil
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging
import jax
import numpy as np
import orbax.checkpoint as ocp

_COMMIT = "commit.json"
_HOST = "host"
_CHUNK_BYTES = 1 << 24


class CheckpointError(RuntimeError):
    """A checkpoint could not be written."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint held.

    Attributes:
      step: the step after which it was saved.
      arrays: the pytrees that were asked for.
      host: the host's state.
    """

    step: int
    arrays: dict[str, Any]
    host: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in `WORKDIR/checkpoints/STEP`.

    Args:
      workdir: directory of the run.
      keep: how many of the newest stay; an older one goes only after a newer one is complete.
      read_only: look only; for programs that evaluate a run which may still be going on.

    Attributes:
      skipped: a sentence for every directory that was passed over because it is no whole checkpoint.
    """

    def __init__(self, workdir: str | pathlib.Path, *, keep: int = 2, read_only: bool = False):
        self._folder = pathlib.Path(workdir).absolute() / "checkpoints"
        self.skipped: list[str] = []
        if not read_only:
            self._folder.mkdir(parents=True, exist_ok=True)
        self._latest = self._newest_whole(set_aside=not read_only)
        self._saving: int | None = None
        self._manager = None if read_only else ocp.CheckpointManager(
            self._folder, options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, cleanup_tmp_directories=True,
                async_options=ocp.AsyncOptions(post_finalization_callback=self._commit)))

    @property
    def latest_step(self) -> int | None:
        """Step of the newest whole checkpoint, None without one."""
        return self._latest

    def save(self, step: int, arrays: Mapping[str, Any], host: Mapping[str, Any]) -> None:
        """Starts to save; returns as soon as the arrays may be changed or donated.

        A step that is saved already is left as it is.

        Args:
          step: number of finished steps.
          arrays: named pytrees of arrays; "host" is no name for one.
          host: state of the host, made of what JSON gives back unchanged (lists, dictionaries with text keys, numbers).

        Raises:
          CheckpointError: this save cannot begin, or the one before it failed.
          TypeError: the state of the host would come back different.
        """
        if self._manager is None:
            raise ValueError(f"{self._folder} was opened read_only; open it without, to save there")
        if json.loads(json.dumps(host)) != host:
            raise TypeError("the host's state would not come back from JSON as it is; use lists instead of tuples and "
                            f"texts as keys: {host!r}")
        self.wait()
        if step == self._latest:
            return
        items = {name: _named_leaves(tree) for name, tree in arrays.items()}
        size = sum(leaf.nbytes for leaves in items.values() for leaf in leaves.values())
        self._check_space(step, size)
        self._saving = step
        args = {name: ocp.args.PyTreeSave(leaves) for name, leaves in items.items() if leaves}
        try:
            # Without force, Orbax ignores a step below its latest one and reports success only in its result.
            self._manager.save(step, args=ocp.args.Composite(
                **args, **{_HOST: ocp.args.JsonSave(json.loads(json.dumps(host)))}), force=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise self._failure(error) from error

    def restore(self, arrays: Mapping[str, Any], *, partial: bool = False) -> Restored | None:
        """Reads the newest whole checkpoint.

        Args:
          arrays: named pytrees of arrays, or of `jax.ShapeDtypeStruct` with shardings: what comes back has their
            structure and lies where they lie, whatever number of devices the checkpoint was written on.
          partial: whether the checkpoint may hold more than is asked for; for programs that want parameters only.

        Returns:
          What it held; None if there is no checkpoint.

        Raises:
          ValueError: a name, a shape or a dtype in the checkpoint is another than in `arrays`.
        """
        if self._latest is None:
            return None
        path = self._folder / str(self._latest)
        wanted = {name: _named_leaves(tree) for name, tree in arrays.items()}
        wanted = {name: {key: _abstract(leaf) for key, leaf in leaves.items()} for name, leaves in wanted.items()}
        self._check_matches(path, wanted, partial)
        trees = dict(arrays)
        for name, leaves in wanted.items():
            if leaves:
                found = ocp.PyTreeCheckpointHandler().restore(path / name, args=ocp.args.PyTreeRestore(
                    leaves, restore_args=ocp.checkpoint_utils.construct_restore_args(leaves), partial_restore=partial))
                trees[name] = jax.tree.unflatten(jax.tree.structure(arrays[name]), [found[key] for key in leaves])
        return Restored(self._latest, trees, ocp.JsonCheckpointHandler().restore(path / _HOST))

    def wait(self) -> None:
        """Blocks until a save that is going on is complete.

        Raises:
          CheckpointError: it failed.
        """
        if self._saving is None:
            return
        try:
            self._manager.wait_until_finished()
        except (OSError, ValueError, RuntimeError) as error:
            raise self._failure(error) from error
        self._latest, self._saving = self._saving, None

    def close(self) -> None:
        """Waits, and ends the background threads."""
        try:
            self.wait()
        finally:
            if self._manager is not None:
                self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _newest_whole(self, set_aside: bool) -> int | None:
        """Looks from the newest step down; renames what is broken, so that its number is free and Orbax ignores it."""
        found = [int(path.name) for path in self._folder.glob("*") if path.is_dir() and path.name.isdigit()]
        for step in sorted(found, reverse=True):
            path = self._folder / str(step)
            flaw = _flaw(path)
            if not flaw:
                return step
            self.skipped.append(f"{path} is no whole checkpoint ({flaw}); it is skipped" + (
                f" and renamed to {_set_aside(path).name}." if set_aside else "."))
            logging.warning(self.skipped[-1])
        return None

    def _commit(self) -> None:
        """Writes the commit file; Orbax calls it in its thread when all else is written, before the final rename."""
        if jax.process_index() != 0:
            return
        final = self._folder / str(self._saving)
        unfinished = list(self._folder.glob(f"{self._saving}.orbax-checkpoint-tmp*"))
        folder = unfinished[0] if unfinished else final
        (folder / _COMMIT).write_text(json.dumps({"files": dict(_contents(folder))}), encoding="utf-8")

    def _check_space(self, step: int, size: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if jax.process_count() == 1 and free < size:
            raise CheckpointError(f"there is no room for the checkpoint of step {step}: it takes about {size:,} bytes, "
                                  f"and {self._folder} has {free:,} left. {self._last_good()}")

    def _failure(self, error: Exception) -> CheckpointError:
        """Cleans up after a failed save, so that the next one finds the room and the list it had; words the error."""
        step, self._saving = self._saving, None
        for leftover in self._folder.glob(f"{step}.orbax-checkpoint-tmp*"):
            shutil.rmtree(leftover)
        self._manager.reload()
        free = shutil.disk_usage(self._folder).free
        return CheckpointError(f"saving the checkpoint of step {step} to {self._folder} failed: {error} ({free:,} "
                               f"bytes are left there). {self._last_good()}")

    def _last_good(self) -> str:
        if self._latest is None:
            return "There is no earlier checkpoint."
        return f"The last good one, of step {self._latest}, is untouched."

    def _check_matches(self, path: pathlib.Path, wanted: Mapping[str, Mapping[str, Any]], partial: bool) -> None:
        """Refuses a checkpoint whose arrays are not the wanted ones."""
        here = {f"{name}/{key}": _describe(leaf) for name, leaves in wanted.items() for key, leaf in leaves.items()}
        items = [item for item in path.iterdir() if item.is_dir() and item.name != _HOST]
        saved = {f"{item.name}/{key}": _describe(leaf) for item in items
                 for key, leaf in ocp.PyTreeCheckpointHandler().metadata(item).tree.items()}
        if partial:
            saved = {key: leaf for key, leaf in saved.items() if key in here}
        different = [f"{key}: {saved.get(key, 'nothing')} in the checkpoint, {here.get(key, 'nothing')} in this run"
                     for key in sorted(saved.keys() | here.keys()) if saved.get(key) != here.get(key)]
        if different:
            more = f"\n… and {len(different) - 5} more" if len(different) > 5 else ""
            raise ValueError(f"{path} was written by a run with another model or algorithm; go on with its settings "
                             "(config.json of its workdir), or start in a new --workdir:\n"
                             + "\n".join(different[:5]) + more)


def _named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree under the names of their paths, such as "params/layers/query"."""
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf
              for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
    for name, leaf in leaves.items():
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(f"expected arrays in a checkpoint, got {leaf!r} at {name}; put it into the host's state")
    return leaves


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _describe(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"


def _contents(folder: pathlib.Path) -> Iterator[tuple[str, list[int]]]:
    """Name, size and CRC-32 of every file of the items; files beside them are Orbax's own business."""
    for path in sorted(folder.glob("*/**/*")):
        if path.is_file():
            checksum = 0
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    checksum = zlib.crc32(chunk, checksum)
            yield str(path.relative_to(folder)), [path.stat().st_size, checksum]


def _flaw(path: pathlib.Path) -> str:
    """What keeps a directory from being a whole checkpoint; nothing for a whole one."""
    commit = path / _COMMIT
    if not commit.is_file():
        return f"{_COMMIT} is missing, so its writer was stopped" if any(path.iterdir()) else "the directory is empty"
    try:
        expected = json.loads(commit.read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError, TypeError):
        return f"{_COMMIT} is damaged"
    found = dict(_contents(path))
    damaged = [name for name, contents in expected.items() if found.get(name) != contents]
    return f"{damaged[0]} is {'damaged' if damaged[0] in found else 'missing'}" if damaged else ""


def _set_aside(path: pathlib.Path) -> pathlib.Path:
    """Renames a broken checkpoint to a name that is not yet taken."""
    target, number = path.with_name(f"{path.name}.incomplete"), 1
    while target.exists():
        target, number = path.with_name(f"{path.name}.incomplete-{number}"), number + 1
    return path.rename(target)
