"""From hidden states to log-probs and to the loss, one chunk of tokens at a time.

The logits of a batch, [N, V] in float32, are the largest array of RL on language models. Here they exist for one chunk
of tokens only, forward and backward. The derivatives are written out by hand, once, and serve both functions:

    logits = hidden · unembedding / temperature,    p = softmax(logits),    H = -Σ p log p
    ∂logprob/∂logits = onehot(target) - p,          ∂H/∂logits = -p · (log p + H)

Matrix products take the inputs' own dtype and accumulate in float32 (float64 for float64); everything else is float32.
"""

import functools
import math
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp

from rlzero.algorithms import Algorithm, expect_within
from rlzero.kernels.arrays import as_floats, as_mask, clean, expect_rank, expect_shape, match_varying
from rlzero.kernels.policy import Metrics, TokenConstants, expect_inputs, token_terms

_LOGITS_BYTES = 2**28
_ROWS_MULTIPLE = 128
_COLUMNS = 4096


def token_logprobs(
    hidden: jax.Array,
    unembedding: jax.Array,
    targets: jax.Array,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target token, and entropy of the distribution it was drawn from.

        logprobs_n = log softmax(hidden_n · unembedding / temperature)[targets_n]

    Differentiable in hidden and unembedding without an [N, V] array: the backward pass computes the logits again. A
    token whose results are not used contributes exactly nothing to the gradients, whatever its hidden state holds.

    Args:
      hidden: [N, D], after the final norm.
      unembedding: [D, V].
      targets: [N], integers in [0, V). Out of range gives NaN.
      temperature: the sampling temperature, positive; the log-probs are those of what was sampled.
      chunk: tokens at a time; None picks a number. All at once if their float32 logits stay under 256 MiB or a quarter
        of the size of the unembedding's float32 gradient, else as many as do.

    Returns:
      logprobs [N], never positive, and entropy [N], in nats, float32 or wider.

    Raises:
      ValueError: a shape, dtype, temperature or chunk is not as above.
    """
    chunk = _check(hidden, unembedding, targets, temperature, chunk)
    hidden, unembedding, targets = match_varying((hidden, unembedding, targets))
    return _token_logprobs(hidden, unembedding, targets, float(temperature), chunk)


def fused_policy_loss(
    hidden: jax.Array,
    unembedding: jax.Array,
    targets: jax.Array,
    old_logprobs: jax.Array | None,
    advantages: jax.Array,
    weights: jax.Array,
    *,
    algorithm: Algorithm,
    temperature: float = 1.0,
    chunk: int | None = None,
    mask: jax.Array | None = None,
    ref_logprobs: jax.Array | None = None,
    rollout_logprobs: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """`policy_loss` of `token_logprobs`, with both gradients computed in the forward pass.

    The loss is linear in its cotangent, so the gradients with respect to hidden and unembedding can be made while the
    logits of a chunk are at hand and only be scaled later: three matrix products per chunk instead of four, and no
    second pass. If nothing is differentiated, none of that is computed. Value, gradients and metrics are those of
    `policy_loss(token_logprobs(...))`.

    Args:
      hidden: [N, D], after the final norm; N tokens in any order, packed or padded.
      unembedding: [D, V].
      targets: [N], integers in [0, V).
      old_logprobs: [N], of the policy that sampled; None for exactly on-policy data.
      advantages: [N], the advantage of each token.
      weights: [N], the response weight of each token's response.
      algorithm: read as in `policy_loss`.
      temperature: the sampling temperature, positive.
      chunk: tokens at a time; None picks a number as in `token_logprobs`.
      mask: [N], 1 for trained tokens; None for all whose weight is not 0. The others may hold anything.
      ref_logprobs: [N], of the reference policy, if the loss has a divergence.
      rollout_logprobs: [N], from the rollout engine, if `algorithm.importance_cap` is set.

    Returns:
      The loss, differentiable once and only in hidden and unembedding, and metrics name -> (sum, number of tokens).

    Raises:
      ValueError: a shape or number is not as above, or the algorithm looks at whole responses (GSPO, sequence-level
        importance), which packed tokens do not tell.
    """
    chunk = _check(hidden, unembedding, targets, temperature, chunk)
    expect_shape(jnp.shape(targets), old_logprobs=old_logprobs, advantages=advantages, weights=weights, mask=mask)
    expect_shape(jnp.shape(targets), ref_logprobs=ref_logprobs, rollout_logprobs=rollout_logprobs)
    expect_inputs(algorithm, entropy=targets, ref_logprobs=ref_logprobs, rollout_logprobs=rollout_logprobs)
    if algorithm.surrogate == "gspo":
        raise ValueError("surrogate='gspo' has one ratio per response and cannot be fused over packed tokens; "
                         "use policy_loss on the result of token_logprobs")
    if algorithm.importance_cap is not None and algorithm.importance_level == "sequence":
        raise ValueError("importance_level='sequence' cannot be fused over packed tokens; multiply the advantages by "
                         "truncated_importance(..., level='sequence') and set importance_cap=None, or use policy_loss")
    floats = as_floats(weights, advantages, old_logprobs, ref_logprobs, rollout_logprobs)
    mask = floats[0] != 0 if mask is None else as_mask(mask)
    inputs = (hidden, unembedding, jnp.asarray(targets), TokenConstants(mask, *clean(mask, *floats)))
    return _fused(*match_varying(inputs), algorithm, float(temperature), chunk)


def _check(hidden, unembedding, targets, temperature, chunk) -> int:
    """Checks the arguments of both functions and settles the chunk."""
    expect_rank("ND", hidden=hidden)
    expect_rank("DV", unembedding=unembedding)
    (tokens, width), vocabulary = jnp.shape(hidden), jnp.shape(unembedding)[1]
    expect_shape((width, vocabulary), unembedding=unembedding)
    expect_shape((tokens,), targets=targets)
    expect_within("(0, inf)", temperature=temperature)
    if not jnp.issubdtype(jnp.asarray(targets).dtype, jnp.integer):
        raise ValueError(f"expected targets to be integers, got {jnp.asarray(targets).dtype}")
    if chunk is None:
        pieces = max(1, math.ceil(tokens * vocabulary * 4 / max(_LOGITS_BYTES, width * vocabulary)))
        return max(1, tokens) if pieces == 1 else math.ceil(tokens / pieces / _ROWS_MULTIPLE) * _ROWS_MULTIPLE
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"expected chunk to be a positive int or None, got {chunk!r}")
    return chunk


def _scan_chunks(body: Callable, carry: Any, arrays: Any, chunk: int) -> tuple[Any, Any]:
    """`body(carry, arrays)` over chunks of rows; the last one is filled with zeros.

    Returns the carry and the outputs with a leading axis of chunks. One chunk runs without a loop.
    """
    rows = jax.tree.leaves(arrays)[0].shape[0]
    count = max(1, math.ceil(rows / chunk))
    chunk = min(chunk, rows) if count == 1 else chunk

    def split(array):
        padded = jnp.pad(array, [(0, count * chunk - rows)] + [(0, 0)] * (array.ndim - 1))
        return padded.reshape(count, chunk, *array.shape[1:])

    arrays = jax.tree.map(split, arrays)
    if count == 1:
        carry, outputs = body(carry, jax.tree.map(lambda array: array[0], arrays))
        return carry, jax.tree.map(lambda array: array[None], outputs)
    return jax.lax.scan(body, carry, arrays)


def _joined(array: jax.Array, rows: int) -> jax.Array:
    """[chunks, chunk, ...] back to [rows, ...]."""
    return array.reshape(-1, *array.shape[2:])[:rows]


def _accumulator_dtype(*arrays):
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def _product(left, right):
    return jnp.matmul(left, right, preferred_element_type=_accumulator_dtype(left, right))


class _Softmax(NamedTuple):
    """softmax(logits) of a chunk by its parts: p = exp(logits - maximum) / total."""

    logits: jax.Array  # [n, V], already divided by the temperature
    maximum: jax.Array  # [n]
    total: jax.Array  # [n], Σ exp(logits - maximum), at least 1
    moment: jax.Array  # [n], Σ exp(logits - maximum) · (logits - maximum)

    @property
    def entropy(self):
        return jnp.log(self.total) - self.moment / self.total

    def logprobs(self, targets):
        """Of targets [n], NaN where one is out of range."""
        inside = (targets >= 0) & (targets < self.logits.shape[1])
        picked = jnp.take_along_axis(self.logits, jnp.where(inside, targets, 0)[:, None], axis=1)[:, 0]
        return jnp.where(inside, picked - self.maximum - jnp.log(self.total), jnp.nan)


def _by_platform(function, *arrays):
    """`function(*arrays, columns)`: a CPU goes through the vocabulary in blocks of columns that fit its caches.

    Its matrix products do not add to what is there, and sums over rows want their terms in memory; in blocks no second
    [D, V] array and no second [n, V] array arises. Other compilers fuse these and get all columns at once.
    """
    return jax.lax.platform_dependent(*arrays, cpu=functools.partial(function, columns=_COLUMNS),
                                      default=functools.partial(function, columns=None))


def _over_columns(body, carry, vocabulary, columns):
    """`carry = body(carry, start, width)` for every block of columns, the last one ragged."""
    blocks, rest = divmod(vocabulary, columns or vocabulary)
    if blocks > 1:
        carry = jax.lax.fori_loop(0, blocks, lambda i, carry: body(carry, i * columns, columns), carry)
    elif blocks == 1:
        carry = body(carry, 0, columns or vocabulary)
    return body(carry, blocks * columns, rest) if rest else carry


def _block(array, start, width):
    return jax.lax.dynamic_slice_in_dim(array, start, width, axis=1)


def _softmax(hidden, unembedding, temperature):
    return _by_platform(functools.partial(_softmax_by_columns, temperature=temperature), hidden, unembedding)


def _softmax_by_columns(hidden, unembedding, *, temperature, columns):
    logits = _product(hidden, unembedding) / temperature
    tokens, vocabulary = logits.shape
    smallest, zeros = jnp.full(tokens, -jnp.inf, logits.dtype), jnp.zeros(tokens, logits.dtype)
    logits, smallest, zeros = match_varying((logits, smallest, zeros))

    def largest(maximum, start, width):
        return jnp.maximum(maximum, jnp.max(_block(logits, start, width), axis=1))

    maximum = _over_columns(largest, smallest, vocabulary, columns)

    def sums(carry, start, width):
        shifted = _block(logits, start, width) - maximum[:, None]
        exponentials = jnp.exp(shifted)
        return carry[0] + jnp.sum(exponentials, axis=1), carry[1] + jnp.sum(exponentials * shifted, axis=1)

    return _Softmax(logits, maximum, *_over_columns(sums, (zeros, zeros), vocabulary, columns))


def _pulled_back(d_unembedding, softmax, entropy, targets, d_logprobs, d_entropy, hidden, unembedding, temperature):
    """The running gradient of the unembedding plus this chunk's part, and the gradient of hidden."""
    return _by_platform(functools.partial(_pulled_back_by_columns, temperature=temperature), d_unembedding, softmax,
                        entropy, targets, d_logprobs, d_entropy, hidden, unembedding)


def _pulled_back_by_columns(d_unembedding, softmax, entropy, targets, d_logprobs, d_entropy, hidden, unembedding, *,
                            temperature, columns):
    normalizer = softmax.maximum + jnp.log(softmax.total)
    dtype = jnp.result_type(hidden, unembedding)

    def body(carry, start, width):
        d_unembedding, logits = carry
        log_p = _block(logits, start, width) - normalizer[:, None]
        flow = d_logprobs[:, None] + d_entropy[:, None] * (log_p + entropy[:, None])
        hit = targets[:, None] == start + jnp.arange(width)
        d_logits = (jnp.where(hit, d_logprobs[:, None], 0) - jnp.exp(log_p) * flow) / temperature
        part = _block(d_unembedding, start, width) + _product(hidden.T, d_logits.astype(dtype))
        return tuple(jax.lax.dynamic_update_slice_in_dim(array, block, start, axis=1)
                     for array, block in ((d_unembedding, part), (logits, d_logits)))

    d_unembedding, d_logits = _over_columns(body, (d_unembedding, softmax.logits), unembedding.shape[1], columns)
    # In this order, which the barrier keeps, a CPU takes the large matrix as it lies and need not pack it every time.
    d_hidden_T = jax.lax.optimization_barrier(_product(unembedding, d_logits.astype(dtype).T))
    return d_unembedding, d_hidden_T.T.astype(hidden.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _token_logprobs(hidden, unembedding, targets, temperature, chunk):
    def body(carry, tokens):
        hidden, targets = tokens
        softmax = _softmax(hidden, unembedding, temperature)
        return carry, (softmax.logprobs(targets), softmax.entropy)

    _, outputs = _scan_chunks(body, None, (hidden, targets), chunk)
    return jax.tree.map(lambda array: _joined(array, hidden.shape[0]), outputs)


def _token_logprobs_forward(hidden, unembedding, targets, temperature, chunk):
    return _token_logprobs(hidden, unembedding, targets, temperature, chunk), (hidden, unembedding, targets)


def _token_logprobs_backward(temperature, chunk, residuals, cotangents):
    hidden, unembedding, targets = residuals
    used = (cotangents[0] != 0) | (cotangents[1] != 0)
    clean_hidden, clean_targets = jnp.where(used[:, None], hidden, 0), jnp.where(used, targets, 0)

    def body(d_unembedding, tokens):
        hidden, targets, d_logprobs, d_entropy = tokens
        softmax = _softmax(hidden, unembedding, temperature)
        return _pulled_back(d_unembedding, softmax, softmax.entropy, targets, d_logprobs, d_entropy, hidden,
                            unembedding, temperature)

    zeros = jnp.zeros_like(unembedding, dtype=_accumulator_dtype(hidden, unembedding))
    d_unembedding, d_hidden = _scan_chunks(body, zeros, (clean_hidden, clean_targets, *cotangents), chunk)
    return _joined(d_hidden, hidden.shape[0]), d_unembedding.astype(unembedding.dtype), None


_token_logprobs.defvjp(_token_logprobs_forward, _token_logprobs_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _fused(hidden, unembedding, targets, constants, algorithm, temperature, chunk):
    def body(carry, tokens):
        hidden, targets, constants = tokens
        softmax = _softmax(hidden, unembedding, temperature)
        terms, metrics = token_terms(softmax.logprobs(targets), softmax.entropy, constants, algorithm)
        return carry, (jnp.sum(constants.weights * terms), metrics)

    _, outputs = _scan_chunks(body, None, _trained(hidden, targets, constants), chunk)
    return jax.tree.map(lambda array: jnp.sum(array, axis=0), outputs)


def _fused_forward(hidden, unembedding, targets, constants, algorithm, temperature, chunk):
    def body(d_unembedding, tokens):
        hidden, targets, constants = tokens
        softmax = _softmax(hidden, unembedding, temperature)
        entropy = softmax.entropy

        def loss(logprobs, entropy):
            terms, metrics = token_terms(logprobs, entropy, constants, algorithm)
            return jnp.sum(constants.weights * terms), metrics

        value, pull_back, metrics = jax.vjp(loss, softmax.logprobs(targets), entropy, has_aux=True)
        d_unembedding, d_hidden = _pulled_back(d_unembedding, softmax, entropy, targets,
                                               *pull_back(jnp.ones_like(value)), hidden, unembedding, temperature)
        return d_unembedding, (d_hidden, value, metrics)

    zeros = jnp.zeros_like(unembedding, dtype=_accumulator_dtype(hidden, unembedding))
    d_unembedding, (d_hidden, *outputs) = _scan_chunks(body, zeros, _trained(hidden, targets, constants), chunk)
    loss, metrics = jax.tree.map(lambda array: jnp.sum(array, axis=0), outputs)
    return (loss, metrics), (_joined(d_hidden, hidden.shape[0]), d_unembedding.astype(unembedding.dtype))


def _fused_backward(algorithm, temperature, chunk, gradients, cotangents):
    scale = cotangents[0]
    d_hidden, d_unembedding = ((scale * gradient).astype(gradient.dtype) for gradient in gradients)
    return d_hidden, d_unembedding, None, None


_fused.defvjp(_fused_forward, _fused_backward)


def _trained(hidden, targets, constants):
    """Rows at mask 0 replaced by zeros, so that they reach neither a sum nor a product."""
    return *clean(constants.mask[:, None], hidden), *clean(constants.mask, targets), constants
