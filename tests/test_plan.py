"""The planner: shapes of published models, what it reads of a compiled program, and its answers as a user gets them."""

import importlib.util
import math
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

from rlzero import plan
from rlzero.models import shapes, transformer
from rlzero.planning import estimate, hlo, program
from rlzero.training import flags, validation
from rlzero.training.display import batch_table

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIGS = ("configs/dapo_qwen2_5_32b.py", "configs/dr_grpo_qwen2_5_math_7b.py", "configs/dr_grpo_qwen2_5_math_1_5b.py")

# Parameters as the files count them, a tied matrix once (the chat models of Qwen3 store it twice).
PUBLISHED = {"Qwen2.5-32B": 32_763_876_352, "Qwen2.5-7B": 7_615_616_512, "Qwen2.5-Math-7B": 7_615_616_512,
             "Qwen2.5-Math-1.5B": 1_543_714_304, "Qwen3-0.6B": 596_049_920, "Qwen3-1.7B": 1_720_574_976,
             "Llama-3.1-8B": 8_030_261_248, "Llama-3.2-3B": 3_212_749_824, "DeepSeek-Math-7B": 6_910_365_696,
             "SmolLM2-135M": 134_515_008}


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_shapes_have_the_published_number_of_parameters(name):
    specs = jax.tree.leaves(transformer.abstract_params(shapes.shape(name)))
    assert sum(math.prod(spec.shape) for spec in specs) == PUBLISHED[name]


def test_an_unknown_shape_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="no model shape 'Qwen2.5-33B'; known are Qwen2.5-32B"):
        shapes.shape("Qwen2.5-33B")


# After a program compiled for a TPU: a loop of three layers that gathers asynchronously and scatters by a fusion.
HLO = pathlib.Path(__file__).with_name("plan_program.hlo").read_text(encoding="utf-8")


def test_collectives_are_read_with_loops_multiplied_in():
    gather, scatter, reduce = hlo.parse(HLO, 8).collectives
    whole = 1024 * 128 * 2
    assert gather == hlo.Collective("all-gather", whole, 4, 3, "jit(f)/gather")  # once, though its parts are three
    assert gather.sent == 3 * whole * 3 / 4
    assert (scatter.kind, scatter.payload, scatter.chips, scatter.times) == ("reduce-scatter", whole, 4, 3)
    assert scatter.sent == 3 * whole * 3 / 4
    assert (reduce.kind, reduce.payload, reduce.chips, reduce.times, reduce.sent) == ("all-reduce", 4, 8, 1, 7.0)


def test_memory_traffic_counts_updates_in_place_and_nothing_on_the_chip():
    read = hlo.parse(HLO, 8)
    part = 256 * 128
    per_layer = part * 2 + part * 2 + part * 4 + part * 4  # the kept half of begin, scattered, update, and its slice
    assert read.written == 3 * per_layer + 4 + 4
    assert read.custom_calls["tpu_custom_call"] == 1
    assert read.unknown_loops == 0


def test_arithmetic_is_six_operations_a_parameter_and_token():
    flops = estimate.training_flops(shapes.shape("Qwen2.5-32B"), PUBLISHED["Qwen2.5-32B"], 64, 22_528, True)
    assert flops.model == 6 * PUBLISHED["Qwen2.5-32B"] * 64 * 22_528
    assert 0.2 < flops.attention / flops.model < 0.3
    assert estimate.training_flops(shapes.shape("Qwen2.5-32B"), 1, 1, 1, False).recomputed == 0


def test_the_slowest_unit_is_the_bound():
    chip = estimate.CHIPS["v5p"]
    time = estimate.time_of(chip, flops=chip.flops, written=chip.bandwidth / 4, sent=2 * chip.interconnect)
    assert (time.compute, time.memory, time.interconnect) == (1.0, 0.5, 2.0)
    assert (time.seconds, time.bound) == (2.0, "interconnect")


@pytest.mark.parametrize("path", CONFIGS)
def test_recipes_resolve_and_are_refused_only_for_the_model_and_the_data_that_are_not_here(path):
    config = flags.load_config(os.path.join(ROOT, path))
    with pytest.raises(ValueError, match=r"there is no") as refused:
        validation.validate(config)
    assert sorted(line.partition("=")[0] for line in str(refused.value).splitlines()) == [
        "--config.data.files", "--config.model.path"]
    config.model.path, config.data.files, config.evaluation.files = "demo", "", ""
    validation.validate(config)
    assert "responses per update" in batch_table(config)
    assert config.model.shape in shapes.SHAPES


