"""Evaluation: samples of every problem, all of them graded, and what they amount to.

`measure` has avg@k, pass@k and maj@k, the same during training and after; `policy` is what is evaluated and on which
problems; `study` looks at base models under several templates, with the judges of `judge` and `endpoint`; `tables` and
`plot` show it. The program is `rlzero.evaluate`.
"""

from rlzero.evaluation.measure import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
