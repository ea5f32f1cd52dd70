"""Real servers that are killed, frozen and restarted under a real engine, and the training program on top of them."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
from engines import SAMPLING, counts, engine, requests, scaled
from real_server import wait_until

ROOT = pathlib.Path(__file__).parents[2]
SLOW = 0.02  # seconds a token takes longer, so that there is time to do harm


@pytest.fixture(scope="module")
def victim(make_server):
    """A server to harm, and to start again on its port."""
    servers = [make_server()]

    def restart():
        servers[-1].kill()  # also what is left of one whose main process has ended
        port = int(servers[-1].url.rpartition(":")[2])
        wait_until(lambda: not listening(port), f"port {port} to be free")
        servers.append(make_server(port=port))
        return servers[-1]

    yield servers, restart
    for server in servers:
        server.thaw()
        server.kill()


def listening(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def complete_with(made, asked, harm, *, after=4):
    """All completions, with harm done on the way."""
    found = []
    for number, completion in enumerate(made.generate(asked, SAMPLING)):
        found.append(completion)
        if number == after:
            harm()
    return found


def assert_complete(found, asked, version):
    assert sorted((c.request.prompt_id, c.request.sample_index) for c in found) == sorted(
        (r.prompt_id, r.sample_index) for r in asked)
    assert all(c.finish_reason != "abort" and c.policy_version == version for c in found)


def back_in_service(made):
    def both():
        made.readmit()
        return made.metrics()["server/in_service"][0] == 2

    wait_until(both, "both servers to be in service", 90)


def test_real_servers_that_die_hang_and_drain_lose_nothing(fresh_server, victim, tmp_path):
    servers, restart = victim
    asked = requests(12, 8)
    with engine(fresh_server.url, servers[-1].url, directory=tmp_path) as made:
        made.update_weights(scaled(1.02), 1)
        for name, harm in (("scheduler killed", lambda: servers[-1].kill_scheduler()),
                           ("told to end", lambda: servers[-1].terminate()),
                           ("scheduler frozen", lambda: servers[-1].freeze_scheduler())):
            for server in (fresh_server, servers[-1]):
                server.slow_down(SLOW)
            assert_complete(complete_with(made, asked, harm), asked, 1)
            assert counts(made).get("given_up", 0) == 0, name
            if name == "scheduler frozen":
                servers[-1].thaw()
            else:
                wait_until(lambda: not servers[-1].alive, "the server to be gone")
                restart()
            # One that ended when nothing was asked of it is only noticed by answers of the weights it started with.
            assert_complete(list(made.generate(asked, SAMPLING)), asked, 1)
            back_in_service(made)
            assert servers[-1].get("/model_info")["weight_version"].endswith(".1")
        fresh_server.slow_down(0)


def train(workdir, url, *flags, steps):
    command = [sys.executable, "-m", "rlzero.train", "--config=configs/demo.py:dapo", f"--workdir={workdir}",
               f"--config.steps={steps}", "--config.rollout.engine=sglang", f"--config.rollout.servers={url}",
               "--config.prompts_per_step=4", "--config.group_size=4", "--config.learner.mini_batches=1",
               "--config.evaluation.problems=8", "--config.rollout.outage_seconds=4",
               "--config.rollout.stall_seconds=2", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("method", ["disk", "tensor"])
def test_the_demo_trains_on_a_real_server(fresh_server, tmp_path, method):
    run = train(tmp_path, fresh_server.url, f"--config.sync.method={method}", "--config.rollout.max_staleness=1",
                steps=4)
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 0, output
    metrics = lines(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    for line in metrics:
        assert line["sync/gigabytes_per_second"] > 0
        assert line["sync/probe_mean_abs_logprob"] < 1e-3 and line["server/given_up"] == 0
        assert line["rollout/staleness_mean"] <= 1 and 0 <= line["time/waiting_fraction"] <= 1
    # Sampled ahead: what a step is trained on may have come before it.
    assert sum(line["server/0_tokens_per_second"] for line in metrics) > 0
    assert metrics[0]["mismatch/mean_abs_logprob"] < 1e-3
    records = [record for path in sorted((tmp_path / "rollouts").iterdir()) for record in lines(path)]
    assert {record["policy_version"] for record in records} >= {0, 1}
    assert all(record["version_spans"] for record in records)


def test_without_servers_the_program_saves_ends_with_5_and_goes_on_later(victim, tmp_path):
    servers, restart = victim
    if not servers[-1].alive:
        restart()
    url = servers[-1].url
    run = train(tmp_path, url, "--config.checkpoint.every_steps=0", steps=100)
    wait_until(lambda: (tmp_path / "metrics.jsonl").exists() and len(lines(tmp_path / "metrics.jsonl")) >= 2 or
               run.poll() is not None, "two steps", 180)
    servers[-1].kill()
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 5, output
    assert "error: no rollout server" in output and "Traceback" not in output
    done = lines(tmp_path / "metrics.jsonl")[-1]["step"]
    restart()
    again = train(tmp_path, url, "--config.checkpoint.every_steps=0", steps=done + 2)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    assert f"going on after step {done} " in output
    assert [line["step"] for line in lines(tmp_path / "metrics.jsonl")] == list(range(1, done + 3))


def test_a_signal_ends_a_run_that_samples_ahead(fresh_server, tmp_path):
    fresh_server.slow_down(SLOW)
    run = train(tmp_path, fresh_server.url, "--config.rollout.max_staleness=2", steps=100)
    wait_until(lambda: (tmp_path / "metrics.jsonl").exists() or run.poll() is not None, "a step", 180)
    start = time.monotonic()
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 130, output
    assert "Traceback" not in output and time.monotonic() - start < 60


def test_the_check_program_agrees_with_a_server_and_finds_other_weights(fresh_server, tmp_path):
    command = [sys.executable, "-m", "rlzero.rollout.check", f"--servers={fresh_server.url}", "--model=demo"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0 and "log-probabilities after the temperature" in done.stdout, done.stdout + done.stderr
    with engine(fresh_server.url, directory=tmp_path, params=scaled(1.3)):
        pass
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 1 and "it serves other weights" in done.stdout


def test_raw_log_probabilities_of_a_real_server_are_recognized(make_server):
    server = make_server(environment={"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"})
    command = [sys.executable, "-m", "rlzero.rollout.check", f"--servers={server.url}", "--model=demo"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    server.kill()
    assert done.returncode == 1 and "without SGLANG_RETURN_ORIGINAL_LOGPROB" in done.stdout




@pytest.fixture
def router(make_server, fresh_server, victim):
    """A real router in front of the two servers."""
    servers, restart = victim
    if not servers[-1].alive:
        restart()
    made = make_server.router(fresh_server.url, servers[-1].url)
    yield made.url
    made.kill()


def test_a_router_spreads_requests_and_each_worker_gets_the_weights(router, fresh_server, victim, tmp_path):
    workers = (fresh_server, victim[0][-1])
    asked = requests(12, 4)
    with engine(*(worker.url for worker in workers), router=router, directory=tmp_path) as made:
        assert_complete(list(made.generate(asked, SAMPLING)), asked, 0)
        made.update_weights(scaled(1.02), 1)
        assert {worker.get("/model_info")["weight_version"].rpartition(".")[2] for worker in workers} == {"1"}
        assert_complete(list(made.generate(asked, SAMPLING)), asked, 1)
        assert "given_up" not in counts(made)
