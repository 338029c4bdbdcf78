"""What is committed in the metadata log, read once and in order: the newest snapshot first, then the records behind it.

Called by the part that owns the observer, a piece at a time, so that a long log or a large snapshot is read between
other requests. A snapshot is read as the log is: its batches hold records, and control records at both ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.log.errors import CorruptFileError
from protocol.message import DecodeError
from protocol.namedtuple import NamedTuple
from protocol.records import RecordError, TornBatchError
from protocol.records.batch import (
    ATTRIBUTES,
    CONTROL,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    check,
    last_offset_of,
    scan,
    size_of,
)
from protocol.records.content import parse_records
from protocol.records.control_records import parse_quorum_record

if TYPE_CHECKING:
    from kbroker.ports import File
    from kbroker.quorum.metadata_log import MetadataLog, SnapshotId
    from protocol.message import Message
    from protocol.records import Record

PIECE_BYTES = 1 << 16
"""Read at a time, of the log: some hundred records, which take 10 ms or so to apply."""
MOST_RECORDS = 200
"""Given at a time, of a snapshot, whose batches are large. A batch of the log is one change, and given as a whole."""


class ReadPiece(NamedTuple):
    """Records that come next. The fields are those of `facts.Committed`, but for values, of records in their frames.

    control: what the quorum says of itself.
    """

    values: list[bytes]
    control: list[Message]
    offset: int
    epoch: int
    timestamp: int
    size: int
    is_snapshot: bool
    is_first: bool
    is_last: bool


class CommittedReader:
    """Reads up to a high watermark. next_offset: of the record that is read next; everything before it has been."""

    def __init__(self, metadata_log: MetadataLog) -> None:
        self.next_offset = 0
        self._log = metadata_log
        self._has_begun = False
        self._snapshot: SnapshotId | None = None  # that is being read
        self._file: File | None = None
        self._position = 0
        self._size = 0
        self._values: list[bytes] = []  # of it, that were read and not given yet
        self._control: list[Message] = []
        self._timestamp = -1

    def has_more(self, high_watermark: int) -> bool:
        """Whether there is something to read."""
        return self._file is not None or self.next_offset < high_watermark

    def read(self, high_watermark: int) -> ReadPiece | None:
        """The next piece below the high watermark; None if there is nothing.

        Raises: OSError; CorruptFileError for what is damaged, with its path.
        """
        latest = self._log.latest_snapshot
        is_new = latest is not None and latest != self._snapshot
        if latest is not None and is_new and (not self._has_begun or self.next_offset < self._log.start_offset):
            self._begin(latest)
        if self._file is not None:
            return self._of_snapshot()
        return self._of_log(high_watermark)

    def _begin(self, snapshot: SnapshotId) -> None:
        """Start with a snapshot: nothing was read, or the log begins behind what was."""
        self.close()
        self._has_begun = True
        self._snapshot, self._position, self._values = snapshot, 0, []
        self._file = self._log.open_snapshot(snapshot)
        self._size = self._file.size()

    def close(self) -> None:
        """Give its file back."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _of_snapshot(self) -> ReadPiece:
        snapshot, start = self._snapshot, self._position
        assert snapshot is not None
        is_first, control, size = start == 0, self._control, 0
        if not self._values:
            size = self._read_batches(snapshot)
            control = self._control
        values, self._values = self._values[:MOST_RECORDS], self._values[MOST_RECORDS:]
        self._control = []
        is_last = self._position >= self._size and not self._values
        if is_last:
            self.close()
            self.next_offset = snapshot.end_offset
        return ReadPiece(
            values,
            control,
            snapshot.end_offset - 1,
            snapshot.epoch,
            self._timestamp,
            size,
            True,
            is_first,
            is_last,
        )

    def _read_batches(self, snapshot: SnapshotId) -> int:
        """The next batches of a snapshot, of which a few records are given at a time. Returns: their bytes."""
        file, start = self._file, self._position
        assert file is not None
        path = f"{self._log.path}/{snapshot.file_name}"
        data = memoryview(file.read(start, min(PIECE_BYTES, self._size - start)))
        if whole := _whole_size(data):
            data = data[:whole]
        else:  # the first batch is longer than a piece, or cut off
            data = memoryview(file.read(start, self._size - start))
            data = data[: _first_size(data, path, start)]
        self._position += len(data)
        self._values, self._control, _offset, _epoch, self._timestamp = _open(data, path, start)
        return len(data)

    def _of_log(self, high_watermark: int) -> ReadPiece | None:
        if self.next_offset >= high_watermark:
            return None
        region = self._log.log.read(self.next_offset, PIECE_BYTES, high_watermark).region
        if region is None:
            return None
        self._has_begun = True
        data = memoryview(region.read())
        data = data[: _whole_size(data)]
        values, control, offset, epoch, timestamp = _open(data, self._log.path, self.next_offset)
        self.next_offset = offset + 1
        return ReadPiece(values, control, offset, epoch, timestamp, len(data), False, True, True)


def _whole_size(data: memoryview) -> int:
    """Bytes of the whole batches that it begins with."""
    size = 0
    try:
        for position, header in scan(data):
            size = position + size_of(header)
    except TornBatchError:
        pass
    except RecordError:
        return len(data)  # what reads it finds out
    return size


def _first_size(data: memoryview, path: str, start: int) -> int:
    """Bytes of the first batch. Raises: CorruptFileError."""
    try:
        for _position, header in scan(data):
            return size_of(header)
    except RecordError as error:
        raise CorruptFileError(str(error), where=f"position {start}", path=path) from None
    raise CorruptFileError("ends before its last batch", where=f"position {start}", path=path)


def _open(data: memoryview, path: str, start: int) -> tuple[list[bytes], list[Message], int, int, int]:
    """The values of records, control records, last offset, epoch and timestamp."""
    values: list[bytes] = []
    control: list[Message] = []
    offset = epoch = timestamp = -1
    try:
        for position, header in scan(data):
            check(data, position, len(data))
            records: list[Record] = parse_records(data, position, header)
            if header[ATTRIBUTES] & CONTROL:
                control += filter(None, map(parse_quorum_record, records))
            else:
                values += [each.value or b"" for each in records]
            offset, epoch, timestamp = last_offset_of(header), header[LEADER_EPOCH], header[MAX_TIMESTAMP]
    except (RecordError, DecodeError) as error:
        raise CorruptFileError(str(error), where=f"from {start} on", path=path) from None
    return values, control, offset, epoch, timestamp
