"""Graders that the pool is tested with; workers import them by path."""

import os
import time

from rlzero.rewards import Grade, grade

_hoard = []


def obedient(response, gold, *, mode):
    """Does what the response says, or grades it."""
    if response == "sleep":
        time.sleep(600)
    if response == "spin":
        while True:
            pass
    if response == "die":
        os._exit(7)
    if response == "eat":
        while True:
            _hoard.append(bytearray(1 << 26))
    if response == "raise":
        raise ArithmeticError("as told")
    if response == "refuse":
        return Grade(False, None, "refused")
    return grade(response, gold, mode=mode)
