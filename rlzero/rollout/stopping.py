"""Texts that end a response, followed token by token.

A tokenizer can write a text such as `</answer>` in many ways, together with what stands before and after it, so no list
of token ids ends a response exactly where the text does. But the longest beginning of a text that has been written so
far is one of a few, and each token leads from one of them to the next: the automaton of Aho and Corasick with tokens
for letters. It is a table of a row for each token, and to follow it costs a look-up a token. The response keeps the
token that completes a text as it was sampled, with whatever that token holds besides.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST = 100  # characters of all texts


class StopText:
    """Texts of which the first that is complete ends a response.

    Equal to nothing but itself, so that it can be a static argument of a jitted function.

    Attributes:
      texts: the texts.
      table: `[V, S + 1]` uint8, of S beginnings: which one has been written after a token, by the one before it. 0 is
        the empty one, and S, the end, is left no more.
      ids: tokens that end a response whatever was before them, as they contain a text.
      spread: whether other tokens can end it too, together with those before them.
    """

    def __init__(self, texts: Sequence[str], words: Sequence[str]):
        """Makes the table.

        Args:
          texts: the texts, see `complaint`.
          words: what each token of the vocabulary adds to a text.

        Raises:
          ValueError: they are none that can be followed.
        """
        if complaint(texts):
            raise ValueError(f"the stop text {','.join(texts)!r} {complaint(texts)}")
        self.texts = tuple(texts)
        beginnings = sorted({text[:length] for text in texts for length in range(len(text))}, key=len)
        self.end_state = len(beginnings)
        self.table = np.array([_row(texts, beginnings, word) for word in words], np.uint8)
        self.ids = tuple(np.flatnonzero(self.table[:, 0] == self.end_state).tolist())
        self.spread = bool(np.any(self.table[self.table[:, 0] != self.end_state, :-1] == self.end_state))

    def end(self, ids: Sequence[int]) -> int | None:
        """How many of these tokens, the first of a response, there are when a text is complete; None: none is."""
        rows = self.table[np.asarray(ids, np.int64)]
        if not np.any(rows[:, :-1] == self.end_state):
            return None
        state = 0
        for length, row in enumerate(rows, start=1):
            state = row[state]
            if state == self.end_state:
                return length
        return None


def complaint(texts: Sequence[str]) -> str:
    """What is wrong with texts that are to end responses; "" if nothing.

    Characters beyond ASCII may be spread over tokens that are no text by themselves, which a table of texts cannot
    follow.
    """
    if not all(texts):
        return "holds an empty text"
    whole = "".join(texts)
    return "" if whole.isascii() and len(whole) <= MOST else f"is not ASCII, or longer than {MOST} characters"


def stop_text(texts: str, tokenizer: Any, vocab_size: int) -> StopText | None:
    """Texts with commas between them for a tokenizer of `transformers`; None for "".

    Ids beyond its vocabulary, up to `vocab_size`, add nothing.

    Raises:
      ValueError: the tokenizer cannot write one of them; and see `StopText`.
    """
    if not texts:
        return None
    words = _words(tokenizer)
    found = StopText(texts.split(","), words + [""] * (vocab_size - len(words)))
    for text in found.texts:
        if found.end(tokenizer.encode(text, add_special_tokens=False)) is None:
            raise ValueError(f"the tokenizer cannot write the stop text {text!r}, so it can end no response")
    return found


def described(stop_ids: Sequence[int], texts: StopText | None, tokenizer: Any) -> str:
    """What ends a response, for people: the tokens, and the texts."""
    tokens = ", ".join(f"{token} {tokenizer.decode([token])!r}" for token in stop_ids)
    return tokens + (f", and the text {' or '.join(map(repr, texts.texts))}" if texts else "")


def _row(texts, beginnings, word):
    end = len(beginnings)
    rests = (text[length:] for text in texts for length in range(1, len(text)))
    if not any(rest.startswith(word) or word.startswith(rest) for rest in rests):
        return [_written(texts, beginnings, word)] * end + [end]  # it goes on with none of them, so they are lost
    return [_written(texts, beginnings, beginning + word) for beginning in beginnings] + [end]


def _written(texts, beginnings, read):
    """The longest beginning at the end of what was read, or the end."""
    if any(text in read for text in texts):
        return len(beginnings)
    return max(state for state, beginning in enumerate(beginnings) if read.endswith(beginning))


def _words(tokenizer):
    """What each token adds to a text: behind another one, since some tokenizers drop the blank of a text's first."""
    size = len(tokenizer)
    first = next(i for i in range(size) if tokenizer.decode([i]).isalnum())
    written = tokenizer.batch_decode([[first, i] for i in range(size)], clean_up_tokenization_spaces=False)
    return [text.removeprefix(tokenizer.decode([first])) for text in written]
