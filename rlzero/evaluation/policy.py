"""What is evaluated: a checkpoint, a model directory or running servers; how it is asked, and on which problems."""

import dataclasses
import pathlib
from typing import Any

from rlzero import rewards
from rlzero.data import layouts, tasks
from rlzero.data.problems import Problem, PromptReport, prepare
from rlzero.models import huggingface, transformer
from rlzero.rollout.engine import Engine, Sampling
from rlzero.rollout.fleet import FleetOptions
from rlzero.rollout.local import LocalEngine
from rlzero.rollout.sglang import SGLangEngine, SGLangOptions
from rlzero.rollout.stopping import stop_text
from rlzero.training import config as config_lib
from rlzero.training import saved_policy
from rlzero.training.grading import Score, evaluation_score
from rlzero.training.problem_sets import training_and_held_out
from rlzero.training.sections import RewardSection


@dataclasses.dataclass(frozen=True)
class Policy:
    """Weights, their shape, the directory of config and tokenizer, and a name for people."""

    params: Any
    model: transformer.ModelConfig
    path: str
    name: str
    tokenizer: Any


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a policy is asked.

    Attributes:
      template: around each question, see `data.templates`.
      budget: most tokens of a completion.
      longest: most tokens of a prompt.
      stop_text: texts that end a response too, with commas between them; "" for none.
      reward: how answers are graded.
      task: generated task, where no sets are named.
      task_seed: of the task.
    """

    template: str
    budget: int
    longest: int
    stop_text: str
    reward: RewardSection
    task: str
    task_seed: int = 0


def load_run(workdir: str) -> tuple[Policy, Setting, config_lib.Config]:
    """The newest checkpoint of a run, the setting it was trained in, and its config.

    Raises:
      FileNotFoundError, ValueError: see `saved_policy.load`.
    """
    saved = saved_policy.load(workdir)
    config, model = saved.config, saved.model
    tokenizer = huggingface.load_tokenizer(config.model.path)
    if config.model.mask_unused_ids:
        model = huggingface.without_unused_ids(model, tokenizer)
    policy = Policy(saved.params, model, config.model.path, f"checkpoint of step {saved.step} in {workdir}", tokenizer)
    rollout = config.rollout
    return policy, Setting(config.data.template, rollout.max_completion_length, rollout.max_prompt_length,
                           rollout.stop_text, config.reward, config.data.task, config.data.task_seed), config


def load_model(path: str) -> Policy:
    """A model directory, or the demo.

    Raises:
      FileNotFoundError, ValueError: there is none, or it cannot be read.
    """
    params, model = huggingface.load(path)
    return Policy(params, model, path, f"model {path}", huggingface.load_tokenizer(path))


def setting_of(values: Any, policy: Policy, template: str) -> Setting:
    """The setting that the flags of `rlzero.evaluate` name for a model directory."""
    budget = values.max_completion_length
    return Setting(template, budget, policy.model.max_position_embeddings - budget, values.stop_text,
                   RewardSection(mode=values.mode, workers=values.workers), values.task)


def named_sets(paths: str, layout: str) -> dict[str, list[Problem]]:
    """Problem sets named with commas between their paths; each is called by the last part of its path.

    Raises:
      FileNotFoundError, ValueError: one cannot be read, or two are called the same.
    """
    found: dict[str, list[Problem]] = {}
    for path in (part.strip() for part in paths.split(",") if part.strip()):
        name = pathlib.Path(path).stem
        if name in found:
            raise ValueError(f"two sets of --sets are called {name!r}; evaluate them one after the other")
        found[name] = layouts.load(path, layout)
    return found


def encoded(problems: list[Problem], tokenizer: Any, setting: Setting, most: int) -> tuple[list[Problem], PromptReport]:
    """The first problems that can be asked and graded, with their prompts; and the account of all.

    Raises:
      ValueError: there is none.
    """
    kept, report = prepare(problems, tokenizer, max_prompt_length=setting.longest, template=setting.template,
                           readable=lambda gold: rewards.parses(gold, setting.reward.mode))
    return kept[:most], report


def problem_sets(setting: Setting, policy: Policy, *, sets: str, layout: str, most: int,
                 config: config_lib.Config | None = None) -> dict[str, list[Problem]]:
    """The problems to evaluate on, by name: those of `sets`, or held-out ones of the run, or of the task.

    What had to be left out is printed.

    Args:
      setting: how they are asked.
      policy: whom.
      sets: paths with commas between them; "" for the run's own or the task.
      layout: of the sets.
      most: problems of each set.
      config: of the run, if it is one.

    Raises:
      FileNotFoundError, ValueError: a set cannot be read, or nothing of it can be asked.
    """
    if not sets and config is not None and config.data.files:
        return {"held out": training_and_held_out(config, policy.tokenizer)[1][:most]}
    found = named_sets(sets, layout) if sets else {
        setting.task: tasks.problems(setting.task, "held_out", most, seed=setting.task_seed)}
    kept = {}
    for name, problems in found.items():
        kept[name], report = encoded(problems, policy.tokenizer, setting, most)
        if report.kept < report.given:
            print(f"{name}: {report}")
    return kept


def make_engine(policy: Policy, longest_prompt: tuple[int, ...], *, servers: str, budget: int) -> Engine:
    """The engine that is asked: here with the policy's weights, or servers with those that they have.

    Raises:
      HandshakeError, RolloutError: a server is not there, serves another architecture, or has too little room.
    """
    if not servers:
        engine = LocalEngine(policy.model)
        engine.update_weights(policy.params, 0)
        return engine
    options = SGLangOptions(
        servers=tuple(url.strip() for url in servers.split(",")), context=len(longest_prompt) + budget,
        architecture=huggingface.architecture(policy.path), fleet=FleetOptions(outage_seconds=60.0))
    engine = SGLangEngine(policy.model, options, None, probes=[longest_prompt])
    engine.use_served_weights()
    return engine


def longest_prompt(sets: dict[str, list[Problem]]) -> tuple[int, ...]:
    return max((problem.prompt_ids for problems in sets.values() for problem in problems), key=len)


def sampling_of(policy: Policy, setting: Setting, temperature: float, top_p: float) -> Sampling:
    return Sampling(setting.budget, huggingface.stop_token_ids(policy.path, policy.tokenizer), temperature, top_p,
                    stop_text=stop_text(setting.stop_text, policy.tokenizer, policy.model.vocab_size))


def score_of(policy: Policy, setting: Setting, grader: rewards.Grader) -> Score:
    return evaluation_score(setting.reward, setting.template, grader, policy.tokenizer, setting.budget)
