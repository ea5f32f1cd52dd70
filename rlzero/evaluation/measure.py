"""Evaluation on held-out problems: k samples of each, all of them graded; the same code during training and after.

avg@k is the mean over problems of the share of correct samples; its standard error is over problems, since samples of
one problem are not independent evidence. pass@k is the unbiased estimator of `rlzero.statistics`, maj@k the vote there.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from rlzero.data.problems import Problem
from rlzero.rewards import GraderError
from rlzero.rollout.engine import Completion, Engine, Request, RolloutError, Sampling, request_seed
from rlzero.rollout.sampler import Group, Sample, group_completions
from rlzero.statistics import majority_share, pass_at_k

_STEP = -1  # evaluation draws from seeds that no rollout step uses


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The graded samples of every problem, and what they amount to."""

    groups: list[Group]

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group.samples]

    @property
    def accuracy(self) -> float:
        """avg@k: mean over problems of the share of correct samples."""
        return float(np.mean(self._per_problem()))

    @property
    def standard_error(self) -> float:
        """Standard deviation of the per-problem accuracy over √problems; NaN for a single problem."""
        shares = self._per_problem()
        return float(np.std(shares, ddof=1) / math.sqrt(len(shares))) if len(shares) > 1 else math.nan

    def pass_at(self, k: int) -> float:
        """Mean over problems of the probability that one of k samples is correct."""
        return float(np.mean([pass_at_k(len(group.samples), group.correct, k) for group in self.groups]))

    @property
    def majority(self) -> float:
        """maj@k: mean over problems of whether the answer that most samples give is correct; see `majority_share`."""
        return float(np.mean([majority_share(
            [(sample.answer, bool(sample.reward.correct)) for sample in group.samples]) for group in self.groups]))

    @property
    def mean_length(self) -> float:
        """Mean completion length in tokens, the stop token included."""
        return float(np.mean([len(sample.completion.completion_ids) for sample in self.samples]))

    @property
    def truncated_fraction(self) -> float:
        return float(np.mean([sample.completion.finish_reason == "length" for sample in self.samples]))

    @property
    def unanswered_fraction(self) -> float:
        """Share of samples in which the verifier found no answer at all."""
        return float(np.mean([sample.answer is None for sample in self.samples]))

    def _per_problem(self):
        return [group.correct / len(group.samples) for group in self.groups]


def evaluate(engine: Engine, problems: Sequence[Problem], score: Callable[[Problem, Completion], Sample],
             sampling: Sampling, *, samples_per_problem: int, seed: int) -> Evaluation:
    """Samples and grades `samples_per_problem` completions of every problem.

    Args:
      engine: where completions come from.
      problems: problems with unique ids and with `prompt_ids`.
      score: decodes and grades one completion.
      sampling: temperature, top_p and budget of the evaluation; temperature 0 is greedy.
      samples_per_problem: k.
      seed: the same seed draws the same random numbers whatever the weights are, so before and after compare well.

    Raises:
      RolloutError: a completion did not come back; a partial score is never reported.
      GraderError: one could not be graded.
    """
    by_id = {problem.id: problem for problem in problems}
    if len(by_id) != len(problems):
        raise ValueError("expected problems with unique ids; repeated ones would be weighted twice")
    requests = [Request(problem.id, index, problem.prompt_ids, request_seed(seed, _STEP, problem.id, index))
                for problem in problems for index in range(samples_per_problem)]
    completions = group_completions(engine.generate(requests, sampling), samples_per_problem)
    groups = [Group(by_id[prompt_id], tuple(score(by_id[prompt_id], completion) for completion in members))
              for (prompt_id, _), members in sorted(completions.items())]
    came = sum(sample.completion.finish_reason != "abort" for group in groups for sample in group.samples)
    if came != len(requests):
        raise RolloutError(f"{len(requests) - came} of {len(requests)} evaluation samples did not come back; the "
                           "warnings above say why")
    usable = sum(group.usable for group in groups)
    if usable != len(requests):
        raise GraderError(f"{len(requests) - usable} of {len(requests)} evaluation samples could not be graded; check "
                          "that every gold answer can be read, and that a reward function of your own scores them all")
    return Evaluation(groups)
