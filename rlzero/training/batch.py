"""From groups of completions to arrays: rows, their trained tokens, and micro-batches of few shapes.

A row of a batch holds one prompt and one completion, right-padded; in a micro-batch several may share a row as segments
("packing"), each with positions of its own. Everything is aligned with predictions: entry t of a `[B, S]`
array belongs to `targets[:, t]`, the token after `tokens[:, t]`; so the kernels' `[B, T]` arrays are rows with T = S,
and `mask` is true exactly where the target is a sampled token (the stop token included, the prompt never). Lengths come
from the completions' records, not from searching for padding ids.

Since a loss is a weighted sum over tokens, rows may be sorted by length, cut into micro-batches and padded freely.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import flax.struct
import numpy as np

from rlzero.rollout.sampler import Group

_FEWEST_ROWS = 8


@flax.struct.dataclass
class Rows:
    """Arrays of B rows with S predictions each; what the jitted functions of the learner take.

    `weights` is the response weight of each token's response (`kernels.response_weights`), 0 for padding. `mask` marks
    sampled tokens, `trained` those that may enter a loss.
    """

    tokens: np.ndarray  # [B, S] int32
    targets: np.ndarray  # [B, S] int32
    positions: np.ndarray  # [B, S] int32
    segments: np.ndarray  # [B, S] int32, 0 = padding
    mask: np.ndarray  # [B, S] bool
    trained: np.ndarray  # [B, S] bool
    rollout_logprobs: np.ndarray  # [B, S] float32
    old_logprobs: np.ndarray  # [B, S] float32
    ref_logprobs: np.ndarray  # [B, S] float32
    advantages: np.ndarray  # [B, S] float32
    old_values: np.ndarray  # [B, S] float32
    returns: np.ndarray  # [B, S] float32
    weights: np.ndarray  # [B, S] float32


@dataclasses.dataclass
class Batch:
    """The rows of one rollout step and what is known of them per response, as `[P, G]` arrays.

    Row p·G + g is sample g of group p. A group that lost a sample keeps its place: the row is padding, `valid` false.
    """

    rows: Rows
    rewards: np.ndarray  # [P, G] float32
    valid: np.ndarray  # [P, G] bool: scored, may enter a baseline
    lengths: np.ndarray  # [P, G] int32: trained tokens, 0 for a response that is not trained
    fresh: np.ndarray  # [P, G] bool: sampled by the policy that is being trained now

    @property
    def shape(self) -> tuple[int, int]:
        return self.rewards.shape


def make_batch(groups: Sequence[Group], group_size: int, *, num_groups: int, mask_truncated: bool,
               policy_version: int) -> Batch:
    """Lays the samples of `groups` out as rows.

    Args:
      groups: groups to train on, at most `group_size` samples each.
      group_size: G.
      num_groups: P, at least the number of groups; the rest is padding, so that shapes do not follow the data.
      mask_truncated: give responses that were cut at the budget no trained token; they still count in the baseline.
      policy_version: version of the policy being trained.

    Raises:
      ValueError: a reward is not finite. What could not be scored has `correct` None instead, and is left out.
    """
    P, G = num_groups, group_size
    longest = max((len(s.completion.request.prompt_ids) + len(s.completion.completion_ids) - 1
                   for group in groups for s in group.samples), default=1)
    rows = empty_rows(P * G, width_bucket(longest))
    rewards, lengths = np.zeros((P, G), np.float32), np.zeros((P, G), np.int32)
    valid, fresh = np.zeros((P, G), bool), np.zeros((P, G), bool)
    for p, group in enumerate(groups):
        for g, sample in enumerate(group.samples):
            completion, trained = sample.completion, sample.usable
            if trained and not math.isfinite(sample.reward.total):
                raise ValueError(f"the reward of {group.problem.id}, sample {completion.request.sample_index}, is "
                                 f"{sample.reward.total} ({sample.reward.parts}); expected a finite number, or correct "
                                 "None for a sample that could not be scored")
            if mask_truncated and completion.finish_reason == "length":
                trained = False
            _fill_row(rows, p * G + g, completion, trained)
            rewards[p, g], valid[p, g] = sample.reward.total, sample.usable
            lengths[p, g] = len(completion.completion_ids) if trained else 0
            fresh[p, g] = completion.policy_version == policy_version
    return Batch(rows, rewards, valid, lengths, fresh)


class Placement(NamedTuple):
    """Where the responses of a micro-batch lie in its rows: arrays of n numbers each."""

    responses: np.ndarray  # row in the `Batch`
    rows: np.ndarray  # row in the micro-batch
    starts: np.ndarray  # first column there
    lengths: np.ndarray  # predictions

    def copy_back(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copies what was computed for the micro-batch to the rows of the batch."""
        for response, row, start, length in zip(*self):
            target[response, :length] = source[row, start:start + length]


