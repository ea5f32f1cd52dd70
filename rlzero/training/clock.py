"""Where time and memory go: seconds per phase, what XLA's compiler took of them, and the peak of memory."""

import collections
import contextlib
import resource
import sys
import time
from collections.abc import Iterator

import jax

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class Clock:
    """Adds up wall-clock seconds by phase, for the step and for the whole run, and counts compilations.

    Attributes:
      total: phase -> seconds since the clock was made (or restored).
    """

    def __init__(self):
        self.total: dict[str, float] = collections.defaultdict(float)
        self._lap: dict[str, float] = collections.defaultdict(float)
        self._compilations, self._compile_seconds = 0, 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time spent inside towards `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.total[name] += seconds
            self._lap[name] += seconds

    def lap(self) -> dict[str, tuple[float, float]]:
        """Seconds per phase since the last lap; compilations and memory of the run so far; as (sum, weight) metrics."""
        metrics = {f"time/{name}_seconds": (seconds, 1.0) for name, seconds in self._lap.items()}
        self._lap.clear()
        return metrics | peak_memory() | {"compile/programs": (float(self._compilations), 1.0),
                          "compile/seconds": (self._compile_seconds, 1.0)}

    def close(self) -> None:
        """Stops listening to the compiler."""
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    def _on_event(self, event: str, seconds: float, **details) -> None:
        del details
        if event == _COMPILE_EVENT:
            self._compilations += 1
            self._compile_seconds += seconds


def peak_memory() -> dict[str, tuple[float, float]]:
    """The most bytes this process has held so far, on the host and, where the backend tells, on its first device."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = {"memory/host_peak_bytes": (float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit), 1.0)}
    device = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in device:
        peak["memory/device_peak_bytes"] = (float(device["peak_bytes_in_use"]), 1.0)
    return peak
