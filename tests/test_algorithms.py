"""The table of algorithms: presets, overrides, and what is refused."""

import dataclasses
import subprocess
import sys

import pytest

from rlzero import algorithms

TABLE = {
    "ppo": ("gae", True, 0.2, 0.2, "token_mean", "reward", "k1", False),
    "grpo": ("group", False, 0.2, 0.2, "sequence_mean", "loss", "k3", False),
    "dr_grpo": ("group", False, 0.2, 0.2, "constant", "none", "k3", False),
    "rloo": ("leave_one_out", False, 0.2, 0.2, "constant", "none", "k3", False),
    "dapo": ("group", False, 0.2, 0.28, "token_mean", "none", "k3", True),
}


@pytest.mark.parametrize("name", TABLE)
def test_presets_are_the_rows_of_the_table(name):
    a = algorithms.get(name)
    row = (a.advantage, a.needs_critic, a.clip_low, a.clip_high, a.normalization, a.kl_placement, a.kl_estimator,
           a.dynamic_sampling)
    assert row == TABLE[name] and a.name == name and a is not None
    assert list(algorithms.PRESETS) == list(TABLE)


def test_what_the_table_says_in_words():
    assert algorithms.get("dr_grpo").advantage_scale == "none"
    assert algorithms.get("grpo").advantage_ddof == algorithms.get("dapo").advantage_ddof == 1
    assert algorithms.get("dapo").overlong_fraction == 0.2
    ppo = algorithms.get("ppo")
    assert (ppo.gamma, ppo.gae_lambda, ppo.whiten_advantages) == (1.0, 0.95, True)


def test_any_column_can_be_set_alone_and_the_result_is_hashable():
    a = algorithms.get("dapo", normalization="group_token_mean")
    assert hash(a) != hash(algorithms.get("dapo"))
    assert dataclasses.replace(a, normalization="token_mean") == algorithms.get("dapo")
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.clip_low = 0.1


def test_reference_is_needed_only_with_a_coefficient_and_a_place():
    assert algorithms.get("grpo").needs_reference and algorithms.get("ppo").needs_reference
    assert not algorithms.get("grpo", kl_coef=0.0).needs_reference
    assert not algorithms.get("dapo").needs_reference


@pytest.mark.parametrize("name, message", [("dappo", "did you mean 'dapo'"), ("zzz", "choose one of ppo, grpo")])
def test_unknown_names_are_answered_with_the_choices(name, message):
    with pytest.raises(ValueError, match=message):
        algorithms.get(name)


@pytest.mark.parametrize(
    "override, message",
    [
        ({"clip_hihg": 0.3}, "no field 'clip_hihg'; did you mean 'clip_high'"),
        ({"clip_low": 0.0}, r"expected clip_low in \(0, 1\], got 0.0"),
        ({"clip_low": 1.5}, r"clip_low in \(0, 1\]"),
        ({"clip_high": float("nan")}, r"clip_high in \(0, inf\], got nan"),
        ({"clip_high": "0.2"}, r"clip_high in \(0, inf\], got '0.2'"),
        ({"clip_high": None}, "clip_high in .*, got None"),
        ({"dual_clip": 1.0}, r"dual_clip in \(1, inf\], got 1.0"),
        ({"gamma": 1.01}, r"gamma in \[0, 1\]"),
        ({"gae_lambda": -0.1}, r"gae_lambda in \[0, 1\]"),
        ({"importance_cap": 0.0}, r"importance_cap in \(0, inf\]"),
        ({"overlong_fraction": 1.2}, r"overlong_fraction in \[0, 1\]"),
        ({"kl_coef": float("inf")}, r"kl_coef in \[0, inf\)"),
        ({"normalization": "mean"}, "normalization to be one of sequence_mean, .*, got 'mean'"),
        ({"truncated": "drop"}, "truncated to be one of wrong, score, mask"),
        ({"advantage_ddof": 2}, "advantage_ddof to be 0 or 1, got 2"),
        ({"kl_coef": 0.1}, "set kl_placement='loss' or 'reward'"),
        ({"whiten_advantages": True}, "set whiten_advantages=False"),
        ({"surrogate": "cispo", "dual_clip": 3.0}, "dual_clip has no effect"),
    ],
)
def test_bad_fields_are_refused_with_a_sentence(override, message):
    with pytest.raises(ValueError, match=message):
        algorithms.get("dapo", **override)


def test_the_table_needs_no_array_library():
    code = "import sys, rlzero.algorithms; sys.exit(any(m in sys.modules for m in ('jax', 'numpy', 'flax', 'absl')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
