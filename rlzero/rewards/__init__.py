"""Rewards that can be checked: what a response answered, whether that is the gold answer, and what it pays.

`grade` is the verifier. It sees the text of the response and nothing else, runs no part of it, and gives every input a
label. `reward` turns a grade into named parts that are logged apart and added once.

Read next: `verifier.py`, which holds the contract in one function.
"""

from rlzero.rewards.shaping import Reward, overlong_cache, overlong_penalty, reward
from rlzero.rewards.verifier import MODES, Grade, grade

__all__ = ["MODES", "Grade", "Reward", "grade", "overlong_cache", "overlong_penalty", "reward"]
