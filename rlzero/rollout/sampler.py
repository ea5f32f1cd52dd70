"""From prompts to trainable groups: plain sampling, and DAPO's dynamic sampling with carry-over.

A group is the G completions of one prompt. Plain sampling takes the wanted number of prompts and is done. Dynamic
sampling (DAPO, arXiv 2503.14476, section 3.2) keeps drawing until it holds the wanted number of groups with contrast,
0 < correct < G, decided on correctness counts and never on shaped rewards. What it holds beyond that number is carried
to the next step. Groups are looked at in the order in which they were drawn, however they finish, so that short
answers have no advantage; once enough of the first ones have contrast, the rest of the round is abandoned. Every
response is accounted for:

    generated + carried in = trained + filtered + failed + abandoned + carried out
"""

import collections
import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from rlzero.data.problems import Problem
from rlzero.rewards import Reward
from rlzero.rollout.engine import Completion, Engine, Request, RolloutError, Sampling, Span, request_seed


@dataclasses.dataclass(frozen=True)
class Sample:
    """A completion with its text, the answer the verifier found in it, and its reward.

    `reward.correct is None` means that it could not be scored. `unknown_ids` counts tokens that the tokenizer does not
    have and that the text therefore lacks.
    """

    completion: Completion
    text: str
    answer: str | None
    reward: Reward
    unknown_ids: int = 0

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
                "policy_version": completion.policy_version, "version_spans": completion.spans,
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
      account: responses by fate, `{"generated", "carried_in", "trained", "filtered", "failed", "abandoned",
        "carried_out"}`; "generated" counts what was asked for.
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
    `on_lost` says what becomes of a group of which the engine lost a response: train what is there, or ask again.
    """

    group_size: int
    groups_per_step: int
    dynamic: bool = False
    max_rounds: int = 10
    oversample: float = 1.0
    on_exhausted: Literal["train_partial", "skip", "error"] = "train_partial"
    max_carry_age: int = 1
    min_usable: int = 2
    on_lost: Literal["train", "redo"] = "train"


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
          RolloutError: the engine completed nothing of what was asked.
        """
        options, drawn = self._options, collections.Counter()
        carried_in = self.carried
        ready = [group for group in carried_in if policy_version - group.policy_version <= options.max_carry_age]
        filtered = [group for group in carried_in if policy_version - group.policy_version > options.max_carry_age]
        generated, lost, rounds = [], collections.Counter(), 0
        while len(ready) < options.groups_per_step and rounds < (options.max_rounds if options.dynamic else 1):
            missing = options.groups_per_step - len(ready)
            groups = self._generate(step, missing, drawn, lost)
            rounds += 1
            generated += groups
            for group in groups:
                if group.usable < options.min_usable:
                    lost["failed"] += len(group.samples)
                elif options.dynamic and not group.has_contrast:
                    filtered.append(group)
                else:
                    ready.append(group)
        asked = sum(drawn.values()) * options.group_size
        if asked and lost["unanswered"] == asked:
            raise RolloutError(f"none of {asked} responses came back; the warnings above say why")
        chosen, self.carried = self._divide(ready, rounds, filtered)
        account = {
            "generated": asked, "carried_in": _responses(carried_in),
            "trained": _responses(chosen), "filtered": _responses(filtered), "failed": lost["failed"],
            "abandoned": lost["abandoned"], "carried_out": _responses(self.carried)}
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

    def _generate(self, step, missing, drawn, lost):
        """Completes as many prompts as it may take to find `missing` groups; counts in `lost` what did not come back.

        Returns:
          Complete groups, and those that lost some of their responses for good, in the order of their prompts.
        """
        options = self._options
        count = math.ceil(missing * options.oversample) if options.dynamic else missing
        requests, round_ = self._draw(step, count, drawn)
        with contextlib.closing(self._engine.generate(requests, self._sampling)) as completions:
            for completion in completions:
                round_.add(completion)
                if options.dynamic and round_.ready() >= missing:
                    groups = round_.groups(complete=True)
                    lost["abandoned"] += len(requests) - _responses(groups)
                    return groups
        if options.on_lost == "redo" and (again := round_.unanswered(requests)):
            for completion in self._engine.generate(again, self._sampling):
                round_.add(completion)
        groups = round_.groups()
        lost["unanswered"] += len(round_.unanswered(requests))
        lost["failed"] += len(requests) - _responses(groups)
        return groups

    def _draw(self, step, count, drawn):
        """The requests for the next `count` prompts, and the round that gathers their samples."""
        problems, requests, size = {}, [], self._options.group_size
        for _ in range(count):
            problem = next(self._prompts)
            number = drawn[problem.id]
            drawn[problem.id] += 1
            problems[problem.id, number] = problem
            requests += [Request(problem.id, index, problem.prompt_ids,
                                 request_seed(self._run_seed, step, problem.id, index))
                         for index in range(number * size, (number + 1) * size)]
        return requests, _Round(problems, self._score, self._options)

    def get_state(self) -> list[dict]:
        """The carried groups, as plain JSON."""
        return json.loads(json.dumps([dataclasses.asdict(group) for group in self.carried]))

    def set_state(self, state: list[dict]) -> None:
        """Restores what `get_state` returned."""
        self.carried = [_group_from(raw) for raw in state]