def test_recipes_hold_the_numbers_of_the_papers():
    dapo, large, small = (flags.load_config(os.path.join(ROOT, path)) for path in CONFIGS)
    algorithm = dapo.algorithm
    assert (dapo.prompts_per_step, dapo.group_size, dapo.learner.mini_batches) == (512, 16, 16)
    optimizer = dapo.optimizer
    assert (optimizer.learning_rate, optimizer.schedule, optimizer.warmup_steps) == (1e-6, "constant", 20)
    assert optimizer.weight_decay == 0.1
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.normalization) == (0.2, 0.28, "token_mean")
    assert algorithm.dynamic_sampling and not algorithm.freeze().needs_reference
    length = dapo.rollout.max_completion_length
    assert (length, round(length * algorithm.overlong_fraction)) == (20_480, 4096)
    assert (dapo.reward.correct, dapo.reward.wrong) == (1.0, -1.0)
    assert dapo.evaluation.problems >= 30 * 32  # rows: the published AIME 2024 has each problem 32 times
    for config in (large, small):
        assert (config.prompts_per_step, config.group_size, config.rollout.max_completion_length) == (128, 8, 3000)
        assert (config.algorithm.name, config.algorithm.normalization) == ("dr_grpo", "constant")
        optimizer = config.optimizer
        assert (optimizer.learning_rate, optimizer.beta2, optimizer.weight_decay) == (1e-6, 0.95, 0.0)


def test_a_recipe_is_planned_without_what_grades_its_answers(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    config = flags.load_config(os.path.join(ROOT, CONFIGS[1]))
    plan.validate(config)
    assert config.reward.mode == "math"


def run_plan(*arguments, **environment):
    command = [sys.executable, "-m", "rlzero.plan", *arguments]
    return subprocess.run(command, text=True, capture_output=True, cwd=ROOT, check=False, env=os.environ | environment)


TINY = ("--config=configs/demo.py:dapo", "--topology=cpu:8", "--config.mesh.fsdp=8", "--config.learner.pack_tokens=64")


def test_a_plan_that_fits_ends_with_0():
    done = run_plan(*TINY, "--config.model.remat=true", "--config.model.attention=blockwise")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^fits: ", done.stdout, re.MULTILINE)
    for word in ("parameters", "optimizer", "gradients", "activations, temporaries", "all-gather", "FLOPs per update"):
        assert word in done.stdout


def test_a_plan_that_does_not_fit_ends_with_1_and_says_what_to_change():
    done = run_plan(*TINY, "--memory_gib=0.001")
    assert done.returncode == 1, done.stderr
    assert "does not fit" in done.stdout
    assert "--config.model.remat=true" in done.stdout


@pytest.mark.parametrize("arguments, message", [
    (("--config=configs/demo.py", "--topology=v9:2x2"), "unknown chip v9; known are v5e, v5p, v6e"),
    (("--config=configs/demo.py", "--topology=cpu:2", "--config.mesh.fsdp=4"), "needs 4 devices, there are 2"),
    (("--config=configs/demo.py", "--config.model.shape=GPT-2"), "no model shape 'GPT-2'"),
    (("--config=configs/demo.py", "--topology=cpu:2", "--config.model.attention=splash"), "runs on a TPU"),
], ids=lambda value: value[-1] if isinstance(value, tuple) else "")
def test_what_cannot_be_planned_is_said_in_a_line(arguments, message):
    done = run_plan(*arguments, XLA_FLAGS="")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_the_tpu_compiler_the_command_to_install_it_is_told():
    with pytest.raises(ValueError, match=r"pip install 'rlzero\[tpu\]'"):
        program.devices_of("v5p:2x2x1")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no TPU compiler: pip install -e '.[tpu]'")
def test_the_tpu_compiler_gathers_weights_scatters_gradients_and_uses_the_kernel():
    done = run_plan("--config=configs/dr_grpo_qwen2_5_math_7b.py", "--topology=v6e:2x4", XLA_FLAGS="")
    assert done.returncode == 0, done.stdout + done.stderr
    sent = {kind: float(size) for kind, size in re.findall(r"^  ([a-z-]+) +[\d,]+ +([\d.]+) +[\d.]+$", done.stdout,
                                                            re.MULTILINE)}
    assert "tpu_custom_call, 112 times" in done.stdout  # 28 layers: forward, again for the backward pass, and two of it
    assert sent["all-gather"] > sent["reduce-scatter"] > 100 * sent["all-reduce"]
