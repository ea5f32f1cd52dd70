"""A checkpoint's tensors from parameters in memory: names, shapes, order, dtype, and what does not fit is named."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from toys import LLAMA, make_params

from rlzero.models.huggingface import named_tensors

UNTIED = dataclasses.replace(LLAMA, tie_embeddings=False)
QWEN2 = dataclasses.replace(LLAMA, qkv_bias=True)


def test_one_tensor_a_layer_in_the_order_of_storage():
    params = make_params(QWEN2)
    tensors = named_tensors(params, QWEN2)
    names = list(tensors.shapes)
    assert len(names) == 2 + 2 * 12 and names[:2] == ["model.embed_tokens.weight", "model.norm.weight"]
    assert names.index("model.layers.0.mlp.up_proj.weight") + 1 == names.index("model.layers.1.mlp.up_proj.weight")
    for name, shape in tensors.shapes.items():
        assert tensors.fetch(name).shape == shape and tensors.fetch(name).dtype == np.float32
    np.testing.assert_array_equal(tensors.fetch("model.layers.1.mlp.down_proj.weight"), params["layers"]["down"][1].T)
    np.testing.assert_array_equal(tensors.fetch("model.layers.0.self_attn.k_proj.bias"), params["layers"]["key_bias"][0])


def test_a_tied_head_is_left_out():
    assert "lm_head.weight" not in named_tensors(make_params(), LLAMA).shapes
    params = make_params(UNTIED)
    np.testing.assert_array_equal(named_tensors(params, UNTIED).fetch("lm_head.weight"), params["lm_head"].T)


def test_sharded_parameters_are_fetched_whole_and_cast_where_they_lie():
    params = make_params(UNTIED)
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    sharded = jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(
        mesh, PartitionSpec(*[None] * (leaf.ndim - 1), "fsdp"))), params)
    own, tensors = named_tensors(params, UNTIED), named_tensors(sharded, UNTIED, jnp.bfloat16)
    for name in tensors.shapes:
        tensor = tensors.fetch(name)
        assert isinstance(tensor, np.ndarray) and tensor.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(tensor, own.fetch(name).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("config, message", [
    (QWEN2, r"expected layers.key_bias \(2, 8\), got none"),
    (dataclasses.replace(LLAMA, intermediate_size=32), r"expected layers.down \(2, 32, 16\), got \(2, 24, 16\)"),
    (UNTIED, r"expected lm_head \(16, 24\), got none")])
def test_parameters_of_another_shape_are_refused_by_name(config, message):
    with pytest.raises(ValueError, match=message):
        named_tensors(make_params(), config)
    with pytest.raises(ValueError, match="expected lm_head not to be there"):
        named_tensors(make_params(UNTIED), LLAMA)
