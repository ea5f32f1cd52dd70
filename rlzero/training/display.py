"""What a run prints: one line a step, and tables."""

from collections.abc import Mapping, Sequence

from rlzero.training.config import Config

# Metric -> label and format. Columns that a run does not have keep their place, so that the lines stay aligned.
_COLUMNS = (
    (("reward/mean",), "reward", "6.3f"),
    (("reward/accuracy",), "right", "5.3f"),
    (("length/mean",), "tokens", "6.1f"),
    (("rollout/truncated_fraction",), "cut", "4.2f"),
    (("group/mixed_fraction",), "mixed", "4.2f"),
    (("policy/entropy",), "entropy", "5.3f"),
    (("policy/clip_fraction_low", "policy/clip_fraction_high"), "clip", "5.3f"),
    (("policy/gradient_norm",), "grad", "6.3f"),
    (("time/step_seconds",), "sec", "5.1f"),
)

# Counts that should be 0: shown only when they are not.
_TROUBLES = (("rollout/failed", "failed"), ("policy/skipped_updates", "updates skipped"),
             ("server/servers_lost", "servers lost"), ("server/given_up", "requests given up"),
             ("server/refused", "requests refused"), ("server/stale", "stale"))


def step_line(step: int, steps: int, values: Mapping[str, float]) -> str:
    """One line about a step.

    Args:
      step: its number, from 1.
      steps: how many there will be.
      values: finalized metrics.

    Returns:
      Aligned text of some 120 characters.
    """
    width = len(str(steps))
    words = [f"step {step:>{width}}/{steps}"]
    for names, label, form in _COLUMNS:
        found = [values[name] for name in names if name in values]
        blank = "-".rjust(int(form.split(".")[0]))
        words.append(f"{label} {format(sum(found), form) if found else blank}")
    words += [f"{label} {values[name]:g}" for name, label in _TROUBLES if values.get(name)]
    return "  ".join(words)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned text: the first column to the left, the others to the right; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if column == 0 else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append("  " + "   ".join(cells).rstrip())
    lines.insert(1, "  " + "-" * (sum(widths) + 3 * (len(widths) - 1)))
    return "\n".join(lines)


def closing_table(summary: Mapping[str, float], seconds: Mapping[str, float]) -> str:
    """What a finished run shows: held-out accuracy before and after, and where the time went.

    Args:
      summary: `accuracy_before`, `accuracy_after` (sampled) and `greedy_before`, `greedy_after`, as in summary.json.
      seconds: time by activity; what they add up to is the whole.
    """
    accuracy = [("held-out accuracy", "before", "after", "change")]
    for label, name in (("sampled", "accuracy"), ("greedy", "greedy")):
        before, after = summary[f"{name}_before"], summary[f"{name}_after"]
        accuracy.append((label, f"{before:.1%}", f"{after:.1%}", f"{100 * (after - before):+.1f} points"))
    whole = sum(seconds.values())
    time = [("time", "seconds", "share")]
    time += [(label, f"{value:.1f}", f"{value / whole:.0%}" if whole else "-") for label, value in seconds.items()]
    time.append(("together", f"{whole:.1f}", ""))
    return f"{table(accuracy)}\n\n{table(time)}"


def _micro_batches_row(responses: int, size: int, pack_tokens: int) -> tuple[str, int, str]:
    if pack_tokens:
        return ("tokens per packed row", pack_tokens, f"{size} rows a micro-batch" if size else "all rows at once")
    size = size or responses
    return ("micro-batches per update", responses // size, f"of {size} responses")


def batch_table(config: Config) -> str:
    """What the batch sizes of a config come to, as a table to print at the start."""
    responses = config.prompts_per_step * config.group_size
    per_update = responses // config.learner.mini_batches
    packed = config.learner.pack_tokens
    updates = config.learner.mini_batches * config.learner.epochs
    length = config.rollout.max_prompt_length + config.rollout.max_completion_length
    rows = [
        ("prompts per step", config.prompts_per_step, "groups trained on in a rollout step"),
        ("responses per step", responses, f"{config.prompts_per_step} prompts x {config.group_size} samples"),
        ("tokens per step, at most", responses * length, f"{responses} responses x ({config.rollout.max_prompt_length} "
         f"prompt + {config.rollout.max_completion_length} completion)"),
        ("optimizer updates per step", updates,
         f"mini-batches {config.learner.mini_batches} x epochs {config.learner.epochs}"),
        ("responses per update", per_update, f"{responses} responses / {config.learner.mini_batches} mini-batches"),
        _micro_batches_row(per_update, config.learner.micro_batch_size, packed),
        ("rollout steps", config.steps, f"{config.steps * updates} optimizer updates in all"),
    ]
    if config.algorithm.advantage == "gae" and config.critic.mini_batches:
        rows.insert(4, ("critic updates per step", config.critic.mini_batches * config.learner.epochs,
                        f"mini-batches {config.critic.mini_batches} x epochs {config.learner.epochs}"))
    if config.algorithm.dynamic_sampling:
        rounds, oversample = config.rollout.max_generation_rounds, config.rollout.oversample
        rows.insert(1, ("generation rounds, at most", rounds,
                        f"of {oversample:g} x as many prompts as groups are still wanted"))
    names = max(len(name) for name, _, _ in rows)
    numbers = max(len(f"{number:,}") for _, number, _ in rows)
    return "\n".join(f"  {name:<{names}}  {number:>{numbers},}   {note}" for name, number, note in rows)
