"""What a log asks to have done elsewhere: making files durable, and taking them away.

Values made by the log's thread, run on the disk pool (or at once, in a test), reported back to the log's thread. A job
holds everything it needs; while it runs it touches no log. Its `run` raises OSError, which takes the log directory
offline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.log.checkpoints import replace_file
from kbroker.log.names import LEADER_EPOCHS
from kbroker.ports import Disk
from protocol.namedtuple import NamedTuple
from protocol.records import crc32c

if TYPE_CHECKING:
    from kbroker.log.folder import Folder


class FlushJob:
    """Make everything below `offset` durable: files, names in the folder, leader epochs.

    `run` on any thread, then `Log.flushed(job)` on the log's own, which moves the recovery point. Files are named and
    not held: there may be thousands, and each is opened only while it is synced. One that is gone has been renamed
    meanwhile, alone or with its folder, for it is being deleted: there is nothing to make durable.
    """

    __slots__ = (
        "_disk",
        "_epochs_text",
        "_folder",
        "_names_changed",
        "_paths",
        "epochs_checksum",
        "epochs_version",
        "offset",
        "truncations",
    )

    def __init__(
        self,
        disk: Disk,
        folder: str,
        offset: int,
        *,
        paths: Sequence[str],
        epochs: tuple[int, str] | None,
        names_changed: bool,
        truncations: int,
    ) -> None:
        """paths: of the files. epochs: version and text of the leader epochs, None if the file says the same.
        truncations: how often the log had been cut back when this was made; if it has been again, what was flushed may
        be gone.
        """
        self._disk = disk
        self._folder = folder
        self._paths = paths
        self._epochs_text = epochs[1] if epochs else None
        self._names_changed = names_changed
        self.epochs_version = epochs[0] if epochs else None
        self.epochs_checksum = crc32c(epochs[1].encode()) if epochs else None
        self.offset = offset
        self.truncations = truncations

    def run(self) -> None:
        """Return once it is all durable. Raises OSError; it may be run again."""
        for path in self._paths:
            sync_if_there(self._disk, path)
        try:
            if self._epochs_text is not None:
                replace_file(self._disk, self._folder, LEADER_EPOCHS, self._epochs_text.encode())
            elif self._names_changed:
                self._disk.sync_dir(self._folder)
        except FileNotFoundError:
            if self._disk.stat(self._folder) is not None:
                raise

    def __repr__(self) -> str:
        return f"FlushJob({self._folder!r}, offset={self.offset}, files={len(self._paths)})"


class SyncJob(NamedTuple):
    """Make a cut durable: the names in a log's folder, then the content of these files. Nothing is appended before.

    If an old batch came back after a crash, in front of newer ones written behind it, no check would tell: the log
    would hold what no leader ever had. Apache's broker does not wait for this.
    """

    disk: Disk
    folder: str
    paths: list[str]

    def run(self) -> None:
        """On any thread. Raises OSError; a folder that is gone has been renamed, since it is being deleted."""
        try:
            self.disk.sync_dir(self.folder)
        except FileNotFoundError:
            if self.disk.stat(self.folder) is not None:
                raise
        for path in self.paths:
            sync_if_there(self.disk, path)


class Truncated(NamedTuple):
    """What a cut leaves to be done. sync: None if there was nothing to cut. removed: files that may go."""

    sync: SyncJob | None
    removed: DeleteJob | None

    @classmethod
    def of(cls, folder: Folder, delay_ms: int, paths: list[str], removed: list[str]) -> Truncated:
        """paths: to be synced. removed: files, to go after delay_ms."""
        job = DeleteJob(folder.disk, removed, delay_ms) if removed else None
        return cls(SyncJob(folder.disk, folder.path, paths), job)


class DeleteJob(NamedTuple):
    """Files that are not used any more, to be removed after `delay_ms`; with `folder`, that as well, and at last.

    Whatever is not removed because the process ends before is found by its suffix at the next start.
    """

    disk: Disk
    paths: list[str]
    delay_ms: int
    folder: str | None = None

    def run(self) -> None:
        """Remove what is still there. Raises OSError."""
        paths = list(self.paths)
        try:
            if self.folder is not None:
                paths += [f"{self.folder}/{entry.name}" for entry in self.disk.list(self.folder)]
            for path in paths:
                remove_if_there(self.disk, path)
            if self.folder is not None:
                self.disk.remove_dir(self.folder)
        except FileNotFoundError:
            return


def sync_if_there(disk: Disk, path: str) -> None:
    """Make a file's content durable, unless it has been given another name; one descriptor, and only for so long.

    Raises OSError.
    """
    try:
        file = disk.open(path, "write")
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


def remove_if_there(disk: Disk, path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        disk.remove(path)
    except FileNotFoundError:
        return
