r"""Evaluation of a checkpoint, a model directory or running servers, on one problem set or several.

    python -m rlzero.evaluate --workdir=/tmp/rlzero
    python -m rlzero.evaluate --model=demo --samples=32 --temperature=1.0 --top_p=0.7 --output=/tmp/samples.jsonl
    python -m rlzero.evaluate --model=models/Qwen2.5-Math-7B --template=qwen_math --max_completion_length=3000 \
      --sets=data/aime,data/amc,data/math --samples=32 --servers=http://10.0.0.5:30000

Prints avg@k with its standard error over problems, unbiased pass@k, maj@k, length and truncation, a row for each set
and one for their mean. With --workdir the newest complete checkpoint of that run is evaluated, with the settings of the
run and on its held-out problems unless --sets names others; with --model a model directory; with --servers what these
servers serve, --model being where its tokenizer is.
"""

import dataclasses
import json
import pathlib
import sys
from typing import Any

from absl import app, flags

from rlzero import rewards
from rlzero.data import layouts, tasks
from rlzero.data.problems import Problem, prepare
from rlzero.evaluation import Evaluation, evaluate
from rlzero.models import huggingface, transformer
from rlzero.rollout.engine import RolloutError, Sampling
from rlzero.rollout.fleet import FleetOptions
from rlzero.rollout.handshake import HandshakeError
from rlzero.rollout.local import LocalEngine
from rlzero.rollout.scoring import make_scorer
from rlzero.rollout.sglang import SGLangEngine, SGLangOptions
from rlzero.training import config as config_lib
from rlzero.training import display, files, saved_policy
from rlzero.training import flags as flags_lib
from rlzero.training.problem_sets import training_and_held_out

_USAGE = "give a run with --workdir=RUN or a model with --model=demo, one of the two"


@dataclasses.dataclass(frozen=True)
class Policy:
    """What is evaluated: weights, their shape, the directory of config and tokenizer, and a name for people."""

    params: Any
    model: transformer.ModelConfig
    path: str
    name: str


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "Run whose newest checkpoint is evaluated.")
    flags.DEFINE_string("model", None, "Model directory, or demo; instead of --workdir.")
    flags.DEFINE_string("task", "arithmetic", "Generated task; with --workdir that of the run.")
    flags.DEFINE_string("sets", "", "Problem sets instead of a task: paths with commas between them.")
    flags.DEFINE_enum("layout", "benchmark", list(layouts.LAYOUTS), "Of the sets, see rlzero.data.layouts.")
    flags.DEFINE_string("template", "none", "Around each question: none, r1, qwen_math, chat, or a file.")
    flags.DEFINE_enum("mode", "integer", list(rewards.MODES), "How answers are compared; with --workdir the run's.")
    flags.DEFINE_string("servers", "", "URLs of SGLang servers that serve --model; empty computes here.")
    flags.DEFINE_integer("problems", 256, "Most problems of each set.", lower_bound=1)
    flags.DEFINE_integer("samples", 8, "Samples per problem, the k of avg@k.", lower_bound=1)
    flags.DEFINE_float("temperature", 1.0, "Divisor of the logits; 0 is greedy.", lower_bound=0.0)
    flags.DEFINE_float("top_p", 1.0, "Nucleus that is kept, in (0, 1].", lower_bound=1e-6, upper_bound=1.0)
    flags.DEFINE_integer("max_completion_length", 48, "Budget in tokens; with --workdir the run's.", lower_bound=1)
    flags.DEFINE_string("stop_text", "", "Text whose tokens also end a response; with --workdir the run's.")
    flags.DEFINE_integer("seed", 0, "Seed of the samples.", lower_bound=0)
    flags.DEFINE_string("output", None, "JSONL file for every sample.")


