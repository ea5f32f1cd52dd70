"""What a rollout engine is: requests go in as token ids, completions come out exactly as sampled.

The trainer and the sampler know only this file. `local.LocalEngine` implements it in process, `sglang.SGLangEngine`
with servers on other hosts.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from rlzero.rollout.stopping import StopText

FinishReason = Literal["stop", "length", "abort"]
Pairs = dict[str, tuple[float, float]]  # metrics: name -> (sum, weight)


class RolloutError(TimeoutError):
    """No engine can complete what was asked within the time it was given; says why."""


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: softmax(logits / temperature), cut to the top_k and then to the top_p nucleus.

    Attributes:
      max_new_tokens: completion budget in tokens, EOS included.
      stop_ids: token ids that end a completion; the sampled one is kept.
      temperature: divisor of the logits; 0 picks the most likely token.
      top_p: keep the smallest set of tokens that holds this probability; 1 keeps all.
      top_k: keep this many tokens; 0 keeps all.
      stop_text: texts that end a completion too, with the token that completes one.
    """

    max_new_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_text: StopText | None = None

    def __post_init__(self):
        if self.max_new_tokens < 1:
            raise ValueError(f"expected max_new_tokens >= 1, got {self.max_new_tokens}")
        if not self.stop_ids:
            raise ValueError("expected at least one stop id, got none: completions could never end")
        if not self.temperature >= 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError("expected temperature >= 0, 0 < top_p <= 1 and top_k >= 0, got "
                             f"{self.temperature}, {self.top_p} and {self.top_k}")

    def end(self, ids: Sequence[int]) -> int | None:
        """How many of these tokens, the first of a completion, there are when it stops; None: they hold no stop."""
        stops = np.flatnonzero(np.isin(ids, self.stop_ids))
        ends = [int(stops[0]) + 1 if stops.size else None, self.stop_text.end(ids) if self.stop_text else None]
        return min((end for end in ends if end is not None), default=None)


@dataclasses.dataclass(frozen=True)
class Request:
    """One completion to sample; (prompt_id, sample_index) names it within a rollout step."""

    prompt_id: str
    sample_index: int
    prompt_ids: tuple[int, ...]
    seed: int


class Span(NamedTuple):
    """The tokens `start` to `end` (excluded) of a completion were sampled by policy `version`."""

    version: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Completion:
    """A sampled completion, token for token.

    Attributes:
      request: what was asked.
      completion_ids: ids as sampled, the stop token included; never re-tokenized.
      rollout_logprobs: log-probability of each id under the distribution it was drawn from, same length.
      finish_reason: "stop" (a stop id, or the end of a stop text), "length" (budget used up) or "abort" (never
        trained on).
      policy_version: number of parameter updates behind the weights that sampled it; of the oldest ones where the
        weights changed on the way.
      spans: which weights sampled which tokens, where an engine can tell them apart; empty: all by `policy_version`.
    """

    request: Request
    completion_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int
    spans: tuple[Span, ...] = ()

    def __post_init__(self):
        if len(self.completion_ids) != len(self.rollout_logprobs):
            raise ValueError(f"completion of {self.request.prompt_id}#{self.request.sample_index} has "
                             f"{len(self.completion_ids)} ids but {len(self.rollout_logprobs)} log-probabilities")


class Engine(Protocol):
    """Samples completions with the newest weights it was given."""

    @property
    def description(self) -> str:
        """A line about where completions come from, once there were weights."""

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Yields at most one completion per request, in the order they finish; closing the iterator abandons the rest.

        Raises:
          RolloutError: nothing can be completed any more.
        """

    def update_weights(self, params: Any, version: int) -> None:
        """Makes `params` the weights of every later request."""

    def readmit(self) -> None:
        """Gives the newest weights to what was out of service and is back; called while the parameters stand still."""

    def metrics(self) -> Pairs:
        """What the engine counted and timed since the last call."""

    def close(self) -> None:
        """Lets go of servers, threads and files."""


def request_seed(run_seed: int, step: int, prompt_id: str, sample_index: int) -> int:
    """The 32-bit seed of one completion: a pure function of its identity, so that a rerun draws the same tokens."""
    identity = f"{run_seed}/{step}/{prompt_id}/{sample_index}".encode()
    return int.from_bytes(hashlib.blake2b(identity, digest_size=4).digest(), "little")
