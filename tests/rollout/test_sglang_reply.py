"""An answer of SGLang becomes a completion only if its parts agree; every contradiction is refused in words."""

import copy
import dataclasses

import pytest

from rlzero.rollout import sglang_reply
from rlzero.rollout.engine import Request, Sampling, Span
from rlzero.rollout.stopping import StopText

REQUEST = Request("p7", 3, (10, 20, 30), seed=5_000_000_000 % 2**32)
SAMPLING = Sampling(max_new_tokens=4, stop_ids=(1, 2), temperature=0.7)


def reply(ids=(9, 8, 1), *, finish=None, **meta):
    """What the real server answers, as far as it is read."""
    finish = {"type": "stop", "matched": ids[-1] if ids else None} if finish is None else finish
    return {"text": "…", "output_ids": list(ids), "meta_info": {
        "id": "r", "finish_reason": finish, "prompt_tokens": 3, "completion_tokens": len(ids), "cached_tokens": 2,
        "weight_version": "7", "weight_versions": [{"version": "7", "start": 0, "end": len(ids)}],
        "output_token_logprobs": [[-0.5, token, None] for token in ids]} | meta}


# Tokens 3 and 4 write the text together, 5 by itself.
TEXT = StopText(["ab"], ["", "", "", "a", "b", "xab"] + ["y"] * 26)
UNTIL_TEXT = dataclasses.replace(SAMPLING, stop_text=TEXT)


def parse(answer, sampling=SAMPLING):
    return sglang_reply.completion(answer, REQUEST, sampling, rid="r", vocab_size=32, version_of=int)


def test_ids_log_probabilities_and_version_are_taken_as_they_are():
    found = parse(reply())
    assert (found.request, found.completion_ids, found.finish_reason) == (REQUEST, (9, 8, 1), "stop")
    assert found.rollout_logprobs == (-0.5,) * 3 and found.policy_version == 7 and found.spans == (Span(7, 0, 3),)


def test_a_completion_that_spans_an_update_has_the_version_of_its_oldest_part():
    spans = [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 3}]
    found = parse(reply(weight_versions=spans))
    assert found.policy_version == 7 and found.spans == (Span(7, 0, 1), Span(8, 1, 3))


def test_a_stop_token_at_the_very_end_of_the_budget_is_no_truncation():
    assert parse(reply((9, 8, 7, 1))).finish_reason == "stop"
    assert parse(reply((9, 8, 7, 6), finish={"type": "length", "length": 4})).finish_reason == "length"


def test_an_aborted_answer_has_no_tokens_to_train_on():
    found = parse(reply((9, 8), finish={"type": "abort", "message": "…"}))
    assert found.finish_reason == "abort" and found.completion_ids == ()


def test_a_text_ends_a_completion_with_the_token_that_completes_it():
    asked = sglang_reply.generate_body(REQUEST, UNTIL_TEXT, "r")["sampling_params"]
    assert asked["stop_token_ids"] == [1, 2, 5] and asked["stop"] == ["ab"] and asked["no_stop_trim"] is True
    whole = dataclasses.replace(SAMPLING, stop_text=StopText(["ab"], ["", "a", "ab"]))
    assert sglang_reply.generate_body(REQUEST, whole, "r")["sampling_params"].keys() == asked.keys() - {
        "stop", "no_stop_trim"}
    found = parse(reply((9, 3, 4), finish={"type": "stop", "matched": "ab"}), UNTIL_TEXT)
    assert (found.completion_ids, found.finish_reason) == ((9, 3, 4), "stop")
    assert parse(reply((9, 5)), UNTIL_TEXT).completion_ids == (9, 5)
    with pytest.raises(ValueError, match="which is no stop"):
        parse(reply((9, 3, 7), finish={"type": "stop", "matched": "ab"}), UNTIL_TEXT)
    with pytest.raises(ValueError, match="goes on after the stop token at position 1"):
        parse(reply((9, 5, 8, 1)), UNTIL_TEXT)


