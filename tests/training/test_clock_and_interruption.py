"""Seconds and compilations by phase; a first signal that asks and a second one that acts."""

import signal
import time

import jax
import jax.numpy as jnp
import pytest

from rlzero.training.clock import Clock
from rlzero.training.interruption import Interruption


@pytest.fixture
def clock():
    clock = Clock()
    yield clock
    clock.close()


@pytest.fixture
def seconds(monkeypatch):
    """A clock on the wall that is turned by hand."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_laps_and_totals(clock, seconds):
    for name, length in (("rollout", 2.0), ("train", 1.0), ("rollout", 0.5)):
        with clock.phase(name):
            seconds[0] += length
        seconds[0] += 100
    first = clock.lap()
    assert (first["time/rollout_seconds"], first["time/train_seconds"]) == ((2.5, 1.0), (1.0, 1.0))
    with clock.phase("rollout"):
        seconds[0] += 4
    second = clock.lap()
    assert second["time/rollout_seconds"] == (4.0, 1.0) and "time/train_seconds" not in second
    assert clock.total == {"rollout": 6.5, "train": 1.0}


def test_time_is_counted_when_a_phase_fails(clock, seconds):
    with pytest.raises(KeyError), clock.phase("rollout"):
        seconds[0] += 3
        raise KeyError
    assert clock.total == {"rollout": 3.0}


def test_compilations_are_counted_until_the_clock_is_closed(clock):
    def compile_something():
        jax.jit(lambda x: x + 1)(jnp.zeros(3))

    compile_something()
    counted = clock.lap()["compile/programs"][0]
    assert counted >= 1 and clock.lap()["compile/seconds"][0] > 0
    compile_something()
    assert clock.lap()["compile/programs"][0] > counted
    counted = clock.lap()["compile/programs"][0]
    other = Clock()
    other.close()
    compile_something()
    assert other.lap()["compile/programs"][0] == 0 and clock.lap()["compile/programs"][0] > counted


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request_and_the_second_acts_as_before(signum, capsys):
    class Acted(Exception):
        pass

    def act(*arguments):
        raise Acted

    before = {number: signal.signal(number, act) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Interruption() as interruption:
            assert not interruption and interruption.exit_code == 0
            signal.raise_signal(signum)
            assert interruption and interruption.exit_code == 128 + signum
            assert "stopping" in capsys.readouterr().err
            for second in (signal.SIGINT, signal.SIGTERM):
                with pytest.raises(Acted):
                    signal.raise_signal(second)
            assert interruption.signum == signum
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is act
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_handlers_come_back_without_a_signal_too():
    before = signal.getsignal(signal.SIGTERM)
    with Interruption() as interruption:
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before and not interruption
    with pytest.raises(ValueError, match="from inside"), Interruption():
        raise ValueError("from inside")
    assert signal.getsignal(signal.SIGTERM) is before
