"""Model directories: what is written is read back equal, and nothing is missing, ignored or half-written in silence."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from toys import LLAMA, make_params

from rlzero.models import huggingface, tensor_files, transformer

UNTIED = dataclasses.replace(LLAMA, tie_embeddings=False)
QWEN2 = dataclasses.replace(LLAMA, qkv_bias=True)
QWEN3 = dataclasses.replace(LLAMA, qk_norm=True, head_dim=6)
SCALED = dataclasses.replace(LLAMA, rope_theta=5e5, rope_scaling=transformer.RopeScaling(8.0, 1.0, 4.0, 32))


def config_of(config):
    """config.json as Hugging Face writes it for this shape."""
    raw = {
        "architectures": ["Qwen2ForCausalLM" if config.qkv_bias else "Qwen3ForCausalLM" if config.qk_norm
                          else "LlamaForCausalLM"],
        "vocab_size": 24, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": config.head_dim, "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
        "rope_theta": config.rope_theta, "tie_word_embeddings": config.tie_embeddings, "torch_dtype": "bfloat16",
        "eos_token_id": 1}
    if config.rope_scaling:
        raw["rope_scaling"] = dataclasses.asdict(config.rope_scaling) | {"rope_type": "llama3"}
    return raw


def source_directory(path, config=LLAMA, **changes):
    """A directory with everything but weights; a change to None removes the entry."""
    path.mkdir()
    raw = {name: value for name, value in (config_of(config) | changes).items() if value is not None}
    (path / "config.json").write_text(json.dumps(raw))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    (path / "tokenizer.json").write_text("{}")
    return path


def model_directory(path, config=LLAMA):
    """A complete model directory and its parameters."""
    params = make_params(config)
    huggingface.save(path, params, config, source=source_directory(path.with_name("source"), config))
    return path, params


def rewrite(directory, change):
    """Applies `change` to the dictionary of tensors."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("config", [LLAMA, UNTIED, QWEN2, QWEN3, SCALED])
def test_what_is_saved_is_loaded_again(tmp_path, config):
    directory, params = model_directory(tmp_path / "model", config)
    loaded, loaded_config = huggingface.load(directory)
    assert loaded_config == config
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(loaded))


def test_names_and_layout_are_hugging_faces(tmp_path):
    directory, params = model_directory(tmp_path / "model", QWEN2)
    tensors = load_file(directory / "model.safetensors")
    assert len(tensors) == 2 + 2 * 12
    np.testing.assert_array_equal(tensors["model.layers.1.self_attn.k_proj.weight"], params["layers"]["key"][1].T)
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.v_proj.bias"], params["layers"]["value_bias"][0])
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], params["embedding"])
    assert tensors["model.layers.0.mlp.down_proj.weight"].shape == (16, 24)  # [out, in]


def test_a_tied_head_is_left_out_and_an_untied_one_written(tmp_path):
    tied, _ = model_directory(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    assert json.loads((tied / "config.json").read_text())["tie_word_embeddings"] is True
    (tmp_path / "source").rename(tmp_path / "other")
    untied, params = model_directory(tmp_path / "untied", UNTIED)
    np.testing.assert_array_equal(load_file(untied / "model.safetensors")["lm_head.weight"], params["lm_head"].T)


def test_a_tied_checkpoint_may_hold_a_copy_of_its_head(tmp_path):
    directory, params = model_directory(tmp_path / "model")
    rewrite(directory, lambda tensors: tensors.update({"lm_head.weight": np.zeros((24, 16), np.float32)}))
    np.testing.assert_array_equal(transformer.unembedding(huggingface.load(directory)[0]), params["embedding"].T)


def test_settings_and_tokenizer_are_carried_over_and_the_dtype_is_told(tmp_path):
    params = make_params()
    source = source_directory(tmp_path / "source", custom_setting=7)
    huggingface.save(tmp_path / "model", params, LLAMA, source=source, dtype=jnp.bfloat16)
    raw = json.loads((tmp_path / "model" / "config.json").read_text())
    assert raw["custom_setting"] == 7 and raw["dtype"] == "bfloat16" and "torch_dtype" not in raw
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}
    loaded, _ = huggingface.load(tmp_path / "model", jnp.bfloat16)
    for got, want in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(got), want.astype(jnp.bfloat16))


def test_sharded_checkpoints_are_read_and_their_index_is_believed_only_if_true(tmp_path):
    directory, params = model_directory(tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names, files = sorted(tensors), ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    halves = names[:7], names[7:]
    for file, half in zip(files, halves):
        save_file({name: tensors[name] for name in half}, directory / file)
    weight_map = {name: file for file, half in zip(files, halves) for name in half}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(directory)[0], params)
    index.write_text(json.dumps({"weight_map": weight_map | {"model.ghost.weight": files[1]}}))
    with pytest.raises(ValueError, match="index.json lists tensors that no file holds: model.ghost.weight"):
        huggingface.load(directory)


