"""Tasks of reasoning-gym: splits without a shared question, the same problems in every process, clear refusals."""

import json
import sys

import pytest

from rlzero.data import tasks
from rlzero.data.problems import normal_question
from rlzero.data.tasks import gym_generator
from rlzero.rewards import gym_scorers
from rlzero.train import train
from rlzero.training import validation
from rlzero.training.config import Config, algorithm_config
from rlzero.training.interruption import Interruption


def _config(task, *, mode="reasoning_gym", workers=1):
    config = Config()
    config.data.task, config.reward.mode, config.reward.workers = task, mode, workers
    return config


def test_without_the_library_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setattr(gym_scorers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"rlzero\[gym\]"):
        tasks.problems("reasoning_gym/chain_sum", "train", 1, seed=0)
    with pytest.raises(ValueError, match=r"rlzero\[gym\]"):
        validation.validate(_config("reasoning_gym/chain_sum"))


def test_unknown_tasks_are_answered_with_those_there_are():
    with pytest.raises(ValueError, match="reasoning_gym/NAME"):
        tasks.problems("arithmetics", "train", 1, seed=0)
    with pytest.raises(ValueError, match="--config.data.task=arithmetics: expected one of arithmetic"):
        validation.validate(_config("arithmetics", mode="integer"))


@pytest.mark.parametrize("config, words", [
    (_config("arithmetic"), "only tasks of reasoning-gym have such a scorer"),
    (_config("reasoning_gym/chain_sum", mode="integer"), "use --config.reward.mode=reasoning_gym"),
    (_config("reasoning_gym/chain_sum", workers=0), "use at least --config.reward.workers=1"),
    (_config("reasoning_gym/chain_sums"), "did you mean reasoning_gym/chain_sum?"),
    (_config("reasoning_gym/composite"), "name one of them"),
    (_config("reasoning_gym/puzzle24"), "6*4*1*1 solves every problem")])
def test_what_does_not_go_together(config, words):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError) as caught:
        validation.validate(config)
    assert words in str(caught.value)


def test_splits_share_no_question_and_every_process_makes_the_same_problems():
    pytest.importorskip("reasoning_gym")
    for name in ("chain_sum", "isomorphic_strings"):  # the second goes through a set of texts
        train, again, held_out, other = (tasks.problems(f"reasoning_gym/{name}", split, 30, seed=seed) for split, seed in (
            ("train", 3), ("train", 3), ("held_out", 3), ("train", 4)))
        assert train == again and len({problem.id for problem in train + held_out}) == 60
        assert not {p.question for p in train + other} & {p.question for p in held_out}
        assert {p.question for p in train} != {p.question for p in other}


def test_questions_are_compared_as_everywhere():
    for question in ("a  b\n c ", "1 +\t2"):
        assert gym_generator.normal_question(question) == normal_question(question)


def test_a_small_dataset_gives_what_it_has(monkeypatch):
    pytest.importorskip("reasoning_gym")
    found = tasks.problems("reasoning_gym/prime_factorization", "train", 100_000, seed=0)
    assert 100 < len(found) < 100_000 and len({p.question for p in found}) == len(found)
    assert json.loads(found[0].answer)["dataset"] == "prime_factorization"


def test_a_run_learns_on_such_a_task_and_is_evaluated_on_it(tmp_path):
    pytest.importorskip("reasoning_gym")
    config = _config("reasoning_gym/chain_sum")
    config.algorithm = algorithm_config("dr_grpo")
    config.steps, config.prompts_per_step, config.group_size = 1, 4, 4
    config.rollout.max_prompt_length, config.rollout.max_completion_length = 112, 16
    config.data.task_problems, config.evaluation.problems, config.evaluation.samples_per_problem = 40, 4, 2
    config.reward.deadline_seconds = 60.0  # a busy machine
    validation.validate(config)
    train(config, tmp_path, Interruption())
    step, = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert step["reward/unscored_fraction"] == 0 and step["rollout/trained"] == 16
    first = json.loads((tmp_path / "evaluation.jsonl").read_text().splitlines()[0])
    assert any(name.endswith("accuracy") for name in first)
