"""What clients have asked of a broker, newest last: for tests to assert on, and for the report of a failing one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from protocol.errors import ErrorCode

MOST_REQUESTS = 10_000
MOST_BYTES = 32 << 20  # of bodies that are kept; those of the oldest requests are let go


class Seen:
    """One request.

    api, version, client_id; body: the request itself, None if that was long ago. at_ms: the broker's wall clock.
    topics, groups: what it names; a fetch names what its session remembers, too. fault: what was done to it, in the
    words of the script, or empty. errors: in its answer, without NONE. answered: whether that has been given.
    """

    __slots__ = (
        "answered",
        "api",
        "at_ms",
        "body",
        "client_id",
        "errors",
        "fault",
        "groups",
        "size",
        "topics",
        "version",
    )

    def __init__(
        self,
        api: str,
        version: int,
        client_id: str,
        body: Any,
        size: int,
        at_ms: int,
        topics: set[str],
        groups: set[str],
    ) -> None:
        self.api = api
        self.version = version
        self.client_id = client_id
        self.body = body
        self.size = size
        self.at_ms = at_ms
        self.topics = topics
        self.groups = groups
        self.fault = ""
        self.errors: tuple[ErrorCode, ...] = ()
        self.answered = False

    def __repr__(self) -> str:
        about = " ".join([*sorted(self.topics), *sorted(self.groups)])
        words = [f"{self.api} v{self.version} of {self.client_id!r}"]
        if about:
            words.append(f"({about})")
        if self.errors:
            words.append(f"-> {', '.join(sorted({each.name for each in self.errors}))}")
        elif not self.answered:
            words.append("-> not answered")
        if self.fault:
            words.append(f"[{self.fault}]")
        return " ".join(words)


class History:
    """The last requests."""

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque(maxlen=MOST_REQUESTS)
        self._bodies: deque[Seen] = deque()
        self._bytes = 0

    def add(self, seen: Seen) -> None:
        """A request has come."""
        self._seen.append(seen)
        self._bodies.append(seen)
        self._bytes += seen.size
        while self._bytes > MOST_BYTES and len(self._bodies) > 1:
            oldest = self._bodies.popleft()
            self._bytes -= oldest.size
            oldest.body = None

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()
        self._bodies.clear()
        self._bytes = 0

    def __iter__(self) -> Iterator[Seen]:
        return iter(tuple(self._seen))

    def __len__(self) -> int:
        return len(self._seen)
