"""Grading in processes that can be killed: a deadline for each sample, bounded memory, one grade for each sample.

Workers are fresh interpreters (`worker.py`), never forks of a process that may have threads. A worker that exceeds a
deadline is killed and replaced, the sample it was at gets a grade with an `error`, and the rest of its batch goes to
another worker. A worker that dies is replaced as well, and its sample is tried once more. `grade` may be called from
several threads, which share the workers.
"""

import collections
import contextlib
import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from multiprocessing import connection as connections

from rlzero.rewards.imports import load_function
from rlzero.rewards.progress import IDLE, PROGRESS
from rlzero.rewards.verifier import Grade, require_mode

_BATCH = 32
_STARTUP_SECONDS = 120.0
_LAST_SECONDS = 1.0
_TRIES_WITHOUT_FAULT = 3
_FAILED_STARTS = 20


class GradingPool:
    """Workers that grade; a context manager.

        with GradingPool(workers=4, deadline_seconds=5.0, mode="math") as pool:
            grades = pool.grade([("sample 0", response, gold), ...])
    """

    def __init__(self, workers: int = 2, deadline_seconds: float = 5.0, mode: str = "integer", *,
                 memory_mib: int = 4096, grader: str = ""):
        """Checks the settings; processes start when the context is entered.

        Args:
          workers: number of processes.
          deadline_seconds: time that one sample may take from when it is handed to its grader.
          mode: see `rlzero.rewards.grade`.
          memory_mib: address space of a worker in MiB. A sample that needs more gets a grade with an `error`.
          grader: import path `package.module:name` of a function to use in the place of `rlzero.rewards.grade`, with
            the same arguments.

        Raises:
          ValueError, ImportError: for settings that cannot be followed.
        """
        if workers < 1 or not deadline_seconds > 0:
            raise ValueError(f"expected at least one worker and a deadline above 0 seconds, got workers={workers} and "
                             f"deadline_seconds={deadline_seconds}.")
        if grader:
            load_function(grader)
        require_mode(mode)
        self._count, self._deadline = workers, deadline_seconds
        self._command = (mode, str(memory_mib), grader)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._change, self._open, self._failed_starts = threading.Condition(), False, 0

    def __enter__(self) -> "GradingPool":
        with self._change:
            self._open = True
            self._idle = [self._start() for _ in range(self._count)]
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers, also those at work, and waits for their end."""
        with self._change:
            self._open = False
            idle, self._idle, workers, self._all = self._idle, [], self._all, set()
            self._change.notify_all()
        for worker in workers:
            worker.kill()
        for worker in idle:  # those at work belong to the calls that use them
            worker.connection.close()

    def grade(self, samples: Iterable[tuple[str, str, str]]) -> list[Grade]:
        """Grades samples, each given as (sample_id, response, gold).

        Returns:
          One grade for each sample, in the order given. Where a sample exceeded its deadline or the memory, or its
          worker died twice, `error` says so together with the sample's id.

        Raises:
          TypeError: if a response or gold is not text.
          RuntimeError: if the pool is not open, or a worker does not start.
        """
        call = _Call([_checked(sample) for sample in samples])
        try:
            while call.waiting or call.busy:
                self._hand_out(call)
                self._gather(call)
        finally:
            for worker in call.busy.values():  # only left behind by an exception
                self._replace(worker)
        return call.grades

    def _start(self) -> "_Worker":
        worker = _Worker(self._command)
        self._all.add(worker)
        return worker

    def _hand_out(self, call: "_Call") -> None:
        """Gives what waits to workers that are free; waits for one only if the call has none."""
        while call.waiting:
            with self._change:
                while self._open and not self._idle and not call.busy:
                    self._change.wait()
                self._check_open()
                if not self._idle:
                    return
                worker = self._idle.pop(next((n for n, w in enumerate(self._idle) if w.ready), 0))
                free = len(self._idle) + 1
            call.busy[worker.connection] = worker
            if worker.ready:
                worker.hand(call.batch(free), call)

    def _gather(self, call: "_Call") -> None:
        """Waits for news of the call's workers, or for the next time at which one may be late."""
        due = min((worker.due(self._deadline) for worker in call.busy.values()), default=0.0)
        for ready in connections.wait(list(call.busy), timeout=max(due - time.monotonic(), 0.0)):
            worker = call.busy[ready]
            try:
                message = worker.connection.recv_bytes()
            except (EOFError, ConnectionResetError):
                self._died(worker, call)
                continue
            if worker.ready:
                call.take(worker, json.loads(message))
                self._release(worker, call)
            else:
                worker.ready, self._failed_starts = True, 0
                self._begin(worker, call)
        for worker in [worker for worker in call.busy.values() if worker.is_late(self._deadline)]:
            self._late(worker, call)

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("the grading pool is closed; use it inside its with block.")

    def _begin(self, worker: "_Worker", call: "_Call") -> None:
        """Gives a worker that has just started its first samples, if any are left by now."""
        if call.waiting:
            worker.hand(call.batch(self._count), call)
        else:
            self._release(worker, call)

    def _release(self, worker: "_Worker", call: "_Call") -> None:
        del call.busy[worker.connection]
        with self._change:
            if self._open:
                self._idle.append(worker)
            self._change.notify()

    def _replace(self, worker: "_Worker") -> None:
        """Kills a worker and puts a new one in its place."""
        worker.kill()
        worker.connection.close()
        with self._change:
            self._all.discard(worker)
            if self._open:
                self._idle.append(self._start())
            self._change.notify()

    def _late(self, worker: "_Worker", call: "_Call") -> None:
        if not worker.ready:
            raise RuntimeError(f"a grading worker did not start within {_STARTUP_SECONDS:.0f} s; is there too much "
                               "work for the processors?")
        del call.busy[worker.connection]
        before = worker.place()
        self._replace(worker)
        # What moved on between the look at the clock and the kill was not late.
        guilty = before if worker.place() == before else IDLE
        call.put_back(worker, guilty, f"grading took longer than {self._deadline:g} s", tries=1)

    def _died(self, worker: "_Worker", call: "_Call") -> None:
        self._check_open()
        if not worker.ready:
            return self._failed_to_start(worker, call)
        del call.busy[worker.connection]
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(_LAST_SECONDS)  # its socket closes before it has ended, and its code says why
        self._replace(worker)
        call.put_back(worker, worker.place(), f"the grading worker died with code {worker.process.returncode}", tries=2)

    def _failed_to_start(self, worker: "_Worker", call: "_Call") -> None:
        """Replaces a worker that was killed from outside before it was ready; one that gave up would do so again."""
        code = worker.process.wait()
        self._failed_starts += 1
        if code >= 0 or self._failed_starts > _FAILED_STARTS:
            raise RuntimeError(f"a grading worker ended with code {code} before it could start; its message is above")
        del call.busy[worker.connection]
        self._replace(worker)


