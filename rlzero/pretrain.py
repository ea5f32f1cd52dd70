"""Pretraining with next-token loss: makes the demo model, and carries real models on with more text.

    python -m rlzero.pretrain --config=configs/demo_pretrain.py --workdir=/tmp/demo_pretrain

It starts from a model directory or from a new Llama, learns from JSONL texts or from generated arithmetic, and leaves
an ordinary model directory in WORKDIR/model. Every token of a document but the first is predicted; the loss is the mean
over all of them in the batch, however the batch is split into micro-batches.
"""

import functools
import itertools
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
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
from rlzero.training import config as config_lib
from rlzero.training import files, flags, pretrain_config
from rlzero.training.optimizer import TrainState, apply, init_train_state, optimizer_options, zero_gradient
from rlzero.training.pretrain_config import PretrainConfig

flags.define_flags()


def main(config: PretrainConfig) -> None:
    workdir = pathlib.Path(absl_flags.FLAGS.workdir)
    target = workdir / "model"
    if target.exists():
        raise SystemExit(f"error: {target} exists already; give another --workdir.")
    files.write_atomically(workdir / "config.json", json.dumps(config_lib.to_dict(config), indent=2) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch)
        if config.model.path:
            source = huggingface.model_directory(config.model.path)
            params, model = huggingface.load(source)
        else:
            params, model = new_model(config, source)
        params, summary = pretrain(config, params, model, huggingface.load_tokenizer(source))
        huggingface.save(target, params, model, source=source)
    files.write_atomically(workdir / "summary.json", json.dumps(summary, indent=2) + "\n")
    print(f"The model is in {target}.")


def pretrain(config: PretrainConfig, params: Any, model: transformer.ModelConfig, tokenizer: Any,
             report: Callable[[str], None] = print) -> tuple[Any, dict[str, float]]:
    """Trains `params` on the corpus of the config.

    Args:
      config: a validated config.
      params: tree of `transformer.parameter_specs(model)`; donated.
      model: the model's shape.
      tokenizer: the model's tokenizer.
      report: takes one line of progress at a time.

    Returns:
      The trained parameters, and steps, seconds, tokens, loss and, if there are held-out documents, held_out_loss.
    """
    options = optimizer_options(config.optimizer, steps=config.steps)
    state = init_train_state(params, options)
    update = functools.partial(_update, config=config, model=model, options=options)
    held_out = held_out_batches(config, tokenizer)
    report(f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters, {config.steps} updates of "
           f"{config.batch_size} x {config.sequence_length} tokens")

    start = interval_start = time.perf_counter()
    tokens, interval_tokens, losses = 0, 0, []
    for step, batch in enumerate(itertools.islice(training_batches(config, tokenizer), config.steps), start=1):
        state, loss = update(state, batch)
        losses.append(loss)
        interval_tokens += int(batch.mask.sum())
        last = step == config.steps
        if step % config.log_every_steps == 0 or last:
            loss = _finite_mean(losses, step)
            seconds, interval_start = time.perf_counter() - interval_start, time.perf_counter()
            line = f"step {step:6d}  loss {loss:.4f}  {interval_tokens / seconds:,.0f} tokens/s"
            tokens, interval_tokens, losses = tokens + interval_tokens, 0, []
            report(line)
        if held_out and (last or config.evaluate_every_steps and step % config.evaluate_every_steps == 0):
            held_out_loss = mean_loss(state.params, held_out, config, model)
            report(f"step {step:6d}  held-out loss {held_out_loss:.4f}")
    summary = {"steps": config.steps, "seconds": time.perf_counter() - start, "tokens": tokens, "loss": loss}
    return state.params, summary | ({"held_out_loss": held_out_loss} if held_out else {})


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
    """The batches of the run, without end."""
    if config.data.corpus == "arithmetic":
        documents = corpus.arithmetic_documents(seed=config.seed)
    else:
        documents = corpus.text_documents(pretrain_config.files_of(config.data.files), field=config.data.field,
                                          tokenizer=tokenizer, seed=config.seed)
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


def mean_loss(params: Any, batches: list[PackedBatch], config: PretrainConfig, model: transformer.ModelConfig) -> float:
    """The mean loss over all predicted tokens of some batches, in nats."""
    total = sum(float(_loss_sum(params, micro, model=model, dtype=config.model.dtype))
                for batch in batches for micro in _micro_batches(batch, config))
    return total / sum(float(batch.mask.sum()) for batch in batches)


def _update(state: TrainState, batch: PackedBatch, *, config, model, options) -> tuple[TrainState, jax.Array]:
    """One optimizer update on a batch, micro-batch by micro-batch; also returns the batch's mean loss."""
    scale = np.float32(1 / max(1.0, batch.mask.sum()))
    gradient, loss = zero_gradient(state.params), jnp.zeros(())
    for micro in _micro_batches(batch, config):
        gradient, loss = _accumulate(state.params, gradient, loss, micro, scale, model=model, dtype=config.model.dtype)
    state, _ = apply(state, gradient, options=options)
    return state, loss


@functools.partial(jax.jit, static_argnames=("model", "dtype"), donate_argnames=("gradient", "loss"))
def _accumulate(params, gradient, loss, batch, scale, *, model, dtype):
    value, new = jax.value_and_grad(
        lambda params: scale * _loss_sum(params, batch, model=model, dtype=dtype))(params)
    return jax.tree.map(lambda total, part: total + part.astype(jnp.float32), gradient, new), loss + value


@functools.partial(jax.jit, static_argnames=("model", "dtype"))
def _loss_sum(params, batch: PackedBatch, *, model, dtype):
    hidden, _ = transformer.forward(params, model, batch.tokens, batch.positions, batch.segments, dtype=dtype)
    logprobs, _ = kernels.token_logprobs(
        hidden.reshape(-1, hidden.shape[-1]), transformer.unembedding(params).astype(dtype), batch.targets.reshape(-1))
    return -jnp.sum(jnp.where(batch.mask.reshape(-1) > 0, logprobs, 0))


def _micro_batches(batch: PackedBatch, config: PretrainConfig) -> Iterator[PackedBatch]:
    size = config.micro_batch_size or config.batch_size
    for start in range(0, config.batch_size, size):
        yield PackedBatch(*(array[start : start + size] for array in batch))


def _finite_mean(losses: list[jax.Array], step: int) -> float:
    loss = float(np.mean(jax.device_get(losses)))
    if not np.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} in the updates before step {step}; lower the learning rate.")
    return loss


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(flags.parse, validate=pretrain_config.validate))
