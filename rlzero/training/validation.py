"""Says what is wrong with a config, all of it at once, before any device work.

Every sentence names the flag, the value it has, what was expected, and a value that works. The limits of one field
stand beside the field in `sections.py`; the rules here are about fields that must fit together.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from rlzero import algorithms
from rlzero.rollout import stopping
from rlzero.training import config as config_lib
from rlzero.training import data_rules, reward_rules
from rlzero.training import sections

_URL = re.compile(r"https?://[^\s/,]+")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text",
          sections.OptionalFloat: "a number or none"}


def validate(config: config_lib.Config) -> None:
    """Checks the config of a training run.

    Raises:
      ValueError: one line for each thing that is wrong.
    """
    problems = field_problems(config)
    values = {name: value for name, (_, value) in config_lib.leaves(config).items()}
    if not any(name.startswith("algorithm.") for name in problems):
        try:
            config.algorithm.freeze()
        except ValueError as error:
            problems["algorithm"] = f"--config.algorithm: {error}."
    for names, rule in _RULES:
        if not any(name in problems for name in names):
            sentence = rule(*(values[name] for name in names))
            if sentence:
                problems[names[0]] = sentence
    raise_problems(problems)


def raise_problems(problems: Mapping[str, str]) -> None:
    """Raises one ValueError with all the sentences, if there are any."""
    if problems:
        raise ValueError("\n".join(problems.values()))


def field_problems(config: Any) -> dict[str, str]:
    """Types and limits of every single field of a config dataclass: dotted name -> sentence."""
    problems = {}
    for name, (field, value) in config_lib.leaves(config).items():
        expected = _expected(field, value)
        if expected:
            flag = f"--config.{name}"
            problems[name] = f"{flag}={value}: expected {expected}, for example {flag}={field.default}."
    return problems


def _expected(field: dataclasses.Field, value: Any) -> str:
    """What the field expected, in words, if the value is not it."""
    within, choices = field.metadata.get("within", ""), field.metadata.get("choices", ())
    if choices:
        return "" if value in choices else f"one of {', '.join(choices)}"
    kind = _KINDS[field.type] + _in_words(within)
    if not _has_type(value, field.type):
        return kind
    if value is None or isinstance(value, (bool, str)):
        return ""
    try:
        algorithms.expect_within(within or "(-inf, inf)", **{field.name: value})
    except ValueError:
        return kind if within else "a finite number"
    return ""


def _has_type(value: Any, kind: Any) -> bool:
    if kind is sections.OptionalFloat:
        return value is None or _has_type(value, float)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _in_words(within: str) -> str:
    """"[0, 1)" -> ", at least 0, below 1"."""
    if not within:
        return ""
    low, high = (end.strip() for end in within[1:-1].split(","))
    words = f" {'at least' if within[0] == '[' else 'above'} {low}"
    if not math.isinf(float(high)):
        words += f" and {'at most' if within[-1] == ']' else 'below'} {high}"
    return words


def _divisors_near(number: int, wished: int) -> str:
    """The divisors of `number` on both sides of a wished one, as text."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    near = {max(d for d in divisors if d <= max(wished, 1)), min(d for d in divisors if d >= min(wished, number))}
    return " or ".join(str(d) for d in sorted(near))


def _group_size(group_size: int, advantage: str, dynamic_sampling: bool) -> str | None:
    if group_size >= 2 or (advantage == "gae" and not dynamic_sampling):
        return None
    reason = ("dynamic sampling keeps groups that hold right and wrong answers" if advantage == "gae" else
              f"--config.algorithm.advantage={advantage} compares the answers of a group with each other")
    return f"--config.group_size={group_size}: {reason}, so it needs at least 2, for example --config.group_size=8."


def _mini_batches(mini_batches: int, prompts_per_step: int) -> str | None:
    if prompts_per_step % mini_batches == 0:
        return None
    return (f"--config.learner.mini_batches={mini_batches}: must divide --config.prompts_per_step={prompts_per_step}, "
            f"because a group stays in one mini-batch; valid numbers near it: "
            f"{_divisors_near(prompts_per_step, mini_batches)}.")


def _critic_mini_batches(mini_batches: int, prompts_per_step: int, advantage: str) -> str | None:
    if advantage != "gae" or mini_batches <= prompts_per_step:
        return None
    return (f"--config.critic.mini_batches={mini_batches}: a group stays in one mini-batch, so at most "
            f"--config.prompts_per_step={prompts_per_step} of them have any; use at most "
            f"--config.critic.mini_batches={prompts_per_step}, or 0 for as many as the policy's.")


