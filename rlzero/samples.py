r"""Looks at completions: those a run wrote down, or those of `rlzero.evaluate --output`.

    python -m rlzero.samples --workdir=runs/dapo                          # the newest step
    python -m rlzero.samples --workdir=runs/dapo --step=12 --only=wrong --count=3
    python -m rlzero.samples --workdir=runs/dapo --evaluation --prompt=arithmetic/17+25=
    python -m rlzero.samples --file=samples.jsonl --contains=recheck

Shows the question and the text of each, and a line with what is known of it: right or wrong, answer and gold answer,
rewards by part, advantage, length, how it ended and what became of it. Which ones are shown is drawn at random.
"""

import collections
import json
import pathlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from absl import app, flags

from rlzero.training import flags as flags_lib

_ONLY: dict[str, Callable[[dict], bool]] = {
    "all": lambda record: True,
    "right": lambda record: record.get("correct") is True,
    "wrong": lambda record: record.get("correct") is False,
    "unscored": lambda record: record.get("correct") is None,
    "cut": lambda record: record.get("finish_reason") == "length",
    "no_answer": lambda record: record.get("answer") is None,
}


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "Run whose completions are shown.")
    flags.DEFINE_string("file", None, "JSONL file of completions, instead of --workdir.")
    flags.DEFINE_integer("step", None, "Of the run; the newest if not given.", lower_bound=0)
    flags.DEFINE_bool("evaluation", False, "Show held-out completions instead of those to learn from.")
    flags.DEFINE_enum("only", "all", list(_ONLY), "Which completions.")
    flags.DEFINE_string("prompt", "", "Only those whose prompt id or question contains this text.")
    flags.DEFINE_string("contains", "", "Only those whose own text contains this text.")
    flags.DEFINE_integer("count", 5, "Most completions to show.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Of the choice.")


def file_of(values: Any) -> pathlib.Path:
    """The file that the flags name.

    Raises:
      ValueError: they name none, or there is none.
    """
    if (values.workdir is None) == (values.file is None):
        raise ValueError("give a run with --workdir=RUN or a file with --file=SAMPLES.jsonl, one of the two")
    if values.file is not None:
        return pathlib.Path(values.file)
    folder = pathlib.Path(values.workdir) / ("evaluations" if values.evaluation else "rollouts")
    steps = {int(path.stem.removeprefix("step_")): path for path in folder.glob("step_*.jsonl")}
    if not steps:
        raise ValueError(f"{folder} holds no completions; expected a --workdir of rlzero.train, with "
                         "--config.rollout.keep_rollouts=true")
    step = max(steps) if values.step is None else values.step
    if step not in steps:
        raise ValueError(f"there is no step {step} in {folder}; there are {min(steps)} to {max(steps)}")
    return steps[step]


def read(path: pathlib.Path) -> Iterator[dict]:
    """The records of a file.

    Raises:
      ValueError: a line is no JSON object.
    """
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: expected JSON ({error})") from None
            if not isinstance(record, dict) or "text" not in record:
                raise ValueError(f"{path}, line {number}: expected the record of a completion, with its text")
            yield record


def shown(record: dict) -> str:
    """One completion, as text."""
    verdict = {True: "right", False: "wrong", None: "not scored"}[record.get("correct")]
    parts = [verdict, f"answer {record.get('answer')!r}", f"gold {str(record.get('gold'))[:80]!r}"]
    if record.get("rewards"):
        parts.append("reward " + " ".join(f"{name} {value:g}" for name, value in record["rewards"].items()))
    if record.get("advantage") is not None:
        parts.append(f"advantage {record['advantage']:+.3f}")
    parts += [f"{len(record.get('completion_ids', ()))} tokens", f"ended by {record.get('finish_reason')}"]
    parts += [str(record[name]) for name in ("fate", "set", "template") if record.get(name)]
    head = f"{record.get('prompt_id')}, sample {record.get('sample_index')}"
    return "\n".join([f"--- {head}", "    " + "; ".join(parts), str(record.get("question", "")), ">>>", record["text"]])


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    try:
        if len(argv) > 1:
            raise ValueError(f"{argv[1]}: this word belongs to no flag; give --workdir=RUN or --file=SAMPLES.jsonl")
        path = file_of(values)
        records = list(read(path))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    found = [record for record in records if _ONLY[values.only](record) and values.contains in record["text"]
             and (values.prompt in str(record.get("prompt_id")) or values.prompt in str(record.get("question")))]
    verdicts = collections.Counter(record.get("correct") for record in records)
    print(f"{path}: {len(records)} completions, {verdicts[True]} right, {verdicts[False]} wrong, {verdicts[None]} not "
          f"scored; {len(found)} as asked for\n")
    chosen = sorted(random.Random(values.seed).sample(range(len(found)), min(values.count, len(found))))
    print("\n\n".join(shown(found[number]) for number in chosen))


if __name__ == "__main__":
    flags_lib.quiet()
    define_flags()
    app.run(main)
