"""Every recipe holds the numbers of its paper, each of them, and says where they come from."""

import ast
import os
import pathlib
import re
import sys

import pytest
from absl import flags as absl_flags
from paper_recipes import ABLATION, DERIVED, OURS, PAPER, RESULTS, SETS, STARTS, TEMPLATES

from rlzero.models import shapes
from rlzero.rewards.shaping import overlong_cache
from rlzero.training import flags, pretrain_config, validation
from rlzero.training.config import Config, leaves
from rlzero.training.display import batch_table
from rlzero.training.pretrain_config import PretrainConfig

ROOT = pathlib.Path(__file__).parents[2]
OTHERS = {"demo.py", "demo_pretrain.py", "smollm2.py"}  # configs that follow no paper
TRAINING = [name for name in PAPER if "pretrain" not in name]


@pytest.fixture(autouse=True)
def in_the_clone(monkeypatch):
    monkeypatch.chdir(ROOT)


def settings(name):
    return {path: value for path, (_, value) in leaves(flags.load_config(f"configs/{name}")).items()}


def parsed(*words, monkeypatch, validate=lambda config: None):
    values = absl_flags.FlagValues()
    flags.define_flags(values)
    argv = ["program", *words]
    monkeypatch.setattr(sys, "argv", argv)
    return flags.parse(argv, required=("config",), validate=validate, flag_values=values)


def test_every_config_is_a_recipe_of_the_tables():
    files = {path.name for path in (ROOT / "configs").glob("*.py")}
    assert {name.partition(":")[0] for name in PAPER} == set(RESULTS) == files - OTHERS
    assert PAPER.keys() == OURS.keys() and set(TRAINING) == DERIVED.keys()


@pytest.mark.parametrize("name", PAPER)
def test_settings_are_those_of_the_paper(name):
    found = settings(name)
    wrong = {setting: (found[setting], value, source) for setting, (value, source) in PAPER[name].items()
             if found[setting] != value}
    assert not wrong, "setting: (here, there, source)"


@pytest.mark.parametrize("name", PAPER)
def test_nothing_else_differs_from_the_defaults_but_what_is_known_to_be_ours(name):
    found = settings(name)
    default = leaves(PretrainConfig() if "pretrain" in name else Config())
    changed = {setting: value for setting, value in found.items()
               if value != default[setting][1] and setting not in PAPER[name] and setting != "algorithm.name"}
    template = changed.get("data.template", "")
    if os.path.isabs(template) or template.endswith(".txt"):
        changed["data.template"] = os.path.relpath(template)
    ours = {setting: value for setting, value in OURS[name].items() if setting not in PAPER[name]}
    assert changed.items() <= ours.items()
    assert all(found[setting] == value for setting, value in ours.items() if setting != "data.template")
    assert not PAPER[name].keys() & OURS[name].keys()


@pytest.mark.parametrize("name", TRAINING)
def test_numbers_that_follow_from_others(name):
    config = flags.load_config(f"configs/{name}")
    responses, per_update, updates, in_all, cache = DERIVED[name]
    assert config.prompts_per_step * config.group_size == responses
    assert responses // config.learner.mini_batches == per_update
    assert config.learner.mini_batches * config.learner.epochs == updates
    a_step = config.critic.mini_batches if config.algorithm.advantage == "gae" else updates
    assert config.steps * a_step == in_all
    assert overlong_cache(config.algorithm.overlong_fraction, config.rollout.max_completion_length) == cache
    assert config.rollout.max_prompt_length + config.rollout.max_completion_length <= config.learner.pack_tokens
    assert config.rollout.max_prompt_length + config.rollout.max_completion_length <= shapes.shape(
        config.model.shape).max_position_embeddings


def test_dapo_expects_16384_tokens_and_punishes_the_4096_after_them():
    for name in ("dapo_qwen2_5_32b.py", "dapo_ablation.py:3", "dapo_ablation.py:5"):
        found = settings(name)
        cache = overlong_cache(found["algorithm.overlong_fraction"], found["rollout.max_completion_length"])
        assert (found["rollout.max_completion_length"] - cache, cache) == (16_384, 4096)


def test_the_ends_of_the_ablation_are_the_two_recipes():
    dapo, naive = settings("dapo_qwen2_5_32b.py"), settings("grpo_qwen2_5_32b_naive.py")
    first, last = settings("dapo_ablation.py:0"), settings("dapo_ablation.py:5")
    assert {name for name in dapo if dapo[name] != last[name]} == {"algorithm.name", "algorithm.truncated"}
    assert {name for name in naive if naive[name] != first[name]} == {"algorithm.name"}


