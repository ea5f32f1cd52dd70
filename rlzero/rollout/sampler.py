"""From prompts to trainable groups: plain sampling, and DAPO's dynamic sampling with carry-over.

A group is the G completions of one prompt. Plain sampling takes the wanted number of prompts and is done. Dynamic
sampling (DAPO, arXiv 2503.14476, section 3.2) keeps drawing until it holds the wanted number of groups with contrast,
0 < correct < G, decided on correctness counts and never on shaped rewards. What it holds beyond that number is carried
to the next step. Every response is accounted for:

    generated + carried in = trained + filtered + failed + carried out
"""

import collections
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from rlzero.data.problems import Problem
from rlzero.rewards import Reward
from rlzero.rollout.engine import Completion, Engine, Request, Sampling, request_seed


@dataclasses.dataclass(frozen=True)
class Sample:
    """A completion with its text, the answer the verifier found in it, and its reward.

    `reward.correct is None` means that it could not be scored.
    """

    completion: Completion
    text: str
    answer: str | None
    reward: Reward

    @property
    def usable(self) -> bool:
        """Whether the sample may enter a baseline and a loss: scored and not aborted."""
        return self.reward.correct is not None and self.completion.finish_reason != "abort"

    def record(self, problem: Problem) -> dict[str, Any]:
        """What was asked, answered and found right, for a line of JSON."""
        completion = self.completion
        return {"prompt_id": problem.id, "sample_index": completion.request.sample_index, "question": problem.question,
                "text": self.text, "gold": problem.answer, "answer": self.answer, "correct": self.reward.correct,
                "completion_ids": completion.completion_ids, "finish_reason": completion.finish_reason,
                "seed": completion.request.seed}


@dataclasses.dataclass(frozen=True)
class Group:
    """The samples of one prompt that came back, ordered by sample index; `policy_version` is that of its oldest one."""

    problem: Problem
    samples: tuple[Sample, ...]

    @property
    def policy_version(self) -> int:
        return min(sample.completion.policy_version for sample in self.samples)

    @property
    def usable(self) -> int:
        return sum(sample.usable for sample in self.samples)

    @property
    def correct(self) -> int:
        return sum(bool(sample.reward.correct) for sample in self.samples if sample.usable)

    @property
    def has_contrast(self) -> bool:
        """0 < correct < number of usable samples: the condition of DAPO's equation 11."""
        return 0 < self.correct < self.usable


@dataclasses.dataclass(frozen=True)
class Rollout:
    """What one step of sampling produced.

    Attributes:
      groups: groups to train on, at most the wanted number; empty when the step is to be skipped.
      generated: every group generated in this step, the filtered ones included: what rewards and lengths are
        averaged over.
      carried: groups kept for the next step.
      account: responses by fate, `{"generated", "carried_in", "trained", "filtered", "failed", "carried_out"}`.
      rounds: generation rounds used.
    """

    groups: list[Group]
    generated: list[Group]
    carried: list[Group]
    account: dict[str, int]
    rounds: int


@dataclasses.dataclass(frozen=True)
class SamplerOptions:
    """See `RolloutSection` in `rlzero.training.config`, where these are set and explained.

    `min_usable` is the smallest group worth training on: 2 where samples are compared with each other, 1 with a critic.
    """

    group_size: int
    groups_per_step: int
    dynamic: bool = False
    max_rounds: int = 10
    oversample: float = 1.0
    on_exhausted: Literal["train_partial", "skip", "error"] = "train_partial"
    max_carry_age: int = 1
    min_usable: int = 2


