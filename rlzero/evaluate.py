r"""Evaluation of a checkpoint, a model directory or running servers, on one problem set or several.

    python -m rlzero.evaluate --workdir=/tmp/rlzero
    python -m rlzero.evaluate --model=demo --samples=32 --temperature=1.0 --top_p=0.7 --output=/tmp/samples.jsonl
    python -m rlzero.evaluate --model=models/Qwen2.5-Math-7B --template=qwen_math --max_completion_length=3000 \
      --mode=math --sets=data/aime,data/amc,data/math --samples=32 --servers=http://10.0.0.5:30000

Prints avg@k with its standard error over problems, unbiased pass@k, maj@k, length and truncation, a row for each set
and one for their mean. With --workdir the newest complete checkpoint of that run is evaluated, with the settings of the
run and on its held-out problems unless --sets names others; with --model a model directory; with --servers what these
servers serve, --model being where its tokenizer is.

    python -m rlzero.evaluate --study --model=models/Llama-3.2-3B,models/Qwen2.5-Math-7B --sets=data/math_train.json \
      --layout=math --mode=math --problems=500 --max_completion_length=3000 --output=runs/study

looks at base models before training, each under each --template: whether they answer, are right, and reflect. The judge
is a set of rules, or a model behind --judge. In --output are then samples.jsonl, study.jsonl and study.png.
"""

import json
import sys

from absl import app, flags

from rlzero import rewards
from rlzero.data import layouts
from rlzero.evaluation import evaluate, studying
from rlzero.evaluation import policy as policy_lib
from rlzero.evaluation.endpoint import JudgeError
from rlzero.evaluation.tables import records, results_table
from rlzero.rewards import gym_scorers
from rlzero.rollout import stopping
from rlzero.rollout.engine import RolloutError
from rlzero.rollout.handshake import HandshakeError
from rlzero.training import files
from rlzero.training import flags as flags_lib
from rlzero.training.grading import make_grader

_USAGE = "give a run with --workdir=RUN or a model with --model=demo, one of the two"
_OF_THE_RUN = ("task", "template", "mode", "workers", "max_completion_length", "stop_text")


def define_flags() -> None:
    flags.DEFINE_string("workdir", None, "Run whose newest checkpoint is evaluated.")
    flags.DEFINE_string("model", None, "Model directory, or demo; instead of --workdir. A study takes several.")
    flags.DEFINE_string("task", "arithmetic", "Generated task; with --workdir that of the run.")
    flags.DEFINE_string("sets", "", "Problem sets instead of a task: paths with commas between them.")
    flags.DEFINE_enum("layout", "benchmark", list(layouts.LAYOUTS), "Of the sets, see rlzero.data.layouts.")
    flags.DEFINE_string("template", None, "Around each question: none (unless given), r1, qwen_math, chat, or a file; "
                        "with --workdir the run's. A study takes several, and these four unless given.")
    flags.DEFINE_enum("mode", "integer", list(rewards.MODES), "How answers are compared; with --workdir the run's.")
    flags.DEFINE_integer("workers", 0, "Processes that grade and can be killed; with --workdir the run's.",
                         lower_bound=0)
    flags.DEFINE_string("servers", "", "URLs of SGLang servers that serve --model; empty computes here.")
    flags.DEFINE_integer("problems", 256, "Most problems of each set.", lower_bound=1)
    flags.DEFINE_integer("samples", 8, "Samples per problem, the k of avg@k.", lower_bound=1)
    flags.DEFINE_float("temperature", 1.0, "Divisor of the logits; 0 is greedy.", lower_bound=0.0)
    flags.DEFINE_float("top_p", 1.0, "Nucleus that is kept, in (0, 1].", lower_bound=1e-6, upper_bound=1.0)
    flags.DEFINE_integer("max_completion_length", 48, "Budget in tokens; with --workdir the run's.", lower_bound=1)
    flags.DEFINE_string("stop_text", "", "Text that also ends a response, such as </answer>, or several with commas "
                        "between them; with --workdir the run's.")
    flags.DEFINE_integer("seed", 0, "Seed of the samples.", lower_bound=0)
    flags.DEFINE_string("output", None, "JSONL file for every sample; of a study, a directory.")
    flags.DEFINE_bool("study", False, "Look at base models under several templates, see above.")
    flags.DEFINE_string("judge", "", "Of a study: base URL of an OpenAI-compatible endpoint, such as "
                        "http://10.0.0.9:30000/v1; its key is read from OPENAI_API_KEY. Empty judges by rules.")
    flags.DEFINE_string("judge_model", "", "Of a study: name of the model behind --judge.")


