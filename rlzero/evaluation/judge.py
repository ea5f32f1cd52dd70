"""Does a response try to answer its question, and does it reflect on itself? By rules, and what another judge must do.

Rules cost nothing and give the same verdicts everywhere, but they see form only: a response that answers another
question well passes, an answer in plain words without any sign of work may not. `endpoint` asks a model instead.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Response(NamedTuple):
    """What a judge sees: the question before the template, the text of the response, and the verifier's extract."""

    question: str
    text: str
    answer: str | None


class Judge(Protocol):
    """Gives a verdict for each response, in the order given; None where it has none."""

    name: str

    def answering(self, responses: Sequence[Response]) -> list[bool | None]:
        """Whether each response tries to answer, however incomplete or wrong."""

    def reflecting(self, responses: Sequence[Response]) -> list[bool | None]:
        """Whether each response, which holds a keyword of `reflection`, looks back at what it did."""


_STATED = re.compile(r"\banswer\b[^.\n?]{0,60}?(?:\bis\b|\bare\b|=|:)\s*\S|\\boxed|<answer>\s*\S", re.IGNORECASE)
_CONCLUSION = re.compile(
    r"\b(?:result|solution|value|total|sum|product|probability|area)\b[^.\n?]{0,60}?(?:\bis\b|\bare\b|=|:)\s*\S"
    r"|\b(?:therefore|thus|hence|so),?\s[^\n?]*\d", re.IGNORECASE)
_COMPUTATION = re.compile(r"\d\)?\s*(?:[-+*/x\u00d7\u00f7^]|\\times|\\cdot|\\div)\s*[($]*\d[^\n=]{0,40}=\s*[-($]*\d")
_WORK = re.compile(
    r"\b(?:let(?:'s| us)?|we (?:have|need|know|can|get|find)|first(?:ly)?|step \d|since|because|substitut\w+|"
    r"solv(?:e|ing)|comput(?:e|ing)|calculat(?:e|ing)|multipl(?:y|ying)|add(?:ing)?|subtract(?:ing)?|divid(?:e|ing)|"
    r"simplif\w+)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d")
_TERM = re.compile(r"\d+|[^\W\d]{5,}")  # what two texts on the same matter have in common
_QUESTION = re.compile(r"[^.!?\n]*\?")


class RuleJudge:
    """Verdicts by rules.

    A response tries to answer if it commits to an answer that the verifier can read, or states one in words; or if,
    after a question that it may begin with, it has a number or a long word in common with the question that it was
    given, and concludes something, computes, or has words of work together with a number. Every response with a
    keyword reflects.
    """

    name = "rules"

    def answering(self, responses: Sequence[Response]) -> list[bool | None]:
        return [self._answers(response) for response in responses]

    def reflecting(self, responses: Sequence[Response]) -> list[bool | None]:
        return [True] * len(responses)

    def _answers(self, response):
        if response.answer:
            return True
        text = response.text.strip()
        asked = _QUESTION.match(text)
        text = text[asked.end():] if asked else text
        if _STATED.search(text):
            return True
        if not _terms(response.question) & _terms(text):
            return False
        if _CONCLUSION.search(text) or _COMPUTATION.search(text):
            return True
        return bool(_WORK.search(text) and _NUMBER.search(text))


def _terms(text: str) -> set[str]:
    return set(_TERM.findall(text.lower()))
