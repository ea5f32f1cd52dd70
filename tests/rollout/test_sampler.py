"""From prompts to groups: by id whatever the order, dynamic sampling within bounds, every response accounted for."""

import itertools
import json

import numpy as np
import pytest
from toys import RIGHT, UNSCORED, WRONG, ScriptedEngine, completion, score

from rlzero.data import Problem
from rlzero.rewards import Reward
from rlzero.rollout.engine import RolloutError, Sampling, request_seed
from rlzero.rollout.sampler import Group, Sample, Sampler, SamplerOptions, group_completions

SAMPLING = Sampling(max_new_tokens=16, stop_ids=(1,))


def make_sampler(outcome, options, *, prompts=None, order=list, run_seed=0):
    engine = ScriptedEngine(outcome, order=order)
    prompts = itertools.cycle(numbered(1000)) if prompts is None else prompts
    return Sampler(engine, prompts, score, SAMPLING, options, run_seed=run_seed), engine


def numbered(count, first=0):
    return [Problem(f"p{i:04}", f"question {i}", "1", (3, 4, 5)) for i in range(first, first + count)]


def number(request):
    return int(request.prompt_id[1:])


def last_first(requests):
    """The order in which nothing can be abandoned: the first group is complete when all others are."""
    return requests[::-1]


def mixed(request):
    """Every group has contrast."""
    return RIGHT if request.sample_index % 2 else WRONG


def assert_accounted(rollout):
    account = rollout.account
    assert (account["generated"] + account["carried_in"]
            == account["trained"] + account["filtered"] + account["failed"]
            + account["abandoned"] + account["carried_out"]), account


def ids_of(groups):
    return [group.problem.id for group in groups]


# Groups.


def test_interleaved_samples_are_grouped_by_prompt():
    """p1 q1 p2 q2 with rewards 1 0 1 0: neither group has contrast, which groups by position would hide."""
    arrived = [completion(prompt, index, RIGHT if prompt == "p" else WRONG) for index in (0, 1) for prompt in "pq"]
    groups = group_completions(arrived, 2)
    assert {key: [c.completion_ids for c in members] for key, members in groups.items()} == {
        ("p", 0): [RIGHT, RIGHT], ("q", 0): [WRONG, WRONG]}


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_arrival_is_irrelevant(seed):
    def shuffled(requests):
        return [requests[i] for i in np.random.default_rng(seed).permutation(len(requests))]

    def outcome(request):
        return (RIGHT, WRONG, "lost", UNSCORED, "abort")[request.seed % 5]

    options = SamplerOptions(group_size=4, groups_per_step=8)
    rollouts = [make_sampler(outcome, options, order=order)[0].collect(0, 0) for order in (list, shuffled)]
    assert rollouts[0] == rollouts[1]
    assert all([s.completion.request.sample_index for s in g.samples] == sorted(
        s.completion.request.sample_index for s in g.samples) for g in rollouts[0].groups)


def test_requests_carry_the_prompt_and_seeds_of_their_own():
    sampler, engine = make_sampler(mixed, SamplerOptions(group_size=3, groups_per_step=2), run_seed=7)
    rollout = sampler.collect(5, 0)
    assert [(r.prompt_id, r.sample_index, r.seed) for r in engine.calls[0]] == [
        (f"p{p:04}", g, request_seed(7, 5, f"p{p:04}", g)) for p in (0, 1) for g in range(3)]
    assert {r.prompt_ids for r in engine.calls[0]} == {(3, 4, 5)}
    assert ids_of(rollout.groups) == ids_of(rollout.generated) == ["p0000", "p0001"] and rollout.rounds == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_prompt_drawn_again_in_a_step_is_sampled_with_other_indices_and_seeds(dynamic):
    """Plain: both in one round. Dynamic: the first group is filtered and the second comes from the next round."""
    def outcome(request):
        return WRONG if dynamic and request.sample_index < 4 else mixed(request)

    options = SamplerOptions(group_size=4, groups_per_step=1 if dynamic else 2, dynamic=dynamic)
    sampler, engine = make_sampler(outcome, options, prompts=itertools.repeat(numbered(1)[0]))
    rollout = sampler.collect(0, 0)
    requests = list(itertools.chain(*engine.calls))
    assert [r.sample_index for r in requests] == list(range(8)) and len({r.seed for r in requests}) == 8
    assert ids_of(rollout.generated) == ["p0000", "p0000"] and len(rollout.groups) == options.groups_per_step
    assert rollout.account["generated"] == 8
    assert_accounted(rollout)


