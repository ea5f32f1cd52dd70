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


_CONCLUSION = re.compile(
    r"\b(?:answer|result|solution|value|total|sum|product|probability|area)\b[^.\n?]{0,60}?(?:\bis\b|\bare\b|=|:)\s*\S"
    r"|\b(?:therefore|thus|hence|so),?\s[^\n?]*\d|\\boxed|<answer>\s*\S", re.IGNORECASE)
_EQUATION = re.compile(r"[\d\w)}\]]\s*=\s*[-\\({\d\w]")
_WORK = re.compile(
    r"\b(?:let(?:'s| us)?|we (?:have|need|know|can|get|find)|first(?:ly)?|step \d|since|because|substitut\w+|"
    r"solv(?:e|ing)|comput(?:e|ing)|calculat(?:e|ing)|multipl(?:y|ying)|add(?:ing)?|subtract(?:ing)?|divid(?:e|ing)|"
    r"simplif\w+)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\d")
_QUESTION = re.compile(r"[^.!?\n]*\?")


class RuleJudge:
    """Verdicts by rules.

    A response tries to answer if it commits to an answer that the verifier can read, or if, after a question that it
    may begin with, it states a conclusion, or works: words of work together with a number, or two equations.
    Every response with a keyword reflects.
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
        if _CONCLUSION.search(text) or len(_EQUATION.findall(text)) >= 2:
            return True
        return bool(_WORK.search(text) and _NUMBER.search(text))
