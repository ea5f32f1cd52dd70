r"""Reinforcement learning on verifiable rewards: the program, and the loop of the papers.

    python -m rlzero.train --config=configs/demo.py:dapo --workdir=/tmp/rlzero

Per rollout step: sample groups of completions with the current policy and grade them (dynamic sampling: until enough
groups have contrast), update the policy on them, hand the new weights to the engine. Everything an experiment can vary
is in `rlzero.training.config.Config`; this file strings the parts together.

Exit codes: 0 done; 2 a command line or config that cannot be followed; 3 too many non-finite updates in a row (their
batch is WORKDIR/non_finite_batch.npz); 4 a checkpoint or a record could not be written; 5 no rollout server that can be
trained from, after a save; 6 too many responses that cannot be graded, after a save; 7 done, but without a single
update; 128 + n stopped by signal n, after a save.
The same command again goes on from the newest complete checkpoint.
"""

import contextlib
import dataclasses
import errno
import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from absl import app, flags

from rlzero import rewards
from rlzero.algorithms import Algorithm
from rlzero.data.problems import Problem, PromptReport
from rlzero.data.prompts import PromptIterator
from rlzero.evaluation import evaluate
from rlzero.models import huggingface, transformer
from rlzero.models.sharding import make_mesh, parameter_shardings
from rlzero.rollout import stopping
from rlzero.rollout.engine import Engine, RolloutError, Sampling
from rlzero.rollout.handshake import HandshakeError
from rlzero.rollout.pipeline import Pipeline
from rlzero.rollout.sampler import Sampler, SamplerOptions
from rlzero.rollout.weights import WeightSyncError
from rlzero.training import flags as flags_lib
from rlzero.training.checkpoints import CheckpointError, Checkpoints
from rlzero.training.clock import Clock
from rlzero.training.config import Config, save_resolved
from rlzero.training.display import batch_table
from rlzero.training.engines import make_engine
from rlzero.training.grading import evaluation_score, make_grader, training_score
from rlzero.training.interruption import Interruption
from rlzero.training.learner import Learner, LearnerOptions, NonFiniteError
from rlzero.training.optimizer import optimizer_options
from rlzero.training.problem_sets import training_and_held_out
from rlzero.training.report import Report

_ROLLOUT_ERRORS = (RolloutError, HandshakeError, WeightSyncError)
_SAVED_BEFORE = (*_ROLLOUT_ERRORS, rewards.GraderError)


def train(config: Config, workdir: pathlib.Path, interruption: Interruption) -> None:
    """Trains until `config.steps` rollout steps are done or a signal asks to stop."""
    clock = Clock()
    with contextlib.ExitStack() as stack:
        with clock.phase("setup"), errors_in_a_line():
            run = make_run(config, workdir)
            stack.callback(run.close)
            checkpoints = stack.enter_context(Checkpoints(workdir, keep=config.checkpoint.keep))
            progress = restore(run, checkpoints)
            changes = save_resolved(config, workdir)
            run.left_out.save(workdir / "left_out.json")
        report = Report(config, workdir, progress.step)
        report.opening(f"{run.description}\nrollouts   {run.engine.description}", batch_table(config),
                       changes + checkpoints.skipped, progress.step)
        if progress.before is None:
            with clock.phase("evaluation"):
                progress.before = assess(run, report, progress.step)
        while progress.step < config.steps and not interruption:
            with clock.phase("rollout"), saving_first(run, report, checkpoints, progress, clock):
                rollout = run.pipeline.next(progress.step)
            with clock.phase("train"):
                result = run.learner.step(rollout.groups, progress.step, progress.policy_version)
                progress.policy_version += result.updated
            progress.step += 1
            report.step(progress.step, rollout, result, clock.lap() | run.engine.metrics(), run.prompts)
            with clock.phase("sync"), saving_first(run, report, checkpoints, progress, clock):
                run.pipeline.publish(run.learner.params, progress.policy_version)
            if due(progress.step, config.evaluation.every_steps) and progress.step < config.steps:
                with clock.phase("evaluation"), saving_first(run, report, checkpoints, progress, clock):
                    assess(run, report, progress.step)
            if due(progress.step, config.checkpoint.every_steps):
                with clock.phase("checkpoint"):
                    report.flush()
                    save(run, checkpoints, progress, clock)
        with clock.phase("checkpoint"):
            report.flush()
            save(run, checkpoints, progress, clock)
            checkpoints.wait()
        if progress.step >= config.steps:
            with clock.phase("evaluation"):
                after = assess(run, report, progress.step)
            report.closing(progress.step, progress.before, after, progress.seconds_with(clock))
    report.close()
    clock.close()
    if progress.step >= config.steps and not progress.policy_version:
        raise NothingLearnedError(config.steps)


