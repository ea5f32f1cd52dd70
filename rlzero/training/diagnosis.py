"""What the numbers of a run warn about: known ways in which training goes wrong, in a sentence with the remedy.

Pure functions of finalized metrics. A warning is a hint and stops nothing; thresholds are set so that healthy runs of
the demo with all presets stay silent.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence

# Steps over which a quantity is averaged before it is judged.
_WINDOW = 3


def diagnose(history: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Looks at the metrics of the run so far.

    Args:
      history: finalized metrics of the steps, oldest first; the longer, the more a fall can be told.

    Returns:
      Kind of trouble -> sentence, for all that is to be seen now.
    """
    return dict(_troubles(history)) if history else {}


def new_warnings(history: Sequence[Mapping[str, float]], seen: set[str]) -> list[str]:
    """The sentences of kinds that were not seen before; adds them to `seen`, so that each is printed once a run."""
    fresh = {kind: text for kind, text in diagnose(history).items() if kind not in seen}
    seen.update(fresh)
    return list(fresh.values())


def _recent(history: Sequence[Mapping[str, float]], *names: str) -> float | None:
    """Mean over the last steps of a metric, or of the sum of several; None before there are enough of them."""
    window = [step for step in history[-_WINDOW:] if all(name in step for name in names)]
    return statistics.fmean(sum(step[name] for name in names) for step in window) if len(window) == _WINDOW else None


def _troubles(history: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    last = history[-1]
    accuracy = _recent(history, "reward/accuracy")
    solved = accuracy is not None and accuracy > 0.95
    yield from _accuracy_fall(history)
    if last.get("policy/gradient_norm") == 0:
        yield "zero_gradient", (
            "The gradient norm is exactly 0: this step taught nothing. All advantages were 0 (every group all right or "
            "all wrong), or every token was masked; look at group/mixed_fraction and rollout/truncated_fraction.")
    mixed = _recent(history, "group/mixed_fraction")
    if mixed == 0 and not solved:
        yield "no_contrast", (
            f"No group of the last {_WINDOW} steps held both right and wrong answers, so there is nothing to compare. "
            "Use easier or harder problems, a larger --config.group_size, or a higher --config.rollout.temperature.")
    identical = _recent(history, "group/identical_fraction")
    if identical is not None and identical > max(0.5, accuracy or 0.0):  # alike for more than being right alike
        yield "identical_groups", (
            f"In {identical:.0%} of the groups all completions are the same: the policy explores no more. Raise "
            "--config.rollout.temperature, or start again with a lower learning rate.")
    entropy = _recent(history, "policy/entropy")
    if entropy is not None and entropy < 0.01 and not solved:
        yield "entropy", (
            f"The policy's entropy is {entropy:.4f} nats per token: sampling has become deterministic before the task "
            "is solved. Start again with a lower learning rate or a higher --config.algorithm.clip_high (DAPO: 0.28).")
    clipped = _recent(history, "policy/clip_fraction_low", "policy/clip_fraction_high")
    if clipped is not None and clipped > 0.3:
        yield "clipping", (
            f"{clipped:.0%} of the tokens are clipped: the policy moves too far from the one that sampled. Lower the "
            "learning rate, --config.learner.mini_batches or --config.learner.epochs.")
    cut = _recent(history, "rollout/truncated_fraction")
    if cut is not None and cut > 0.5:
        yield "truncation", (
            f"{cut:.0%} of the completions are cut at the length limit. Raise --config.rollout.max_completion_length; "
            "if lengths keep growing without more right answers, lower the learning rate.")
    unscored = _recent(history, "reward/unscored_fraction")
    if unscored is not None and unscored > 0.05:
        yield "unscored", (
            f"{unscored:.0%} of the completions could not be scored and are left out of training; look at their errors "
            "in the rollouts.")
    gap = _recent(history, "mismatch/mean_abs_logprob")
    if gap is not None and gap > 0.1:
        yield "mismatch", (
            f"Rollout engine and trainer disagree about log-probabilities by {gap:.2f} on average. Check that both "
            "hold the same weights, dtype and temperature; --config.algorithm.importance_cap=2 corrects small gaps.")


def _accuracy_fall(history: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """Warns when the share of right answers is down to half of the best it has been over as many steps."""
    accuracy = [step["reward/accuracy"] for step in history if "reward/accuracy" in step]
    means = [statistics.fmean(accuracy[i:i + _WINDOW]) for i in range(len(accuracy) - _WINDOW + 1)]
    if means and max(means) >= 0.1 and means[-1] < 0.5 * max(means):
        yield "collapse", (
            f"The share of right answers fell from {max(means):.2f} to {means[-1]:.2f}: the policy has collapsed. Go "
            "back to an earlier checkpoint, and lower the learning rate or --config.learner.epochs.")
