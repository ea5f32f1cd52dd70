"""What SGLang's /generate is asked for one completion, and what its answer must hold before it becomes one.

Token ids go in and token ids come out: nothing is tokenized again, padded or filled in. Ids, log-probabilities, length
and finish reason are checked against each other, and an answer that contradicts itself is refused with a sentence.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from rlzero.models.transformer import ModelConfig
from rlzero.rollout.engine import Completion, Request, Sampling, Span

_FEWEST_NEW = 5  # positions that a server keeps free behind a prompt
_NEVER = -1e4  # added to a logit, leaves a probability of 0
_SLACK = 1e-4  # nats by which rounding may lift a log-probability above 0


def unused_ids(model: ModelConfig) -> dict[str, Any]:
    """The sampling parameters that keep a server from ids that are not sampled; empty where all are."""
    unused = range(model.sampled_vocab_size or model.vocab_size, model.vocab_size)
    return {"logit_bias": {str(token): _NEVER for token in unused}} if unused else {}


def generate_body(request: Request, sampling: Sampling, rid: str,
                  others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON of one request; `others` are sampling parameters besides.

    Every sampling parameter is written out, since a server may take its defaults from the model's generation config.
    `sampling_seed` counts on servers that run with deterministic inference.
    """
    stop = sampling.stop_text
    # A server that is given a text decodes the newest tokens after each, so it is given one only where ids don't do.
    texts = {"stop": list(stop.texts), "no_stop_trim": True} if stop and stop.spread else {}
    return {
        "rid": rid, "input_ids": list(request.prompt_ids), "return_logprob": True, "stream": False,
        "sampling_params": {
            "n": 1, "max_new_tokens": sampling.max_new_tokens, "stop_token_ids": _stop_ids(sampling),
            "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or -1, "min_p": 0.0,
            "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
            "sampling_seed": request.seed & 0x7FFFFFFF, **texts, **(others or {})}}


def check_request(request: Request, sampling: Sampling, *, vocab_size: int, context: int) -> None:
    """Refuses what a server must never see: it dies of ids outside its vocabulary and of an empty prompt.

    Raises:
      ValueError: naming the prompt.
    """
    ids = request.prompt_ids
    if not ids:
        raise ValueError(f"prompt {request.prompt_id} is empty: nothing to continue from")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise ValueError(f"prompt {request.prompt_id} holds ids outside 0..{vocab_size - 1}")
    if len(ids) + max(sampling.max_new_tokens, _FEWEST_NEW) > context:
        raise ValueError(f"prompt {request.prompt_id} of {len(ids)} tokens plus {sampling.max_new_tokens} new ones "
                         f"exceeds the servers' context of {context}; lower --config.rollout.max_completion_length, or "
                         "start the servers with a larger --context-length")


def completion(reply: Mapping[str, Any], request: Request, sampling: Sampling, *, rid: str, vocab_size: int,
               version_of: Callable[[str], int]) -> Completion:
    """Makes a completion of an answer to `generate_body`.

    Args:
      reply: the JSON object.
      request: what was asked.
      sampling: how.
      rid: the id the request was sent under.
      vocab_size: of the ids that are sampled, which must lie below it.
      version_of: policy version behind a server's `weight_version`.

    Raises:
      ValueError: the answer is none to this request, or contradicts itself.
    """
    meta = reply.get("meta_info")
    _expect(isinstance(meta, Mapping), "has no meta_info")
    _expect(meta.get("id") == rid, f"is for request {meta.get('id')!r}, expected {rid!r}")
    reason, matched = _finish(meta.get("finish_reason"))
    ids = reply.get("output_ids")
    _expect(isinstance(ids, list) and all(type(i) is int for i in ids), "has no list of output_ids")
    if reason == "abort":
        return Completion(request, (), (), "abort", 0)
    logprobs = _logprobs(meta, ids)
    _expect(len(ids) == meta.get("completion_tokens"),
            f"has {len(ids)} ids but reports {meta.get('completion_tokens')} completion tokens")
    _expect(ids and 0 <= min(ids) and max(ids) < vocab_size, f"has no ids, or ids outside 0..{vocab_size - 1}")
    stop_ids = set(_stop_ids(sampling))
    early = next((i for i, token in enumerate(ids[:-1]) if token in stop_ids), None)
    _expect(early is None, f"goes on after the stop token at position {early}")
    end = sampling.end(ids)
    if reason == "stop":
        _expect(end is not None and matched in (ids[-1], *(sampling.stop_text.texts if sampling.stop_text else ())),
                f"stopped at {matched!r} with last id {ids[-1]}, which is no stop: either the server trims the stop "
                "token, or it has an end-of-sequence id that the trainer lacks, or it computed no number")
    else:
        _expect(len(ids) == sampling.max_new_tokens,
                f"was cut at {len(ids)} tokens, expected the budget of {sampling.max_new_tokens}")
    spans = _spans(meta, len(ids), version_of)
    if end is not None and end < len(ids):
        # A server looks for a text in as many tokens as its tokenizer writes it in. Where a model took more of them it
        # goes on, which changes no token up to the end.
        spans = tuple(span._replace(end=min(span.end, end)) for span in spans if span.start < end)
        ids, logprobs, reason = ids[:end], logprobs[:end], "stop"
    return Completion(request, tuple(ids), logprobs, reason, min(span.version for span in spans), spans)


def _stop_ids(sampling):
    return [*sampling.stop_ids, *(sampling.stop_text.ids if sampling.stop_text else ())]


def _finish(reason):
    _expect(isinstance(reason, Mapping), f"has no finish reason but {reason!r}")
    kind = reason.get("type")
    _expect(kind in ("stop", "length", "abort"), f"has the unknown finish reason {kind!r}")
    return kind, reason.get("matched")


def _logprobs(meta, ids):
    entries = meta.get("output_token_logprobs")
    _expect(isinstance(entries, list), "has no log-probabilities")
    try:
        logprobs, scored = [float(entry[0]) for entry in entries], [entry[1] for entry in entries]
    except (TypeError, IndexError, KeyError, ValueError):
        raise ValueError("the answer has log-probabilities of an unknown form") from None
    _expect(scored == ids, f"has {len(ids)} ids but log-probabilities of {len(scored)} or of others")
    _expect(all(math.isfinite(value) and value <= _SLACK for value in logprobs),
            "has log-probabilities that are above 0 or not finite")
    return tuple(min(value, 0.0) for value in logprobs)


def _spans(meta, length, version_of):
    """The spans of weights, which must cover the tokens without a gap; a server without them has one."""
    raw = meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0, "end": length}]
    try:
        spans = tuple(Span(version_of(entry["version"]), entry["start"], entry["end"]) for entry in raw)
    except (TypeError, KeyError):
        raise ValueError(f"the answer has weight versions of an unknown form, {raw!r}") from None
    ends = [0, *(span.end for span in spans)]
    _expect(all(span.start == end for span, end in zip(spans, ends)) and ends[-1] == length,
            f"has weight versions that do not cover its {length} tokens: {raw!r}")
    return spans


def _expect(condition, words):
    if not condition:
        raise ValueError(f"the answer {words}")
