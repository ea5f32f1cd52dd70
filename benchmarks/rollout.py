"""What the embedded engine does: tokens per second, and how far its log-probabilities lie from the learner's.

    python benchmarks/rollout.py                                        # the demo model: 512 requests of 48 tokens
    python benchmarks/rollout.py --model=/tmp/smollm2 --requests=32 --max_new_tokens=16 --dtype=bfloat16

The prompts are sums such as `417+86=`; --sums=9 puts eight worked ones before each, for longer prompts. The first
generation, which compiles, is not timed; the rest is, with the same seeds. |Δlogprob| compares `rollout_logprobs` of
every sampled token with `rlzero.training.steps.score` in the same dtype: the same numbers but for rounding, since the
engine reads earlier keys from its cache and the learner computes whole rows.
"""

import statistics
import time

import jax
import numpy as np
from absl import app, flags

from rlzero.data.templates import encode_prompt
from rlzero.models import huggingface
from rlzero.rollout.engine import Request, Sampling, request_seed
from rlzero.rollout.local import LocalEngine
from rlzero.training.batch import empty_rows
from rlzero.training.steps import Execution, score

_MODEL = flags.DEFINE_string("model", "demo", "Model directory, or demo.")
_REQUESTS = flags.DEFINE_integer("requests", 512, "Completions in a generation.", lower_bound=1)
_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 48, "Budget of a completion in tokens.", lower_bound=1)
_SUMS = flags.DEFINE_integer("sums", 1, "Sums in a prompt, all but the last with their answer.", lower_bound=1)
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Of compute and cache; weights are float32.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Timed generations.", lower_bound=1)
_IGNORE_STOPS = flags.DEFINE_bool("ignore_stops", False, "Decode every completion to the end of the budget.")
_ROWS = 32  # scored at a time


def make_requests(tokenizer) -> list[Request]:
    rng = np.random.default_rng(0)

    def prompt():
        terms = rng.integers(1, 1000, (_SUMS.value, 2))
        worked = "".join(f"{a}+{b}={a + b}\n" for a, b in terms[:-1])
        return encode_prompt(tokenizer, worked + f"{terms[-1, 0]}+{terms[-1, 1]}=")

    return [Request(f"p{i}", 0, prompt(), request_seed(0, 0, f"p{i}", 0)) for i in range(_REQUESTS.value)]


def logprob_gaps(params, model, completions) -> np.ndarray:
    """|Δlogprob| of every sampled token."""
    gaps = []
    width = max(len(c.request.prompt_ids) + len(c.completion_ids) for c in completions)
    for start in range(0, len(completions), _ROWS):
        rows = empty_rows(_ROWS, width)
        for row, completion in enumerate(completions[start:start + _ROWS]):
            prompt, ids = completion.request.prompt_ids, completion.request.prompt_ids + completion.completion_ids
            count = len(ids) - 1
            rows.tokens[row, :count], rows.targets[row, :count] = ids[:-1], ids[1:]
            rows.positions[row, :count], rows.segments[row, :count] = np.arange(count), 1
            rows.mask[row, len(prompt) - 1:count] = True
            rows.rollout_logprobs[row, len(prompt) - 1:count] = completion.rollout_logprobs
        scored = np.asarray(score(params, rows, execution=Execution(model, dtype=_DTYPE.value)))
        gaps.append(np.abs(scored - rows.rollout_logprobs)[rows.mask])
    return np.concatenate(gaps)


def main(_):
    params, model = huggingface.load(_MODEL.value)
    tokenizer = huggingface.load_tokenizer(_MODEL.value)
    stop_ids = (model.vocab_size,) if _IGNORE_STOPS.value else huggingface.stop_token_ids(_MODEL.value, tokenizer)
    sampling, requests = Sampling(_NEW_TOKENS.value, stop_ids), make_requests(tokenizer)
    engine = LocalEngine(model, dtype=_DTYPE.value)
    engine.update_weights(params, 0)

    def generation():
        start = time.perf_counter()
        completions = list(engine.generate(requests, sampling))
        return time.perf_counter() - start, completions

    first, completions = generation()
    seconds = statistics.median(generation()[0] for _ in range(_REPETITIONS.value))
    tokens = sum(len(c.completion_ids) for c in completions)
    print(f"{_MODEL.value} on {jax.devices()[0].device_kind}, {_DTYPE.value}: {len(requests)} prompts of up to "
          f"{max(len(r.prompt_ids) for r in requests)} tokens, {tokens} tokens sampled")
    print(f"generation        {seconds:.3f} s (median of {_REPETITIONS.value}; first, with compilation, {first:.1f} s)")
    print(f"tokens/s          {tokens / seconds:,.0f}")
    gaps = logprob_gaps(params, model, completions)
    print(f"|Δlogprob|        mean {gaps.mean():.2e}, max {gaps.max():.2e} against the learner's score")


if __name__ == "__main__":
    app.run(main)
