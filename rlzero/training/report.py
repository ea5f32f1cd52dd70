"""What a training run tells: lines and tables on the screen, metrics and rollouts on disk.

A step's metrics are held back until the next one has been started, so that reading them never makes the device wait.
"""

import json
import pathlib
from collections.abc import Mapping

import numpy as np
import tqdm

from rlzero.data.prompts import PromptIterator
from rlzero.evaluation import Evaluation
from rlzero.evaluation.tables import records
from rlzero.rollout.sampler import Group, Rollout
from rlzero.training import diagnosis, display, files
from rlzero.training.config import Config
from rlzero.training.learner import StepResult
from rlzero.training.metrics import MetricsWriter, Pairs, RolloutWriter, finalize
from rlzero.training.rollout_metrics import rollout_metrics

_HISTORY = 50  # steps that warnings look back on


class Report:
    """Shows and stores the course of a run. Make it once per process, and close it."""

    def __init__(self, config: Config, workdir: pathlib.Path, start_step: int):
        self._config, self._workdir = config, workdir
        self._metrics = MetricsWriter(workdir, start_step)
        # An evaluation that this process makes again replaces the earlier one: before the first step, after the last.
        repeated = start_step == 0 or start_step >= config.steps
        self._evaluations = MetricsWriter(workdir, start_step - repeated, name="evaluation")
        self._rollouts = RolloutWriter(workdir, start_step)
        self._evaluated = RolloutWriter(workdir, start_step - repeated, folder="evaluations", fields=())
        self._bar = tqdm.tqdm(total=config.steps, initial=start_step, unit="step", disable=None, leave=False)
        self._pending: tuple[int, Rollout, StepResult, Pairs] | None = None
        self._history: list[dict[str, float]] = []
        self._warned: set[str] = set()

    def opening(self, description: str, batch_table: str, changes: list[str], start_step: int) -> None:
        """What the run is made of, before it starts."""
        self._print(f"{description}\nworkdir    {self._workdir}\n\n{batch_table}\n")
        for change in changes:
            self._print(f"changed since the last run here: {change}")
        if start_step:
            self._print(f"going on after step {start_step} of {self._config.steps}")

    def evaluation(self, step: int, values: Mapping[str, float], evaluations: Mapping[str, Evaluation]) -> None:
        """Held-out accuracy at a step, and the samples that it was measured on, by how they were drawn."""
        self.flush()
        if self._config.rollout.keep_rollouts:
            self._evaluated.write(step, records(evaluations))
        self._evaluations.write(step, {f"evaluation/{name}": value for name, value in values.items()})
        self._print(f"held-out accuracy at step {step}: sampled {values['accuracy']:.1%} "
                    f"± {values['standard_error']:.1%}, greedy {values['greedy']:.1%}")

    def step(self, step: int, rollout: Rollout, result: StepResult, times: Pairs, prompts: PromptIterator) -> None:
        """Takes what a step produced, and shows the one before it; `times` holds the engine's metrics as well."""
        self.flush()
        waiting = times["time/rollout_seconds"][0]
        seconds = waiting + times["time/train_seconds"][0] + times.get("time/sync_seconds", (0.0, 1.0))[0]
        host = rollout_metrics(rollout) | times | {
            "time/step_seconds": (seconds, 1.0), "time/waiting_fraction": (waiting, seconds),
            "data/prompts": (float(prompts.drawn), 1.0), "data/epochs": (prompts.epochs, 1.0)}
        self._pending = (step, rollout, result, host)

    def flush(self) -> None:
        """Writes and shows the step that was held back."""
        if self._pending is None:
            return
        step, rollout, result, host = self._pending
        self._pending = None
        values = finalize(host | result.metrics.totals)
        during = "time/step_seconds" if self._config.rollout.max_staleness else "time/rollout_seconds"
        values["rollout/tokens_per_second"] = values["rollout/tokens"] / max(values[during], 1e-9)
        self._metrics.write(step, values)
        if self._config.rollout.keep_rollouts:
            self._rollouts.write(step, _records(rollout, result.advantages))
        self._print(display.step_line(step, self._config.steps, values))
        self._bar.update(1)
        every = self._config.log.transcripts_every_steps
        if every and (step == 1 or step % every == 0):
            self._transcripts(step, rollout)
        self._history = self._history[-_HISTORY:] + [values]
        for warning in diagnosis.new_warnings(self._history, self._warned):
            self._print(f"warning: {warning}")

    def closing(self, step: int, before: Mapping[str, float], after: Mapping[str, float],
                seconds: Mapping[str, float]) -> None:
        """The table at the end, and summary.json."""
        summary = {f"{name}_{when}": values[name] for when, values in (("before", before), ("after", after))
                   for name in ("accuracy", "standard_error", "greedy", "length")}
        summary |= {"steps": step, "seconds": sum(seconds.values()), "algorithm": self._config.algorithm.name,
                    "seconds_by_phase": dict(seconds)}
        files.write_atomically(self._workdir / "summary.json", json.dumps(summary, indent=2) + "\n")
        self._bar.close()
        self._print("\n" + display.closing_table(summary, seconds))
        self._print("\nsummary.json, metrics.jsonl, rollouts/, evaluations/, checkpoints/ and tensorboard/ are in "
                    f"{self._workdir}")

    def close(self) -> None:
        self.flush()
        self._bar.close()
        self._metrics.close()
        self._evaluations.close()

    def _transcripts(self, step, rollout):
        candidates = [group for group in rollout.generated if group.has_contrast] or rollout.generated
        order = np.random.default_rng(step).permutation(len(candidates))
        lines = []
        for group in (candidates[i] for i in order[:self._config.log.transcripts]):
            best = max(group.samples, key=lambda sample: bool(sample.reward.correct))
            worst = min(group.samples, key=lambda sample: bool(sample.reward.correct))
            for sample in (best, worst) if worst is not best else (best,):
                mark = "right" if sample.reward.correct else "wrong"
                lines.append(f"    {mark}  {group.problem.question}  {sample.text}".replace("\n", "\n           "))
        self._print("\n".join(lines))
        self._metrics.write_text(step, "transcripts", "\n".join(lines))

    def _print(self, text):
        tqdm.tqdm.write(text)


def _records(rollout: Rollout, advantages: np.ndarray):
    """One JSON-able record per generated sample; those not trained in this step have no advantage."""
    position = {id(group): p for p, group in enumerate(rollout.groups)}
    carried = {id(group) for group in rollout.carried}
    for group in rollout.generated:
        trained = position.get(id(group))
        for g, sample in enumerate(group.samples):
            yield sample.record(group.problem) | {
                "rewards": sample.reward.parts, "reward": sample.reward.total,
                "completion_tokens": len(sample.completion.completion_ids), "fate": _fate(group, trained, carried),
                "advantage": None if trained is None else float(advantages[trained, g]),
                "policy_version": sample.completion.policy_version}


def _fate(group: Group, trained: int | None, carried: set[int]) -> str:
    """What became of a group; a carried one is trained in a later step or grows too old."""
    if trained is not None:
        return "trained"
    if id(group) in carried:
        return "carried"
    return "filtered" if group.usable > 1 else "failed"