@pytest.mark.parametrize("change, message", [
    (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight is missing"),
    (lambda t: t.pop("model.norm.weight"), "model.norm.weight is missing"),
    (lambda t: t.update({"model.layers.0.self_attn.o_proj.bias": np.zeros(16, np.float32)}),
     "does not use: model.layers.0.self_attn.o_proj.bias"),
    (lambda t: t.update({"model.norm.weight": np.ones(17, np.float32)}),
     r"model.norm.weight .* expected shape \(16,\), got \(17,\)"),
    (lambda t: t.update({f"model.layers.{i}.mlp.up_proj.weight": np.ones((16, 24), np.float32) for i in range(2)}),
     r"up_proj.weight in .* expected shape \(24, 16\), got \(16, 24\)")])
def test_a_tensor_that_is_missing_unused_or_misshapen_is_named(tmp_path, change, message):
    directory, _ = model_directory(tmp_path / "model")
    rewrite(directory, change)
    with pytest.raises(ValueError, match=message):
        huggingface.load(directory)


def test_rotary_buffers_of_old_checkpoints_are_no_parameters(tmp_path):
    directory, params = model_directory(tmp_path / "model")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(directory, lambda tensors: tensors.update({name: np.ones(2, np.float32)}))
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(directory)[0], params)


@pytest.mark.parametrize("changes, message", [
    ({"architectures": ["MambaForCausalLM"]}, "unknown architecture MambaForCausalLM .* LlamaForCausalLM"),
    ({"architectures": None}, "unknown architecture"),
    ({"hidden_act": "gelu"}, "hidden_act silu, got gelu"),
    ({"mlp_bias": True}, "mlp_bias=true"),
    ({"use_sliding_window": True}, "use_sliding_window=true"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "unsupported rope scaling 'yarn'")])
def test_a_config_that_would_be_read_wrong_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        huggingface.read_config(source_directory(tmp_path / "model", **changes))


def test_defaults_and_newer_spellings_of_a_config(tmp_path):
    old = source_directory(tmp_path / "old", num_key_value_heads=None, head_dim=None, rope_theta=None,
                           tie_word_embeddings=None)
    assert huggingface.read_config(old) == dataclasses.replace(LLAMA, num_kv_heads=4, tie_embeddings=False)
    new = source_directory(tmp_path / "new", rope_theta=None,
                           rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert huggingface.read_config(new) == dataclasses.replace(LLAMA, rope_theta=1e6)
    qwen2 = source_directory(tmp_path / "qwen2", architectures=["Qwen2ForCausalLM"])
    assert huggingface.read_config(qwen2) == QWEN2


def test_a_directory_without_config_or_weights_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no model at {tmp_path / 'nothing'}: expected a directory with"):
        huggingface.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no [*].safetensors in"):
        huggingface.load(source_directory(tmp_path / "model"))


def test_saving_refuses_an_existing_directory_and_another_shape(tmp_path):
    source = source_directory(tmp_path / "source")
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match="exists already; choose another"):
        huggingface.save(tmp_path / "model", make_params(), LLAMA, source=source)
    with pytest.raises(ValueError, match="shape .* is not that of"):
        huggingface.save(tmp_path / "new", make_params(UNTIED), UNTIED, source=source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "source"]


def test_a_save_that_fails_leaves_nothing_behind_and_can_be_repeated(tmp_path, monkeypatch):
    source = source_directory(tmp_path / "source")

    def full_disk(tensors, path, metadata):
        path.write_bytes(b"half of a file")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensor_files, "save_file", full_disk)
        with pytest.raises(OSError, match="No space left"):
            huggingface.save(tmp_path / "model", make_params(), LLAMA, source=source)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    huggingface.save(tmp_path / "model", make_params(), LLAMA, source=source)
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(tmp_path / "model")[0], make_params())


def test_stop_tokens_are_the_union_of_all_sources(tmp_path):
    class Tokenizer:
        eos_token_id = 9

    directory = source_directory(tmp_path / "model", eos_token_id=5)
    assert huggingface.stop_token_ids(directory) == (2, 5)
    assert huggingface.stop_token_ids(directory, Tokenizer()) == (2, 5, 9)
    (directory / "generation_config.json").unlink()
    assert huggingface.stop_token_ids(directory) == (5,)
    silent = source_directory(tmp_path / "silent", eos_token_id=None)
    (silent / "generation_config.json").write_text("{}")
    with pytest.raises(ValueError, match="no eos_token_id .* add it to generation_config.json"):
        huggingface.stop_token_ids(silent)


def test_weight_files_can_be_read_by_whom_the_config_can(tmp_path):
    directory, _ = model_directory(tmp_path / "model")
    modes = {(directory / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


def test_a_new_model_is_an_ordinary_llama(tmp_path):
    raw = huggingface.config_json(UNTIED)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert huggingface.read_config(tmp_path) == UNTIED
    assert raw["architectures"] == ["LlamaForCausalLM"] and raw["model_type"] == "llama"
    with pytest.raises(ValueError, match="written as a plain Llama"):
        huggingface.config_json(QWEN3)