@pytest.mark.parametrize("finish", [{"type": "length", "length": 4}, {"type": "stop", "matched": 1}])
def test_a_text_that_the_server_missed_ends_a_completion_all_the_same(finish):
    spans = [{"version": "8", "start": 0, "end": 2}, {"version": "7", "start": 2, "end": 4}]
    found = parse(reply((3, 4, 8, 1), finish=finish, weight_versions=spans), UNTIL_TEXT)
    assert (found.completion_ids, found.rollout_logprobs, found.finish_reason) == ((3, 4), (-0.5, -0.5), "stop")
    assert found.policy_version == 8 and found.spans == (Span(8, 0, 2),)


def test_log_probabilities_a_rounding_error_above_zero_are_zero():
    assert parse(reply((1,), output_token_logprobs=[[3e-6, 1, None]])).rollout_logprobs == (0.0,)


@pytest.mark.parametrize("change, words", [
    ({"id": "other"}, "is for request 'other'"),
    ({"finish_reason": None}, "no finish reason"),
    ({"finish_reason": {"type": "eos"}}, "unknown finish reason 'eos'"),
    ({"output_token_logprobs": None}, "no log-probabilities"),
    ({"output_token_logprobs": [[-0.5, 9, None], [-0.5, 8, None]]}, "3 ids but log-probabilities of 2"),
    ({"output_token_logprobs": [[-0.5, 9, None], [-0.5, 8, None], [-0.5, 2, None]]}, "or of others"),
    ({"output_token_logprobs": [[None, 9, None]] * 3}, "unknown form"),
    ({"output_token_logprobs": [[0.5, 9, None], [-0.5, 8, None], [-0.5, 1, None]]}, "above 0 or not finite"),
    ({"output_token_logprobs": [[float("nan"), 9, None], [-0.5, 8, None], [-0.5, 1, None]]}, "not finite"),
    ({"completion_tokens": 4}, "3 ids but reports 4"),
    ({"weight_versions": [{"version": "7", "start": 0, "end": 2}]}, "do not cover its 3 tokens"),
    ({"weight_versions": [{"start": 0, "end": 3}]}, "unknown form"),
])
def test_contradictions_in_the_meta_data_are_refused(change, words):
    answer = reply()
    answer["meta_info"] |= change
    with pytest.raises(ValueError, match=words):
        parse(answer)


@pytest.mark.parametrize("answer, words", [
    ({}, "no meta_info"),
    (reply() | {"output_ids": None}, "no list of output_ids"),
    (reply((9, 40, 1)), "outside 0..31"),
    (reply((9, 1, 8, 2)), "goes on after the stop token at position 1"),
    (reply((9, 8), finish={"type": "stop", "matched": 1}), "trims the stop token"),
    (reply((9, 1), finish={"type": "stop", "matched": "NaN happened"}), "computed no number"),
    (reply((9, 8), finish={"type": "length", "length": 2}), "cut at 2 tokens, expected the budget of 4"),
    (reply(()), "no ids"),
])
def test_contradictions_in_the_tokens_are_refused(answer, words):
    answer = copy.deepcopy(answer)
    with pytest.raises(ValueError, match=words):
        parse(answer)


def test_every_sampling_parameter_is_sent_and_the_prompt_goes_as_ids():
    body = sglang_reply.generate_body(REQUEST, SAMPLING, "r")
    assert body["input_ids"] == [10, 20, 30] and body["return_logprob"] is True and body["rid"] == "r"
    assert body["sampling_params"] == {
        "n": 1, "max_new_tokens": 4, "stop_token_ids": [1, 2], "temperature": 0.7, "top_p": 1.0, "top_k": -1,
        "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
        "sampling_seed": REQUEST.seed & 0x7FFFFFFF}


@pytest.mark.parametrize("prompt, words", [((), "empty"), ((3, 32), "outside 0..31"), ((3, -1), "outside"),
                                           ((3,) * 17, "exceeds the servers' context of 20")])
def test_what_kills_a_server_or_is_cut_short_by_it_is_never_sent(prompt, words):
    with pytest.raises(ValueError, match=words):
        sglang_reply.check_request(Request("p", 0, prompt, 0), SAMPLING, vocab_size=32, context=20)
