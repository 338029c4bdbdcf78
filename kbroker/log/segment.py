"""A log segment: a `.log` file of batches, its indices, and what is known of them.

Called by the log, which owns the order of segments, and by recovery. Opens files on first use and gives descriptors
back when too many are open. Decides nothing about offsets, producers or retention; makes nothing durable by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct

from kbroker.log.aborted import AbortedIndex, AbortedTransaction
from kbroker.log.config import LogConfig
from kbroker.log.folder import Folder
from kbroker.log.index import MAX_RELATIVE_OFFSET, NO_TIMESTAMP, OffsetIndex, TimeIndex
from kbroker.log.index_warmup import ColdJob, NotReadyError, RepairJob, WarmJob
from kbroker.log.jobs import remove_if_there
from kbroker.log.names import SegmentPart
from kbroker.log.producer_state import CompletedTransaction
from kbroker.log.scan import CHUNK_BYTES, SMALLEST_BYTES, header_at, headers
from kbroker.ports import Buffer, File, Random
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records.batch import (
    BASE_OFFSET,
    HEADER_SIZE,
    LAST_DELTA,
    LENGTH,
    LENGTH_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    HeaderTuple,
    last_offset_of,
    size_of,
)

SEGMENT_FILES: tuple[SegmentPart, ...] = ("log", "index", "timeindex", "txnindex")
"""Its parts; the last one only where a transaction was aborted."""


def parts_of(segment: Segment) -> tuple[SegmentPart, ...]:
    """The parts that a segment has."""
    return SEGMENT_FILES if segment.aborted is not None else SEGMENT_FILES[:3]


_UNKNOWN = -2  # not read yet; -1 is Kafka's "no timestamp"
ASK_FIRST = -1  # no position: `Segment.append` has written nothing
_ASK = -2  # a limit below every size and timestamp
_FIND = Struct(">qi4xb6xi").unpack_from  # base_offset, length, magic, last_offset_delta
_FIND_BYTES = 27


class SegmentTruncation(NamedTuple):
    """A cut of a segment that opens no more files. file: the .log. size: of it, afterwards. paths: to be synced."""

    file: File
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    paths: list[str]


class Segment:
    """Batches with offsets from `base_offset` on, in one file below 2 GiB.

    size: bytes of the file that hold batches. max_timestamp: largest in it, -1 if none has one, reached by the batch
    that ends with max_timestamp_offset. is_gone: taken out of the log, its files have other names.
    roll_bytes, roll_offset, roll_timestamp: an append that keeps to them needs not ask `must_roll`, which sets them:
    what each append has to keep to is told once, in `append`.
    """

    __slots__ = (
        "_aborted",
        "_bytes_since_entry",
        "_file",
        "_index_bytes",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offsets",
        "_rolling_timestamp",
        "_times",
        "base_offset",
        "config",
        "created_ms",
        "folder",
        "is_gone",
        "jitter_ms",
        "roll_bytes",
        "roll_offset",
        "roll_timestamp",
        "size",
        "touched",
    )

    def __init__(
        self,
        folder: Folder,
        base_offset: int,
        config: LogConfig,
        *,
        created_ms: int,
        jitter_ms: int = 0,
        size: int = 0,
        index_bytes: tuple[int, int] = (0, 0),
        has_aborted: bool = False,
    ) -> None:
        """index_bytes: present sizes of the .index and the .timeindex file."""
        self.folder = folder
        self.base_offset = base_offset
        self.config = config
        self.size = size
        self.created_ms = created_ms
        self.jitter_ms = jitter_ms
        self.touched = False
        self.is_gone = False
        self._index_bytes = index_bytes
        self._file: File | None = None
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._aborted = AbortedIndex(folder, base_offset) if has_aborted else None
        self._max_timestamp = _UNKNOWN if size else NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._rolling_timestamp = _UNKNOWN if size else NO_TIMESTAMP
        self._bytes_since_entry = 0
        self.roll_bytes = _ASK
        self.roll_offset = base_offset + MAX_RELATIVE_OFFSET
        self.roll_timestamp = _ASK

    @classmethod
    def create(cls, folder: Folder, base_offset: int, config: LogConfig, *, now_ms: int, jitter_ms: int) -> Segment:
        """A new, empty segment with its three files, or none of them. now_ms: wall clock. Raises OSError."""
        segment = cls(folder, base_offset, config, created_ms=now_ms, jitter_ms=jitter_ms)
        try:
            segment.make()
        except OSError:
            segment._unmake()
            raise
        return segment

    def _unmake(self) -> None:
        """Take back what `make` has made: the log goes on without it, and a start would take this for its end."""
        self.close()
        with suppress(OSError):  # then the disk is at fault, and the directory goes offline
            for part in SEGMENT_FILES[:3]:
                remove_if_there(self.folder.disk, self.folder.file_path(self.base_offset, part))

    def make(self) -> None:
        """Make the three files of an empty segment. Raises OSError."""
        file = self.file
        if self.config.preallocate:
            file.resize(self.config.segment_bytes)
        self.folder.open(self.base_offset, "index", "create").close()
        self.folder.open(self.base_offset, "timeindex", "create").close()

    def __repr__(self) -> str:
        return f"Segment(base_offset={self.base_offset}, size={self.size})"

    # ---- what belongs to it

    @property
    def file(self) -> File:
        """The .log file, opened if it is not."""
        file = self._file
        self.touched = True
        if file is None:
            file = self._file = self.folder.open(self.base_offset, "log", "write" if self.size else "create")
            self.folder.open_files.opened(self)
        return file

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index."""
        index = self._offsets
        if index is None:
            index = self._offsets = OffsetIndex(
                self.folder, self.base_offset, self.config.segment_index_bytes, self._index_bytes[0]
            )
        return index

    @property
    def times(self) -> TimeIndex:
        """The time index."""
        index = self._times
        if index is None:
            index = self._times = TimeIndex(
                self.folder, self.base_offset, self.config.segment_index_bytes, self._index_bytes[1]
            )
        return index

    @property
    def index_bytes(self) -> tuple[int, int]:
        """Bytes of entries in the .index and the .timeindex file, as far as they are closed."""
        return self._index_bytes

    @property
    def knows_times(self) -> bool:
        """Whether the time index was opened before, or has nothing in it."""
        return self._times is not None or not self._index_bytes[1]

    @property
    def aborted(self) -> AbortedIndex | None:
        """The aborted transactions, None where none ever was."""
        return self._aborted

    def close_files(self) -> None:
        """Give the descriptor back; regions and fsyncs under way keep theirs."""
        self._file = None

    def close(self) -> None:
        """Give all descriptors and maps back; an index's newest entries are lost unless written."""
        if self._file is not None:
            self._file = None
            self.folder.open_files.closed(self)
        for index in (self._offsets, self._times):
            if index is not None:
                index._unmap()

    # ---- append

    def append(
        self,
        buffers: Sequence[Buffer],
        size: int,
        last_offset: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        batches: Sequence[tuple[HeaderTuple, int, int]] = (),
        is_asked: bool = False,
    ) -> int:
        """Write batches behind the last one, in one call, and index them; returns their position.

        Writes nothing, and returns ASK_FIRST, if `must_roll` has to be asked before; is_asked: it has been.
        size: bytes of all buffers. max_timestamp: largest in them, in the batch that ends with max_timestamp_offset.
        batches: header, base offset and largest timestamp of each; needed only if there are several.
        Raises OSError; then the segment is as before, as far as its readers can tell.
        """
        position = self.size
        if (
            position + size > self.roll_bytes or last_offset > self.roll_offset or max_timestamp > self.roll_timestamp
        ) and not is_asked:
            return ASK_FIRST
        file = self._file or self.file
        self.touched = True
        is_due = self._bytes_since_entry > self.config.index_interval_bytes
        if is_due or self._max_timestamp == _UNKNOWN or len(batches) > 1:
            self._open_indices()  # before the write: where no descriptor is left, nothing may have been written
        try:
            file.write(buffers, position)
        except OSError:
            self._cut_back(file)
            raise
        if not position:
            self._rolling_timestamp = max_timestamp
        self.size = position + size
        if len(batches) > 1:
            self._index_each(batches, position)
            return position
        if max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = max_timestamp, max_timestamp_offset
        if is_due:
            self._add_entries(last_offset, position)
        self._bytes_since_entry += size
        return position

    def _open_indices(self) -> None:
        """Read what the last entries say; from then on the indices are appended to in memory."""
        if self._offsets is None or self._times is None or self._max_timestamp == _UNKNOWN:
            _ = self.offsets, self.times, self.max_timestamp

    def _index_each(self, batches: Sequence[tuple[HeaderTuple, int, int]], position: int) -> None:
        """A follower appends many batches at once: without entries between them, lookups would scan them all."""
        for header, base_offset, max_timestamp in batches:
            last_offset, size = base_offset + header[LAST_DELTA], header[LENGTH] + LENGTH_OVERHEAD
            if max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_timestamp_offset = max_timestamp, last_offset
            if self._bytes_since_entry > self.config.index_interval_bytes:
                self._add_entries(last_offset, position)
            self._bytes_since_entry += size
            position += size

    def _add_entries(self, last_offset: int, position: int) -> None:
        """Index the batch at `position`: the last entry is index.interval.bytes back."""
        offsets, times = self._offsets or self.offsets, self._times or self.times  # as in `append`: no more calls
        if offsets.count < offsets.most_entries:
            offsets.append(last_offset, position)
        if times.count < times.most_entries and self._max_timestamp > times.last_timestamp:
            times.append_if_later(self._max_timestamp, self._max_timestamp_offset)
        if offsets.count >= offsets.most_entries or times.count >= times.most_entries:
            self.roll_bytes = _ASK
        self._bytes_since_entry = 0

    def _cut_back(self, file: File) -> None:
        """A write failed half way: leave nothing of it for recovery to find, if the disk still lets us."""
        try:
            file.resize(self.size)
        except OSError:
            return

    def must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether an append of `size` bytes up to `last_offset` has to go into a new segment. now_ms: wall clock."""
        config, present = self.config, self.size
        if present + size > config.segment_bytes or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if present and self.waited_ms(now_ms, max_timestamp) > config.roll_ms - self.jitter_ms:
            return True
        offsets, times = self._offsets, self._times
        if (offsets is not None and offsets.is_full) or (times is not None and times.is_full):
            return True
        first = self._rolling_timestamp if present else NO_TIMESTAMP
        self.roll_bytes = config.segment_bytes
        self.roll_timestamp = first + config.roll_ms - self.jitter_ms if first >= 0 else _ASK
        return False

    def reconfigure(self, config: LogConfig) -> None:
        """Take other settings from now on."""
        self.config = config
        self.roll_bytes = _ASK

    def waited_ms(self, now_ms: int, message_timestamp: int) -> int:
        """How far the log's time has gone since the first batch; the clock's, if that has no timestamp."""
        first = self.first_timestamp
        return message_timestamp - first if first >= 0 else now_ms - self.created_ms

    @property
    def first_timestamp(self) -> int:
        """The first batch's largest timestamp, -1 if it has none or there is none."""
        if self._rolling_timestamp == _UNKNOWN:
            first = next(headers(self.file, 0, self.size), None)
            self._rolling_timestamp = NO_TIMESTAMP if first is None else first[1][MAX_TIMESTAMP]
        return self._rolling_timestamp

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp in the segment, -1 if none has one."""
        if self._max_timestamp == _UNKNOWN:
            self._max_timestamp, self._max_timestamp_offset = self.times.last_timestamp, self.times.last_offset
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the batch that has max_timestamp."""
        return self._max_timestamp_offset if self.max_timestamp >= 0 else self.base_offset

    @property
    def largest_timestamp(self) -> int:
        """What retention goes by: the largest timestamp, or when the file last changed if none has one."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        entry = self.folder.disk.stat(self.folder.file_path(self.base_offset, "log"))
        return NO_TIMESTAMP if entry is None else entry.modified_ms

    # ---- find

    def find(self, offset: int, *, may_wait: bool = True) -> tuple[int, int] | None:
        """Position and size of the batch that holds `offset`, or the first behind it; None if all lie before.

        may_wait: for the disk; else Raises NotReadyError where it might take long. Raises OSError; KafkaError
        CORRUPT_MESSAGE where the file is no sequence of batches.
        """
        if not may_wait and self._offsets is None and self._index_bytes[0]:
            interval_bytes = self.config.index_interval_bytes
            raise NotReadyError(self, WarmJob(self.folder, self.base_offset, offset, interval_bytes))
        position = self.offsets.lookup(offset)[1]
        try:
            return self._find_from(position, offset, checked=not position)
        except KafkaError:
            if not position:
                raise
        if not may_wait:
            raise NotReadyError(self, self._repair())
        self.rebuild_indices()  # an entry pointed nowhere: a changed bit, the log itself may be sound
        return self._find_from(self.offsets.lookup(offset)[1], offset, checked=True)

    def _find_from(self, position: int, offset: int, *, checked: bool) -> tuple[int, int] | None:
        """`find`, from a batch's position. checked: that no batch behind `offset` is skipped by starting there."""
        end, file = self.size, self.file
        data, at = b"", 0
        if position >= end and not checked:
            raise self._corrupt(position)
        while position < end:
            if len(data) - at < _FIND_BYTES:
                most = min(self.config.index_interval_bytes + HEADER_SIZE, CHUNK_BYTES, end - position)
                data, at = file.read(position, most), 0
                if len(data) < SMALLEST_BYTES:
                    break
                data += b"\0" * (_FIND_BYTES - len(data))  # the shortest message of v0, at the end
            base_offset, length, magic, delta = _FIND(data, at)
            if magic != MAGIC:
                base_offset, length, delta = self._legacy(data, at, position)
            size = length + LENGTH_OVERHEAD
            if (size < HEADER_SIZE and magic == MAGIC) or position + size > end or delta < 0:
                raise self._corrupt(position)
            if not checked:
                if base_offset > offset:
                    raise self._corrupt(position)
                checked = True
            if base_offset + delta >= offset:
                return position, size
            position += size
            at += size
        return None

    def _legacy(self, data: bytes, at: int, position: int) -> tuple[int, int, int]:
        header = header_at(data, at)
        if header is None:
            raise self._corrupt(position)
        return header[BASE_OFFSET], header[LENGTH], header[LAST_DELTA]

    def _corrupt(self, position: int) -> KafkaError:
        path = self.folder.file_path(self.base_offset, "log")
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{path}: position {position}: no batch starts here")

    def batches_from(self, position: int) -> list[tuple[int, HeaderTuple]]:
        """Positions and headers of all batches from a batch's position on."""
        return list(headers(self.file, position, self.size))

    def end(self) -> tuple[int, int]:
        """The offset behind the last batch and the position behind it, found from the last index entry on.

        The position is less than the size where the file goes on with what is no batch.
        """
        offset, position = self.base_offset, 0
        if not self.size:
            return offset, position
        for start in (self.offsets.lookup(self.offsets.last_offset)[1], 0):
            for at, header in headers(self.file, start, self.size):
                offset, position = last_offset_of(header) + 1, at + size_of(header)
            if position or not start:
                break  # otherwise the last entry points at no batch
        return offset, position

    def position_for_timestamp(self, timestamp: int, start_offset: int) -> int:
        """A position at or before the first batch with a timestamp not below `timestamp` and an offset not below
        `start_offset`. timestamp: ms.
        """
        entry_timestamp, entry_offset = self.times.lookup(timestamp)
        if entry_timestamp >= 0:
            found = self.find(entry_offset)
            header = None if found is None else next(headers(self.file, found[0], self.size), (0, None))[1]
            if header is None or header[MAX_TIMESTAMP] != entry_timestamp:  # the entry lies: a changed bit
                self.rebuild_indices()
                entry_timestamp, entry_offset = self.times.lookup(timestamp)
        return self.offsets.lookup(max(entry_offset, start_offset))[1]

    # ---- change

    def prepare_truncation(self, offset: int) -> SegmentTruncation:
        """Open all that `truncate` needs, and leave what lies from `offset` on out of the indices.

        Raises OSError: where it was for want of a descriptor, all records are still there, and in the indices there are
        fewer entries, at most.
        """
        found = self.find(offset)
        size = self.size if found is None else found[0]
        self.offsets.keep_below(offset)
        self.times.keep_below(offset)
        paths = self.paths_to_sync()
        timestamp, timestamp_offset = self._largest_timestamp(size)
        file = self.file
        if self._aborted is not None:
            self._aborted.keep_below(offset)
        return SegmentTruncation(file, size, timestamp, timestamp_offset, paths)

    def truncate(self, truncation: SegmentTruncation, now_ms: int) -> None:
        """Cut all batches that are to go. Opens nothing. now_ms: wall clock. Raises OSError."""
        if truncation.size < self.size:
            truncation.file.resize(truncation.size)
            self.size = truncation.size
        self.roll_bytes = _ASK
        if not self.size:
            self.created_ms = now_ms
            self._rolling_timestamp = NO_TIMESTAMP
        self._bytes_since_entry = 0
        self._max_timestamp, self._max_timestamp_offset = truncation.max_timestamp, truncation.max_timestamp_offset

    def _largest_timestamp(self, size: int) -> tuple[int, int]:
        """And its offset: from the last time index entry and the batches behind it, up to this position."""
        largest, largest_offset = self.times.last_timestamp, self.times.last_offset
        for _, header in headers(self.file, self.offsets.lookup(largest_offset)[1], size):
            if header[MAX_TIMESTAMP] > largest and self._fits(header):
                largest, largest_offset = header[MAX_TIMESTAMP], last_offset_of(header)
        return largest, largest_offset

    def expect_aborted(self) -> AbortedIndex:
        """Open the index of aborted transactions: one is about to end in here. To be closed. Raises: OSError."""
        if self._aborted is None:
            self._aborted = AbortedIndex(self.folder, self.base_offset)
        self._aborted.open()
        return self._aborted

    def note_aborted(self, completed: CompletedTransaction, last_stable_offset: int) -> None:
        """Index the transaction that a marker in here has aborted. last_stable_offset: right after the marker."""
        if self._aborted is None:
            self._aborted = AbortedIndex(self.folder, self.base_offset)
        producer_id, first_offset, last_offset, _ = completed
        self._aborted.append(AbortedTransaction(producer_id, first_offset, last_offset, last_stable_offset))

    def drop_empty_aborted(self) -> bool:
        """Remove an index of aborted transactions without any; whether there is no index now. Raises: OSError."""
        if self._aborted is not None and not self._aborted.entries():
            self._aborted.close()
            self._aborted = None
            remove_if_there(self.folder.disk, self.folder.file_path(self.base_offset, "txnindex"))
        return self._aborted is None

    def rebuild_indices(self) -> None:
        """Rebuild both indices from the batches' headers."""
        job = self._repair()
        job.run()
        self.finish_job(job)

    def _repair(self) -> RepairJob:
        return RepairJob(self.folder, self.base_offset, self.size, self.config.index_interval_bytes)

    def finish_job(self, job: ColdJob) -> None:
        """A job for this segment has ended: open, or rebuild, what it has found. Raises: OSError."""
        if self.is_gone:
            return  # the names are another's by now, if compaction has put that in its place
        if isinstance(job, RepairJob):
            self._reindex(job)
        elif isinstance(job, WarmJob):
            _ = self.offsets

    def _reindex(self, job: RepairJob) -> None:
        """Rebuild both indices. The segment may have grown meanwhile; if it was cut, they stay as they are."""
        if job.size > self.size:
            return
        self.forget_indices()
        last_entry = 0
        for offset, position, timestamp, timestamp_offset in job.entries:
            if self.offsets.is_full or self.times.is_full:
                break
            self.offsets.append(offset, position)
            self.times.append_if_later(timestamp, timestamp_offset)
            last_entry = position
        self._max_timestamp, self._max_timestamp_offset = job.last.timestamp, job.last.timestamp_offset
        for position, header in headers(self.file, job.size, self.size):
            if self.index_batch(position, header, last_entry):
                last_entry = position
        self.finish()

    def forget_indices(self) -> None:
        """Empty both indices, whatever they hold. Raises OSError; for want of a descriptor both are as they were."""
        self.close()
        for file in [self.folder.open(self.base_offset, part, "create") for part in SEGMENT_FILES[1:3]]:
            file.resize(0)
            file.close()
        self._index_bytes = (0, 0)
        self.roll_bytes = _ASK
        self._offsets = self._times = None
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, self.base_offset

    def index_batch(self, position: int, header: HeaderTuple, last_entry: int) -> bool:
        """Note a batch while indices are rebuilt; whether it got an entry. last_entry: position of the last one."""
        if not self._fits(header) or (self.offsets.count and last_offset_of(header) <= self.offsets.last_offset):
            return False
        if header[MAX_TIMESTAMP] > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = header[MAX_TIMESTAMP], last_offset_of(header)
        if position - last_entry <= self.config.index_interval_bytes or self.offsets.is_full or self.times.is_full:
            return False
        self.offsets.append(last_offset_of(header), position)
        self.times.append_if_later(self._max_timestamp, self._max_timestamp_offset)
        return True

    def _fits(self, header: HeaderTuple) -> bool:
        """Whether a batch's last offset can be in this segment at all; a changed bit may have moved it."""
        return 0 <= header[BASE_OFFSET] + header[LAST_DELTA] - self.base_offset <= MAX_RELATIVE_OFFSET

    def finish(self) -> None:
        """Make the files what they are to stay: the largest timestamp noted, nothing preallocated."""
        self.times.append_if_later(self.max_timestamp, self.max_timestamp_offset)
        self.offsets.trim()
        self.times.trim()
        if self.file.size() != self.size:  # preallocated, perhaps by settings that have changed since
            self.file.resize(self.size)
        self._index_bytes = (self.offsets.count * 8, self.times.count * 12)

    def finish_again(self) -> None:
        """`finish`, for a segment that a crash may have caught in the act: its indices are true, if incomplete."""
        end = self.end()[1]
        if end < self.size:  # preallocated, and not trimmed yet
            self.size = end
            self.file.resize(end)
        self._max_timestamp, self._max_timestamp_offset = self._largest_timestamp(self.size)
        self.finish()

    def paths_to_sync(self) -> list[str]:
        """Paths of all its files, index entries written: syncing them makes the segment durable."""
        for index in (self._offsets, self._times):
            if index is not None:
                index.write_tail()
        return [self.folder.file_path(self.base_offset, part) for part in parts_of(self)]


def draw_jitter(config: LogConfig, random: Random) -> int:
    """How much earlier than segment.ms a segment rolls, so that many do not roll at once."""
    most = min(config.segment_jitter_ms, config.segment_ms)
    return random.below(most) if most > 0 else 0
