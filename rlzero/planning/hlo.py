"""Reads a compiled program (optimized HLO text): its collectives and the memory it writes, loops multiplied in.

    for each computation reached from ENTRY:   times = Π trip counts of the loops around it

Only what planning needs is parsed. A loop whose length does not stand in its condition counts once, and is reported.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

_ITEM_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4,
               "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_ARRAY = re.compile(r"\b(\w+)\[([\d,]*)\](\{[^}]*\})?")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{$")
_KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
_WRITES_NOTHING = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call",
                   "after-all", "partition-id", "replica-id", "iota")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation of the program.

    Attributes:
      kind: "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute".
      payload: bytes of the whole array on one chip: gathered, or before it is scattered.
      chips: members of a group.
      times: executions per run of the program.
      source: the line of the model it comes from, as JAX names it.
    """

    kind: str
    payload: float
    chips: int
    times: int
    source: str

    @property
    def sent(self) -> float:
        """Bytes that each chip sends in all executions, by an algorithm that sends no byte twice (a ring)."""
        share = 1.0 if self.kind == "collective-permute" else (self.chips - 1) / self.chips
        return self.times * self.payload * share * (2 if self.kind == "all-reduce" else 1)


@dataclasses.dataclass(frozen=True)
class Program:
    """What was read of a compiled program.

    Attributes:
      collectives: all of them, executed ones only.
      written: bytes that each chip writes to its main memory.
      custom_calls: executions by target, such as "tpu_custom_call" for Pallas kernels.
      unknown_loops: loops whose trip count could not be read; they count once.
    """

    collectives: tuple[Collective, ...]
    written: float
    custom_calls: dict[str, int]
    unknown_loops: int


@dataclasses.dataclass(frozen=True)
class _Instruction:
    root: bool
    name: str
    shape: str
    opcode: str
    rest: str  # operands and attributes

    def number(self, attribute: str) -> str:
        found = re.search(rf"\b{attribute}=(\d+)", self.rest)
        return found[1] if found else ""

    def called(self, attribute: str) -> str:
        found = re.search(rf"\b{attribute}=%?([\w.-]+)", self.rest)
        return found[1] if found else ""


def parse(text: str, num_chips: int) -> Program:
    """Reads the text of `compiled.as_text()`.

    Args:
      text: optimized HLO, one program for all chips (SPMD).
      num_chips: chips of the mesh, the group of a collective that names none.
    """
    computations, entry = _computations(text)
    collectives, written, custom_calls, unknown, seen = [], 0.0, {}, 0, set()
    for runs_in, computation, instruction, times, fused in _executed(computations, entry):
        kind = instruction.opcode.removesuffix("-start")
        if kind in _KINDS:
            found = _collective(kind, instruction, computation, times, fused, num_chips)
            # An asynchronous one is written down in the fusions where it starts, goes on and ends, under one channel.
            part = (runs_in, found, instruction.number("channel_id"))
            if not fused or part not in seen:
                collectives.append(found)
            seen.add(part)
        if instruction.opcode == "custom-call":
            target = (re.search(r'custom_call_target="([^"]*)"', instruction.rest) or ["", "unknown"])[1]
            custom_calls[target] = custom_calls.get(target, 0) + times
        if instruction.opcode == "while" and _trip_count(instruction, computations) is None:
            unknown += 1
        if not fused:
            written += times * _written(instruction, computation, computations)
    return Program(tuple(collectives), written, custom_calls, unknown)


