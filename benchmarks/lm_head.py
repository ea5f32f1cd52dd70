"""What the fused loss costs: `kernels.fused_policy_loss` against the least possible and against the plain way.

    python benchmarks/lm_head.py                    # N = 512 and 2048 tokens, minutes each on a CPU
    python benchmarks/lm_head.py --tokens=512 --repetitions=5

Loss and both gradients, at the head of a 0.5B Qwen2.5 (width 896, vocabulary 151,936) in float32, of

    fused   kernels.fused_policy_loss
    bare    the three matrix products of that size and nothing else: logits, and both gradients from them
    plain   the full logits and kernels.policy_loss with the same metrics, entropy among them, differentiated by JAX
    lean    plain without entropy and metrics, which fused cannot leave out

Times are medians of repetitions that take turns, so that a busy machine slows all alike; `cpu s` are those of all
threads together, which other people's work on the machine changes less. Peak memory is what a process of its own adds to
its resident memory while it runs one compiled call, results included; `compiled` is what the compiler planned for it,
temporaries and results.
"""

import os
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
from absl import app, flags

from rlzero import kernels
from rlzero.algorithms import get

_TOKENS = flags.DEFINE_multi_integer("tokens", [512, 2048], "Tokens N; may be given several times.", lower_bound=1)
_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Timed calls of each, after one that is not timed.",
                                    lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 896, "Width D of the hidden states.", lower_bound=1)
_VOCABULARY = flags.DEFINE_integer("vocabulary", 151_936, "Size V of the vocabulary.", lower_bound=1)
_PEAK_OF = flags.DEFINE_enum("peak_of", None, ["fused", "bare", "plain", "lean"],
                             "Run this one once and print the MiB it added; the benchmark calls itself so.")

_MIB = 2**20
_ALGORITHM = get("dapo")


def fused(hidden, unembedding, targets, old_logprobs, advantages):
    def loss(hidden, unembedding):
        weights = jnp.full_like(advantages, 1 / len(advantages))
        return kernels.fused_policy_loss(hidden, unembedding, targets, old_logprobs, advantages, weights,
                                         algorithm=_ALGORITHM)

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(hidden, unembedding)


def bare(hidden, unembedding, targets, old_logprobs, advantages):
    del targets, old_logprobs, advantages
    logits = hidden @ unembedding
    return logits @ unembedding.T, hidden.T @ logits


def plain(hidden, unembedding, targets, old_logprobs, advantages, *, with_metrics=True):
    def loss(hidden, unembedding):
        logits = hidden @ unembedding
        normalizer = jax.nn.logsumexp(logits, axis=1, keepdims=True)
        logprobs = jnp.take_along_axis(logits, targets[:, None], axis=1) - normalizer
        entropy = kernels.entropy(logits)[:, None] if with_metrics else None
        weights = jnp.full_like(advantages, 1 / len(advantages))
        value, metrics = kernels.policy_loss(logprobs, old_logprobs[:, None], advantages[:, None],
                                             jnp.ones_like(logprobs), weights, algorithm=_ALGORITHM, entropy=entropy)
        return value, metrics if with_metrics else None

    return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(hidden, unembedding)


def lean(*arguments):
    return plain(*arguments, with_metrics=False)


_FUNCTIONS = {"fused": fused, "bare": bare, "plain": plain, "lean": lean}


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"expected flags only, got {argv[1:]}")
    if _PEAK_OF.value:
        print(_peak_added(_PEAK_OF.value, _TOKENS.value[0]))
        return
    print(f"width {_WIDTH.value}, vocabulary {_VOCABULARY.value:,}, float32, {jax.default_backend()}, "
          f"{os.cpu_count()} cores, jax {jax.__version__}; load {_load()} at the start")
    for tokens in _TOKENS.value:
        _report(tokens)
    print(f"load {_load()} at the end")


def _report(tokens):
    peaks = {name: _peak_in_a_process(name, tokens) for name in _FUNCTIONS}
    arguments = _arguments(tokens)
    compiled = {name: jax.jit(function).lower(*arguments).compile() for name, function in _FUNCTIONS.items()}
    seconds = _seconds(compiled, arguments)
    gradient = _WIDTH.value * _VOCABULARY.value * 4 / _MIB
    print(f"\nN = {tokens}\n{'':8}{'median s':>10}{'cpu s':>8}{'peak MiB':>10}{'compiled MiB':>14}")
    for name, program in compiled.items():
        memory = program.memory_analysis()
        planned = (memory.temp_size_in_bytes + memory.output_size_in_bytes) / _MIB
        print(f"{name:8}{_median(seconds[name], 0):10.2f}{_median(seconds[name], 1):8.2f}{peaks[name]:10.0f}"
              f"{planned:14.0f}")
    for other, wanted in (("bare", "wanted at most 1.12"), ("plain", "wanted at most 1.00"), ("lean", "")):
        wall, cpu = (_median(seconds["fused"], clock) / _median(seconds[other], clock) for clock in (0, 1))
        print(f"time    fused / {other:5}  {wall:5.2f}   by cpu s {cpu:5.2f}   {wanted}".rstrip())
    ratio = (peaks["fused"] - gradient) / peaks["plain"]
    print(f"memory  (fused - the head's gradient) / plain  {ratio:5.2f}   wanted at most 0.25")


def _arguments(tokens):
    keys = jax.random.split(jax.random.key(0), 4)
    return (jax.random.normal(keys[0], (tokens, _WIDTH.value)),
            jax.random.normal(keys[1], (_WIDTH.value, _VOCABULARY.value)) * _WIDTH.value**-0.5,
            jax.random.randint(keys[2], (tokens,), 0, _VOCABULARY.value),
            jnp.full((tokens,), -12.0), jax.random.normal(keys[3], (tokens,)))


def _seconds(compiled, arguments):
    """(wall-clock, CPU) seconds of every timed call, by name."""
    seconds = {name: [] for name in compiled}
    for repetition in range(_REPETITIONS.value + 1):
        for name, program in compiled.items():
            start = time.perf_counter(), time.process_time()
            jax.block_until_ready(program(*arguments))
            if repetition:
                seconds[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return seconds


def _median(pairs, clock):
    return statistics.median(pair[clock] for pair in pairs)


def _peak_in_a_process(name, tokens):
    command = [sys.executable, __file__, f"--peak_of={name}", f"--tokens={tokens}", f"--width={_WIDTH.value}",
               f"--vocabulary={_VOCABULARY.value}"]
    return float(subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout)


def _peak_added(name, tokens):
    """MiB by which one call raises this process's peak resident memory above what it holds before the call."""
    arguments = jax.block_until_ready(_arguments(tokens))
    program = jax.jit(_FUNCTIONS[name]).lower(*arguments).compile()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # sets the peak to what is resident now
    before = _resident("VmRSS")
    jax.block_until_ready(program(*arguments))
    return _resident("VmHWM") - before


def _resident(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(f"{field}:"))


def _load():
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    app.run(main)
