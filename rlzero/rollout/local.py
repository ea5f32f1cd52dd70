"""The embedded engine: batched prefill and decoding in JAX, in the trainer's own process.

Rows are padded on the left so that all of them write the same cache slot, and each draws its tokens from a key made of
its own seed and token index: what else is in the batch does not enter. The decode loop returns to the host whenever
half of its rows are done; the live half moves into a batch of half the size, so finished rows soon stop costing.
Batch sizes are powers of two and prompt widths multiples of 8, which bounds the number of compilations.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rlzero.models import transformer
from rlzero.rollout.engine import Completion, Request, Sampling

_SMALLEST_BATCH = 32  # rows; a batch is not halved below this
_PROMPT_MULTIPLE = 8  # tokens


class LocalEngine:
    """`Engine` over parameters that live in this process."""

    def __init__(self, config: transformer.ModelConfig, *, max_batch: int = 512, dtype=jnp.float32):
        """Makes an engine without weights; call `update_weights` before `generate`.

        Args:
          config: shape of the model.
          max_batch: rows decoded together; bounds the cache's memory.
          dtype: compute and cache dtype.
        """
        self._config = config
        self._max_batch = max_batch
        self._dtype = dtype
        self._params = None
        self._version = 0

    def update_weights(self, params: Any, version: int) -> None:
        self._params, self._version = params, version

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[Completion]:
        """Yields one completion per request. See `Engine.generate`.

        Raises:
          ValueError: an empty prompt, an id outside the vocabulary, or a prompt that leaves no room for the budget.
        """
        if self._params is None:
            raise ValueError("the engine has no weights yet; call update_weights first")
        for request in requests:
            self._check(request, sampling)
        by_length = sorted(requests, key=lambda request: len(request.prompt_ids))
        for start in range(0, len(by_length), self._max_batch):
            yield from self._generate_batch(by_length[start:start + self._max_batch], sampling)

    def _check(self, request, sampling):
        ids = request.prompt_ids
        if not ids:
            raise ValueError(f"prompt {request.prompt_id} is empty: nothing to continue from")
        if min(ids) < 0 or max(ids) >= self._config.vocab_size:
            raise ValueError(f"prompt {request.prompt_id} holds ids outside 0..{self._config.vocab_size - 1}")
        context = self._config.max_position_embeddings
        if len(ids) + sampling.max_new_tokens > context:
            raise ValueError(f"prompt {request.prompt_id} of {len(ids)} tokens plus {sampling.max_new_tokens} new ones "
                             f"exceeds the model's context of {context}; lower max_completion_length")

    def _generate_batch(self, requests, sampling):
        temperature = jnp.float32(sampling.temperature)
        statics = dict(config=self._config, sampling=dataclasses.replace(sampling, temperature=1.0), dtype=self._dtype)
        rows = _prefill(self._params, *_left_padded(requests), temperature, **statics)
        live = list(requests) + [None] * (rows.done.shape[0] - len(requests))
        while True:
            rows = _decode(self._params, rows, temperature, **statics)
            done, step = np.asarray(rows.done), int(rows.step)
            finished = [i for i, request in enumerate(live) if request is not None and done[i]]
            # Cut on the host: a slice on the device would be one more program for every number of steps.
            ids, logprobs = np.asarray(rows.ids)[:, :step], np.asarray(rows.logprobs)[:, :step]
            for i in finished:
                yield self._completion(live[i], ids[i], logprobs[i], sampling)
            remaining = [i for i, request in enumerate(live) if request is not None and not done[i]]
            if not remaining:
                return
            size = _bucket(len(remaining))
            chosen = np.asarray(remaining + [remaining[0]] * (size - len(remaining)), np.int32)
            rows = _select(rows, chosen, len(remaining))
            live = [live[i] for i in remaining] + [None] * (size - len(remaining))

    def _completion(self, request, ids, logprobs, sampling):
        stops = np.flatnonzero(np.isin(ids, sampling.stop_ids))
        length = int(stops[0]) + 1 if stops.size else len(ids)
        return Completion(request=request, completion_ids=tuple(ids[:length].tolist()),
                          rollout_logprobs=tuple(logprobs[:length].tolist()),
                          finish_reason="stop" if stops.size else "length", policy_version=self._version)


@flax.struct.dataclass
class _Rows:
    """State of a decoding batch of B rows; every row has produced `step` tokens, those after its stop being noise."""

    cache: transformer.Cache
    token: jax.Array  # [B] the newest token
    position: jax.Array  # [B] its position
    seed: jax.Array  # [B] uint32
    done: jax.Array  # [B] bool
    ids: jax.Array  # [B, T]
    logprobs: jax.Array  # [B, T] float32
    step: jax.Array  # scalar


def _bucket(rows):
    """The batch size for this many rows: the next power of two, at least `_SMALLEST_BATCH`."""
    return max(_SMALLEST_BATCH, 1 << (rows - 1).bit_length())


def _left_padded(requests):
    """Host arrays `[B, S]` tokens, positions, segments and `[B]` seeds, with padding rows in segment 0."""
    width = max(len(request.prompt_ids) for request in requests)
    width = -(-width // _PROMPT_MULTIPLE) * _PROMPT_MULTIPLE
    batch = _bucket(len(requests))
    tokens, positions, segments = (np.zeros((batch, width), np.int32) for _ in range(3))
    seeds = np.zeros(batch, np.uint32)
    for row, request in enumerate(requests):
        length = len(request.prompt_ids)
        tokens[row, width - length:] = request.prompt_ids
        positions[row, width - length:] = np.arange(length)
        segments[row, width - length:] = 1
        seeds[row] = request.seed
    return tokens, positions, segments, seeds


@functools.partial(jax.jit, static_argnames=("config", "sampling", "dtype"))
def _prefill(params, tokens, positions, segments, seeds, temperature, *, config, sampling, dtype):
    """Runs the prompts and draws the first token of every row."""
    B, S = tokens.shape
    cache = transformer.init_cache(config, B, S + sampling.max_new_tokens, dtype)
    hidden, cache = transformer.forward(params, config, tokens, positions, segments, cache=cache, dtype=dtype)
    token, logprob = _draw(params, hidden[:, -1], seeds, jnp.int32(0), temperature, sampling)
    blank = jnp.zeros((B, sampling.max_new_tokens))
    rows = _Rows(cache=cache, token=token, position=positions[:, -1], seed=seeds, done=segments[:, -1] == 0,
                 ids=blank.astype(jnp.int32), logprobs=blank, step=jnp.int32(0))
    return _record(rows, token, logprob, sampling)


@functools.partial(jax.jit, static_argnames=("config", "sampling", "dtype"), donate_argnames="rows")
def _decode(params, rows, temperature, *, config, sampling, dtype):
    """Decodes until all rows are done, or until at most half of a large batch is still live."""
    B = rows.done.shape[0]
    enough = B // 2 if B > _SMALLEST_BATCH else 0

    def worth_going_on(rows):
        return jnp.sum(~rows.done) > enough

    def advance(rows):
        hidden, cache = transformer.forward(params, config, rows.token[:, None], rows.position[:, None],
                                            jnp.ones((B, 1), jnp.int32), cache=rows.cache, dtype=dtype)
        token, logprob = _draw(params, hidden[:, 0], rows.seed, rows.step, temperature, sampling)
        return _record(rows.replace(cache=cache), token, logprob, sampling)

    return jax.lax.while_loop(worth_going_on, advance, rows)


@jax.jit
def _select(rows, chosen, live):
    """The rows numbered `chosen`; those from `live` on are fillers that count as done."""
    cache = rows.cache.replace(
        key=rows.cache.key[:, chosen], value=rows.cache.value[:, chosen],
        positions=rows.cache.positions[chosen], segments=rows.cache.segments[chosen])
    kept = {name: getattr(rows, name)[chosen] for name in ("token", "position", "seed", "ids", "logprobs")}
    return rows.replace(cache=cache, done=jnp.arange(chosen.shape[0]) >= live, **kept)


def _record(rows, token, logprob, sampling):
    """Appends the drawn tokens; a row is done after a stop id or at the end of the budget."""
    stopped = jnp.isin(token, jnp.asarray(sampling.stop_ids))
    out_of_budget = rows.step + 1 >= sampling.max_new_tokens
    return rows.replace(
        token=token, position=rows.position + 1, done=rows.done | stopped | out_of_budget, step=rows.step + 1,
        ids=jax.lax.dynamic_update_slice(rows.ids, token[:, None], (0, rows.step)),
        logprobs=jax.lax.dynamic_update_slice(rows.logprobs, logprob[:, None], (0, rows.step)))


def _draw(params, hidden_BD, seeds, step, temperature, sampling):
    """Draws one token per row by the Gumbel-max trick; returns ids and their log-probabilities when drawn so.

    At temperature 0 the most likely token is taken, and its log-probability is that at temperature 1.
    """
    unembedding = transformer.unembedding(params).astype(hidden_BD.dtype)
    logits_BV = jnp.matmul(hidden_BD, unembedding, preferred_element_type=jnp.float32)
    greedy = temperature == 0
    logits_BV = _truncated(logits_BV / jnp.where(greedy, 1.0, temperature), sampling.top_p, sampling.top_k)
    keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(seed), step))(seeds)
    gumbel_BV = jax.vmap(lambda key: jax.random.gumbel(key, logits_BV.shape[1:]))(keys)
    token = jnp.argmax(jnp.where(greedy, logits_BV, logits_BV + gumbel_BV), axis=-1).astype(jnp.int32)
    chosen = jnp.take_along_axis(logits_BV, token[:, None], axis=-1)[:, 0]
    return token, jnp.minimum(chosen - jax.nn.logsumexp(logits_BV, axis=-1), 0.0)


def _truncated(logits_BV, top_p, top_k):
    """Sets logits outside the top_k and the top_p nucleus to -inf; tokens tied with the last kept one stay."""
    if top_p == 1 and top_k in (0, logits_BV.shape[-1]):
        return logits_BV
    ordered_BV = -jnp.sort(-logits_BV, axis=-1)
    rank_V = jnp.arange(ordered_BV.shape[-1])
    if top_k:
        ordered_BV = jnp.where(rank_V < top_k, ordered_BV, -jnp.inf)
    probability_BV = jax.nn.softmax(ordered_BV, axis=-1)
    before_BV = jnp.cumsum(probability_BV, axis=-1) - probability_BV
    kept_BV = (before_BV < top_p) & jnp.isfinite(ordered_BV)
    smallest_B1 = jnp.min(jnp.where(kept_BV, ordered_BV, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits_BV >= smallest_B1, logits_BV, -jnp.inf)
