r"""What sampling ahead saves: seconds a step with `max_staleness` 0 and 1, on the demo, with a server made slow.

    launch/sglang_cpu.sh start --model rlzero/demo_model --port 30000
    python benchmarks/overlap.py --server=http://127.0.0.1:30000

The server sleeps for a while in every forward pass, as one does that waits for its GPU: so sampling takes time but no
core from the trainer. Printed is the median over steps, the first two left out, which compile. Sampling and training in
turns take their sum; at best, sampling ahead takes the longer of the two.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import urllib.request

from absl import app, flags

_WARM_UP = 2  # steps


def slow_down(server: str, seconds: float) -> None:
    """Has each forward pass of a server take longer."""
    request = urllib.request.Request(server + "/slow_down", json.dumps({"forward_sleep_time": seconds or None}).encode(),
                                     {"Content-Type": "application/json"})
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).close()


def run(server: str, staleness: int, steps: int) -> dict[str, float]:
    """Median seconds of a step and its parts, in a training run."""
    with tempfile.TemporaryDirectory() as workdir:
        subprocess.run(
            [sys.executable, "-m", "rlzero.train", "--config=configs/demo.py:grpo", f"--workdir={workdir}",
             f"--config.steps={steps + _WARM_UP}", "--config.rollout.engine=sglang",
             f"--config.rollout.servers={server}", f"--config.rollout.max_staleness={staleness}",
             "--config.rollout.concurrency=32", "--config.evaluation.problems=8", "--config.checkpoint.every_steps=0"],
            cwd=pathlib.Path(__file__).parents[1], check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()]
    return {name: statistics.median(line.get(f"time/{name}_seconds", 0.0) for line in lines[_WARM_UP:])
            for name in ("rollout", "train", "sync", "step")}


def main(argv: list[str]) -> None:
    values = flags.FLAGS
    slow_down(values.server, values.sleep)
    try:
        turns, ahead = (run(values.server, staleness, values.steps) for staleness in (0, 1))
    finally:
        slow_down(values.server, 0.0)
    print(f"{'max_staleness':>14}{'sampling':>10}{'training':>10}{'weights':>10}{'step':>10}   seconds, median of "
          f"{values.steps} steps")
    for staleness, found in enumerate((turns, ahead)):
        waiting = "" if staleness == 0 else "   (sampling: what the trainer still waits for it)"
        print(f"{staleness:>14}{found['rollout']:>10.2f}{found['train']:>10.2f}{found['sync']:>10.2f}"
              f"{found['step']:>10.2f}{waiting}")
    longer = max(turns["rollout"], turns["train"])
    print(f"ahead / in turns: {ahead['step'] / turns['step']:.2f}; ahead / the longer of sampling and training in turns: "
          f"{ahead['step'] / longer:.2f}")


if __name__ == "__main__":
    flags.DEFINE_string("server", None, "URL of an SGLang server with the demo model", required=True)
    flags.DEFINE_float("sleep", 0.03, "seconds that the server sleeps in every forward pass")
    flags.DEFINE_integer("steps", 8, "steps to measure")
    app.run(main)
