"""Rollouts ahead of training: while a step is trained, the completions of the next ones are sampled.

With `max_staleness` 0 this is the plain loop: sample, train, hand over the weights. With k > 0 a second thread samples
up to k steps ahead, so a step takes as long as the slower of sampling and training, and is trained on completions of a
policy up to k versions old. What happens to completions under way when new weights are there is `on_update`: with
"finish" the step that is being sampled is finished first, with "retract" it goes on with the new weights.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import threading
from typing import Any, Literal

from rlzero.data.prompts import PromptIterator
from rlzero.rollout.engine import Engine
from rlzero.rollout.sampler import Rollout, Sampler

_POLL = 0.5  # seconds between looks at servers that came back, while waiting for others


@dataclasses.dataclass
class _Job:
    """The sampling of one step: its future, and the state of prompts and sampler before it, once it has begun."""

    step: int
    future: concurrent.futures.Future | None = None
    before: dict[str, Any] | None = None


class Pipeline:
    """Gives a trainer the rollouts of its steps, in order, and the engine its weights."""

    def __init__(self, sampler: Sampler, engine: Engine, prompts: PromptIterator, *, steps: int,
                 max_staleness: int = 0, on_update: Literal["finish", "retract"] = "finish"):
        """Makes a pipeline in which nothing is under way.

        Args:
          sampler: samples one step; used by one thread at a time.
          engine: gets the weights.
          prompts: what the sampler draws from.
          steps: of the run; nothing is sampled beyond them.
          max_staleness: k, in policy versions.
          on_update: see above; without effect for k = 0.
        """
        self._sampler, self._engine, self._prompts = sampler, engine, prompts
        self._steps, self._ahead, self._finish = steps, max_staleness, on_update == "finish"
        self._jobs: collections.deque[_Job] = collections.deque()
        self._version = 0
        self._unstarted = 0  # the first step whose sampling was not begun ahead
        self._state = threading.Lock()  # over what a checkpoint reads
        self._sampling = threading.Lock()  # held while a step is sampled
        self._worker = concurrent.futures.ThreadPoolExecutor(1, "rollouts") if max_staleness else None

    def next(self, step: int) -> Rollout:
        """The rollout of `step`; steps are asked for one after the other.

        Raises:
          RolloutError, RuntimeError: see `Sampler.collect`. The step can be asked for again, from the same state, by a
            pipeline that was given `get_state`.
        """
        if self._worker is None:
            job = _Job(step)
            self._jobs.append(job)
            rollout = self._collect(job)
        else:
            self._start(step, step)
            self._wait(self._jobs[0].future)
            rollout = self._jobs[0].future.result()
        with self._state:
            self._jobs.popleft()
        if self._worker is not None:
            self._start(step + 1, step + self._ahead)
        return rollout

    def publish(self, params: Any, version: int) -> None:
        """Makes `params` the weights of what is sampled from now on."""
        with contextlib.ExitStack() as stack:
            if self._worker is not None and self._finish:
                while not self._sampling.acquire(timeout=_POLL):
                    self._readmit()
                stack.callback(self._sampling.release)
            self._engine.update_weights(params, version)
            self._version = version

    def get_state(self) -> dict[str, Any]:
        """State of prompts and sampler from which all steps that `next` has not returned are sampled again."""
        with self._state:
            begun = [job for job in self._jobs if job.before is not None]
            return begun[0].before if begun else self._snapshot()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores what `get_state` returned; before the first `next`."""
        self._prompts.set_state(state["prompts"])
        self._sampler.set_state(state["carried"])

    def close(self) -> None:
        """Drops what is being sampled. Close the engine first, so that it ends at once."""
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def _start(self, first, last):
        """Has the steps from `first` to `last` sampled, one after the other, those that are not yet."""
        for step in range(max(first, self._unstarted), min(last + 1, self._steps)):
            job = _Job(step)
            with self._state:
                self._jobs.append(job)
            job.future = self._worker.submit(self._collect, job)
            self._unstarted = step + 1

    def _collect(self, job):
        with self._sampling:
            with self._state:
                job.before = self._snapshot()
            return self._sampler.collect(job.step, self._version)

    def _snapshot(self):
        return {"prompts": self._prompts.get_state(), "carried": self._sampler.get_state()}

    def _wait(self, future):
        while not concurrent.futures.wait([future], timeout=_POLL).done:
            self._readmit()

    def _readmit(self):
        """The parameters stand still while the trainer waits here, so servers that came back can have them."""
        self._engine.readmit()
