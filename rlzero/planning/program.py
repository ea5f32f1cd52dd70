"""Compiles the programs of a training step for chips that are not here, and reads what the compiler made of them.

The functions are the learner's own (`steps.accumulate_policy`, `optimizer.apply`), with the mesh, dtypes and row shapes
of the config; only the arrays are abstract.
"""

import dataclasses
import functools
import math
import os
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rlzero.algorithms import Algorithm
from rlzero.models import transformer
from rlzero.models.sharding import batch_sharding, batch_shards, parameter_shardings
from rlzero.planning import hlo
from rlzero.training.batch import empty_rows, row_bucket, width_bucket
from rlzero.training.learner import LearnerOptions
from rlzero.training.optimizer import OptimizerOptions, apply, init_train_state
from rlzero.training.steps import Execution, accumulate_policy


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One program: what it needs in bytes per chip, and its text as read.

    `arguments` and `temporaries` are the compiler's account; `outputs` are those that reuse no argument, and the code.
    `failure` is its message where it found no way to fit, and then the rest is 0.
    """

    arguments: int
    temporaries: int
    outputs: int
    flops: float  # the compiler's count, in which a loop's body counts once
    seconds: float
    program: hlo.Program
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The abstract arrays of one update."""

    state: Any
    gradient: Any
    rows: Any


def devices_of(topology: str) -> list:
    """The devices of a topology: "v5p:4x4x4", or "cpu" for those of this process.

    Raises:
      ValueError: no TPU compiler is installed, or it does not know the topology.
    """
    if topology.partition(":")[0] == "cpu":
        return jax.devices("cpu")
    try:
        import libtpu  # noqa: F401  the compiler
    except ImportError:
        raise ValueError(f"--topology={topology} needs the TPU compiler, which runs on any machine: pip install "
                         "'rlzero[tpu]' (in a clone: pip install -e '.[tpu]'), or look at the program with "
                         "--topology=cpu:8") from None
    from jax.experimental import topologies
    # The compiler asks the cloud's metadata server where it runs, and expects to own the chips; here are neither.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    try:
        return list(topologies.get_topology_desc(topology_name=topology, platform="tpu").devices)
    except Exception as error:  # libtpu raises several kinds, all of them about the name
        raise ValueError(f"--topology={topology}: {' '.join(str(error).split())}; names are like v5e:4x4, v5p:2x2x4 "
                         "and v6e:2x4") from error


def make_shapes(model: transformer.ModelConfig, options: LearnerOptions, dtype: str, micro_batch: tuple[int, int],
                mesh: Mesh) -> Shapes:
    """The arrays of one update as the learner lays them out: state, accumulated gradient and one micro-batch."""
    layout = parameter_shardings(transformer.parameter_specs(model), mesh)
    whole = NamedSharding(mesh, PartitionSpec())

    def placed(spec, sharding, dtype=None):
        return jax.ShapeDtypeStruct(spec.shape, dtype or spec.dtype, sharding=sharding)

    params = jax.tree.map(placed, transformer.abstract_params(model, jnp.dtype(dtype)), layout)
    state = jax.eval_shape(functools.partial(init_train_state, options=options.policy), params)
    opt_state = optax.tree.map_params(options.policy.transformation(), placed, state.opt_state, layout,
                                      transform_non_params=lambda spec: placed(spec, whole))
    state = state.replace(params=params, opt_state=opt_state, updates=placed(state.updates, whole),
                          skipped=placed(state.skipped, whole), bad=placed(state.bad, whole))
    gradient = jax.tree.map(lambda spec: placed(spec, spec.sharding, jnp.float32), params)
    rows = jax.tree.map(lambda array: jax.ShapeDtypeStruct(micro_batch, array.dtype, sharding=batch_sharding(mesh)),
                        empty_rows(1, 1))
    return Shapes(state, gradient, rows)


def responses_per_update(options: LearnerOptions) -> int:
    return options.groups_per_step * options.group_size // options.mini_batches


def micro_batch_shape(options: LearnerOptions, max_prompt_length: int, mesh: Mesh) -> tuple[int, int]:
    """Rows and width of the largest micro-batch, over all chips; see `training.batch.micro_batches`."""
    shards = batch_shards(mesh)
    rows = row_bucket(options.micro_batch_size or responses_per_update(options))
    width = options.pack_tokens or width_bucket(max_prompt_length + options.max_completion_length - 1)
    return -(-rows // shards) * shards, width


def bytes_per_chip(tree: Any) -> int:
    """Size of one chip's part of abstract arrays, without the padding of their layout."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
               for leaf in jax.tree.leaves(tree))


def compile_accumulate(shapes: Shapes, execution: Execution, algorithm: Algorithm, mesh: Mesh) -> Compiled:
    """The gradient of one micro-batch, added to the accumulator."""
    with jax.set_mesh(mesh):
        return _compiled(accumulate_policy.lower(shapes.state.params, shapes.gradient, shapes.rows,
                                                 execution=execution, algorithm=algorithm), mesh)


def compile_apply(shapes: Shapes, options: OptimizerOptions, mesh: Mesh) -> Compiled:
    """The optimizer's update."""
    with jax.set_mesh(mesh):
        return _compiled(apply.lower(shapes.state, shapes.gradient, options=options), mesh)


def _compiled(lowered, mesh) -> Compiled:
    start = time.monotonic()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return Compiled(0, 0, 0, 0.0, time.monotonic() - start, hlo.Program((), 0.0, {}, 0), _memory_message(error))
    seconds = time.monotonic() - start
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes + memory.generated_code_size_in_bytes
    return Compiled(memory.argument_size_in_bytes, memory.temp_size_in_bytes, outputs, cost.get("flops", 0.0), seconds,
                    hlo.parse(compiled.as_text(), mesh.size))


def _memory_message(error) -> str:
    found = re.search(r"Used [\d.]+\w of [\d.]+\w hbm[^.]*\.[^.]*", str(error))
    return found[0] if found else " ".join(str(error).split())[:200]
