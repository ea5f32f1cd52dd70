"""Hugging Face model directories in and out: config.json, safetensors weights, tokenizer and generation settings.

One table (`_TENSORS`) relates our parameter names to the checkpoint's; reading and writing are the same table in both
directions, and every tensor must be accounted for: one that is missing or left unread is an error that names it.
No torch is involved.
"""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from rlzero.models.transformer import ModelConfig, RopeScaling, abstract_params

DEMO_MODEL = pathlib.Path(__file__).parent.parent / "demo_model"

_ARCHITECTURES = {  # architecture -> (qkv_bias default, qk_norm)
    "LlamaForCausalLM": (False, False),
    "Qwen2ForCausalLM": (True, False),
    "Qwen3ForCausalLM": (False, True),
}
_TENSORS = {  # our name -> (checkpoint name, transposed)
    "embedding": ("model.embed_tokens.weight", False),
    "final_norm": ("model.norm.weight", False),
    "lm_head": ("lm_head.weight", True),
    "attention_norm": ("model.layers.{}.input_layernorm.weight", False),
    "query": ("model.layers.{}.self_attn.q_proj.weight", True),
    "key": ("model.layers.{}.self_attn.k_proj.weight", True),
    "value": ("model.layers.{}.self_attn.v_proj.weight", True),
    "output": ("model.layers.{}.self_attn.o_proj.weight", True),
    "query_bias": ("model.layers.{}.self_attn.q_proj.bias", False),
    "key_bias": ("model.layers.{}.self_attn.k_proj.bias", False),
    "value_bias": ("model.layers.{}.self_attn.v_proj.bias", False),
    "query_norm": ("model.layers.{}.self_attn.q_norm.weight", False),
    "key_norm": ("model.layers.{}.self_attn.k_norm.weight", False),
    "mlp_norm": ("model.layers.{}.post_attention_layernorm.weight", False),
    "gate": ("model.layers.{}.mlp.gate_proj.weight", True),
    "up": ("model.layers.{}.mlp.up_proj.weight", True),
    "down": ("model.layers.{}.mlp.down_proj.weight", True),
}
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
    bias_default, qk_norm = _ARCHITECTURES[architecture]
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"expected hidden_act silu, got {raw['hidden_act']}")
    for option in ("mlp_bias", "use_sliding_window"):
        if raw.get(option):
            raise ValueError(f"{option}=true in {path} is not supported")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
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
        max_position_embeddings=raw.get("max_position_embeddings", 2048),
        tie_embeddings=raw.get("tie_word_embeddings", False),
        qkv_bias=raw.get("attention_bias", bias_default),
        qk_norm=qk_norm,
    )


def load(path: str | os.PathLike, dtype=jnp.float32) -> tuple[dict, ModelConfig]:
    """Reads a model directory.

    Args:
      path: directory, or "demo".
      dtype: dtype of the parameters in memory.

    Returns:
      The parameter tree of `transformer.parameter_specs` and the model's config.

    Raises:
      FileNotFoundError: no model there. ValueError: unknown architecture, missing, unread or misshapen tensors.
    """
    directory, config = model_directory(path), read_config(path)
    sources = _tensor_sources(directory)
    wanted = abstract_params(config, dtype)
    read = set()

    def fetch(name, layer=None):
        checkpoint_name, transposed = _TENSORS[name]
        checkpoint_name = checkpoint_name.format(layer)
        if checkpoint_name not in sources:
            raise ValueError(f"tensor {checkpoint_name} is missing from the checkpoint in {directory}")
        read.add(checkpoint_name)
        tensor = np.asarray(sources[checkpoint_name].get_tensor(checkpoint_name))
        return tensor.T if transposed else tensor

    def assemble(name, spec, stacked):
        tensor = np.stack([fetch(name, i) for i in range(config.num_layers)]) if stacked else fetch(name)
        if tensor.shape != spec.shape:
            raise ValueError(f"{_TENSORS[name][0]} in {directory}: expected shape {spec.shape}, got {tensor.shape}")
        return jnp.asarray(tensor, dtype)

    params = {name: assemble(name, spec, stacked=False) for name, spec in wanted.items() if name != "layers"}
    params["layers"] = {name: assemble(name, spec, stacked=True) for name, spec in wanted["layers"].items()}
    ignored = {"lm_head.weight"} if config.tie_embeddings else set()
    unread = sorted(name for name in sources if name not in read | ignored and not name.endswith("rotary_emb.inv_freq"))
    if unread:
        raise ValueError(f"tensors in {directory} that this architecture does not use: {', '.join(unread[:8])}")
    return params, config


def save(path: str | os.PathLike, params: Mapping, config: ModelConfig, *, source: str | os.PathLike,
         dtype=np.float32) -> None:
    """Writes an ordinary model directory, complete or not at all.

    Weights come from `params` (a tied head is left out); config.json, tokenizer and generation settings are carried
    over from `source`, with the stored dtype updated. The directory appears under its name only when it is complete.

    Args:
      path: directory to create; an existing one is refused.
      params: tree of `transformer.parameter_specs(config)`.
      config: the model's shape.
      source: model directory (or "demo") whose config and tokenizer this model keeps.
      dtype: dtype of the stored weights.
    """
    path, source = pathlib.Path(path), model_directory(source)
    if path.exists():
        raise FileExistsError(f"{path} exists already; choose another directory or remove it")
    if read_config(source) != config:
        raise ValueError(f"the parameters' shape {config} is not that of {source}")
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        save_file(_checkpoint_tensors(params, config, dtype), partial / "model.safetensors", metadata={"format": "pt"})
        raw = json.loads((source / "config.json").read_text())
        raw["dtype"] = np.dtype(dtype).name
        raw.pop("torch_dtype", None)
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
        for name in _CARRIED_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
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


def stop_token_ids(path: str | os.PathLike, tokenizer=None) -> tuple[int, ...]:
    """Every id that ends a response: the union of generation_config.json, config.json and the tokenizer's EOS."""
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


def _tensor_sources(directory):
    """Maps every tensor name to the open safetensors file that holds it."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no *.safetensors in {directory}")
    handles = [safe_open(file, framework="numpy") for file in files]
    sources = {name: handle for handle in handles for name in handle.keys()}
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        missing = sorted(set(json.loads(index.read_text())["weight_map"]) - set(sources))
        if missing:
            raise ValueError(f"{index} lists tensors that no file holds: {', '.join(missing[:8])}")
    return sources


def _checkpoint_tensors(params, config, dtype):
    def convert(name, value):
        return np.ascontiguousarray(np.asarray(value.T if _TENSORS[name][1] else value, dtype))

    tensors = {_TENSORS[name][0]: convert(name, value) for name, value in params.items() if name != "layers"}
    for name, stacked in params["layers"].items():
        for layer in range(config.num_layers):
            tensors[_TENSORS[name][0].format(layer)] = convert(name, stacked[layer])
    return tensors
