"""Numbers worked out from the papers, one handler per kind of key; a key without a handler is an error."""

import re
from math import comb

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_numbers import read_json

from rlzero import kernels
from rlzero.statistics import pass_at_k

VALUES = read_json("paper_values.json")
CLOSE = {"rtol": 1e-12, "atol": 1e-15}  # the goldens are float64; only the order of operations differs


def row(*numbers):
    return np.asarray([numbers], np.float64)


def check_clip(key, cases):
    for case in cases:
        def objective(logprobs):
            terms = kernels.clipped_surrogate(
                logprobs, row(np.log(0.04)), row(case["A"]), row(1),
                clip_low=case["eps_low"], clip_high=case["eps_high"], dual_clip=case["dual_c"],
            )
            return terms.objective[0, 0], terms

        logprobs = row(np.log(0.04) + np.log(case["ratio"]))
        (value, terms), gradient = jax.value_and_grad(objective, has_aux=True)(logprobs)
        np.testing.assert_allclose(value, case["objective"], **CLOSE)
        np.testing.assert_allclose(gradient[0, 0], case["d_obj_d_logp"], **CLOSE)
        np.testing.assert_allclose(terms.ratio[0, 0], case["ratio"], **CLOSE)
        assert bool(terms.clipped_low[0, 0] | terms.clipped_high[0, 0]) == (case["branch"] == "clipped")


def check_gae(key, case):
    gamma, lam = map(float, re.match(r"gae_gamma([\d.]+)_lam([\d.]+)_", key).groups())
    rewards, values = row(0, 0, 1), row(0.6, 0.7, 0.9)
    advantages, returns = kernels.gae(rewards, values, row(1, 1, 1), gamma=gamma, lam=lam)
    deltas, _ = kernels.gae(rewards, values, row(1, 1, 1), gamma=gamma, lam=0)
    np.testing.assert_allclose(advantages[0], case["advantages"], **CLOSE)
    np.testing.assert_allclose(returns[0], case["returns"], **CLOSE)
    np.testing.assert_allclose(deltas[0], case["deltas"], **CLOSE)


def check_group(key, case):
    rewards = row(*case["rewards"])
    calls = {
        "ddof0": {"ddof": 0, "eps": 0}, "ddof1": {"ddof": 1, "eps": 0}, "drgrpo": {"scale": "none"},
        "ddof1_eps1e_4": {"eps": 1e-4}, "ddof1_eps1e_6": {"eps": 1e-6}, "ddof1_eps1e_8": {"eps": 1e-8},
    }
    for name, options in calls.items():
        np.testing.assert_allclose(kernels.group_relative(rewards, **options)[0], case[name], **CLOSE)
    np.testing.assert_allclose(kernels.leave_one_out(rewards)[0], case["rloo"], **CLOSE)
    both = [kernels.group_relative(rewards, ddof=ddof, eps=0)[0, 0] for ddof in (0, 1)]
    np.testing.assert_allclose(both[0] / both[1], case["ratio_ddof0_over_ddof1"], **CLOSE)
    unchecked = set(case) - set(calls) - {"rewards", "rloo", "ratio_ddof0_over_ddof1", "mean", "std_ddof0", "std_ddof1"}
    assert not unchecked


def check_lone_outlier(key, cases):
    for size, case in cases.items():
        rewards = row(*([1] * (int(size) - 1) + [0]))
        for ddof in (0, 1):
            outlier = kernels.group_relative(rewards, ddof=ddof, eps=0)[0, -1]
            np.testing.assert_allclose(-outlier, case[f"ddof{ddof}"], **CLOSE)


def check_closed_form(key, text):
    for size, correct in ((4, 1), (8, 5), (16, 15)):
        p, rewards = correct / size, row(*([7] * correct + [-3] * (size - correct)))
        advantages = kernels.group_relative(rewards, eps=0)[0]
        np.testing.assert_allclose(advantages[0], np.sqrt((1 - p) * (size - 1) / (p * size)), **CLOSE)
        np.testing.assert_allclose(advantages[-1], -np.sqrt(p * (size - 1) / ((1 - p) * size)), **CLOSE)


def check_degenerate(key, texts):
    for eps in (0, 1e-8, 1e-4):
        assert not np.any(kernels.group_relative(row(0.3, 0.3, 0.3), eps=eps))


def check_weights(key, case):
    lengths = row(*case["lengths"])
    for name, options in {
        "sample_level": {"normalization": "sequence_mean"},
        "token_level": {"normalization": "token_mean"},
        "drgrpo_const_1000": {"normalization": "constant", "max_completion_length": 1000},
    }.items():
        weights = kernels.response_weights(lengths, **options)
        np.testing.assert_allclose(weights[0], case[f"{name}_per_token"], **CLOSE)
        np.testing.assert_allclose((weights * lengths)[0], case[f"{name}_per_sequence"], **CLOSE)
        ratio = {"sample_level": "ratio_short_over_long_sample_level", "token_level": "ratio_token_level"}.get(name)
        if ratio:
            np.testing.assert_allclose(weights[0, 0] / weights[0, 1], case[ratio], **CLOSE)


def check_effective_weight(key, cases):
    for name, expected in cases.items():
        size, length = map(int, re.fullmatch(r"G(\d+)_len(\d+)", name).groups())
        lengths = row(*([length] + [5] * (size - 1)))
        weights = kernels.response_weights(lengths, normalization="sequence_mean")
        np.testing.assert_allclose(weights[0, 0], expected, **CLOSE)


