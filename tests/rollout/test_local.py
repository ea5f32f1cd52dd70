"""The embedded engine: what it samples, with what probability, and that no completion depends on its neighbours."""

import dataclasses

import jax
import numpy as np
import pytest
from toys import LLAMA, device, make_params

from rlzero.models import transformer
from rlzero.rollout import local
from rlzero.rollout.engine import Request, Sampling, request_seed
from rlzero.rollout.local import LocalEngine
from rlzero.rollout.stopping import StopText

SAMPLING = Sampling(max_new_tokens=12, stop_ids=(1, 2, 7))
PARAMS = make_params()

forward = jax.jit(transformer.forward, static_argnums=1)


@pytest.fixture(scope="module")
def engine():
    engine = LocalEngine(LLAMA)
    engine.update_weights(device(PARAMS), 4)
    return engine


def make_requests(count, *, longest=8, seed=0):
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(0, 24, rng.integers(1, longest + 1)).tolist()) for _ in range(count)]
    return [Request(f"p{i}", 0, prompt, request_seed(seed, 0, f"p{i}", 0)) for i, prompt in enumerate(prompts)]


def generate(engine, requests, sampling=SAMPLING):
    """Completions by prompt id."""
    completions = list(engine.generate(requests, sampling))
    assert len(completions) == len(requests) == len({c.request for c in completions})
    return {completion.request.prompt_id: completion for completion in completions}


def tokens_of(completions):
    return {name: completion.completion_ids for name, completion in completions.items()}


def distributions(completion, temperature=1.0, params=PARAMS):
    """[T, V] float64 probabilities of each sampled token's choice, from one forward pass over the whole row."""
    prompt, sampled = completion.request.prompt_ids, completion.completion_ids
    ids = np.zeros((1, 20), int)
    ids[0, :len(prompt) + len(sampled)] = prompt + sampled
    segments = (np.arange(20) < len(prompt) + len(sampled)).astype(int)[None]
    hidden = forward(params, LLAMA, ids, np.arange(20)[None], segments)[0]
    states = np.asarray(hidden[0], np.float64)[len(prompt) - 1:len(prompt) - 1 + len(sampled)]
    logits = states @ np.asarray(params["embedding"].T, np.float64) / temperature
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def assert_logprobs(completion, probabilities):
    chosen = probabilities[np.arange(len(probabilities)), list(completion.completion_ids)]
    assert np.all(chosen > 0)
    np.testing.assert_allclose(completion.rollout_logprobs, np.log(chosen), atol=2e-5)  # float32, cached against whole


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_sampling_distribution(engine, temperature):
    completions = generate(engine, make_requests(20), dataclasses.replace(SAMPLING, temperature=temperature))
    for completion in completions.values():
        assert_logprobs(completion, distributions(completion, temperature))
        assert max(completion.rollout_logprobs) <= 0 and completion.policy_version == 4


def test_every_stop_id_ends_a_completion_and_is_part_of_it(engine):
    completions = generate(engine, make_requests(40)).values()
    stopped = [c for c in completions if c.finish_reason == "stop"]
    assert {c.completion_ids[-1] for c in stopped} == {1, 2, 7}
    for completion in completions:
        ids = completion.completion_ids
        assert not set(ids[:-1]) & {1, 2, 7}
        assert completion.finish_reason == ("stop" if ids[-1] in (1, 2, 7) else "length")
        assert len(ids) == 12 or completion.finish_reason == "stop"
    assert 0 < len(stopped) < 40


def test_a_text_ends_a_completion_where_its_tokens_complete_it(engine):
    words = [chr(ord("a") + i % 4) * (1 + i % 3) for i in range(LLAMA.vocab_size)]  # a, bb, ccc, d, aa, bbb, c, ...
    stop = StopText(["ab"], words)
    assert stop.spread and not stop.ids
    free, ended = (generate(engine, make_requests(60), sampling) for sampling in (
        SAMPLING, dataclasses.replace(SAMPLING, stop_text=stop)))
    ends = 0
    for name, completion in ended.items():
        ids = free[name].completion_ids
        end = stop.end(ids)
        assert completion.completion_ids == ids[:end]
        np.testing.assert_allclose(completion.rollout_logprobs, free[name].rollout_logprobs[:end], atol=2e-5)
        assert completion.finish_reason == ("stop" if end else free[name].finish_reason)
        ends += end is not None and end < len(ids)
    assert ends > 5


