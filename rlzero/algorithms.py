"""The algorithms of rlzero as rows of data.

Every algorithm minimizes one weighted sum over sampled tokens, `loss = -Σ_i c_i Σ_t f(ratio_it, A_it)`, so an algorithm
is no class but the choice of A, f and c, plus how responses are sampled and what a truncated answer is worth:

    name     advantage              critic  clip low/high  normalization  KL             sampling  source
    ppo      GAE(1, 0.95), whitened yes     0.2 / 0.2      token_mean     in reward, k1  plain     1707.06347
    grpo     (R - mean) / std       no      0.2 / 0.2      sequence_mean  in loss, k3    plain     2402.03300
    dr_grpo  R - mean               no      0.2 / 0.2      constant       none           plain     2503.20783
    rloo     R - mean of others     no      0.2 / 0.2      constant       none           plain     2402.14740
    dapo     (R - mean) / std       no      0.2 / 0.28     token_mean     none           dynamic   2503.14476

(sources are arXiv ids; GAE is 1506.02438, the KL coefficient of `grpo` that of DeepSeek-R1, 2501.12948). std is the
sample deviation (ddof 1). `rloo` as published has no ratio clip; here it keeps the one of PPO, which is inactive for
one update per batch, and `clip_low=1, clip_high=inf` removes it. `dapo` averages over all tokens of the batch, as its
public code does; `normalization="group_token_mean"` is its equation as written. It also has the soft overlong penalty,
over the last fifth of the completion budget. Any column is a field and can be set alone:

    algorithm = get("grpo", clip_high=0.28, normalization="token_mean")

The arithmetic is in `rlzero.kernels`; this module imports no array library.
"""

import dataclasses
import difflib
import math
import numbers
from typing import Any

CHOICES = {
    "advantage": ("group", "leave_one_out", "gae"),
    "advantage_scale": ("std", "none"),
    "surrogate": ("clip", "gspo", "cispo"),
    "normalization": ("sequence_mean", "token_mean", "group_token_mean", "constant"),
    "kl_placement": ("none", "loss", "reward"),
    "kl_estimator": ("k1", "k2", "k3", "k3_unbiased"),
    "importance_level": ("token", "sequence"),
    "truncated": ("wrong", "score", "mask"),
}

INTERVALS = {
    "advantage_eps": "[0, inf)",
    "gamma": "[0, 1]",
    "gae_lambda": "[0, 1]",
    "clip_low": "(0, 1]",
    "clip_high": "(0, inf]",
    "dual_clip": "(1, inf]",
    "kl_coef": "[0, inf)",
    "entropy_coef": "[0, inf)",
    "importance_cap": "(0, inf]",
    "value_clip": "(0, inf]",
    "overlong_fraction": "[0, 1]",
}