class Sampler:
    """Draws prompts, has them completed and scored, and returns the groups of one step."""

    def __init__(self, engine: Engine, prompts: Iterator[Problem], score: Callable[[Problem, Completion], Sample],
                 sampling: Sampling, options: SamplerOptions, *, run_seed: int):
        """Makes a sampler.

        Args:
          engine: where completions come from.
          prompts: endless iterator of problems with `prompt_ids`.
          score: decodes and grades one completion.
          sampling: the training distribution.
          options: group sizes and the rules of dynamic sampling.
          run_seed: enters every completion's seed.
        """
        self._engine, self._prompts, self._score = engine, prompts, score
        self._sampling, self._options, self._run_seed = sampling, options, run_seed
        self.carried: list[Group] = []

    def collect(self, step: int, policy_version: int) -> Rollout:
        """Samples the groups of rollout step `step`.

        Raises:
          RuntimeError: dynamic sampling ran out of rounds and `on_exhausted` is "error".
        """
        options, drawn = self._options, collections.Counter()
        carried_in = self.carried
        ready = [group for group in carried_in if policy_version - group.policy_version <= options.max_carry_age]
        filtered = [group for group in carried_in if policy_version - group.policy_version > options.max_carry_age]
        generated, failed, rounds = [], 0, 0
        while len(ready) < options.groups_per_step and rounds < (options.max_rounds if options.dynamic else 1):
            missing = options.groups_per_step - len(ready)
            count = math.ceil(missing * options.oversample) if options.dynamic else missing
            groups, lost = self._generate(step, count, drawn)
            rounds += 1
            generated += groups
            failed += lost
            for group in groups:
                if group.usable < options.min_usable:
                    failed += len(group.samples)
                elif options.dynamic and not group.has_contrast:
                    filtered.append(group)
                else:
                    ready.append(group)
        chosen, self.carried = self._divide(ready, rounds, filtered)
        account = {
            "generated": sum(drawn.values()) * options.group_size, "carried_in": _responses(carried_in),
            "trained": _responses(chosen), "filtered": _responses(filtered), "failed": failed,
            "carried_out": _responses(self.carried)}
        return Rollout(chosen, generated, self.carried, account, rounds)

    def _divide(self, ready, rounds, filtered):
        """Splits what is ready into the groups of this step and those carried to the next."""
        options = self._options
        if len(ready) >= options.groups_per_step or options.on_exhausted == "train_partial" or not options.dynamic:
            return ready[:options.groups_per_step], ready[options.groups_per_step:]
        if options.on_exhausted == "skip":
            return [], ready
        solved = sum(0 < group.correct == group.usable for group in filtered)
        wrong = sum(group.correct == 0 for group in filtered)
        raise RuntimeError(
            f"dynamic sampling found {len(ready)} of {options.groups_per_step} groups with contrast in {rounds} rounds "
            f"({solved} groups all correct, {wrong} all wrong); use easier or harder problems, raise "
            "--config.rollout.max_generation_rounds, or set --config.rollout.on_exhausted=train_partial")

    def _generate(self, step, count, drawn):
        """Completes `count` prompts; returns their groups and the number of responses that did not come back."""
        requests, problems = [], {}
        for _ in range(count):
            problem = next(self._prompts)
            first = drawn[problem.id] * self._options.group_size
            drawn[problem.id] += 1
            problems[problem.id] = problem
            requests += [Request(problem.id, index, problem.prompt_ids,
                                 request_seed(self._run_seed, step, problem.id, index))
                         for index in range(first, first + self._options.group_size)]
        completions = self._engine.generate(requests, self._sampling)
        grouped = group_completions(completions, self._options.group_size)
        drawn_order = dict.fromkeys((request.prompt_id, request.sample_index // self._options.group_size)
                                    for request in requests)
        groups = [Group(problems[key[0]], tuple(self._score(problems[key[0]], c) for c in grouped[key]))
                  for key in drawn_order if key in grouped]
        return groups, len(requests) - _responses(groups)

    def get_state(self) -> list[dict]:
        """The carried groups, as plain JSON."""
        return json.loads(json.dumps([dataclasses.asdict(group) for group in self.carried]))

    def set_state(self, state: list[dict]) -> None:
        """Restores what `get_state` returned."""
        self.carried = [_group_from(raw) for raw in state]


def group_completions(completions: Iterable[Completion],
                      group_size: int) -> dict[tuple[str, int], list[Completion]]:
    """Groups completions by prompt id, never by position, and orders each group by sample index.

    A prompt drawn twice in one step has sample indices beyond `group_size`; these form a group of their own.

    Returns:
      {(prompt_id, sample_index // group_size): completions}.
    """
    groups = collections.defaultdict(list)
    for completion in completions:
        request = completion.request
        groups[request.prompt_id, request.sample_index // group_size].append(completion)
    return {key: sorted(members, key=lambda c: c.request.sample_index) for key, members in groups.items()}


def _responses(groups):
    return sum(len(group.samples) for group in groups)


def _group_from(raw: dict[str, Any]) -> Group:
    def completion(fields):
        request = fields["request"] | {"prompt_ids": tuple(fields["request"]["prompt_ids"])}
        return Completion(**fields | {"request": Request(**request),
                                      "completion_ids": tuple(fields["completion_ids"]),
                                      "rollout_logprobs": tuple(fields["rollout_logprobs"])})

    problem = Problem(**raw["problem"] | {"prompt_ids": tuple(raw["problem"]["prompt_ids"])})
    return Group(problem, tuple(Sample(completion(s["completion"]), s["text"], s["answer"], Reward(**s["reward"]))
                                for s in raw["samples"]))
