"""Hugging Face model directories in and out: config.json, safetensors weights, tokenizer and generation settings.

`checkpoint_names` relates our parameter names to the checkpoint's, for reading and writing alike. Every tensor must be
accounted for: one that is missing or left unread is an error that names it. No torch is involved.
"""

import collections
import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlzero.models import tensor_files
from rlzero.models.checkpoint_names import NamedTensors, Stored, named_tensors
from rlzero.models.tensor_files import TensorFiles
from rlzero.models.transformer import ModelConfig, RopeScaling, abstract_params

DEMO_MODEL = pathlib.Path(__file__).parent.parent / "demo_model"

_ARCHITECTURES = {  # architecture -> what its config.json may leave unsaid, and whether it normalizes queries and keys
    "LlamaForCausalLM": {"attention_bias": False, "max_position_embeddings": 2048, "qk_norm": False},
    "Qwen2ForCausalLM": {"attention_bias": True, "max_position_embeddings": 32768, "qk_norm": False},
    "Qwen3ForCausalLM": {"attention_bias": False, "max_position_embeddings": 32768, "qk_norm": True},
}
_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_REFUSED_OPTIONS = ("mlp_bias", "use_sliding_window", "rope_interleaved")
_CARRIED_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
                  "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja")


def model_directory(path: str | os.PathLike) -> pathlib.Path:
    """Resolves a model path: "demo" is the model inside the package, anything else a directory with a config.json."""
    directory = DEMO_MODEL if str(path) == "demo" else pathlib.Path(path).expanduser()
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"no model at {directory}: expected a directory with config.json, *.safetensors and "
                                "tokenizer files, or the word demo for the model inside the package")
    return directory


def read_config(path: str | os.PathLike) -> ModelConfig:
    """Reads config.json into a `ModelConfig`; an architecture or option we would get wrong is refused by name."""
    raw = json.loads((model_directory(path) / "config.json").read_text())
    architecture = (raw.get("architectures") or ["(none)"])[0]
    if architecture not in _ARCHITECTURES:
        raise ValueError(f"unknown architecture {architecture} in {path}; supported: {', '.join(_ARCHITECTURES)}")
    defaults = _ARCHITECTURES[architecture]
    missing = [name for name in _REQUIRED if name not in raw]
    if missing:
        raise ValueError(f"config.json in {path} lacks {', '.join(missing)}; it is not that of a whole model")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"expected hidden_act silu, got {raw['hidden_act']}")
    for option in _REFUSED_OPTIONS:
        if raw.get(option):
            raise ValueError(f"{option}=true in {path} is not supported")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if (rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor in {path} is not supported: every model here rotates whole heads")
    return ModelConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        rope_scaling=_rope_scaling(rope),
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        max_position_embeddings=raw.get("max_position_embeddings", defaults["max_position_embeddings"]),
        tie_embeddings=raw.get("tie_word_embeddings", False),
        qkv_bias=raw.get("attention_bias", defaults["attention_bias"]),
        qk_norm=defaults["qk_norm"],
    )


def architecture(path: str | os.PathLike) -> str:
    """The architecture's name in a model directory's config.json."""
    return json.loads((model_directory(path) / "config.json").read_text())["architectures"][0]


def load(path: str | os.PathLike, dtype=jnp.float32, shardings: Any = None) -> tuple[dict, ModelConfig]:
    """Reads a model directory.

    With shardings, every device's part is read from the files and put on that device before the next one is read, so
    the host never holds a whole stacked parameter, and a host of a pod reads only what its own devices need.

    Args:
      path: directory, or "demo".
      dtype: dtype of the parameters in memory.
      shardings: tree of `jax.sharding.Sharding` with the structure of the parameters; None puts them on the default
        device.

    Returns:
      The parameter tree of `transformer.parameter_specs` and the model's config.

    Raises:
      FileNotFoundError: no model there. ValueError: unknown architecture, missing, unread or misshapen tensors.
    """
    directory, config = model_directory(path), read_config(path)
    files = TensorFiles(directory)
    specs = abstract_params(config, dtype)
    _check_tensors(directory, files, specs, config)

    def read(path, spec, sharding=None):
        stored = Stored(path[-1].key, spec, stacked=len(path) > 1)
        if sharding is None:
            return jnp.asarray(stored.read(files, (slice(None),) * len(spec.shape)))
        return _sharded(lambda index: stored.read(files, index), spec, sharding)

    trees = (specs,) if shardings is None else (specs, shardings)
    return jax.tree_util.tree_map_with_path(read, *trees), config


def save(path: str | os.PathLike, params: Mapping, config: ModelConfig, *, source: str | os.PathLike,
         dtype=np.float32, max_shard_bytes: int = 5 * 10**9) -> None:
    """Writes an ordinary model directory, complete or not at all.

    Args:
      path: directory to create; an existing one is refused.
      params: tree of `transformer.parameter_specs(config)`, on any devices of this process.
      config: the model's shape.
      source: model directory (or "demo") whose config and tokenizer this model keeps.
      dtype: dtype of the stored weights.
      max_shard_bytes: size of a weight file above which another one is begun.
    """
    save_tensors(path, named_tensors(params, config), source=source, dtype=dtype, max_shard_bytes=max_shard_bytes)


