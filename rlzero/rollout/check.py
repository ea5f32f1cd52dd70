r"""Whether SGLang servers serve a model as this trainer computes it: the handshake of a run, alone.

    python -m rlzero.rollout.check --servers=http://10.0.0.5:30000,http://10.0.0.6:30000 --model=models/Qwen2.5-Math-7B

Each server continues two prompts; the model directory's weights score the same tokens here. Nothing on the servers is
changed. Exit codes: 0 all agree; 1 a server does not serve this model, is not there, or reports log-probabilities of
before the temperature; 2 a command line that cannot be followed.
"""

import asyncio
import sys

import jax
from absl import app, flags, logging

from rlzero.models import huggingface
from rlzero.rollout import handshake
from rlzero.rollout.handshake import HandshakeError
from rlzero.rollout.sglang_http import Server, ServerError, make_session

_TEMPERATURES = (1.0, 0.5)  # the second tells log-probabilities after the temperature from those before it
_PROMPTS = ("What is 12 + 30?", "The capital of France is")


async def check(url: str, params, model, *, architecture: str, prompts, dtype: str) -> str:
    """Compares one server with a model's weights.

    Returns:
      A line about the server.

    Raises:
      HandshakeError, ServerError: it does not serve the model, or does not answer.
    """
    session = make_session()
    try:
        server = Server(url, session)
        facts = await handshake.facts(server, architecture=architecture, context=0)
        samples = [await handshake.sample_probes(server, prompts, temperature) for temperature in _TEMPERATURES]
    finally:
        await session.close()
    score = handshake.make_scorer(model, dtype=dtype)
    dtypes = facts.dtype, dtype
    plain = handshake.agreement(samples[0], score(params, samples[0], 1.0), dtypes)
    if not plain.holds:
        raise HandshakeError(handshake.disagreement(url, plain))
    tempered, raw = (handshake.agreement(samples[1], score(params, samples[1], temperature), dtypes)
                     for temperature in (_TEMPERATURES[1], 1.0))
    if tempered.mean > raw.mean:
        raise HandshakeError(handshake.disagreement(url, tempered, raw=raw))
    return (f"{url}: {facts.model_path}, weights {facts.version!r}, {facts.dtype}, context {facts.context}, "
            f"tp {facts.tp_size}{', request seeds count' if facts.deterministic else ''}; log-probabilities after the "
            f"temperature; |difference| {plain.mean:.2g} on average, {plain.maximum:.2g} at most "
            f"(allowed: {plain.bound:g} on average)")


def define_flags() -> None:
    flags.DEFINE_string("servers", None, "URLs of SGLang servers, with commas between them", required=True)
    flags.DEFINE_string("model", None, "model directory that they should serve, or demo", required=True)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "that this side computes in")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        print(f"error: {argv[1]}: this word belongs to no flag; give --servers=URL,URL and --model=DIR",
              file=sys.stderr)
        sys.exit(2)
    values = flags.FLAGS
    logging.set_verbosity(logging.WARNING)  # jax chats at level info
    try:
        params, model = huggingface.load(values.model, values.dtype)
        tokenizer, architecture = huggingface.load_tokenizer(values.model), huggingface.architecture(values.model)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    prompts = [[token for token in tokenizer.encode(text) if token < model.vocab_size] for text in _PROMPTS]
    failed = False
    for url in values.servers.split(","):
        try:
            line = asyncio.run(check(url.strip(), params, model, architecture=architecture, prompts=prompts,
                                     dtype=values.dtype))
            print(f"ok    {line}")
        except (HandshakeError, ServerError) as error:
            failed = True
            print(f"FAIL  {error}")
    print(f"this side: {jax.default_backend()}, {values.dtype}")
    sys.exit(int(failed))


if __name__ == "__main__":
    define_flags()
    app.run(main)