class _Round:
    """The samples of one round of generation, as they arrive."""

    def __init__(self, problems: dict[tuple[str, int], Problem], score: Callable, options: SamplerOptions):
        self._problems, self._score, self._options = problems, score, options
        self._samples: dict[tuple[str, int], dict[int, Sample]] = {key: {} for key in problems}
        self._ahead = collections.deque(problems)  # groups from the first one that is not complete on
        self._ready = 0

    def add(self, completion: Completion) -> None:
        """Scores a completion and puts it into its group."""
        key = group_key(completion.request, self._options.group_size)
        self._samples[key][completion.request.sample_index] = self._score(self._problems[key], completion)

    def ready(self) -> int:
        """How many of the first groups, up to one that is not complete, have contrast."""
        while self._ahead and len(self._samples[self._ahead[0]]) == self._options.group_size:
            group = self._group(self._ahead.popleft())
            self._ready += group.has_contrast and group.usable >= self._options.min_usable
        return self._ready

    def groups(self, *, complete: bool = False) -> list[Group]:
        """The groups with a sample, or the complete ones only, in the order of their prompts."""
        fewest = self._options.group_size if complete else 1
        return [self._group(key) for key, found in self._samples.items() if len(found) >= fewest]

    def unanswered(self, requests: list[Request]) -> list[Request]:
        """The requests for which no completion came, or an aborted one."""
        def answered(request):
            sample = self._samples[group_key(request, self._options.group_size)].get(request.sample_index)
            return sample is not None and sample.completion.finish_reason != "abort"

        return [request for request in requests if not answered(request)]

    def _group(self, key):
        found = self._samples[key]
        return Group(self._problems[key], tuple(found[index] for index in sorted(found)))


def group_key(request: Request, group_size: int) -> tuple[str, int]:
    """What makes a group: the prompt's id, never a position.

    A prompt drawn twice in one step has sample indices beyond `group_size`; these form a group of their own.
    """
    return request.prompt_id, request.sample_index // group_size


def group_completions(completions: Iterable[Completion],
                      group_size: int) -> dict[tuple[str, int], list[Completion]]:
    """Completions by `group_key`, each group ordered by sample index."""
    groups = collections.defaultdict(list)
    for completion in completions:
        groups[group_key(completion.request, group_size)].append(completion)
    return {key: sorted(members, key=lambda c: c.request.sample_index) for key, members in groups.items()}


def _responses(groups):
    return sum(len(group.samples) for group in groups)


def _group_from(raw: dict[str, Any]) -> Group:
    def completion(fields):
        request = fields["request"] | {"prompt_ids": tuple(fields["request"]["prompt_ids"])}
        return Completion(**fields | {"request": Request(**request),
                                      "completion_ids": tuple(fields["completion_ids"]),
                                      "spans": tuple(Span(*span) for span in fields["spans"]),
                                      "rollout_logprobs": tuple(fields["rollout_logprobs"])})

    problem = Problem(**raw["problem"] | {"prompt_ids": tuple(raw["problem"]["prompt_ids"])})
    return Group(problem, tuple(Sample(completion(s["completion"]), s["text"], s["answer"], Reward(**s["reward"]))
                                for s in raw["samples"]))
