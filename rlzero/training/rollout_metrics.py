"""What the rollouts of a step say: rewards, lengths, truncation, contrast, and where every response went.

Averages are over everything that was generated in the step, not over what dynamic sampling kept; otherwise accuracy
would sit near one half for ever.
"""

import numpy as np

from rlzero.rollout.engine import Pairs
from rlzero.rollout.sampler import Group, Rollout


def rollout_metrics(rollout: Rollout) -> Pairs:
    """Metrics of one step's sampling as (sum, weight) pairs."""
    samples = [sample for group in rollout.generated for sample in group.samples]
    metrics = {f"rollout/{fate}": (float(count), 1.0) for fate, count in rollout.account.items()}
    metrics["rollout/rounds"] = (float(rollout.rounds), 1.0)
    metrics |= _reward_metrics(samples) | _length_metrics(samples) | _group_metrics(rollout.generated)
    return metrics


def _reward_metrics(samples) -> Pairs:
    scored = [sample.reward for sample in samples if sample.usable]
    metrics = {"reward/mean": _mean(reward.total for reward in scored),
               "reward/accuracy": _mean(reward.correct for reward in scored),
               "reward/unscored_fraction": _mean(not sample.usable for sample in samples),
               "reward/unanswered_fraction": _mean(sample.answer is None for sample in samples)}
    for part in sorted({part for reward in scored for part in reward.parts}):
        metrics[f"reward/{part}"] = _mean(reward.parts[part] for reward in scored)
    return metrics


def _length_metrics(samples) -> Pairs:
    """Lengths in tokens, the stop token included; those of right, wrong and finished responses apart."""
    lengths = np.array([len(sample.completion.completion_ids) for sample in samples])
    cut, finished = (np.array([sample.completion.finish_reason == reason for sample in samples], bool)
                     for reason in ("length", "stop"))
    correct, wrong = (np.array([sample.usable and sample.reward.correct == verdict for sample in samples], bool)
                      for verdict in (True, False))
    metrics = {"length/mean": _mean(lengths), "length/correct_mean": _mean(lengths[correct]),
               "length/wrong_mean": _mean(lengths[wrong]), "length/terminated_mean": _mean(lengths[finished]),
               "rollout/truncated_fraction": _mean(cut),
               "rollout/unknown_ids_fraction": _mean(sample.unknown_ids > 0 for sample in samples),
               "rollout/tokens": (float(lengths.sum()), 1.0)}
    if lengths.size:
        metrics |= {"length/min": (float(lengths.min()), 1.0), "length/max": (float(lengths.max()), 1.0)}
    return metrics


def _group_metrics(groups: list[Group]) -> Pairs:
    identical = [len({sample.completion.completion_ids for sample in group.samples}) == 1 < len(group.samples)
                 for group in groups]
    return {"group/mixed_fraction": _mean(group.has_contrast for group in groups),
            "group/all_correct_fraction": _mean(0 < group.correct == group.usable for group in groups),
            "group/all_wrong_fraction": _mean(group.correct == 0 < group.usable for group in groups),
            "group/identical_fraction": _mean(identical)}


def _mean(values) -> tuple[float, float]:
    values = [float(value) for value in values]
    return sum(values), float(len(values))
