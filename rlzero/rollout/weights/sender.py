"""The child process of the `distributed` transport: rank 0 of a torch process group with the servers.

JAX and torch do not meet: this file runs by itself, in an interpreter that has torch, and takes orders from its input.
An order is a line of JSON, `{"op": "join", …}` or `{"op": "broadcast", "bytes": n}`, the latter followed by n bytes. The
answer is a line of JSON, `{"ok": true}` or `{"error": "…"}`. It ends when its input does.
"""

import datetime
import importlib
import json
import sys


def main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever torch prints must not look like an answer
    group = None
    while line := sys.stdin.buffer.readline():
        order = json.loads(line)
        try:
            if order["op"] == "join":
                group = join(order)
            else:
                broadcast(group, sys.stdin.buffer.read(order["bytes"]))
            answer = {"ok": True}
        except (ImportError, RuntimeError, ValueError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def join(order: dict):
    """Opens the store that the servers connect to, and waits until all are in the group.

    The store's prefix and the name of the group are those that SGLang's side uses, or the ranks would not find each
    other.
    """
    torch = importlib.import_module("torch")  # by name: nothing in this package imports it
    distributed = importlib.import_module("torch.distributed")
    internals = importlib.import_module("torch.distributed.distributed_c10d")
    timeout = datetime.timedelta(seconds=order["seconds"])
    store = distributed.TCPStore(order["host"], order["port"], order["world_size"], is_master=True, timeout=timeout,
                                 wait_for_workers=False)
    group, _ = internals._new_process_group_helper(
        order["world_size"], 0, [], internals.Backend(order["backend"]),
        distributed.PrefixStore(order["group"], store), group_name=order["group"], timeout=timeout)
    internals._world.pg_group_ranks[group] = {rank: rank for rank in range(order["world_size"])}
    return {"group": group, "store": store, "device": torch.device("cuda" if order["backend"] == "nccl" else "cpu")}


def broadcast(joined: dict, data: bytes) -> None:
    """Sends bytes from here, rank 0, to all servers."""
    torch = importlib.import_module("torch")
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(joined["device"])
    importlib.import_module("torch.distributed").broadcast(tensor, src=0, group=joined["group"])


if __name__ == "__main__":
    main()
