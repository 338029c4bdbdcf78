"""A stand-in for the part of Python's `select` that macOS and BSD have: kqueue, kevent and their constants.

It keeps filters as kqueue(2) says: one for each descriptor and event, level-triggered, gone with the descriptor; what
is taken away has to be there. What is ready, poll(2) tells it.
"""

from __future__ import annotations

import errno
import math
import os
import select
from collections.abc import Sequence
from typing import NamedTuple

KQ_EV_ADD, KQ_EV_DELETE = 1, 2
KQ_FILTER_READ, KQ_FILTER_WRITE = -1, -2

_POLLED = {KQ_FILTER_READ: select.POLLIN, KQ_FILTER_WRITE: select.POLLOUT}
_ENDED = select.POLLERR | select.POLLHUP


class kevent(NamedTuple):  # noqa: N801 - its name in select
    """A change, or what has come up."""

    ident: int
    filter: int
    flags: int = KQ_EV_ADD


class kqueue:  # noqa: N801
    """One queue."""

    def __init__(self) -> None:
        self._filters: dict[tuple[int, int], tuple[int, int]] = {}  # and which file they are of
        self._first = 0

    def control(self, changes: Sequence[kevent] | None, most: int, timeout: float | None = None) -> list[kevent]:
        """Apply changes, then wait. Raises: OSError of a change that cannot be."""
        for ident, number, flags in changes or ():
            if flags == KQ_EV_ADD:
                self._filters[ident, number] = _file_of(ident)
            elif self._filters.pop((ident, number), None) != _file_of(ident):
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not most:
            return []
        for key, file in list(self._filters.items()):
            try:
                is_there = _file_of(key[0]) == file
            except OSError:
                is_there = False
            if not is_there:
                del self._filters[key]
        poll = select.poll()
        for ident in {ident for ident, _ in self._filters}:
            poll.register(ident, sum(_POLLED[number] for each, number in self._filters if each == ident))
        ready = [
            kevent(ident, number)
            for ident, events in poll.poll(None if timeout is None else math.ceil(timeout * 1000))
            for number, event in _POLLED.items()
            if (ident, number) in self._filters and events & (event | _ENDED)
        ]
        if len(ready) > most:
            first = self._first % len(ready)
            self._first = first + most
            ready = (ready[first:] + ready[:first])[:most]
        return ready

    def close(self) -> None:
        """No more."""
        self._filters.clear()


def _file_of(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