def test_the_next_step_draws_other_seeds_for_the_same_prompt():
    sampler, engine = make_sampler(mixed, SamplerOptions(group_size=2, groups_per_step=1),
                                   prompts=itertools.repeat(numbered(1)[0]))
    for step in (0, 1):
        sampler.collect(step, step)
    first, second = engine.calls
    assert [r.sample_index for r in first] == [r.sample_index for r in second] == [0, 1]
    assert len({r.seed for r in first + second}) == 4


# Completions that are lost, aborted or cannot be scored.


def test_what_did_not_come_back_leaves_short_groups_and_is_counted():
    lost = {0: (), 1: (2,), 2: (0, 1, 3), 3: (0, 1, 2, 3)}

    def outcome(request):
        return "lost" if request.sample_index in lost[number(request)] else mixed(request)

    options = SamplerOptions(group_size=4, groups_per_step=4)
    rollout = make_sampler(outcome, options)[0].collect(0, 0)
    assert [len(group.samples) for group in rollout.groups] == [4, 3]  # a group of one cannot be compared
    assert rollout.account == {
        "generated": 16, "carried_in": 0, "trained": 7, "filtered": 0, "failed": 9, "abandoned": 0, "carried_out": 0}


def test_a_critic_can_learn_from_a_group_of_one():
    options = SamplerOptions(group_size=2, groups_per_step=1, min_usable=1)
    rollout = make_sampler(lambda request: "lost" if request.sample_index else RIGHT, options)[0].collect(0, 0)
    assert len(rollout.groups) == 1 and (rollout.account["trained"], rollout.account["failed"]) == (1, 1)


@pytest.mark.parametrize("trouble", ["abort", UNSCORED])
def test_aborted_and_unscored_samples_count_neither_as_right_nor_as_wrong(trouble):
    options = SamplerOptions(group_size=4, groups_per_step=1, dynamic=True, max_rounds=1)
    one = make_sampler(lambda request: RIGHT if request.sample_index else trouble, options)[0].collect(0, 0)
    (group,) = one.generated
    assert (group.usable, group.correct, group.has_contrast) == (3, 3, False) and one.groups == []
    most = make_sampler(lambda request: trouble if request.sample_index else RIGHT, options)[0].collect(0, 0)
    assert (most.account["failed"], most.account["filtered"]) == (4, 0)  # one usable sample is not a group


def test_an_aborted_sample_is_unusable_whatever_its_text_says():
    aborted = Sample(completion("p", 0, RIGHT, reason="abort"), "text", "1", Reward(True, {"correctness": 1.0}))
    assert not aborted.usable and Group(numbered(1)[0], (aborted,)).correct == 0


# Dynamic sampling.


def test_contrast_is_decided_on_correctness_and_not_on_shaped_rewards():
    def outcome(request):
        wrong = (6,) * (request.sample_index + 1) + (1,)
        return wrong if number(request) < 2 else mixed(request)

    options = SamplerOptions(group_size=4, groups_per_step=1, dynamic=True)
    rollout = make_sampler(outcome, options)[0].collect(0, 0)
    assert len({sample.reward.total for sample in rollout.generated[0].samples}) == 4
    assert ids_of(rollout.groups) == ["p0002"] and rollout.rounds == 3
    assert rollout.account["filtered"] == 8


def test_what_is_all_right_or_all_wrong_is_replaced_and_still_reported():
    def outcome(request):
        return (RIGHT, WRONG, mixed(request))[number(request) % 3]

    options = SamplerOptions(group_size=2, groups_per_step=4, dynamic=True, max_rounds=20)
    rollout = make_sampler(outcome, options)[0].collect(0, 0)
    assert ids_of(rollout.groups) == ["p0002", "p0005", "p0008", "p0011"]
    assert len(rollout.generated) == 12  # accuracy is averaged over these, not over the four
    assert_accounted(rollout)


def test_surplus_groups_are_carried_and_trained_once():
    """8 wanted and 11 drawn: 3 are kept, and the next step draws for the 5 that are missing."""
    options = SamplerOptions(group_size=2, groups_per_step=8, dynamic=True, oversample=1.375)
    sampler, engine = make_sampler(mixed, options, order=last_first)
    first = sampler.collect(0, 0)
    assert len(engine.calls[0]) == 11 * 2 and len(first.groups) == 8 and len(sampler.carried) == 3
    engine.update_weights(None, 1)
    second = sampler.collect(1, 1)
    assert len(engine.calls[1]) == 7 * 2  # ceil(5 * 1.375)
    assert second.account == {
        "generated": 14, "carried_in": 6, "trained": 16, "filtered": 0, "failed": 0, "abandoned": 0, "carried_out": 4}
    assert second.groups[:3] == list(first.generated[8:]) and len(second.generated) == 7
    trained = ids_of(first.groups) + ids_of(second.groups)
    assert len(set(trained)) == len(trained) == 16


