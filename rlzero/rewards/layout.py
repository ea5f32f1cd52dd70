"""Whether a response has the layout of reasoning followed by an answer. Says nothing about either."""

import re

_OPEN, _CLOSE = "<think>", "</think>"
_ANSWER = re.compile(r"<answer>(.*)</answer>", re.DOTALL)


def is_well_formed(text: str) -> bool:
    """Whether a response thinks once and then answers once, both in so many words.

    That is: one `</think>`, with text before and after it. `<think>` may stand at the very beginning, once, or be part
    of the prompt. If the answer is in `<answer>` tags, there is one pair of them with text in it and nothing around it.
    """
    if text.count(_CLOSE) != 1 or text.count(_OPEN) > 1:
        return False
    thinking, _, answer = text.partition(_CLOSE)
    thinking, answer = thinking.strip(), answer.strip()
    if _OPEN in text and not thinking.startswith(_OPEN):
        return False
    if not thinking.removeprefix(_OPEN).strip() or not answer:
        return False
    tags = answer.count("<answer>"), answer.count("</answer>")
    if "answer>" in thinking or tags not in ((0, 0), (1, 1)):
        return False
    inside = _ANSWER.fullmatch(answer)
    return tags == (0, 0) or (inside is not None and bool(inside[1].strip()))