def check_overlong(key, cases):
    lengths = np.asarray([int(length) for length in cases])
    penalties = kernels.soft_overlong_penalty(lengths, max_length=20480, cache=4096)
    np.testing.assert_allclose(penalties, list(cases.values()), **CLOSE)


def check_headroom(key, cases):
    for case in cases:
        ceiling = np.log(np.asarray([[case["p"] * 100]]))
        terms = kernels.clipped_surrogate(
            ceiling, row(np.log(case["p"])), row(1), row(1), clip_low=0.2, clip_high=case["eps"]
        )
        np.testing.assert_allclose(case["p"] * terms.objective[0, 0], case["max_p"], **CLOSE)
        np.testing.assert_allclose(case["max_p"] - case["p"], case["headroom"], **CLOSE)


def check_pass_at_k(key, cases):
    for name, expected in cases.items():
        n, c, k = map(int, re.fullmatch(r"n(\d+)_c(\d+)_k(\d+)", name).groups())
        np.testing.assert_allclose(pass_at_k(n, c, k), expected, **CLOSE)


def check_kl(key, cases):
    for case in cases:
        for estimator in ("k1", "k2", "k3"):
            value = kernels.kl(row(case["logp"]), row(case["logref"]), row(1), estimator=estimator)
            np.testing.assert_allclose(value[0, 0], case[estimator], **CLOSE)


def check_keep_probability(key, cases):
    """A group is kept if some advantage is nonzero: summed here over all numbers of correct answers."""
    for name, expected in cases.items():
        p, size = re.fullmatch(r"p([\d.]+)_G(\d+)", name).groups()
        p, size = float(p), int(size)
        correct = np.arange(size + 1)
        rewards = (np.arange(size) < correct[:, None]).astype(np.float64)
        kept = np.any(np.asarray(kernels.leave_one_out(rewards)) != 0, axis=1)
        chance = np.asarray([comb(size, int(c)) * p**c * (1 - p) ** (size - c) for c in correct])
        np.testing.assert_allclose(chance[kept].sum(), expected, rtol=1e-9)


def check_leave_one_out_scale(key, text):
    """Another library's convention (baseline and deviation both without the sample itself), which is not ours."""
    ours = kernels.group_relative(row(1, 1, 1, -1))[0]
    assert not np.allclose(ours, [0.57735, 0.57735, 0.57735, -2.0], atol=1e-2)


def check_note(key, text):
    assert isinstance(text, str)


HANDLERS = {
    r"clip_ratio_.*": check_clip,
    r"gae_gamma.*": check_gae,
    r"grpo_adv_.*": check_group,
    r"lone_outlier_abs_advantage": check_lone_outlier,
    r"adv_closed_form_ddof1": check_closed_form,
    r"degenerate": check_degenerate,
    r"weights_len100_900_G2": check_weights,
    r"effective_weight_per_token_1_over_G_len": check_effective_weight,
    r"soft_overlong_Lmax20480_Lcache4096": check_overlong,
    r"clip_headroom_p_eps": check_headroom,
    r"passk_unbiased": check_pass_at_k,
    r"kl_estimators_worked": check_kl,
    r"dynamic_sampling_keep_prob": check_keep_probability,
    r"nemo_rl_default_loo": check_leave_one_out_scale,
    r"clip_headroom_note": check_note,
}


@pytest.mark.parametrize("key", VALUES)
def test_paper_value(key, x64):
    matching = [handler for pattern, handler in HANDLERS.items() if re.fullmatch(pattern, key)]
    assert len(matching) == 1, f"no handler for {key}"
    matching[0](key, VALUES[key])


def test_gradients_of_the_kl_estimators_in_the_loss(x64):
    """Exact expectation over a categorical: k2 and k3_unbiased reverse, k1 nothing, k3 forward divergence."""
    golden = read_json("kl_inloss_gradients.json")
    policy, reference = np.asarray(golden["policy"]), np.asarray(golden["reference"])
    for estimator, expected in {
        "k1": golden["k1"], "k2": golden["true_grad"], "k3": golden["grad_of_forward_KL(q||p)"],
        "k3_unbiased": golden["true_grad"],
    }.items():
        def expectation(logits):
            logprobs = jax.nn.log_softmax(logits)[None]
            terms = kernels.kl(logprobs, np.log(reference)[None], np.ones((1, 6)), estimator=estimator)
            return jnp.sum(policy * terms[0])

        gradient = jax.grad(expectation)(np.log(policy))
        np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-15, err_msg=estimator)
    np.testing.assert_allclose(golden["k3_times_ratio"], golden["true_grad"], rtol=1e-10)
    np.testing.assert_allclose(golden["k3"], golden["grad_of_forward_KL(q||p)"], rtol=1e-10)


def test_k1_times_ratio_is_the_score_function_estimate(x64):
    """The golden's k1_times_ratio is the gradient of the surrogate whose advantage is minus k1."""
    golden = read_json("kl_inloss_gradients.json")
    policy, reference = np.asarray(golden["policy"]), np.asarray(golden["reference"])

    def expectation(logits):
        logprobs = jax.nn.log_softmax(logits)[None]
        log_ratio = kernels.kl(logprobs, np.log(reference)[None], np.ones((1, 6)), estimator="k1")
        terms = kernels.clipped_surrogate(
            logprobs, np.log(policy)[None], -log_ratio, np.ones((1, 6)), clip_low=1, clip_high=np.inf
        )
        return -jnp.sum(policy * terms.objective[0])

    np.testing.assert_allclose(jax.grad(expectation)(np.log(policy)), golden["k1_times_ratio"], rtol=1e-10)