def _checked(sample: tuple[str, str, str]) -> tuple[str, str, str]:
    sample_id, response, gold = sample
    for name, value in (("response", response), ("gold", gold)):
        if not isinstance(value, str):
            raise TypeError(f"the {name} of sample {sample_id} must be text, got {type(value).__name__}.")
    return sample_id, response, gold


class _Call:
    """One call of `GradingPool.grade`: what waits, who works on what, and what has come back."""

    def __init__(self, samples: Sequence[tuple[str, str, str]]):
        self.samples = samples
        self.waiting = collections.deque(range(len(samples)))
        self.busy: dict[connections.Connection, _Worker] = {}
        self.grades: list[Grade | None] = [None] * len(samples)
        self._tries = collections.Counter()

    def batch(self, workers: int) -> list[int]:
        """The next numbers of samples, few enough for all free workers to have some."""
        size = min(_BATCH, -(-len(self.waiting) // workers))
        return [self.waiting.popleft() for _ in range(size)]

    def take(self, worker: "_Worker", grades: list) -> None:
        for number, fields in zip(worker.batch, grades, strict=True):
            self.grades[number] = Grade(*fields)

    def put_back(self, worker: "_Worker", guilty: int, error: str, tries: int) -> None:
        """Gives back the batch of a worker that is gone, except the sample it was at if that had its tries.

        A worker may be lost between samples, to no sample's fault; so that this comes to an end, it counts as a try of
        the first one.
        """
        if guilty == IDLE:
            guilty, tries = 0, max(tries, _TRIES_WITHOUT_FAULT)
        for place, number in reversed(list(enumerate(worker.batch))):
            self._tries[number] += place == guilty
            if place == guilty and self._tries[number] >= tries:
                self.grades[number] = Grade(False, None, f"sample {self.samples[number][0]}: {error}")
            else:
                self.waiting.appendleft(number)


class _Worker:
    """A process, the socket to it, and the memory in which it notes what it is at."""

    def __init__(self, command: tuple[str, str, str]):
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as file, theirs:
            file.write(PROGRESS.pack(0.0, IDLE))
            file.flush()
            self._progress = mmap.mmap(file.fileno(), PROGRESS.size)
            descriptors = (theirs.fileno(), file.fileno())
            search_path = os.pathsep.join(path for path in sys.path if path)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlzero.rewards.worker", *command, *map(str, descriptors)], pass_fds=descriptors,
                stdin=subprocess.DEVNULL, start_new_session=True,  # an interrupt is for the parent to handle
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": search_path})
        self.connection = connections.Connection(ours.detach())
        self.ready, self.batch = False, []
        self._handed = time.monotonic()

    def hand(self, batch: list[int], call: _Call) -> None:
        """Sends samples to grade."""
        self.batch, self._handed = batch, time.monotonic()
        PROGRESS.pack_into(self._progress, 0, self._handed, IDLE)
        try:
            self.connection.send_bytes(json.dumps([call.samples[number][1:] for number in batch]).encode())
        except BrokenPipeError:
            pass  # it died while idle; the end of its socket is read next

    def place(self) -> int:
        """Where in its batch it is."""
        return PROGRESS.unpack_from(self._progress)[1]

    def due(self, deadline: float) -> float:
        """When it is late unless it has moved on by then."""
        if not self.ready:
            return self._handed + _STARTUP_SECONDS
        return max(self._handed, PROGRESS.unpack_from(self._progress)[0]) + deadline

    def is_late(self, deadline: float) -> bool:
        return time.monotonic() >= self.due(deadline)

    def kill(self) -> None:
        """Ends the process and waits until it is gone."""
        self.process.kill()
        self.process.wait()