def load_policy(workdir: str | None, model: str | None) -> tuple[Policy, config_lib.Config]:
    """The weights to evaluate, and the config of the run they belong to (defaults for a model directory)."""
    if model is not None:
        params, shape = huggingface.load(model)
        return Policy(params, shape, model, f"model {model}"), config_lib.Config()
    saved = saved_policy.load(workdir)
    return Policy(saved.params, saved.model, saved.config.model.path,
                  f"checkpoint of step {saved.step} in {workdir}"), saved.config


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a policy is asked; with --workdir as in the run."""

    task: str
    task_seed: int
    template: str
    budget: int
    longest: int
    stop_text: str
    mode: str


def setting_of(values: Any, config: config_lib.Config, policy: Policy) -> Setting:
    if values.workdir is None:
        budget = values.max_completion_length
        return Setting(values.task, config.data.task_seed, values.template, budget,
                       policy.model.max_position_embeddings - budget, values.stop_text, values.mode)
    rollout = config.rollout
    return Setting(config.data.task, config.data.task_seed, config.data.template, rollout.max_completion_length,
                   rollout.max_prompt_length, rollout.stop_text, config.reward.mode)


def problem_sets(values: Any, config: config_lib.Config, setting: Setting, tokenizer: Any) -> dict[str, list[Problem]]:
    """The problems to evaluate on, by name, encoded."""
    if values.sets:
        found = {pathlib.Path(path.strip()).stem: layouts.load(path.strip(), values.layout)
                 for path in values.sets.split(",")}
    elif values.workdir is not None and config.data.files:
        return {"held out": training_and_held_out(config, tokenizer)[1]}
    else:
        found = {setting.task: tasks.problems(setting.task, "held_out", values.problems, seed=setting.task_seed)}
    sets = {}
    for name, problems in found.items():
        sets[name], report = prepare(problems, tokenizer, max_prompt_length=setting.longest, template=setting.template,
                                     readable=lambda gold: rewards.parses(gold, setting.mode))
        sets[name] = sets[name][:values.problems]
        if report.kept < report.given:
            print(f"{name}: {report}")
    return sets


def make_engine(values: Any, policy: Policy, sets: dict[str, list[Problem]], budget: int):
    """The engine that is asked, with the policy's weights, or with those that the servers have."""
    if not values.servers:
        engine = LocalEngine(policy.model)
        engine.update_weights(policy.params, 0)
        return engine
    prompts = sorted({problem.prompt_ids for problems in sets.values() for problem in problems}, key=len)
    options = SGLangOptions(
        servers=tuple(url.strip() for url in values.servers.split(",")), context=len(prompts[-1]) + budget,
        architecture=huggingface.architecture(policy.path), fleet=FleetOptions(outage_seconds=60.0))
    engine = SGLangEngine(policy.model, options, None, probes=prompts[-1:])
    engine.use_served_weights()
    return engine


def results_table(evaluations: dict[str, Evaluation], samples: int) -> str:
    """A row for each set: avg@k, pass@k for k = 2, 4, …, maj@k, length and truncation; and the mean of several."""
    powers = [2**i for i in range(1, samples.bit_length()) if 2**i <= samples]
    head = ("", "problems", f"avg@{samples}", "s.e.", *(f"pass@{k}" for k in powers), f"maj@{samples}", "tokens", "cut",
            "no answer")
    numbers = [(e.accuracy, *(e.pass_at(k) for k in powers), e.majority, e.mean_length, e.truncated_fraction,
                e.unanswered_fraction) for e in evaluations.values()]

    def cells(values):
        *shares, length, cut, silent = values
        return [*(f"{share:.1%}" for share in shares), f"{length:.1f}", f"{cut:.1%}", f"{silent:.1%}"]

    rows = [head]
    for (name, evaluation), row in zip(evaluations.items(), numbers, strict=True):
        accuracy, *rest = cells(row)
        rows.append((name, str(len(evaluation.groups)), accuracy, f"{evaluation.standard_error:.1%}", *rest))
    if len(numbers) > 1:
        accuracy, *rest = cells([sum(column) / len(column) for column in zip(*numbers, strict=True)])
        rows.append(("mean", "", accuracy, "", *rest))
    return display.table(rows)


def sample_lines(evaluations: dict[str, Evaluation]):
    """One JSON line per sample."""
    for name, evaluation in evaluations.items():
        for group in evaluation.groups:
            for sample in group.samples:
                yield json.dumps({"set": name} | sample.record(group.problem)) + "\n"


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    flags_lib.quiet()
    if len(argv) > 1:
        sys.exit(f"error: {argv[1]}: this word belongs to no flag; {_USAGE}")
    if (values.workdir is None) == (values.model is None):
        sys.exit(f"error: {_USAGE}")
    if values.servers and values.model is None:
        sys.exit("error: --servers needs --model, where the tokenizer of what they serve is")
    try:
        policy, config = load_policy(values.workdir, values.model)
        setting = setting_of(values, config, policy)
        rewards.require_mode(setting.mode)
        tokenizer = huggingface.load_tokenizer(policy.path)
        sets = problem_sets(values, config, setting, tokenizer)
        engine = make_engine(values, policy, sets, setting.budget)
        score = make_scorer(tokenizer, max_completion_length=setting.budget, mode=setting.mode)
    except (OSError, ValueError, HandshakeError, ImportError) as error:
        sys.exit(f"error: {error}")
    stop_ids = huggingface.stop_token_ids(policy.path, tokenizer, text=setting.stop_text)
    sampling = Sampling(setting.budget, stop_ids, values.temperature, values.top_p)
    example = next(iter(sets.values()))[0]
    print(f"{policy.name if not values.servers else engine.description}\n{values.samples} samples each, temperature "
          f"{values.temperature:g}, top_p {values.top_p:g}, at most {setting.budget} tokens, seed {values.seed}\n"
          f"prompt: {tokenizer.decode(example.prompt_ids)!r}\n")
    try:
        evaluations = {name: evaluate(engine, problems, score, sampling, samples_per_problem=values.samples,
                                      seed=values.seed) for name, problems in sets.items()}
    except (RolloutError, RuntimeError) as error:
        sys.exit(f"error: {error}")
    finally:
        engine.close()
    print(results_table(evaluations, values.samples))
    if values.output:
        files.write_atomically(values.output, "".join(sample_lines(evaluations)))
        print(f"\nevery sample is in {values.output}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
