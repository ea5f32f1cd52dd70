"""A table on a mesh is looked up as anywhere, and neither it nor its gradient is gathered for that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rlzero.models import sharding


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 4, 1), (2, 2, 2), (8, 1, 1)], ids=str)
@pytest.mark.parametrize("tokens", [32, 3], ids="{} tokens".format)
def test_lookup_on_a_mesh_is_the_plain_one(shape, tokens):
    rng = np.random.default_rng(0)
    table, cotangent = rng.normal(size=(40, 16)).astype(np.float32), rng.normal(size=(tokens, 16)).astype(np.float32)
    indices = rng.integers(0, 40, tokens).astype(np.int32)
    mesh = sharding.make_mesh(*shape)

    @jax.jit
    def value_and_gradient(table, indices):
        value, pull_back = jax.vjp(lambda table: sharding.lookup(table, indices, jnp.float32), table)
        return value, pull_back(jnp.asarray(cotangent))[0]

    rows = sharding.BATCH_AXES if tokens == 32 else None
    with jax.set_mesh(mesh):
        placed = (jax.device_put(table, NamedSharding(mesh, PartitionSpec("tensor", "fsdp"))),
                  jax.device_put(indices, NamedSharding(mesh, PartitionSpec(rows))))
        value, gradient = value_and_gradient(*placed)
    expected = np.zeros_like(table)
    np.add.at(expected, indices, cotangent)
    np.testing.assert_array_equal(value, table[indices])
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-5)  # repeated tokens, added in another order
