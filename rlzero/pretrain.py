"""Pretraining with next-token loss: makes the demo model, and carries real models on with more text.

    python -m rlzero.pretrain --config=configs/demo_pretrain.py --workdir=/tmp/demo_pretrain

It starts from a model directory or from a new Llama, learns from texts or from generated arithmetic, and leaves an
ordinary model directory in WORKDIR/model. Every token of a document but the first is predicted; the loss is the mean
over all of them in the batch, however the batch is split into micro-batches and over devices.
"""

import functools
import itertools
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app
from absl import flags as absl_flags

from rlzero import kernels
from rlzero.data import corpus
from rlzero.data.corpus import PackedBatch
from rlzero.data.tasks import arithmetic_tokenizer
from rlzero.models import huggingface, transformer
from rlzero.models.sharding import (batch_sharding, batch_shards, in_context, make_mesh, parameter_shardings,
                                    replicated_unless_on)
from rlzero.training import config as config_lib
from rlzero.training import files, flags, pretrain_config
from rlzero.training.optimizer import TrainState, apply, init_train_state, optimizer_options, zero_gradient
from rlzero.training.pretrain_config import PretrainConfig
from rlzero.training.steps import Execution, over_rows

flags.define_flags()


def main(config: PretrainConfig) -> None:
    try:
        print(f"The model is in {run(config, pathlib.Path(absl_flags.FLAGS.workdir))}.")
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def run(config: PretrainConfig, workdir: pathlib.Path) -> pathlib.Path:
    """Loads or makes the model, trains it, and writes it to the directory that is returned.

    Raises:
      FileExistsError: there is a model already. ValueError: texts that cannot be read, or too few devices.
    """
    target = workdir / "model"
    if target.exists():
        raise FileExistsError(f"{target} exists already; give another --workdir.")
    mesh = make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    files.write_atomically(workdir / "config.json", json.dumps(config_lib.to_dict(config), indent=2) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch)
        if config.model.path:
            source = huggingface.model_directory(config.model.path)
            specs = transformer.parameter_specs(huggingface.read_config(source))
            params, model = huggingface.load(source, shardings=parameter_shardings(specs, mesh))
        else:
            params, model = new_model(config, source)
            params = jax.device_put(params, parameter_shardings(transformer.parameter_specs(model), mesh))
        params, summary = pretrain(config, params, model, huggingface.load_tokenizer(source), mesh=mesh)
        huggingface.save(target, params, model, source=source)
    files.write_atomically(workdir / "summary.json", json.dumps(summary, indent=2) + "\n")
    return target


def pretrain(config: PretrainConfig, params: Any, model: transformer.ModelConfig, tokenizer: Any,
             report: Callable[[str], None] = print, *, mesh: jax.sharding.Mesh | None = None,
             ) -> tuple[Any, dict[str, float]]:
    """Trains `params` on the corpus of the config.

    Args:
      config: a validated config.
      params: tree of `transformer.parameter_specs(model)`; donated. On a mesh, already laid out there.
      model: the model's shape.
      tokenizer: the model's tokenizer.
      report: takes one line of progress at a time.
      mesh: mesh of `models.sharding.make_mesh`; None computes on the default device.

    Returns:
      The trained parameters, and steps, seconds, tokens, loss and, if there are held-out documents, held_out_loss.

    Raises:
      ValueError: texts that cannot be read or give no batch, or rows that the mesh does not divide.
      FloatingPointError: a loss that is not finite.
    """
    rows = config.micro_batch_size or config.batch_size
    if rows % batch_shards(mesh):
        raise ValueError(f"{rows} rows in memory at a time cannot be shared by {batch_shards(mesh)} devices; take a "
                         "multiple of them as --config.micro_batch_size, or fewer in --config.mesh")
    with in_context(mesh):
        return _pretrain(config, params, model, tokenizer, report, mesh)


def _pretrain(config, params, model, tokenizer, report, mesh):
    options = optimizer_options(config.optimizer, steps=config.steps)
    state = init_train_state(params, options)
    if mesh is not None:
        state = jax.tree.map(lambda array: replicated_unless_on(array, mesh), state)
    execution = Execution(model, dtype=config.model.dtype, remat=config.model.remat, attention=config.model.attention)
    micro_batches = functools.partial(_micro_batches, config=config, mesh=mesh)
    held_out = held_out_batches(config, tokenizer)
    report(f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters, {'at most ' * (config.data.epochs > 0)}"
           f"{config.steps} updates of {config.batch_size} x {config.sequence_length} tokens")

    start = interval_start = time.perf_counter()
    tokens, interval_tokens, losses = 0, 0, []
    for step, batch, last in _numbered(itertools.islice(training_batches(config, tokenizer), config.steps)):
        state, loss = _update(state, batch, micro_batches=micro_batches, execution=execution, options=options)
        losses.append(loss)
        interval_tokens += int(batch.mask.sum())
        if step % config.log_every_steps == 0 or last:
            loss = _finite_mean(losses, step)
            seconds, interval_start = time.perf_counter() - interval_start, time.perf_counter()
            line = f"step {step:6d}  loss {loss:.4f}  {interval_tokens / seconds:,.0f} tokens/s"
            tokens, interval_tokens, losses = tokens + interval_tokens, 0, []
            report(line)
        if held_out and (last or config.evaluate_every_steps and step % config.evaluate_every_steps == 0):
            held_out_loss = mean_loss(state.params, held_out, micro_batches, execution)
            report(f"step {step:6d}  held-out loss {held_out_loss:.4f}")
    summary = {"steps": step, "seconds": time.perf_counter() - start, "tokens": tokens, "loss": loss}
    return state.params, summary | ({"held_out_loss": held_out_loss} if held_out else {})


