"""One grading process of `pool.py`: reads batches from a socket, writes grades back, and says what it is at.

    python -m rlzero.rewards.worker MODE MEMORY_MIB GRADER SOCKET_FD PROGRESS_FD

It is a fresh interpreter, so it shares no locks, threads or devices with the process that started it. Its memory is
limited, and it ends when the other end of the socket does. Messages are JSON, so that nothing in them is run.
"""

import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from rlzero.rewards import gym_scorers
from rlzero.rewards.imports import load_function
from rlzero.rewards.progress import IDLE, PROGRESS
from rlzero.rewards.verifier import Grade, grade, mathematics, require_mode


def main() -> None:
    mode, memory_mib, grader, socket_fd, progress_fd = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (int(memory_mib) << 20, int(memory_mib) << 20))
    progress = mmap.mmap(int(progress_fd), PROGRESS.size)
    function = load_function(grader) if grader else grade
    if not grader:
        require_mode(mode)
        if mode == "math":
            mathematics.library.load()
        if mode == gym_scorers.MODE:
            gym_scorers.load()
    with Connection(int(socket_fd)) as connection:
        connection.send_bytes(b"ready")
        try:
            while True:
                batch = json.loads(connection.recv_bytes())
                connection.send_bytes(json.dumps(_graded(batch, function, mode, progress)).encode())
        except (EOFError, BrokenPipeError):
            os._exit(0)  # whoever asked is gone, and so is the wish to clean up


def _graded(batch: list[list[str]], function: Callable[..., Grade], mode: str, progress: mmap.mmap) -> list:
    grades = []
    for place, (response, gold) in enumerate(batch):
        PROGRESS.pack_into(progress, 0, time.monotonic(), place)
        try:
            result = function(response, gold, mode=mode)
        except MemoryError:
            result = Grade(False, None, "grading needed more memory than a worker may use")
        grades.append([result.correct, result.extracted, result.error])
    PROGRESS.pack_into(progress, 0, time.monotonic(), IDLE)
    return grades


if __name__ == "__main__":
    main()
