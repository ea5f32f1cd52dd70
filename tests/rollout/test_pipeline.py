"""Rollouts ahead of training: the plain loop without staleness, bounded staleness with it, and nothing lost on resume."""

import itertools
import threading

import pytest
from toys import RIGHT, WRONG, ScriptedEngine, score

from rlzero.data import Problem
from rlzero.rollout.engine import RolloutError, Sampling
from rlzero.rollout.pipeline import Pipeline
from rlzero.rollout.sampler import Sampler, SamplerOptions

OPTIONS = SamplerOptions(group_size=2, groups_per_step=2)
SAMPLING = Sampling(max_new_tokens=16, stop_ids=(1,))


class Prompts:
    """Numbered problems, and their position as state."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.position += 1
        return Problem(f"p{self.position - 1}", "?", "1", (3, 4))

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


class Engine(ScriptedEngine):
    """A scripted engine that notes what happens when, and holds up its calls from the `held_from`-th on until `open`."""

    def __init__(self):
        super().__init__(lambda request: WRONG if request.sample_index else RIGHT)
        self.open, self.events, self.readmitted, self.held_from = threading.Event(), [], 0, 1000

    def generate(self, requests, sampling):
        self.events.append(("sample", self.version))
        assert len(self.calls) < self.held_from or self.open.wait(20)
        yield from super().generate(requests, sampling)

    def update_weights(self, params, version):
        self.events.append(("weights", version))
        super().update_weights(params, version)

    def readmit(self):
        self.readmitted += 1


def make(max_staleness, *, steps=6, **kwargs):
    engine, prompts = Engine(), Prompts()
    sampler = Sampler(engine, prompts, score, SAMPLING, OPTIONS, run_seed=0)
    pipeline = Pipeline(sampler, engine, prompts, steps=steps, max_staleness=max_staleness, **kwargs)
    pipeline.publish(None, 0)
    return pipeline, engine


def loop(pipeline, steps, first=0):
    rollouts = []
    for step in range(first, first + steps):
        rollouts.append(pipeline.next(step))
        pipeline.publish(None, step + 1)
    return rollouts


def ids(rollouts):
    return [[group.problem.id for group in rollout.groups] for rollout in rollouts]


def test_without_staleness_it_is_the_plain_loop():
    pipeline, engine = make(0)
    assert ids(loop(pipeline, 3)) == [["p0", "p1"], ["p2", "p3"], ["p4", "p5"]]
    assert engine.events == [("weights", 0), *itertools.chain.from_iterable(
        (("sample", version), ("weights", version + 1)) for version in range(3))]


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("on_update", ["finish", "retract"])
def test_no_completion_is_staler_than_allowed_and_nothing_is_sampled_beyond_the_run(ahead, on_update):
    pipeline, engine = make(ahead, on_update=on_update)
    rollouts = loop(pipeline, 6)
    pipeline.close()
    assert ids(rollouts) == [[f"p{2 * step}", f"p{2 * step + 1}"] for step in range(6)]
    for step, rollout in enumerate(rollouts):
        assert all(0 <= step - group.policy_version <= ahead for group in rollout.groups)
    assert len([event for event in engine.events if event[0] == "sample"]) == 6


def test_the_next_step_is_sampled_while_this_one_trains():
    pipeline, engine = make(1)
    pipeline.next(0)
    for _ in range(2000):  # training, for as long as it takes
        if engine.events.count(("sample", 0)) == 2:
            break
        threading.Event().wait(0.005)
    assert engine.events.count(("sample", 0)) == 2
    pipeline.close()


@pytest.mark.parametrize("on_update", ["finish", "retract"])
def test_new_weights_wait_for_the_step_that_is_being_sampled_or_do_not(on_update):
    pipeline, engine = make(1, on_update=on_update)
    engine.held_from = 1
    pipeline.next(0)
    while engine.events.count(("sample", 0)) < 2:
        threading.Event().wait(0.005)
    publishing = threading.Thread(target=pipeline.publish, args=(None, 1))
    publishing.start()
    publishing.join(0.3 if on_update == "finish" else 20)
    assert (("weights", 1) in engine.events) == (on_update == "retract")
    engine.open.set()
    publishing.join(20)
    assert engine.events[-1] == ("weights", 1)
    pipeline.close()


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_run_that_goes_on_from_a_checkpoint_samples_what_was_not_trained(ahead):
    straight, _ = make(ahead)
    expected = ids(loop(straight, 6))
    straight.close()
    pipeline, _ = make(ahead)
    assert ids(loop(pipeline, 3)) == expected[:3]
    state = pipeline.get_state()
    pipeline.close()
    other, _ = make(ahead)
    other.set_state(state)
    assert ids(loop(other, 3, first=3)) == expected[3:]
    other.close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_step_that_failed_can_be_sampled_again(ahead):
    pipeline, engine = make(ahead)
    loop(pipeline, 1)
    engine.outcome = lambda request: "lost"
    failed = None
    for step in range(1, 6):
        try:
            pipeline.next(step)
        except RolloutError:
            failed = step
            break
    state = pipeline.get_state()
    pipeline.close()
    other, _ = make(ahead)
    other.set_state(state)
    assert ids([other.next(failed)]) == [[f"p{2 * failed}", f"p{2 * failed + 1}"]]
    other.close()


def test_servers_that_came_back_get_weights_while_the_trainer_waits():
    pipeline, engine = make(1)
    engine.held_from = 0
    threading.Timer(1.2, engine.open.set).start()
    pipeline.next(0)
    assert engine.readmitted >= 1
    pipeline.close()
