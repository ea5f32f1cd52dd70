"""What the verifier gets right and how fast it is, as Markdown.

    python benchmarks/verifier.py [--cases FILE.jsonl ...]

Prints three tables: wrong verdicts on recorded cases by mode, with math-verify as it comes for comparison; responses per
second on two processes; and the slowest hostile answers. A case file has a JSON object a line with `gold`, `response` (or
`answer`, which is put into a box), `correct` and `kind`. Without `--cases` it takes those of the tests.
"""

import argparse
import collections
import json
import pathlib
import time

from rlzero.rewards import GradingPool, grade

_TESTS = pathlib.Path(__file__).parents[1] / "tests" / "rewards"
_FILES = ("math_cases.jsonl", "verifier_policy_cases.jsonl", "math_pairs.jsonl", "verifier_cases.jsonl")
_INTEGER_KINDS = ("integer", "aime")
_SECONDS = 5.0
_HOSTILE = {
    "tower of powers": "9^{9^{9^{9}}}", "factorials": "((((9!)!)!)!)", "binomial": r"\binom{10^{9}}{5\cdot 10^{8}}",
    "power of a sum": "(x+y+z)^{1000}", "59 factors with roots": "*".join(rf"(1+\sqrt{{{n}}})" for n in range(2, 61)),
    "5,000 brackets": "(" * 5000 + "x" + ")" * 5000, "5,000 roots": r"\sqrt{" * 5000 + "2" + "}" * 5000,
    "5,000 digits": "1234567890" * 500, "sum to 10^12": r"\sum_{k=1}^{10^{12}} k^{k}",
    "50,000 boxes": r"\boxed{" * 50_000, "code": "__import__('os').getcwd()"}


def cases_of(path: pathlib.Path) -> list[dict]:
    """The cases of a file, each with a response."""
    cases = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [case | {"response": case.get("response", rf"So it is $\boxed{{{case.get('answer')}}}$.")} for case in cases]


def verdicts_of_math_verify(cases: list[dict]) -> list[bool]:
    """What math-verify says with its own extraction, parsers and defaults, each case within ten seconds."""
    import logging

    import math_verify
    from math_verify.errors import TimeoutException

    logging.disable(logging.CRITICAL)
    verdicts = []
    for case in cases:
        try:
            gold, given = math_verify.parse(f"${case['gold']}$"), math_verify.parse(case["response"])
            verdicts.append(bool(math_verify.verify(gold, given)))
        except (ValueError, RecursionError, TimeoutException):
            verdicts.append(False)
    return verdicts


def wrong(cases: list[dict], verdicts: list[bool]) -> str:
    """False accepts and false rejects as two cells of a table."""
    count = collections.Counter(zip((case["correct"] for case in cases), verdicts, strict=True))
    return f"{count[False, True]} | {count[True, False]}"


def print_verdicts(files: list[pathlib.Path]) -> None:
    print("| cases | right / wrong | mode | false accepts | false rejects |\n|---|---|---|---|---|")
    for path in files:
        cases = cases_of(path)
        integers = [case for case in cases if case.get("kind", "") in _INTEGER_KINDS]
        rows = {"math": cases, "integer": integers, "math-verify": cases}
        for mode, chosen in rows.items():
            if not chosen:
                continue
            verdicts = (verdicts_of_math_verify(chosen) if mode == "math-verify" else
                        [grade(case["response"], case["gold"], mode=mode).correct for case in chosen])
            right = sum(case["correct"] for case in chosen)
            print(f"| {path.name}{' (integer, aime)' if mode == 'integer' else ''} | {right} / {len(chosen) - right} | "
                  f"{mode} | {wrong(chosen, verdicts)} |", flush=True)


def per_second(samples: list[tuple[str, str, str]], mode: str) -> float:
    """Responses a second that two workers grade."""
    with GradingPool(workers=2, deadline_seconds=30.0, mode=mode) as pool:
        pool.grade(samples[:200])
        start, count = time.monotonic(), 0
        while time.monotonic() - start < _SECONDS:
            pool.grade(samples)
            count += len(samples)
        return count / (time.monotonic() - start)


def print_speed(files: list[pathlib.Path]) -> None:
    reasoning = "Let us add the numbers step by step, and check the result twice. " * 20
    integers = [(str(n), rf"{reasoning} The answer is \boxed{{{n}}}.", str(n + n % 2)) for n in range(5000)]
    cases = [case for path in files for case in cases_of(path) if len(case["response"]) < 5000]
    mixed = [(str(n), case["response"], case["gold"]) for n, case in enumerate(cases)]
    identities = [(str(n), rf"\boxed{{\sqrt{{1-\cos^2 {letter}}}}}", rf"|\sin {letter}|")
                  for n, letter in enumerate("abcxyz" * 20)]
    print("\n| responses of 1,300 characters, and recorded ones | mode | a second, two workers |\n|---|---|---|")
    for name, samples, mode in (("integers", integers, "integer"), ("integers", integers, "math"),
                                (f"the {len(mixed)} cases above", mixed, "math"),
                                ("identities that reach the library", identities, "math")):
        print(f"| {name} | {mode} | {per_second(samples, mode):,.0f} |", flush=True)


def print_hostile() -> None:
    print("\n| hostile answer | milliseconds |\n|---|---|")
    for name, answer in _HOSTILE.items():
        start = time.perf_counter()
        result = grade(rf"\boxed{{{answer}}}", r"x+\sqrt{2}", mode="math")
        assert not result.correct and result.error is None
        print(f"| {name} | {1000 * (time.perf_counter() - start):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", type=pathlib.Path, default=[_TESTS / name for name in _FILES])
    files = parser.parse_args().cases
    print_verdicts(files)
    print_speed(files)
    print_hostile()


if __name__ == "__main__":
    main()