@pytest.mark.parametrize("model", ["", ",demo"])
def test_each_row_of_the_ablation_adds_one_thing(model):
    rows = [settings(f"dapo_ablation.py:{number}{model}") for number in range(len(ABLATION))]
    added = [{name for name in after if after[name] != before[name]} - {"algorithm.name"}
             for before, after in zip(rows, rows[1:])]
    assert added == [{f"algorithm.{column}"} for column in (
        "truncated", "clip_high", "overlong_fraction", "normalization", "dynamic_sampling")]


def test_the_grid_and_the_starts_are_complete():
    assert len([name for name in PAPER if name.startswith("dr_grpo_grid")]) == len(TEMPLATES) * len(SETS) == 12
    assert settings("llama_3_2_3b.py:numinaqa")["model.path"] == STARTS["numinaqa"][0]


def test_the_template_of_open_reasoner_zero_is_that_of_its_code():
    text = pathlib.Path(settings("ppo_open_reasoner_zero_7b.py")["data.template"]).read_text(encoding="utf-8")
    before, after = text.split("{question}")
    assert before.endswith("And your final answer will be extracted automatically by the \\boxed{} tag.\n"
                           "This is the problem:\n")
    assert after == "\nAssistant: <think>"


def arguments_of(file):
    """Every argument that a config file takes; one without it too."""
    known = [name for name in PAPER if name.partition(":")[0] == file]
    extra = {"demo.py": [f"demo.py:{name}" for name in ("ppo", "grpo", "dr_grpo", "rloo", "dapo")],
             "dapo_ablation.py": [f"dapo_ablation.py:{row},demo" for row in range(len(ABLATION))]}
    return [file, *(name for name in known + extra.get(file, []) if name != file)]


@pytest.mark.parametrize("name", [name for file in sorted(OTHERS | set(RESULTS)) for name in arguments_of(file)])
def test_every_config_goes_through_the_flag_parser(name, monkeypatch):
    config = parsed(f"--config=configs/{name}", "--config.seed=7", monkeypatch=monkeypatch)
    assert config.seed == 7
    if isinstance(config, Config):
        config.algorithm.freeze()
        assert "responses per update" in batch_table(config)


@pytest.mark.parametrize("name", PAPER)
def test_recipes_are_refused_only_for_files_that_are_not_here(name, monkeypatch):
    validate = pretrain_config.validate if "pretrain" in name else validation.validate
    with pytest.raises(ValueError, match="there is no") as refused:
        validate(flags.load_config(f"configs/{name}"))
    assert {re.match(r"--config\.([\w.]+)", line)[1] for line in str(refused.value).splitlines()} <= {
        "model.path", "data.files", "evaluation.files"}
    if "pretrain" in name:
        return
    here = ("--config.model.path=demo", "--config.data.files=", "--config.evaluation.files=")
    parsed(f"--config=configs/{name}", *here, monkeypatch=monkeypatch, validate=validate)


@pytest.mark.parametrize("name, sentence", [
    ("dapo_ablation.py:6", "a row of the ablation, 0 to 5"),
    ("dapo_ablation.py:naive", "such as dapo_ablation.py:3"),
    ("dapo_ablation.py:1,tiny", "with nothing or ,demo after it"),
    ("dr_grpo_grid.py:r1", "a set of orz, math_12k, gsm8k, asdiv"),
    ("dr_grpo_grid.py:qwen,orz", "a template of r1, qwen_math, none"),
    ("llama_3_2_3b.py:base", "a start of plain, finemath, numinaqa"),
])
def test_a_wrong_argument_is_answered_with_the_right_ones(name, sentence, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        parsed(f"--config=configs/{name}", monkeypatch=monkeypatch)
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("file", RESULTS)
def test_a_docstring_tells_the_command_the_source_and_the_published_result(file):
    text = ast.get_docstring(ast.parse((ROOT / "configs" / file).read_text(encoding="utf-8")))
    program = "pretrain" if "pretrain" in file else "train"
    assert re.search(rf"^    python -m rlzero\.{program} --config=configs/{file}(:\S+)? ", text, re.MULTILINE)
    assert re.search(r"arXiv \d{4}\.\d{5}", text) and "ours" in text.lower()
    assert all(result in text for result in RESULTS[file])
