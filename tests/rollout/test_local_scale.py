"""The embedded engine at length and at size: chunks of prompts, a cache that grows and is never copied, a mesh."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import LLAMA, device, make_params

from rlzero.models import sharding, transformer
from rlzero.rollout import local
from rlzero.rollout.engine import Request, Sampling, request_seed
from rlzero.rollout.local import LocalEngine
from rlzero.training.batch import empty_rows
from rlzero.training.steps import Execution, score

PARAMS = make_params()
SAMPLING = Sampling(max_new_tokens=12, stop_ids=(1, 2, 7))


def make_requests(count, longest, seed=0):
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(0, 24, rng.integers(1, longest + 1)).tolist()) for _ in range(count)]
    return [Request(f"p{i}", 0, prompt, request_seed(seed, 0, f"p{i}", 0)) for i, prompt in enumerate(prompts)]


def generate(requests, sampling=SAMPLING, *, params=None, config=LLAMA, **options):
    """Completions by prompt id, of a new engine with these options."""
    engine = LocalEngine(config, **options)
    engine.update_weights(device(PARAMS) if params is None else params, 0)
    return {completion.request.prompt_id: completion for completion in engine.generate(requests, sampling)}


def assert_same(got, want):
    """Equal tokens, and log-probabilities to float32 rounding: sums are taken in another order."""
    assert {name: c.completion_ids for name, c in got.items()} == {name: c.completion_ids for name, c in want.items()}
    for name, completion in want.items():
        np.testing.assert_allclose(got[name].rollout_logprobs, completion.rollout_logprobs, atol=2e-5)


# Prompts in chunks.


def test_prompts_in_chunks_give_what_they_give_at_once():
    requests = make_requests(20, longest=40)
    whole = generate(requests)
    assert_same(generate(requests, prefill_tokens=32 * 16), whole)
    assert_same(generate(requests, prefill_tokens=1), whole)


@pytest.mark.parametrize("longest, rows, prefill_tokens, width, chunks", [
    (5, 32, 8192, 8, 1), (16, 512, 8192, 16, 1), (17, 512, 8192, 32, 2), (40, 512, 8192, 48, 3),
    (129, 32, 8192, 144, 1), (1000, 32, 8192, 1024, 4), (1000, 512, 1, 1024, 128), (600, 64, 8192, 640, 5)])
def test_the_width_of_prompts_and_their_chunks(longest, rows, prefill_tokens, width, chunks):
    assert local._prompt_width([Request("p", 0, (3,) * longest, 0)], rows, prefill_tokens) == (width, chunks)


def test_widths_are_few_and_waste_little():
    widths = {n: local._prompt_width([Request("p", 0, (3,) * n, 0)], 32, 8192)[0] for n in range(1, 4097)}
    assert len(set(widths.values())) <= 16 + 8 * 5  # up to 128, and for every doubling from there
    assert all(n <= width <= max(n + 7, 1.14 * n + 8) for n, width in widths.items())


def test_the_memory_of_a_prefill_is_bounded_by_the_chunk_and_not_by_the_prompt():
    """Beyond the result, which holds the cache. A chunk's scores still span the slots of the whole prompt."""
    temporaries = [lowered_prefill(width, chunks).compile().memory_analysis().temp_size_in_bytes
                   for width, chunks in ((64, 1), (512, 8), (512, 1))]
    caches = [2 * 2 * 32 * (width + 16) * 2 * 4 * 4 for width in (64, 512, 512)]
    short, chunked, whole = (total - cache for total, cache in zip(temporaries, caches))
    print(f"temporaries beyond the cache: {short} bytes; 8 times the prompt: {chunked} in chunks, {whole} at once")
    assert whole > 4 * chunked


def lowered_prefill(width, chunks):
    tokens = jax.ShapeDtypeStruct((32, width), jnp.int32)
    return local._prefill.lower(
        transformer.abstract_params(LLAMA), tokens, tokens, tokens, jax.ShapeDtypeStruct((32,), jnp.uint32),
        np.float32(1), chunks=chunks, capacity=width + 16, config=LLAMA, sampling=Sampling(16, (1,)),
        dtype=jnp.dtype("float32"))


# The cache.


@pytest.mark.parametrize("budget, rooms", [
    (48, [48]), (127, [127]), (128, [64, 128]), (500, [64, 128, 256, 500]), (4096, [256, 512, 1024, 2048, 4096]),
    (20480, [1280, 2560, 5120, 10240, 20480])])
def test_the_cache_begins_with_a_part_of_the_budget(budget, rooms):
    assert local._rooms(budget) == rooms


def test_a_cache_that_grows_changes_no_completion(monkeypatch):
    requests = make_requests(40, longest=8)
    config, sampling = dataclasses.replace(LLAMA, max_position_embeddings=128), Sampling(40, (1,))
    want = generate(requests, sampling, config=config)
    monkeypatch.setattr(local, "_FIRST_ROOM", 10)
    capacities, grow = [], local._grow

    def noted(rows, capacity):
        capacities.append(capacity)
        return grow(rows, capacity=capacity)

    monkeypatch.setattr(local, "_grow", noted)
    assert_same(generate(requests, sampling, config=config), want)
    assert capacities == [8 + 24, 8 + 40]
    assert max(len(c.completion_ids) for c in want.values()) == 40


