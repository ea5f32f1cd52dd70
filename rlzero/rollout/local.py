"""The embedded engine: batched prefill and decoding in JAX, in the trainer's own process.

Rows are padded on the left so that all of them write the same cache slot, and each draws its tokens from a key made of
its own seed and token index: what else is in the batch does not enter. Prompts run in chunks of bounded size. The
decode loop returns to the host whenever half of its rows are done, and the live half moves into a batch of half the
size, so finished rows soon stop costing; or when the cache is full, which then grows to twice its room for new tokens,
so a long budget costs nothing until it is used. On a mesh each device has its share of the rows and keeps it.

Rows per device are powers of two, prompt widths and cache sizes come from few buckets: compilations are bounded.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from rlzero.models import transformer
from rlzero.models.sharding import (
    BATCH_AXES,
    batch_sharding,
    batch_shards,
    constrain,
    gathered,
    in_context,
    replicated_unless_on,
)
from rlzero.rollout.engine import Completion, Pairs, Request, Sampling

_SMALLEST_BATCH = 32  # rows; a batch is not halved below this
_WIDTH_MULTIPLE = 8  # tokens; of prompts and of the cache
_FIRST_ROOM = 64  # slots for new tokens that the cache has at least when decoding begins
_MOST_GROWTHS = 4


class LocalEngine:
    """`Engine` over parameters that live in this process."""

    def __init__(self, config: transformer.ModelConfig, *, max_batch: int = 512, prefill_tokens: int = 8192,
                 dtype=jnp.float32, mesh: jax.sharding.Mesh | None = None):
        """Makes an engine without weights; call `update_weights` before `generate`.

        Args:
          config: shape of the model.
          max_batch: rows decoded together, over all devices; bounds the cache's memory.
          prefill_tokens: prompt tokens, rows times width, that a device runs at a time; bounds the activations' memory.
          dtype: compute and cache dtype.
          mesh: mesh of `models.sharding.make_mesh`, over whose batch axes rows are split; None is the default device.
        """
        self._config = config
        self._max_batch = max_batch
        self._prefill_tokens = prefill_tokens
        self._dtype = jnp.dtype(dtype)
        self._mesh = mesh
        self._shares = batch_shards(mesh)
        self._params = None
        self._version = 0

    def update_weights(self, params: Any, version: int) -> None:
        """See `Engine.update_weights`. Parameters in another dtype than the engine's are copied, cast once for all."""
        if self._mesh is not None:
            params = jax.tree.map(lambda leaf: replicated_unless_on(leaf, self._mesh), params)
        self._params, self._version = _in_dtype(params, self._dtype), version

    @property
    def description(self) -> str:
        """See `Engine.description`."""
        return f"in this process, in {self._dtype.name}"

    def readmit(self) -> None:
        """Nothing is ever out of service here."""

    def metrics(self) -> Pairs:
        """None: its time is the rollout's."""
        return {}

    def close(self) -> None:
        """Nothing to let go of."""

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
        live = _dealt(requests, self._shares)
        waiting = np.not_equal(live, None)
        width, chunks = _prompt_width(requests, live.shape[1], self._prefill_tokens)
        room, *rooms = _rooms(sampling.max_new_tokens)
        statics = dict(config=self._config, sampling=dataclasses.replace(sampling, temperature=1.0), dtype=self._dtype)
        temperature, smallest = np.float32(sampling.temperature), _share(1, self._shares)
        rows = self._run(_prefill, self._params, *self._put(_left_padded(live.ravel(), width)), temperature,
                         chunks=chunks, capacity=width + room, **statics)
        while True:
            size = live.shape[1]
            enough = np.int32(size // 2 if size > smallest else 0)
            rows = self._run(_decode, self._params, rows, temperature, enough, shares=self._shares, **statics)
            done, step = np.asarray(rows.done).reshape(live.shape), int(rows.step)
            # Cut on the host: a slice on the device would be one more program for every number of steps.
            ids, logprobs = np.asarray(rows.ids)[:, :step], np.asarray(rows.logprobs)[:, :step]
            for i in np.flatnonzero(done & waiting):
                yield self._completion(live.flat[i], ids[i], logprobs[i], sampling)
            waiting = ~done
            most = int(waiting.sum(axis=1).max())
            if most == 0:
                return
            smaller = _share(most * self._shares, self._shares)
            if smaller < size:
                chosen = np.argsort(done, axis=1, kind="stable")[:, :smaller]  # waiting rows, filled up with done ones
                live, waiting = (np.take_along_axis(array, chosen, axis=1) for array in (live, waiting))
                rows = self._run(_select, rows, self._put(chosen.astype(np.int32).ravel()), shares=self._shares)
            if int(rows.cache.length) == width + room:
                room = rooms.pop(0)
                rows = self._run(_grow, rows, capacity=width + room)

    def _run(self, program, *args, **statics):
        """Calls a program with the mesh in context: for the call only, lest a suspended generator leave it there."""
        with in_context(self._mesh):
            return program(*args, **statics)

    def _put(self, arrays):
        """Host arrays as the programs take them: on a mesh, rows split over its batch axes."""
        return arrays if self._mesh is None else jax.device_put(arrays, batch_sharding(self._mesh))

    def _completion(self, request, ids, logprobs, sampling):
        end = sampling.end(ids)
        return Completion(request=request, completion_ids=tuple(ids[:end].tolist()),
                          rollout_logprobs=tuple(logprobs[:end].tolist()),
                          finish_reason="length" if end is None else "stop", policy_version=self._version)


@flax.struct.dataclass
class _Rows:
    """State of a decoding batch of B rows; every row has produced `step` tokens, those after its stop being noise."""

    cache: transformer.Cache
    token: jax.Array  # [B] the newest token
    position: jax.Array  # [B] its position
    seed: jax.Array  # [B] uint32
    matched: jax.Array  # [B] how far its newest tokens have come with a stop text, see `stopping`
    done: jax.Array  # [B] bool
    ids: jax.Array  # [B, T]
    logprobs: jax.Array  # [B, T] float32
    step: jax.Array  # scalar


def _share(rows, shares):
    """Rows per device for this many in all: a power of two, and together at least `_SMALLEST_BATCH`."""
    return 1 << (-(-max(rows, _SMALLEST_BATCH) // shares) - 1).bit_length()


def _dealt(requests, shares):
    """Requests as an object array `[shares, rows]`, dealt like cards; None is a padding row."""
    dealt = np.full((_share(len(requests), shares), shares), None)
    dealt.flat[:len(requests)] = requests
    return dealt.T


def _prompt_width(requests, rows, prefill_tokens):
    """Common width of the prompts, and the number of equal chunks of it in which `rows` rows of them are run.

    Widths are multiples of 8 tokens and, beyond 128, of a sixteenth of the next power of two.
    """
    longest = max(len(request.prompt_ids) for request in requests)
    width = _ceil(longest, max(_WIDTH_MULTIPLE, (1 << (longest - 1).bit_length()) // 16))
    widest_chunk = max(_WIDTH_MULTIPLE, prefill_tokens // rows // _WIDTH_MULTIPLE * _WIDTH_MULTIPLE)
    chunks = -(-width // widest_chunk)
    return chunks * _ceil(-(-width // chunks), _WIDTH_MULTIPLE), chunks


def _rooms(budget):
    """Slots for new tokens that the cache has one after the other: about halves of the budget, the smallest first."""
    rooms = [budget]
    while rooms[0] >= 2 * _FIRST_ROOM and len(rooms) <= _MOST_GROWTHS:
        rooms.insert(0, _ceil(-(-rooms[0] // 2), _WIDTH_MULTIPLE))
    return rooms


def _ceil(number, multiple):
    return -(-number // multiple) * multiple


def _left_padded(requests, width):
    """Host arrays `[B, S]` tokens, positions, segments and `[B]` seeds, with padding rows in segment 0."""
    tokens, positions, segments = (np.zeros((len(requests), width), np.int32) for _ in range(3))
    seeds = np.zeros(len(requests), np.uint32)
    for row, request in enumerate(requests):
        if request is None:
            continue
        length = len(request.prompt_ids)
        tokens[row, width - length:] = request.prompt_ids
        positions[row, width - length:] = np.arange(length)
        segments[row, width - length:] = 1
        seeds[row] = request.seed
    return tokens, positions, segments, seeds


def _in_dtype(params, dtype):
    """The parameters as `transformer.forward` would cast them in every step; the final norm it takes as it is."""
    cast = jax.tree.map(lambda leaf: leaf if leaf.dtype == dtype else leaf.astype(dtype), params)
    return cast | {"final_norm": params["final_norm"]}


@functools.partial(jax.jit, static_argnames=("config", "sampling", "dtype", "chunks", "capacity"))
def _prefill(params, tokens, positions, segments, seeds, temperature, *, config, sampling, dtype, chunks, capacity):
    """Runs the prompts, chunk by chunk of their width, and draws the first token of every row."""
    B = tokens.shape[0]

    def run(cache, chunk):
        hidden, cache = transformer.forward(params, config, *chunk, cache=cache, dtype=dtype)
        return cache, hidden[:, -1]

    parts = tuple(jnp.moveaxis(array.reshape(B, chunks, -1), 1, 0) for array in (tokens, positions, segments))
    cache, hidden_CBD = jax.lax.scan(run, transformer.init_cache(config, B, capacity, dtype), parts)
    token, logprob = _draw(params, config, hidden_CBD[-1], seeds, jnp.int32(0), temperature, sampling)
    blank = constrain(jnp.zeros((B, sampling.max_new_tokens)), BATCH_AXES)
    rows = _Rows(cache=cache, token=token, position=positions[:, -1], seed=seeds, matched=jnp.zeros(B, jnp.int32),
                 done=segments[:, -1] == 0, ids=blank.astype(jnp.int32), logprobs=blank, step=jnp.int32(0))
    return _record(rows, token, logprob, sampling)


@functools.partial(jax.jit, static_argnames=("config", "sampling", "dtype", "shares"), donate_argnames="rows")
def _decode(params, rows, temperature, enough, *, config, sampling, dtype, shares):
    """Decodes until no device has more than `enough` live rows, or the cache is full."""
    B, capacity = rows.cache.positions.shape

    def worth_going_on(rows):
        live = jnp.sum(~rows.done.reshape(shares, -1), axis=1)
        return (jnp.max(live) > enough) & (rows.cache.length < capacity)

    def advance(rows):
        hidden, cache = transformer.forward(params, config, rows.token[:, None], rows.position[:, None],
                                            jnp.ones((B, 1), jnp.int32), cache=rows.cache, dtype=dtype)
        token, logprob = _draw(params, config, hidden[:, 0], rows.seed, rows.step, temperature, sampling)
        return _record(rows.replace(cache=cache), token, logprob, sampling)

    return jax.lax.while_loop(worth_going_on, advance, rows)


@functools.partial(jax.jit, static_argnames="shares")
def _select(rows, chosen, *, shares):
    """The rows numbered `chosen` `[B]`, which counts within each device's share; no row changes its device."""

    def local(rows, chosen):
        cache = rows.cache.replace(
            key=rows.cache.key[:, chosen], value=rows.cache.value[:, chosen],
            positions=rows.cache.positions[chosen], segments=rows.cache.segments[chosen])
        names = ("token", "position", "seed", "matched", "done", "ids", "logprobs")
        return rows.replace(cache=cache, **{name: getattr(rows, name)[chosen] for name in names})

    if shares == 1:
        return local(rows, chosen)
    split, whole = PartitionSpec(BATCH_AXES), PartitionSpec()
    stacked = PartitionSpec(None, BATCH_AXES)
    specs = _Rows(cache=transformer.Cache(stacked, stacked, split, split, whole), token=split, position=split,
                  seed=split, matched=split, done=split, ids=split, logprobs=split, step=whole)
    return jax.shard_map(local, in_specs=(specs, split), out_specs=specs, axis_names=set(BATCH_AXES))(rows, chosen)


@functools.partial(jax.jit, static_argnames="capacity")
def _grow(rows, *, capacity):
    """The rows with more slots in their cache: the only copy of it."""
    return rows.replace(cache=transformer.grown_cache(rows.cache, capacity))


def _record(rows, token, logprob, sampling):
    """Appends the drawn tokens; a row is done after a stop id or text, or at the end of the budget."""
    stopped, matched = jnp.isin(token, jnp.asarray(sampling.stop_ids)), rows.matched
    if sampling.stop_text:
        matched = jnp.asarray(sampling.stop_text.table)[token, matched].astype(jnp.int32)
        stopped |= matched == sampling.stop_text.end_state
    out_of_budget = rows.step + 1 >= sampling.max_new_tokens
    return rows.replace(
        token=token, position=rows.position + 1, matched=matched,
        done=rows.done | stopped | out_of_budget, step=rows.step + 1,
        ids=jax.lax.dynamic_update_slice(rows.ids, token[:, None], (0, rows.step)),
        logprobs=jax.lax.dynamic_update_slice(rows.logprobs, logprob[:, None], (0, rows.step)))


def _draw(params, config, hidden_BD, seeds, step, temperature, sampling):
    """Draws one token per row by the Gumbel-max trick; returns ids and their log-probabilities when drawn so.

    At temperature 0 the most likely token is taken, and its log-probability is that at temperature 1.
    """
    unembedding = gathered(transformer.sampling_head(params, config).astype(hidden_BD.dtype), ("embed", "vocab"))
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