class Closable:
    """An iterator that notes how far it was read and whether it was closed."""

    def __init__(self, items):
        self.items, self.read, self.closed = iter(items), 0, False

    def __iter__(self):
        return self

    def __next__(self):
        self.read += 1
        return next(self.items)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("late, read", [(None, 4), (0, 8)])
def test_a_round_is_abandoned_once_its_first_groups_suffice(late, read):
    """Which groups are trained is decided by the order of prompts; one that finishes late is waited for."""
    def order(requests):
        return sorted(requests, key=lambda request: number(request) == late)

    options = SamplerOptions(group_size=2, groups_per_step=2, dynamic=True, oversample=2.0)
    sampler, engine = make_sampler(mixed, options, order=order)
    streams, generate = [], engine.generate
    engine.generate = lambda *args: streams.append(Closable(generate(*args))) or streams[-1]
    rollout = sampler.collect(0, 0)
    assert ids_of(rollout.groups) == ["p0000", "p0001"]
    assert streams[0].closed and streams[0].read == read
    assert rollout.account["abandoned"] == 8 - read and rollout.account["carried_out"] == read - 4
    assert_accounted(rollout)


def test_lost_responses_are_asked_for_again_with_their_seeds():
    asked = []

    def outcome(request):
        asked.append(request)
        return "abort" if request.sample_index == 1 and asked.count(request) == 1 else mixed(request)

    options = SamplerOptions(group_size=2, groups_per_step=2, on_lost="redo")
    sampler, engine = make_sampler(outcome, options)
    rollout = sampler.collect(0, 0)
    assert [len(call) for call in engine.calls] == [4, 2]
    assert set(engine.calls[1]) == {request for request in engine.calls[0] if request.sample_index == 1}
    assert [group.usable for group in rollout.groups] == [2, 2] and rollout.account["failed"] == 0
    assert_accounted(rollout)


@pytest.mark.parametrize("trouble", ["lost", "abort"])
def test_a_step_of_which_nothing_came_back_is_an_error(trouble):
    sampler, _ = make_sampler(lambda request: trouble, SamplerOptions(group_size=2, groups_per_step=2))
    with pytest.raises(RolloutError, match="none of 4 responses came back"):
        sampler.collect(0, 0)


def test_enough_carried_groups_need_no_generation():
    options = SamplerOptions(group_size=2, groups_per_step=2, dynamic=True, oversample=2.0)
    sampler, engine = make_sampler(mixed, options, order=last_first)
    sampler.collect(0, 0)
    rollout = sampler.collect(1, 1)
    assert len(engine.calls) == 1 and rollout.rounds == 0 and rollout.generated == [] and len(rollout.groups) == 2
    assert_accounted(rollout)


@pytest.mark.parametrize("age, kept", [(0, 2), (2, 2), (3, 0)])
def test_carried_groups_that_are_too_old_are_dropped_and_counted(age, kept):
    options = SamplerOptions(group_size=2, groups_per_step=2, dynamic=True, oversample=2.0, max_carry_age=2)
    sampler, engine = make_sampler(mixed, options, order=last_first)
    sampler.collect(0, 0)
    rollout = sampler.collect(1, age)
    assert [group.policy_version for group in rollout.groups] == [0, 0]
    assert rollout.account["filtered"] == (2 - kept) * 2 and rollout.account["carried_in"] == 4
    assert len(engine.calls) == (1 if kept else 2)
    assert_accounted(rollout)


@pytest.mark.parametrize("policy", ["train_partial", "skip", "error"])
def test_generation_stops_after_the_rounds_and_follows_the_policy(policy):
    """Only the first prompt has contrast: 5 rounds for 2 groups, then what the options say."""
    def outcome(request):
        return mixed(request) if number(request) == 0 else (RIGHT, WRONG)[number(request) % 2]

    options = SamplerOptions(group_size=2, groups_per_step=2, dynamic=True, max_rounds=5, on_exhausted=policy)
    sampler, engine = make_sampler(outcome, options)
    if policy == "error":
        with pytest.raises(RuntimeError, match=r"found 1 of 2 groups with contrast in 5 rounds \(2 groups all correct, "
                                               r"3 all wrong\).*max_generation_rounds.*on_exhausted=train_partial"):
            sampler.collect(0, 0)
        assert sampler.carried == []
    else:
        rollout = sampler.collect(0, 0)
        assert rollout.rounds == 5 and rollout.account["filtered"] == 10
        assert ids_of(rollout.groups) == (["p0000"] if policy == "train_partial" else [])
        assert ids_of(sampler.carried) == ([] if policy == "train_partial" else ["p0000"])
        assert_accounted(rollout)
    assert len(engine.calls) == 5


