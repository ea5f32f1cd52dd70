"""Which problems are let in, and the account of those that are not."""

import json

import pytest

from rlzero.data import Problem, prepare, refuse_overlap
from rlzero.data.problems import PromptReport, fingerprint
from rlzero.data.tasks.arithmetic_tokenizer import make_tokenizer


def _problems(*questions):
    return [Problem(f"p{i}", question, "1") for i, question in enumerate(questions)]


def test_prompt_ids_are_filled_and_everything_is_accounted_for():
    repeated = [Problem(f"r{i}", ("1+1=", "1+ 1=", "2+1=")[i % 3], "3") for i in range(300)]
    long = [Problem("long", "1+1+1+1+1+1=", "6")]
    kept, report = prepare(repeated + long, make_tokenizer(), max_prompt_length=6)
    assert [problem.question for problem in kept] == ["1+1=", "1+ 1=", "2+1="]
    assert [len(problem.prompt_ids) for problem in kept] == [4, 5, 4]
    assert report.given == 301 == report.kept + report.duplicates + len(report.too_long)
    assert report.too_long == ("long",)
    assert "297 duplicates" in str(report) and "long" in str(report)


def test_equal_questions_count_once_whatever_their_blanks_and_conflicts_are_counted():
    problems = [Problem("a", "how many?", "1"), Problem("b", " how \n many? ", "1"), Problem("c", "how many?", "2")]
    kept, report = prepare(problems, make_tokenizer(), max_prompt_length=99)
    assert [problem.id for problem in kept] == ["a"]
    assert (report.duplicates, report.conflicts) == (2, 1)


def test_nothing_left_is_an_error():
    with pytest.raises(ValueError, match="raise the prompt limit of 2 tokens"):
        prepare(_problems("1+1="), make_tokenizer(), max_prompt_length=2)


def test_ids_are_unique():
    with pytest.raises(ValueError, match="id 'a'"):
        prepare([Problem("a", "1+1=", "2"), Problem("a", "1+2=", "3")], make_tokenizer(), max_prompt_length=9)


def test_overlap_is_refused():
    refuse_overlap(_problems("1+1=", "1+2="), _problems("2+2="))
    with pytest.raises(ValueError, match="1 of 2 evaluation questions .* [(]p1"):
        refuse_overlap(_problems("1+1=", "1+2="), _problems("2+2=", " 1+2= "))


def test_fingerprint_is_of_ids_answers_order_and_salt():
    one, two = _problems("1+1=", "1+2=")
    same = fingerprint([one, two], 0)
    assert same == fingerprint([one, two], 0)
    others = [fingerprint([two, one], 0), fingerprint([one], 0), fingerprint([one, two], 1)]
    others.append(fingerprint([one, Problem("p1", "1+2=", "2")], 0))
    assert len({same, *others}) == 5


def test_what_was_left_out_is_written_down_by_its_reason(tmp_path):
    path = tmp_path / "left_out.json"
    PromptReport(5, 5, 0, 0, ()).save(path)
    assert not path.exists()
    PromptReport(9, 5, 1, 0, ("a", "b"), ("c",)).save(path)
    assert json.loads(path.read_text()) == {"prompt too long": ["a", "b"], "gold answer unreadable": ["c"]}
