"""Small numbers for things that went wrong in public code; a kind without a handler is an error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_numbers import read_lines

from rlzero import kernels
from rlzero.algorithms import Algorithm
from rlzero.statistics import pass_at_k

CASES = read_lines("numeric_cases.jsonl")


def row(*numbers):
    return np.asarray([numbers], np.float32)


def loss_of_rows(rows, normalization):
    """The loss of given per-token losses: on policy the objective is the advantage."""
    width = max(map(len, rows))
    losses = np.asarray([row + [99] * (width - len(row)) for row in rows], np.float32)
    mask = np.asarray([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    weights = kernels.response_weights(mask.sum(1)[None], normalization=normalization)[0]
    return kernels.policy_loss(losses, losses, -losses, mask, weights, algorithm=Algorithm())[0]


def kl3(x):
    return kernels.kl(x[None, None], jnp.zeros((1, 1)), row(1), estimator="k3")[0, 0]


def k3(case):
    return kl3(jnp.float32(-case["ref_minus_policy"]))


def k3_finite(case):
    value, gradient = jax.value_and_grad(kl3)(jnp.float32(-case["ref_minus_policy"]))
    assert np.isfinite(value) and np.isfinite(gradient)
    return "finite value and gradient"


def group(**options):
    return lambda case: kernels.group_relative(row(*case["rewards"]), **options)[0]


def unscored(case):
    rewards = [np.nan if reward is None else reward for reward in case["rewards"]]
    valid = np.asarray([[reward is not None for reward in case["rewards"]]])
    advantages = kernels.leave_one_out(row(*rewards), valid=valid)[0]
    assert advantages[case["rewards"].index(None)] == 0
    return [None if reward is None else float(a) for reward, a in zip(case["rewards"], advantages)]


def gae(case):
    arrays = (row(*case[name]) for name in ("rewards", "values", "mask"))
    return kernels.gae(*arrays, gamma=case["gamma"], lam=case["lam"])[0][0]


def logprob(case):
    logits = row(*case["logits"])
    return kernels.token_logprobs(logits, np.eye(3, dtype=np.float32), np.asarray([case["token"]]),
                                  temperature=case["T"])[0][0]


def bf16(case):
    stored = np.float32(jnp.asarray(case["logp"], jnp.bfloat16))
    assert stored == case["bf16"]
    terms = kernels.clipped_surrogate(row(stored), row(case["logp"]), row(1), row(1), clip_low=1, clip_high=np.inf)
    return {"ratio": float(terms.ratio[0, 0])}


def ragged(case):
    """Neither tokens nor vocabulary are a multiple of the chunk."""
    hidden = np.full((case["V"], 1), case["logit"], np.float32)
    targets = np.arange(case["V"])
    logprobs, _ = kernels.token_logprobs(hidden, np.ones((1, case["V"]), np.float32), targets, chunk=case["chunk"])
    np.testing.assert_allclose(logprobs, logprobs[0], rtol=1e-6)
    return logprobs[-1]


def clip(case):
    terms = kernels.clipped_surrogate(
        jnp.log(row(case["ratio"])), row(0), row(case["adv"]), row(1), clip_low=case["eps_low"],
        clip_high=case["eps_high"], dual_clip=case.get("c"),
    )
    return -terms.objective[0, 0]


def importance(level):
    def handler(case):
        delta = row(*case["trainer_minus_engine"])
        weights = kernels.truncated_importance(
            delta, np.zeros_like(delta), np.ones_like(delta), cap=case["C"], level=level
        )[0]
        return weights if level == "token" else np.unique(weights)[0]

    return handler


HANDLERS = {
    "token_mean_4_equal_microbatches": lambda case: loss_of_rows(case["loss"], "token_mean"),
    "grpo_seq_mean": lambda case: loss_of_rows(case["loss"], "sequence_mean"),
    "dapo_token_mean": lambda case: loss_of_rows(case["loss"], "token_mean"),
    "k3": k3,
    "k3_finite": k3_finite,
    "adv_equal_rewards_float32": group(),
    "grpo_ddof0_eps1e-6": group(ddof=0),
    "grpo_ddof1_eps1e-6": group(),
    "dr_grpo": group(scale="none"),
    "rloo": lambda case: kernels.leave_one_out(row(*case["rewards"]))[0],
    "unscored_is_not_zero_rloo": unscored,
    "gae": gae,
    "logp_at_temperature": logprob,
    "bf16_logp_is_not_enough": bf16,
    "logp_ragged_chunk": ragged,
    "clip_loss": clip,
    "dual_clip_loss": clip,
    "whiten": lambda case: kernels.whiten(row(*case["values"]), row(*case["mask"]))[0],
    "overlong": lambda case: kernels.soft_overlong_penalty(case["len"], max_length=case["L_max"], cache=case["cache"]),
    "tis_token": importance("token"),
    "tis_sequence": importance("sequence"),
    "pass_at_k": lambda case: pass_at_k(case["n"], case["c"], case["k"]),
    "value_loss_clipped": lambda case: kernels.clipped_value_loss(
        row(case["V"]), row(case["V_old"]), row(case["R"]), row(1), clip=case["clip"])[0, 0],
}
ELSEWHERE = {"group_by_id": "kernels take rewards already grouped; grouping is the sampler's and tested there"}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case):
    if case["what"] in ELSEWHERE:
        pytest.skip(ELSEWHERE[case["what"]])
    result, expected = HANDLERS[case["what"]](case["input"]), case["expected"]
    if isinstance(expected, dict):
        assert result.keys() == expected.keys()
        result, expected = list(result.values()), list(expected.values())
    if isinstance(expected, str):
        assert result == expected
        return
    pairs = [(r, e) for r, e in zip(np.ravel(result), np.ravel(expected)) if e is not None]
    np.testing.assert_allclose(*map(np.asarray, zip(*pairs)), rtol=max(case["tol"], 0), atol=case["tol"])