def micro_batches(rows: Rows, indices: np.ndarray, micro_batch_size: int, *, row_tokens: int = 0,
                  row_multiple: int = 1) -> Iterator[tuple[Placement, Rows]]:
    """Cuts the responses numbered `indices` into micro-batches of few shapes.

    Without packing, a row holds one response, and short ones come together, each micro-batch cropped to its own width.
    With `row_tokens`, responses share rows of exactly that width as segments, first fit by falling length.

    Args:
      rows: all responses, one per row.
      indices: their numbers; those without a sampled token are left out.
      micro_batch_size: rows per micro-batch; 0 puts all rows into one.
      row_tokens: width of packed rows in tokens; 0 does not pack.
      row_multiple: the number of rows is a multiple of this, for rows that are split over devices.

    Yields:
      Where each response went, and the `Rows`, filled up with empty rows to a `row_bucket`.

    Raises:
      ValueError: a response is longer than `row_tokens`.
    """
    lengths = np.where(rows.mask.any(axis=1), rows.mask.shape[1] - rows.mask[:, ::-1].argmax(axis=1), 0)
    indices = np.asarray(indices)[lengths[indices] > 0]
    bins = _packed(indices, lengths, row_tokens) if row_tokens else _one_each(indices, lengths)
    size = micro_batch_size or max(len(bins), 1)
    for start in range(0, len(bins), size):
        placement = _placement(bins[start:start + size], lengths)
        width = row_tokens or width_bucket(int(placement.lengths.max()))
        count = row_bucket(len(bins[start:start + size]))
        yield placement, _filled(rows, placement, -(-count // row_multiple) * row_multiple, width)


def _one_each(indices, lengths):
    return [[index] for index in indices[np.argsort(lengths[indices], kind="stable")]]


def _packed(indices, lengths, row_tokens):
    """First-fit decreasing: lists of responses whose lengths add up to at most `row_tokens`."""
    bins, space = [], np.zeros(len(indices), np.int64)
    for index in indices[np.argsort(-lengths[indices], kind="stable")]:
        if lengths[index] > row_tokens:
            raise ValueError(f"a response of {lengths[index]} tokens with its prompt does not fit into a packed row of "
                             f"{row_tokens}; raise --config.learner.pack_tokens")
        fits = np.flatnonzero(space[:len(bins)] >= lengths[index])
        place = int(fits[0]) if fits.size else len(bins)
        if place == len(bins):
            bins.append([])
            space[place] = row_tokens
        bins[place].append(index)
        space[place] -= lengths[index]
    return bins


def _placement(bins, lengths):
    responses = np.array([index for members in bins for index in members])
    rows = np.array([row for row, members in enumerate(bins) for _ in members])
    starts = np.concatenate([np.cumsum([0, *lengths[members[:-1]]]) for members in bins])
    return Placement(responses, rows, starts.astype(np.int64), lengths[responses])


def _filled(rows, placement, count, width):
    """The micro-batch itself; segments of a row are numbered from 1."""
    filled = empty_rows(count, width)
    segments = np.zeros(count, np.int32)
    pairs = [(getattr(rows, field.name), getattr(filled, field.name)) for field in dataclasses.fields(Rows)]
    for response, row, start, length in zip(*placement):
        for source, target in pairs:
            target[row, start:start + length] = source[response, :length]
        segments[row] += 1
        filled.segments[row, start:start + length] = segments[row]
    return filled


def row_bucket(rows: int) -> int:
    """The smallest of 8, 16, 32, … that is at least `rows`."""
    return max(_FEWEST_ROWS, 1 << (rows - 1).bit_length())


def width_bucket(width: int) -> int:
    """The smallest of 16, 24, 32, 48, 64, 96, … (2^k and 1.5·2^k) that is at least `width`."""
    power = max(16, 1 << max(width - 1, 1).bit_length())
    return power * 3 // 4 if width <= power * 3 // 4 and power > 16 else power


def empty_rows(count: int, width: int) -> Rows:
    """`count` rows of padding: nothing sampled, nothing trained."""
    kinds = {"int": np.int32, "bool": bool, "float": np.float32}
    per_token = {"tokens": "int", "targets": "int", "positions": "int", "segments": "int", "mask": "bool",
                 "trained": "bool", "rollout_logprobs": "float", "old_logprobs": "float", "ref_logprobs": "float",
                 "advantages": "float", "old_values": "float", "returns": "float", "weights": "float"}
    return Rows(**{name: np.zeros((count, width), kinds[kind]) for name, kind in per_token.items()})


def _fill_row(rows, row, completion, trained):
    prompt, completed = completion.request.prompt_ids, completion.completion_ids
    ids = np.asarray(prompt + completed, np.int32)
    width, first = len(ids) - 1, len(prompt) - 1  # prediction `first` is that of the first sampled token
    rows.tokens[row, :width], rows.targets[row, :width] = ids[:-1], ids[1:]
    rows.positions[row, :width], rows.segments[row, :width] = np.arange(width), 1
    rows.mask[row, first:width] = True
    rows.trained[row, first:width] = trained
    rows.rollout_logprobs[row, first:width] = completion.rollout_logprobs
