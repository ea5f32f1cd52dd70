"""Metrics of a run: exact averages, and the files that hold them.

A metric is a pair (sum, weight), and pairs merge by adding, so an average over micro-batches, updates and hosts is the
average over their tokens or responses, however they were cut up. Names are `area/name`.

A run leaves `metrics.jsonl` (one line a step), TensorBoard events and `rollouts/step_*.jsonl` (one line a completion).
A run that goes on from step k first cuts what was written after k, so every step is there once. What a step looks like
on the screen is in `display.py`; what its numbers warn about, in `diagnosis.py`.
"""

import json
import math
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import numpy as np
import tensorboardX

from rlzero.training import files

Pairs = dict[str, tuple[Any, Any]]

# What the record of a completion holds at least; `rewards` are its parts by name, `completion_tokens` a count.
ROLLOUT_FIELDS = ("prompt_id", "sample_index", "text", "completion_tokens", "rewards", "reward", "finish_reason",
                  "advantage", "policy_version")


class Accumulator:
    """Collects (sum, weight) pairs without waiting for the device.

    Pairs may be numbers or arrays that are still being computed; they are fetched, all at once, when they are read.
    """

    def __init__(self):
        self._pairs: dict[str, list[tuple[Any, Any]]] = {}

    def add(self, name: str, total: Any, weight: Any) -> None:
        """Adds one pair."""
        self._pairs.setdefault(name, []).append((total, weight))

    def merge(self, pairs: Mapping[str, tuple[Any, Any]]) -> None:
        """Adds every pair of a dictionary."""
        for name, (total, weight) in pairs.items():
            self.add(name, total, weight)

    @property
    def totals(self) -> Pairs:
        """Each metric's summed pair, as float64 numbers on the host."""
        fetched = jax.device_get(self._pairs)
        return {name: tuple(np.sum(np.asarray(pairs, np.float64), axis=0).tolist()) for name, pairs in fetched.items()}


def merge(*parts: Mapping[str, tuple[Any, Any]]) -> Pairs:
    """The pairs of several dictionaries, added name by name."""
    merged = Accumulator()
    for pairs in parts:
        merged.merge(pairs)
    return merged.totals


def finalize(pairs: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """The averages, sum / weight. A metric of weight 0 was never observed and is left out."""
    return {name: float(total) / float(weight) for name, (total, weight) in pairs.items() if float(weight) != 0}


def _finite(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinities, which JSON has no word for, become null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray, jax.Array)):
        return _finite(np.asarray(value).tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json_line(record: Mapping[str, Any]) -> str:
    return json.dumps(_finite(record), allow_nan=False, ensure_ascii=False)


def read_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a JSONL file. A last line that was being written when its process died is left out."""
    records = []
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is not JSON ({error}); repair or move the file") from error
    return records


class MetricsWriter:
    """Writes a step's metrics to `WORKDIR/metrics.jsonl` and to TensorBoard (`WORKDIR/tensorboard`).

    Every line is on disk when `write` returns; a step can be written once, in rising order.

    Args:
      workdir: directory of the run.
      resume_step: last step that stays; 0 starts the file anew.
      name: stem of the JSONL file, for a second series such as "evaluation".
    """

    def __init__(self, workdir: str | os.PathLike, resume_step: int = 0, name: str = "metrics"):
        self._path = pathlib.Path(workdir) / f"{name}.jsonl"
        kept = []
        if self._path.exists():
            kept = [record for record in read_lines(self._path) if record["step"] <= resume_step]
        files.write_atomically(self._path, "".join(_json_line(record) + "\n" for record in kept))
        self._last = kept[-1]["step"] if kept else -1
        self._file = self._path.open("a", encoding="utf-8")
        # purge_step makes TensorBoard forget what an earlier process drew after the step the run goes on from. It acts
        # on a whole directory, so another series has its own.
        board = pathlib.Path(workdir) / "tensorboard" / ("" if name == "metrics" else name)
        self._board = tensorboardX.SummaryWriter(str(board), purge_step=resume_step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the metrics of a step.

        Raises:
          ValueError: the step, or a later one, has been written already.
        """
        if step <= self._last:
            raise ValueError(f"{self._path} holds step {self._last} already, so step {step} cannot follow; write each "
                             "step once, with all its metrics, and in rising order")
        self._file.write(_json_line({"step": step, **values}) + "\n")
        self._file.flush()
        self._last = step
        for name, value in values.items():
            if math.isfinite(value):
                self._board.add_scalar(name, value, step)
        self._board.flush()

    def write_text(self, step: int, name: str, text: str) -> None:
        """Shows a text, such as a transcript, in TensorBoard."""
        self._board.add_text(name, f"```\n{text}\n```", step)

    def close(self) -> None:
        self._file.close()
        self._board.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class RolloutWriter:
    """Writes the completions of a step to `WORKDIR/rollouts/step_000012.jsonl`, whole or not at all.

    Args:
      workdir: directory of the run.
      resume_step: last step that stays; the files of later ones are removed.
      folder: other than rollouts.
      fields: those that every record has.
    """

    def __init__(self, workdir: str | os.PathLike, resume_step: int = 0, *, folder: str = "rollouts",
                 fields: Collection[str] = ROLLOUT_FIELDS):
        self._folder, self._fields = pathlib.Path(workdir) / folder, fields
        for path in self._folder.glob("step_*.jsonl"):
            if int(path.stem.removeprefix("step_")) > resume_step:
                path.unlink()

    def write(self, step: int, records: Iterable[Mapping[str, Any]]) -> pathlib.Path:
        """Writes one line a completion.

        Args:
          step: number of the rollout step.
          records: dictionaries with at least the fields; None where something does not apply, such as the
            advantage of a completion that was filtered out.

        Returns:
          The file.
        """
        lines = []
        for record in records:
            missing = [name for name in self._fields if name not in record]
            if missing:
                raise ValueError(f"the record of a completion lacks {', '.join(missing)}; got {', '.join(record)}")
            lines.append(_json_line(record) + "\n")
        path = self._folder / f"step_{step:06d}.jsonl"
        files.write_atomically(path, "".join(lines))
        return path
