"""A search's short way to a log of the broker that has started this console: the bytes of a fetch, read from the file.

Called by `messages.py`, for partitions that the broker has just let this session's user fetch from: the console has no
rights of its own. The broker says in which file the batches from an offset on are, as far as they may be read. They
pass through no socket, so no other client of the broker waits while it sends them. Where anything is not as the broker
has said, for a file was removed or compacted meanwhile, there is no short way, and the search goes on by Fetch.
"""

from __future__ import annotations

from io import FileIO
from typing import TYPE_CHECKING

from kbroker.console.cluster import ConsoleError, Place
from protocol.namedtuple import NamedTuple
from protocol.records import RecordError
from protocol.records.batch import HEADER_SIZE, LENGTH_AT, LENGTH_OVERHEAD, check, last_offset_of

if TYPE_CHECKING:
    from kbroker.console.inside import Inside

READ_BYTES = 256 << 10  # at a time: while the kernel copies, other threads do not have this processor
STRETCH_BYTES = 64 << 20  # that the broker is asked about at once


class Stretch(NamedTuple):
    """Where batches are: so many bytes of a file from a position on. The last batch may be cut off."""

    path: str
    position: int
    size: int


def stretch_at(inside: Inside, place: Place, offset: int) -> Stretch | None:
    """Batches from the one that holds an offset on; None if the broker has none to be read in this way."""
    topic, partition = place
    try:
        found = inside.ask("stretch", topic=topic, partition=partition, offset=offset, most_bytes=STRETCH_BYTES)
    except ConsoleError:
        return None
    return Stretch(found["path"], found["position"], found["size"]) if found else None


class Pieces:
    """A stretch, some of it at a time. data: from the beginning of a batch on; size: how many of its bytes count."""

    def __init__(self, file: FileIO, stretch: Stretch) -> None:
        self.data = bytearray(2 * READ_BYTES)
        self.size = 0
        self._file = file
        self._left = stretch.size
        file.seek(stretch.position)

    def more(self, used: int) -> bool:
        """Forget so many bytes, which were whole batches, and read on: the next batch is there whole. False: none is.

        Raises: OSError.
        """
        rest = self.data[used : self.size]
        self.size -= used
        self.data[: self.size] = rest
        return self._read(READ_BYTES) > 0 and (self._missing() == 0 or self._read(self._missing()) > 0)

    def _missing(self) -> int:
        """Bytes of the first batch that are not there yet."""
        if self.size < HEADER_SIZE:
            return HEADER_SIZE - self.size
        return max(int.from_bytes(self.data[LENGTH_AT : LENGTH_AT + 4], "big") + LENGTH_OVERHEAD - self.size, 0)

    def _read(self, wanted: int) -> int:
        """So many bytes more, as far as the stretch goes: how many."""
        wanted = min(wanted, self._left)
        if self.size + wanted > len(self.data):
            self.data += bytes(self.size + wanted - len(self.data))
        read = 0
        while read < wanted and (count := self._piece(wanted - read)):
            read += count
        return read

    def _piece(self, wanted: int) -> int:
        with memoryview(self.data) as view:
            count = self._file.readinto(view[self.size : self.size + min(wanted, READ_BYTES)])
        self.size += count
        self._left -= count
        return count

    def begins_at(self, offset: int) -> bool:
        """Whether it begins with a sound batch that holds the offset, or only later ones."""
        try:
            with memoryview(self.data) as view:
                return last_offset_of(check(view, 0, self.size)) >= offset
        except RecordError:
            return False
