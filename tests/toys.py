"""Toys for tests of the library: a tiny decoder, an engine told what to answer, completions and groups made by hand."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from rlzero.data import Problem
from rlzero.models import transformer
from rlzero.rewards import Reward
from rlzero.rollout.engine import Completion, Request
from rlzero.rollout.sampler import Group, Sample

LLAMA = transformer.ModelConfig(vocab_size=24, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4,
                                num_kv_heads=2, head_dim=4, max_position_embeddings=64)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Compiles in half the time: programs of toy size run once or twice and gain nothing from being optimized."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def make_params(config=LLAMA, seed=0):
    """Random parameters in which no norm is 1 and no bias 0, so that none can be left out unnoticed.

    Matrices have standard deviation 0.4, which makes logits differ by whole nats.
    """
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        return (float("norm" in path[-1].key) + 0.4 * rng.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, transformer.abstract_params(config))


def device(tree):
    """A copy on the device that may be donated."""
    return jax.tree.map(lambda leaf: jax.device_put(np.array(leaf)), tree)


def completion(prompt_id, index, completion_ids, *, prompt_ids=(3, 4, 5), logprobs=None, reason="stop", version=0,
               seed=0):
    logprobs = (-0.5,) * len(completion_ids) if logprobs is None else tuple(logprobs)
    request = Request(prompt_id, index, tuple(prompt_ids), seed)
    return Completion(request, tuple(completion_ids), logprobs, reason, version)


def sample(completion, reward, *, correct=None, answer="1", text="1"):
    """`reward` None is a sample that could not be scored."""
    if reward is None:
        return Sample(completion, text, None, Reward(None, {"correctness": 0.0}))
    correct = reward > 0 if correct is None else correct
    return Sample(completion, text, answer, Reward(correct, {"correctness": float(reward)}))


def random_groups(num_groups, group_size, *, seed=0, version=0, longest=10):
    """Groups with prompts of 2 to 5 tokens, completions of 1 to `longest`, and real-valued rewards; all rows differ."""
    rng = np.random.default_rng(seed)
    groups = []
    for p in range(num_groups):
        prompt_ids = tuple(rng.integers(2, 24, rng.integers(2, 6)).tolist())
        samples = []
        for g in range(group_size):
            ids = rng.integers(2, 24, rng.integers(1, longest + 1)).tolist()
            logprobs = rng.uniform(-4, -0.1, len(ids)).tolist()
            made = completion(f"p{p}", g, ids, prompt_ids=prompt_ids, logprobs=logprobs, version=version)
            samples.append(sample(made, round(float(rng.normal()), 2)))
        groups.append(Group(Problem(f"p{p}", f"question {p}", "1", prompt_ids), tuple(samples)))
    return groups


class ScriptedEngine:
    """An engine whose completions are told by `outcome(request)`: their ids, or "lost" or "abort".

    Completions come in the order of `order(requests)`; every call's requests are kept in `calls`.
    """

    def __init__(self, outcome: Callable, *, order: Callable = list, version: int = 0):
        self.outcome, self.order, self.version, self.calls = outcome, order, version, []

    def update_weights(self, params, version):
        self.version = version

    def generate(self, requests, sampling):
        self.calls.append(list(requests))
        for request in self.order(requests):
            told = self.outcome(request)
            if told == "lost":
                continue
            ids = (9, 9) if told == "abort" else tuple(told)
            reason = "abort" if told == "abort" else "stop" if ids[-1] in sampling.stop_ids else "length"
            yield Completion(request, ids, (-0.5,) * len(ids), reason, self.version)


RIGHT, WRONG, UNSCORED = (5, 1), (6, 1), (7, 1)  # completions that `score` knows; 1 is the stop id


def score(problem, completion):
    """Grades by the first id; as a stand-in for shaping, each token costs 0.01."""
    first, length = completion.completion_ids[0], len(completion.completion_ids)
    correct = None if first == UNSCORED[0] else first == RIGHT[0] and completion.finish_reason != "abort"
    parts = {"correctness": float(bool(correct)), "length": -0.01 * length}
    answer = None if first == 8 else str(first)
    return Sample(completion, f"text {completion.completion_ids}", answer, Reward(correct, parts))