def test_nothing_with_contrast_is_an_empty_step_and_not_an_error():
    options = SamplerOptions(group_size=2, groups_per_step=3, dynamic=True, max_rounds=4)
    sampler, engine = make_sampler(lambda request: WRONG, options)
    rollout = sampler.collect(0, 0)
    assert rollout.groups == [] and len(engine.calls) == 4 and rollout.account["filtered"] == 24


def test_the_error_does_not_count_expired_groups_as_solved():
    options = SamplerOptions(group_size=2, groups_per_step=1, dynamic=True, max_rounds=2, on_exhausted="error",
                             oversample=2.0, max_carry_age=0)
    sampler, _ = make_sampler(lambda request: mixed(request) if number(request) < 2 else WRONG, options)
    sampler.collect(0, 0)
    with pytest.raises(RuntimeError, match="0 groups all correct, 4 all wrong"):
        sampler.collect(1, 1)


def test_plain_sampling_takes_groups_as_they_are_in_one_round():
    options = SamplerOptions(group_size=2, groups_per_step=4, oversample=2.0)
    sampler, engine = make_sampler(lambda request: "lost" if number(request) == 1 else WRONG, options)
    rollout = sampler.collect(0, 0)
    assert len(engine.calls) == 1 and ids_of(rollout.groups) == ["p0000", "p0002", "p0003"]
    assert_accounted(rollout)


@pytest.mark.parametrize("dynamic", [False, True])
def test_every_response_is_accounted_for_in_any_scenario(dynamic):
    """Random options and outcomes, several steps each; every group is trained once at most and young enough."""
    for seed in range(60):
        rng = np.random.default_rng((seed, dynamic))
        shares = rng.dirichlet([2, 2, 0.4, 0.4, 0.4])
        options = SamplerOptions(
            group_size=int(rng.integers(1, 5)), groups_per_step=int(rng.integers(1, 6)), dynamic=dynamic,
            max_rounds=int(rng.integers(1, 5)), oversample=float(rng.uniform(1, 3)), min_usable=int(rng.integers(1, 3)),
            on_exhausted=("train_partial", "skip")[seed % 2], max_carry_age=int(rng.integers(0, 3)))

        def outcome(request, shares=shares):
            kinds = (RIGHT, WRONG, UNSCORED, "abort", "lost")
            return kinds[np.random.default_rng(request.seed).choice(5, p=shares)]

        order = (list, last_first, lambda requests, rng=rng: rng.permutation(np.array(requests, object)))[seed % 3]
        sampler, engine = make_sampler(outcome, options, prompts=itertools.cycle(numbered(7)), run_seed=seed,
                                       order=order)
        seeds, version, carried = [], 0, 0
        for step in range(4):
            engine.version, calls = version, len(engine.calls)
            try:
                rollout = sampler.collect(step, version)
            except RolloutError:
                asked = [request for call in engine.calls[calls:] for request in call]
                assert all(outcome(request) in ("lost", "abort") for request in asked)
                break
            account = rollout.account
            assert_accounted(rollout)
            assert account["carried_in"] == carried and account["carried_out"] == sum(
                len(group.samples) for group in sampler.carried)
            assert account["generated"] == sum(map(len, engine.calls[calls:])) and min(account.values()) >= 0
            assert rollout.rounds == len(engine.calls) - calls <= options.max_rounds
            assert len(rollout.groups) <= options.groups_per_step
            for group in rollout.groups:
                assert group.usable >= options.min_usable and (group.has_contrast or not dynamic)
                assert version - group.policy_version <= options.max_carry_age
                seeds += [sample.completion.request.seed for sample in group.samples]
            if dynamic and options.on_exhausted == "skip":
                assert len(rollout.groups) in (0, options.groups_per_step)
            carried, version = account["carried_out"], version + int(rng.integers(0, 2))
        assert len(set(seeds)) == len(seeds)


def test_a_sampler_restored_from_json_goes_on_identically():
    def outcome(request):
        return (RIGHT, WRONG)[request.seed % 2] if number(request) % 3 else UNSCORED

    options = SamplerOptions(group_size=3, groups_per_step=3, dynamic=True, oversample=3.0)
    sampler, engine = make_sampler(outcome, options, order=last_first)
    for step in range(3):
        sampler.collect(step, step)
    drawn = sum(len(call) for call in engine.calls) // 3
    text = json.dumps(sampler.get_state())
    assert sampler.carried
    other, _ = make_sampler(outcome, options, prompts=itertools.cycle(numbered(1000 - drawn, drawn)),
                            order=last_first)
    other.set_state(json.loads(text))
    assert other.carried == sampler.carried and other.get_state() == json.loads(text)
    for step in range(3, 6):
        assert other.collect(step, step) == sampler.collect(step, step)
