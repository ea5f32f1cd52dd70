"""What an evaluation shows and leaves: a table, and a record of every sample."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlzero.evaluation.measure import Evaluation
from rlzero.training import display


def results_table(evaluations: Mapping[str, Evaluation], samples: int) -> str:
    """A row for each set: avg@k, pass@k for k = 2, 4, …, maj@k, length and truncation; and the mean of several."""
    powers = [2**i for i in range(1, samples.bit_length()) if 2**i <= samples]
    head = ("", "problems", f"avg@{samples}", "s.e.", *(f"pass@{k}" for k in powers), f"maj@{samples}", "tokens", "cut",
            "no answer")
    numbers = [(e.accuracy, *(e.pass_at(k) for k in powers), e.majority, e.mean_length, e.truncated_fraction,
                e.unanswered_fraction) for e in evaluations.values()]

    def cells(values):
        *shares, length, cut, silent = values
        return [*(f"{share:.1%}" for share in shares), f"{length:.1f}", f"{cut:.1%}", f"{silent:.1%}"]

    rows = [head]
    for (name, evaluation), row in zip(evaluations.items(), numbers, strict=True):
        accuracy, *rest = cells(row)
        rows.append((name, str(len(evaluation.groups)), accuracy, f"{evaluation.standard_error:.1%}", *rest))
    if len(numbers) > 1:
        accuracy, *rest = cells([sum(column) / len(column) for column in zip(*numbers, strict=True)])
        rows.append(("mean", "", accuracy, "", *rest))
    return display.table(rows)


def records(evaluations: Mapping[str, Evaluation]) -> Iterator[dict[str, Any]]:
    """What there is to know of each sample, as JSON takes it; `set` is the name of its evaluation."""
    for name, evaluation in evaluations.items():
        for group in evaluation.groups:
            for sample in group.samples:
                yield {"set": name} | sample.record(group.problem)