def expect_within(interval: str, **values: Any) -> None:
    """Raises ValueError unless every named number lies in an interval written as in mathematics, such as "(0, 1]".

    None means "not set" and passes; a traced value cannot be judged before it runs and passes too. NaN never does.
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    for name, value in values.items():
        if value is None or (hasattr(value, "dtype") and not isinstance(value, numbers.Real)):
            continue
        number = float(value) if isinstance(value, numbers.Real) else math.nan
        above = number >= low if interval[0] == "[" else number > low
        below = number <= high if interval[-1] == "]" else number < high
        if not (above and below):
            raise ValueError(f"expected {name} in {interval}, got {value!r}")


def expect_choice(choices: tuple[str, ...], **values: Any) -> None:
    """Raises ValueError unless every named value is one of `choices`."""
    for name, value in values.items():
        if value not in choices:
            raise ValueError(f"expected {name} to be one of {', '.join(choices)}, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """What is optimized: one row of the table above, frozen and hashable so that it can be a static argument of a jit.

    Attributes:
      name: label for logs.
      advantage: "group" (R minus the group's mean), "leave_one_out" (RLOO) or "gae" (needs a critic).
      advantage_scale: "std" divides a group's advantages by its deviation (GRPO), "none" does not (Dr. GRPO).
      advantage_ddof: 1 for the sample deviation, 0 for the population's; at G = 4 they differ by 15 %.
      advantage_eps: added to the deviation.
      gamma: discount per token.
      gae_lambda: λ of GAE.
      whiten_advantages: shift and scale GAE advantages to mean 0 and deviation 1 over the optimizer batch.
      surrogate: "clip" (token ratio, PPO), "gspo" (sequence ratio, arXiv 2507.18071) or "cispo" (arXiv 2506.13585).
      clip_low: ratios under 1 - clip_low are clipped; 1 switches the lower clip off.
      clip_high: ratios over 1 + clip_high are clipped; inf switches the upper clip off.
      dual_clip: bound c > 1 of the ratio under a negative advantage (arXiv 1912.09729), None for no bound.
      normalization: the response weight c_i, see `kernels.response_weights`.
      kl_placement: where the divergence from the reference policy enters: "none", "loss" or "reward".
      kl_estimator: see `kernels.kl`, which also says whose gradient each one has.
      kl_coef: factor of the divergence.
      entropy_coef: factor of the entropy bonus.
      importance_cap: cap of exp(trainer - rollout logprob), None to leave the gap uncorrected.
      importance_level: one importance weight per "token" or per "sequence".
      value_clip: how far a value may move from the old one before the critic's loss is clipped.
      dynamic_sampling: replace groups whose rewards are all equal by fresh ones (DAPO).
      truncated: a cut answer is "wrong" whatever it says, is "score"d as it stands, or is "mask"ed out of training.
      overlong_fraction: share of the completion budget over which the soft overlong penalty grows; 0 for none.
    """

    name: str = "custom"
    advantage: str = "group"
    advantage_scale: str = "std"
    advantage_ddof: int = 1
    advantage_eps: float = 1e-6
    gamma: float = 1.0
    gae_lambda: float = 1.0
    whiten_advantages: bool = False
    surrogate: str = "clip"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    normalization: str = "token_mean"
    kl_placement: str = "none"
    kl_estimator: str = "k3"
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    importance_cap: float | None = None
    importance_level: str = "token"
    value_clip: float = 0.2
    dynamic_sampling: bool = False
    truncated: str = "wrong"
    overlong_fraction: float = 0.0

    def __post_init__(self) -> None:
        for field, choices in CHOICES.items():
            expect_choice(choices, **{field: getattr(self, field)})
        for field, interval in INTERVALS.items():
            if getattr(self, field) is None and field not in ("dual_clip", "importance_cap"):
                raise ValueError(f"expected {field} in {interval}, got None")
            expect_within(interval, **{field: getattr(self, field)})
        if self.advantage_ddof not in (0, 1):
            raise ValueError(f"expected advantage_ddof to be 0 or 1, got {self.advantage_ddof!r}")
        if self.whiten_advantages and self.advantage != "gae":
            raise ValueError(
                f"whiten_advantages is for advantage='gae' and would mix groups under advantage={self.advantage!r}; "
                "set whiten_advantages=False"
            )
        if self.kl_coef > 0 and self.kl_placement == "none":
            raise ValueError(
                f"kl_coef={self.kl_coef} has no effect with kl_placement='none'; "
                "set kl_placement='loss' or 'reward', or kl_coef=0"
            )
        if self.dual_clip is not None and self.surrogate == "cispo":
            raise ValueError("dual_clip has no effect on surrogate='cispo', whose ratio is bounded already; set None")

    @property
    def needs_critic(self) -> bool:
        """Whether a value function is trained beside the policy."""
        return self.advantage == "gae"

    @property
    def needs_reference(self) -> bool:
        """Whether the reference policy has to be kept in memory and scored."""
        return self.kl_coef > 0 and self.kl_placement != "none"

    @property
    def needs_whole_responses(self) -> bool:
        """Whether a token's term depends on the other tokens of its response, so that each needs a row of its own."""
        return looks_at_whole_responses(self.surrogate, self.importance_cap, self.importance_level)


def looks_at_whole_responses(surrogate: str, importance_cap: float | None, importance_level: str) -> bool:
    """`Algorithm.needs_whole_responses` by the columns that decide it."""
    return surrogate == "gspo" or (importance_cap is not None and importance_level == "sequence")


FIELDS = tuple(field.name for field in dataclasses.fields(Algorithm))

PRESETS: dict[str, Algorithm] = {
    preset.name: preset
    for preset in (
        Algorithm(
            name="ppo",
            advantage="gae",
            gae_lambda=0.95,
            whiten_advantages=True,
            normalization="token_mean",
            kl_placement="reward",
            kl_estimator="k1",
            kl_coef=0.001,
        ),
        Algorithm(name="grpo", normalization="sequence_mean", kl_placement="loss", kl_estimator="k3", kl_coef=0.001),
        Algorithm(name="dr_grpo", advantage_scale="none", normalization="constant"),
        Algorithm(name="rloo", advantage="leave_one_out", normalization="constant"),
        Algorithm(name="dapo", clip_high=0.28, dynamic_sampling=True, overlong_fraction=0.2),
    )
}


def get(name: str, **overrides: Any) -> Algorithm:
    """Returns a preset with some fields replaced.

    Args:
      name: one of `PRESETS`, or "custom" for the defaults of `Algorithm`.
      **overrides: fields of `Algorithm` to set.

    Returns:
      The algorithm, checked.

    Raises:
      ValueError: the name or a field is unknown (the nearest one is named), or a value is out of range.
    """
    presets = {"custom": Algorithm(), **PRESETS}
    if name not in presets:
        raise ValueError(f"unknown algorithm {name!r}; choose one of {', '.join(PRESETS)}" + _nearest(name, presets))
    for field in overrides:
        if field not in FIELDS:
            raise ValueError(f"Algorithm has no field {field!r}" + (_nearest(field, FIELDS) or f"; it has {FIELDS}"))
    return dataclasses.replace(presets[name], **overrides)


def _nearest(word: str, known) -> str:
    matches = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
