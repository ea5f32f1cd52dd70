"""The GGUF converter on a tiny file made here: every number lands where it belongs, every digit is a token."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from rlzero.models import huggingface, transformer
from rlzero.training import config as config_lib

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed: pip install -e '.[gguf]'")

_SCRIPT = pathlib.Path(__file__).parents[2] / "launch" / "smollm2.py"
_CONFIG = transformer.ModelConfig(
    vocab_size=272, hidden_size=96, intermediate_size=64, num_layers=2, num_heads=3, num_kv_heads=1, head_dim=32,
    rope_theta=1e5, norm_eps=1e-5, max_position_embeddings=512, tie_embeddings=True)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="module")
def smollm2():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("smollm2", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def permuted(weights, heads):
    """Rows of a head's two halves, interleaved: how llama.cpp stores queries and keys."""
    head_dim = len(weights) // heads
    order = [head * head_dim + half * head_dim // 2 + i
             for head in range(heads) for i in range(head_dim // 2) for half in range(2)]
    return weights[order]


def vocabulary():
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["an", "12", "Ġan", "ĊĊ"]
    filler = [f"<|unused{i}|>" for i in range(_CONFIG.vocab_size - len(_SPECIAL) - len(letters) - len(words))]
    return _SPECIAL + letters + words + filler, ["a n", "1 2", "Ġ an", "Ċ Ċ"]


def write_gguf(path, *, change=lambda tensors: None, pre="smollm"):
    """A GGUF file as llama.cpp's converter writes it; returns our parameters that it stands for."""
    rng = np.random.default_rng(0)
    specs = transformer.abstract_params(_CONFIG)
    params = {name: rng.normal(size=spec.shape).astype(np.float32) for name, spec in specs.items() if name != "layers"}
    params["layers"] = {name: rng.normal(size=spec.shape).astype(np.float32) for name, spec in specs["layers"].items()}
    names = {"attention_norm": "attn_norm", "query": "attn_q", "key": "attn_k", "value": "attn_v",
             "output": "attn_output", "mlp_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    tensors = {"token_embd.weight": params["embedding"], "output_norm.weight": params["final_norm"]}
    for name, stacked in params["layers"].items():
        for layer, weights in enumerate(stacked):
            weights = weights.T if weights.ndim == 2 else weights
            if name in ("query", "key"):
                weights = permuted(weights, _CONFIG.num_heads if name == "query" else _CONFIG.num_kv_heads)
            tensors[f"blk.{layer}.{names[name]}.weight"] = np.ascontiguousarray(weights)
    change(tensors)
    tokens, merges = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(_CONFIG.max_position_embeddings)
    writer.add_embedding_length(_CONFIG.hidden_size)
    writer.add_block_count(_CONFIG.num_layers)
    writer.add_feed_forward_length(_CONFIG.intermediate_size)
    writer.add_head_count(_CONFIG.num_heads)
    writer.add_head_count_kv(_CONFIG.num_kv_heads)
    writer.add_rope_freq_base(_CONFIG.rope_theta)
    writer.add_layer_norm_rms_eps(_CONFIG.norm_eps)
    writer.add_vocab_size(_CONFIG.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in _SPECIAL else 1 for token in tokens])
    writer.add_token_merges(merges)
    for add, index in ((writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_unk_token_id, 0),
                       (writer.add_pad_token_id, 2)):
        add(index)
    writer.add_chat_template("{{ messages }}")
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and name != "token_embd.weight":
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        elif tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return params


@pytest.fixture(scope="module")
def converted(smollm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    params = write_gguf(folder / "toy.gguf")
    smollm2.convert(folder / "toy.gguf", folder / "model")
    return folder / "model", params


def test_every_parameter_is_where_it_belongs(converted):
    directory, params = converted
    loaded, config = huggingface.load(directory)
    assert config == _CONFIG
    np.testing.assert_array_equal(loaded["final_norm"], params["final_norm"])
    # Q8_0 rounds to 1/254 of the largest of 32 numbers, Q4_1 to 1/30 of their range; a misplaced row is off by 1.
    np.testing.assert_allclose(loaded["embedding"], params["embedding"], atol=0.03)
    for name, stacked in params["layers"].items():
        np.testing.assert_allclose(loaded["layers"][name], stacked, atol=0 if "norm" in name else 0.3, err_msg=name)


def test_unpermuting_undoes_what_the_file_did(smollm2):
    weights = np.random.default_rng(0).normal(size=(96, 8))
    np.testing.assert_array_equal(smollm2.unpermuted(permuted(weights, 3), 3), weights)
    assert not np.array_equal(permuted(weights, 3), weights)


def test_digits_stay_single_and_text_comes_back(converted):
    tokenizer = huggingface.load_tokenizer(converted[0])
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("an 12an x12\n\n"))
    assert tokens == ["an", "Ġ", "1", "2", "an", "Ġ", "x", "1", "2", "ĊĊ"]
    for text in ("7 * 8 = 56\n", "zwölf an 3.5, <|im_end|>", "  \t\n\n 10"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_start|>a<|im_end|>")[::2] == [1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert huggingface.stop_token_ids(converted[0], tokenizer) == (2,)


def test_the_directory_is_an_ordinary_tied_llama(converted):
    raw = json.loads((converted[0] / "config.json").read_text())
    assert raw["architectures"] == ["LlamaForCausalLM"] and raw["tie_word_embeddings"] is True
    assert raw["rms_norm_eps"] == 1e-5 and raw["rope_theta"] == 1e5 and raw["dtype"] == "float32"
    assert json.loads((converted[0] / "generation_config.json").read_text())["eos_token_id"] == 2


@pytest.mark.parametrize("arguments, message", [
    ({"change": lambda tensors: tensors.pop("blk.1.ffn_up.weight")}, "missing or unknown: blk.1.ffn_up.weight"),
    ({"change": lambda tensors: tensors.update({"output.weight": np.ones((32, 32), np.float32)})},
     "missing or unknown: output.weight"),
    ({"pre": "llama-bpe"}, "expected tokenizer.ggml.pre 'smollm', got 'llama-bpe'; this script knows SmolLM2 only")])
def test_another_model_is_refused(smollm2, tmp_path, arguments, message):
    write_gguf(tmp_path / "toy.gguf", **arguments)
    with pytest.raises(ValueError, match=message):
        smollm2.convert(tmp_path / "toy.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_errors_of_the_command_are_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, _SCRIPT, f"--output={tmp_path}", f"--gguf={tmp_path / 'none.gguf'}"], text=True,
        capture_output=True, check=False, timeout=120,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(_SCRIPT.parents[1])})
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_run_on_the_converted_model_ends_responses_at_a_newline(converted, tmp_path):
    root = _SCRIPT.parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "rlzero.train", f"--config=configs/smollm2.py:{converted[0]}", f"--workdir={tmp_path}",
         "--config.steps=1", "--config.prompts_per_step=2", "--config.group_size=2", "--config.evaluation.problems=3",
         "--config.evaluation.samples_per_problem=1", "--config.rollout.max_prompt_length=256",
         "--config.learner.micro_batch_size=0"], cwd=root, text=True, capture_output=True, check=False, timeout=300,
        env=os.environ | {"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert r"stop tokens 2 '<|im_end|>' and 2 with '\n'" in done.stdout
    saved = config_lib.load(tmp_path / "config.json")
    assert saved.rollout.stop_text == "\n" and saved.data.task == "few_shot_arithmetic"
