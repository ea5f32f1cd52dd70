"""Makes tests/models/fixtures: a tiny random checkpoint of every supported family, and what transformers says of it.

    python tests/models/make_fixtures.py [--output=tests/models/fixtures]

Needs torch (a CPU build is enough), transformers and safetensors, and nothing of rlzero. Each directory holds a
config.json with the options of a published checkpoint at toy size, random weights, and `expected.npz`: token ids, the
log-probability of each next token, and the logits after the last one, all computed by transformers in float32.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
VOCABULARY, ROWS, LENGTH = 128, 4, 40

_SIZE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
         "initializer_range": 0.02, "use_cache": True, "attention_dropout": 0.0, "torch_dtype": "bfloat16"}
_LLAMA = _SIZE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
                  "mlp_bias": False, "pretraining_tp": 1, "rms_norm_eps": 1e-5}
_LLAMA3 = _LLAMA | {"num_key_value_heads": 2, "rope_theta": 500000.0, "max_position_embeddings": 8192}
_QWEN2 = _SIZE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2,
                  "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 32768,
                  "sliding_window": 131072, "max_window_layers": 1, "use_sliding_window": False}
_QWEN3 = _SIZE | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_key_value_heads": 2,
                  "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "max_position_embeddings": 40960, "head_dim": 16,
                  "attention_bias": False, "sliding_window": None, "max_window_layers": 2, "use_sliding_window": False,
                  "rope_scaling": None}


def _scaling(factor):
    """Llama 3.1's, with an original context so short that the fixture's rows leave it."""
    return {"rope_scaling": {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 16, "rope_type": "llama3"}}


# The spelling is that of the published files: what a config leaves unsaid is the library's default on both sides.
FAMILIES = {
    "llama2": _LLAMA | {"num_key_value_heads": 4, "rope_scaling": None, "max_position_embeddings": 4096,
                        "tie_word_embeddings": False},
    "llama3": _LLAMA3 | {"tie_word_embeddings": False},
    "llama3_1": _LLAMA3 | _scaling(8.0) | {"max_position_embeddings": 131072, "tie_word_embeddings": False},
    "llama3_2": _LLAMA3 | _scaling(32.0) | {"max_position_embeddings": 131072, "tie_word_embeddings": True,
                                            "head_dim": 8},
    "qwen2": _QWEN2 | {"tie_word_embeddings": True},
    "qwen2_5": _QWEN2 | {"tie_word_embeddings": False},
    "qwen2_5_math": _QWEN2 | {"rope_theta": 10000.0, "max_position_embeddings": 4096, "sliding_window": 4096,
                              "tie_word_embeddings": False},
    "qwen2_5_math_tied": _QWEN2 | {"rope_theta": 10000.0, "max_position_embeddings": 4096, "sliding_window": 4096,
                                   "tie_word_embeddings": True},
    "qwen3": _QWEN3 | {"tie_word_embeddings": False},
    "qwen3_tied": _QWEN3 | {"tie_word_embeddings": True},
    "smollm2": _LLAMA | {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48, "rope_theta": 100000,
                         "max_position_embeddings": 8192, "rope_interleaved": False, "rope_scaling": None,
                         "tie_word_embeddings": True},
    "deepseek_math": _LLAMA | {"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                               "rope_scaling": None, "max_position_embeddings": 4096, "tie_word_embeddings": False},
}
# Written by transformers itself: its own spelling of the config, float32, cut into files with an index.
SHARDED = {"llama3_1_sharded": FAMILIES["llama3_1"]}


def make_checkpoint(directory: pathlib.Path, raw: dict, *, seed: int, sharded: bool = False) -> None:
    """Writes config.json and random weights of standard deviation 0.3, norms around 1, biases around 0."""
    import torch
    import transformers

    directory.mkdir(parents=True)
    config_file = directory / "config.json"
    config_file.write_text(json.dumps(raw, indent=2) + "\n")
    dtype = torch.float32 if sharded else torch.bfloat16
    config = transformers.AutoConfig.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise + float("norm" in name))
    model.save_pretrained(directory, max_shard_size="40KB" if sharded else "1GB")
    (directory / "generation_config.json").unlink()
    if not sharded:
        config_file.write_text(json.dumps(raw, indent=2) + "\n")


def expected(directory: pathlib.Path, *, seed: int) -> dict[str, np.ndarray]:
    """Random token ids `[ROWS, LENGTH]`, their log-probabilities, and the logits after each row, from transformers."""
    import torch
    import transformers

    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (ROWS, LENGTH))
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens)).logits
    logprobs = torch.log_softmax(logits[:, :-1], dim=-1).gather(-1, torch.from_numpy(tokens[:, 1:, None]))[..., 0]
    return {"tokens": tokens.astype(np.uint8), "logprobs": logprobs.numpy(), "last_logits": logits[:, -1].numpy()}


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description="Makes the checkpoints of the family tests; needs torch.")
    parser.add_argument("--output", type=pathlib.Path, default=FIXTURES, help="directory, replaced if it exists")
    output = parser.parse_args().output
    transformers.utils.logging.disable_progress_bar()
    shutil.rmtree(output, ignore_errors=True)
    for seed, (name, raw) in enumerate((FAMILIES | SHARDED).items()):
        make_checkpoint(output / name, raw, seed=seed, sharded=name in SHARDED)
        np.savez_compressed(output / name / "expected.npz", **expected(output / name, seed=seed))
        print(f"{name:20} {sum(path.stat().st_size for path in (output / name).iterdir()):8,} bytes")


if __name__ == "__main__":
    main()
