"""Does a run fit on its accelerators, and what will a step cost? Answered without them.

    python -m rlzero.plan --config=configs/dapo_qwen2_5_32b.py --topology=v5p:4x4x4

The learner's own functions are compiled ahead of time by the real TPU compiler for the topology (extra `[tpu]`; any
machine will do), for the largest micro-batch of the config. `--topology=cpu:8` compiles for eight pretended CPU devices
instead: a quick look at the program, whose memory and collectives are not those of a TPU.

Exit codes: 0 it fits; 1 it does not, and the output says what to change; 2 a command line or config that cannot be
followed. The rollout is not planned: `engine=local` adds a copy of the weights in compute dtype and its cache.
"""

import dataclasses
import math
import os
import sys
from collections import Counter

import jax
from absl import app, flags

from rlzero.models import huggingface, shapes, transformer
from rlzero.models.sharding import batch_shards, make_mesh
from rlzero.planning import estimate, program
from rlzero.planning.estimate import GIB
from rlzero.planning.hlo import Collective
from rlzero.train import learner_options, resolved_dtype
from rlzero.training import flags as flags_lib
from rlzero.training import validation
from rlzero.training.config import Config
from rlzero.training.display import batch_table, table
from rlzero.training.learner import LearnerOptions

_HEADROOM = 0.95  # share of the memory that a program may take; the runtime and fragments take the rest


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that the report is made of; bytes are per chip."""

    config: Config
    model: transformer.ModelConfig
    options: LearnerOptions
    mesh: jax.sharding.Mesh
    chip: estimate.Chip
    micro_batch: tuple[int, int]
    parts: dict[str, int]
    accumulate: program.Compiled
    apply: program.Compiled
    resident: int  # what the other programs keep in memory meanwhile: reference and critic

    @property
    def micro_batches(self) -> int:
        """Micro-batches per update when every completion is as long as it may be."""
        rollout = self.config.rollout
        together = max(1, self.micro_batch[1] // (rollout.max_prompt_length + rollout.max_completion_length))
        return math.ceil(program.responses_per_update(self.options) / (self.micro_batch[0] * together))

    @property
    def needed(self) -> dict[str, int]:
        """Bytes at the peak of each program; the moments lie in memory while gradients are accumulated."""
        others = {"accumulate": self.resident + self.parts["optimizer"], "apply": self.resident}
        return {name: others[name] + compiled.arguments + compiled.temporaries + compiled.outputs
                for name, compiled in (("accumulate", self.accumulate), ("apply", self.apply))}

    @property
    def fits(self) -> bool:
        failed = self.accumulate.failure or self.apply.failure
        return not failed and max(self.needed.values()) <= _HEADROOM * self.chip.memory


def make_plan(config: Config, topology: str, memory_gib: float = 0) -> Plan:
    """Compiles the training step of a config for a topology.

    Raises:
      ValueError: an unknown topology, no compiler for it, or a mesh that does not go onto it.
    """
    chip, devices = estimate.chip_of(topology, memory_gib), program.devices_of(topology)
    model, algorithm = model_of(config), config.algorithm.freeze()
    try:
        mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices=devices)
    except NotImplementedError as error:
        raise ValueError(f"the mesh does not follow the links of {topology}: {error}") from error
    platform = "cpu" if topology.startswith("cpu") else "tpu"
    options = learner_options(config, algorithm, resolved_dtype(config.model.compute_dtype, platform))
    micro_batch = program.micro_batch_shape(options, config.rollout.max_prompt_length, mesh)
    arrays = program.make_shapes(model, options, config.model.dtype, micro_batch, mesh)
    parts = {"parameters": program.bytes_per_chip(arrays.state.params),
             "optimizer": program.bytes_per_chip(arrays.state.opt_state),
             "gradients": program.bytes_per_chip(arrays.gradient), "rows": program.bytes_per_chip(arrays.rows)}
    resident = parts["parameters"] * algorithm.needs_reference
    resident += (parts["parameters"] + parts["optimizer"]) * algorithm.needs_critic
    return Plan(config, model, options, mesh, chip, micro_batch, parts,
                program.compile_accumulate(arrays, options.execution(model), algorithm, mesh),
                program.compile_apply(arrays, options.policy, mesh), resident)


def model_of(config: Config) -> transformer.ModelConfig:
    """The model's shape: by name where the config has one, else from its directory."""
    return shapes.shape(config.model.shape) if config.model.shape else huggingface.read_config(config.model.path)