def test_a_stop_exactly_at_the_budget_is_a_stop(engine):
    full = [c for c in generate(engine, make_requests(70)).values() if len(c.completion_ids) == 12]
    reasons = {c.completion_ids[-1] in (1, 2, 7): c.finish_reason for c in full}
    assert reasons == {True: "stop", False: "length"}


def test_a_completion_does_not_depend_on_neighbours_their_number_or_the_order(engine):
    requests = make_requests(70)
    few, some, many = (generate(engine, requests[:count]) for count in (3, 40, 70))
    assert tokens_of(few).items() <= tokens_of(some).items() <= tokens_of(many).items()
    for name, completion in few.items():
        np.testing.assert_allclose(completion.rollout_logprobs, many[name].rollout_logprobs, atol=1e-5)
    shuffled = [requests[i] for i in np.random.default_rng(0).permutation(70)]
    assert generate(engine, shuffled) == many
    parts = LocalEngine(LLAMA, max_batch=30)
    parts.update_weights(device(PARAMS), 4)
    assert tokens_of(generate(parts, requests)) == tokens_of(many)


def test_the_seed_decides_the_tokens(engine):
    requests = make_requests(20)
    assert generate(engine, requests) == generate(engine, requests)
    one, other = (tokens_of(generate(engine, [Request(str(i), i, (3, 4, 5), request_seed(run_seed, 0, "p", i))
                                              for i in range(16)])) for run_seed in (0, 1))
    assert len(set(one.values())) > 12
    assert sum(one[name] != other[name] for name in one) > 12


def test_new_weights_are_used_from_the_next_call_on():
    engine, requests = LocalEngine(LLAMA), make_requests(20)
    with pytest.raises(ValueError, match="no weights yet; call update_weights"):
        list(engine.generate(requests, SAMPLING))
    other = make_params(seed=1)
    engine.update_weights(device(other), 5)
    for completion in generate(engine, requests).values():
        assert_logprobs(completion, distributions(completion, params=other))
        assert completion.policy_version == 5


def test_greedy_takes_the_most_likely_token_and_so_does_top_k_1(engine):
    requests = make_requests(20)
    greedy = generate(engine, requests, dataclasses.replace(SAMPLING, temperature=0.0))
    for completion in greedy.values():
        probabilities = distributions(completion)
        np.testing.assert_array_equal(completion.completion_ids, probabilities.argmax(axis=1))
    single = generate(engine, requests, dataclasses.replace(SAMPLING, top_k=1))
    assert tokens_of(single) == tokens_of(greedy)
    assert all(set(completion.rollout_logprobs) == {0.0} for completion in single.values())


def nucleus(probabilities, top_p, top_k):
    """The distribution cut to the top_k tokens, then to the fewest of those that hold top_p; renormalized."""
    cut = np.zeros_like(probabilities)
    for row, kept in zip(probabilities, cut):
        order = np.argsort(-row)[:top_k or None]
        shares = row[order] / row[order].sum()
        count = next(n for n in range(1, len(order) + 1) if n == len(order) or shares[:n].sum() >= top_p)
        kept[order[:count]] = row[order[:count]] / row[order[:count]].sum()
    return cut


@pytest.mark.parametrize("top_p, top_k", [(0.6, 0), (1.0, 3), (0.7, 4)])
def test_tokens_outside_the_nucleus_are_never_drawn_and_logprobs_are_over_the_nucleus(engine, top_p, top_k):
    sampling = dataclasses.replace(SAMPLING, temperature=0.7, top_p=top_p, top_k=top_k)
    for completion in generate(engine, make_requests(30), sampling).values():
        assert_logprobs(completion, nucleus(distributions(completion, 0.7), top_p, top_k))


