"""The rollout engine that a config asks for."""

import pathlib
from collections.abc import Sequence

import jax

from rlzero.data.problems import Problem
from rlzero.models import huggingface
from rlzero.models.transformer import ModelConfig
from rlzero.rollout.engine import Engine
from rlzero.rollout.fleet import FleetOptions
from rlzero.rollout.local import LocalEngine
from rlzero.rollout.sglang import SGLangEngine, SGLangOptions
from rlzero.rollout.weights import make_transport
from rlzero.training.config import Config

_PROBES = 2  # prompts whose log-probabilities servers and trainer compare


def make_engine(config: Config, model: ModelConfig, problems: Sequence[Problem], *, dtype: str,
                mesh: jax.sharding.Mesh, workdir: pathlib.Path) -> Engine:
    """Makes the engine of a run; it has no weights yet, and no server has been asked anything.

    Args:
      config: a valid one.
      model: shape of the trained model.
      problems: all that may be asked for; the longest prompt decides how much room a server must have.
      dtype: that the trainer computes in.
      mesh: of the parameters.
      workdir: of the run, where weights for servers are put unless the config has another directory.
    """
    if config.rollout.engine == "local":
        return LocalEngine(model, dtype=dtype, mesh=mesh)
    rollout, sync = config.rollout, config.sync
    sent = dtype if sync.dtype == "auto" else sync.dtype
    transport = make_transport(sync, model, source=config.model.path, dtype=sent,
                               directory=sync.directory or workdir / "weights")
    prompts = sorted({problem.prompt_ids for problem in problems}, key=len)
    options = SGLangOptions(
        servers=tuple(url.strip() for url in rollout.servers.split(",")), router=rollout.router,
        fleet=FleetOptions(concurrency=rollout.concurrency, request_seconds=rollout.request_seconds,
                           stall_seconds=rollout.stall_seconds, outage_seconds=rollout.outage_seconds),
        architecture=huggingface.architecture(config.model.path),
        context=len(prompts[-1]) + rollout.max_completion_length, temperature=rollout.temperature, dtype=dtype,
        sent_dtype=sent)
    return SGLangEngine(model, options, transport, probes=prompts[-_PROBES:], mesh=mesh)

