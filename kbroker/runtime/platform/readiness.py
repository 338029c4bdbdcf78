"""What tells the loop which descriptors are ready, where there is no epoll: kqueue(2) of macOS and BSD, or poll(2).

Both are a `Readiness`, and tests/contracts/test_readiness.py asks them the same questions as epoll. Kqueue is written
from the manuals of FreeBSD and macOS and from Python's documentation, and has only been asked with a fake of its calls.
"""

from __future__ import annotations

import math
import select
from typing import Any

READABLE, WRITABLE = select.POLLIN, select.POLLOUT


class PosixPoll:
    """poll(2), which is given all descriptors at each wait."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._first = 0  # where to begin with what is ready, if it is more than was asked for

    def register(self, fd: int, events: int, /) -> None:
        """Whether or not the number was another descriptor's before."""
        self._poll.register(fd, events)

    def modify(self, fd: int, events: int, /) -> None:
        """One that is registered."""
        self._poll.modify(fd, events)

    def unregister(self, fd: int, /) -> None:
        """One that is registered."""
        self._poll.unregister(fd)

    def poll(self, timeout_s: float | None, most: int, /) -> list[tuple[int, int]]:
        """As with epoll, those that were not told this time are the first ones the next time."""
        ready = []
        for fd, event in self._poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)):
            if event & select.POLLNVAL:  # it was closed, and would be told without end
                self._poll.unregister(fd)
            else:
                ready.append((fd, event))
        if len(ready) > most:
            first = self._first % len(ready)
            self._first = first + most
            ready = (ready[first:] + ready[:first])[:most]
        return ready

    def close(self) -> None:
        """There is nothing to give back."""


class Kqueue:
    """kqueue(2): a filter for each event of a descriptor.

    A filter is told again as long as it holds, unless it is told otherwise, and goes with the descriptor when that is
    closed: as in epoll. system: has kqueue, kevent and their constants.
    """

    def __init__(self, system: Any = select) -> None:
        self._kqueue = system.kqueue()
        self._kevent = system.kevent
        self._add, self._delete = system.KQ_EV_ADD, system.KQ_EV_DELETE
        self._filters = ((READABLE, system.KQ_FILTER_READ), (WRITABLE, system.KQ_FILTER_WRITE))
        self._event_of = {number: event for event, number in self._filters}
        self._asked: dict[int, int] = {}  # events, by descriptor

    def register(self, fd: int, events: int, /) -> None:
        """What was asked of another descriptor with this number has gone with it."""
        self._asked[fd] = 0
        self.modify(fd, events)

    def modify(self, fd: int, events: int, /) -> None:
        """Add the filters that are new, and take away those that are not wanted any more."""
        changed = self._asked[fd] ^ events
        changes = [
            self._kevent(fd, number, self._add if events & event else self._delete)
            for event, number in self._filters
            if changed & event
        ]
        self._kqueue.control(changes, 0, 0)
        self._asked[fd] = events

    def unregister(self, fd: int, /) -> None:
        """Take away its filters."""
        self.modify(fd, 0)
        del self._asked[fd]

    def poll(self, timeout_s: float | None, most: int, /) -> list[tuple[int, int]]:
        """An end or an error is told by the filter that was asked for, and what is called then meets it.

        A descriptor of which both events hold comes twice.
        """
        return [(each.ident, self._event_of[each.filter]) for each in self._kqueue.control(None, most, timeout_s)]

    def close(self) -> None:
        """Give the queue back."""
        self._kqueue.close()