@pytest.fixture
def optimization():
    """The compiler works as for users; other tests of this folder spare its time."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def test_a_step_does_not_copy_the_cache_and_the_result_lies_where_the_argument_lay(optimization):
    statics = dict(config=LLAMA, sampling=SAMPLING, dtype=jnp.dtype("float32"))
    inputs = local._left_padded(make_requests(64, longest=8), 8)
    rows = jax.eval_shape(lambda: local._prefill(PARAMS, *inputs, np.float32(1), chunks=1, capacity=24, **statics))
    compiled = local._decode.lower(PARAMS, rows, np.float32(1), np.int32(32), shares=1, **statics).compile()
    program = compiled.as_text()
    shape = re.escape(f"f32[{','.join(map(str, rows.cache.key.shape))}]")
    made_by = set(re.findall(rf"= {shape}\S* ([\w-]+)\(", program))
    assert "dynamic-update-slice" in made_by
    assert made_by <= {"dynamic-update-slice", "fusion", "get-tuple-element", "parameter", "bitcast"}, made_by
    # What a fusion of that shape computes is an update in place.
    roots = re.findall(rf"ROOT \S+ = {shape}\S* ([\w-]+)\(", program)
    assert set(roots) == {"dynamic-update-slice"}
    leaves = len(jax.tree.leaves(rows))
    assert "input_output_alias" in program and program.count("may-alias") + program.count("must-alias") == leaves
    memory = compiled.memory_analysis()
    cache = 2 * rows.cache.key.size * 4
    assert memory.alias_size_in_bytes > cache > memory.temp_size_in_bytes


# The mesh.


@pytest.mark.parametrize("shape", [(2, 2, 2), (3, 2, 1)])
def test_a_mesh_samples_the_same_completions(shape):
    """40 rows leave padding rows, and on the first mesh and without one the batch is halved."""
    requests, mesh = make_requests(40, longest=8), sharding.make_mesh(*shape)
    shardings = sharding.parameter_shardings(transformer.parameter_specs(LLAMA), mesh)
    assert_same(generate(requests, params=jax.device_put(PARAMS, shardings), mesh=mesh), generate(requests))


def test_weights_from_one_device_are_copied_to_the_mesh_and_a_waiting_generator_leaves_none_behind():
    requests, mesh = make_requests(20, longest=8), sharding.make_mesh(2, 1, 1)
    engine = LocalEngine(LLAMA, mesh=mesh)
    engine.update_weights(device(PARAMS), 0)
    completions = engine.generate(requests, SAMPLING)
    first = next(completions)
    assert jax.sharding.get_abstract_mesh().empty
    assert_same({c.request.prompt_id: c for c in (first, *completions)}, generate(requests))


def test_rows_and_their_cache_stay_on_their_device():
    mesh, statics = sharding.make_mesh(4, 1, 2), dict(config=LLAMA, sampling=SAMPLING, dtype=jnp.dtype("float32"))
    inputs = jax.device_put(local._left_padded(make_requests(64, longest=8), 8), sharding.batch_sharding(mesh))
    chosen = jax.device_put(np.tile(np.arange(8, dtype=np.int32), 4), sharding.batch_sharding(mesh))
    shardings = sharding.parameter_shardings(transformer.parameter_specs(LLAMA), mesh)
    params = jax.device_put(PARAMS, shardings)
    with jax.set_mesh(mesh):
        rows = local._prefill(params, *inputs, np.float32(1), chunks=1, capacity=24, **statics)
        decode = local._decode.lower(params, rows, np.float32(1), np.int32(8), shares=4, **statics).compile()
        select = local._select.lower(rows, chosen, shares=4).compile().as_text()
    assert rows.cache.key.sharding.shard_shape(rows.cache.key.shape) == (2, 16, 1, 24, 4)
    assert not re.findall(r"(all-gather|all-to-all|all-reduce|collective-permute)\(", select)
    moved = re.findall(r"= (\S+) (?:all-gather|all-to-all|collective-permute)\(", decode.as_text())
    assert not [shape for shape in moved if "24,4]" in shape], "the cache is moved between devices"
    assert decode.memory_analysis().alias_size_in_bytes > 2 * 2 * 16 * 24 * 4 * 4  # per device: keys and values


# Log-probabilities.


@pytest.mark.parametrize("dtype, mean_bound, max_bound", [("float32", 2e-6, 2e-5), ("bfloat16", 0.02, 0.15)])
def test_logprobs_are_those_the_learner_scores(dtype, mean_bound, max_bound):
    """Bounds of the toy, whose logits differ by nats; bfloat16 has eight bits, and the programs round elsewhere."""
    completions = generate(make_requests(64, longest=8), dtype=dtype).values()
    rows = empty_rows(64, 24)
    for row, completion in enumerate(completions):
        ids = np.array(completion.request.prompt_ids + completion.completion_ids)
        first, width = len(completion.request.prompt_ids) - 1, len(ids) - 1
        rows.tokens[row, :width], rows.targets[row, :width], rows.segments[row, :width] = ids[:-1], ids[1:], 1
        rows.positions[row, :width], rows.mask[row, first:width] = np.arange(width), True
        rows.rollout_logprobs[row, first:width] = completion.rollout_logprobs
    gaps = np.abs(score(PARAMS, rows, execution=Execution(LLAMA, dtype=dtype)) - rows.rollout_logprobs)[rows.mask]
    print(f"{dtype}: mean |Δlogprob| {gaps.mean():.2e}, max {gaps.max():.2e} of {gaps.size} tokens")
    assert gaps.mean() < mean_bound and gaps.max() < max_bound


def test_weights_are_cast_once_and_to_what_the_model_would_cast_them_to():
    requests = make_requests(20, longest=8)
    low = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), device(PARAMS)) | {"final_norm": PARAMS["final_norm"]}
    assert generate(requests, dtype="bfloat16") == generate(requests, params=low, dtype="bfloat16")
    engine, params = LocalEngine(LLAMA), device(PARAMS)
    engine.update_weights(params, 0)
    assert all(a is b for a, b in zip(jax.tree.leaves(engine._params), jax.tree.leaves(params)))
