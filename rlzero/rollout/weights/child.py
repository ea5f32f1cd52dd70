"""The `sender` process as its parent sees it: started, given orders, and ended, each within a deadline."""

import asyncio
import json
import mmap
import os
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from rlzero.rollout.weights import sender
from rlzero.rollout.weights.transport import Deadline, WeightSyncError

_WORDS = 600  # characters of a child's last words that an error repeats


class ChildError(Exception):
    """The child failed at an order, or is gone; says why in its words."""


class ChildLate(ChildError):
    """The child did not carry out an order in time."""


class Child:
    """A running `sender`, with memory that both processes see.

    Attributes:
      memory: of bytes; what an order says is sent is written here first.
    """

    def __init__(self, process: asyncio.subprocess.Process, memory: np.ndarray, words: Any):
        self._process, self.memory, self._words = process, memory, words

    @classmethod
    async def start(cls, python: str, size: int) -> "Child":
        """Starts a child.

        Args:
          python: interpreter with torch; "" for this one.
          size: bytes of memory to share.

        Raises:
          WeightSyncError: there is no such interpreter.
        """
        descriptor = os.memfd_create("rlzero-weights")  # has no name that could be left behind
        words = tempfile.TemporaryFile()
        try:
            os.ftruncate(descriptor, size)
            memory = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
            process = await asyncio.create_subprocess_exec(
                python or sys.executable, str(pathlib.Path(sender.__file__)), str(descriptor), str(size),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=words, pass_fds=(descriptor,))
        except (FileNotFoundError, PermissionError) as error:
            raise WeightSyncError(f"{python} cannot be run ({error.strerror}); --config.sync.python is the interpreter "
                                  "with torch that sends weights") from None
        finally:
            os.close(descriptor)
        return cls(process, memory, words)

    async def order(self, op: str, deadline: Deadline, **values: Any) -> dict:
        """Has the child do something, and returns its answer.

        Raises:
          ChildError: it could not.
          ChildLate: it did not in time.
        """
        try:
            self._process.stdin.write(json.dumps({"op": op} | values).encode() + b"\n")
            line = await asyncio.wait_for(self._process.stdout.readline(), deadline.left)
        except asyncio.TimeoutError:
            raise ChildLate(f"the sender of weights did not {op} within {deadline.seconds:.0f} s") from None
        except ConnectionError:
            line = b""
        if not line:
            code = await self._process.wait()
            ended = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
            raise ChildError(f"the sender of weights {ended}{self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer

    async def end(self) -> None:
        """Ends it at once: whoever waits for it sees a closed connection."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._words.close()

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def _last_words(self):
        if self._words.closed:  # it was ended by us
            return ""
        self._words.seek(0)
        words = self._words.read().decode("utf-8", "replace").strip()
        return f"; its last words: {words[-_WORDS:]}" if words else ""