def _micro_batch_size(micro_batch_size: int, prompts_per_step: int, group_size: int, mini_batches: int,
                      pack_tokens: int) -> str | None:
    if micro_batch_size == 0 or pack_tokens or prompts_per_step % mini_batches:
        return None
    responses = prompts_per_step // mini_batches * group_size
    if responses % micro_batch_size == 0:
        return None
    return (f"--config.learner.micro_batch_size={micro_batch_size}: must divide the {responses} responses of a "
            f"mini-batch ({prompts_per_step} prompts x {group_size} samples / {mini_batches} mini-batches); valid "
            f"numbers near it: {_divisors_near(responses, micro_batch_size)}, or 0 for all at once.")


def _pack_tokens(pack_tokens: int, max_prompt_length: int, max_completion_length: int) -> str | None:
    longest = max_prompt_length + max_completion_length
    if pack_tokens == 0 or pack_tokens >= longest:
        return None
    return (f"--config.learner.pack_tokens={pack_tokens}: a row must hold the longest prompt and completion, "
            f"{max_prompt_length} + {max_completion_length} tokens; use at least "
            f"--config.learner.pack_tokens={longest}, or 0 for no packing.")


def _packed_responses(pack_tokens: int, surrogate: str, importance_cap: float | None, level: str) -> str | None:
    if pack_tokens == 0 or not algorithms.looks_at_whole_responses(surrogate, importance_cap, level):
        return None
    return (f"--config.learner.pack_tokens={pack_tokens}: an algorithm with one ratio per response "
            "(--config.algorithm.surrogate=gspo or importance_level=sequence) needs a row for each; use "
            "--config.learner.pack_tokens=0.")


def _nucleus(top_p: float) -> str | None:
    if top_p == 1:
        return None
    return (f"--config.rollout.top_p={top_p}: a nucleus cuts the distribution that is being trained, so that its "
            "log-probabilities are not the policy's; train with --config.rollout.top_p=1, and choose "
            "--config.evaluation.top_p freely.")


def _top_k(top_k: int) -> str | None:
    if top_k == 0:
        return None
    return (f"--config.rollout.top_k={top_k}: top-k sampling cuts the distribution that is being trained, so that its "
            "log-probabilities are not the policy's; train with --config.rollout.top_k=0.")


def _reference_refresh(steps: int, kl_placement: str, kl_coef: float) -> str | None:
    if steps == 0 or (kl_coef > 0 and kl_placement != "none"):
        return None
    return (f"--config.learner.reference_refresh_steps={steps}: there is no reference policy to refresh without a "
            "divergence from it; set --config.algorithm.kl_placement=loss and --config.algorithm.kl_coef=0.001, or "
            "--config.learner.reference_refresh_steps=0.")


def _overlong(fraction: float, max_completion_length: int) -> str | None:
    if fraction == 0 or round(fraction * max_completion_length) >= 1:
        return None
    return (f"--config.algorithm.overlong_fraction={fraction}: of --config.rollout.max_completion_length="
            f"{max_completion_length} tokens that is less than one token; use at least "
            f"--config.algorithm.overlong_fraction={1 / max_completion_length:.3g}, or 0 for no penalty.")


def _critic_only(name: str) -> Callable[[Any, str], str | None]:
    """The rule for a column that only algorithms with a critic read."""
    default = algorithms.Algorithm.__dataclass_fields__[name].default

    def rule(value: Any, advantage: str) -> str | None:
        if advantage == "gae" or value == default:
            return None
        return (f"--config.algorithm.{name}={value}: only algorithms with a critic read it, and "
                f"--config.algorithm.advantage={advantage} has none; set --config.algorithm.{name}={default}, or start "
                "from the ppo preset.")
    return rule


def _policy_frozen(frozen: int, steps: int, advantage: str) -> str | None:
    if advantage != "gae" or frozen < steps:
        return None
    return (f"--config.critic.policy_frozen_steps={frozen}: with --config.steps={steps} the policy would never learn; "
            f"use at most {steps - 1}, for example --config.critic.policy_frozen_steps={steps // 10}.")


def _cosine(section: str) -> Callable[..., str | None]:
    """The rule for the schedule of an optimizer; the critic's counts only where there is one."""
    def rule(warmup_steps: int, schedule: str, steps: int, advantage: str) -> str | None:
        if schedule != "cosine" or warmup_steps < steps or (section == "critic" and advantage != "gae"):
            return None
        return (f"--config.{section}.warmup_steps={warmup_steps}: leaves no step of --config.steps={steps} for the "
                f"cosine; use at most {steps - 1}, for example --config.{section}.warmup_steps={steps // 10}, or "
                f"--config.{section}.schedule=constant.")
    return rule


def _greedy_evaluation(samples: int, temperature: float) -> str | None:
    if temperature > 0 or samples == 1:
        return None
    return (f"--config.evaluation.samples_per_problem={samples}: at --config.evaluation.temperature=0 all samples of a "
            "problem are the same; use --config.evaluation.samples_per_problem=1, or a temperature of 1.")


