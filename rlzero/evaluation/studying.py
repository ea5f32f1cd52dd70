"""`evaluate --study`: goes through models and templates, one model in memory at a time, and keeps what is done."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from rlzero.data import tasks, templates
from rlzero.data.problems import Problem
from rlzero.evaluation import plot
from rlzero.evaluation import policy as policy_lib
from rlzero.evaluation import study as study_lib
from rlzero.evaluation.endpoint import EndpointJudge
from rlzero.evaluation.judge import Judge, Response, RuleJudge
from rlzero.evaluation.measure import evaluate
from rlzero.evaluation.policy import Policy, Setting
from rlzero.models import huggingface
from rlzero.training import files
from rlzero.training.grading import make_grader

TEMPLATES = ("none", "r1", "qwen_math", "chat")


def study(values: Any) -> None:
    """Runs a study as the flags of `rlzero.evaluate` say.

    Raises:
      OSError, ValueError, ImportError, HandshakeError, GraderError, JudgeError: something cannot be followed; cells
        that were finished before are in the output directory.
    """
    chosen = _checked_templates(values)
    problems, judge = _of_sets(values), make_judge(values)
    output = pathlib.Path(values.output) if values.output else None
    if output is not None:
        plot.require_matplotlib()
        output.mkdir(parents=True, exist_ok=True)
    print(f"judge: {judge.name}\n{values.samples} samples each, temperature {values.temperature:g}, top_p "
          f"{values.top_p:g}, seed {values.seed}\n")
    cells: list[study_lib.Cell] = []
    for name, policy, setting in _policies(values):
        for cell in _cells(values, name, policy, setting, chosen, problems, judge):
            cells.append(cell)
            if output is not None:
                _write(output, cells)
    if not cells:
        raise ValueError("no model could be asked under any template; the lines above say why")
    rows = [study_lib.numbers(cell) for cell in cells]
    print(f"\n{study_lib.table(rows)}")
    missing = sum(row["without_verdict"] for row in rows)
    if missing:
        print(f"\nthe judge had no verdict on {missing} samples, which are left out of its columns")
    if output is not None:
        plot.save(rows, output / "study.png")
        print(f"\n{output}: every sample in samples.jsonl, the rows in study.jsonl, drawn in study.png")


def make_judge(values: Any) -> Judge:
    """The judge. One behind an endpoint is asked once, since hours of sampling may come before its first turn."""
    if not values.judge:
        return RuleJudge()
    judge = EndpointJudge(values.judge, values.judge_model, key=os.environ.get("OPENAI_API_KEY", ""))
    judge.answering([Response("What is 1 + 1?", "1 + 1 = 2.", "2")])
    return judge


def _checked_templates(values) -> list[str]:
    chosen = [name.strip() for name in (values.template or ",".join(TEMPLATES)).split(",")]
    for name in chosen:
        if not templates.known_template(name):
            templates.apply_template(name, "")  # raises, with the names there are
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"--template={values.template}: a template is named twice")
    return chosen


def _policies(values) -> Iterator[tuple[str, Policy, Setting]]:
    """What is studied, loaded when its turn comes."""
    if values.workdir is not None:
        policy, setting, _ = policy_lib.load_run(values.workdir)
        yield pathlib.Path(values.workdir).name, policy, setting
        return
    paths = [path.strip() for path in values.model.split(",")]
    if values.servers and len(paths) > 1:
        raise ValueError("servers serve one model; give one --model with --servers")
    for path in paths:
        huggingface.read_config(path)  # of all models before the first is asked
    for path in paths:
        policy = policy_lib.load_model(path)
        yield pathlib.Path(path).name, policy, policy_lib.setting_of(values, policy, "none")


def _of_sets(values) -> list[Problem]:
    """The problems of all sets that are named, read before any model is."""
    sets = policy_lib.named_sets(values.sets, values.layout)
    return [dataclasses.replace(problem, id=f"{name}/{problem.id}") if len(sets) > 1 else problem
            for name, problems in sets.items() for problem in problems]


def _cells(values, name, policy, setting, chosen, problems, judge) -> Iterator[study_lib.Cell]:
    """One model under each template that it can be asked under; says under which it cannot."""
    asked = {}
    problems = problems or tasks.problems(setting.task, "held_out", values.problems, seed=setting.task_seed)
    for template in chosen:
        under = dataclasses.replace(setting, template=template)
        try:
            asked[template], report = policy_lib.encoded(problems, policy.tokenizer, under, values.problems)
        except ValueError as error:
            print(f"{name} {template}: left out, {error}", flush=True)
            continue
        if report.kept < report.given:
            print(f"{name} {template}: {report}")
    if not asked:
        return
    engine = policy_lib.make_engine(policy, policy_lib.longest_prompt(asked), servers=values.servers,
                                    budget=setting.budget)
    sampling = policy_lib.sampling_of(policy, setting, values.temperature, values.top_p)
    try:
        with make_grader(setting.reward) as grader:
            for template, encoded in asked.items():
                score = policy_lib.score_of(policy, dataclasses.replace(setting, template=template), grader)
                evaluation = evaluate(engine, encoded, score, sampling, samples_per_problem=values.samples,
                                      seed=values.seed)
                print(f"{name} {template}: {len(encoded)} problems, {evaluation.accuracy:.1%} right", flush=True)
                yield study_lib.judged(name, template, evaluation, judge)
    finally:
        engine.close()


def _write(output: pathlib.Path, cells: list[study_lib.Cell]) -> None:
    files.write_atomically(output / "samples.jsonl", "".join(study_lib.sample_lines(cells)))
    files.write_atomically(output / "study.jsonl",
                           "".join(study_lib.row_lines([study_lib.numbers(cell) for cell in cells])))