def report(plan: Plan, topology: str) -> str:
    """The whole answer as text."""
    mesh, (rows, width) = plan.mesh, plan.micro_batch
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(transformer.abstract_params(plan.model)))
    model = plan.config.model
    return "\n".join([
        f"chips      {mesh.size} of {topology}, {plan.chip.memory / GIB:g} GiB each: data {mesh.shape['data']}, fsdp "
        f"{mesh.shape['fsdp']}, tensor {mesh.shape['tensor']}",
        f"model      {model.shape or model.path}: {count:,} parameters in {model.dtype}, computing in "
        f"{plan.options.dtype}, attention {model.attention}, remat {str(model.remat).lower()}",
        f"compiled   accumulate in {plan.accumulate.seconds:.0f} s, apply in {plan.apply.seconds:.0f} s",
        f"kernels    {_kernels(plan)}", "",
        batch_table(plan.config),
        f"  micro-batch: {rows} rows x {width:,} tokens on all chips; {plan.micro_batches} per update when every "
        "completion is as long as it may be, which all below assumes", "",
        _memory(plan), "", _collectives(plan), "", _cost(plan, count), "", _verdict(plan)])


def _kernels(plan):
    calls = {name: times for name, times in plan.accumulate.program.custom_calls.items()
             if name in ("tpu_custom_call", "Mosaic")}
    return ", ".join(f"{name}, {times} times per micro-batch" for name, times in calls.items()) or "no custom kernel"


def _memory(plan):
    if plan.accumulate.failure or plan.apply.failure:
        found = "\n".join(f"  {name} {size / GIB:.2f} GiB" for name, size in plan.parts.items())
        return f"memory per chip, before the compiler gave up\n{found}"
    rows = [("memory per chip, GiB", "accumulate", "apply")]
    rows += [(name, f"{plan.parts[name] / GIB:.2f}", f"{plan.parts[name] / GIB:.2f}")
             for name in ("parameters", "optimizer", "gradients")]
    rows.append(("rows", f"{plan.parts['rows'] / GIB:.2f}", "-"))
    if plan.resident:
        rows.append(("reference, critic", f"{plan.resident / GIB:.2f}", f"{plan.resident / GIB:.2f}"))
    pair = (plan.accumulate, plan.apply)
    rows.append(("activations, temporaries", *(f"{compiled.temporaries / GIB:.2f}" for compiled in pair)))
    rows.append(("code, outputs", *(f"{compiled.outputs / GIB:.2f}" for compiled in pair)))
    rows.append(("together, with padding", *(f"{size / GIB:.2f}" for size in plan.needed.values())))
    rows.append((f"of {plan.chip.memory / GIB:g}", *(f"{size / plan.chip.memory:.0%}"
                                                    for size in plan.needed.values())))
    kept = plan.micro_batch[0] / batch_shards(plan.mesh) * plan.micro_batch[1]
    kept *= plan.model.num_layers * plan.model.hidden_size * (2 if plan.options.dtype == "bfloat16" else 4)
    note = f"\n  of the temporaries, {kept / GIB:.2f} are the inputs of the layers, kept for the backward pass"
    return table(rows) + (note if plan.options.remat else "")


def _per_update(plan) -> list[tuple[int, Collective]]:
    """All collectives of an update, with the number of runs of their program."""
    return ([(plan.micro_batches, c) for c in plan.accumulate.program.collectives if c.chips > 1]
            + [(1, c) for c in plan.apply.program.collectives if c.chips > 1])


def _collectives(plan):
    times, sent, largest = Counter(), Counter(), {}
    for runs, collective in _per_update(plan):
        kind = collective.kind
        times[kind] += runs * collective.times
        sent[kind] += runs * collective.sent
        largest[kind] = max(largest.get(kind, 0), collective.payload)
    rows = [("collectives per update", "executions", "GB sent per chip", "largest array, MB")]
    rows += [(kind, f"{times[kind]:,}", f"{sent[kind] / 1e9:.3f}", f"{largest[kind] / 1e6:.1f}")
             for kind in sorted(sent, key=sent.get, reverse=True)]
    unknown = plan.accumulate.program.unknown_loops + plan.apply.program.unknown_loops
    note = f"\n  {unknown} loops of unknown length were counted once" if unknown else ""
    return (table(rows) if sent else "collectives: none") + note


def _cost(plan, count):
    rows, width = plan.micro_batch
    flops = estimate.training_flops(plan.model, count, rows, width, plan.options.remat)
    updates = plan.options.mini_batches * plan.options.epochs
    lines = [f"FLOPs per update {plan.micro_batches * flops.total:.3g}: 6 x parameters x tokens "
             f"{plan.micro_batches * flops.model:.3g}, attention {plan.micro_batches * flops.attention:.3g}, "
             f"recomputation {plan.micro_batches * flops.recomputed:.3g}; per step of {updates} updates "
             f"{updates * plan.micro_batches * flops.total:.3g}",
             f"  cost_analysis {plan.accumulate.flops:.3g} per chip and micro-batch (there, a loop's body counts "
             "once and a custom kernel not at all)"]
    if math.isnan(plan.chip.flops):
        return "\n".join([*lines, "  no time: this topology has no published peaks"])
    once = estimate.time_of(plan.chip, flops.total / plan.mesh.size, plan.accumulate.program.written,
                            sum(c.sent for c in plan.accumulate.program.collectives))
    last = estimate.time_of(plan.chip, 0.0, plan.apply.program.written,
                            sum(c.sent for c in plan.apply.program.collectives))
    seconds = plan.micro_batches * once.seconds + last.seconds
    tokens = plan.micro_batches * rows * width
    return "\n".join([
        *lines,
        f"time per update, at least {seconds:.1f} s ({tokens / seconds / plan.mesh.size:,.0f} tokens/s per chip), "
        f"bound by {once.bound}; per step of {updates} updates {updates * seconds:.0f} s, scoring not counted",
        f"  per micro-batch: compute {once.compute:.2f} s, HBM {once.memory:.2f} s, interconnect "
        f"{once.interconnect:.2f} s; optimizer {last.seconds:.3f} s ({last.bound}); every unit at its published peak"])


