"""From groups to rows: which prediction is trained by which token, and micro-batches that lose and repeat nothing."""

import dataclasses

import numpy as np
import pytest
from toys import completion, random_groups, sample

from rlzero.data import Problem
from rlzero.rollout.sampler import Group
from rlzero.training.batch import Rows, empty_rows, make_batch, micro_batches, row_bucket, width_bucket


def group(*samples, prompt_id="p"):
    return Group(Problem(prompt_id, "question", "1", (4, 5, 6)), samples)


def batch_of(groups, group_size, *, num_groups=None, mask_truncated=False, policy_version=0):
    return make_batch(groups, group_size, num_groups=len(groups) if num_groups is None else num_groups,
                      mask_truncated=mask_truncated, policy_version=policy_version)


def test_targets_mask_and_logprobs_line_up_with_predictions():
    """Prompt 4 5 6, completion 7 8 9: the state after 6 predicts the 7, and that is the first of three trained ones."""
    made = completion("p", 0, (7, 8, 9), prompt_ids=(4, 5, 6), logprobs=(-0.1, -0.2, -0.3))
    batch = batch_of([group(sample(made, 1.0))], 1)
    rows, pads = batch.rows, [0] * 11
    assert rows.tokens[0].tolist() == [4, 5, 6, 7, 8] + pads
    assert rows.targets[0].tolist() == [5, 6, 7, 8, 9] + pads
    assert rows.positions[0].tolist() == [0, 1, 2, 3, 4] + pads
    assert rows.segments[0].tolist() == [1, 1, 1, 1, 1] + pads
    assert rows.mask[0].astype(int).tolist() == rows.trained[0].astype(int).tolist() == [0, 0, 1, 1, 1] + pads
    np.testing.assert_array_equal(rows.rollout_logprobs[0], np.float32([0, 0, -0.1, -0.2, -0.3] + pads))
    assert batch.rewards.tolist() == [[1.0]] and batch.lengths.tolist() == [[3]]


@pytest.mark.parametrize("eos", [0, 2])
def test_a_stop_token_with_the_padding_id_is_trained_all_the_same(eos):
    """Row arrays are padded with 0; the mask comes from the record, so an EOS of 0 keeps its gradient."""
    made = completion("p", 0, (7, 8, 9, eos), prompt_ids=(0, 5))
    rows = batch_of([group(sample(made, 1.0))], 1).rows
    assert rows.mask[0, :7].astype(int).tolist() == [0, 1, 1, 1, 1, 0, 0]
    assert rows.targets[0, 4] == eos and rows.segments[0, :6].tolist() == [1, 1, 1, 1, 1, 0]


def test_prompts_of_one_token_and_empty_completions():
    groups = [group(sample(completion("p", 0, (7,), prompt_ids=(3,)), 1.0),
                    sample(completion("p", 1, (), prompt_ids=(3, 4)), 0.0))]
    batch = batch_of(groups, 2)
    assert batch.rows.mask.sum(axis=1).tolist() == [1, 0] and batch.lengths.tolist() == [[1, 0]]
    assert batch.rows.mask[0, 0] and batch.valid.all()


