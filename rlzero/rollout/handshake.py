"""Whether a server serves what is trained: the same architecture, room enough, and the same log-probabilities.

The proof is a probe: the server continues a few prompts, and the trainer's own forward pass scores the same tokens. For
the same weights the two agree up to the rounding of their dtype. Versions and "success" are what a server says of
itself; the probe is what it does.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlzero import kernels
from rlzero.models import transformer
from rlzero.rollout.sglang_http import Malformed, Refused, Server

PROBE_TOKENS = 16  # sampled after each probe prompt
_MEAN_BOUNDS = {"float32": 2e-3, "bfloat16": 0.15}  # nats per token; a model of 135 M in bfloat16 differs by 0.04

Scorer = Callable[[Any, Sequence["ProbeSample"], float], list[np.ndarray]]


class HandshakeError(RuntimeError):
    """A server does not serve the model or the weights that are trained."""


@dataclasses.dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself.

    Attributes:
      version: its `weight_version`.
      model_path: what it was started with.
      dtype: of its weights, as far as it says.
      context: most tokens of a prompt and its completion.
      tp_size: tensor-parallel ranks.
      deterministic: whether request seeds count.
    """

    version: str
    model_path: str
    dtype: str
    context: int
    tp_size: int
    deterministic: bool


@dataclasses.dataclass(frozen=True)
class ProbeSample:
    """A continuation that a server sampled: its ids and the log-probabilities that it reports."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int


async def facts(server: Server, *, architecture: str, context: int) -> ServerFacts:
    """Asks a server what it serves.

    Args:
      server: whom to ask.
      architecture: that of the trained model's config.json.
      context: tokens that it must have room for.

    Raises:
      HandshakeError: another architecture, or too little room.
      ServerError: no answer.
    """
    model, info = await server.get("/model_info"), await server.get("/server_info")
    served = model.get("architectures") or []
    if served and architecture not in served:
        raise HandshakeError(f"{server.url} serves {', '.join(served)} from {model.get('model_path')}, but "
                             f"{architecture} is trained; start it with --model-path of the trained model")
    if "max_req_input_len" not in info or "weight_version" not in model:
        raise Malformed(server.url, "/server_info", "no max_req_input_len or weight_version; expected SGLang 0.5.x")
    room = int(info["max_req_input_len"]) + 4  # beyond it, completions are cut short without a word
    if room < context:
        raise HandshakeError(f"{server.url} has room for {room} tokens, but prompts and completions take up to "
                             f"{context}; start it with --context-length {context + 2} and --max-total-tokens of at "
                             "least that, or lower --config.rollout.max_completion_length")
    return ServerFacts(str(model["weight_version"]), str(model.get("model_path")), str(info.get("dtype")), room,
                       int(info.get("tp_size") or 1), bool(info.get("enable_deterministic_inference")))


async def checksum(server: Server) -> str | None:
    """A hash of all weights in a server's memory; None from a server that offers none."""
    try:
        reply = await server.post("/weights_checker", {"action": "checksum"}, timeout=300.0)
    except Refused:
        return None
    return str(reply.get("per_engine_checksum")) if reply.get("per_engine_checksum") else None


