"""The problems of a run: generated or read, held out or given, never in both."""

import json

import pytest

from rlzero.models import huggingface
from rlzero.training.config import Config
from rlzero.training.problem_sets import levels_of, training_and_held_out

TOKENIZER = huggingface.load_tokenizer("demo")


def sums(path, pairs):
    path.write_text("".join(json.dumps({"question": f"{a}+{b}=", "answer": str(a + b)}) + "\n" for a, b in pairs))
    return str(path)


def problems(**changes):
    config = Config()
    for name, value in changes.items():
        section, _, field = name.partition("__")
        setattr(getattr(config, section), field, value)
    return training_and_held_out(config, TOKENIZER)


def test_a_generated_task_has_splits_of_its_own():
    training, held_out, report = problems(evaluation__problems=16)
    assert len(held_out) == 16 and report.kept == len(training) > 1000 and all(p.prompt_ids for p in held_out)


def test_without_an_evaluation_set_some_questions_are_held_out_by_seed(tmp_path):
    path = sums(tmp_path / "a.jsonl", [(a, b) for a in range(1, 9) for b in range(1, 9)])
    with open(path, "a") as file:
        file.write('{"question": "1-1=", "answer": "none at all"}\n')
    found = [problems(data__files=path, evaluation__problems=8, data__task_seed=seed)[:2] for seed in (0, 0, 1)]
    ids = [({p.id for p in training}, {p.id for p in held_out}) for training, held_out in found]
    assert ids[0] == ids[1] != ids[2] and not ids[0][0] & ids[0][1]
    assert [len(part) for part in ids[0]] == [64 - 8, 8]  # without the one whose answer is no integer
    with pytest.raises(ValueError, match="too few to hold out 40"):
        problems(data__files=path, evaluation__problems=40)


def test_several_sets_are_one_and_questions_in_both_are_refused(tmp_path):
    first, second = sums(tmp_path / "a.jsonl", [(1, 1), (1, 2)]), sums(tmp_path / "b.jsonl", [(1, 1), (1, 3)])
    test = sums(tmp_path / "c.jsonl", [(2, 5)])
    training, held_out, report = problems(data__files=f"{first}, {second}", evaluation__files=test,
                                          evaluation__layout="fields")
    assert [p.question for p in training] == ["1+1=", "1+2=", "1+3="] and report.duplicates == 1
    assert training[0].id.startswith("a/") and [p.question for p in held_out] == ["2+5="]
    with pytest.raises(ValueError, match="1 of 2 evaluation questions are also in the training data"):
        problems(data__files=second, evaluation__files=first, evaluation__layout="fields")


def test_repeated_questions_stay_where_that_is_asked_for(tmp_path):
    path = sums(tmp_path / "a.jsonl", [(1, 1)] * 3)
    test = sums(tmp_path / "c.jsonl", [(2, 5)])
    for deduplicate, count in ((True, 1), (False, 3)):
        training, _, _ = problems(data__files=path, data__deduplicate=deduplicate, evaluation__files=test,
                                  evaluation__layout="fields")
        assert len({p.id for p in training}) == len(training) == count


@pytest.mark.parametrize("text, expected", [("", None), ("3-5", (3, 5)), ("4", (4, 4)), ("2.5-3", (2.5, 3))])
def test_levels(text, expected):
    assert levels_of(text) == expected


def test_levels_that_are_none():
    with pytest.raises(ValueError, match="such as 3-5, got 'hard'"):
        levels_of("hard")
