"""What `fake_server` answers: the same fields as SGLang 0.5.23, of /server_info only those that a client may need."""

import time
from typing import Any

from aiohttp import web
from fake_requests import Item

FLUSHED = ("Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, "
           "the operation will not be performed.)\n")


def completion(item: Item, *, cached: int, version: str) -> dict[str, Any]:
    """An item of /generate's answer."""
    if item.matched is not None:
        reason = {"type": "stop", "matched": item.matched}
    elif item.aborted and not item.finished:
        reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    else:
        reason = {"type": "length", "length": len(item.output_ids)}
    meta = {"id": item.rid, "finish_reason": reason, "prompt_tokens": len(item.ids), "weight_version": version,
            "num_retractions": 0}
    if item.return_logprob:
        meta |= _logprobs(item)
    details = {"device": cached, "host": 0} if cached else None
    meta |= {"reasoning_tokens": 0, "completion_tokens": len(item.output_ids), "cached_tokens": cached,
             "weight_versions": item.spans or [{"version": version, "start": 0, "end": 0}],
             "cached_tokens_details": details, "dp_rank": None, "e2e_latency": 0.0,
             "response_sent_to_client_ts": time.time()}
    shown = item.output_ids[:-1] if item.matched is not None else item.output_ids
    return {"text": " ".join(map(str, shown)), "output_ids": item.output_ids, "meta_info": meta}


def aborted_in_queue(item: Item, version: str) -> dict[str, Any]:
    """The shorter answer to a request that is aborted before it ran, or while it is retracted."""
    meta = {"id": item.rid, "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
            "weight_version": version, "e2e_latency": 0.0,
            "weight_versions": [{"version": version, "start": 0, "end": 0}]}
    if item.return_logprob:
        meta |= {"input_token_logprobs": [], "output_token_logprobs": [], "output_token_logprobs_length": 0}
    return {"text": "", "output_ids": [],
            "meta_info": meta | {"completion_tokens": 0, "response_sent_to_client_ts": time.time()}}


def _logprobs(item):
    pairs = [[logprob, token, None] for logprob, token in zip(item.logprobs, item.output_ids, strict=True)]
    return {"input_token_logprobs": [], "output_token_logprobs": pairs, "output_token_logprobs_length": len(pairs)}


def updated(success: bool, message: str, *, paused_requests: bool = False) -> web.Response:
    """The answer to an update or to a step of one."""
    reply = {"success": success, "message": message} | ({"num_paused_requests": 0} if paused_requests else {})
    return web.json_response(reply, status=200 if success else 400)


_HELD = ("model.embed_tokens.weight", "model.norm.weight", *(
    f"model.layers.{layer}.{name}.weight" for layer in range(2) for name in (
        "input_layernorm", "post_attention_layernorm", "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
        "mlp.down_proj")))


def checked(checksum: str) -> dict[str, Any]:
    """/weights_checker's answer, with the names of the demo model's tensors as a server stores them."""
    rank = {"checksums": dict.fromkeys(_HELD, checksum[:16]), "per_gpu_checksum": checksum,
            "parallelism_info": [{"role": "target", "tp_rank": 0, "tp_size": 1, "dp_rank": 0, "dp_size": 1,
                                  "pp_rank": 0, "pp_size": 1, "rank": 0, "size": 1}]}
    return {"success": True, "message": "Success.", "ranks": [rank], "per_engine_checksum": checksum}


def model_info(architecture: str, version: str) -> dict[str, Any]:
    """/model_info's answer."""
    return {"model_path": "fake", "served_model_name": "fake", "tokenizer_path": "fake", "is_generation": True,
            "preferred_sampling_params": None, "weight_version": version, "load_format": "auto",
            "reasoning_parser": None, "tool_call_parser": None, "disaggregation_mode": "null",
            "has_image_understanding": False, "has_audio_understanding": False,
            "model_type": architecture.removesuffix("ForCausalLM").lower(), "architectures": [architecture]}


def server_info(*, context: int, max_running: int, longest_prompt: int) -> dict[str, Any]:
    """/server_info's answer, in part."""
    return {"model_path": "fake", "context_length": None, "dtype": "float32", "max_running_requests": max_running,
            "max_total_tokens": 20000, "tp_size": 1, "dp_size": 1, "weight_version": "default",
            "enable_deterministic_inference": True, "skip_tokenizer_init": False, "max_total_num_tokens": 20000,
            "max_req_input_len": longest_prompt, "internal_states": [{"last_gen_throughput": 0.0}], "version": "0.5.23",
            "frontend": "python"}
