"""Requests go to servers prompt by prompt, come back after failures, and are delivered once."""

import asyncio
import time

from rlzero.rollout.dispatch import Call, Item, Work
from rlzero.rollout.engine import Completion, Request, Sampling

SAMPLING = Sampling(max_new_tokens=4, stop_ids=(1,))


def requests(prompts, size):
    return [Request(f"p{p}", g, (3,), 0) for p in range(prompts) for g in range(size)]


def answer(request):
    return Completion(request, (1,), (-0.5,), "stop", 0)


def take(work, *servers):
    async def run():
        return [(await asyncio.wait_for(work.take(server), 1.0)).name for server in servers]

    return asyncio.run(run())


def test_a_server_stays_at_its_prompt_and_helps_others_at_the_end():
    work = Work(requests(2, 3))
    assert take(work, "a", "b", "a", "b", "a") == ["p0#0", "p1#0", "p0#1", "p1#1", "p0#2"]
    assert take(work, "a") == ["p1#2"]


def test_what_comes_back_waits_for_its_time_and_goes_first():
    async def run():
        work = Work(requests(1, 2))
        first = await work.take("a")
        work.put_back(first, delay=0.05)
        assert (await work.take("a")).name == "p0#1"
        start = time.monotonic()
        again = await asyncio.wait_for(work.take("b"), 5.0)
        return again is first, time.monotonic() - start

    same, waited = asyncio.run(run())
    assert same and waited >= 0.04


def test_a_waiting_server_is_woken_by_what_comes_back():
    async def run():
        work = Work([])
        waiting = asyncio.ensure_future(work.take("a"))
        await asyncio.sleep(0)
        item = Item(requests(1, 1)[0])
        work.put_back(item)
        return await asyncio.wait_for(waiting, 5.0) is item

    assert asyncio.run(run())


def drain(call):
    found = []
    while not call.results.empty():
        found.append(call.results.get())
    return found


def test_each_request_is_delivered_once_and_the_call_ends_with_the_last():
    first, second = requests(1, 2)
    call = Call([first, second], SAMPLING, 0)
    assert call.deliver(answer(first)) and not call.deliver(answer(first)) and call.missing == 1
    assert not call.over.is_set() and call.deliver(answer(second)) and call.over.is_set()
    assert drain(call) == [answer(first), answer(second), None]
    assert not call.deliver(answer(second)) and drain(call) == []


def test_a_call_that_failed_says_so_once_and_takes_nothing_more():
    (first,) = requests(1, 1)
    call = Call([first], SAMPLING, 0)
    error = TimeoutError("gone")
    call.fail(error)
    call.fail(ValueError("later"))
    assert drain(call) == [error] and not call.deliver(answer(first)) and drain(call) == []


def test_a_call_without_requests_is_over_at_once():
    assert drain(Call([], SAMPLING, 0)) == [None]