class NothingLearnedError(RuntimeError):
    """A run came to its end and made no update."""

    def __init__(self, steps: int):
        super().__init__(
            f"no update was made in {steps} steps, because no group had an advantage: the answers to each prompt were "
            "all right or all wrong. Look at them in WORKDIR/rollouts; likely causes are a --config.reward.mode or "
            "--config.data.template that does not fit, or problems that are far too hard or too easy")


@contextlib.contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Ends the program with the sentence of an error and exit code 2: for what only shows once devices are at work."""
    try:
        yield
    except RolloutError:  # an OSError with an exit code of its own
        raise
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


@contextlib.contextmanager
def saving_first(run: "Run", report: Report, checkpoints: Checkpoints, progress: "Progress",
                 clock: Clock) -> Iterator[None]:
    """Where rollouts fail for good, saves what was trained before the error goes on its way."""
    try:
        yield
    except _SAVED_BEFORE:
        report.flush()
        save(run, checkpoints, progress, clock)
        checkpoints.wait()
        raise


@dataclasses.dataclass
class Run:
    """The parts of a run, made from its config."""

    config: Config
    engine: Engine
    grader: rewards.Grader
    prompts: PromptIterator
    pipeline: Pipeline
    learner: Learner
    held_out: list[Problem]
    left_out: PromptReport
    sampling: Sampling  # of training
    tokenizer: Any
    description: str

    def close(self) -> None:
        """Ends threads and connections; what is being sampled is dropped."""
        self.engine.close()
        self.pipeline.close()
        self.grader.close()


@dataclasses.dataclass
class Progress:
    """How far a run is; what a checkpoint holds besides arrays, prompts and carried groups."""

    step: int = 0
    policy_version: int = 0
    before: dict[str, float] | None = None  # held-out accuracy of the untrained model
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # by phase, of earlier processes

    def seconds_with(self, clock: Clock) -> dict[str, float]:
        """Seconds by phase, this process included."""
        phases = self.seconds.keys() | clock.total.keys()
        return {phase: self.seconds.get(phase, 0.0) + clock.total.get(phase, 0.0) for phase in sorted(phases)}


def make_run(config: Config, workdir: pathlib.Path) -> Run:
    """Loads the model, prepares the problems, and makes engine, sampler and learner."""
    algorithm = config.algorithm.freeze()
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    model = huggingface.read_config(config.model.path)
    compute_dtype = resolved_dtype(config.model.compute_dtype, jax.default_backend())
    tokenizer = huggingface.load_tokenizer(config.model.path)
    if config.model.mask_unused_ids:
        model = huggingface.without_unused_ids(model, tokenizer)
    sampling = Sampling(config.rollout.max_completion_length, huggingface.stop_token_ids(config.model.path, tokenizer),
                        config.rollout.temperature,
                        stop_text=stopping.stop_text(config.rollout.stop_text, tokenizer, model.vocab_size))
    training, held_out, kept = training_and_held_out(config, tokenizer)
    specs = transformer.parameter_specs(model)
    params, _ = huggingface.load(config.model.path, config.model.dtype, parameter_shardings(specs, mesh))
    prompts = PromptIterator(training, seed=config.seed, host=jax.process_index(), hosts=jax.process_count())
    engine = make_engine(config, model, training + held_out, dtype=compute_dtype, mesh=mesh, workdir=workdir)
    grader = make_grader(config.reward)
    score = training_score(config.reward, config.data.template, algorithm, grader, tokenizer,
                           config.rollout.max_completion_length)
    sampler = Sampler(engine, prompts, score, sampling, sampler_options(config, algorithm), run_seed=config.seed)
    pipeline = Pipeline(sampler, engine, prompts, steps=config.steps, max_staleness=config.rollout.max_staleness,
                        on_update=config.rollout.on_update)
    learner = Learner(model, algorithm, learner_options(config, algorithm, compute_dtype), params, mesh=mesh)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    description = (
        f"model      {config.model.path}: {size:,} parameters, vocabulary {model.vocab_size}"
        f"{f' of which {model.sampled_vocab_size} are sampled' if model.sampled_vocab_size else ''}, stop tokens "
        f"{stopping.described(sampling.stop_ids, sampling.stop_text, tokenizer)}\n"
        f"problems   {config.data.files or config.data.task}: {kept}; {len(held_out)} held out\n"
        f"algorithm  {algorithm.name}\n"
        f"devices    {jax.default_backend()}: data {mesh.shape['data']}, fsdp {mesh.shape['fsdp']}, tensor "
        f"{mesh.shape['tensor']}; weights {config.model.dtype}, computing in {compute_dtype}")
    return Run(config, engine, grader, prompts, pipeline, learner, held_out, kept, sampling, tokenizer, description)


def resolved_dtype(name: str, platform: str) -> str:
    """The compute dtype: "auto" is bfloat16 on accelerators and float32 on a CPU, where bfloat16 is not faster."""
    if name != "auto":
        return name
    return "float32" if platform == "cpu" else "bfloat16"


def sampler_options(config: Config, algorithm: Algorithm) -> SamplerOptions:
    rollout = config.rollout
    return SamplerOptions(
        group_size=config.group_size, groups_per_step=config.prompts_per_step, dynamic=algorithm.dynamic_sampling,
        max_rounds=rollout.max_generation_rounds, oversample=rollout.oversample, on_exhausted=rollout.on_exhausted,
        max_carry_age=rollout.max_carry_age, min_usable=1 if algorithm.needs_critic else 2, on_lost=rollout.on_lost)


def learner_options(config: Config, algorithm: Algorithm, compute_dtype: str) -> LearnerOptions:
    learner = config.learner
    critic_mini_batches = config.critic.mini_batches or learner.mini_batches
    optimizer = functools.partial(optimizer_options, steps=config.steps)
    return LearnerOptions(
        policy=optimizer(config.optimizer, updates_per_step=learner.mini_batches * learner.epochs),
        critic=optimizer(config.critic, updates_per_step=critic_mini_batches * learner.epochs)
        if algorithm.needs_critic else None,
        groups_per_step=config.prompts_per_step, group_size=config.group_size,
        max_completion_length=config.rollout.max_completion_length, temperature=config.rollout.temperature,
        mini_batches=learner.mini_batches, critic_mini_batches=critic_mini_batches, epochs=learner.epochs,
        micro_batch_size=learner.micro_batch_size, pack_tokens=learner.pack_tokens, dtype=compute_dtype,
        remat=config.model.remat, attention=config.model.attention,
        critic_warmup_steps=config.critic.policy_frozen_steps,
        reference_refresh_steps=learner.reference_refresh_steps, max_bad_updates=learner.max_bad_updates,
        seed=config.seed)


def assess(run: Run, report: Report, step: int) -> dict[str, float]:
    """Accuracy on the held-out problems, sampled and greedy, as evaluation metrics; reported with every sample."""
    section, budget = run.config.evaluation, run.config.rollout.max_completion_length
    score = evaluation_score(run.config.reward, run.config.data.template, run.grader, run.tokenizer, budget)
    sampled = evaluate(run.engine, run.held_out, score,
                       dataclasses.replace(run.sampling, temperature=section.temperature, top_p=section.top_p),
                       samples_per_problem=section.samples_per_problem, seed=run.config.seed)
    greedy = evaluate(run.engine, run.held_out, score, dataclasses.replace(run.sampling, temperature=0.0),
                      samples_per_problem=1, seed=run.config.seed)
    values = {"accuracy": sampled.accuracy, "standard_error": sampled.standard_error, "greedy": greedy.accuracy,
              f"pass_at_{section.samples_per_problem}": sampled.pass_at(section.samples_per_problem),
              "length": sampled.mean_length, "truncated_fraction": sampled.truncated_fraction}
    report.evaluation(step, values, {"sampled": sampled, "greedy": greedy})
    return values


def restore(run: Run, checkpoints: Checkpoints) -> Progress:
    """Goes on from the newest complete checkpoint, or from the beginning."""
    restored = checkpoints.restore(run.learner.get_state())
    progress = Progress() if restored is None else Progress(**restored.host["progress"])
    if restored is not None:
        run.learner.set_state(restored.arrays)
        run.pipeline.set_state(restored.host)
    run.pipeline.publish(run.learner.params, progress.policy_version)
    return progress


def save(run: Run, checkpoints: Checkpoints, progress: Progress, clock: Clock) -> None:
    """Starts writing a checkpoint of this step, unless there is one."""
    host = {"progress": dataclasses.asdict(progress) | {"seconds": progress.seconds_with(clock)},
            **run.pipeline.get_state()}
    checkpoints.save(progress.step, run.learner.get_state(), host)


def due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def main(config: Config) -> None:
    workdir = pathlib.Path(flags.FLAGS.workdir).absolute()
    with Interruption() as interruption:
        try:
            train(config, workdir, interruption)
        except NonFiniteError as error:
            path = workdir / "non_finite_batch.npz"
            np.savez(path, **dataclasses.asdict(error.rows))
            print(f"error: {error}. The batch is in {path}", file=sys.stderr)
            sys.exit(3)
        except CheckpointError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(4)
        except _SAVED_BEFORE as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(5 if isinstance(error, _ROLLOUT_ERRORS) else 6)
        except NothingLearnedError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(7)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            print(f"error: {error}. Make room; the same command goes on from the newest checkpoint", file=sys.stderr)
            sys.exit(4)
    sys.exit(interruption.exit_code)


if __name__ == "__main__":
    flags_lib.define_flags()
    app.run(main, flags_parser=flags_lib.parse)