def evaluated(values: flags.FlagValues) -> None:
    """Evaluates one policy on all sets, and shows and writes what came out."""
    config = None
    if values.output:
        files.require_writable(values.output)
    if values.workdir is not None:
        policy, setting, config = policy_lib.load_run(values.workdir)
    else:
        policy = policy_lib.load_model(values.model)
        setting = policy_lib.setting_of(values, policy, values.template or "none")
    with make_grader(setting.reward) as grader:
        sets = policy_lib.problem_sets(setting, policy, sets=values.sets, layout=values.layout, most=values.problems,
                                       config=config)
        engine = policy_lib.make_engine(policy, policy_lib.longest_prompt(sets), servers=values.servers,
                                        budget=setting.budget)
        sampling = policy_lib.sampling_of(policy, setting, values.temperature, values.top_p)
        example = next(iter(sets.values()))[0]
        print(f"{policy.name if not values.servers else engine.description}\n{values.samples} samples each, temperature"
              f" {values.temperature:g}, top_p {values.top_p:g}, at most {setting.budget} tokens, seed {values.seed}\n"
              f"stop tokens {stopping.described(sampling.stop_ids, sampling.stop_text, policy.tokenizer)}\n"
              f"prompt: {policy.tokenizer.decode(example.prompt_ids)!r}\n")
        try:
            score = policy_lib.score_of(policy, setting, grader)
            evaluations = {name: evaluate(engine, problems, score, sampling, samples_per_problem=values.samples,
                                          seed=values.seed) for name, problems in sets.items()}
        finally:
            engine.close()
    print(results_table(evaluations, values.samples))
    if values.output:
        files.write_atomically(values.output, "".join(json.dumps(line) + "\n" for line in records(evaluations)))
        print(f"\nevery sample is in {values.output}")


def _complaint(values: flags.FlagValues, argv: list[str]) -> str | None:
    """What is wrong with the command line, if anything."""
    if len(argv) > 1:
        return f"{argv[1]}: this word belongs to no flag; {_USAGE}"
    if (values.workdir is None) == (values.model is None):
        return _USAGE
    if values.servers and values.model is None:
        return "--servers needs --model, where the tokenizer of what they serve is"
    for name in _OF_THE_RUN if values.workdir is not None else ():
        if values[name].present and not (name == "template" and values.study):
            return f"--{name} is the run's own with --workdir; leave it away"
    if values.mode == gym_scorers.MODE and not values.workers:
        return f"the scorers of --mode={values.mode} have no clock and must run where they can be killed: --workers=1"
    if (values.judge or values.judge_model) and not values.study:
        return "--judge and --judge_model are for a --study"
    if bool(values.judge) != bool(values.judge_model):
        return "--judge and --judge_model go together, for example --judge=http://10.0.0.9:30000/v1 --judge_model=Qwen3"
    return None


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    flags_lib.quiet()
    complaint = _complaint(values, argv)
    if complaint:
        sys.exit(f"error: {complaint}")
    try:
        (studying.study if values.study else evaluated)(values)
    except (OSError, ValueError, HandshakeError, ImportError, RolloutError, rewards.GraderError, JudgeError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
