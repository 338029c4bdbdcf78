"""Time and chance in a simulated world: `Clock` moves when told to, `Random` repeats itself for the same seed."""

from __future__ import annotations

import random


class SimClock:
    """A clock that stands still until it is advanced; satisfies `kbroker.ports.Clock`."""

    __slots__ = ("_now_ms", "_wall_offset_ms")

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = wall_ms
        self._wall_offset_ms = 0

    def now_ms(self) -> int:
        """Milliseconds that never go back, from the wall clock's time when this was made."""
        return self._now_ms

    def wall_ms(self) -> int:
        """Milliseconds since 1970 in this world."""
        return self._now_ms + self._wall_offset_ms

    def now_ns(self) -> int:
        """Nanoseconds: no work takes any time here."""
        return self._now_ms * 1_000_000

    def advance(self, by_ms: int) -> None:
        """Let time pass. by_ms: >= 0."""
        assert by_ms >= 0, by_ms
        self._now_ms += by_ms

    def jump_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP would; timers do not notice."""
        self._wall_offset_ms += by_ms


class SimRandom:
    """Chance from a seed; satisfies `kbroker.ports.Random`."""

    __slots__ = ("_random",)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        """A whole number in [0, limit)."""
        assert limit >= 1, limit
        return self._random.randrange(limit)

    def token(self, size: int) -> bytes:
        """`size` bytes, the same for the same seed and the same calls before."""
        return self._random.randbytes(size)