def save_tensors(path: str | os.PathLike, tensors: NamedTensors, *, source: str | os.PathLike, dtype=np.float32,
                 max_shard_bytes: int = 5 * 10**9) -> None:
    """Writes a model directory of tensors that are fetched one by one, complete or not at all.

    config.json, tokenizer and generation settings are carried over from `source`, with the stored dtype updated. The
    directory appears under its name only when it is complete.
    """
    path, source = pathlib.Path(path), model_directory(source)
    if path.exists():
        raise FileExistsError(f"{path} exists already; choose another directory or remove it")
    if read_config(source) != tensors.config:
        raise ValueError(f"the parameters' shape {tensors.config} is not that of {source}")
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        tensor_files.write(partial, tensors.shapes, tensors.fetch, dtype=dtype, max_shard_bytes=max_shard_bytes)
        raw = json.loads((source / "config.json").read_text())
        raw["dtype"] = np.dtype(dtype).name
        raw.pop("torch_dtype", None)
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
        for name in _CARRIED_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        for file in partial.glob("*.safetensors"):  # safetensors makes files that only their owner can read
            shutil.copymode(partial / "config.json", file)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def config_json(config: ModelConfig) -> dict:
    """The config.json of a freshly made Llama-family model of this shape (eos and bos are added by the caller)."""
    if config.qkv_bias or config.qk_norm or config.rope_scaling:
        raise ValueError("a new model is written as a plain Llama: expected no qkv_bias, qk_norm or rope_scaling")
    fields = dataclasses.asdict(config)
    for name in ("num_layers", "num_heads", "num_kv_heads", "norm_eps", "tie_embeddings", "qkv_bias", "qk_norm",
                 "rope_scaling"):
        fields.pop(name)
    return fields | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False,
        "mlp_bias": False, "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
    }


def load_tokenizer(path: str | os.PathLike):
    """The `transformers` tokenizer of a model directory."""
    # Without torch, importing transformers prints an advice that models are unavailable; only tokenizers are used here.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    import transformers  # seconds to import, so only where a tokenizer is wanted

    return transformers.AutoTokenizer.from_pretrained(str(model_directory(path)))


def without_unused_ids(model: ModelConfig, tokenizer) -> ModelConfig:
    """The model with the ids beyond its tokenizer's left out of what it samples; vocabularies are often padded so."""
    size = len(tokenizer)
    return dataclasses.replace(model, sampled_vocab_size=size) if size < model.vocab_size else model


def stop_token_ids(path: str | os.PathLike, tokenizer=None) -> tuple[int, ...]:
    """Every id that ends a response, sorted: the union of generation_config.json, config.json and the tokenizer's EOS.

    Args:
      path: model directory, or "demo".
      tokenizer: its tokenizer; without one only the directory's own settings count.

    Raises:
      ValueError: there is no EOS anywhere.
    """
    directory, ids = model_directory(path), set()
    for name in ("generation_config.json", "config.json"):
        if (directory / name).is_file():
            eos = json.loads((directory / name).read_text()).get("eos_token_id")
            ids |= set(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if not ids:
        raise ValueError(f"no eos_token_id in {directory}: responses could never end; add it to generation_config.json")
    return tuple(sorted(ids))


def _rope_scaling(rope):
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"unsupported rope scaling {kind!r}; supported: default, llama3")
    return RopeScaling(*(rope[field.name] for field in dataclasses.fields(RopeScaling)))


def _sharded(read: Callable, spec: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.Array:
    """Assembles a sharded array; equal parts on several devices are read once."""
    devices, indices = collections.defaultdict(list), {}
    for device, index in sharding.addressable_devices_indices_map(spec.shape).items():
        part = tuple(s.indices(n) for s, n in zip(index, spec.shape))
        devices[part].append(device)
        indices[part] = index
    shards = []
    for part, members in devices.items():
        block = read(indices[part])
        shards += [jax.device_put(block, device) for device in members]
    return jax.make_array_from_single_device_arrays(spec.shape, sharding, shards)


def _check_tensors(directory, files, specs, config):
    """Every tensor is there, in its shape, and none is left over."""
    used = set()
    for path, spec in jax.tree_util.tree_flatten_with_path(specs)[0]:
        stored = Stored(path[-1].key, spec, stacked=len(path) > 1)
        for name in stored.names:
            if name not in files.names:
                raise ValueError(f"tensor {name} is missing from the checkpoint in {directory}")
            if files.shape(name) != stored.shape:
                raise ValueError(f"{name} in {directory}: expected shape {stored.shape}, got {files.shape(name)}")
            used.add(name)
    if config.tie_embeddings:
        used.add("lm_head.weight")
    unread = sorted(name for name in files.names - used if not name.endswith("rotary_emb.inv_freq"))
    if unread:
        raise ValueError(f"tensors in {directory} that this architecture does not use: {', '.join(unread[:8])}")