def _computations(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Instructions by computation, and the name of the entry."""
    computations, entry, current = {}, "", []
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
            continue
        found = _INSTRUCTION.match(line)
        if found:
            current.append(_Instruction(bool(found[1]), *found.groups()[1:]))
    return computations, entry


def _executed(computations, name, times=1, unfused="") -> Iterator[tuple[str, list, _Instruction, int, bool]]:
    """Every instruction that runs: in which computation that is no fusion, its own one, how often, whether fused."""
    for instruction in computations.get(name, ()):
        yield unfused or name, computations[name], instruction, times, bool(unfused)
        if instruction.opcode == "while":
            trips = _trip_count(instruction, computations)
            yield from _executed(computations, instruction.called("body"), times * (1 if trips is None else trips))
        elif instruction.opcode == "fusion":
            yield from _executed(computations, instruction.called("calls"), times, unfused or name)
        elif instruction.opcode in ("call", "async-start"):
            attribute = "to_apply" if instruction.opcode == "call" else "calls"
            yield from _executed(computations, instruction.called(attribute), times, unfused)
        elif instruction.opcode == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.rest)
            names = re.findall(r"[\w.-]+", branches[1]) if branches else [
                instruction.called("true_computation"), instruction.called("false_computation")]
            for branch in names:
                yield from _executed(computations, branch, times, unfused)


def _trip_count(loop, computations) -> int | None:
    """How often a loop runs: what the compiler says, or the one number its condition compares with."""
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest)
    if known:
        return int(known[1])
    numbers = [int(found[1]) for _, _, instruction, _, _ in _executed(computations, loop.called("condition"))
               if instruction.opcode == "constant" and (found := re.match(r"(\d+)\)", instruction.rest))]
    return numbers[0] if len(numbers) == 1 else None


def _arrays(shape: str) -> list[tuple[float, bool]]:
    """(bytes, in main memory) of the arrays of a shape; S(1) is on-chip memory."""
    return [(_ITEM_BYTES.get(kind, 1) * math.prod(int(size) for size in sizes.split(",") if size),
             "S(" not in (layout or "")) for kind, sizes, layout in _ARRAY.findall(shape)]


def _collective(kind, instruction, computation, times, fused, num_chips) -> Collective:
    payload = sum(size for size, _ in _arrays(instruction.shape))
    chips = _group_size(instruction.rest, num_chips)
    if instruction.opcode.endswith("-start") and instruction.shape.startswith("("):  # operands beside the results
        payload *= chips / (chips + 1) if kind == "all-gather" else 0.5
    # TPUs write a reduce-scatter as a fusion of an all-reduce and the slice that is kept.
    if kind == "all-reduce" and fused and any(other.opcode == "dynamic-slice" for other in computation):
        kind = "reduce-scatter"
    elif kind == "reduce-scatter":
        payload *= chips  # its result is one part
    source = re.search(r'op_name="([^"]*)"', instruction.rest)
    return Collective(kind, payload, chips, times, source[1] if source else "")


def _group_size(attributes: str, num_chips: int) -> int:
    """Chips per group, in each of the three ways in which replica groups are written."""
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    if listed:
        return listed[1].count(",") + 1
    grid = re.search(r"replica_groups=\[(\d+),(\d+)\]<=", attributes)
    if grid:
        return int(grid[2])
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\].*?\{('[^}]*)\}", attributes)
    if mesh:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes.get(axis, 1)) for axis in re.findall(r"'(\w+)'", mesh[2]))
    return num_chips


def _written(instruction, computation, computations) -> float:
    """Bytes that an instruction outside of fusions writes to main memory; updates in place count what they change."""
    if instruction.opcode in _WRITES_NOTHING or instruction.opcode.endswith("-done"):
        return 0.0
    inside, producer = computation, instruction
    if instruction.opcode == "fusion":
        inside = computations.get(instruction.called("calls"), [])
        producer = next((other for other in inside if other.root), instruction)
    in_memory = [flag for _, flag in _arrays(instruction.shape)]
    by_name = {other.name: other for other in inside}
    parts = [by_name.get(name) for name in _operands(producer)] if producer.opcode == "tuple" else [producer]
    if len(parts) != len(in_memory):
        return sum(size for size, flag in _arrays(instruction.shape) if flag)
    return sum(_result_bytes(part, by_name) for part, flag in zip(parts, in_memory) if flag and part is not None)


def _result_bytes(producer, by_name) -> float:
    while producer.opcode == "bitcast" and _operands(producer)[0] in by_name:
        producer = by_name[_operands(producer)[0]]
    if producer.opcode == "dynamic-update-slice":
        producer = by_name.get(_operands(producer)[1], producer)
    return sum(size for size, _ in _arrays(producer.shape))


def _operands(instruction) -> list[str]:
    return re.findall(r"%([\w.-]+)", instruction.rest.split("), ")[0])
