"""Record bytes of all formats, as a judge reads them: batches of v2, and messages of v0 and v1 in between.

Called by the checks of worlds whose topics keep old formats.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from kbroker.sim.checks import whole_batches
from protocol.namedtuple import NamedTuple
from protocol.records import legacy
from protocol.records.batch import LAST_DELTA, LENGTH_OVERHEAD, MAGIC, MAGIC_AT, BatchHeader, check, unpack_header
from protocol.records.content import parse_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.records import Record

_START = Struct(">qi")  # offset, length


class Piece(NamedTuple):
    """A batch, or an old message. offset: the one that it names: an old message's last one. data: its bytes."""

    offset: int
    last_offset: int
    data: memoryview

    @property
    def is_old(self) -> bool:
        """Whether it is a message of v0 or v1."""
        return self.data[MAGIC_AT] < MAGIC

    def records(self) -> list[Record]:
        """Its records, none of a control batch. Raises: RecordError, for a wrong checksum, too."""
        if self.is_old:
            message = next(legacy.scan(self.data))
            legacy.check_crc(self.data, message)
            return legacy.parse_message(self.data, message)
        header = check(self.data, 0, len(self.data))
        return [] if BatchHeader(*header).is_control else parse_records(self.data, 0, header)


def pieces(data: memoryview) -> Iterator[Piece]:
    """Those that are there whole, unchecked."""
    data, position = whole_batches(data), 0
    while position < len(data):
        offset, length = _START.unpack_from(data, position)
        piece = data[position : position + length + LENGTH_OVERHEAD]
        behind = 0 if piece[MAGIC_AT] < MAGIC else unpack_header(piece, 0)[LAST_DELTA]
        yield Piece(offset, offset + behind, piece)
        position += len(piece)
