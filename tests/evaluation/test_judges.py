"""Who tries to answer and who reflects: by rules, and by a model behind an endpoint."""

import http.server
import json
import threading

import pytest

from rlzero.evaluation import reflection
from rlzero.evaluation.endpoint import EndpointJudge, JudgeError
from rlzero.evaluation.judge import Response, RuleJudge
from rlzero.rewards.extraction import answer_text

_QUESTION = "Natalia sold 48 clips in April and half as many in May. How many clips did she sell altogether?"
_ANSWERS = [
    r"In May she sold 24, so \boxed{72}.", "Answer: 72", "The answer is 72.", "48 / 2 = 24 and 48 + 24 = 72",
    "First, find how many clips were sold in May: 24 clips.", "Therefore, she sold 71 clips.", "Let x = 48. Then",
    "What is half of 48? We have 24 clips in May.", "<answer> seventy-two </answer>", r"\boxed{",
    "The total number of clips is seventy-two.", "Step 1: halve 48", "She sold 48 + 24 = 72 clips in both."]
_OTHERS = [
    "", "   \n", "Natalia is a good girl.", "How many clips did she sell in June?",
    "If she sells 12 more in June, how many clips will she have sold?", "clips clips clips clips",
    "Question: Tom has 3 apples. How many apples does he have?", "I am a student from Brazil and I love music.",
    "10 20 30 40 50", "Let the Radiant Homes customers search for 01-03-14.", "7 * 8 = 56", "def f(n):\n    return n"]


def responses(texts):
    return [Response(_QUESTION, text, answer_text(text)) for text in texts]


@pytest.mark.parametrize("text", _ANSWERS)
def test_attempts_by_rules(text):
    assert RuleJudge().answering(responses([text])) == [True]


@pytest.mark.parametrize("text", _OTHERS)
def test_what_is_no_attempt_by_rules(text):
    assert RuleJudge().answering(responses([text])) == [False]


def test_keywords_are_found_in_any_case_and_plain_words_are_none():
    assert reflection.keywords_in("Let me RECHECK this, then re-evaluate and double-checked it.") == (
        "recheck", "re-evaluate", "double-check")
    assert reflection.keywords_in("Wait, I will try again. Check the sum.") == ()


class _Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers each chat request with what `say(text)` returns for its message: a reply, a status, or raw bytes."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), body))
        said = self.server.say(body["messages"][0]["content"])
        status, content = (said, b'{"error": {"message": "no"}}') if isinstance(said, int) else (200, said)
        if isinstance(content, str):
            content = json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Nothing is printed."""


@pytest.fixture
def endpoint():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    server.seen, server.say = [], lambda text: "1 it tries"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def judge(endpoint, key=""):
    return EndpointJudge(f"http://127.0.0.1:{endpoint.server_port}/v1/", "some-model", key=key)


def test_the_first_digit_says_whether_it_answers(endpoint):
    endpoint.say = lambda text: {"one": "1, an attempt", "none": " 0: off topic", "odd": "Yes, 1"}[text.split()[-1]]
    assert judge(endpoint, "secret").answering(responses(["one", "none", "odd", "one"])) == [True, False, None, True]
    path, headers, body = endpoint.seen[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret"
    assert body["model"] == "some-model" and body["temperature"] == 0.0 and body["max_tokens"] == 100
    assert _QUESTION in body["messages"][0]["content"]


def test_the_last_digit_says_whether_it_reflects(endpoint):
    endpoint.say = lambda text: {"two": "It checks step 1 again. 2.", "one": "plain: 1", "odd": "It does."}[
        text.split()[-1]]
    assert judge(endpoint).reflecting(responses(["two", "one", "odd"])) == [True, False, None]
    assert "Authorization" not in endpoint.seen[0][1]


def test_braces_in_a_response_are_text(endpoint):
    judge(endpoint).answering([Response("{text} of {question}", r"\boxed{text} {0}", "text")])
    content = endpoint.seen[0][2]["messages"][0]["content"]
    assert "{text} of {question}" in content and r"\boxed{text} {0}" in content


def test_a_busy_endpoint_is_asked_again(endpoint):
    tries = iter([429, 503])
    endpoint.say = lambda text: next(tries, "1")
    assert judge(endpoint).answering(responses(["once"])) == [True] and len(endpoint.seen) == 3


def test_a_few_failures_are_no_verdict_and_many_stop_the_study(endpoint):
    endpoint.say = lambda text: 400 if text.endswith("bad") else "0"
    assert judge(endpoint).answering(responses(["good"] * 19 + ["bad"])) == [False] * 19 + [None]
    with pytest.raises(JudgeError, match="2 of 4 requests to the judge failed: .*HTTP 400: no"):
        judge(endpoint).answering(responses(["good", "bad"] * 2))


@pytest.mark.parametrize("content", [b"[]", b"no json", b'{"choices": []}', b"{}"])
def test_what_is_no_chat_reply_is_an_error(endpoint, content):
    endpoint.say = lambda text: content
    with pytest.raises(JudgeError, match="1 of 1"):
        judge(endpoint).answering(responses(["x"]))


def test_nobody_there():
    with pytest.raises(JudgeError, match="no answer"):
        EndpointJudge("http://127.0.0.1:9", "m").answering(responses(["x"]))
