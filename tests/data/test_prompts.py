"""The order of prompts, and going on from a saved position."""

import json

import pytest

from rlzero.data import Problem, PromptIterator

_PROBLEMS = [Problem(f"p{i}", f"{i}+1=", str(i + 1)) for i in range(10)]


def _ids(problems):
    return [problem.id for problem in problems]


def test_every_epoch_holds_every_problem_once_in_an_order_of_its_own():
    iterator = PromptIterator(_PROBLEMS, seed=3)
    epochs = [_ids(iterator.take(10)) for _ in range(3)]
    assert all(sorted(epoch) == sorted(_ids(_PROBLEMS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert iterator.drawn == 30 and iterator.epochs == 3.0


def test_the_order_is_a_function_of_the_seed():
    first, again, other = (_ids(PromptIterator(_PROBLEMS, seed=seed).take(25)) for seed in (5, 5, 6))
    assert first == again != other


def test_it_goes_on_from_a_saved_position_twice_in_a_row():
    whole = _ids(PromptIterator(_PROBLEMS, seed=1).take(30))
    iterator, seen = PromptIterator(_PROBLEMS, seed=1), []
    for _ in range(3):
        seen += _ids(iterator.take(7))
        state = json.loads(json.dumps(iterator.get_state()))
        iterator = PromptIterator(_PROBLEMS, seed=1)
        iterator.set_state(state)
    assert seen + _ids(iterator.take(9)) == whole


@pytest.mark.parametrize(
    ("problems", "seed"),
    [(_PROBLEMS, 2), (_PROBLEMS[:9], 1), (_PROBLEMS[::-1], 1), ([Problem("p0", "0+1=", "2"), *_PROBLEMS[1:]], 1)],
    ids=["seed", "length", "order", "answer"],
)
def test_a_position_in_other_data_is_refused(problems, seed):
    state = PromptIterator(_PROBLEMS, seed=1).get_state()
    with pytest.raises(ValueError, match="other problems or another data seed"):
        PromptIterator(problems, seed=seed).set_state(state)


def test_no_problems_is_an_error():
    with pytest.raises(ValueError, match="no problems"):
        PromptIterator([], seed=0)


@pytest.mark.parametrize("hosts", [1, 3, 4])
def test_hosts_that_draw_in_turns_go_through_every_epoch_together(hosts):
    alone = _ids(PromptIterator(_PROBLEMS, seed=7).take(12 * 5))
    shares = [PromptIterator(_PROBLEMS, seed=7, host=host, hosts=hosts) for host in range(hosts)]
    drawn = [_ids(share.take(60 // hosts)) for share in shares]
    assert [problem for turn in zip(*drawn, strict=True) for problem in turn] == alone
    assert all(share.drawn == 60 and share.epochs == 6.0 for share in shares)


def test_another_number_of_hosts_goes_on_where_the_others_were():
    state = PromptIterator(_PROBLEMS, seed=7, host=1, hosts=2)
    state.take(6)
    rest = _ids(PromptIterator(_PROBLEMS, seed=7).take(24))[12:]
    shares = [PromptIterator(_PROBLEMS, seed=7, host=host, hosts=3) for host in range(3)]
    for share in shares:
        share.set_state(state.get_state())
    assert [problem for turn in zip(*(_ids(share.take(4)) for share in shares), strict=True) for problem in turn] == rest
    with pytest.raises(ValueError, match="a number of hosts that divides"):
        PromptIterator(_PROBLEMS, seed=7, hosts=5).set_state(state.get_state())


@pytest.mark.parametrize("host", [-1, 2])
def test_a_host_that_there_is_not_is_refused(host):
    with pytest.raises(ValueError, match="a host from 0 to 1"):
        PromptIterator(_PROBLEMS, seed=7, host=host, hosts=2)
