"""The producer snapshots of a log on the disk: `<offset>.snapshot`, everything below that offset taken into account.

Owns the list of files and when one is written, read or removed; the format is `producers`'. One is written at each
roll, named by the new segment's base offset, so that a segment can be recovered from the snapshot at its start; and one
at a clean stop, at the end of the log. Kept as long as the segment that starts there.

Of a producer's batches it has the last one alone; those before it are found in the log again (`replay.py`).

Source: KIP-98; Kafka documentation, implementation, "Log".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.folder import Folder
from kbroker.log.jobs import remove_if_there
from kbroker.log.producer_state import Producers


class Snapshots:
    """The snapshot files of one log, by offset, ascending."""

    __slots__ = ("_folder", "offsets")

    def __init__(self, folder: Folder, offsets: Collection[int]) -> None:
        self._folder = folder
        self.offsets = sorted(offsets)

    @property
    def path(self) -> str:
        """Of the folder that they are in."""
        return self._folder.path

    @property
    def latest(self) -> int | None:
        """The newest one's offset."""
        return self.offsets[-1] if self.offsets else None

    def take_snapshot(self, producers: Producers) -> None:
        """Write one at the producers' end offset, unless there is one; not durable yet."""
        offset = producers.end_offset
        at = bisect_left(self.offsets, offset)
        if self.offsets[at : at + 1] == [offset]:
            return
        file = self._folder.open(offset, "snapshot", "create")
        try:
            file.resize(0)
            file.write([producers.snapshot()], 0)
        finally:
            file.close()
        self.offsets.insert(at, offset)

    def to_sync(self, above: int, up_to: int) -> list[str]:
        """Paths of those with above < offset <= up_to."""
        return [self._folder.file_path(offset, "snapshot") for offset in self.offsets if above < offset <= up_to]

    def load_latest(self, producers: Producers, log_start_offset: int, now_ms: int, expiration_ms: int) -> list[str]:
        """Fill `producers` from the newest snapshot that reads well; the others that are newer go, a line for each.

        Without any, `producers` is empty and ends at log_start_offset. Raises OSError; NewerFormatError, touching
        nothing.
        """
        lines: list[str] = []
        while self.offsets:
            offset = self.offsets[-1]
            file = self._folder.open(offset, "snapshot", "read")
            try:
                producers.load(file.read(0, file.size()), offset, now_ms, expiration_ms)
            except NewerFormatError as error:
                raise error.at(self._folder.file_path(offset, "snapshot")) from None
            except CorruptFileError as error:
                path = self._folder.file_path(offset, "snapshot")
                lines.append(f"{error.at(path)}: removed, the producers are read from the batches")
                self.remove(offset)
            else:
                return lines
            finally:
                file.close()
        producers.clear(log_start_offset)
        return lines

    def remove(self, offset: int) -> None:
        """Remove one at once."""
        self.offsets.remove(offset)
        remove_if_there(self._folder.disk, self._folder.file_path(offset, "snapshot"))

    def keep_within(self, low: int, high: int) -> None:
        """Remove all but those with low <= offset <= high.

        Unlike Kafka, which lets one at the start of the log go: that is all there is of the producers of a log that
        retention has emptied, and a batch they send again would be taken for a new one.
        """
        for offset in [offset for offset in self.offsets if not low <= offset <= high]:
            self.remove(offset)

    def remove_strays(self, base_offsets: Collection[int]) -> None:
        """Remove those that start no segment, but for the newest if it lies beyond the last segment's start."""
        last_base = max(base_offsets, default=-1)
        for offset in self.offsets[:]:
            if offset not in base_offsets and not (offset == self.offsets[-1] and offset >= last_base):
                self.remove(offset)
