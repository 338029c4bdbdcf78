"""A disk that fills up, slows down or breaks on purpose: the real one, with a switch in front.

Brokers of `kbroker.testing` have it, and those of `kbroker start --faults` where the file is about the disk. A write or
fsync that fails has done nothing.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence

from kbroker.ports import Buffer, OpenMode
from kbroker.runtime.files import OPEN_FLAGS, SystemDisk, SystemFile


class DiskSwitch:
    """What is wrong with a disk, from now on, until `heal`. slow_s: each write and fsync takes so much longer.

    code: the errno of writes and fsyncs, 0 while they succeed, or succeed yet.
    """

    def __init__(self) -> None:
        self.slow_s = 0.0
        self.code = 0
        self._room_bytes = 0  # before it fails; below 0: it does

    def fail(self, code: int, after_bytes: int = 0) -> None:
        """Fail with this errno, once so many bytes are written."""
        self.code, self._room_bytes = code, after_bytes if after_bytes else -1

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

    __slots__ = ("_path", "_switch")

    def __init__(self, fd: int, path: str, switch: DiskSwitch) -> None:
        super().__init__(fd)
        self._path = path
        self._switch = switch

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """As a plain one, or the fault."""
        self._switch.check(self._path, sum(map(len, buffers)))
        super().write(buffers, position)

    def sync(self) -> None:
        """As a plain one, or the fault."""
        self._switch.check(self._path)
        super().sync()


class SwitchedDisk(SystemDisk):
    """The machine's disk behind a switch."""

    __slots__ = ("_switch",)

    def __init__(self, switch: DiskSwitch) -> None:
        self._switch = switch

    def open(self, path: str, mode: OpenMode) -> SystemFile:
        """One open(2)."""
        return SwitchedFile(os.open(path, OPEN_FLAGS[mode], 0o644), path, self._switch)
