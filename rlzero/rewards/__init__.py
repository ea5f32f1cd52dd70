"""Rewards that can be checked: what a response answered, whether that is the gold answer, and what it pays.

`grade` is the verifier. It sees the text of the response and nothing else, runs no part of it, and gives every input a
label. `GradingPool` does the same in processes that can be killed, and `Grader` is whichever of the two a run uses.
`reward` turns a grade into named parts that are logged apart and added once.

Read next: `verifier.py`, which holds the contract in one function, and `mathematics/` for how answers are compared.
"""

from rlzero.rewards.custom import RewardSample, own_reward
from rlzero.rewards.extraction import with_tags_as_box
from rlzero.rewards.grader import ErrorRate, Grader, GraderError
from rlzero.rewards.imports import load_function
from rlzero.rewards.layout import is_well_formed
from rlzero.rewards.pool import GradingPool
from rlzero.rewards.shaping import Reward, overlong_cache, overlong_penalty, reward
from rlzero.rewards.verifier import MODES, Grade, grade, parses, require_mode, why_unreadable

__all__ = [
    "MODES", "ErrorRate", "Grade", "Grader", "GraderError", "GradingPool", "Reward", "RewardSample", "grade",
    "is_well_formed", "load_function", "overlong_cache", "overlong_penalty", "own_reward", "parses", "require_mode",
    "reward", "why_unreadable", "with_tags_as_box"]
