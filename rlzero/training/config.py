"""What an experiment is: every setting of a training run, with its unit or its reason.

A config file is a Python program with `get_config()` that returns a `Config`; any field can then be set on the command
line by its path, `--config.optimizer.learning_rate=3e-6`. The dataclasses are mutable until the flags are parsed; then
`validate` looks at the whole once, before any device work, and what the kernels see (`Algorithm`) is frozen.

Limits of a single field stand beside it; what fields demand of each other is in `validation.py`.
"""

# Annotations stay real types here (no `from __future__ import annotations`): the flag parser reads them.

import dataclasses
import difflib
import json
import os
import pathlib
import types
import typing
from typing import Any

from rlzero import algorithms
from rlzero.models import attention
from rlzero.training import files

# A number, or None where the feature is off; on the command line `none`.
OptionalFloat = typing.NewType("OptionalFloat", float)


def setting(default: Any, within: str = "", choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field with the limits that `validation` checks.

    Args:
      default: value of the field; it also serves as the valid example in error messages.
      within: interval of a number as in mathematics, such as "(0, 1]".
      choices: the texts it may be.

    Returns:
      What stands to the right of the `=` in the class body.
    """
    return dataclasses.field(default=default, metadata={"within": within, "choices": choices})


def _flag_type(annotation: Any) -> Any:
    """The type under which the command line offers a field of `Algorithm`."""
    if typing.get_origin(annotation) is typing.Literal:
        return type(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return OptionalFloat
    return annotation


def _freeze(self) -> algorithms.Algorithm:
    """The frozen, hashable `Algorithm` with these values; it checks them."""
    return algorithms.Algorithm(**dataclasses.asdict(self))


# The columns of the algorithm table as mutable settings. Made from `Algorithm`, so there is one declaration of them.
AlgorithmConfig = dataclasses.make_dataclass(
    "AlgorithmConfig",
    [(field.name, _flag_type(annotation), setting(field.default, algorithms.INTERVALS.get(field.name, ""),
                                                  algorithms.CHOICES.get(field.name, ())))
     for field, annotation in zip(dataclasses.fields(algorithms.Algorithm),
                                  typing.get_type_hints(algorithms.Algorithm).values(), strict=True)],
    namespace={"freeze": _freeze, "__doc__": "The fields of `rlzero.algorithms.Algorithm`, still mutable.",
               "__module__": __name__})


def algorithm_config(name: str, **overrides: Any) -> AlgorithmConfig:
    """The settings of a preset: "ppo", "grpo", "dr_grpo", "rloo" or "dapo", with single columns changed."""
    return AlgorithmConfig(**dataclasses.asdict(algorithms.get(name, **overrides)))


@dataclasses.dataclass
class ModelSection:
    """Which model is trained."""

    # "demo" is the small model inside the package; anything else is a Hugging Face model directory.
    path: str = "demo"
    # A name in `rlzero.models.shapes`, for planning without the model at hand; training reads the directory's own.
    shape: str = ""
    # Of the weights and the optimizer's moments. Losses and sums of gradients are float32 in any case.
    dtype: str = setting("float32", choices=("float32", "bfloat16"))
    # Of activations, matrix products and the rollout's cache; auto is bfloat16 on accelerators and float32 on a CPU.
    compute_dtype: str = setting("auto", choices=("auto", "float32", "bfloat16"))
    # Keep no activations of a layer but recompute them in the backward pass: less memory for a third more compute.
    remat: bool = False
    # See `rlzero.models.attention`: xla holds all scores of a row, blockwise never does.
    attention: str = setting("xla", choices=attention.IMPLEMENTATIONS)


@dataclasses.dataclass
class DataSection:
    """Which problems it learns from."""

    # Name of a generated task.
    task: str = "arithmetic"
    # Seed of the generator. Apart from `seed`, so that runs with several seeds are compared on one set of problems.
    task_seed: int = setting(0, "[0, inf)")


@dataclasses.dataclass
class RolloutSection:
    """How completions are sampled. Lengths are in tokens."""

    engine: str = setting("local", choices=("local",))
    # Divisor of the logits; the trainer scores with the same one.
    temperature: float = setting(1.0, "(0, inf)")
    # Nucleus and top-k sampling draw from another distribution than the one that is trained, so a training run takes
    # only the neutral values; evaluation has its own.
    top_p: float = setting(1.0, "(0, 1]")
    top_k: int = setting(0, "[0, inf)")
    # Longer prompts are left out of the data.
    max_prompt_length: int = setting(64, "[1, inf)")
    # The generation budget: the L of Dr. GRPO's divisor, and where a completion is cut.
    max_completion_length: int = setting(64, "[1, inf)")
    # A response also ends with any token that contains this text, such as a newline; empty for the model's own ends.
    stop_text: str = ""
    # Dynamic sampling: rounds of generation a step may take to find groups with a signal.
    max_generation_rounds: int = setting(5, "[1, inf)")
    # Dynamic sampling: prompts drawn per group still wanted. More waste less time in small last rounds.
    oversample: float = setting(1.0, "[1, 16]")
    # Dynamic sampling: what a step does when its rounds are used up and groups are missing.
    on_exhausted: str = setting("train_partial", choices=("train_partial", "skip", "error"))
    # Dynamic sampling: policy versions after which a surplus group carried over is too old to train on.
    max_carry_age: int = setting(1, "[0, inf)")
    # Write every completion to WORKDIR/rollouts.
    keep_rollouts: bool = True


@dataclasses.dataclass
class RewardSection:
    """What an answer is worth."""

    correct: float = 1.0
    # DAPO's paper uses -1 here.
    wrong: float = 0.0


@dataclasses.dataclass
class OptimizerSection:
    """AdamW of the policy, with its schedule."""

    # The peak, reached at the end of the warm-up.
    learning_rate: float = setting(1e-6, "(0, 1]")
    # Rollout steps of linear warm-up.
    warmup_steps: int = setting(0, "[0, inf)")
    # After the warm-up.
    schedule: str = setting("constant", choices=("constant", "cosine"))
    # Share of the peak at which a cosine schedule ends.
    end_fraction: float = setting(0.1, "[0, 1]")
    beta1: float = setting(0.9, "[0, 1)")
    beta2: float = setting(0.999, "[0, 1)")
    eps: float = setting(1e-8, "(0, inf)")
    weight_decay: float = setting(0.0, "[0, inf)")
    # Global norm to which a gradient is scaled down.
    max_grad_norm: float = setting(1.0, "(0, inf)")


@dataclasses.dataclass
class CriticSection(OptimizerSection):
    """AdamW of the critic (algorithms with `advantage="gae"` only)."""

    learning_rate: float = setting(1e-5, "(0, 1]")
    # First rollout steps in which only the critic learns, so that the policy never follows an untrained one.
    policy_frozen_steps: int = setting(0, "[0, inf)")


@dataclasses.dataclass
class LearnerSection:
    """How a rollout step becomes optimizer updates."""

    # Optimizer updates per epoch. Groups stay whole: it divides `prompts_per_step`.
    mini_batches: int = setting(1, "[1, inf)")
    # Passes over the completions of one rollout step.
    epochs: int = setting(1, "[1, inf)")
    # Rows in memory at a time; 0 takes the whole mini-batch. Changes memory and speed, never the gradient.
    micro_batch_size: int = setting(0, "[0, inf)")
    # Width in tokens of rows that several completions share; 0 gives each completion a row of its own.
    pack_tokens: int = setting(0, "[0, inf)")
    # Rollout steps after which the reference policy becomes a copy of the current one; 0 keeps the first.
    reference_refresh_steps: int = setting(0, "[0, inf)")
    # Non-finite updates in a row (each is skipped and counted) after which the run stops.
    max_bad_updates: int = setting(5, "[1, inf)")


@dataclasses.dataclass
class MeshSection:
    """How many devices share what; see `rlzero.models.sharding`."""

    # Copies of the model, each with rows of its own; 0 takes all devices that the other two leave.
    data: int = setting(0, "[0, inf)")
    # Devices over which parameters and optimizer are sliced; they take rows too.
    fsdp: int = setting(1, "[1, inf)")
    # Devices over which heads, feed-forward width and vocabulary are split.
    tensor: int = setting(1, "[1, inf)")


@dataclasses.dataclass
class CheckpointSection:
    """When the state is saved. The last step always is."""

    # Rollout steps between saves; 0 saves the last step only.
    every_steps: int = setting(20, "[0, inf)")
    # Newest checkpoints that stay on disk.
    keep: int = setting(2, "[1, inf)")


@dataclasses.dataclass
class EvaluationSection:
    """Held-out problems, before and after training and every so often."""

    # Rollout steps between evaluations; 0 evaluates before and after only.
    every_steps: int = setting(0, "[0, inf)")
    problems: int = setting(256, "[1, inf)")
    samples_per_problem: int = setting(4, "[1, inf)")
    # 0 is greedy.
    temperature: float = setting(1.0, "[0, inf)")
    top_p: float = setting(1.0, "(0, 1]")


@dataclasses.dataclass
class LogSection:
    """What is printed besides one line a step."""

    # Rollout steps between looks at sampled completions; 0 shows none.
    transcripts_every_steps: int = setting(10, "[0, inf)")
    # Completions shown each time.
    transcripts: int = setting(2, "[1, inf)")


@dataclasses.dataclass
class Config:
    """A training run."""

    # Root of every random stream of the run: order of prompts, sampled tokens, the critic's head.
    seed: int = setting(0, "[0, 4294967296)")
    # Rollout steps: sample, grade, update.
    steps: int = setting(100, "[1, inf)")
    # Prompts (groups) trained on in a rollout step, over all devices.
    prompts_per_step: int = setting(64, "[1, inf)")
    # Completions per prompt.
    group_size: int = setting(8, "[1, inf)")
    algorithm: AlgorithmConfig = dataclasses.field(default_factory=lambda: algorithm_config("grpo"))
    model: ModelSection = dataclasses.field(default_factory=ModelSection)
    data: DataSection = dataclasses.field(default_factory=DataSection)
    rollout: RolloutSection = dataclasses.field(default_factory=RolloutSection)
    reward: RewardSection = dataclasses.field(default_factory=RewardSection)
    optimizer: OptimizerSection = dataclasses.field(default_factory=OptimizerSection)
    critic: CriticSection = dataclasses.field(default_factory=CriticSection)
    learner: LearnerSection = dataclasses.field(default_factory=LearnerSection)
    mesh: MeshSection = dataclasses.field(default_factory=MeshSection)
    checkpoint: CheckpointSection = dataclasses.field(default_factory=CheckpointSection)
    evaluation: EvaluationSection = dataclasses.field(default_factory=EvaluationSection)
    log: LogSection = dataclasses.field(default_factory=LogSection)


def leaves(config: Any, prefix: str = "") -> dict[str, tuple[dataclasses.Field, Any]]:
    """The single settings of a config: dotted path -> (dataclass field, value), in the order of declaration."""
    found = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(field.type):
            found.update(leaves(value, f"{prefix}{field.name}."))
        else:
            found[prefix + field.name] = (field, value)
    return found


def to_dict(config: Any) -> dict[str, Any]:
    """Nested dictionaries with the values of a config; what `config.json` holds."""
    return dataclasses.asdict(config)


def from_dict(data: dict[str, Any], cls: type = Config, prefix: str = "") -> Any:
    """The config that `to_dict` was given; fields that are missing keep their defaults.

    Raises:
      ValueError: a name that is no field, with the nearest one; or a section that is no dictionary.
    """
    if not isinstance(data, dict):
        raise ValueError(f"expected a dictionary of settings for {prefix or 'the config'}, got {data!r}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in data.keys() - fields.keys():
        near = difflib.get_close_matches(name, fields, n=1) or list(fields)
        raise ValueError(f"there is no setting {prefix}{name}; did you mean {', '.join(prefix + n for n in near)}?")
    values = {name: from_dict(value, fields[name].type, f"{prefix}{name}.")
              if dataclasses.is_dataclass(fields[name].type) else value for name, value in data.items()}
    return cls(**values)


def load(path: str | os.PathLike) -> Config:
    """Reads the `config.json` of a run."""
    return from_dict(json.loads(pathlib.Path(path).read_text(encoding="utf-8")))


def flag_lines(config: Any) -> list[str]:
    """Every setting as a flag, one a line; texts that a flagfile cannot hold are left to the config file."""
    return [f"--config.{name}={value}" for name, (_, value) in leaves(config).items()
            if str(value) == str(value).strip() and "\n" not in str(value)]


def save_resolved(config: Config, workdir: str | os.PathLike) -> list[str]:
    """Writes what this run really uses to `config.json`, and to `flags.txt` as flags; both can be passed back.

    `--config=WORKDIR/config.json` and `--flagfile=WORKDIR/flags.txt` give the same config again; flags that follow
    override single settings.

    Returns:
      What changed since the last run in the same workdir, one line a setting, for the program to show.
    """
    target = pathlib.Path(workdir).absolute() / "config.json"
    changes = []
    if target.exists():
        before = leaves(load(target))
        changes = [f"--config.{name}: {before[name][1]} before, {value} now"
                   for name, (_, value) in leaves(config).items() if before[name][1] != value]
    files.write_atomically(target, json.dumps(to_dict(config), indent=2) + "\n")
    files.write_atomically(target.with_name("flags.txt"), "\n".join([
        "# The resolved settings of this run; pass them back with --flagfile and this file.",
        f"--config={target}", *flag_lines(config)]) + "\n")
    return changes
