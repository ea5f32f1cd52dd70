"""What a training step costs: a chip's published peaks, the model's arithmetic, and the time at which they meet.

    seconds = max(flops / peak,  main-memory bytes / bandwidth,  bytes sent / interconnect)

That is a bound from below, with every unit at its peak and all three overlapped; real steps take longer.
Its use is to name the bound and to compare layouts.
"""

import dataclasses

from rlzero.models.transformer import ModelConfig

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published figures of a chip.

    Attributes:
      memory: bytes of HBM.
      flops: peak per second in bfloat16.
      bandwidth: bytes of HBM per second.
      interconnect: bytes per second that it can send over all its links together.
    """

    memory: float
    flops: float
    bandwidth: float
    interconnect: float


# cloud.google.com/tpu/docs/{v5e,v5p,v6e}; the interconnect is given there in Gbit/s per chip: 1600, 4800 and 3584.
CHIPS = {
    "v5e": Chip(16 * GIB, 197e12, 819e9, 200e9),
    "v5p": Chip(95 * GIB, 459e12, 2765e9, 600e9),
    "v6e": Chip(32 * GIB, 918e12, 1640e9, 448e9),
}
# A figure to plan against where there are no chips; times mean nothing there.
SMOKE = Chip(16 * GIB, float("nan"), float("nan"), float("nan"))


def chip_of(topology: str, memory_gib: float = 0) -> Chip:
    """The chip of a topology such as "v5p:4x4x4"; `memory_gib` replaces its memory.

    Raises:
      ValueError: its figures are not known.
    """
    name = topology.partition(":")[0]
    if name != "cpu" and name not in CHIPS:
        raise ValueError(f"--topology={topology}: unknown chip {name}; known are {', '.join(CHIPS)}, and cpu:8 for a "
                         "look at the program without a TPU compiler")
    chip = CHIPS.get(name, SMOKE)
    return dataclasses.replace(chip, memory=memory_gib * GIB) if memory_gib else chip


@dataclasses.dataclass(frozen=True)
class Flops:
    """Floating-point operations of forward and backward pass over some rows.

    Attributes:
      model: 6 · parameters · tokens.
      attention: of the scores and their products, causal, one sequence per row (the most that a row can take).
      recomputed: what rematerialization adds.
    """

    model: float
    attention: float
    recomputed: float

    @property
    def total(self) -> float:
        return self.model + self.attention + self.recomputed


def training_flops(model: ModelConfig, parameters: int, rows: int, width: int, remat: bool) -> Flops:
    """Operations of one micro-batch: 2 forward and 4 backward per parameter and token.

    A causal product of scores or values takes S² · heads · head_dim per layer; there are 2 forward and 5 backward,
    which makes scores anew. Rematerialization repeats the forward pass of the layers.
    """
    product = rows * width**2 * model.num_heads * model.head_dim * model.num_layers
    in_layers = parameters - (1 if model.tie_embeddings else 2) * model.vocab_size * model.hidden_size
    return Flops(6.0 * parameters * rows * width, 7.0 * product,
                 remat * (2.0 * in_layers * rows * width + 2.0 * product))


@dataclasses.dataclass(frozen=True)
class Time:
    """Seconds that each unit of a chip needs at its peak."""

    compute: float
    memory: float
    interconnect: float

    @property
    def seconds(self) -> float:
        return max(self.compute, self.memory, self.interconnect)

    @property
    def bound(self) -> str:
        names = {"compute": self.compute, "HBM": self.memory, "interconnect": self.interconnect}
        return max(names, key=names.get)


def time_of(chip: Chip, flops: float, written: float, sent: float) -> Time:
    """The time of a program on each chip.

    Args:
      chip: its peaks.
      flops: operations per chip.
      written: bytes written to main memory per chip; each is taken to be read once as well.
      sent: bytes sent per chip.
    """
    return Time(flops / chip.flops, 2 * written / chip.bandwidth, sent / chip.interconnect)
