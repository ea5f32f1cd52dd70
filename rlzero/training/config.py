"""What an experiment is: every setting of a training run, with its unit or its reason.

A config file is a Python program with `get_config()` that returns a `Config`; any field can then be set on the command
line by its path, `--config.optimizer.learning_rate=3e-6`. The dataclasses are mutable until the flags are parsed; then
`validate` looks at the whole once, before any device work, and what the kernels see (`Algorithm`) is frozen.

The sections and the limits of single fields are in `sections.py`; what fields demand of each other is in
`validation.py`.
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
from rlzero.training import files, sections
from rlzero.training.sections import OptionalFloat, setting


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
    model: sections.ModelSection = dataclasses.field(default_factory=sections.ModelSection)
    data: sections.DataSection = dataclasses.field(default_factory=sections.DataSection)
    rollout: sections.RolloutSection = dataclasses.field(default_factory=sections.RolloutSection)
    sync: sections.SyncSection = dataclasses.field(default_factory=sections.SyncSection)
    reward: sections.RewardSection = dataclasses.field(default_factory=sections.RewardSection)
    optimizer: sections.OptimizerSection = dataclasses.field(default_factory=sections.OptimizerSection)
    critic: sections.CriticSection = dataclasses.field(default_factory=sections.CriticSection)
    learner: sections.LearnerSection = dataclasses.field(default_factory=sections.LearnerSection)
    mesh: sections.MeshSection = dataclasses.field(default_factory=sections.MeshSection)
    checkpoint: sections.CheckpointSection = dataclasses.field(default_factory=sections.CheckpointSection)
    evaluation: sections.EvaluationSection = dataclasses.field(default_factory=sections.EvaluationSection)
    log: sections.LogSection = dataclasses.field(default_factory=sections.LogSection)


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
