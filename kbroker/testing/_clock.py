"""Time that goes on by itself, and that a test can move on by hand."""

from __future__ import annotations

from kbroker.runtime.clock import SystemClock
from kbroker.usage import UsageError


class HandClock:
    """The machine's clocks, ahead by what the test has added; satisfies `kbroker.ports.Clock`."""

    __slots__ = ("_ahead_ms", "_system")

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """As the system's."""
        return self._system.now_ms() + self._ahead_ms

    def wall_ms(self) -> int:
        """As the system's."""
        return self._system.wall_ms() + self._ahead_ms

    def now_ns(self) -> int:
        """As the system's."""
        return self._system.now_ns()

    @property
    def is_ahead(self) -> bool:
        """Whether a test has moved it."""
        return self._ahead_ms > 0

    def put_back(self) -> None:
        """To the machine's time again. Nothing runs by it meanwhile for which it must never go back."""
        self._ahead_ms = 0

    def advance(self, ms: int = 0, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Go on by so much at once. Waits for a time have to be woken. Raises: UsageError if it is negative."""
        by_ms = ms + round(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))
        if by_ms < 0:
            raise UsageError("time goes only forwards: write a positive number")
        self._ahead_ms += by_ms
