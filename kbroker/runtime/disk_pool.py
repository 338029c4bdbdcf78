"""Threads for what may wait for a disk: fsync, cold reads, recovery, compression of cold data.

Made by `node.py`, used by `server.py` and by whoever serves the core's disk effects. A job is a plain function that
touches nothing but files and its own values; its outcome comes back as a call on the loop's thread. Never reads or
writes the core's state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from kbroker.runtime.loop import Loop

THREADS = 4  # enough that a slow fsync of one directory does not hold up cold reads of another


class DiskPool:
    """A few threads, started on first use."""

    def __init__(self, loop: Loop, threads: int = THREADS) -> None:
        self._loop = loop
        self._count = threads
        self._threads: ThreadPoolExecutor | None = None

    def run(self, job: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run `job` on a thread, then `done` with its error, or None, on the loop."""

        def finished(future: Future[None]) -> None:
            if not future.cancelled():  # by `close`: nobody turns the loop any more
                self._loop.call_from_thread(partial(done, future.exception()))

        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor  # a broker that starts has nothing to do for them yet

            self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="kbroker-disk")
        self._threads.submit(job).add_done_callback(finished)

    def close(self) -> None:
        """Wait for what is running; start nothing more."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
