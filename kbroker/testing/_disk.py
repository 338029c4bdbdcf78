"""What a test does to a broker's disk: fills it up, slows it down or breaks it."""

from __future__ import annotations

import errno

from kbroker.runtime.switched_disk import DiskSwitch
from kbroker.usage import UsageError


class DiskFaults(DiskSwitch):
    """What is wrong with a broker's disk, from now on, until `heal`."""

    def full(self, *, after_bytes: int = 0) -> None:
        """No write finds room: ENOSPC. As Apache's, a broker whose only log directory fails ends itself.

        after_bytes: how much is still written well.
        """
        self.fail(errno.ENOSPC, after_bytes)

    def broken(self, *, after_bytes: int = 0) -> None:
        """Every write fails, after so many bytes: EIO."""
        self.fail(errno.EIO, after_bytes)

    def fail(self, code: int, after_bytes: int = 0) -> None:
        """Fail with this errno, once so many bytes are written."""
        if after_bytes < 0:
            raise UsageError(f"after_bytes={after_bytes}: write 0 for at once, or how many bytes are still written")
        super().fail(code, after_bytes)

    def slow(self, seconds: float = 0, *, ms: int = 0) -> None:
        """Every write and every fsync takes so much longer."""
        self.slow_s = seconds + ms / 1000
        if self.slow_s <= 0:
            raise UsageError("a slow disk takes time: write slow(seconds=0.5) or slow(ms=500)")
