"""A text ends a response with the token that completes it, however tokens share it among them."""

import random

import numpy as np
import pytest

from rlzero.models import huggingface
from rlzero.rollout.stopping import StopText, stop_text


@pytest.mark.parametrize("texts", ["a", "ab", "abab", "aab", "aaa", "ab;ab", "</a>", "ab,ba", "aba,bb", "ab;,;b;a,</a>",
                                   "abcd,bc", "a,aa"])
def test_the_end_is_where_what_was_read_so_far_first_holds_a_text(texts):
    texts, draw, ends = texts.split(","), random.Random(texts), 0
    letters = sorted(set("".join(texts))) + ["x"]
    for _ in range(300):
        words = ["", *letters, *("".join(draw.choices(letters, k=draw.randint(1, 5))) for _ in range(20))]
        stop = StopText(texts, words)
        ids = draw.choices(range(len(words)), k=60)
        read = ["".join(words[i] for i in ids[:length]) for length in range(1, 61)]
        expected = next((length for length, so_far in enumerate(read, start=1) if any(t in so_far for t in texts)), None)
        assert stop.end(ids) == expected, [words[i] for i in ids]
        ends += expected is not None
    assert ends > 20


def test_tokens_that_hold_a_whole_text_end_a_response_by_themselves():
    stop = StopText(["; "], ["x", "; ", ";", " ", "y; z", " ;"])
    assert stop.ids == (1, 4) and stop.spread
    assert StopText(["; ", " ;"], ["x", "; ", ";", " ", "y; z", " ;"]).ids == (1, 4, 5)
    lines = StopText(["\n"], ["x", "\n", "a\nb", ""])
    assert lines.ids == (1, 2) and not lines.spread
    # What is complete stays so, whatever is drawn after the end.
    assert np.all(stop.table[:, -1] == stop.end_state)


@pytest.mark.parametrize("texts, complaint", [
    (["ä"], "'ä' is not ASCII"), (["a" * 60, "b" * 41], "longer than 100 characters"), (["a", ""], "holds an empty text")])
def test_a_text_that_cannot_be_followed_is_refused(texts, complaint):
    with pytest.raises(ValueError, match=complaint):
        StopText(texts, ["a"])


def test_the_table_is_made_from_a_tokenizer():
    tokenizer = huggingface.load_tokenizer("demo")
    assert stop_text("", tokenizer, len(tokenizer)) is None
    stop = stop_text("=1", tokenizer, len(tokenizer) + 3)
    assert stop.table.shape == (len(tokenizer) + 3, 3) and np.array_equal(stop.table[-1], [0, 1, 2])
    ids = tokenizer.encode("7+8=15; 15+2=17")
    assert tokenizer.decode(ids[:stop.end(ids)]) == "7+8=1"
    newline = tokenizer.convert_tokens_to_ids("\n")
    assert stop_text("\n", tokenizer, len(tokenizer)).ids == (newline,)
    blanks = {i for i in range(len(tokenizer)) if " " in tokenizer.decode([i])}
    assert len(blanks) > 2 and set(stop_text(" ", tokenizer, len(tokenizer)).ids) == blanks
    with pytest.raises(ValueError, match="cannot write the stop text '</answer>'"):
        stop_text("=1,</answer>", tokenizer, len(tokenizer))
