"""Real SGLang servers for tests: started through launch/sglang_cpu.sh, killed, stopped and frozen as tests need it."""

import dataclasses
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DEMO_MODEL = ROOT / "rlzero" / "demo_model"
SCRIPT = ROOT / "launch" / "sglang_cpu.sh"
_SECONDS = 240  # for a start on a busy machine; it takes about 15


def home() -> pathlib.Path | None:
    """Where launch/sglang_cpu.sh has installed a server; None if it has not."""
    done = subprocess.run([str(SCRIPT), "where"], text=True, capture_output=True, check=False)
    return pathlib.Path(done.stdout.strip()) if done.returncode == 0 else None


def free_port() -> int:
    """A port that nobody uses right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclasses.dataclass
class RealServer:
    """A server, which may be dead.

    Attributes:
      url: where it listens.
      pid: of its main process, which leads a process group; None for a server that was not started here.
      log: file with what it prints.
      model: directory it was started with.
    """

    url: str
    pid: int | None = None
    log: pathlib.Path | None = None
    model: pathlib.Path = DEMO_MODEL

    def get(self, path: str, seconds: float = 60.0) -> Any:
        """The JSON at a path, or its text."""
        return _request(self.url + path, None, seconds)

    def post(self, path: str, body: Any = None, seconds: float = 60.0) -> Any:
        """The JSON that is answered to a JSON body, or its text.

        Raises:
          urllib.error.HTTPError: the status is not 200.
          OSError: there was no answer.
        """
        return _request(self.url + path, json.dumps({} if body is None else body).encode(), seconds)

    def sample(self, prompt_ids: Sequence[int], *, rid: str | None = None, **parameters) -> dict[str, Any]:
        """One completion with log-probabilities."""
        body = {"input_ids": list(prompt_ids), "return_logprob": True, "sampling_params": parameters}
        return self.post("/generate", body | ({"rid": rid} if rid else {}))

    def slow_down(self, seconds: float) -> None:
        """Has every forward pass, that is every token, take so much longer; 0 ends it."""
        self.post("/slow_down", {"forward_sleep_time": seconds or None})

    def reset(self) -> None:
        """Weights and version as at the start, nothing running, nothing cached."""
        self.post("/continue_generation")
        self.post("/abort_request", {"abort_all": True})
        self.slow_down(0)
        try:
            self.post("/end_weight_update")
        except urllib.error.HTTPError:
            pass  # no session was open
        self.post("/update_weights_from_disk", {
            "model_path": str(self.model), "weight_version": "default", "flush_cache": True,
            "abort_all_requests": True})

    @property
    def running(self) -> int:
        """How many requests are being computed."""
        return sum(load["num_running_reqs"] for load in self.get("/v1/loads")["loads"])

    @property
    def alive(self) -> bool:
        """Whether the main process exists."""
        try:
            status = pathlib.Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] != "Z"

    def kill(self) -> None:
        """SIGKILL to all its processes: gone at once."""
        self._signal_group(signal.SIGKILL)
        wait_until(lambda: not self.alive, f"server {self.pid} to be dead")

    def kill_scheduler(self) -> None:
        """SIGKILL to the process that computes; the main one notices and ends, too."""
        os.kill(self.scheduler_pid, signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM to the main process: it finishes what runs, then ends."""
        os.kill(self.pid, signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP to all its processes: alive, connections stay open, nothing is answered."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """Ends `freeze`."""
        self._signal_group(signal.SIGCONT)

    def freeze_scheduler(self) -> None:
        """SIGSTOP to the process that computes: HTTP goes on, tokens do not; `thaw` ends it."""
        os.kill(self.scheduler_pid, signal.SIGSTOP)

    @property
    def scheduler_pid(self) -> int:
        """Process id of the scheduler."""
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
                title = (stat.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if int(fields[1]) == self.pid and title.startswith(b"sglang::scheduler"):
                return int(stat.parent.name)
        raise ProcessLookupError(f"server {self.pid} has no scheduler")

    def _signal_group(self, number):
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass


class Servers:
    """Starts servers, and routers in front of them, and ends them all in the end."""

    def __init__(self, environment: pathlib.Path, directory: pathlib.Path):
        """Makes a starter.

        Args:
          environment: of launch/sglang_cpu.sh.
          directory: for logs.
        """
        self._environment, self._directory = environment, directory
        self._numbers = itertools.count()
        self._started: list[RealServer] = []

    def __call__(self, *arguments: str, model: str | os.PathLike = DEMO_MODEL, port: int | None = None,
                 environment: dict[str, str] | None = None) -> RealServer:
        """Starts a server and waits until it generates.

        Args:
          *arguments: further ones of the server, such as "--max-running-requests", "4".
          model: directory to serve.
          port: to listen on; a free one by default. That of a dead server makes it a restart.
          environment: further variables, such as {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"}.
        """
        return self._start("start", [f"--model={model}", *arguments], port, pathlib.Path(model), environment or {})

    def router(self, *urls: str, arguments: Sequence[str] = (), port: int | None = None) -> RealServer:
        """Starts a router in front of servers; what it returns knows `url`, `kill` and `alive`, but no scheduler."""
        if not (self._environment / "router.done").exists():
            pytest.skip("no router is installed: launch/sglang_cpu.sh install-router")
        workers = [f"--worker={url}" for url in urls]
        return self._start("router", [*workers, *arguments], port, DEMO_MODEL, {})

    def _start(self, command, arguments, port, model, environment):
        port = port or free_port()
        log = self._directory / f"{command}-{next(self._numbers)}.log"
        done = subprocess.run(
            [str(SCRIPT), command, f"--port={port}", f"--log={log}", f"--pid-file={log.with_suffix('.pid')}",
             f"--seconds={_SECONDS}", f"--while={os.getpid()}", *arguments],
            env=os.environ | {"RLZERO_SGLANG_HOME": str(self._environment)} | environment, text=True,
            capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command} failed: {done.stderr}")
        pid = int(log.with_suffix(".pid").read_text())
        self._started.append(RealServer(f"http://127.0.0.1:{port}", pid, log, model))
        return self._started[-1]

    def close(self) -> None:
        """Kills what was started."""
        for server in self._started:
            server.kill()


def wait_until(condition, what: str, seconds: float = 60.0) -> None:
    """Waits for a condition.

    Raises:
      TimeoutError: it did not come.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.02)


def _request(url, content, seconds):
    request = urllib.request.Request(url, data=content, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=seconds) as response:
        text = response.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text
