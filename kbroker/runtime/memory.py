"""Memory goes back to the system after a burst, and the collector does not stop the broker in the middle of one.

Used by `main.py`, for both concern the process; those who receive have their buffers from here. A large request becomes
a million objects for a moment, and to look through all of them takes the collector 150 ms, several times while they
come to be. They go as they came, without it: what is left to it are rare cycles. So it looks at young objects only, and
at all of them when the process has grown and nothing is under way. What it and others have freed is full of holes,
which the C library keeps until it is told. Python's own allocator cannot be told, so what comes to be in slices is not
made there.
"""

from __future__ import annotations

import gc
import mmap
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kbroker.runtime.platform import give_back_memory

if TYPE_CHECKING:
    from kbroker.runtime.loop import Loop

LOOK_S = 10.0
GROWN_BYTES = 8 << 20
BURST_BYTES = 4 << 20
MOST_LOOKS_BUSY = 60  # ten minutes: then even what is under way has to wait for once
LAST_PAUSE = 32  # looks from one giving back to the last one
NEVER = 1 << 30


class Housekeeping:
    """Looks now and then whether the process has grown, and tidies up once nothing is under way.

    What held the memory may go only later, and the process does not grow by that: it gives back after 1, 2, 4... looks
    more, as long as it is larger than it was.

    A burst is what makes the process grow by BURST_BYTES; what comes then is made within `outside`, until it grows no
    more. The collector's second look at young objects says when to see: so many thousands have stayed.

    is_busy: whether something is. resident: the process's memory in bytes. collect: finds cycles. trim: gives back.
    outside: a context in which objects are made where they keep little of what was around them.
    """

    def __init__(
        self,
        loop: Loop,
        is_busy: Callable[[], bool],
        resident: Callable[[], int],
        collect: Callable[[], object],
        trim: Callable[[], None],
        outside: AbstractContextManager[None],
    ) -> None:
        self._loop = loop
        self._is_busy = is_busy
        self._resident = resident
        self._collect = collect
        self._trim = trim
        self._outside = outside
        self._is_burst = False
        self._at_rest_bytes = self._least_bytes = resident()  # ever, and since it tidied up
        self._last_bytes = self._least_bytes  # at the last look
        self._busy = 0  # looks in a row at which there was something to do, and something was under way
        self._pause = LAST_PAUSE + 1  # looks between two givings back; none after the last
        self._looks = 0  # since memory was given back
        self._timer = loop.timer(self.check)

    def start(self) -> None:
        """From now on all objects are looked at by `look` alone."""
        young, old, _ = gc.get_threshold()
        gc.set_threshold(young, old, NEVER)
        gc.callbacks.append(self._collected)
        self._timer.set(LOOK_S)

    def stop(self) -> None:
        """Leave the process as it was, but for the thresholds."""
        gc.callbacks.remove(self._collected)
        self._timer.cancel()
        self._end_burst()

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 1 and not self._is_burst:
            self._loop.call_soon(self.notice)  # this may be in the middle of anything

    def notice(self) -> None:
        """Thousands of objects have come and stayed: it may be a burst."""
        if not self._is_burst and self._resident() > self._least_bytes + BURST_BYTES:
            self._outside.__enter__()
            self._is_burst = True

    def check(self) -> None:
        """Tidy up if the process has grown since the last time; give back what has become free since."""
        self._timer.set(LOOK_S)
        resident = self._resident()
        self._least_bytes = min(self._least_bytes, resident)
        self._at_rest_bytes = min(self._at_rest_bytes, resident)
        self._looks += 1
        has_grown = resident > self._least_bytes + GROWN_BYTES
        grows = self._is_burst and resident > self._last_bytes + GROWN_BYTES
        self._last_bytes = resident
        if not has_grown and not self._is_burst and not self._is_due(resident):
            self._busy = 0
        elif (grows or self._is_busy()) and self._busy < MOST_LOOKS_BUSY:
            self._busy += 1
        else:
            self._tidy(has_grown)

    def _is_due(self, resident: int) -> bool:
        return self._pause <= LAST_PAUSE and self._looks >= self._pause and resident > self._at_rest_bytes + GROWN_BYTES

    def _tidy(self, has_grown: bool) -> None:
        if has_grown:
            self._collect()
        self._trim()
        self._least_bytes = self._resident()
        self._pause = 1 if has_grown else 2 * self._pause
        self._busy = self._looks = 0
        self._end_burst()

    def _end_burst(self) -> None:
        if self._is_burst:
            self._is_burst = False
            self._outside.__exit__(None, None, None)


def empty_buffer(size: int) -> memoryview:
    """`size` bytes to write into, zeros at first: a page takes no memory before something is written to it."""
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def trim() -> None:
    """Give back what is free; on musl and BSD only as much as the C library does by itself.

    The interpreter's cache of methods holds the names that were looked up last, and each of a burst keeps a page.
    """
    forget = getattr(sys, "_clear_type_cache", None)  # 3.13's _clear_internal_caches leaves it as it is
    if forget is not None:
        forget()
    give_back_memory()


class OutsideArenas:
    """A context in which Python's objects are made by the C library's malloc.

    CPython's allocator keeps small objects in arenas of a megabyte, and gives one back when nothing is left in it: 350
    objects that outlived a burst kept 42. Its `free` and `realloc` take what is the C library's, too, and so an object
    may go at any time, in the context or out of it. Nothing happens where it is not CPython's allocator that is used,
    on a Python without the GIL, or where a tool watches it (PYTHONMALLOC, tracemalloc): then memory and objects are not
    served by the same functions, or by functions with a context. It concerns all threads; the interpreter's lock is
    held at each change. One within another changes nothing.
    """

    def __init__(self) -> None:
        self._set: Callable[[bool], None] | None = None
        self._depth = 0

    def __enter__(self) -> None:
        if self._set is None:
            self._set = _allocators()
        self._depth += 1
        if self._depth == 1:
            self._set(True)

    def __exit__(self, *_: object) -> None:
        assert self._set is not None
        self._depth -= 1
        if not self._depth:
            self._set(False)


def _allocators() -> Callable[[bool], None]:
    """What has objects made outside of arenas (True), or as ever."""
    if sys.implementation.name != "cpython" or "t" in sys.abiflags:  # without the GIL, where an object lies counts
        return lambda _: None
    import ctypes

    class Allocator(ctypes.Structure):  # PyMemAllocatorEx
        _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")]

    raw, memory, objects = Allocator(), Allocator(), Allocator()
    for domain, allocator in enumerate((raw, memory, objects)):
        ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(allocator))
    is_pymalloc = bytes(memory) == bytes(objects) != bytes(raw) and not objects.ctx and not raw.ctx
    if not is_pymalloc:
        return lambda _: None
    outside = Allocator(None, raw.malloc, raw.calloc, objects.realloc, objects.free)
    put, ours, usual = ctypes.pythonapi.PyMem_SetAllocator, ctypes.byref(outside), ctypes.byref(objects)

    def put_both(is_outside: bool) -> None:
        which = ours if is_outside else usual
        put(1, which)
        put(2, which)

    return put_both
