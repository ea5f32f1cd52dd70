"""Every recipe runs: two steps of it with a tiny model in the place of its own, on data laid out as it expects.

Only sizes are changed. The tiny model is the one of the demo; a normalizer makes its tokenizer see the question alone
within each recipe's template, as if it understood the rest.
"""

import json
import math
import pathlib
import shutil

import jax
import pytest
from paper_recipes import PAPER
from toys import quick_compilation  # noqa: F401

from rlzero import pretrain
from rlzero.data import tasks
from rlzero.models import huggingface
from rlzero.train import train
from rlzero.training import flags, pretrain_config, validation
from rlzero.training.interruption import Interruption

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
RECIPES = [name for name in PAPER if "pretrain" not in name]
MODELS = ("Qwen2.5-32B", "Qwen2.5-7B", "Qwen2.5-Math-7B", "Qwen2.5-Math-1.5B", "Llama-3.2-3B", "FineMath-Llama-3B")
BEFORE, AFTER = r"^[\s\S]*(?:User: |user\n|problem:\n)", r"(?:\nAssistant: <think>|<\|im_end\|>[\s\S]*)$"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A directory with everything that the recipes name: models and data/, tiny, and the start that one of them makes.
    """
    directory = tmp_path_factory.mktemp("clone")
    write_model(directory / "models" / "tiny")
    for name in MODELS:
        (directory / "models" / name).symlink_to("tiny")
    write_data(directory / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        pretrain.run(small_pretraining(), pathlib.Path("runs/llama_3_2_3b_numinaqa_pretrain"))
    return directory


def write_model(directory):
    shutil.copytree(huggingface.DEMO_MODEL, directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    cuts = [{"type": "Replace", "pattern": {"Regex": pattern}, "content": ""} for pattern in (BEFORE, AFTER)]
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": cuts}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    template = "<|im_start|>user\n{{ messages[0]['content'] }}<|im_end|>\n<|im_start|>assistant\n"
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))


def write_data(directory):
    training = tasks.problems("arithmetic", "train", 64, seed=0)
    held_out = tasks.problems("arithmetic", "held_out", 10, seed=0)
    plain = [{"problem": problem.question, "answer": problem.answer, "level": "Level 3"} for problem in training]
    write(directory / "math_train.json", plain)
    write(directory / "math_12k" / "train.jsonl", plain)
    write(directory / "asdiv_2k" / "train.jsonl", plain)
    write(directory / "orz_math_57k_collected.json", [
        [{"from": "human", "value": problem.question},
         {"from": "assistant", "ground_truth": {"value": problem.answer, "pass_at_n": None}}] for problem in training])
    write(directory / "gsm8k/main/train-00000-of-00001.parquet", [
        {"question": problem.question, "answer": f"So it is\n#### {problem.answer}"} for problem in training])
    for name, problems, copies in (("dapo-math-17k", training, 1), ("aime-2024", held_out, 2)):
        write(directory / f"{name}.parquet", copies * [
            {"prompt": [{"role": "user", "content": problem.question}], "extra_info": {"index": problem.id},
             "reward_model": {"ground_truth": problem.answer, "style": "rule"}} for problem in problems])
    for number, name in enumerate(("aime", "amc", "math", "minerva", "olympiad_bench")):
        write(directory / "evaluation_suite" / name / "test.jsonl", [
            {"problem": problem.question, "answer": [problem.answer]} for problem in held_out[2 * number:][:2]])
    write(directory / "NuminaMath-1.5/data/train-00000-of-00001.parquet", [
        {"problem": problem.question, "solution": f"\\boxed{{{problem.answer}}}", "source": "x"} for problem in training])


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(rows))


def small(name):
    """A recipe with sizes for one core. Mini-batches keep their number, responses their order of magnitude."""
    config = flags.load_config(f"{CONFIGS}/{name}")
    config.steps, config.prompts_per_step, config.group_size = 2, 16, 4
    config.model.attention, config.model.remat = "xla", False
    config.rollout.max_prompt_length, config.rollout.max_completion_length = 32, 48
    config.rollout.stop_text = ""  # no letters in the small vocabulary
    config.learner.pack_tokens, config.learner.micro_batch_size = 80, 16
    config.learner.reference_refresh_steps = min(config.learner.reference_refresh_steps, 1)
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor = 1, 1, 1
    config.evaluation.samples_per_problem = min(config.evaluation.samples_per_problem, 2)
    return config


def small_pretraining():
    config = flags.load_config(f"{CONFIGS}/llama_3_2_3b_numinaqa_pretrain.py")
    config.batch_size, config.micro_batch_size, config.sequence_length, config.mesh.fsdp = 4, 2, 48, 1
    config.model.attention, config.model.remat, config.model.dtype = "xla", False, "float32"
    pretrain_config.validate(config)
    return config


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_makes_its_updates(name, clone, tmp_path, monkeypatch):
    monkeypatch.chdir(clone)
    config = small(name)
    validation.validate(config)
    train(config, tmp_path, Interruption())
    first, last = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    for line in (first, last):
        assert all(math.isfinite(value) for value in line.values())
        assert 0 < line["reward/accuracy"] < 1  # so there was something to learn
    skipped = sum(line["policy/skipped_updates"] for line in (first, last))  # where groups without contrast are missing
    assert skipped <= 2 and last["policy/updates"] == 2 * config.learner.mini_batches - skipped
    assert last["policy/gradient_norm"] > 0
    assert last.get("critic/updates", 0) == (24 if config.algorithm.advantage == "gae" else 0)
    assert ("policy/kl_ref" in last) == (config.algorithm.kl_coef > 0)
    assert ("reward/overlong" in last) == (config.algorithm.overlong_fraction > 0)
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 2


def test_the_continued_start_is_the_model_that_pretraining_left(clone):
    made = clone / "runs/llama_3_2_3b_numinaqa_pretrain"
    summary = json.loads((made / "summary.json").read_text())
    assert math.isfinite(summary["loss"]) and 2 <= summary["steps"] < 10_000  # the texts ended the run
    before, after = (huggingface.load(path)[0] for path in (clone / "models/FineMath-Llama-3B", made / "model"))
    assert any(map(lambda a, b: bool((a != b).any()), jax.tree.leaves(before), jax.tree.leaves(after)))
