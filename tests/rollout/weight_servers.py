"""Stand-ins for SGLang servers that note what they are sent, for tests of the ways to move weights."""

import asyncio

from rlzero.models import huggingface
from rlzero.rollout.sglang_http import Refused

PARAMS, MODEL = huggingface.load("demo")
_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj",
          "up_proj": "gate_up_proj"}


def held_names(shapes):
    return {".".join(_FUSED.get(part, part) for part in name.split(".")) for name in shapes}


class Recorder:
    """A stand-in for `Server`: `errors` says what it answers to a path instead of success.

    An error is raised if it is an exception, refused if it is text, and waited for if it is an `asyncio.Event`.
    """

    def __init__(self, url="http://a", *, errors=None, held=None, **info):
        self.url, self.info, self.errors, self.asked = url, info, errors or {}, []
        self.held = held or held_names(huggingface.named_tensors(PARAMS, MODEL).shapes)
        self.session_open = False

    async def get(self, path, *, timeout=None):
        return self.info

    async def post(self, path, body, *, timeout=None):
        self.asked.append((path, body))
        error = self.errors.get(path)
        if isinstance(error, asyncio.Event):
            await error.wait()
        elif isinstance(error, Exception):
            raise error
        elif error:
            raise Refused(self.url, path, error)
        if path == "/weights_checker":
            return {"ranks": [{"checksums": dict.fromkeys(self.held, "0"),
                               "parallelism_info": [{"pp_size": self.info.get("pp_size", 1)}]}]}
        if path in ("/begin_weight_update", "/end_weight_update"):
            if self.session_open == (path == "/begin_weight_update"):
                raise Refused(self.url, path, f"a session is {'already' if self.session_open else 'not'} open")
            self.session_open = not self.session_open
        return {"success": True}

    @property
    def paths(self):
        """Of what was posted, without the look at what it holds."""
        return [path for path, _ in self.asked if path != "/weights_checker"]


def push(transport, servers, params=PARAMS, version="r.1"):
    """What `push` returns; the transport is closed afterwards."""
    async def run():
        try:
            return await transport.push(servers, params, version)
        finally:
            await transport.close()

    return asyncio.run(run())