@pytest.mark.parametrize("top_p, top_k, kept", [
    (0.5, 0, [0]), (0.51, 0, [0, 1]), (0.8, 0, [0, 1, 2]), (1.0, 2, [0, 1]), (0.6, 2, [0]), (1.0, 9, [0, 1, 2, 3])])
def test_nucleus_by_hand(top_p, top_k, kept):
    logits = np.log(np.array([[0.5, 0.25, 0.15, 0.1]], np.float32))
    got = local._truncated(logits, top_p, top_k)
    assert np.flatnonzero(np.isfinite(got[0])).tolist() == kept


MANY = [Request(str(i), i, (3, 9, 4), request_seed(5, 0, "p", i)) for i in range(2048)]
PAIR = Sampling(2, (1,), temperature=0.7)


def chi_square(drawn, probability):
    """Of 24 cells, for counts with these probabilities: mean 23, deviation 6.8."""
    expected = len(drawn) * probability
    return np.sum((np.bincount(drawn, minlength=24) - expected) ** 2 / expected)


def test_frequencies_are_the_probabilities(engine):
    """Of the first token of 2048 seeds, and of the second after the most frequent first one."""
    drawn = list(generate(engine, MANY, PAIR).values())
    first = [c.completion_ids[0] for c in drawn]
    assert chi_square(first, distributions(drawn[0], 0.7)[0]) < 23 + 4 * 6.8
    same = [c for c in drawn if c.completion_ids[0] == np.bincount(first)[2:].argmax() + 2]
    assert chi_square([c.completion_ids[1] for c in same], distributions(same[0], 0.7)[1]) < 23 + 4 * 6.8


def test_the_random_numbers_of_one_token_say_nothing_about_the_next():
    """A model without a preference repeats itself once in 24 times."""
    engine = LocalEngine(LLAMA)
    engine.update_weights(device(PARAMS | {"final_norm": np.zeros(16, np.float32)}), 0)
    pairs = [c.completion_ids for c in generate(engine, MANY, PAIR).values() if c.completion_ids[0] != 1]
    assert abs(np.mean([first == second for first, second in pairs]) - 1 / 24) < 4 * np.sqrt(1 / 24 / len(pairs))
    assert chi_square([second for _, second in pairs], np.full(24, 1 / 24)) < 23 + 4 * 6.8


@pytest.mark.parametrize("prompt_ids, message", [
    ((), "prompt p is empty"), ((3, 24), r"prompt p holds ids outside 0[.][.]23"), ((-1,), "outside 0"),
    ((3,) * 53, "prompt p of 53 tokens plus 12 new ones exceeds the model's context of 64; lower")])
def test_prompts_that_cannot_be_continued_are_named(engine, prompt_ids, message):
    good, bad = make_requests(1)[0], Request("p", 0, prompt_ids, 0)
    with pytest.raises(ValueError, match=message):
        next(engine.generate([good, bad], SAMPLING))


def test_nothing_to_do_yields_nothing(engine):
    assert list(engine.generate([], SAMPLING)) == []


def test_bfloat16_weights_and_cache():
    engine, requests = LocalEngine(LLAMA, dtype="bfloat16"), make_requests(20)
    low = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), device(PARAMS))
    engine.update_weights(low, 0)
    rounded = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), low)
    gaps = [abs(np.log(distributions(c, params=rounded)[np.arange(len(c.completion_ids)), list(c.completion_ids)])
                - c.rollout_logprobs).mean() for c in generate(engine, requests).values()]
    assert 1e-4 < np.mean(gaps) < 0.05  # eight bits of mantissa in activations


def test_compilations_are_bounded_by_the_buckets(engine):
    """20 calls of three shapes: up to 60 prompts of 8 tokens have 2 batch sizes, prompts of 16 are another width."""
    compiled, rng = [], np.random.default_rng(0)

    def listen(event, seconds, **details):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for call in range(20):
            count = int(rng.integers(1, 61))
            generate(engine, make_requests(count, longest=int(rng.integers(1, 17 if count <= 32 else 9)), seed=call))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) <= 3 + 3 + 1 + 1  # prefill and decode of each shape, the halving, and the temperature