def _numbered(batches: Iterable[PackedBatch]) -> Iterator[tuple[int, PackedBatch, bool]]:
    """Each batch with its number, from 1, and whether it is the last."""
    batches, step = iter(batches), 0
    following = next(batches, None)
    if following is None:
        raise ValueError("the texts are too few to fill a batch; lower --config.batch_size, or raise "
                         "--config.data.epochs")
    while following is not None:
        batch, following, step = following, next(batches, None), step + 1
        yield step, batch, following is None


def new_model(config: PretrainConfig, directory: pathlib.Path) -> tuple[Any, transformer.ModelConfig]:
    """Makes a Llama of the config's shape with random weights, and writes all of its directory but the weights."""
    section = config.model
    if section.tokenizer:
        tokenizer = huggingface.load_tokenizer(section.tokenizer)
        tokenizer.save_pretrained(directory)
    else:
        tokenizer = arithmetic_tokenizer.make_tokenizer()
        arithmetic_tokenizer.save(directory)
    model = transformer.ModelConfig(
        vocab_size=len(tokenizer), hidden_size=section.hidden_size, intermediate_size=section.intermediate_size,
        num_layers=section.num_layers, num_heads=section.num_heads, num_kv_heads=section.num_kv_heads,
        head_dim=section.hidden_size // section.num_heads, max_position_embeddings=section.max_position_embeddings)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
               "pad_token_id": tokenizer.pad_token_id}
    for name, content in (("config.json", huggingface.config_json(model) | special),
                          ("generation_config.json", special | {"do_sample": True, "temperature": 1.0})):
        files.write_atomically(directory / name, json.dumps(content, indent=2) + "\n")
    return transformer.init_params(jax.random.key(config.seed), model), model


def training_batches(config: PretrainConfig, tokenizer: Any) -> Iterator[PackedBatch]:
    """The batches of the run, without end unless the texts have one."""
    if config.data.corpus == "arithmetic":
        documents = corpus.arithmetic_documents(seed=config.seed)
    else:
        documents = corpus.text_documents(pretrain_config.files_of(config.data.files), field=config.data.field,
                                          tokenizer=tokenizer, seed=config.seed, epochs=config.data.epochs or None)
    return corpus.packed_batches(documents, batch_size=config.batch_size, length=config.sequence_length)


def held_out_batches(config: PretrainConfig, tokenizer: Any) -> list[PackedBatch]:
    """The first `evaluation_batches` batches of held-out documents; none where the config names none."""
    if config.data.corpus == "arithmetic":
        documents = corpus.arithmetic_documents(seed=config.seed, split="held_out")
    elif config.data.held_out_files:
        documents = corpus.text_documents(pretrain_config.files_of(config.data.held_out_files), epochs=1, seed=None,
                                          field=config.data.field, tokenizer=tokenizer)
    else:
        return []
    batches = corpus.packed_batches(documents, batch_size=config.batch_size, length=config.sequence_length)
    return list(itertools.islice(batches, config.evaluation_batches))


def mean_loss(params: Any, batches: list[PackedBatch], micro_batches: Callable, execution: Execution) -> float:
    """The mean loss over all predicted tokens of some batches, in nats."""
    total = sum(float(_loss_sum(params, micro, execution=execution))
                for batch in batches for micro in micro_batches(batch))
    return total / sum(float(batch.mask.sum()) for batch in batches)


def _update(state: TrainState, batch: PackedBatch, *, micro_batches, execution, options):
    """One optimizer update on a batch, micro-batch by micro-batch; also returns the batch's mean loss."""
    scale = np.float32(1 / max(1.0, batch.mask.sum()))
    gradient, loss = zero_gradient(state.params), jnp.zeros(())
    for micro in micro_batches(batch):
        gradient, loss = _accumulate(state.params, gradient, loss, micro, scale, execution=execution)
    state, _ = apply(state, gradient, options=options)
    return state, loss


@functools.partial(jax.jit, static_argnames="execution", donate_argnames=("gradient", "loss"))
def _accumulate(params, gradient, loss, batch, scale, *, execution):
    value, new = jax.value_and_grad(lambda params: scale * _loss_sum(params, batch, execution=execution))(params)
    return jax.tree.map(lambda total, part: total + part.astype(jnp.float32), gradient, new), loss + value


@functools.partial(jax.jit, static_argnames="execution")
def _loss_sum(params, batch: PackedBatch, *, execution):
    hidden, _ = transformer.forward(params, execution.model, batch.tokens, batch.positions, batch.segments,
                                    **execution.options)

    def loss(rows, head):
        logprobs, _ = kernels.token_logprobs(rows["hidden"].reshape(-1, head.shape[0]), head,
                                             rows["targets"].reshape(-1))
        return -jnp.sum(jnp.where(rows["mask"].reshape(-1) > 0, logprobs, 0))

    return over_rows(loss, {"hidden": hidden, "targets": batch.targets, "mask": batch.mask},
                     transformer.unembedding(params).astype(hidden.dtype), summed=True)


def _micro_batches(batch: PackedBatch, *, config: PretrainConfig, mesh) -> Iterator[PackedBatch]:
    size = config.micro_batch_size or config.batch_size
    for start in range(0, config.batch_size, size):
        micro = PackedBatch(*(array[start : start + size] for array in batch))
        yield jax.device_put(micro, None if mesh is None else batch_sharding(mesh))


def _finite_mean(losses: list[jax.Array], step: int) -> float:
    loss = float(np.mean(jax.device_get(losses)))
    if not np.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} in the updates before step {step}; lower the learning rate.")
    return loss


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(flags.parse, validate=pretrain_config.validate))