def test_groups_keep_their_places_when_samples_are_lost_or_cannot_be_used():
    first = group(sample(completion("p", 0, (7, 8)), 0.5), sample(completion("p", 2, (9,)), None))
    second = group(sample(completion("q", 0, (7,), reason="abort"), 1.0), sample(completion("q", 1, (7, 8, 9)), -1.0),
                   sample(completion("q", 2, (7,)), 0.25), prompt_id="q")
    batch = batch_of([first, second], 3, num_groups=3)
    assert batch.shape == (3, 3)
    assert batch.valid.tolist() == [[True, False, False], [False, True, True], [False] * 3]
    assert batch.lengths.tolist() == [[2, 0, 0], [0, 3, 1], [0] * 3]
    assert batch.rewards[batch.valid].tolist() == [0.5, -1.0, 0.25]
    assert batch.rows.trained.sum(axis=1).tolist() == batch.lengths.reshape(-1).tolist()
    assert batch.rows.mask.sum(axis=1).tolist() == [2, 1, 0, 1, 3, 1, 0, 0, 0]


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_masking_truncated_answers_takes_their_tokens_and_leaves_them_in_the_baseline(mask_truncated):
    samples = [sample(completion("p", 0, (7, 8), reason="length"), 0.0), sample(completion("p", 1, (7, 8, 9)), 1.0)]
    batch = batch_of([group(*samples)], 2, mask_truncated=mask_truncated)
    assert batch.lengths.tolist() == [[0 if mask_truncated else 2, 3]]
    assert batch.rows.trained.sum(axis=1).tolist() == [0 if mask_truncated else 2, 3]
    assert batch.valid.all() and batch.rows.mask.sum(axis=1).tolist() == [2, 3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused_unless_it_is_not_used(bad):
    with pytest.raises(ValueError, match=f"reward of p, sample 1, is {bad} .*expected a finite number, or"):
        batch_of([group(sample(completion("p", 1, (7,)), bad))], 1)
    batch_of([group(sample(completion("p", 1, (7,), reason="abort"), bad))], 1)


def test_fresh_is_what_the_current_policy_sampled():
    groups = [group(sample(completion("p", g, (7,), version=version), 1.0)) for g, version in enumerate((4, 3))]
    assert batch_of(groups, 1, policy_version=4).fresh.tolist() == [[True], [False]]


def test_no_groups_are_rows_of_padding():
    batch = batch_of([], 4, num_groups=2)
    assert batch.shape == (2, 4) and not batch.rows.mask.any() and not batch.valid.any()
    assert list(micro_batches(batch.rows, np.arange(8), 0)) == []


@pytest.mark.parametrize("width, bucket", [
    (1, 16), (16, 16), (17, 24), (24, 24), (25, 32), (33, 48), (49, 64), (96, 96), (97, 128), (1025, 1536)])
def test_widths(width, bucket):
    assert width_bucket(width) == bucket


def test_buckets_are_few_and_never_too_small():
    widths, rows = ([bucket(n) for n in range(1, 2001)] for bucket in (width_bucket, row_bucket))
    assert all(bucket >= n for n, bucket in enumerate(widths, 1)) and len(set(widths)) == 15
    assert all(bucket >= n for n, bucket in enumerate(rows, 1)) and len(set(rows)) == 9
    assert max(bucket / n for n, bucket in enumerate(widths, 1) if n > 16) < 1.5


@pytest.mark.parametrize("size", [0, 1, 5, 8, 12])
def test_micro_batches_hold_every_row_once_with_all_its_content(size):
    batch = batch_of(random_groups(5, 4, longest=40), 4, num_groups=6)
    rng = np.random.default_rng(0)
    for field in dataclasses.fields(Rows):
        array = getattr(batch.rows, field.name)
        if array.dtype == np.float32:
            array[:] = rng.normal(size=array.shape)
    indices, seen, widths = rng.permutation(24)[:15], [], []
    for placement, rows in micro_batches(batch.rows, indices, size):
        chosen = placement.responses
        seen += chosen.tolist()
        assert placement.rows.tolist() == list(range(len(chosen))) and not placement.starts.any()
        widths.append(rows.tokens.shape[1])
        longest = max(int(np.flatnonzero(batch.rows.mask[i])[-1]) + 1 for i in chosen)
        assert rows.tokens.shape == (row_bucket(len(chosen)), width_bucket(longest))
        assert len(chosen) <= (size or 15)
        assert not rows.weights[len(chosen):].any() and not rows.mask[len(chosen):].any()
        assert not rows.segments[len(chosen):].any()
        for field in dataclasses.fields(Rows):
            source, got = getattr(batch.rows, field.name), getattr(rows, field.name)
            assert got.dtype == source.dtype
            for row, length in enumerate(placement.lengths):
                np.testing.assert_array_equal(got[row, :length], source[chosen[row], :length])
                assert not got[row, length:].any()
        assert rows.mask.sum() == batch.rows.mask[chosen].sum()  # nothing sampled was cropped away
    sampled = [i for i in indices if batch.rows.mask[i].any()]
    assert sorted(seen) == sorted(sampled) and widths == sorted(widths)


def test_shapes_of_50_random_batches_are_few():
    """Up to 8 groups of 4 with up to 60 tokens, in micro-batches of 8: all have 8 rows and one of 6 widths."""
    rng, shapes = np.random.default_rng(0), set()
    for seed in range(50):
        groups = random_groups(int(rng.integers(1, 9)), 4, seed=seed, longest=int(rng.integers(1, 60)))
        rows = batch_of(groups, 4, num_groups=8).rows
        shapes |= {micro.tokens.shape for _, micro in micro_batches(rows, np.arange(32), 8)}
    assert shapes <= {(8, width) for width in (16, 24, 32, 48, 64, 96)}


@pytest.mark.parametrize("micro_batch_size", [0, 2])
def test_packed_rows_hold_every_response_once_as_a_segment(micro_batch_size):
    rows = batch_of(random_groups(5, 4, longest=40), 4, num_groups=6).rows
    rows.advantages[:] = np.arange(24)[:, None]
    seen = []
    for placement, packed in micro_batches(rows, np.arange(24), micro_batch_size, row_tokens=64, row_multiple=3):
        assert packed.tokens.shape[1] == 64 and packed.tokens.shape[0] % 3 == 0
        seen += placement.responses.tolist()
        target = np.full(rows.advantages.shape, -1.0)
        placement.copy_back(packed.advantages, target)
        for response, row, start, length in zip(*placement):
            part = slice(start, start + length)
            assert len(set(packed.segments[row, part])) == 1 and packed.segments[row, start] > 0
            assert packed.positions[row, part].tolist() == list(range(length))
            np.testing.assert_array_equal(packed.tokens[row, part], rows.tokens[response, :length])
            assert (target[response, :length] == response).all() and (target[response, length:] == -1).all()
        for row in range(len(packed.tokens)):
            starts = np.flatnonzero(np.diff(packed.segments[row], prepend=0) > 0)
            assert packed.segments[row, starts].tolist() == list(range(1, len(starts) + 1))
        assert np.count_nonzero(packed.segments) == placement.lengths.sum()
    assert sorted(seen) == [i for i in range(24) if rows.mask[i].any()]


def test_packing_fills_rows_better_than_one_response_each_and_refuses_what_does_not_fit():
    rows = batch_of(random_groups(32, 4, longest=40), 4, num_groups=32).rows
    filled = {tokens: np.concatenate([micro.segments.reshape(-1) > 0 for _, micro in micro_batches(
        rows, np.arange(128), 8, row_tokens=tokens)]).mean() for tokens in (0, 128)}
    print(filled)
    assert filled[128] > 0.8 > filled[0]
    with pytest.raises(ValueError, match="does not fit into a packed row of 8; raise --config.learner.pack_tokens"):
        list(micro_batches(rows, np.arange(32), 8, row_tokens=8))


def test_empty_rows_train_nothing():
    rows = empty_rows(3, 16)
    assert all(getattr(rows, field.name).shape[0] == 3 for field in dataclasses.fields(Rows))
    assert not rows.mask.any() and not rows.trained.any() and not rows.weights.any() and not rows.segments.any()
