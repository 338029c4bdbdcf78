"""The work on one log, on the pool: the keys of its dirty part are noted, then its segments rewritten, in groups.

Made and asked for pieces by the cleaner, one piece at a time; between pieces other logs and other jobs get their turn.
It knows the log's files by name and touches nothing of the log's memory: what is appended, cut or deleted meanwhile,
the cleaner sees before it puts anything in place. Raises UncleanableError, GoneError, OSError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kbroker.log.aborted import AbortedTransaction, parse_aborted
from kbroker.log.append import marker_of
from kbroker.log.cleaner.errors import GoneError, UncleanableError
from kbroker.log.cleaner.transactions import Transactions
from kbroker.log.cleaner.writing import CleanedSegment, Written, cleaned_paths
from kbroker.log.config import LogConfig
from kbroker.log.errors import CorruptFileError
from kbroker.log.names import segment_file_name
from kbroker.log.scan import header_at
from kbroker.ports import Disk, File
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records import RecordError
from protocol.records.batch import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    CONTROL,
    COUNT,
    DELETE_HORIZON,
    HEADER_SIZE,
    MAGIC,
    MAGIC_BYTE,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    HeaderTuple,
    last_offset_of,
    size_of,
)
from protocol.records.cleaning import (
    SLOT_BYTES,
    OffsetMap,
    Scratch,
    kept_of_batch,
    kept_of_messages,
    note_batch,
    note_messages,
)

PIECE_BYTES = 4 << 20
"""Of a segment, read in one piece of work: some 30 ms."""


class Source(NamedTuple):
    """A segment to be read: where it begins, how long it is, where the next one begins."""

    base_offset: int
    size: int
    following: int


class LastOfProducer(NamedTuple):
    """What a producer has appended last: the offset of its last data batch, -1 if none is known, and its epoch."""

    last_offset: int
    epoch: int


class Plan(NamedTuple):
    """What a compaction is to do.

    folder: the partition's. sources: all segments below end_offset. first_dirty: keys are noted from here on.
    aborted_in: base offsets of the segments, active one included, that have aborted transactions. now_ms: wall clock.
    """

    folder: str
    config: LogConfig
    sources: Sequence[Source]
    first_dirty: int
    end_offset: int
    aborted_in: Sequence[int]
    now_ms: int
    map_bytes: int
    load_factor: float
    chunk_bytes: int
    secret: bytes


class Compacting(Protocol):
    """What the cleaner asks of one log's compaction, in this process or beside it."""

    @property
    def end_offset(self) -> int:
        """It will be clean to here."""
        ...

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written so far."""
        ...

    @property
    def written_bytes(self) -> int:
        """Of the groups that are done."""
        ...

    @property
    def kept_records(self) -> int:
        """In the groups that are done."""
        ...

    @property
    def map_share(self) -> float:
        """Which part of the memory for keys is taken: of Plan.map_bytes."""
        ...

    def note_some(self) -> bool:
        """Note the keys of one piece of the dirty part; whether that was the last."""
        ...

    def begin_group(self, base_offset: int) -> None:
        """The next segments, up to which `rewrite_some` says, become one that begins here."""
        ...

    def rewrite_some(self, end_offset: int, producers: Mapping[int, LastOfProducer]) -> bool:
        """Rewrite one piece of a group; whether that was the last, and it is durable."""
        ...

    def take_written(self) -> Written:
        """The group that is durable now; the caller puts it in place."""
        ...

    def close(self) -> list[str]:
        """Give memory and descriptors back, waiting for nothing; the files of a segment not taken."""
        ...


class Compaction:
    """One log's, in this process. read_bytes: so far."""

    def __init__(self, disk: Disk, plan: Plan, piece_bytes: int = PIECE_BYTES) -> None:
        self._disk = disk
        self._plan = plan
        self._piece_bytes = piece_bytes
        self.end_offset = plan.first_dirty
        self.read_bytes = 0
        self.written_bytes = 0
        self.kept_records = 0
        self._at = next((at for at, each in enumerate(plan.sources) if each.following > plan.first_dirty), 0)
        self._position = 0
        self._window: _Window | None = None
        self._offsets: OffsetMap | None = None
        self._aborted: list[AbortedTransaction] = []
        self._transactions = Transactions([])
        self._legacy_horizon_ms = 0  # old tombstones in segments not modified since may go
        self._scratch = Scratch()
        self._cleaned: CleanedSegment | None = None

    # ---- first the keys

    def note_some(self) -> bool:
        """Note the keys of one piece of the dirty part; whether that was the last."""
        plan = self._plan
        if self._offsets is None:
            self._begin()
        offsets = self._offsets
        assert offsets is not None
        left = self._piece_bytes
        while left > 0 and self._at < len(plan.sources):
            source = plan.sources[self._at]
            before = self._position
            if not self._note_piece(source, offsets, left):
                self._at = len(plan.sources)  # the map is full
                break
            left -= max(1, self._position - before)
            if self._position >= source.size:
                offsets.latest_offset = max(offsets.latest_offset, source.following - 1)
                self._next_source()
        self.read_bytes += self._piece_bytes - left
        if self._at < len(plan.sources):
            return False
        self.end_offset = offsets.latest_offset + 1
        self._close_window()
        self._transactions = Transactions(self._aborted)
        return True

    def _begin(self) -> None:
        plan = self._plan
        keys = plan.end_offset - plan.first_dirty
        self._offsets = OffsetMap(plan.map_bytes, plan.load_factor, plan.secret, keys)
        self._aborted = self._read_aborted()
        self._transactions = Transactions(each for each in self._aborted if each.last_offset >= plan.first_dirty)
        clean = [each for each in plan.sources if each.following <= plan.first_dirty]
        if clean:
            self._legacy_horizon_ms = self._modified_ms(clean[-1]) - plan.config.delete_retention_ms

    def _read_aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions of all of it."""
        found: list[AbortedTransaction] = []
        for base_offset in self._plan.aborted_in:
            path = f"{self._plan.folder}/{segment_file_name(base_offset, 'txnindex')}"
            file = self._open(path)
            try:
                found += parse_aborted(file.read(0, file.size()))
            except CorruptFileError as error:
                raise UncleanableError(str(error.at(path))) from None
            finally:
                file.close()
        return [each for each in found if each.first_offset < self._plan.end_offset]

    def _note_piece(self, source: Source, offsets: OffsetMap, most: int) -> bool:
        """Note the keys of about so many bytes of a segment; whether there was room."""
        window, position = self._window_of(source), self._position
        end, first_dirty = min(source.size, position + most), self._plan.first_dirty
        try:
            while position < end:
                view, at, header = window.at(position)
                if header[MAGIC_BYTE] != MAGIC:
                    fits, behind, last_offset = note_messages(offsets, view, at, first_dirty)
                else:
                    behind, last_offset = at + size_of(header), last_offset_of(header)
                    fits = not self._has_keys(view, at, header) or note_batch(offsets, view, at, header, first_dirty)
                if not fits:
                    return False
                offsets.latest_offset = max(offsets.latest_offset, last_offset)
                position += behind - at
        except (RecordError, KafkaError) as error:
            raise self._uncleanable(source, position, error) from None
        self._position = position
        return True

    def _has_keys(self, view: memoryview, at: int, header: HeaderTuple) -> bool:
        if header[ATTRIBUTES] & CONTROL:
            self._marks_nothing(view, at, header)
            return False
        return not self._transactions.is_aborted(header) and last_offset_of(header) >= self._plan.first_dirty

    def _marks_nothing(self, view: memoryview, at: int, header: HeaderTuple) -> bool:
        marker = marker_of(view[at : at + size_of(header)], header) if header[COUNT] else None
        return self._transactions.marks_nothing(header, marker)

    # ---- then group by group

    def begin_group(self, base_offset: int) -> None:
        """The next segments, up to which `rewrite_some` says, become one that begins here."""
        self._at = next(at for at, each in enumerate(self._plan.sources) if each.base_offset == base_offset)
        self._position = 0
        self._cleaned = CleanedSegment(
            self._disk, self._plan.folder, base_offset, self._plan.config, self._plan.chunk_bytes
        )

    def rewrite_some(self, end_offset: int, producers: Mapping[int, LastOfProducer]) -> bool:
        """Rewrite one piece of a group; whether that was the last, and it is durable.

        end_offset: the group's. producers: what they have appended last.
        """
        cleaned, plan = self._cleaned, self._plan
        assert cleaned is not None
        left = self._piece_bytes
        while left > 0 and self._at < len(plan.sources) and plan.sources[self._at].base_offset < end_offset:
            before = self._position
            source = plan.sources[self._at]
            self._rewrite_piece(source, cleaned, left, producers)
            left -= max(1, self._position - before)
            if self._position >= source.size:
                self._next_source()
        self.read_bytes += self._piece_bytes - left
        cleaned.flush()
        if self._at < len(plan.sources) and plan.sources[self._at].base_offset < end_offset:
            return False
        self._close_window()
        aborted, self._transactions.aborted_with_records = self._transactions.aborted_with_records, []
        cleaned.finish(aborted, self._modified_ms(plan.sources[self._at - 1]))
        self.written_bytes += cleaned.size
        self.kept_records += cleaned.records
        return True

    def _rewrite_piece(
        self, source: Source, cleaned: CleanedSegment, most: int, producers: Mapping[int, LastOfProducer]
    ) -> None:
        window, position = self._window_of(source), self._position
        end, offsets, scratch = min(source.size, position + most), self._offsets, self._scratch
        assert offsets is not None
        drop_old_tombstones = position < end and self._modified_ms(source) <= self._legacy_horizon_ms
        try:
            while position < end:
                view, at, header = window.at(position)
                if header[MAGIC_BYTE] == MAGIC:
                    behind = at + size_of(header)
                    discard, marks_nothing = self._fate(view, at, header)
                    kept = kept_of_batch(
                        offsets,
                        view,
                        at,
                        header,
                        discard=discard,
                        marks_nothing=marks_nothing,
                        keep_empty=self._stays_empty(header, producers),
                        now_ms=self._plan.now_ms,
                        horizon_ms=self._plan.now_ms + self._plan.config.delete_retention_ms,
                        scratch=scratch,
                    )
                else:
                    kept, behind = kept_of_messages(
                        offsets, view, at, drop_tombstones=drop_old_tombstones, scratch=scratch
                    )
                if kept is not None:
                    cleaned.add(*kept)
                position += behind - at
        except (RecordError, KafkaError) as error:
            raise self._uncleanable(source, position, error) from None
        self._position = position

    def _fate(self, view: memoryview, at: int, header: HeaderTuple) -> tuple[bool, bool]:
        """Whether all records of a batch go, and whether it is a marker that marks nothing."""
        if not header[ATTRIBUTES] & CONTROL:
            return self._transactions.is_aborted(header), False
        marks_nothing = self._marks_nothing(view, at, header)
        is_over = bool(header[ATTRIBUTES] & DELETE_HORIZON) and header[BASE_TIMESTAMP] <= self._plan.now_ms
        return marks_nothing and is_over, marks_nothing

    def _stays_empty(self, header: HeaderTuple, producers: Mapping[int, LastOfProducer]) -> bool:
        """Whether a batch's header stays without records: it is its producer's last, or the last of this pass."""
        if last_offset_of(header) + 1 == self._plan.end_offset:
            return True
        last = producers.get(header[PRODUCER_ID]) if header[PRODUCER_ID] >= 0 else None
        if last is None:
            return False
        if last.last_offset >= 0:
            return last_offset_of(header) == last.last_offset
        return bool(header[ATTRIBUTES] & CONTROL) and header[PRODUCER_EPOCH] == last.epoch

    # ---- files

    def _open(self, path: str) -> File:
        try:
            return self._disk.open(path, "read")
        except FileNotFoundError:
            raise GoneError(path) from None

    def _log_path(self, source: Source) -> str:
        return f"{self._plan.folder}/{segment_file_name(source.base_offset, 'log')}"

    def _modified_ms(self, source: Source) -> int:
        entry = self._disk.stat(self._log_path(source))
        if entry is None:
            raise GoneError(self._log_path(source))
        return entry.modified_ms

    def _window_of(self, source: Source) -> _Window:
        if self._window is None:
            self._window = _Window(self._open(self._log_path(source)), source.size, self._plan.chunk_bytes)
        return self._window

    def _next_source(self) -> None:
        self._at += 1
        self._position = 0
        self._close_window()

    def _close_window(self) -> None:
        if self._window is not None:
            self._window.close()
            self._window = None

    def _uncleanable(self, source: Source, position: int, error: RecordError | KafkaError) -> UncleanableError:
        reason = error.reason if isinstance(error, RecordError) else error.message
        return UncleanableError(f"{self._log_path(source)}: position {position}: {reason}")

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written so far."""
        writing = self._cleaned.size if self._cleaned is not None else 0
        return self.read_bytes + self.written_bytes + writing

    @property
    def map_share(self) -> float:
        """Which part of the memory for keys is taken: of Plan.map_bytes."""
        return 0.0 if self._offsets is None else self._offsets.used * SLOT_BYTES / self._plan.map_bytes

    def take_written(self) -> Written:
        """The group that is durable now; the caller puts it in place."""
        cleaned, self._cleaned = self._cleaned, None
        assert cleaned is not None
        return cleaned.written()

    def close(self) -> list[str]:
        """Give memory and descriptors back; the files of a segment that was not finished."""
        self._close_window()
        self._offsets = None
        if self._cleaned is None:
            return []
        self._cleaned.close()
        return cleaned_paths(self._plan.folder, self._cleaned.base_offset)


class _Window:
    """Some bytes of a segment's file, moved along."""

    def __init__(self, file: File, size: int, chunk_bytes: int) -> None:
        self._file = file
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._view = memoryview(b"")
        self._start = 0

    def at(self, position: int) -> tuple[memoryview, int, HeaderTuple]:
        """The batch or old message at a position: bytes that hold all of it, where in them it is, its header.

        Raises RecordError where there is none.
        """
        at = position - self._start
        if len(self._view) - at < HEADER_SIZE:
            at = self._read(position, self._chunk_bytes)
        header = header_at(self._view, at)
        if header is not None and position + size_of(header) <= self._size:
            size = size_of(header)
            if len(self._view) - at < size:
                at = self._read(position, max(self._chunk_bytes, size))
            if len(self._view) - at >= size:
                return self._view, at, header
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, position, "no batch starts here")

    def _read(self, position: int, size: int) -> int:
        self._view = memoryview(self._file.read(position, min(size, self._size - position)))
        self._start = position
        return 0

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
