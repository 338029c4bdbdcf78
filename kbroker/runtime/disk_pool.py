"""Threads for what may wait for a disk: fsync, cold reads, recovery, compression of cold data.

Made by `main.py`, used by `server.py` and by whoever serves the core's disk effects. A job is a plain function that
touches nothing but files and its own values; its outcome comes back as a call on the loop's thread. Never reads or
writes the core's state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

THREADS = 4  # enough that a slow fsync of one directory does not hold up cold reads of another


class DiskPool:
    """A few threads, started on first use."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = THREADS) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kbroker-disk")

    def run(self, job: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run `job` on a thread, then `done` with its error, or None, on the loop."""

        def finished(future: Future[None]) -> None:
            self._loop.call_soon_threadsafe(done, future.exception())

        self._threads.submit(job).add_done_callback(finished)

    def close(self) -> None:
        """Wait for what is running; start nothing more."""
        self._threads.shutdown(wait=True, cancel_futures=True)
