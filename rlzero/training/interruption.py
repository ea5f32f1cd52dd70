"""Ctrl-C and SIGTERM: the first asks the run to save and stop after the current step, the second ends it at once."""

import signal
import sys


class Interruption:
    """Context manager that turns the first SIGINT or SIGTERM into a request.

    The handlers that were there before come back after the first signal, so that a second one acts as usual.

    Attributes:
      signum: the signal that came, None so far.
    """

    def __init__(self):
        self.signum: int | None = None
        self._previous = {}

    def __enter__(self):
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._previous[signum] = signal.signal(signum, self._request)
        return self

    def __exit__(self, *exception):
        self._restore()

    def __bool__(self) -> bool:
        """Whether the run was asked to stop."""
        return self.signum is not None

    @property
    def exit_code(self) -> int:
        """128 + signal number, as shells report it; 0 without a signal."""
        return 0 if self.signum is None else 128 + self.signum

    def _request(self, signum, frame):
        del frame
        self.signum = signum
        self._restore()
        sys.stderr.write("\nstopping: this step is finished and saved first; once more to quit at once\n")

    def _restore(self):
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous = {}
