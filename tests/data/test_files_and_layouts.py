"""Problem sets as they are published: files of every kind, rows of every layout, and the real ones where they are."""

import json
import os
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlzero.data import files, layouts

ROWS = [{"question": "1+1", "answer": "2"}, {"question": "2+2", "answer": "4"}]


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arrow(directory, rows):
    directory.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(str(directory / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (directory / "dataset_info.json").write_text("{}")
    return directory


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "directory", "saved", "saved dict"])
def test_the_same_rows_come_from_every_kind_of_file(tmp_path, kind):
    path = tmp_path / "set"
    if kind == "jsonl":
        path = jsonl(tmp_path / "a.jsonl", ROWS)
    elif kind == "json":
        path = tmp_path / "a.json"
        path.write_text(json.dumps(ROWS))
    elif kind == "parquet":
        path = tmp_path / "a.parquet"
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "directory":
        path.mkdir()
        jsonl(path / "0.jsonl", ROWS[:1])
        jsonl(path / "1.jsonl", ROWS[1:])
    elif kind == "saved":
        arrow(path, ROWS)
    else:
        arrow(path / "train", ROWS)
        (path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert list(files.rows(path)) == ROWS


def test_what_cannot_be_read_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": 1}\n\n{"question"\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 3: expected JSON"):
        list(files.rows(tmp_path / "a.jsonl"))
    (tmp_path / "a.json").write_text('{"data": []}')
    with pytest.raises(ValueError, match="expected a list of problems, got dict"):
        list(files.rows(tmp_path / "a.json"))
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(ValueError, match=r"a\.parquet: cannot be read"):
        list(files.rows(tmp_path / "a.parquet"))
    with pytest.raises(FileNotFoundError, match="there is no .*nothing"):
        list(files.rows(tmp_path / "nothing"))
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"ends with \.jsonl, \.json, \.parquet"):
        list(files.rows(tmp_path / "a.txt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no \.arrow"):
        list(files.rows(tmp_path / "empty"))
    for split in ("train", "test"):
        arrow(tmp_path / "both" / split, ROWS)
    (tmp_path / "both/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match=r"several sets; name one: .*both/train, .*both/test"):
        list(files.rows(tmp_path / "both"))


@pytest.mark.parametrize("layout, row, expected", [
    ("fields", {"question": "q", "answer": 3}, ("q", "3")),
    ("dapo", {"prompt": [{"role": "user", "content": "q"}], "reward_model": {"ground_truth": "34"},
              "extra_info": {"index": 7}}, ("q", "34")),
    ("math", {"problem": "q", "solution": r"so \boxed{\frac12}.", "level": "Level 5"}, ("q", r"\frac12")),
    ("math", {"problem": "q", "answer": "0", "difficulty": 5.0}, ("q", "0")),
    ("gsm8k", {"question": "q", "answer": "1,000 + 1\n#### 1,001"}, ("q", "1001")),
    ("orz", [{"from": "human", "value": "q"}, {"from": "assistant", "ground_truth": {"value": "5"}}], ("q", "5")),
    ("benchmark", {"problem": "q", "answer": "142.0"}, ("q", "142")),
    ("benchmark", {"problem": "q", "answer": ["9.6\n"]}, ("q", "9.6")),
    ("benchmark", {"problem": "q", "answer": ["2", "3"]}, ("q", "2, 3")),
    ("math", {"problem": "q", "answer": None}, ("q", "")),
    ("math", {"problem": "q", "solution": "unfinished"}, ("q", "")),
    ("benchmark", {"problem": "q", "answer": "[2, 3)"}, ("q", "[2, 3)"))])
def test_rows_of_every_layout(tmp_path, layout, row, expected):
    (problem,) = layouts.load(jsonl(tmp_path / "a.jsonl", [row]), layout)
    assert (problem.question, problem.answer) == expected


def test_names_depend_on_the_question_alone_and_are_unique(tmp_path):
    rows = [{"problem": "a  b", "answer": "1"}, {"problem": "c", "answer": "2"}]
    names = [[p.id for p in layouts.load(jsonl(tmp_path / "x.jsonl", order), "benchmark")]
             for order in (rows, rows[::-1])]
    assert names[0] == names[1][::-1] and len(set(names[0])) == 2
    dapo = [{"prompt": [{"content": text}], "reward_model": {"ground_truth": "1"}, "extra_info": {"index": 7}}
            for text in ("a", "b", "a")]
    found = [p.id for p in layouts.load(jsonl(tmp_path / "y.jsonl", dapo), "dapo")]
    assert found[0] == found[2] == "7" != found[1]


def test_levels_choose_problems_and_need_a_level(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"problem": f"q{i}", "answer": "1", "level": f"Level {i}"} for i in range(1, 6)])
    assert [p.question for p in layouts.load(path, "math", levels=(3, 5))] == ["q3", "q4", "q5"]
    with pytest.raises(ValueError, match="no problem of levels 6 to 7"):
        layouts.load(path, "math", levels=(6, 7))
    plain = jsonl(tmp_path / "b.jsonl", ROWS)
    with pytest.raises(ValueError, match="have no level.*data.levels"):
        layouts.load(plain, "fields", levels=(3, 5))


