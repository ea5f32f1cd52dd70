"""The critic: zero at first, aligned with log-probabilities, and its own copy of the policy's trunk."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from toys import LLAMA, make_params

from rlzero.models import transformer, value_head

CONFIG = dataclasses.replace(LLAMA, tie_embeddings=False)
TOKENS, POSITIONS = np.arange(1, 9)[None], np.arange(8)[None]
SEGMENTS = np.ones((1, 8), int)

values = jax.jit(value_head.values, static_argnames="config")


def make_critic(dtype=jnp.float32):
    policy = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), make_params(CONFIG))
    return policy, value_head.init_critic(policy, CONFIG)


def test_first_values_are_exactly_zero_and_float32():
    _, critic = make_critic(jnp.bfloat16)
    got = values(critic, CONFIG, TOKENS, POSITIONS, SEGMENTS)
    assert got.shape == (1, 8) and got.dtype == jnp.float32 and not np.any(got)
    assert critic["head"]["weight"].dtype == critic["head"]["bias"].dtype == jnp.float32


def test_the_trunk_is_a_copy_without_the_language_head():
    policy, critic = make_critic()
    assert "lm_head" not in critic["trunk"] and critic["trunk"].keys() | {"lm_head"} == policy.keys()
    before = np.array(policy["embedding"])
    policy["embedding"].delete()  # as a donated buffer would be
    np.testing.assert_array_equal(critic["trunk"]["embedding"], before)


def test_a_value_is_the_head_applied_to_the_state_after_its_token():
    policy, critic = make_critic()
    weight = jax.random.normal(jax.random.key(1), (16,))
    critic["head"] = {"weight": weight, "bias": jnp.float32(0.5)}
    got = values(critic, CONFIG, TOKENS, POSITIONS, SEGMENTS)
    hidden = jax.jit(transformer.forward, static_argnums=1)(policy, CONFIG, TOKENS, POSITIONS, SEGMENTS)[0]
    np.testing.assert_allclose(got, hidden @ weight + 0.5, atol=1e-5)
    changed = values(critic, CONFIG, np.where(np.arange(8) == 5, 20, TOKENS), POSITIONS, SEGMENTS)
    same = np.isclose(got, changed, atol=1e-7)[0]
    assert same[:5].all() and not same[5:].any()  # entry 5 values the prefix that ends with token 5


def test_tied_models_have_critics_too():
    critic = value_head.init_critic(make_params(), LLAMA)
    critic["head"]["weight"] = jnp.ones(16)
    gradient = jax.grad(lambda critic: values(critic, LLAMA, TOKENS, POSITIONS, SEGMENTS).sum())(critic)
    assert float(gradient["head"]["bias"]) == 8
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["trunk"]))
