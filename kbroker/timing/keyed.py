"""Timers by key: what an owner of time needs to carry out "set this timer", "cancel that one".

State machines name their timers and never hold one (SetTimer and CancelTimer of groups/effects.py, and others like
them). Core keeps one of these for all of them. Nothing here reads a clock or calls anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from kbroker.timing.wheel import Timer, TimingWheel

Key = TypeVar("Key", bound=Hashable)


class KeyedTimers(Generic[Key]):
    """At most one timer a key; setting it again moves it."""

    __slots__ = ("_due", "_timers", "_wheel")

    def __init__(self, now_ms: int = 0) -> None:
        self._wheel: TimingWheel[Key] = TimingWheel(now_ms)
        self._timers: dict[Key, Timer[Key]] = {}
        self._due: deque[Timer[Key]] = deque()

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, key: Key, deadline_ms: int) -> None:
        """Have `pop_due` return `key` at or after a time, and no more at the time set before."""
        before = self._timers.get(key)
        if before is not None:
            self._wheel.cancel(before)
        self._timers[key] = self._wheel.add(deadline_ms, key)

    def cancel(self, key: Key) -> bool:
        """Forget a timer: true if there was one."""
        timer = self._timers.pop(key, None)
        if timer is None:
            return False
        self._wheel.cancel(timer)
        return True

    def next_deadline_ms(self) -> int | None:
        """When to call `pop_due` next: None without timers, the past if some have been left due."""
        return self._wheel.now_ms if self._due else self._wheel.next_deadline_ms()

    def pop_due(self, now_ms: int) -> Key | None:
        """The next key whose time has come, None when there is no more.

        One at a time, because what is done about the first may set or cancel the second: a member that is heard of in
        the same millisecond in which its session ends is not silent.
        """
        self._due.extend(self._wheel.advance(now_ms))
        while self._due:
            timer = self._due.popleft()
            if self._timers.get(timer.payload) is timer:
                del self._timers[timer.payload]
                return timer.payload
        return None
