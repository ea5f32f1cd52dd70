"""The sections of a config: every setting with its unit or its reason, and the limits of a single field beside it.

`config.py` puts them together into what a training run is.
"""

# Annotations stay real types here (no `from __future__ import annotations`): the flag parser reads them.

import dataclasses
import typing
from typing import Any

from rlzero import rewards
from rlzero.data import layouts
from rlzero.models import attention

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
    # Never sample ids beyond the tokenizer's, where the model's vocabulary is padded; the trainer leaves them out too.
    mask_unused_ids: bool = False
    # See `rlzero.models.attention`: xla holds all scores of a row, blockwise never does.
    attention: str = setting("xla", choices=attention.IMPLEMENTATIONS)


@dataclasses.dataclass
class DataSection:
    """Which problems it learns from."""

    # Name of a generated task, or reasoning_gym/NAME; read where `files` names nothing.
    task: str = "arithmetic"
    # Problems to learn from that are generated; an epoch of the demo is 48 steps.
    task_problems: int = setting(3072, "[1, inf)")
    # Problem sets to learn from, with commas between them: .jsonl, .json, .parquet, or directories of `datasets`.
    files: str = ""
    # How their rows are laid out, see `rlzero.data.layouts`.
    layout: str = setting("fields", choices=tuple(layouts.LAYOUTS))
    # Of layout fields.
    question_field: str = "question"
    answer_field: str = "answer"
    # Difficulties to keep, such as 3-5; empty for all.
    levels: str = ""
    # What is around a question: none, r1, qwen_math, chat (the tokenizer's own), or a file that holds {question}.
    template: str = "none"
    # Leave repeated questions out.
    deduplicate: bool = True
    # Seed of the generator. Apart from `seed`, so that runs with several seeds are compared on one set of problems.
    task_seed: int = setting(0, "[0, inf)")


@dataclasses.dataclass
class RolloutSection:
    """How completions are sampled. Lengths are in tokens."""

    # local decodes in this process; sglang asks servers on other hosts.
    engine: str = setting("local", choices=("local", "sglang"))
    # URLs of the SGLang servers, separated by commas.
    servers: str = ""
    # URL of a router that spreads generation over them; weights still go to each server. Empty for none.
    router: str = ""
    # Policy versions that a completion may be behind when it is trained: 0 samples and trains in turns, k samples up to
    # k steps ahead while it trains.
    max_staleness: int = setting(0, "[0, 16]")
    # With max_staleness: new weights wait for the step that is being sampled, or it goes on with them.
    on_update: str = setting("finish", choices=("finish", "retract"))
    # A group of which responses were lost is trained without them, or they are asked for once more.
    on_lost: str = setting("train", choices=("train", "redo"))
    # Requests that each server has at a time.
    concurrency: int = setting(128, "[1, inf)")
    # Seconds for one completion, all tries together.
    request_seconds: float = setting(3600.0, "(0, inf)")
    # Seconds without any answer after which a server must prove that it still generates.
    stall_seconds: float = setting(60.0, "(0, inf)")
    # Seconds that the run waits for servers, at its start and when none is left.
    outage_seconds: float = setting(600.0, "(0, inf)")
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
    # A response also ends with the token that completes this text, such as </answer>, or one of several with commas
    # between them; empty for the model's own ends.
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
class SyncSection:
    """How new weights get into SGLang servers (`rollout.engine=sglang` only); see docs/sglang.md."""

    # disk: through a directory that both see. tensor: over HTTP. distributed: over a process group, with the extra
    # `sync`.
    method: str = setting("disk", choices=("disk", "tensor", "distributed"))
    # Of the weights as they are sent; auto is what the trainer computes in.
    dtype: str = setting("auto", choices=("auto", "float32", "bfloat16"))
    # disk: the shared directory; empty for WORKDIR/weights.
    directory: str = ""
    # disk: the same directory as the servers see it; empty if under the same name.
    server_directory: str = ""
    # disk: versions that stay there.
    keep: int = setting(2, "[1, inf)")
    # tensor, distributed: megabytes (10^6 bytes) that are sent at a time.
    bucket_megabytes: int = setting(16, "[1, inf)")
    # distributed: "gloo" between CPUs, "nccl" between GPUs.
    backend: str = setting("gloo", choices=("gloo", "nccl"))
    # distributed: this host as the servers reach it.
    host: str = "127.0.0.1"
    # distributed: interpreter with torch; empty for this one.
    python: str = ""
    # Seconds that an update may take.
    seconds: float = setting(600.0, "(0, inf)")


@dataclasses.dataclass
class RewardSection:
    """What an answer is worth."""

    # How answers are compared: integer for exact integers, math for LaTeX of any kind (needs the extra `math`),
    # reasoning_gym for the scorers of its tasks (needs the extra `gym`).
    mode: str = setting("integer", choices=rewards.MODES)
    correct: float = 1.0
    # DAPO's paper uses -1 here.
    wrong: float = 0.0
    # A reward function of your own, package.module:name, in the place of the verifier; see `rlzero.rewards.custom`.
    function: str = ""
    # Processes that grade and can be killed; 0 grades in the process that trains.
    workers: int = setting(0, "[0, inf)")
    # Seconds that a worker may take over one response; one that takes longer is replaced.
    deadline_seconds: float = setting(5.0, "(0, inf)")
    # Share of the last 1000 responses (of 100 at the start) that may fail to be graded; above it the run stops.
    max_error_rate: float = setting(0.05, "[0, 1]")
    # Added for one thinking part and one answer part, neither of them empty; below what being right adds.
    format_bonus: float = setting(0.0, "[0, inf)")


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
    # Its optimizer updates per epoch, at most prompts_per_step; 0 makes as many as the policy.
    mini_batches: int = setting(0, "[0, inf)")


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
    # Problem sets to evaluate on, with commas between them; empty holds some of `data.files` out.
    files: str = ""
    # How their rows are laid out.
    layout: str = setting("benchmark", choices=tuple(layouts.LAYOUTS))
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
