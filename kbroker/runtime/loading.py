"""How far the loading of the log directories is, as a person wants to hear it.

Called by the node, from the threads that load, with every `LoadProgress`. A start that takes no time says nothing. One
that does, nearly always after an unclean stop, says where it is now and then, and in the end what it was. What is shown
meanwhile is a line of the log every few seconds; the command line puts a bar there instead where it has a terminal.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kbroker.log.log_loader import LoadProgress

log = logging.getLogger("kbroker.loading")

QUIET_S = 1.0  # a directory that is loaded within this is not worth a line
LINE_S = 5.0  # from line to line

Show = Callable[["DirectoryLoad"], None]
"""Tells a person how far a directory is: called with each step, once it has taken QUIET_S; by one thread at a time."""


class DirectoryLoad:
    """How far the loading of one directory is.

    partitions: to be loaded in all; done: of them. recovered: how many were read again; bytes_read: of those. now:
    the partition that is being read again, with how much of it in per cent, or empty. seconds: since it began.
    """

    def __init__(self, path: str, began_s: float) -> None:
        self.path = path
        self.partitions = self.done = self.recovered = 0
        self.now = ""
        self.seconds = 0.0
        self._began_s = began_s
        self._bytes_before = 0  # of partitions that are done
        self._bytes_now = 0
        self._share_now = 0.0

    def report(self, progress: LoadProgress, now_s: float) -> None:
        """Take a step in."""
        self.seconds = now_s - self._began_s
        self.partitions = progress.partitions
        if progress.partitions_done > self.done:
            self.done = progress.partitions_done
            self.recovered += bool(self.now)
            self._bytes_before += self._bytes_now
            self._bytes_now, self._share_now, self.now = 0, 0.0, ""
        if progress.recovering is not None:
            partition, read = progress.recovering
            self._bytes_now = read.bytes_done
            self._share_now = read.segments_done / max(read.segments, 1)
            self.now = f"{partition} {self._share_now:.0%}"

    @property
    def bytes_read(self) -> int:
        """Bytes of records read again so far."""
        return self._bytes_before + self._bytes_now

    @property
    def is_done(self) -> bool:
        """Whether all partitions are loaded."""
        return self.done == self.partitions

    @property
    def seconds_left(self) -> float | None:
        """How long it will take, going by how long the partitions so far took; None while nothing can be said."""
        share = (self.done + self._share_now) / max(self.partitions, 1)
        return self.seconds * (1 - share) / share if share else None

    def __str__(self) -> str:
        """`/data: 3 of 50 partitions loaded, 1.2 GB read again at 250 MB/s, about 40 s left (orders-3 20%)`."""
        read = f", {in_bytes(self.bytes_read)} read again" if self.bytes_read else ""
        rate = f" at {in_bytes(self.bytes_read / self.seconds)}/s" if read and self.seconds else ""
        if self.is_done:
            return f"{self.path}: {self.partitions} partitions loaded in {self.seconds:.1f} s{read}{rate}"
        left = "" if self.seconds_left is None else f", about {in_time(self.seconds_left)} left"
        now = f" ({self.now})" if self.now else ""
        return f"{self.path}: {self.done} of {self.partitions} partitions loaded{read}{rate}{left}{now}"


def log_lines(clock: Callable[[], float] = time.monotonic) -> Show:
    """Shows it as a line of the log for each directory every LINE_S."""
    said_s: dict[str, float] = {}

    def show(load: DirectoryLoad) -> None:
        now_s = clock()
        if not load.is_done and now_s - said_s.get(load.path, -LINE_S) >= LINE_S:
            said_s[load.path] = now_s
            log.info("%s", str(load))

    return show


class Loading:
    """Takes the progress of all directories."""

    def __init__(self, show: Show | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = log_lines(clock) if show is None else show
        self._clock = clock
        self._began_s = clock()
        self._loads: dict[str, DirectoryLoad] = {}
        self._lock = threading.Lock()

    def __call__(self, progress: LoadProgress) -> None:
        """From any thread."""
        with self._lock:
            load = self._loads.get(progress.directory)
            if load is None:
                load = self._loads[progress.directory] = DirectoryLoad(progress.directory, self._began_s)
            load.report(progress, self._clock())
            if load.seconds < QUIET_S and not (load.is_done and load.recovered):
                return
            self._show(load)
            if load.is_done:
                log.info("%s", str(load))


def in_bytes(count: float) -> str:
    """A number of bytes as people say it: `1.2 GB`."""
    units = ["bytes", "KB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        del units[0]
    digits = 0 if units[0] in ("bytes", "KB") or count >= 100 else 1
    return f"{count:.{digits}f} {units[0]}"


def in_time(seconds: float) -> str:
    """A time as people say it: `40 s`, `3 min`, `2 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
