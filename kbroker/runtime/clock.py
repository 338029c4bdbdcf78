"""Time and chance from the operating system: the real `Clock` and `Random` ports. For the composer of a broker."""

from __future__ import annotations

import os
import time


class SystemClock:
    """The machine's two clocks, satisfying `kbroker.ports.Clock`."""

    __slots__ = ("_start_ns",)

    def __init__(self) -> None:
        self._start_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Milliseconds that never go back, from the wall clock's time when this was made."""
        return (time.monotonic_ns() + self._start_ns) // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000

    def now_ns(self) -> int:
        """Nanoseconds that never go back."""
        return time.monotonic_ns()


class SystemRandom:
    """Chance that cannot be predicted, satisfying `kbroker.ports.Random`.

    What `random.SystemRandom` does, without the module: its generators and distributions take 0.2 MB.
    """

    __slots__ = ()

    def below(self, limit: int) -> int:
        """A whole number in [0, limit), all equally likely."""
        assert limit >= 1, limit
        bits = (limit - 1).bit_length()
        size = (bits + 7) // 8
        while True:  # at least half of the numbers of so many bits are below
            number = int.from_bytes(os.urandom(size), "big") >> (8 * size - bits)
            if number < limit:
                return number

    def token(self, size: int) -> bytes:
        """`size` bytes from the operating system's generator."""
        return os.urandom(size)
