"""Memory goes back to the system after a burst, and the collector does not stop everybody in the middle of one.

Used by `main.py`, for both concern the process. A large request becomes a million objects for a moment, and to look
through all of them takes the collector 150 ms, several times while they come to be. They go as they came, without it:
what is left to it are rare cycles. So it looks at young objects only, and at all of them when the process has grown and
nothing is under way. What it and others have freed is full of holes, which the C library keeps until it is told.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.runtime.loop import Loop

LOOK_S = 10.0
GROWN_BYTES = 8 << 20
MOST_LOOKS_BUSY = 60  # ten minutes: then even what is under way has to wait for once
NEVER = 1 << 30
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Housekeeping:
    """Looks now and then whether the process has grown, and tidies up once nothing is under way.

    is_busy: whether something is. resident: the process's memory in bytes. tidy: collects, and gives back.
    """

    def __init__(
        self, loop: Loop, is_busy: Callable[[], bool], resident: Callable[[], int], tidy: Callable[[], None]
    ) -> None:
        self._is_busy = is_busy
        self._resident = resident
        self._tidy = tidy
        self._least_bytes = resident()
        self._busy = 0  # looks in a row at which it had grown, and something was under way
        self._timer = loop.timer(self.look)

    def start(self) -> None:
        """From now on all objects are looked at by `look` alone."""
        young, old, _ = gc.get_threshold()
        gc.set_threshold(young, old, NEVER)
        self._timer.set(LOOK_S)

    def look(self) -> None:
        """Tidy up if the process has grown since the last time."""
        self._timer.set(LOOK_S)
        resident = self._resident()
        self._least_bytes = min(self._least_bytes, resident)
        if resident <= self._least_bytes + GROWN_BYTES:
            self._busy = 0
        elif self._is_busy() and self._busy < MOST_LOOKS_BUSY:
            self._busy += 1
        else:
            self._busy = 0
            self._tidy()
            self._least_bytes = self._resident()


def resident_bytes() -> int:
    """The process's memory, with the pages of files that it has mapped."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def collect_and_trim() -> None:
    """Find cycles, and give back what is free; without glibc only as much as the C library does by itself."""
    import ctypes  # only a broker that has grown pays for loading it

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
