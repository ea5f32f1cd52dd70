"""What `fake_server` is asked: /generate's body into single requests, with the errors that the real server gives."""

import dataclasses
import uuid
from collections.abc import Collection
from typing import Any

from aiohttp import web

FEWEST_FREE = 6  # a prompt must be shorter than the context by more than this
_PARAMETERS = (
    "max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens", "n", "json_schema", "regex",
    "ebnf", "structural_tag", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim",
    "stream_interval", "logit_bias", "sampling_seed", "custom_params", "beam_width", "watermark", "choice")


class Invalid(Exception):
    """A request that is answered with an error."""

    def __init__(self, message: Any, status: int = 400):
        super().__init__(message)
        self.response = web.json_response({"error": message}, status=status)


@dataclasses.dataclass
class Item:
    """One completion in the making."""

    rid: str
    ids: list[int]
    parameters: dict[str, Any]
    return_logprob: bool
    single: bool
    limit: int
    seed: int | None = None
    output_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    spans: list[dict] = dataclasses.field(default_factory=list)
    matched: int | None = None
    aborted: bool = False

    @property
    def finished(self) -> bool:
        return self.matched is not None or len(self.output_ids) >= self.limit

    def add(self, token: int, logprob: float, version: str, *, eos_id: int) -> None:
        """Appends a token, sampled under a version."""
        if not self.spans or self.spans[-1]["version"] != version:
            self.spans.append({"version": version, "start": len(self.output_ids), "end": 0})
        self.output_ids.append(token)
        self.logprobs.append(logprob)
        self.spans[-1]["end"] = len(self.output_ids)
        ends = set(self.parameters.get("stop_token_ids") or ()) | {eos_id}
        if token in ends and not self.parameters.get("ignore_eos"):
            self.matched = token


def items_of(body: dict, *, context: int, running: Collection[str]) -> list[Item]:
    """The completions that a body asks for: p0s0, p0s1, …, p1s0.

    Raises:
      Invalid: with the server's answer.
    """
    prompts = body.get("input_ids")
    if prompts is None:
        raise Invalid({"message": "Either text, input_ids or input_embeds should be provided."})
    if prompts == []:
        raise Invalid({"message": "input_ids cannot be empty."})
    nested = isinstance(prompts[0], list)
    prompts = prompts if nested else [prompts]
    parameters = body.get("sampling_params") or {}
    _check(parameters)
    count = parameters.get("n", 1)
    for ids in prompts:
        _check_length(len(ids), parameters.get("max_new_tokens", 0), context)
    rids = _rids(body.get("rid"), len(prompts), count)
    if taken := [rid for rid in rids if rid in running]:
        raise Invalid({"message": f"Duplicate request ID detected: {taken[0]}"})
    seed = parameters.get("sampling_seed")
    return [Item(rid, list(ids), parameters, bool(body.get("return_logprob")), single=not nested and count == 1,
                 limit=parameters.get("max_new_tokens", context - len(ids)),
                 seed=None if seed is None else seed + index)
            for index, rid in enumerate(rids) for ids in [prompts[index // count]]]


def _rids(given, prompts, count):
    """The id of each completion. One that was given for several samples is not used, as in the real server."""
    if isinstance(given, list):
        if len(given) != prompts:
            raise Invalid({"message": "The specified rids length mismatch with the batch_size for batch processing."})
        if len(set(given)) < len(given):
            raise Invalid({"message": f"Duplicate request IDs detected within the request: {given}"})
    if count > 1 or given is None:
        return [uuid.uuid4().hex for _ in range(prompts * count)]
    return given if isinstance(given, list) else [given]


def _check(parameters):
    for name in parameters:
        if name not in _PARAMETERS:
            known = ", ".join(f"`{known}`" for known in _PARAMETERS)
            raise Invalid(f"unknown field `{name}`, expected one of {known}")
    temperature, top_p = parameters.get("temperature", 1.0), parameters.get("top_p", 1.0)
    if not temperature >= 0:
        raise Invalid({"message": f"temperature must be a non-negative finite number, got {temperature}."})
    if not 0 < top_p <= 1:
        raise Invalid({"message": f"top_p must be in (0, 1], got {top_p}."})


def _check_length(prompt, new, context):
    if prompt >= context:
        raise Invalid({"message": f"The input ({prompt} tokens) is longer than the model's context length ({context} "
                                  "tokens)."})
    if prompt + new > context:
        raise Invalid({"message": f"Requested token count exceeds the model's maximum context length of {context} "
                                  f"tokens. You requested a total of {prompt + new} tokens: {prompt} tokens from the "
                                  f"input messages and {new} tokens for the completion. Please reduce the number of "
                                  "tokens in the input messages or the completion to fit within the limit."})
    if prompt >= context - FEWEST_FREE:
        raise Invalid({"message": f"Input length ({prompt} tokens) exceeds the maximum allowed length "
                                  f"({context - FEWEST_FREE} tokens). Use a shorter input or enable "
                                  "--allow-auto-truncate."})
