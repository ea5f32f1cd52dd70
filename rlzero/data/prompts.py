"""The order in which prompts come: shuffled anew each epoch, without end, and resumable.

The order is a pure function of the problems and the seed. Grain keeps the position; the fingerprint stored next to it
keeps a position from being applied to other data, which Grain would accept without a word.

Hosts that draw together take turns in that one order: host i of n has its i-th, (i + n)-th, … prompts, so that together
they go through every epoch once, whatever its length.
"""

from collections.abc import Mapping, Sequence

import grain

from rlzero.data.problems import Problem, fingerprint


class PromptIterator:
    """Gives problems for ever, every one once an epoch of all hosts together.

    Args:
      problems: what to draw from, prepared.
      seed: of the shuffle. Every epoch has its own order.
      host: which of the hosts this is, from 0.
      hosts: how many draw together.

    Raises:
      ValueError: if there are no problems, or no such host.
    """

    def __init__(self, problems: Sequence[Problem], *, seed: int, host: int = 0, hosts: int = 1):
        if not problems:
            raise ValueError("there are no problems to draw prompts from.")
        if not 0 <= host < hosts:
            raise ValueError(f"expected a host from 0 to {hosts - 1}, got {host}.")
        self._fingerprint = fingerprint(problems, seed)
        self._num_problems, self._hosts = len(problems), hosts
        dataset = grain.MapDataset.source(list(problems)).shuffle(seed=seed % 2**32).repeat()[host::hosts]
        # The elements are ready in memory; threads would only cost.
        self._iterator = iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))

    def __iter__(self):
        return self

    def __next__(self) -> Problem:
        return next(self._iterator)

    def take(self, count: int) -> list[Problem]:
        """Returns the next `count` problems; an epoch's end may lie within."""
        return [next(self) for _ in range(count)]

    @property
    def drawn(self) -> int:
        """Problems drawn since the beginning, over all epochs and hosts, which are taken to be equally far."""
        return self._hosts * self._iterator.get_state()["next_index"]

    @property
    def epochs(self) -> float:
        """How often the data has been gone through."""
        return self.drawn / self._num_problems

    def get_state(self) -> dict[str, int | str]:
        """Returns the position, as plain JSON."""
        return {"drawn": self.drawn, "fingerprint": self._fingerprint}

    def set_state(self, state: Mapping[str, int | str]) -> None:
        """Goes to a position that `get_state` returned.

        Raises:
          ValueError: if the position belongs to other problems or another seed, or lies within a turn of the hosts.
        """
        if state["fingerprint"] != self._fingerprint:
            raise ValueError(
                "the saved position in the prompts belongs to other problems or another data seed: expected "
                f"fingerprint {self._fingerprint}, got {state['fingerprint']}. Restore the data the run began with, "
                "or begin a new run in another working directory."
            )
        turns, rest = divmod(state["drawn"], self._hosts)
        if rest:
            raise ValueError(f"{state['drawn']} prompts were drawn, which {self._hosts} hosts cannot have done in "
                             "turns; continue with a number of hosts that divides it.")
        self._iterator.set_state({"next_index": turns})
