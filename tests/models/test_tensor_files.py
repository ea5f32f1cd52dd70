"""Weight files: parts are read without the rest, files are bounded, and an index is the truth or an error."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file
from test_huggingface import QWEN2, UNTIED, model_directory, source_directory
from toys import make_params

from rlzero.models import huggingface, tensor_files, transformer

_AXES = {"embed": "fsdp", "mlp": "tensor", "heads": "tensor", "kv_heads": "tensor", "vocab": "tensor"}


def shardings(config, data=1, fsdp=4, tensor=2):
    mesh = jax.make_mesh((data, fsdp, tensor), ("data", "fsdp", "tensor"),
                         axis_types=(jax.sharding.AxisType.Auto,) * 3)
    return jax.tree.map(lambda spec: NamedSharding(mesh, PartitionSpec(*map(_AXES.get, spec.axes))),
                        transformer.parameter_specs(config),
                        is_leaf=lambda leaf: isinstance(leaf, transformer.ParameterSpec))


@pytest.fixture
def reads(monkeypatch):
    """The shapes of everything that is read from weight files."""
    shapes = []

    def read(self, name, index, original=tensor_files.TensorFiles.read):
        part = original(self, name, index)
        shapes.append(part.shape)
        return part

    monkeypatch.setattr(tensor_files.TensorFiles, "read", read)
    return shapes


@pytest.mark.parametrize("config", [UNTIED, QWEN2])
@pytest.mark.parametrize("axes", [(1, 4, 2), (2, 2, 2), (8, 1, 1), (1, 8, 1)])
def test_sharded_parameters_are_the_same_and_lie_where_they_were_wanted(tmp_path, config, axes):
    directory, params = model_directory(tmp_path / "model", config)
    wanted = shardings(config, *axes)
    loaded, _ = huggingface.load(directory, shardings=wanted)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert jax.tree.all(jax.tree.map(lambda leaf, sharding: leaf.sharding == sharding, loaded, wanted))
    assert all(leaf.committed for leaf in jax.tree.leaves(loaded))


def test_a_part_is_read_without_the_rest_and_once_for_all_its_replicas(tmp_path, reads):
    directory, params = model_directory(tmp_path / "model", UNTIED)
    huggingface.load(directory, shardings=shardings(UNTIED, data=2, fsdp=2, tensor=2))
    # The largest reads are a quarter of the embedding's and the head's [24, 16]; no stacked [2, 16, 24] is ever whole.
    assert max(map(math.prod, reads)) == 24 * 16 // 4
    assert sum(map(math.prod, reads)) == sum(leaf.size for leaf in jax.tree.leaves(params))


def test_the_host_assembles_one_devices_part_at_a_time(tmp_path, monkeypatch):
    directory, _ = model_directory(tmp_path / "model", UNTIED)
    sizes, put = [], jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda block, device: sizes.append(block.size) or put(block, device))
    huggingface.load(directory, shardings=shardings(UNTIED))
    assert max(sizes) == 2 * 16 * 24 // 8


def test_bfloat16_is_read_in_parts_too(tmp_path):
    params = make_params(UNTIED)
    source = source_directory(tmp_path / "source", UNTIED)
    huggingface.save(tmp_path / "model", params, UNTIED, source=source, dtype=jnp.bfloat16)
    loaded, _ = huggingface.load(tmp_path / "model", shardings=shardings(UNTIED))
    for got, want in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, want.astype(jnp.bfloat16).astype(np.float32))


@pytest.mark.parametrize("dtype, itemsize", [(np.float32, 4), (jnp.bfloat16, 2)])
@pytest.mark.parametrize("limit_kb", [1, 2, 5])
def test_large_models_are_cut_into_files_with_a_true_index(tmp_path, dtype, itemsize, limit_kb):
    params = jax.device_put(make_params(UNTIED), shardings(UNTIED))
    source = source_directory(tmp_path / "source", UNTIED)
    huggingface.save(tmp_path / "model", params, UNTIED, source=source, dtype=dtype, max_shard_bytes=limit_kb * 1024)
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    assert [file.name for file in files] == [f"model-{i:05d}-of-{len(files):05d}.safetensors"
                                             for i in range(1, len(files) + 1)]
    stored = {file.name: load_file(file) for file in files}
    assert index["weight_map"] == {name: file for file, tensors in stored.items() for name in tensors}
    sizes = {name: tensor.nbytes for tensors in stored.values() for name, tensor in tensors.items()}
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert sum(sizes.values()) == itemsize * sum(leaf.size for leaf in jax.tree.leaves(params))
    for tensors in stored.values():
        assert len(tensors) == 1 or sum(sizes[name] for name in tensors) <= limit_kb * 1024
    loaded, _ = huggingface.load(tmp_path / "model", dtype)
    jax.tree.map(lambda got, want: np.testing.assert_array_equal(np.asarray(got), np.asarray(want).astype(dtype)),
                 loaded, params)


def sharded_directory(path):
    """A model in several files, its index, and the dictionary in it."""
    huggingface.save(path, make_params(UNTIED), UNTIED, source=source_directory(path.with_name("source"), UNTIED),
                     max_shard_bytes=4096)
    index = path / "model.safetensors.index.json"
    return path, index, json.loads(index.read_text())["weight_map"]


def test_files_that_the_index_does_not_mention_are_left_alone(tmp_path):
    directory, _, _ = sharded_directory(tmp_path / "model")
    save_file({"tok_embeddings.weight": np.zeros(3, np.float32)}, directory / "consolidated.safetensors")
    jax.tree.map(np.testing.assert_array_equal, huggingface.load(directory)[0], make_params(UNTIED))


def test_an_index_that_is_not_true_is_refused_by_name(tmp_path):
    directory, index, weight_map = sharded_directory(tmp_path / "model")
    norm, files = "model.norm.weight", sorted(set(weight_map.values()))

    def refused(error, message, changed):
        index.write_text(json.dumps({"weight_map": changed}))
        with pytest.raises(error, match=message):
            huggingface.load(directory)

    refused(ValueError, "lists tensors that no file holds: model.ghost", weight_map | {"model.ghost": files[0]})
    refused(ValueError, "does not list tensors that its files hold: model.norm.weight",
            {name: file for name, file in weight_map.items() if name != norm})
    other = next(file for file in files if file != weight_map[norm])
    refused(ValueError, "wrong file for model.norm.weight", weight_map | {norm: other})
    (directory / files[-1]).unlink()
    refused(FileNotFoundError, f"files that are not there: {files[-1]}", weight_map)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    directory, _ = model_directory(tmp_path / "model")
    save_file({"model.norm.weight": np.zeros(16, np.float32)}, directory / "more.safetensors")
    with pytest.raises(ValueError, match="model.norm.weight is in two files .* model.safetensors and more.safetensors"):
        huggingface.load(directory)
