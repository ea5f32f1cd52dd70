"""Response weights: sums, empty responses, row counts, refusals."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlzero import kernels

LENGTHS = np.asarray([[4, 1, 0], [0, 0, 0], [2, 2, 3]])


def test_by_hand():
    weights = kernels.response_weights(LENGTHS, normalization="sequence_mean")
    np.testing.assert_allclose(weights, [[1 / 20, 1 / 5, 0], [0, 0, 0], [1 / 10, 1 / 10, 1 / 15]], rtol=1e-6)
    weights = kernels.response_weights(LENGTHS, normalization="token_mean")
    np.testing.assert_allclose(weights, (LENGTHS > 0) / 12, rtol=1e-6)
    weights = kernels.response_weights(LENGTHS, normalization="group_token_mean")
    np.testing.assert_allclose(weights, (LENGTHS > 0) / [[10], [1], [14]], rtol=1e-6)
    weights = kernels.response_weights(LENGTHS, normalization="constant", max_completion_length=8)
    np.testing.assert_allclose(weights, (LENGTHS > 0) / 72, rtol=1e-6)


@pytest.mark.parametrize("normalization", ["sequence_mean", "token_mean", "group_token_mean"])
def test_means_have_total_weight_one(normalization):
    weights = kernels.response_weights(LENGTHS, normalization=normalization)
    np.testing.assert_allclose(np.sum(weights * LENGTHS), 1, rtol=1e-6)


def test_num_responses_sets_the_row_count():
    weights = kernels.response_weights(LENGTHS, normalization="sequence_mean", num_responses=9)
    np.testing.assert_allclose(weights[0], [1 / 36, 1 / 9, 0], rtol=1e-6)
    weights = kernels.response_weights(LENGTHS, normalization="constant", max_completion_length=8, num_responses=5)
    np.testing.assert_allclose(weights[0, 0], 1 / 40, rtol=1e-6)


@pytest.mark.parametrize("normalization", ["sequence_mean", "token_mean", "group_token_mean", "constant"])
def test_an_empty_batch_has_weight_zero(normalization):
    weights = kernels.response_weights(np.zeros((2, 3), int), normalization=normalization, max_completion_length=8)
    assert not np.any(weights) and weights.dtype == jnp.float32


@pytest.mark.parametrize("normalization", ["sequence_mean", "token_mean", "group_token_mean", "constant"])
def test_weights_follow_their_response(normalization):
    rows, columns = [2, 0, 1], [1, 2, 0]
    options = {"normalization": normalization, "max_completion_length": 8}
    weights = kernels.response_weights(LENGTHS, **options)
    moved = kernels.response_weights(LENGTHS[rows][:, columns], **options)
    np.testing.assert_allclose(moved, weights[np.asarray(rows)][:, np.asarray(columns)], rtol=1e-6)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"normalization": "constant"}, "expected max_completion_length in tokens for normalization='constant'"),
        ({"normalization": "mean"}, "expected normalization to be one of sequence_mean"),
        ({"normalization": "constant", "max_completion_length": 0}, r"max_completion_length in \(0, inf\), got 0"),
        ({"normalization": "sequence_mean", "num_responses": -1}, r"num_responses in \(0, inf\), got -1"),
    ],
)
def test_bad_input_raises(options, message):
    with pytest.raises(ValueError, match=message):
        kernels.response_weights(LENGTHS, **options)


def test_lengths_of_a_flat_batch_are_refused():
    with pytest.raises(ValueError, match=r"expected lengths of shape \[P, G\], got \[6\]"):
        kernels.response_weights(np.ones(6), normalization="token_mean")
