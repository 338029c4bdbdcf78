"""A disk that a test can fill up, slow down or break: the machine's, with a switch in front.

Only brokers of `kbroker.testing` have it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence

from kbroker.faults.errors import UsageError
from kbroker.ports import Buffer, OpenMode
from kbroker.runtime.files import OPEN_FLAGS, SystemDisk, SystemFile


class DiskFaults:
    """What is wrong with a broker's disk, from now on, until `heal`."""

    def __init__(self) -> None:
        self.slow_s = 0.0
        self.code = 0

    def full(self) -> None:
        """No write finds room: ENOSPC. As Apache's, a broker whose only log directory fails ends itself."""
        self.code = errno.ENOSPC

    def broken(self) -> None:
        """Every write fails: EIO."""
        self.code = errno.EIO

    def slow(self, seconds: float = 0, *, ms: int = 0) -> None:
        """Every write and every fsync takes so much longer."""
        self.slow_s = seconds + ms / 1000
        if self.slow_s <= 0:
            raise UsageError("a slow disk takes time: write slow(seconds=0.5) or slow(ms=500)")

    def heal(self) -> None:
        """All is well again; what failed meanwhile stays failed until the broker is started again."""
        self.slow_s, self.code = 0.0, 0

    def check(self, path: str) -> None:
        """Before a write or an fsync. Raises: OSError."""
        if self.slow_s:
            time.sleep(self.slow_s)
        if self.code:
            raise OSError(self.code, os.strerror(self.code), path)

    def __repr__(self) -> str:
        words = [f"slow by {self.slow_s:g} s"] if self.slow_s else []
        return ", ".join([*words, *([errno.errorcode[self.code]] if self.code else [])]) or "well"


class SwitchedFile(SystemFile):
    """A file on such a disk."""

    __slots__ = ("_faults", "_path")

    def __init__(self, fd: int, path: str, faults: DiskFaults) -> None:
        super().__init__(fd)
        self._path = path
        self._faults = faults

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """As a plain one, or the fault."""
        self._faults.check(self._path)
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