async def sample_probes(server: Server, prompts: Sequence[Sequence[int]], temperature: float,
                        others: Mapping[str, Any] | None = None) -> list[ProbeSample]:
    """Has a server continue prompts by `PROBE_TOKENS` tokens each, whatever tokens they are.

    `others` are sampling parameters besides, as completions are asked for with.

    Raises:
      ServerError: no answer, or none with ids and log-probabilities.
    """
    parameters = {"max_new_tokens": PROBE_TOKENS, "temperature": temperature, "ignore_eos": True, "top_p": 1.0,
                  "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, **(others or {})}
    samples = []
    for prompt in prompts:
        reply = await server.post("/generate", {"input_ids": list(prompt), "sampling_params": parameters,
                                                "return_logprob": True})
        try:
            meta = reply["meta_info"]
            pairs = [(float(entry[0]), int(entry[1])) for entry in meta["output_token_logprobs"]]
        except (KeyError, TypeError, IndexError, ValueError):
            raise Malformed(server.url, "/generate", "no log-probabilities in the answer to a probe") from None
        if not pairs:
            raise Malformed(server.url, "/generate", "an empty answer to a probe")
        samples.append(ProbeSample(tuple(prompt), tuple(token for _, token in pairs),
                                   tuple(logprob for logprob, _ in pairs), int(meta.get("cached_tokens") or 0)))
    return samples


def make_scorer(model: transformer.ModelConfig, *, dtype: str) -> Scorer:
    """The trainer's side of a probe: `scorer(params, samples, temperature)` gives log-probabilities of the samples."""
    logprobs = functools.partial(_logprobs, model=model, dtype=dtype)

    def scorer(params, samples, temperature):
        width = max(len(s.prompt_ids) + len(s.completion_ids) for s in samples)
        tokens = np.zeros((len(samples), -(-width // 64) * 64), np.int32)
        segments = np.zeros_like(tokens)
        for row, s in enumerate(samples):
            ids = s.prompt_ids + s.completion_ids
            tokens[row, :len(ids)], segments[row, :len(ids)] = ids, 1
        scored = np.asarray(logprobs(params, tokens, segments, np.float32(temperature)))
        return [scored[row, len(s.prompt_ids) - 1:len(s.prompt_ids) + len(s.completion_ids) - 1]
                for row, s in enumerate(samples)]

    return scorer


@functools.partial(jax.jit, static_argnames=("model", "dtype"))
def _logprobs(params, tokens_BS, segments_BS, temperature, *, model, dtype):
    positions_BS = jnp.broadcast_to(jnp.arange(tokens_BS.shape[1]), tokens_BS.shape)
    hidden_BSD, _ = transformer.forward(params, model, tokens_BS, positions_BS, segments_BS, dtype=jnp.dtype(dtype))
    head_DV = transformer.sampling_head(params, model).astype(hidden_BSD.dtype)
    logits_ND = hidden_BSD[:, :-1].reshape(-1, hidden_BSD.shape[-1]) / temperature
    logprobs_N, _ = kernels.token_logprobs(logits_ND, head_DV, tokens_BS[:, 1:].reshape(-1))
    return logprobs_N.reshape(tokens_BS.shape[0], -1)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """|server - trainer| of the log-probabilities of probes, in nats per token."""

    mean: float
    maximum: float
    bound: float

    @property
    def holds(self) -> bool:
        return self.mean <= self.bound


def agreement(samples: Sequence[ProbeSample], scored: Sequence[np.ndarray], dtypes: Collection[str]) -> Agreement:
    """Compares a server's log-probabilities with the trainer's; `dtypes` are all that weights and activations had."""
    differences = np.concatenate([np.abs(np.subtract(s.logprobs, own)) for s, own in zip(samples, scored, strict=True)])
    return Agreement(float(differences.mean()), float(differences.max()),
                     _MEAN_BOUNDS["float32" if set(dtypes) == {"float32"} else "bfloat16"])


def disagreement(url: str, found: Agreement, *, raw: Agreement | None = None) -> str:
    """The sentence about a server whose probe failed; `raw` compares with log-probabilities before the temperature."""
    words = (f"{url}: log-probabilities of a probe differ from the trainer's by {found.mean:.3g} on average, "
             f"{found.maximum:.3g} at most, where {found.bound:g} on average is allowed. ")
    if raw is not None and raw.holds:
        return words + ("They agree before the temperature is applied: start the server without "
                        "SGLANG_RETURN_ORIGINAL_LOGPROB.")
    return words + ("Likely causes: it serves other weights (another model, an older version, an update that did not "
                    "happen), it is quantized or computes in a coarser dtype than it says, or its config.json differs "
                    "(RoPE base or scaling, tied embeddings).")
