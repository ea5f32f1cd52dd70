"""A batch of 24 responses computed in float64 NumPy from the papers: values and gradients of every kernel."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_numbers import read_arrays, read_json

from rlzero import kernels
from rlzero.algorithms import Algorithm

INPUTS = read_arrays("inputs.npz")
ARRAYS = read_arrays("paper_ref.npz")
RESULTS = read_json("paper_ref.json")
P, G, L = 6, 4, 32
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
CLIPS = {
    "sym": (0.2, 0.2, None), "dapo": (0.2, 0.28, None), "dual_sym": (0.2, 0.2, 3.0), "dual_dapo": (0.2, 0.28, 3.0)
}
LOSS = re.compile(r"loss_(sym|dapo|dual_sym|dual_dapo)_(token|seq|const|seqsum|grouptoken)_(\w+)_rows(nonempty|all)")


def inputs(name, dtype):
    return jnp.asarray(INPUTS[name], dtype)


@functools.cache
def loss_and_gradient(clip_low, clip_high, dual_clip, dtype):
    algorithm = Algorithm(clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)

    def loss(logprobs, old_logprobs, advantages, mask, weights):
        return kernels.policy_loss(logprobs, old_logprobs, advantages, mask, weights, algorithm=algorithm)[0]

    return jax.jit(jax.value_and_grad(loss))


def weights_of(aggregation, mask, rows):
    lengths = jnp.sum(mask, axis=1).reshape(P, G)
    count = {"all": P * G, "nonempty": int(np.sum(np.asarray(lengths) > 0))}[rows]
    options = {
        "token": {"normalization": "token_mean"},
        "grouptoken": {"normalization": "group_token_mean"},
        "seq": {"normalization": "sequence_mean", "num_responses": count},
        "const": {"normalization": "constant", "max_completion_length": L, "num_responses": count},
        "seqsum": {"normalization": "constant", "max_completion_length": 1, "num_responses": count},
    }[aggregation]
    default = {"seq": "nonempty", "const": "all", "seqsum": "all"}
    if default.get(aggregation) == rows:
        options.pop("num_responses")
    return kernels.response_weights(lengths, **options).reshape(-1)


def compare_loss(key, clip, mask, weights, advantages, dtype):
    value, gradient = loss_and_gradient(*clip, dtype)(
        inputs("logp_new", dtype), inputs("logp_old", dtype), advantages.reshape(-1, 1), mask, weights
    )
    scale = np.abs(ARRAYS[f"{key}__grad"]).max()
    np.testing.assert_allclose(value, RESULTS[key]["loss"], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)
    np.testing.assert_allclose(
        gradient, ARRAYS[f"{key}__grad"], rtol=TOLERANCE[dtype], atol=1e-16 if dtype == "float64" else 1e-6 * scale
    )


def check_loss(key, dtype):
    clip, aggregation, mask, rows = LOSS.fullmatch(key).groups()
    mask = inputs(mask, dtype)
    advantages = kernels.group_relative(inputs("rewards_pm", dtype).reshape(P, G))
    compare_loss(key, CLIPS[clip], mask, weights_of(aggregation, mask, rows), advantages, dtype)


def check_drgrpo(key, dtype):
    budget, mask = re.fullmatch(r"drgrpo_(\d+)_(\w+)", key).groups()
    mask = inputs(mask, dtype)
    advantages = kernels.group_relative(inputs("rewards_pm", dtype).reshape(P, G), scale="none")
    weights = kernels.response_weights(
        jnp.sum(mask, axis=1).reshape(P, G), normalization="constant", max_completion_length=int(budget)
    )
    compare_loss(key, CLIPS["sym"], mask, weights.reshape(-1), advantages, dtype)


def check_advantages(key, dtype):
    kind, rewards = re.fullmatch(r"adv_(\w+?)_(rewards\w+)", key).groups()
    rewards = inputs(rewards, dtype).reshape(P, G)
    advantages = {
        "grpo_ddof0": lambda: kernels.group_relative(rewards, ddof=0, eps=0),
        "grpo_ddof1": lambda: kernels.group_relative(rewards, ddof=1, eps=0),
        "drgrpo": lambda: kernels.group_relative(rewards, scale="none"),
        "rloo": lambda: kernels.leave_one_out(rewards),
    }[kind]()
    np.testing.assert_allclose(
        advantages.reshape(-1), ARRAYS[f"{key}__advantages"], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] / 10
    )


def check_gae(key, dtype):
    gamma, lam, mask = re.fullmatch(r"gae_g([\d.]+)_l([\d.]+)_(\w+)", key).groups()
    # The goldens move a terminal reward to the last trained token, where the learner puts it.
    mask = INPUTS[mask] > 0
    rewards = np.zeros_like(INPUTS["token_rewards_pm"])
    last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
    rewards[np.arange(len(mask)), last] = INPUTS["rewards_pm"]
    advantages, returns = kernels.gae(
        jnp.asarray(rewards, dtype), inputs("values", dtype), mask, gamma=float(gamma), lam=float(lam)
    )
    whitened = kernels.whiten(advantages, mask, ddof=1)
    for name, value in {"advantages": advantages, "returns": returns, "advantages_whitened": whitened}.items():
        expected = np.where(mask, ARRAYS[f"{key}__{name}"], 0)
        np.testing.assert_allclose(value, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], err_msg=name)


def check_value_loss(key, dtype):
    mask = inputs("mask", dtype)
    _, returns = kernels.gae(
        inputs("token_rewards_pm", dtype), inputs("values", dtype), mask, gamma=1.0, lam=0.95
    )
    losses = kernels.clipped_value_loss(inputs("vpreds", dtype), inputs("values", dtype), returns, mask, clip=0.2)
    np.testing.assert_allclose(jnp.sum(losses) / jnp.sum(mask), RESULTS[key]["loss"], rtol=TOLERANCE[dtype])


def check_kl(key, dtype):
    mask = INPUTS["mask"] > 0
    value = kernels.kl(inputs("logp_new", dtype), inputs("logp_ref", dtype), mask, estimator=key.removeprefix("kl_"))
    expected = np.where(mask, ARRAYS[f"{key}__value"], 0)
    np.testing.assert_allclose(value, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] / 10)


def check_importance(key, dtype):
    weights = kernels.truncated_importance(
        inputs("logp_old", dtype), inputs("logp_rollout", dtype), INPUTS["mask"], cap=2.0
    )
    np.testing.assert_allclose(weights, ARRAYS[f"{key}__weights"], rtol=TOLERANCE[dtype])


HANDLERS = {
    LOSS: check_loss,
    re.compile(r"drgrpo_\d+_mask\w*"): check_drgrpo,
    re.compile(r"adv_\w+"): check_advantages,
    re.compile(r"gae_.*"): check_gae,
    re.compile(r"value_loss_clip"): check_value_loss,
    re.compile(r"kl_k[123]"): check_kl,
    re.compile(r"tis_token_2"): check_importance,
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("key", RESULTS)
def test_reference(key, dtype):
    matching = [handler for pattern, handler in HANDLERS.items() if pattern.fullmatch(key)]
    assert len(matching) == 1, f"no handler for {key}"
    with jax.enable_x64(dtype == "float64"):
        matching[0](key, dtype)
