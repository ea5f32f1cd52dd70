"""A model as a judge, behind an endpoint that speaks OpenAI's chat protocol; SGLang servers do.

The questions put to it ask for what those of arXiv 2503.20783 (appendix D) ask for, in other words: an answer that
begins with 0 or 1 for trying to answer, and one that ends with a category of 0 to 3 for reflecting.
"""

import asyncio
from collections.abc import Callable, Sequence

import aiohttp
from absl import logging

from rlzero.evaluation.judge import Response
from rlzero.rollout.sglang_http import Malformed, Server, ServerError, Unreachable

_CONCURRENT = 16
_TRIES = 4
_SECONDS = 120.0
_LONGEST_PAUSE = 30.0
_MOST_FAILED = 0.1

_ANSWERING = """Below are a question and what a language model wrote after reading it. Decide whether the text is an \
attempt to answer the question.

Begin your reply with a single digit:
0 if it makes no attempt: it is off topic, random, made up, or carries the question on instead of answering it;
1 if it makes an attempt, however unfinished or wrong.
After the digit, give the reason in one short sentence.

Question:
{question}

Text:
{text}"""

_REFLECTING = """Below are a question and a language model's response to it. Put the response into one category:
0: off topic, meaningless, or mostly repetition.
1: it answers the question without looking back at its own work.
2: it looks back at its own work, in whatever words: it checks, doubts or revises an earlier step, questions an \
assumption, or tries another way. Choose 2 whenever there is any of this, whether or not the answer is right.
3: nothing but program code.

Give the reason in one short sentence, then end your reply with the category's digit and nothing after it.

Question:
{question}

Response:
{text}"""


class JudgeError(RuntimeError):
    """The judge cannot be used; says why."""


class EndpointJudge:
    """Asks a model for each verdict. A reply that is no verdict counts as none and is not asked for again."""

    def __init__(self, url: str, model: str, *, key: str = ""):
        """Makes a judge; nothing is asked yet.

        Args:
          url: base of the interface, such as http://10.0.0.9:30000/v1.
          model: the name under which it is served.
          key: sent as a bearer token; "" for none.
        """
        self._url, self._model = url, model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.name = f"{model} at {url}"

    def answering(self, responses: Sequence[Response]) -> list[bool | None]:
        """See `Judge.answering`.

        Raises:
          JudgeError: more than a tenth of the requests fail, after some tries each.
        """
        return self._ask(responses, _ANSWERING, 100, _first_digit)

    def reflecting(self, responses: Sequence[Response]) -> list[bool | None]:
        """See `Judge.reflecting`; raises as `answering` does."""
        return self._ask(responses, _REFLECTING, 300, _last_digit)

    def _ask(self, responses, prompt, max_tokens, verdict: Callable[[str], bool | None]):
        bodies = [{"model": self._model, "temperature": 0.0, "max_tokens": max_tokens, "messages": [
            {"role": "user", "content": prompt.format(question=response.question, text=response.text)}]}
                  for response in responses]
        replies = asyncio.run(self._replies(bodies))
        failed = [reply for reply in replies if isinstance(reply, ServerError)]
        if len(failed) > _MOST_FAILED * len(replies):
            raise JudgeError(f"{len(failed)} of {len(replies)} requests to the judge failed: {failed[0]}")
        if failed:
            logging.warning("%d of %d requests to the judge failed, the last one with: %s", len(failed), len(replies),
                            failed[-1])
        return [None if isinstance(reply, ServerError) else verdict(reply) for reply in replies]

    async def _replies(self, bodies):
        slots = asyncio.Semaphore(_CONCURRENT)
        async with aiohttp.ClientSession(headers=self._headers, trust_env=True) as session:
            server = Server(self._url, session, seconds=_SECONDS)
            return await asyncio.gather(*(self._reply(server, body, slots) for body in bodies))

    async def _reply(self, server, body, slots) -> str | ServerError:
        """The text of one reply, or the error of the last try."""
        async with slots:
            for attempt in range(_TRIES):
                try:
                    reply = await server.post("/chat/completions", body)
                    return str(reply["choices"][0]["message"]["content"] or "")
                except (KeyError, IndexError, TypeError):
                    return Malformed(server.url, "/chat/completions", f"no message in the reply {str(reply)[:200]}")
                except Unreachable as error:
                    last = error
                    if attempt + 1 < _TRIES:
                        await asyncio.sleep(min(max(error.retry_after, 0.5 * 2**attempt), _LONGEST_PAUSE))
                except ServerError as error:
                    return error
            return last


def _first_digit(reply: str) -> bool | None:
    return {"0": False, "1": True}.get(reply.strip()[:1])


def _last_digit(reply: str) -> bool | None:
    """True for category 2; None for a reply without a category."""
    digits = [character for character in reply.strip()[-3:] if character in "0123"]
    return digits[-1] == "2" if digits else None
