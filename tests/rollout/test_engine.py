"""The engine protocol's data: what cannot be asked for, and seeds that are pure functions of a completion's name."""

import dataclasses
import itertools
import subprocess
import sys

import pytest
from toys import completion

from rlzero.rollout.engine import Sampling, request_seed

SAMPLING = Sampling(max_new_tokens=8, stop_ids=(1,))


@pytest.mark.parametrize("change, message", [
    ({"max_new_tokens": 0}, "max_new_tokens >= 1, got 0"), ({"stop_ids": ()}, "at least one stop id"),
    ({"temperature": -0.1}, "temperature >= 0"), ({"temperature": float("nan")}, "temperature >= 0"),
    ({"top_p": 0.0}, "0 < top_p <= 1"), ({"top_p": 1.1}, "0 < top_p <= 1"), ({"top_p": float("nan")}, "0 < top_p <= 1"),
    ({"top_k": -1}, "top_k >= 0")])
def test_sampling_that_makes_no_sense_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SAMPLING, **change)


def test_a_completion_has_a_log_probability_for_each_id():
    with pytest.raises(ValueError, match="completion of p#3 has 2 ids but 1 log-probabilities"):
        completion("p", 3, (4, 5), logprobs=(-1.0,))


def test_seeds_differ_in_run_step_prompt_and_sample():
    names = itertools.product((0, 1), (-1, 0, 1), ("p", "q", "p/0", "1"), range(8))
    seeds = [request_seed(*name) for name in names]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**32 for seed in seeds)


def test_seeds_are_the_same_in_every_process():
    code = "from rlzero.rollout.engine import request_seed; print(request_seed(7, 3, 'problem 9', 5))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(told) == request_seed(7, 3, "problem 9", 5)
