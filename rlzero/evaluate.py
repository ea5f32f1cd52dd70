r"""Evaluation of a checkpoint or a model directory on a set of problems.

    python -m rlzero.evaluate --workdir=/tmp/rlzero
    python -m rlzero.evaluate --model=demo --samples=32 --temperature=1.0 --top_p=0.7 --output=/tmp/samples.jsonl

Prints avg@k with its standard error over problems, unbiased pass@k, length and truncation. With --workdir the newest
complete checkpoint of that run is evaluated, on the held-out problems of its own task; with --model a model directory.
"""

import dataclasses
import json
import sys
from typing import Any

from absl import app, flags

from rlzero.data import problems as problems_lib
from rlzero.data import tasks
from rlzero.evaluation import Evaluation, evaluate
from rlzero.models import huggingface, transformer
from rlzero.rollout.engine import Sampling
from rlzero.rollout.local import LocalEngine
from rlzero.rollout.scoring import make_scorer
from rlzero.training import config as config_lib
from rlzero.training import display, files, saved_policy
from rlzero.training import flags as flags_lib

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
    flags.DEFINE_integer("problems", 256, "Number of held-out problems.", lower_bound=1)
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


def held_out_problems(task: str, count: int, seed: int, tokenizer: Any, max_prompt_length: int):
    """The first `count` held-out problems of a task, encoded."""
    return problems_lib.prepare(tasks.problems(task, "held_out", count, seed=seed), tokenizer,
                                max_prompt_length=max_prompt_length)[0]


def results_table(evaluation: Evaluation, samples: int) -> str:
    """avg@k, pass@1, 2, 4, … k, length and truncation."""
    rows = [("", "value"), (f"avg@{samples}", f"{evaluation.accuracy:.1%} ± {evaluation.standard_error:.1%}")]
    powers = [2**i for i in range(1, samples.bit_length()) if 2**i <= samples]
    rows += [(f"pass@{k}", f"{evaluation.pass_at(k):.1%}") for k in powers]
    rows += [("mean length", f"{evaluation.mean_length:.1f} tokens"),
             ("truncated", f"{evaluation.truncated_fraction:.1%}"),
             ("without an answer", f"{evaluation.unanswered_fraction:.1%}")]
    return display.table(rows)


def sample_lines(evaluation: Evaluation):
    """One JSON line per sample."""
    for group in evaluation.groups:
        for sample in group.samples:
            yield json.dumps(sample.record(group.problem)) + "\n"


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    flags_lib.quiet()
    if len(argv) > 1:
        sys.exit(f"error: {argv[1]}: this word belongs to no flag; {_USAGE}")
    if (values.workdir is None) == (values.model is None):
        sys.exit(f"error: {_USAGE}")
    try:
        policy, config = load_policy(values.workdir, values.model)
    except (FileNotFoundError, ValueError) as error:
        sys.exit(f"error: {error}")
    from_run = values.workdir is not None
    budget = config.rollout.max_completion_length if from_run else values.max_completion_length
    task = config.data.task if from_run else values.task
    stop_text = config.rollout.stop_text if from_run else values.stop_text
    longest = config.rollout.max_prompt_length if from_run else policy.model.max_position_embeddings - budget
    tokenizer = huggingface.load_tokenizer(policy.path)
    stop_ids = huggingface.stop_token_ids(policy.path, tokenizer, text=stop_text)
    problems = held_out_problems(task, values.problems, config.data.task_seed, tokenizer, longest)
    engine = LocalEngine(policy.model)
    engine.update_weights(policy.params, 0)
    sampling = Sampling(budget, stop_ids, values.temperature, values.top_p)
    print(f"{policy.name}\n{len(problems)} held-out problems of {task}, {values.samples} samples each, temperature "
          f"{values.temperature:g}, top_p {values.top_p:g}, at most {budget} tokens, seed {values.seed}\n")
    evaluation = evaluate(engine, problems, make_scorer(tokenizer, max_completion_length=budget), sampling,
                          samples_per_problem=values.samples, seed=values.seed)
    print(results_table(evaluation, values.samples))
    if values.output:
        files.write_atomically(values.output, "".join(sample_lines(evaluation)))
        print(f"\nevery sample is in {values.output}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
