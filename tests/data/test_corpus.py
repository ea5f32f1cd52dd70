"""Documents packed into rows."""

import itertools
import json

import numpy as np
import pytest

from rlzero.data.corpus import arithmetic_documents, packed_batches, text_documents
from rlzero.data.tasks.arithmetic_tokenizer import EOS, ID, make_tokenizer


def test_packing_by_hand():
    documents = [np.array(d, np.int32) for d in ([1, 2, 3], [4, 5], [6, 7], [8, 9, 10, 11, 12, 13, 14], [15], [16] * 6)]
    (batch,) = packed_batches(documents, batch_size=4, length=6)
    np.testing.assert_array_equal(
        batch.tokens,
        [[1, 2, 3, 4, 5, 0], [6, 7, 0, 0, 0, 0], [8, 9, 10, 11, 12, 13], [14, 15, 0, 0, 0, 0]],
    )
    np.testing.assert_array_equal(
        batch.segments, [[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 2, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        batch.positions, [[0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        batch.mask, [[1, 1, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(batch.targets[:2], [[2, 3, 0, 5, 0, 0], [7, 0, 0, 0, 0, 0]])


def test_no_document_is_lost_between_batches():
    documents = list(itertools.islice(arithmetic_documents(seed=0), 300))
    batches = list(packed_batches(documents, batch_size=4, length=64))
    found = [
        batch.tokens[row][batch.segments[row] == segment]
        for batch in batches
        for row in range(4)
        for segment in range(1, batch.segments[row].max() + 1)
    ]
    for document, packed in zip(documents, found, strict=False):
        np.testing.assert_array_equal(document, packed)
    assert len(found) > 280
    assert sum(batch.mask.sum() for batch in batches) == sum(len(document) - 1 for document in found)


def test_arithmetic_documents_are_a_function_of_the_seed():
    first, again, other = (next(arithmetic_documents(seed=seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert first.tolist() != other.tolist()
    assert first[-1] == ID[EOS]


def _files(tmp_path, *texts):
    paths = [tmp_path / f"{i}.jsonl" for i in range(len(texts))]
    for path, lines in zip(paths, texts, strict=True):
        path.write_text("\n".join(json.dumps({"id": 1, "text": text}) for text in lines) + "\n\n", encoding="utf-8")
    return paths


def test_texts_come_once_an_epoch_with_end_of_sequence(tmp_path):
    tokenizer = make_tokenizer()
    paths = _files(tmp_path, ["1+1=2", "\\boxed{2}"], ["3"])

    def read(seed, epochs):
        documents = text_documents(paths, field="text", tokenizer=tokenizer, seed=seed, epochs=epochs)
        return [tokenizer.decode(ids) for ids in documents]

    assert read(None, 1) == ["1+1=2<eos>", "\\boxed{2}<eos>", "3<eos>"]
    assert sorted(read(0, 1)) == sorted(read(None, 1))
    assert read(0, 4) == read(0, 4)
    assert len({tuple(read(0, 6)[i : i + 3]) for i in range(0, 18, 3)}) > 1


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "directory"])
def test_texts_of_several_fields_are_joined_whatever_the_file(kind, tmp_path):
    rows = [{"problem": f"{n}+1=", "solution": str(n + 1), "source": "x"} for n in range(5)]
    path = tmp_path / f"texts.{kind}"
    if kind in ("jsonl", "json"):
        path.write_text(json.dumps(rows) if kind == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        path.mkdir() if kind == "directory" else None
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.Table.from_pylist(rows), path / "part.parquet" if kind == "directory" else path)
    tokenizer = make_tokenizer()
    documents = text_documents([str(path)], field="problem,solution", tokenizer=tokenizer, seed=None, epochs=1)
    expected = tokenizer.encode("2+1=\n3") + [ID[EOS]]
    assert list(documents)[2].tolist() == expected
    with pytest.raises(ValueError, match="(row|byte) 0: no text under the field 'answer' .*problem, solution, source"):
        next(text_documents([str(path)], field="problem,answer", tokenizer=tokenizer, seed=None))


def test_lines_that_are_no_json_are_told_with_their_place(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "1"}\n{"text": \n')
    with pytest.raises(ValueError, match="byte 14: expected JSON"):
        list(text_documents([str(path)], field="text", tokenizer=make_tokenizer(), seed=None, epochs=1))


def test_texts_that_are_not_there_are_errors(tmp_path):
    tokenizer = make_tokenizer()
    paths = _files(tmp_path, ["1"])
    with pytest.raises(ValueError, match="no text under the field 'content' .*fields there: id, text"):
        next(text_documents(paths, field="content", tokenizer=tokenizer, seed=0))
    with pytest.raises(ValueError, match="no documents in"):
        next(text_documents([], field="text", tokenizer=tokenizer, seed=0))
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        next(text_documents(paths, field="text", tokenizer=tokenizer, seed=0))
