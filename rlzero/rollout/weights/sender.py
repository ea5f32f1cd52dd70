"""The child process of the `distributed` transport: rank 0 of a torch process group with the servers.

JAX and torch do not meet: this file runs by itself, in an interpreter that needs torch and nothing of this package. It
takes orders from its input, a line of JSON each: `{"op": "open", …}`, then `{"op": "join", …}`, then any number of
`{"op": "broadcast", …}` of bytes in memory that both processes map. It answers each with a line of JSON, which is
`{"error": "…"}` if it failed, and ends when its input does.
"""

import datetime
import importlib
import json
import mmap
import os
import sys


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gloo prints to standard output, and what it prints must not look like an answer
    sender = Sender(mmap.mmap(int(sys.argv[1]), int(sys.argv[2])))
    while line := sys.stdin.readline():
        order = json.loads(line)
        try:
            answer = getattr(sender, order.pop("op"))(**order)
        except (ImportError, RuntimeError, ValueError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


class Sender:
    """Rank 0; each public method is an order and returns the answer to it."""

    def __init__(self, memory: mmap.mmap):
        self._memory = memory
        self._torch = self._internals = self._store = self._group = None

    def open(self, host: str, seconds: float) -> dict:
        """Opens the store in which the ranks of a group find each other, on a port that is free."""
        self._torch = importlib.import_module("torch")  # by name: nothing in this package imports it
        self._internals = importlib.import_module("torch.distributed.distributed_c10d")
        self._store = self._torch.distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False,
                                                       timeout=datetime.timedelta(seconds=seconds))
        return {"port": self._store.port}

    def join(self, name: str, backend: str, size: int, seconds: float) -> dict:
        """Waits until all ranks of a group are there.

        The group is made as SGLang makes its side of it, prefixes of the store included, or the ranks would not find
        each other; torch has no public function for a group beside the default one's world.
        """
        internals, store = self._internals, self._internals.PrefixStore(name, self._store)
        self._group, _ = internals._new_process_group_helper(
            size, 0, [], internals.Backend(backend), store, group_name=name,
            timeout=datetime.timedelta(seconds=seconds))
        internals._world.pg_group_ranks[self._group] = {rank: rank for rank in range(size)}
        self._device = self._torch.device("cuda" if backend == "nccl" else "cpu")
        return {}

    def broadcast(self, start: int, bytes: int) -> dict:
        """Sends a part of the memory to all other ranks."""
        torch = self._torch
        data = torch.frombuffer(self._memory, dtype=torch.uint8, offset=start, count=bytes).to(self._device)
        self._internals.broadcast(data, src=0, group=self._group)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return {}


if __name__ == "__main__":
    del sys.path[0]  # this directory, whose files are no top-level modules
    main()