def _model_path(path: str) -> str | None:
    if path == "demo" or os.path.isfile(os.path.join(path, "config.json")):
        return None
    what = "there is no config.json in it" if os.path.isdir(path) else "there is no such directory"
    return (f"--config.model.path={path}: {what}; give a Hugging Face model directory, or --config.model.path=demo for "
            "the small model inside the package.")


def _stop_text(text: str) -> str | None:
    complaint = stopping.complaint(text.split(",")) if text else ""
    if not complaint:
        return None
    return (f"--config.rollout.stop_text={text!r}: {complaint}; for example --config.rollout.stop_text='</answer>', or "
            "nothing for the model's own ends.")


def _servers(servers: str, engine: str) -> str | None:
    urls = [url.strip() for url in servers.split(",")]
    example = "--config.rollout.servers=http://10.0.0.5:30000,http://10.0.0.6:30000"
    if engine == "local":
        return None if not servers else (f"--config.rollout.servers={servers}: nobody is asked there with "
                                         "--config.rollout.engine=local; set --config.rollout.engine=sglang.")
    if not servers:
        return ("--config.rollout.servers: --config.rollout.engine=sglang needs the URLs of servers, for example "
                f"{example}.")
    if all(_URL.fullmatch(url) for url in urls) and len(set(urls)) == len(urls):
        return None
    return (f"--config.rollout.servers={servers}: expected different URLs with commas between them, for example "
            f"{example}.")


def _router(router: str, engine: str) -> str | None:
    if not router or (engine == "sglang" and _URL.fullmatch(router)):
        return None
    return (f"--config.rollout.router={router}: expected the URL of a router in front of the servers of "
            "--config.rollout.engine=sglang, for example --config.rollout.router=http://10.0.0.4:30000, or nothing.")


def _staleness(max_staleness: int, engine: str) -> str | None:
    if max_staleness == 0 or engine == "sglang":
        return None
    return (f"--config.rollout.max_staleness={max_staleness}: the local engine has the trainer's devices, so nothing "
            "can be sampled while it trains; use --config.rollout.max_staleness=0, or --config.rollout.engine=sglang.")


def _redo(on_lost: str, engine: str) -> str | None:
    if on_lost == "train" or engine == "sglang":
        return None
    return f"--config.rollout.on_lost={on_lost}: the local engine loses nothing; use --config.rollout.on_lost=train."


# The fields a rule reads -> the rule. A rule is asked only when each of its fields is fine on its own.
_RULES: tuple[tuple[tuple[str, ...], Callable[..., str | None]], ...] = (
    (("group_size", "algorithm.advantage", "algorithm.dynamic_sampling"), _group_size),
    (("learner.mini_batches", "prompts_per_step"), _mini_batches),
    (("critic.mini_batches", "prompts_per_step", "algorithm.advantage"), _critic_mini_batches),
    (("learner.micro_batch_size", "prompts_per_step", "group_size", "learner.mini_batches", "learner.pack_tokens"),
     _micro_batch_size),
    (("learner.pack_tokens", "rollout.max_prompt_length", "rollout.max_completion_length"), _pack_tokens),
    (("learner.pack_tokens", "algorithm.surrogate", "algorithm.importance_cap", "algorithm.importance_level"),
     _packed_responses),
    (("rollout.top_p",), _nucleus),
    (("rollout.top_k",), _top_k),
    (("rollout.stop_text",), _stop_text),
    *data_rules.RULES,
    (("rollout.servers", "rollout.engine"), _servers),
    (("rollout.router", "rollout.engine"), _router),
    (("rollout.max_staleness", "rollout.engine"), _staleness),
    (("rollout.on_lost", "rollout.engine"), _redo),
    (("learner.reference_refresh_steps", "algorithm.kl_placement", "algorithm.kl_coef"), _reference_refresh),
    (("algorithm.overlong_fraction", "rollout.max_completion_length"), _overlong),
    (("algorithm.gamma", "algorithm.advantage"), _critic_only("gamma")),
    (("algorithm.gae_lambda", "algorithm.advantage"), _critic_only("gae_lambda")),
    (("algorithm.value_clip", "algorithm.advantage"), _critic_only("value_clip")),
    (("critic.policy_frozen_steps", "steps", "algorithm.advantage"), _policy_frozen),
    (("optimizer.warmup_steps", "optimizer.schedule", "steps", "algorithm.advantage"), _cosine("optimizer")),
    (("critic.warmup_steps", "critic.schedule", "steps", "algorithm.advantage"), _cosine("critic")),
    *reward_rules.RULES,
    (("evaluation.samples_per_problem", "evaluation.temperature"), _greedy_evaluation),
    (("model.path",), _model_path),
)
