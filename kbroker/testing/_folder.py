"""Where the brokers of a test keep their data: in memory, as a folder of a file system that is memory, or on disk.

A folder of our own making is removed when its brokers are closed. If the process is killed it stays, and the next
one that makes such a folder removes it: every folder in use holds a lock, which dies with its process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from kbroker.runtime.files import SystemLock
from kbroker.runtime.platform import MEMORY_FOLDER
from kbroker.usage import UsageError

MEMORY = Path(MEMORY_FOLDER) if MEMORY_FOLDER else None  # a file system in memory, on Linux
LEAST_FREE_BYTES = 1 << 30  # containers often have 64 MB there: a test that writes more would find the disk full
PREFIX = "kbroker-testing-"
MAKING = "kbroker-making-"
LOCK = ".lock"


class Folder:
    """A folder for the data of one or more brokers. path: absolute."""

    def __init__(self, given: str | os.PathLike[str] | None = None) -> None:
        """given: kept as it is, made if missing; None: a fresh one in memory, or on disk where there is little.

        Raises: UsageError: the one given cannot be a folder.
        """
        self._lock: SystemLock | None = None
        if given is not None:
            self.path = Path(given).absolute()
            if "," in str(self.path):
                raise UsageError(f"data={self.path}: log.dirs takes a comma for the end of a path; name another folder")
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"data={self.path}: {error.strerror}; name another folder") from None
            return
        home = _home()
        _sweep(home)
        made = Path(tempfile.mkdtemp(prefix=f"{MAKING}{os.getpid()}-", dir=home))
        self._lock = SystemLock(str(made / LOCK))
        self.path = made.rename(home / made.name.replace(MAKING, PREFIX))  # from now on others see it, and it is locked

    def close(self) -> None:
        """Remove it, if it is ours; idempotent."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            self._lock = None


def _home() -> Path:
    """Memory if there is enough of it, else where temporary files go."""
    if MEMORY is not None:
        with suppress(OSError):
            volume = os.statvfs(MEMORY)
            if volume.f_bavail * volume.f_frsize >= LEAST_FREE_BYTES and os.access(MEMORY, os.W_OK):
                return MEMORY
    return Path(tempfile.gettempdir())


def _sweep(home: Path) -> None:
    """Remove what killed processes left behind."""
    for left in home.glob(f"{PREFIX}*"):
        try:
            lock = SystemLock(str(left / LOCK))
        except OSError:
            continue  # in use, or another user's
        shutil.rmtree(left, ignore_errors=True)
        lock.release()