def _verdict(plan):
    if plan.fits:
        return (f"fits: {max(plan.needed.values()) / GIB:.1f} of {plan.chip.memory / GIB:g} GiB per chip")
    reason = (plan.accumulate.failure or plan.apply.failure
              or f"{max(plan.needed.values()) / GIB:.2f} of {plan.chip.memory / GIB:g} GiB per chip, of which "
              f"{_HEADROOM:.0%} may be used")
    return "\n".join([f"does not fit: {reason}", *(f"  - {line}" for line in advice(plan))])


def advice(plan: Plan) -> list[str]:
    """What to change when it does not fit, what helps most first."""
    config, mesh, lines = plan.config, plan.mesh, []
    shards = batch_shards(mesh)
    if mesh.shape["data"] > 1:
        lines.append(f"--config.mesh.fsdp={mesh.shape['fsdp'] * mesh.shape['data']} --config.mesh.data=1 slices "
                     f"parameters, moments and gradients over {mesh.shape['data']} times as many chips")
    if not config.model.remat:
        lines.append("--config.model.remat=true keeps one array per layer instead of all its activations")
    if config.model.attention == "xla" and plan.micro_batch[1] > 1024:
        lines.append("--config.model.attention=auto does not hold the scores of whole rows")
    if plan.micro_batch[0] > max(shards, 8):
        lines.append(f"--config.learner.micro_batch_size={max(shards, 8)} takes one row per chip at a time")
    longest = config.rollout.max_prompt_length + config.rollout.max_completion_length
    if config.learner.pack_tokens > longest:
        lines.append(f"--config.learner.pack_tokens={longest} is enough for the longest completion")
    state = sum(plan.parts[name] for name in ("parameters", "optimizer", "gradients"))
    if state > 0.6 * plan.chip.memory:
        chips = math.ceil(state * mesh.shape["fsdp"] * mesh.shape["tensor"] / (0.5 * plan.chip.memory))
        lines.append(f"parameters, moments and gradients alone take {state / GIB:.1f} GiB; about {chips} chips would "
                     "leave half of the memory to activations: a larger --topology with --config.mesh.fsdp to match")
    elif mesh.shape["tensor"] == 1:
        lines.append("--config.mesh.tensor=2 (or 4) splits the activations of a row, and the head, over chips")
    if config.model.dtype == "float32":
        lines.append("--config.model.dtype=bfloat16 halves parameters and moments, at a loss: small updates round away")
    return lines


def validate(config: Config) -> None:
    """Checks the config of a training run, except that problems, verifier, and a model with a shape need not be there.

    Raises:
      ValueError: one line for each thing that is wrong.
    """
    if config.model.shape:
        shapes.shape(config.model.shape)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, path="demo"))
    validation.validate(dataclasses.replace(
        config, data=dataclasses.replace(config.data, files=""),
        reward=dataclasses.replace(config.reward, mode="integer"),
        evaluation=dataclasses.replace(config.evaluation, files="")))


def main(config: Config) -> None:
    topology = flags.FLAGS.topology
    jax.config.update("jax_platforms", "cpu")  # nothing is computed, and no chip of this machine is taken
    if topology.startswith("cpu:"):
        count = topology.partition(":")[2]
        os.environ["XLA_FLAGS"] = (f"{os.environ.get('XLA_FLAGS', '')} "
                                   f"--xla_force_host_platform_device_count={count}").strip()
    try:
        plan = make_plan(config, topology, flags.FLAGS.memory_gib)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(report(plan, topology))
    sys.exit(0 if plan.fits else 1)


def parse(argv: list[str]) -> Config:
    return flags_lib.parse(argv, required=("config",), validate=validate)


if __name__ == "__main__":
    flags_lib.define_flags()
    flags.DEFINE_string("topology", "cpu", "TPU slice to plan for, such as v5p:4x4x4 or v6e:2x4; or cpu:8.")
    flags.DEFINE_float("memory_gib", 0.0, "Memory per chip to plan with; 0 takes the published one.", lower_bound=0.0)
    app.run(main, flags_parser=parse)
