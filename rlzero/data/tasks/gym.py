"""The tasks of reasoning-gym by name, such as reasoning_gym/chain_sum, with its default settings.

Their golds are for the mode "reasoning_gym" of the verifier, see `rlzero.rewards.gym_scorers`. A hash of the question
decides whether a problem is held out, so the splits share none. Problems are made in a process of its own with a fixed
hash seed, because some datasets go through sets of texts, whose order would change from run to run.
"""

import difflib
import json
import os
import pathlib
import subprocess
import sys

from rlzero.data.problems import Problem
from rlzero.rewards import gym_scorers

PREFIX = "reasoning_gym/"


def problems(task: str, split: str, count: int, *, seed: int) -> list[Problem]:
    """Returns problems of a dataset: `count` of them, or as many different ones as there are.

    Args:
      task: name with `PREFIX`.
      split: "train" or "held_out".
      count: the most to make.
      seed: which ones, and in which order.

    Raises:
      ValueError: no such dataset, one that is refused, or one without a problem in this split.
      ImportError: reasoning-gym is not installed.
    """
    name = task.removeprefix(PREFIX)
    reason = why_unknown(name)
    if reason:
        raise ValueError(reason)
    generator = pathlib.Path(__file__).with_name("gym_generator.py")
    done = subprocess.run([sys.executable, "-P", str(generator), name, split, str(count), str(seed)],
                          env=os.environ | {"PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{task} could not be made: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    found = [Problem(f"{task}/{digest}", question, gold)
             for digest, question, gold in map(json.loads, done.stdout.splitlines())]
    if not found:
        raise ValueError(f"{task} has no problem in the split {split}; choose another task")
    return found


def why_unknown(name: str) -> str | None:
    """The sentence about a name that is no dataset to train on, or None.

    Raises:
      ImportError: reasoning-gym is not installed.
    """
    gym_scorers.require()
    from reasoning_gym.factory import DATASETS

    if name == "composite":
        return f"{PREFIX}{name} mixes other datasets; name one of them"
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        return (f"reasoning-gym has no dataset {name!r}" +
                (f"; did you mean {PREFIX}{near[0]}?" if near else f"; it has {', '.join(sorted(DATASETS))}"))
    return None
