"""`SGLangEngine`s for tests, on the demo model, and a fake server that computes it."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
from fake_server import FakeServer

from rlzero.models import huggingface, transformer
from rlzero.rollout.engine import Request, Sampling, request_seed
from rlzero.rollout.fleet import FleetOptions
from rlzero.rollout.sglang import SGLangEngine, SGLangOptions
from rlzero.rollout.weights import DiskTransport

PARAMS, MODEL = huggingface.load("demo")
TOKENIZER = huggingface.load_tokenizer("demo")
STOP_IDS = huggingface.stop_token_ids("demo", TOKENIZER)
PROBES = [tuple(TOKENIZER.encode(text)) for text in ("8-5+6=", "17+25=")]
SAMPLING = Sampling(24, STOP_IDS)
PATIENCE = FleetOptions(concurrency=16, tries=5, request_seconds=60.0, stall_seconds=2.0, outage_seconds=20.0)


def scaled(factor):
    """Other weights than the demo's: their matrices times a factor."""
    return jax.tree.map(lambda leaf: leaf * factor, PARAMS)


def requests(prompts=4, size=4, first=0):
    return [Request(f"p{p}", g, tuple(TOKENIZER.encode(f"{p % 10}+{(p + 3) % 10}=")), request_seed(0, 0, f"p{p}", g))
            for p in range(first, first + prompts) for g in range(size)]


@functools.partial(jax.jit, static_argnames="length")
def _last_logits(params, tokens, *, length):
    del length  # one program for each width
    positions = jnp.arange(tokens.shape[1])[None]
    hidden, _ = transformer.forward(params, MODEL, tokens, positions, jnp.ones_like(tokens))
    return hidden[0] @ transformer.unembedding(params)


def demo_logits(params, ids):
    """What the demo model says comes next."""
    tokens = np.zeros((1, 64), np.int32)
    tokens[0, :len(ids)] = ids
    return np.asarray(_last_logits(params, tokens, length=64)[len(ids) - 1], np.float64)


def load_update(path, body):
    return huggingface.load(body["model_path"])[0]


def fake_demo(**options):
    """A fake server with the demo model's logits and weights."""
    return FakeServer(vocab_size=MODEL.vocab_size, eos_id=STOP_IDS[0], weights=PARAMS, logits=demo_logits,
                      load=load_update, architecture=huggingface.architecture("demo"), **options)


@contextlib.contextmanager
def engine(*urls, directory, patience=PATIENCE, router="", temperature=1.0, transport=None, params=PARAMS, version=0):
    """An engine that has been given weights."""
    options = SGLangOptions(tuple(urls), router=router, fleet=patience, architecture=huggingface.architecture("demo"),
                            context=64, temperature=temperature)
    transport = transport or DiskTransport(MODEL, source="demo", dtype="float32", directory=directory)
    made = SGLangEngine(MODEL, options, transport, probes=PROBES)
    try:
        if params is not None:
            made.update_weights(params, version)
        yield made
    finally:
        made.close()


def counts(engine):
    """The counters of `metrics` that are not 0."""
    return {name.removeprefix("server/"): total for name, (total, weight) in engine.metrics().items()
            if weight == 1.0 and total and name.startswith("server/") and name != "server/in_service"}
