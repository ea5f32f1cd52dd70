r"""Rewrites the answers of a problem set into integers, and its questions so that they ask for them.

    python -m rlzero.integers --files=data/math_train.json --layout=math --output=data/math_integers.jsonl
    python -m rlzero.train --config.data.files=data/math_integers.jsonl --config.data.layout=fields …

As in DAPO's data step, but by rules instead of a language model: `rlzero.data.integer_answers` has their table. OUTPUT
gets a line for each problem that a rule applies to, and the file beside it that ends with .left_out.jsonl one for each
other problem, with the reason.
"""

import collections
import json
import pathlib
import sys

from absl import app, flags

from rlzero import rewards
from rlzero.data import layouts
from rlzero.training import display, files
from rlzero.training import flags as flags_lib
from rlzero.training.problem_sets import levels_of


def define_flags() -> None:
    flags.DEFINE_string("files", None, "Problem set: .jsonl, .json, .parquet, or a directory of `datasets`.")
    flags.DEFINE_enum("layout", "fields", list(layouts.LAYOUTS), "Of its rows, see rlzero.data.layouts.")
    flags.DEFINE_string("question_field", "question", "Of layout fields.")
    flags.DEFINE_string("answer_field", "answer", "Of layout fields.")
    flags.DEFINE_string("levels", "", "Difficulties to keep, such as 3-5; empty for all.")
    flags.DEFINE_string("output", None, "JSONL file to write.")


def converted(problems: list) -> tuple[list[dict], list[dict]]:
    """Lines for the problems that could be rewritten, and for those that could not."""
    from rlzero.data.integer_answers import NotRewritten, rewrite  # of the extra "math"

    kept, left_out = [], []
    for problem in problems:
        line = {"id": problem.id, "question": problem.question, "answer": problem.answer}
        try:
            new = rewrite(problem.question, problem.answer)
        except NotRewritten as reason:
            left_out.append(line | {"reason": str(reason)})
        else:
            kept.append(line | new._asdict() | {"original_answer": problem.answer})
    return kept, left_out


def counts_table(kept: list[dict], left_out: list[dict]) -> str:
    """How many problems each rule was applied to, and each reason kept out."""
    rows = [("", "problems")]
    for lines, name in ((kept, "rule"), (left_out, "reason")):
        what = "rewritten" if name == "rule" else "left out"
        rows += [(f"{what}: {value}", str(count))
                 for value, count in collections.Counter(line[name] for line in lines).most_common()]
    return display.table(rows)


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    if len(argv) > 1 or not values.files or not values.output:
        sys.exit("error: " + (f"{argv[1]}: this word belongs to no flag; " if len(argv) > 1 else "") +
                 "give a problem set with --files=PATH and where to write with --output=NEW.jsonl")
    output = pathlib.Path(values.output)
    beside = output.with_name(f"{output.stem}.left_out.jsonl")
    try:
        rewards.require_mode("math")
        for path in (output, beside):
            if path.exists():
                raise ValueError(f"{path} exists already; give another --output, or remove it")
        problems = layouts.load(values.files, values.layout, question_field=values.question_field,
                                answer_field=values.answer_field, levels=levels_of(values.levels))
        kept, left_out = converted(problems)
        for path, lines in ((beside, left_out), (output, kept)):
            files.write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"error: {error}")
    print(f"{len(kept)} of {len(problems)} problems are in {output}, the others with their reasons in {beside}\n")
    print(counts_table(kept, left_out))


if __name__ == "__main__":
    flags_lib.quiet()
    define_flags()
    app.run(main)
