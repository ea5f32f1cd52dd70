"""Grading in killable workers: deadlines, deaths, memory, order, threads, and what is left behind."""

import concurrent.futures
import os
import pathlib
import signal
import time

import pytest

from rlzero.rewards import Grade, GradingPool

_GRADER = "graders:obedient"
_DEADLINE = 2.0


def children():
    """Process ids of the living children of this process."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.fixture(scope="module")
def pool():
    before = set(children())
    with GradingPool(workers=2, deadline_seconds=_DEADLINE, mode="integer", grader=_GRADER, memory_mib=1024) as opened:
        yield opened
    assert set(children()) <= before


def good(count, start=0):
    """Samples of which every third is wrong, and what their grades must be."""
    samples = [(f"s{n}", rf"\boxed{{{n}}}", str(n if n % 3 else n + 1)) for n in range(start, start + count)]
    return samples, [Grade(n % 3 != 0, str(n)) for n in range(start, start + count)]


def test_grades_come_in_the_order_given(pool):
    samples, grades = good(1000)
    assert pool.grade(samples) == grades
    assert pool.grade([]) == []


@pytest.mark.parametrize("order", ["sleep", "spin", "die", "eat", "raise"])
def test_one_bad_sample_harms_no_other(pool, order):
    samples, grades = good(100)
    samples.insert(50, ("bad", order, "1"))
    found = pool.grade(samples)
    bad = found.pop(50)
    assert found == grades
    # On a busy machine the eater may not have eaten enough before its time is over.
    reasons = {"sleep": ["longer than 2 s"], "spin": ["longer than 2 s"], "eat": ["more memory", "longer than 2 s"],
               "die": ["died with code 7"], "raise": ["died with code 1"]}[order]
    assert any(reason in bad.error for reason in reasons) and not bad.correct and bad.extracted is None
    assert order == "eat" or "sample bad: " in bad.error
    assert pool.grade(samples[:3]) == grades[:3]
    assert len(children()) >= 2


def test_sleepers_are_killed_and_all_others_are_graded(pool):
    samples, grades = good(40)
    sleepers = [(f"z{n}", "sleep", "1") for n in range(4)]
    mixed = [sample for n in range(4) for sample in [sleepers[n], *samples[10 * n:10 * n + 10]]]
    start = time.monotonic()
    found = pool.grade(mixed)
    assert time.monotonic() - start < 30  # 4 deadlines over 2 workers, and 4 starts
    assert [grade for grade in found if grade.error is None] == grades
    assert [n for n, grade in enumerate(found) if grade.error] == [0, 11, 22, 33]


def test_threads_share_the_workers(pool):
    def graded(number):
        samples, grades = good(200, start=1000 * number)
        return pool.grade(samples) == grades

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        assert all(threads.map(graded, range(6)))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_workers_that_are_killed_or_stopped_from_outside_are_replaced(pool, how):
    before = children()
    for worker in before:
        os.kill(worker, how)
    samples, grades = good(100)
    assert pool.grade(samples) == grades
    assert not set(before) <= set(children())


def test_workers_that_are_killed_while_they_start_are_replaced():
    before = set(children())
    samples, grades = good(10)
    with GradingPool(workers=2, deadline_seconds=_DEADLINE) as opened:
        for worker in set(children()) - before:
            os.kill(worker, signal.SIGKILL)
        assert opened.grade(samples) == grades


def test_workers_that_cannot_start_are_an_error():
    with GradingPool(workers=1, memory_mib=16) as opened, pytest.raises(RuntimeError, match="before it could start"):
        opened.grade([("a", "1", "1")])


def test_an_error_of_the_grader_comes_through(pool):
    assert pool.grade([("a", "refuse", "1")]) == [Grade(False, None, "refused")]
    assert "not an integer" in pool.grade([("a", r"\boxed{1}", "x")])[0].error


def test_wrong_use_says_what_to_do(pool):
    with pytest.raises(TypeError, match="the gold of sample a must be text, got int"):
        pool.grade([("a", "1", 1)])
    with pytest.raises(ValueError, match="at least one worker"):
        GradingPool(workers=0)
    with pytest.raises(ValueError, match="no mode 'fuzzy'"):
        GradingPool(mode="fuzzy")
    with pytest.raises(ValueError, match="no function 'nobody'"):
        GradingPool(grader="graders:nobody")
    with pytest.raises(RuntimeError, match="with block"):
        GradingPool().grade([("a", "1", "1")])


def test_close_ends_workers_at_work():
    samples = [("z", "sleep", "1")]
    before = set(children())
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with GradingPool(workers=1, deadline_seconds=60.0, grader=_GRADER) as opened:
            waiting = threads.submit(opened.grade, samples)
            while not set(children()) - before:
                time.sleep(0.01)
        with pytest.raises(RuntimeError, match="closed"):
            waiting.result(timeout=30)
    assert set(children()) <= before


def test_mathematics_in_workers():
    with GradingPool(workers=1, deadline_seconds=30.0, mode="math") as opened:
        found = opened.grade([("a", r"\boxed{\sqrt{12}}", r"2\sqrt{3}"), ("b", r"\boxed{9^{9^{9^9}}}", "34"),
                              ("c", r"\boxed{\arctan x}", r"\arctan x+\arctan 0")])
    assert [grade.correct for grade in found] == [True, False, True]
