"""A disk that a test can fill up, slow down or break: the machine's, with a switch in front.

Brokers of `kbroker.testing` have it, and those of `kbroker start --faults` where the file is about the disk.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence

from kbroker.faults.errors import UsageError
from kbroker.faults.file import DiskPlan
from kbroker.ports import Buffer, OpenMode
from kbroker.runtime.files import OPEN_FLAGS, SystemDisk, SystemFile


class DiskFaults:
    """What is wrong with a broker's disk, from now on, until `heal`."""

    def __init__(self) -> None:
        self.slow_s = 0.0
        self.code = 0
        self._room_bytes = 0  # before it fails; below 0: it does

    def full(self, *, after_bytes: int = 0) -> None:
        """No write finds room: ENOSPC. As Apache's, a broker whose only log directory fails ends itself.

        after_bytes: how much is still written well.
        """
        self._fail(errno.ENOSPC, after_bytes)

    def broken(self, *, after_bytes: int = 0) -> None:
        """Every write fails, after so many bytes: EIO."""
        self._fail(errno.EIO, after_bytes)

    def _fail(self, code: int, after_bytes: int) -> None:
        if after_bytes < 0:
            raise UsageError(f"after_bytes={after_bytes}: write 0 for at once, or how many bytes are still written")
        self.code, self._room_bytes = code, after_bytes if after_bytes else -1

    def follow(self, plan: DiskPlan) -> None:
        """Do what a file of faults says."""
        if plan.slow_ms:
            self.slow(ms=plan.slow_ms)
        if plan.full_after_bytes is not None:
            self.full(after_bytes=plan.full_after_bytes)
        if plan.broken_after_bytes is not None:
            self.broken(after_bytes=plan.broken_after_bytes)

    def slow(self, seconds: float = 0, *, ms: int = 0) -> None:
        """Every write and every fsync takes so much longer."""
        self.slow_s = seconds + ms / 1000
        if self.slow_s <= 0:
            raise UsageError("a slow disk takes time: write slow(seconds=0.5) or slow(ms=500)")

    def heal(self) -> None:
        """All is well again; what failed meanwhile stays failed until the broker is started again."""
        self.slow_s, self.code = 0.0, 0

    def check(self, path: str, size: int = 0) -> None:
        """Before a write of so many bytes, or an fsync. Raises: OSError."""
        if self.slow_s:
            time.sleep(self.slow_s)
        if self.code:
            if self._room_bytes < size:
                self._room_bytes = -1  # from the first failure on
            if self._room_bytes < 0:
                raise OSError(self.code, os.strerror(self.code), path)
            self._room_bytes -= size

    def __repr__(self) -> str:
        words = [f"slow by {self.slow_s:g} s"] if self.slow_s else []
        if self.code:
            later = f" after {self._room_bytes} more bytes" if self._room_bytes >= 0 else ""
            words.append(errno.errorcode[self.code] + later)
        return ", ".join(words) or "well"


class SwitchedFile(SystemFile):
    """A file on such a disk."""

    __slots__ = ("_faults", "_path")

    def __init__(self, fd: int, path: str, faults: DiskFaults) -> None:
        super().__init__(fd)
        self._path = path
        self._faults = faults

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """As a plain one, or the fault."""
        self._faults.check(self._path, sum(map(len, buffers)))
        super().write(buffers, position)

    def sync(self) -> None:
        """As a plain one, or the fault."""
        self._faults.check(self._path)
        super().sync()


class SwitchedDisk(SystemDisk):
    """The machine's disk behind a switch."""

    __slots__ = ("_faults",)

    def __init__(self, faults: DiskFaults) -> None:
        self._faults = faults

    def open(self, path: str, mode: OpenMode) -> SystemFile:
        """One open(2)."""
        return SwitchedFile(os.open(path, OPEN_FLAGS[mode], 0o644), path, self._faults)
