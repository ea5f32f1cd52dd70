"""Problems, prompts and generated tasks.

Read next: `problems.py` (what a problem is and which ones are let in), then `prompts.py` (the order they come in).
"""

from rlzero.data.problems import Problem, PromptReport, prepare, refuse_overlap
from rlzero.data.prompts import PromptIterator
from rlzero.data.templates import decode, encode_prompt

__all__ = ["Problem", "PromptIterator", "PromptReport", "decode", "encode_prompt", "prepare", "refuse_overlap"]
