"""Makes problems of reasoning-gym and writes them as lines of JSON; run by `gym`, in a process of its own.

    PYTHONHASHSEED=0 python -P gym_generator.py NAME SPLIT COUNT SEED

A line is [hash of the question, question, gold]. Nothing of rlzero is imported, so that it starts in a second.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Iterable, Iterator

_HELD_OUT_ONE_IN = 6
_CHUNK = 500  # problems under one seed of the library
_FEWEST_NEW = 5  # different ones among a chunk, below which the dataset counts as used up


def entries(name: str, seed: int) -> Iterator[dict]:
    """Entries with different questions, until hardly any new one comes."""
    import reasoning_gym

    seen = set()
    for chunk in itertools.count():
        dataset = reasoning_gym.create_dataset(name, seed=(seed * 100_003 + chunk * _CHUNK) % 2**31, size=_CHUNK)
        before = len(seen)
        for index in range(_CHUNK):
            entry = dataset[index]
            key = normal_question(entry["question"])
            if key not in seen:
                seen.add(key)
                yield entry
        if len(seen) - before < _FEWEST_NEW:
            return


def normal_question(question: str) -> str:
    """As `rlzero.data.problems` compares questions, so that no split has one that it would find in the other."""
    return " ".join(question.split())


def main() -> None:
    name, split, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    output, sys.stdout = sys.stdout, sys.stderr  # what the library prints is no problem
    made = 0
    for entry in entries(name, seed):
        digest = hashlib.blake2b(normal_question(entry["question"]).encode(), digest_size=8).digest()
        if (int.from_bytes(digest) % _HELD_OUT_ONE_IN == 0) != (split == "held_out"):
            continue
        gold = json.dumps({"dataset": name, "answer": entry["answer"], "metadata": entry["metadata"]}, default=_plain)
        output.write(json.dumps([digest.hex(), entry["question"], gold]) + "\n")
        made += 1
        if made == count:
            break


def _plain(value):
    """What JSON has no form for: arrays and numbers of numpy, sets, and fractions, which no scorer reads."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Iterable) else str(value)


if __name__ == "__main__":
    main()
