"""launch/sglang_cpu.sh with stand-ins for Python 3.11, pip and the server: what it installs when, starts and stops."""

import os
import pathlib
import shutil
import socket
import subprocess
import time

import pytest

_LAUNCH = pathlib.Path(__file__).parents[2] / "launch"
_MODEL = _LAUNCH.parent / "rlzero" / "demo_model"

# Makes environments of shell scripts, of which pip keeps a diary, and the Python runs the script that is called server.
_PYTHON = """#!/bin/bash
[ "$1" = -c ] && exit 0
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin"
cat >"$3/bin/pip" <<'PIP'
#!/bin/bash
echo "$@" >>"$DIARY"
sleep "${PIP_SECONDS:-0}"
exit "${PIP_STATUS:-0}"
PIP
cat >"$3/bin/python" <<'END'
#!/bin/bash
[ "$1" = -c ] && exit 0
exec "$SERVER" "$@"
END
chmod +x "$3/bin/pip" "$3/bin/python"
"""
_SERVER = """#!/usr/bin/env python3
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health_generate" else 404)
        self.end_headers()
print(json.dumps(sys.argv[1:]), os.environ["OMP_NUM_THREADS"], flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


class Script:
    """A copy of the script and of what belongs to it, with stand-ins."""

    def __init__(self, directory):
        self.launch, self.home, self.diary = directory / "launch", directory / "home", directory / "diary"
        shutil.copytree(_LAUNCH, self.launch)
        for name, text in (("python3.11", _PYTHON), ("server", _SERVER)):
            (directory / name).write_text(text)
            (directory / name).chmod(0o755)
        self.environment = os.environ | {
            "RLZERO_SGLANG_HOME": str(self.home), "PYTHON311": str(directory / "python3.11"), "DIARY": str(self.diary),
            "SERVER": str(directory / "server")}
        self.environment.pop("OMP_NUM_THREADS", None)

    def popen(self, *arguments, **environment):
        return subprocess.Popen([self.launch / "sglang_cpu.sh", *map(str, arguments)], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment | environment)

    def __call__(self, *arguments, code=0, **environment):
        process = self.popen(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        return err if code else out

    @property
    def installs(self):
        return self.diary.read_text().count("--requirement") if self.diary.exists() else 0


@pytest.fixture
def script(tmp_path):
    return Script(tmp_path)


@pytest.fixture
def port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("arguments, message", [
    ((), "expected install, start, stop"),
    (("begin",), "got 'begin'"),
    (("install", "now"), "install takes no argument, got 'now'"),
    (("start",), "start needs --model"),
    (("start", "--model", "/nowhere"), "got '/nowhere'"),
    (("start", "--port"), "--port needs a value"),
    (("start", "--seconds=soon"), "--seconds expects a number, got 'soon'"),
    (("start", "--while=me"), "--while expects a process id, got 'me'"),
    (("router", "--port=1"), "router needs --worker URL"),
    (("stop",), "stop expects a process id or the file that holds one"),
    (("stop", "all"), "got 'all'"),
    (("stop", os.getpid()), "was not started by this script")])
def test_a_wrong_command_line_is_one_line(script, arguments, message):
    error = script(*arguments, code=2)
    assert message in error and error.count("\n") == 1


def test_without_python_or_server_it_says_what_is_missing(script, port):
    assert "no Python 3.11 among /nowhere" in script("install", PYTHON311="/nowhere", code=1)
    for arguments in (("where",), ("start", f"--model={_MODEL}", f"--port={port}")):
        assert "run launch/sglang_cpu.sh install" in script(*arguments, code=1)


def test_it_installs_once_and_again_when_the_requirements_changed(script):
    script("install")
    script("install")
    assert script.installs == 1 and script("where").strip() == str(script.home)
    assert "--no-deps" in script.diary.read_text()
    with open(script.launch / "sglang_cpu_requirements.txt", "a", encoding="utf-8") as file:
        file.write("another==1.0\n")
    script("where", code=1)
    script("install")
    assert script.installs == 2
    script("where")


def test_an_install_that_failed_is_made_anew(script):
    error = script("install", PIP_STATUS="1", code=1)
    assert "pip could not install" in error and error.count("\n") == 1
    script("where", code=1)
    (script.home / "server" / "half").touch()
    script("install")
    script("where")
    assert not (script.home / "server" / "half").exists()


def test_two_installs_at_once_are_one(script):
    both = [script.popen("install", PIP_SECONDS="1") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0] and script.installs == 1


def test_a_server_starts_with_what_it_needs_and_stops(script, port):
    script("install")
    said = script("start", "--model", _MODEL, f"--port={port}", "--max-running-requests", 64)
    pid = int((script.home / f"port-{port}.pid").read_text())
    try:
        assert said.startswith(f"http://127.0.0.1:{port} pid {pid} ")
        log = (script.home / f"port-{port}.log").read_text()
        for words in (str(_MODEL), "float32", "--sleep-on-idle", '"--max-running-requests", "64"]'):
            assert words in log
        assert log.splitlines()[0].endswith(" 1"), "one OpenMP thread"
        assert "is taken" in script("start", f"--model={_MODEL}", f"--port={port}", code=1)
    finally:
        script("stop", script.home / f"port-{port}.pid")
    assert not pathlib.Path(f"/proc/{pid}/cmdline").exists() or not pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    script("stop", pid)


def test_a_server_ends_with_the_process_it_is_for(script, port):
    script("install")
    with subprocess.Popen(["sleep", "60"]) as owner:
        script("start", f"--model={_MODEL}", f"--port={port}", f"--while={owner.pid}")
        owner.kill()
    deadline = time.monotonic() + 20
    while True:
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)):
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_server_that_dies_at_once_leaves_its_last_words(script, port):
    script("install")
    pathlib.Path(script.environment["SERVER"]).write_text("#!/bin/bash\necho out of memory\nexit 3\n")
    error = script("start", f"--model={_MODEL}", f"--port={port}", code=1)
    assert "out of memory\n" in error and "ended before it was ready" in error


def test_a_server_that_is_never_ready_is_stopped(script, port):
    script("install")
    pathlib.Path(script.environment["SERVER"]).write_text("#!/bin/bash\nsleep 60\n")
    error = script("start", f"--model={_MODEL}", f"--port={port}", "--seconds=1", code=1)
    assert "was not ready after 1 s and was stopped" in error
