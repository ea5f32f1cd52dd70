r"""Finds the answer a response commits to; says nothing about whether it is right.

The contract, in this order:

1. Only text outside the think block counts: what follows the last `</think>`, and nothing from a `<think>` that is
   still open.
2. If that text holds a `\boxed{...}` (or `\fbox{...}`), the last one is the answer. A last box that never closes was
   cut off, and then there is no answer, whatever stood in earlier boxes.
3. Otherwise the last line of the form `Answer: ...` is the answer.
4. Otherwise there is no answer.

A response that commits to more than `MAX_DIFFERENT_ANSWERS` different answers is betting, and has no answer either.

Every step is linear in the length of the text: 50,000 boxes or 5,000 nested braces take milliseconds.
"""

import re

MAX_DIFFERENT_ANSWERS = 3
"""One for the answer, two for a first guess or a part that the question restated."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])[ \t]*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_UNBRACED = re.compile(r"[^\s${}\\]+")
_ANSWER_LINE = re.compile(
    r"[ \t>#*_`~]*(?:(?:so|thus|hence|therefore|the|my|final|correct)[,:]?[ \t]+)*answer[*_`]*[ \t]*[:：](.*)",
    re.IGNORECASE,
)
_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_DECORATION = " \t*_`~\"'.,;:$"


def answer_text(response: str) -> str | None:
    """Returns the text of the answer a response commits to, or None if it commits to none.

    Args:
      response: the response alone, without the prompt and without special tokens.

    Returns:
      The inside of the last box or the rest of the last answer line, stripped of blanks; possibly empty.
    """
    text = _after_thinking(response)
    boxes = list(_BOX.finditer(text))
    return _last_box(text, boxes) if boxes else _last_answer_line(text)


def with_tags_as_box(response: str) -> str:
    """The response for `answer_text`, where the prompt asked for the answer in `<answer>` tags.

    It ends with the first pair of tags after the think block, as if nothing had been written behind: base models that
    were never taught to stop go on with questions of their own. What is between the tags counts as a box if there is
    no box and no answer line, which come first. A response without a pair is returned as it is.
    """
    tagged = _TAGGED.search(response, max(response.find("</think>"), 0))
    if tagged is None or response.rfind("<think>", 0, tagged.start()) > response.rfind("</think>", 0, tagged.start()):
        return response
    response = response[:tagged.end()]
    text = _after_thinking(response)
    if _BOX.search(text) or answer_text(text) is not None:
        return response
    return f"\\boxed{{{tagged[1].strip()}}}"


def _after_thinking(response: str) -> str:
    text = response.rpartition("</think>")[2]
    return text.partition("<think>")[0]


def _last_box(text: str, boxes: list[re.Match]) -> str | None:
    """Reads the last box, and earlier ones until too many different answers are found.

    A box is looked for only up to the start of the next one, so the scan never reads a character twice. A box that
    holds another box is thereby passed over: the inner one speaks for it.
    """
    answer = _box_content(text, boxes[-1].end(), len(text))
    if answer is None:
        return None
    different = {answer}
    for box, following in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        content = _box_content(text, box.end(), following.start())
        if content is not None:
            different.add(content)
        if len(different) > MAX_DIFFERENT_ANSWERS:
            return None
    return answer


def _box_content(text: str, start: int, end: int) -> str | None:
    """Returns what the box at `start` holds, or None if it does not close before `end`."""
    if not text.startswith("{", start):
        unbraced = _UNBRACED.match(text, start, end)
        return unbraced.group() if unbraced else None
    depth = 0
    for brace in _BRACE.finditer(text, start, end):
        if brace.group() == "{":
            depth += 1
        elif brace.group() == "}":
            depth -= 1
            if depth == 0:
                return _stripped(text[start + 1 : brace.start()])
    return None


def _stripped(text: str) -> str:
    r"""Without blanks around it; `\ ` is one too."""
    text = text.strip()
    return text[:-1].rstrip() if text.endswith("\\") and not text.endswith("\\\\") else text


def _last_answer_line(text: str) -> str | None:
    """Reads answer lines from the end. A bare `Answer:` takes the next line that is not blank, if there is one."""
    answer, different = None, set()
    following = ""
    for line in reversed(text.splitlines()):
        match = _ANSWER_LINE.match(line)
        if match:
            rest = _stripped(match.group(1))
            content = rest if rest.strip(_DECORATION) else following
            if answer is None:
                answer = content
            different.add(content)
            if len(different) > MAX_DIFFERENT_ANSWERS:
                return None
        if line.strip():
            following = line.strip()
    return answer
