"""Records what a real server with the demo model answers, for `test_fake_server` to compare the fake one with.

    python tests/sglang/record.py http://127.0.0.1:30000

writes recorded.json. The exchanges follow one another on one server, so their order matters.
"""

import json
import pathlib
import sys
import urllib.error
from collections.abc import Iterator
from typing import Any

from real_server import DEMO_MODEL, RealServer

RECORDED = pathlib.Path(__file__).with_name("recorded.json")
_GREEDY = {"temperature": 0.0, "max_new_tokens": 3, "ignore_eos": True}
_FREE = {"temperature": 1.0, "max_new_tokens": 3, "ignore_eos": True}

EXCHANGES = [  # name, path, body; without a body it is a GET
    ("flush", "/flush_cache", {}),
    ("one", "/generate", {"input_ids": [3, 4, 5], "rid": "one", "sampling_params": _FREE, "return_logprob": True}),
    ("again", "/generate", {"input_ids": [3, 4, 5], "rid": "two", "sampling_params": _FREE, "return_logprob": True}),
    ("without log-probabilities", "/generate", {"input_ids": [3, 4, 5], "sampling_params": _GREEDY}),
    ("no token", "/generate", {"input_ids": [3], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}),
    ("stop", "/generate", {"input_ids": [3, 4, 5], "return_logprob": True, "sampling_params": {
        "max_new_tokens": 9, "stop_token_ids": list(range(24))}}),
    ("batch", "/generate", {"input_ids": [[3, 4], [5]], "return_logprob": True, "sampling_params": _FREE | {"n": 2}}),
    ("batch of one", "/generate", {"input_ids": [[3]], "rid": ["three"], "sampling_params": _FREE}),
    ("id of several", "/generate", {"input_ids": [3], "rid": ["a", "b"], "sampling_params": _FREE | {"n": 2}}),
    ("same ids", "/generate", {"input_ids": [[3], [4]], "rid": ["x", "x"], "sampling_params": _FREE}),
    ("no prompt", "/generate", {"sampling_params": _FREE}),
    ("empty batch", "/generate", {"input_ids": [], "sampling_params": _FREE}),
    ("unknown field", "/generate", {"input_ids": [3], "sampling_params": _FREE, "surprise": 1}),
    ("unknown parameter", "/generate", {"input_ids": [3], "sampling_params": {"surprise": 1}}),
    ("temperature", "/generate", {"input_ids": [3], "sampling_params": {"temperature": -1}}),
    ("nucleus", "/generate", {"input_ids": [3], "sampling_params": {"top_p": 0}}),
    ("too long", "/generate", {"input_ids": [3] * 130, "sampling_params": _FREE}),
    ("too long together", "/generate", {"input_ids": [3] * 100, "sampling_params": {"max_new_tokens": 29}}),
    ("hardly any room", "/generate", {"input_ids": [3] * 122, "sampling_params": {"max_new_tokens": 1}}),
    ("longest prompt", "/generate", {"input_ids": [3] * 121, "sampling_params": _FREE}),
    ("abort of nobody", "/abort_request", {"rid": "nobody"}),
    ("what it is", "/model_info", None),
    ("what it is, by its old name", "/get_model_info", None),
    ("how it was started", "/server_info", None),
    ("version", "/get_weight_version", None),
    ("pause", "/pause_generation", {"mode": "retract"}),
    ("update", "/update_weights_from_disk", {"model_path": str(DEMO_MODEL), "weight_version": "v1"}),
    ("continue", "/continue_generation", {}),
    ("update without a version", "/update_weights_from_disk", {"model_path": str(DEMO_MODEL)}),
    ("update from nowhere", "/update_weights_from_disk", {"model_path": "/nowhere/at/all", "weight_version": "v2"}),
    ("tensors outside of a session", "/update_weights_from_tensor", {"serialized_named_tensors": ["gAROLg=="]}),
    ("begin", "/begin_weight_update", {}),
    ("begin again", "/begin_weight_update", {}),
    ("end", "/end_weight_update", {}),
    ("end again", "/end_weight_update", {}),
    ("set the version", "/update_weight_version", {"new_version": "default", "abort_all_requests": False}),
    ("checksum", "/weights_checker", {"action": "checksum"}),
    ("nothing there", "/nothing", {}),
    ("health", "/health_generate", None),
]


_SETTINGS = ("dtype", "max_req_input_len", "max_running_requests", "max_total_num_tokens", "tp_size", "version",
             "weight_version")  # of six hundred


def observe(server: RealServer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of the exchanges, with the status and the shape of what the server answers to each."""
    for name, path, body in EXCHANGES:
        status, answer = _ask(server, path, body)
        if path == "/server_info":
            answer = {key: answer[key] for key in _SETTINGS}
        elif path.endswith("model_info"):
            answer.pop("embedding", None)
        elif path == "/weights_checker":
            answer["ranks"][0]["checksums"] = {}  # by names of tensors, which a fake server has none of
        yield name, {"status": status, "shape": shape(answer)}


def shape(value: Any) -> Any:
    """The kind of a JSON value: keys and types, of a list its first element. Numbers are alike, and so are texts."""
    if isinstance(value, dict):
        return {key: shape(member) for key, member in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, (int, float)) else "text"


def _ask(server, path, body):
    """The status and the answer, JSON or text."""
    try:
        return 200, server.get(path) if body is None else server.post(path, body)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        try:
            return error.code, json.loads(text)
        except ValueError:
            return error.code, text


def main(url: str) -> None:
    server = RealServer(url)
    server.reset()
    RECORDED.write_text(json.dumps(dict(observe(server)), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