@pytest.mark.parametrize("layout, row, words", [
    ("nowhere", {}, "no layout 'nowhere'; available: fields, dapo"),
    ("gsm8k", {"question": "q", "answer": "no mark"}, "row 0: not laid out as 'gsm8k'.*it has question, answer"),
    ("fields", {"problem": "q"}, "KeyError: 'question'.*it has problem. No other layout reads it; .*name the fields"),
    ("fields", {"problem": "q", "answer": "1"}, "Layout 'math' or 'benchmark' reads it"),
    ("fields", [{"value": "q"}, {"ground_truth": {"value": "1"}}], "it is of type list. Layout 'orz' reads it"),
    ("benchmark", {"question": "q", "answer": "1"}, "KeyError: 'problem'.*Layout 'fields' reads it"),
    ("fields", "q", "it is of type str. No other layout reads it"),
    ("dapo", {"prompt": [{"content": "q"}], "reward_model": {"ground_truth": "1"}, "extra_info": 3}, "AttributeError"),
    ("fields", {"question": "q", "answer": None}, "expected text, got NoneType"),
    ("fields", {"question": " ", "answer": "1"}, "an empty question")])
def test_rows_that_do_not_fit_refuse_the_set(tmp_path, layout, row, words):
    with pytest.raises(ValueError, match=words):
        layouts.load(jsonl(tmp_path / "a.jsonl", [row]), layout)


# The real ones.

DATA = os.environ.get("RLZERO_DATA", "")
real = pytest.mark.skipif(not DATA, reason="RLZERO_DATA names no directory with the published problem sets")


@real
@pytest.mark.parametrize("name, layout, count", [
    ("evaluation_suite/aime", "benchmark", 30), ("evaluation_suite/amc", "benchmark", 83),
    ("evaluation_suite/math", "benchmark", 500), ("evaluation_suite/minerva", "benchmark", 272),
    ("evaluation_suite/olympiad_bench", "benchmark", 675), ("asdiv_2k", "benchmark", 1788),
    ("gsm8k/train.jsonl", "gsm8k", 7473), ("gsm8k/test.jsonl", "gsm8k", 1319), ("math_train.json", "math", 7474),
    ("aime-2024.parquet", "dapo", 960)])
def test_published_sets(name, layout, count):
    problems = layouts.load(pathlib.Path(DATA) / name, layout)
    assert len(problems) == count and all(problem.question for problem in problems)
    assert sum(not problem.answer for problem in problems) == (4 if name == "math_train.json" else 0)


@real
def test_levels_3_to_5_of_math_and_the_repetitions_of_aime():
    assert len(layouts.load(pathlib.Path(DATA) / "math_train.json", "math", levels=(3, 5))) == 1584 + 1681 + 2298
    aime = layouts.load(pathlib.Path(DATA) / "aime-2024.parquet", "dapo")
    assert len({problem.question for problem in aime}) == len({problem.id for problem in aime}) == 30
