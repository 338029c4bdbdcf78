"""All lines of one broker: the part of the port `Peers` that needs no network.

A subclass says how to connect (`dial`) and calls `expire` when it was told to (`wake_at`). What became of requests is
gathered here and posted when no caller is inside `send` any more.

A request that is answered in time leaves its wake-up behind: the next one on the line is due later, and the look in
vain that comes of it, once in a time-out, costs less than a timer set anew by each request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.peers.line import Line, Link
from kbroker.ports import PeerFaultKind

if TYPE_CHECKING:
    from kbroker.ports import Endpoint, FlatRequest, PeerEvent
    from protocol.message import Message


class Lines:
    """Lines by broker and purpose. name: of this broker, told in client ids. post: takes events, in order."""

    def __init__(self, name: str, now_ms: Callable[[], int], post: Callable[[PeerEvent], None]) -> None:
        self.now_ms = now_ms
        self._name = name
        self._post = post
        self._cluster_id = ""
        self._lines: dict[tuple[int, str], Line] = {}
        self._events: deque[tuple[Line, PeerEvent]] = deque()
        self._is_posting = False
        self._wake_at_ms: int | None = None
        self.is_closed = False

    # -- the port

    def join(self, cluster_id: str) -> None:
        """The cluster whose brokers may be spoken to."""
        self._cluster_id = cluster_id

    def send(
        self,
        broker_id: int,
        endpoint: Endpoint,
        purpose: str,
        request: Message | FlatRequest,
        version: int,
        token: object,
        timeout_ms: int,
    ) -> None:
        """Ask a broker something."""
        assert self._cluster_id, "no cluster was joined"
        assert not self.is_closed, "the lines are closed"
        now_ms = self.now_ms()
        line = self._lines.get((broker_id, purpose))
        if line is not None and line.endpoint != endpoint:
            line.fail(PeerFaultKind.RESET, f"it is at {endpoint.host}:{endpoint.port} now", now_ms)
            line = None
        if line is None:
            client_id = f"{self._name}-{purpose}"
            line = Line(broker_id, endpoint, client_id, self._cluster_id, self.dial, self._told)
            self._lines[broker_id, purpose] = line
        line.send(request, version, token, timeout_ms, now_ms)
        if self._events and not self._is_posting:
            self.soon(self.settle)
        self._rewind(line)

    def drop(self, broker_id: int, purpose: str) -> None:
        """Forget a line and what is on it."""
        line = self._lines.pop((broker_id, purpose), None)
        if line is not None:
            line.drop()

    def close(self) -> None:
        """Drop every line."""
        self.is_closed = True
        for line in self._lines.values():
            line.drop()
        self._lines.clear()
        self._events.clear()

    def _told(self, line: Line, event: PeerEvent) -> None:
        self._events.append((line, event))

    # -- for whoever connects

    def dial(self, line: Line) -> Link:
        """Begin a connection to `line.endpoint`; tell the line, later, what comes of it."""
        raise NotImplementedError

    def soon(self, what: Callable[[], None]) -> None:
        """Call this when the present step is over."""
        raise NotImplementedError

    def wake_at(self, deadline_ms: int | None) -> None:
        """Call `expire` then, and not when it was said before; None: not at all."""
        raise NotImplementedError

    def _rewind(self, line: Line | None) -> None:
        """Something has happened to this line, or to any: wake up no later than the first that is due."""
        if line is not None:
            deadline_ms, wake_at_ms = line.next_deadline_ms(), self._wake_at_ms
            if deadline_ms is None or (wake_at_ms is not None and wake_at_ms <= deadline_ms):
                return
        else:
            deadline_ms = self.next_deadline_ms()
            if deadline_ms == self._wake_at_ms:
                return
        self._wake_at_ms = deadline_ms
        self.wake_at(deadline_ms)

    def expire(self) -> None:
        """The time has come that `wake_at` was told."""
        self._wake_at_ms = None
        now_ms = self.now_ms()
        for line in list(self._lines.values()):
            line.expire(now_ms)
        self.settle()

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next."""
        deadlines = (line.next_deadline_ms() for line in self._lines.values())
        return min((each for each in deadlines if each is not None), default=None)

    def settle(self, line: Line | None = None) -> None:
        """After something has happened to a line, or to any: post what became of requests."""
        if self._is_posting:
            self._rewind(line)
            return
        self._is_posting = True
        try:
            while self._events:
                told, event = self._events.popleft()
                if not told.is_dropped:
                    self._post(event)
        finally:
            self._is_posting = False
        self._rewind(line)
