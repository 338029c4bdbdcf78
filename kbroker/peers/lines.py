"""All lines of one broker: the part of the port `Peers` that needs no network.

A subclass says how to connect (`dial`) and wakes up when `next_deadline_ms` has come (`rewound`). What became of
requests is gathered here and posted when no caller is inside `send` any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.peers.line import Line, Link
from kbroker.ports import PeerFaultKind

if TYPE_CHECKING:
    from kbroker.ports import FlatRequest, PeerAddress, PeerEvent
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
        self.is_closed = False

    # -- the port

    def join(self, cluster_id: str) -> None:
        """The cluster whose brokers may be spoken to."""
        self._cluster_id = cluster_id

    def send(
        self,
        broker_id: int,
        address: PeerAddress,
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
        if line is not None and line.address != address:
            line.fail(PeerFaultKind.RESET, f"it is at {address.host}:{address.port} now", now_ms)
            line = None
        if line is None:
            client_id = f"{self._name}-{purpose}"
            line = Line(broker_id, address, client_id, self._cluster_id, self.dial, self._told)
            self._lines[broker_id, purpose] = line
        line.send(request, version, token, timeout_ms, now_ms)
        if self._events and not self._is_posting:
            self.soon(self.settle)
        self.rewound()

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
        """Begin a connection to `line.address`; tell the line, later, what comes of it."""
        raise NotImplementedError

    def soon(self, what: Callable[[], None]) -> None:
        """Call this when the present step is over."""
        raise NotImplementedError

    def rewound(self) -> None:
        """`next_deadline_ms` may be another one."""
        raise NotImplementedError

    def expire(self) -> None:
        """Time has moved on."""
        now_ms = self.now_ms()
        for line in list(self._lines.values()):
            line.expire(now_ms)
        self.settle()

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next."""
        deadlines = (line.next_deadline_ms() for line in self._lines.values())
        return min((each for each in deadlines if each is not None), default=None)

    def settle(self) -> None:
        """After something has happened to a line: post what became of requests."""
        if self._is_posting:
            return
        self._is_posting = True
        try:
            while self._events:
                line, event = self._events.popleft()
                if not line.is_dropped:
                    self._post(event)
        finally:
            self._is_posting = False
        self.rewound()
