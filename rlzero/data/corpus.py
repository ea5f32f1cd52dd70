"""Token batches for next-token pretraining: documents without end, packed into rows but kept apart from each other.

Documents come from files of texts (`text_documents`) or from the demo's worked arithmetic (`arithmetic_documents`).
What comes, and in which order, is a pure function of the arguments.
"""

import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rlzero.data import files
from rlzero.data.tasks import arithmetic_corpus
from rlzero.data.tasks.arithmetic_tokenizer import ID, PAD

_ARITHMETIC_BLOCK = 4096  # sequences generated at a time


class PackedBatch(NamedTuple):
    """Rows of packed documents, [B, S] each.

    Attributes:
      tokens: inputs, int32; 0 in empty places.
      targets: the token that follows within the same document, int32; 0 where there is none.
      mask: float32, 1 exactly where a token follows.
      positions: place within the document, from 0, int32.
      segments: number of the document within its row, from 1, int32; 0 in empty places.
    """

    tokens: np.ndarray
    targets: np.ndarray
    mask: np.ndarray
    positions: np.ndarray
    segments: np.ndarray


def packed_batches(documents: Iterable[np.ndarray], *, batch_size: int, length: int) -> Iterator[PackedBatch]:
    """Packs documents one after the other into rows, and rows into batches.

    A document that does not fit into what is left of a row begins the next one. Only a document longer than a whole
    row is cut, into pieces that are then documents of their own. Nothing is left out, except that documents which end
    before the last batch is full give no batch.

    Args:
      documents: 1-D arrays of token ids.
      batch_size: rows of a batch.
      length: tokens in a row.
    """
    rows: list[list[np.ndarray]] = [[]]
    room = length
    for document in documents:
        for start in range(0, len(document), length):
            piece = document[start : start + length]
            if len(piece) > room:
                if len(rows) == batch_size:
                    yield _batch(rows, length)
                    rows = []
                rows.append([])
                room = length
            rows[-1].append(piece)
            room -= len(piece)


def _batch(rows: list[list[np.ndarray]], length: int) -> PackedBatch:
    tokens, positions, segments = np.zeros((3, len(rows), length), np.int32)
    for row, pieces in enumerate(rows):
        lengths = [len(piece) for piece in pieces]
        end = sum(lengths)
        tokens[row, :end] = np.concatenate(pieces)
        positions[row, :end] = np.concatenate([np.arange(n) for n in lengths])
        segments[row, :end] = np.repeat(np.arange(1, len(pieces) + 1), lengths)
    following_tokens, following_segments = (np.pad(array[:, 1:], ((0, 0), (0, 1))) for array in (tokens, segments))
    mask = (segments == following_segments) & (segments > 0)
    return PackedBatch(tokens, np.where(mask, following_tokens, 0), mask.astype(np.float32), positions, segments)


def arithmetic_documents(
    *, seed: int, split: str = "train", habits: arithmetic_corpus.Habits = arithmetic_corpus.Habits()
) -> Iterator[np.ndarray]:
    """Gives worked arithmetic without end, in the ids of the demo's tokenizer. See `arithmetic_corpus`."""
    rng = np.random.default_rng(seed)
    while True:
        block = arithmetic_corpus.sequences(_ARITHMETIC_BLOCK, rng, habits=habits, split=split)
        lengths = (block != ID[PAD]).sum(axis=1)
        yield from (row[:n] for row, n in zip(block, lengths, strict=True))


class _Line(NamedTuple):
    """Where a text stands in a JSONL file."""

    path: str
    offset: int


def text_documents(
    paths: Sequence[str], *, field: str, tokenizer, seed: int | None, epochs: int | None = None
) -> Iterator[np.ndarray]:
    """Gives the texts of files as token ids with an end of sequence.

    Of JSONL files only the places of the lines are kept in memory and a text is read when its turn comes. Of the other
    kinds the texts themselves are kept.

    Args:
      paths: files or directories, see `files.rows`; JSONL files have one object a line.
      field: name of the text in a row; several names with commas between them join their texts with line breaks.
      tokenizer: a tokenizer of `transformers` with an end-of-sequence token.
      seed: of the order, which is another one in each epoch; None keeps the order of the files.
      epochs: how often to go through the files; None is without end.

    Raises:
      ValueError: if there is no document, a row has no text under `field`, or there is no end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no end-of-sequence token, so documents could not be told apart; set one.")
    names = [name.strip() for name in field.split(",")]
    documents = [document for path in paths for document in _documents(path, names)]
    if not documents:
        raise ValueError(f"no documents in {', '.join(map(str, paths)) or 'no files'}; name files that hold some.")
    epoch = 0
    while epochs is None or epoch < epochs:
        count = len(documents)
        order = range(count) if seed is None else np.random.default_rng((seed, epoch)).permutation(count)
        for index in order:
            yield _ids(_text_at(documents[index], names), tokenizer)
        epoch += 1


def _documents(path, names) -> Iterator[_Line | str]:
    path = pathlib.Path(path)
    if path.is_file() and path.suffix == ".jsonl":
        yield from (_Line(str(path), offset) for offset in _line_offsets(path))
        return
    for number, row in enumerate(files.rows(path)):
        yield _joined(row, names, f"{path}, row {number}")


def _line_offsets(path):
    with open(path, "rb") as file:
        offset = 0
        for line in file:
            if line.strip():
                yield offset
            offset += len(line)


def _text_at(document, names):
    if isinstance(document, str):
        return document
    where = f"{document.path}, byte {document.offset}"
    with open(document.path, "rb") as file:
        file.seek(document.offset)
        try:
            return _joined(json.loads(file.readline()), names, where)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: expected JSON ({error})") from None


def _joined(row, names, where):
    """The texts of a row under all of the names."""
    for name in names:
        if not isinstance(row, dict) or not isinstance(row.get(name), str):
            fields = ", ".join(row) if isinstance(row, dict) else "not an object"
            raise ValueError(f"{where}: no text under the field {name!r} (fields there: {fields}).")
    return "\n".join(row[name] for name in names)


def _ids(text, tokenizer):
    ids = tokenizer.encode(text)
    if not ids or ids[-1] != tokenizer.eos_token_id:
        ids = [*ids, tokenizer.eos_token_id]
    return np.asarray(ids, np.int32)
