"""Whether one partition's folder is what it should be: batches, indices, producers, transactions, epochs.

Called by verify. The log is read once, front to back; the entries of indices, of the leader epochs and of the producer
snapshots are compared as the batches they speak of pass by, so memory does not grow with the log.

| file | what must hold |
|---|---|
| .log | batches whole, checksums right, offsets rising and within the segment's bounds, epochs never falling |
| records (deep) | as many as the header says, well formed, offsets rising, largest timestamp as the header says |
| .index | whole entries, both columns rising; each names an append's last offset and its first batch's position |
| .timeindex | whole entries, timestamps rising; each names the end of the batch that had the largest timestamp so far |
| .txnindex | one entry for each abort marker, true to its transaction's first offset and to what was stable after it |
| .snapshot | checksum; each producer's last batch is in the log where it says, with that epoch and sequence |
| leader-epoch-checkpoint | both columns rise; every batch was written in the epoch that the file gives its offset |
| partition.metadata | a topic id |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Literal

from kbroker.log.aborted import AbortedTransaction, parse_aborted
from kbroker.log.checkpoints import EpochStart, parse_leader_epochs, parse_partition_metadata, read_text
from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.index import MAX_RELATIVE_OFFSET
from kbroker.log.names import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    SegmentPart,
    parse_segment_file_name,
    segment_file_name,
)
from kbroker.log.producer_state import ProducerEntry, parse_snapshot
from kbroker.log.tools.verify_index import OffsetIndexCheck, TimeIndexCheck, parse_offset_index, parse_time_index
from kbroker.log.tools.walk import Batch, batches, why_not
from kbroker.ports import Disk, Entry, File
from protocol.namedtuple import NamedTuple
from protocol.records import RecordError
from protocol.records.batch import MAGIC, NO_LEADER_EPOCH
from protocol.records.control_records import ControlType, parse_key

_PROGRESS_BYTES = 8 << 20  # how often progress is told within a segment


class Finding(NamedTuple):
    """Something about a file. where: "position 61", "line 3", "entry 7", or empty for the file as a whole."""

    level: Literal["fault", "note", "unreadable"]
    path: str
    where: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.where, self.text) if part)


class Progress(NamedTuple):
    """How many bytes have been looked at since the last one, or of how many, where total is given."""

    bytes_done: int
    bytes_total: int


def fault(path: str, text: str, where: str = "") -> Finding:
    """An invariant that does not hold."""
    return Finding("fault", path, where, text)


def harmless(path: str, text: str) -> Finding:
    """Something worth knowing, and harmless."""
    return Finding("note", path, "", text)


def unreadable(path: str, error: OSError) -> Finding:
    """A file that could not be judged."""
    return Finding("unreadable", path, "", error.strerror or str(error))


def unparsed(path: str, error: CorruptFileError) -> Finding:
    """A file whose format is broken, or newer than this program."""
    level: Literal["fault", "unreadable"] = "unreadable" if isinstance(error, NewerFormatError) else "fault"
    return Finding(level, path, error.where, error.reason)


class PartitionCheck:
    """The check of one partition's folder: `verify`, then the offsets are known.

    is_known: whether the log could be read to its end. log_start_offset, log_end_offset: as far as it could.
    """

    def __init__(self, disk: Disk, path: str, *, is_clean: bool, deep: bool = True, log_start_offset: int = 0) -> None:
        """is_clean: after a clean stop; then nothing may be unfinished. log_start_offset: what the checkpoint says."""
        self.is_known = False
        self.log_start_offset = log_start_offset
        self.log_end_offset = 0
        self._disk = disk
        self._path = path
        self._is_clean = is_clean
        self._deep = deep
        self._epochs: list[EpochStart] = []
        self._epoch = -1  # of the last batch
        self._producers: dict[int, _Last] = {}
        self._open: dict[int, int] = {}  # first offset of each producer's open transaction

    def verify(self) -> Iterator[Finding | Progress]:
        """Look at every file. Raises nothing."""
        try:
            entries = sorted(self._disk.list(self._path))
        except OSError as error:
            yield unreadable(self._path, error)
            return
        segments: dict[int, dict[SegmentPart, Entry]] = {}
        for entry in entries:
            file = parse_segment_file_name(entry.name)
            if file is not None and (entry.is_dir or entry.is_odd):
                yield fault(self._file(entry.name), "is no file: the next start sets it aside")
            elif file is not None and file.state == "live":
                segments.setdefault(file.base_offset, {})[file.part] = entry
            else:
                yield from self._verify_other(entry, file is not None)
        yield from self._read_epochs()
        logs = [base_offset for base_offset, parts in segments.items() if "log" in parts]
        yield from self._verify_orphans(segments, logs)
        snapshots = sorted(base_offset for base_offset, parts in segments.items() if "snapshot" in parts)
        if logs:
            self.log_start_offset = max(self.log_start_offset, logs[0])
            self.log_end_offset = logs[0]
        for at, base_offset in enumerate(logs):
            following = logs[at + 1] if at + 1 < len(logs) else None
            yield from self._verify_segment(base_offset, segments[base_offset], following, snapshots)
        self.is_known = True
        yield from self._verify_snapshots_behind(snapshots)
        if self._epochs and self._epochs[-1].start_offset > self.log_end_offset:
            where = f"{self._epochs[-1].start_offset} lies behind the log's end, {self.log_end_offset}"
            yield fault(self._file(LEADER_EPOCHS), f"epoch {self._epochs[-1].epoch}: {where}")

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"

    # ---- files beside the segments

    def _verify_other(self, entry: Entry, is_segment_file: bool) -> Iterator[Finding]:
        path = self._file(entry.name)
        if is_segment_file:
            yield harmless(path, "is on its way out, or in: the next start finishes that")
        elif entry.name == PARTITION_METADATA:
            yield from self._verify_metadata(path)
        elif entry.name.endswith((".tmp", ".pending")):
            yield harmless(path, "is left over from a replacement that did not finish")
        elif entry.name != LEADER_EPOCHS:
            yield harmless(path, f"is a foreign {'folder' if entry.is_dir else 'file'}; it is left alone")

    def _verify_metadata(self, path: str) -> Iterator[Finding]:
        try:
            parse_partition_metadata(read_text(self._disk, self._path, PARTITION_METADATA) or "")
        except CorruptFileError as error:
            yield unparsed(path, error)
        except OSError as error:
            yield unreadable(path, error)

    def _read_epochs(self) -> Iterator[Finding]:
        path = self._file(LEADER_EPOCHS)
        try:
            self._epochs = parse_leader_epochs(read_text(self._disk, self._path, LEADER_EPOCHS) or "")
        except CorruptFileError as error:
            yield unparsed(path, error)
        except OSError as error:
            yield unreadable(path, error)

    def _verify_orphans(
        self, segments: Mapping[int, Mapping[SegmentPart, Entry]], logs: list[int]
    ) -> Iterator[Finding]:
        for base_offset, parts in segments.items():
            for part, entry in parts.items():
                if base_offset not in logs and part != "snapshot":
                    yield fault(self._file(entry.name), "belongs to a segment whose .log is missing")
        if not logs:
            text = "holds no segment"
            yield fault(self._path, text) if self._is_clean else harmless(self._path, text)

    # ---- segments

    def _verify_segment(
        self, base_offset: int, parts: Mapping[SegmentPart, Entry], following: int | None, snapshots: list[int]
    ) -> Iterator[Finding | Progress]:
        check = _SegmentCheck(self, base_offset, parts, following)
        path = self._file(segment_file_name(base_offset, "log"))
        try:
            file = self._disk.open(path, "read")
        except OSError as error:
            yield unreadable(path, error)
            return
        try:
            yield from check.open()
            told, size = 0, file.size()  # once: what a broker appends from now on is not looked at
            for batch in batches(file, 0, size):
                while snapshots and snapshots[0] <= batch.header.base_offset:
                    yield from self._verify_snapshot(snapshots.pop(0))
                yield from check.batch(batch)
                self._note_batch(batch)
                if batch.end - told >= _PROGRESS_BYTES:
                    yield Progress(batch.end - told, 0)
                    told = batch.end
            yield from check.close(file, size)
            yield Progress(sum(entry.size for entry in parts.values()) - told, 0)
        except OSError as error:
            yield unreadable(path, error)
        finally:
            file.close()

    def _note_batch(self, batch: Batch) -> None:
        header = batch.header
        self.log_end_offset = max(self.log_end_offset, header.last_offset + 1)
        if header.partition_leader_epoch >= 0:
            self._epoch = header.partition_leader_epoch
        if header.magic == MAGIC and header.has_producer_id and not header.is_control and batch.intact:
            self._producers[header.producer_id] = _Last(
                header.producer_epoch, header.last_sequence, header.last_offset, header.last_offset_delta
            )
            if header.is_transactional:
                self._open.setdefault(header.producer_id, header.base_offset)

    def end_transaction(self, producer_id: int, marker_offset: int) -> tuple[int | None, int]:
        """A marker passes: where its transaction began, None if that was not seen, and the stable offset after it."""
        first_offset = self._open.pop(producer_id, None)
        return first_offset, min(self._open.values(), default=marker_offset + 1)

    def epoch_faults(self, batch: Batch, path: str) -> Iterator[Finding]:
        """A batch's leader epoch against those before it, and against the file."""
        header, where = batch.header, f"position {batch.position}"
        epoch, offset = header.partition_leader_epoch, header.base_offset
        if header.magic != MAGIC or epoch == NO_LEADER_EPOCH:
            return
        if epoch < 0:
            yield fault(path, f"leader epoch {epoch} is none", where)
            return
        if epoch < self._epoch:
            yield fault(path, f"leader epoch {epoch} follows {self._epoch}", where)
        while len(self._epochs) > 1 and self._epochs[1].start_offset <= offset:
            del self._epochs[0]
        if len(self._epochs) > 1 and self._epochs[1].start_offset <= header.last_offset:
            text = (
                f"epoch {self._epochs[1].epoch} starts at {self._epochs[1].start_offset}, within a batch from {offset}"
            )
            yield fault(self._file(LEADER_EPOCHS), text)
            del self._epochs[0]
        if header.last_offset < self.log_start_offset:
            return
        known = self._epochs[0] if self._epochs else EpochStart(-1, offset)
        if epoch > known.epoch and len(self._epochs) < 2 and not self._is_clean:
            return  # the file may lag behind: recovery brings it up to date
        if known.start_offset > max(offset, self.log_start_offset):
            text = f"offset {offset} was written in epoch {epoch}, the file begins with offset {known.start_offset}"
            yield fault(self._file(LEADER_EPOCHS), text)
        elif known.epoch != epoch:
            text = f"offset {offset} was written in epoch {epoch}, the file says {known.epoch}"
            yield fault(self._file(LEADER_EPOCHS), text)

    # ---- producers

    def _verify_snapshot(self, offset: int) -> Iterator[Finding]:
        """A snapshot against the batches that passed before its offset."""
        path = self._file(segment_file_name(offset, "snapshot"))
        try:
            file = self._disk.open(path, "read")
            try:
                entries = parse_snapshot(file.read(0, file.size()))
            finally:
                file.close()
        except CorruptFileError as error:
            yield unparsed(path, error)
            return
        except OSError as error:
            yield unreadable(path, error)
            return
        for producer_id, entry in entries:
            text = self._producer_fault(producer_id, entry, offset)
            if text is not None:
                yield fault(path, f"producer {producer_id}: {text}")

    def _producer_fault(self, producer_id: int, entry: ProducerEntry, offset: int) -> str | None:
        if entry.txn_first_offset >= offset:
            return f"a transaction from offset {entry.txn_first_offset} on, behind the snapshot's {offset}"
        if not entry.batches:
            return None
        span, last = entry.batches[-1], self._producers.get(producer_id)
        if span.last_offset >= offset:
            return f"a batch up to offset {span.last_offset}, behind the snapshot's {offset}"
        if span.last_offset < self.log_start_offset or (last is not None and last.epoch > entry.epoch):
            return None
        if last is None:
            return None  # compaction may have taken its batches
        if (span.last_offset, span.last_sequence) != (last.last_offset, last.last_sequence):
            return (
                f"last sequence {span.last_sequence} at offset {span.last_offset}, "
                f"the log has {last.last_sequence} at {last.last_offset}"
            )
        return None

    def _verify_snapshots_behind(self, snapshots: list[int]) -> Iterator[Finding]:
        for offset in snapshots:
            if offset > self.log_end_offset:
                path = self._file(segment_file_name(offset, "snapshot"))
                yield fault(path, f"lies behind the log's end, {self.log_end_offset}")
            else:
                yield from self._verify_snapshot(offset)


class _Last(NamedTuple):
    """The last batch of a producer that passed by."""

    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int


class _SegmentCheck:
    """The check of one segment: its batches as they pass, and its other parts along with them."""

    def __init__(
        self, partition: PartitionCheck, base_offset: int, parts: Mapping[SegmentPart, Entry], following: int | None
    ) -> None:
        self._partition = partition
        self._base_offset = base_offset
        self._parts = parts
        self._following = following
        self._path = partition._file(segment_file_name(base_offset, "log"))
        self._next_offset = base_offset
        self._end = 0
        self._offsets: OffsetIndexCheck | None = None
        self._times: TimeIndexCheck | None = None
        self._aborted: list[AbortedTransaction] = []

    def open(self) -> Iterator[Finding]:
        """Read the parts that go along."""
        active = self._following is None and not self._partition._is_clean
        for part, read in (
            ("index", lambda content: self._open_offsets(content, active)),
            ("timeindex", lambda content: self._open_times(content, active)),
            ("txnindex", self._open_aborted),
        ):
            yield from self._open(part, read)  # type: ignore[arg-type]

    def _open(self, part: SegmentPart, read: Callable[[bytes], Iterator[Finding]]) -> Iterator[Finding]:
        path = self._part(part)
        if part not in self._parts:
            if part != "txnindex":
                yield fault(path, "is missing: the next start rebuilds it")
            return
        try:
            file = self._partition._disk.open(path, "read")
            try:
                content = file.read(0, file.size())
            finally:
                file.close()
            yield from read(content)
        except CorruptFileError as error:
            yield unparsed(path, error)
        except OSError as error:
            yield unreadable(path, error)

    def _part(self, part: SegmentPart) -> str:
        return self._partition._file(segment_file_name(self._base_offset, part))

    def _open_offsets(self, content: bytes, may_be_laid_out: bool) -> Iterator[Finding]:
        entries, faults = parse_offset_index(content, self._base_offset, may_be_laid_out)
        self._offsets = OffsetIndexCheck(entries)
        return (fault(self._part("index"), text, where) for where, text in faults)

    def _open_times(self, content: bytes, may_be_laid_out: bool) -> Iterator[Finding]:
        entries, faults = parse_time_index(content, self._base_offset, may_be_laid_out)
        self._times = TimeIndexCheck(entries)
        return (fault(self._part("timeindex"), text, where) for where, text in faults)

    def _open_aborted(self, content: bytes) -> Iterator[Finding]:
        path = self._part("txnindex")
        self._aborted = parse_aborted(content)
        surplus = len(content) - 34 * len(self._aborted)
        if surplus:
            yield fault(path, f"ends with {surplus} bytes that are no entry")
        for at, (before, after) in enumerate(pairwise(self._aborted), start=1):
            if after.last_offset <= before.last_offset:
                text = f"a marker at offset {after.last_offset} follows one at {before.last_offset}"
                yield fault(path, text, f"entry {at}")

    # ---- batches

    def batch(self, batch: Batch) -> Iterator[Finding]:
        """One batch goes by."""
        header, where = batch.header, f"position {batch.position}"
        if not batch.intact:
            yield fault(self._path, "the checksum does not hold", where)
        if header.base_offset < self._next_offset:
            yield fault(self._path, f"offset {header.base_offset} where {self._next_offset} is the least", where)
        if self._following is not None and header.last_offset >= self._following:
            yield fault(self._path, f"offset {header.last_offset} belongs to the segment {self._following}", where)
        if header.last_offset - self._base_offset > MAX_RELATIVE_OFFSET:
            yield fault(self._path, f"offset {header.last_offset} is too far from the segment's first", where)
        yield from self._partition.epoch_faults(batch, self._path)
        if self._partition._deep and batch.intact:
            yield from self._verify_records(batch)
        if self._offsets is not None:
            for entry, text in self._offsets.batch(batch):
                yield fault(self._part("index"), text, f"entry {entry}")
        if self._times is not None:
            for entry, text in self._times.batch(batch):
                yield fault(self._part("timeindex"), text, f"entry {entry}")
        yield from self._verify_aborted(batch)
        self._next_offset = header.last_offset + 1
        self._end = batch.end

    def _verify_records(self, batch: Batch) -> Iterator[Finding]:
        header, where = batch.header, f"position {batch.position}"
        try:
            records = batch.records()
        except RecordError as error:
            yield fault(self._path, error.message, where)
            return
        # An old message has its own offset, a wrapper its last message's; behind which one it came nothing else says.
        offset = header.base_offset - 1 if header.magic == MAGIC else self._next_offset - 1
        for record in records:
            if record.offset <= offset or record.offset > header.last_offset:
                yield fault(self._path, f"a record with offset {record.offset} behind one with {offset}", where)
                return
            offset = record.offset
        if header.magic != MAGIC:
            if offset != header.last_offset:
                yield fault(self._path, f"offset {header.last_offset}, its last record has {offset}", where)
            return
        largest = max((record.timestamp for record in records), default=header.max_timestamp)
        if largest != header.max_timestamp:
            text = f"the largest timestamp is {largest}, the header says {header.max_timestamp}"
            yield fault(self._path, text, where)
        if header.is_control and records:
            try:
                parse_key(records[0].key)
            except RecordError as error:
                yield fault(self._path, error.message, where)

    def _verify_aborted(self, batch: Batch) -> Iterator[Finding]:
        """The abort markers against the index of aborted transactions."""
        header, path = batch.header, self._part("txnindex")
        first_offset, stable_offset = None, -1
        if header.magic == MAGIC and header.is_control and header.is_transactional:
            first_offset, stable_offset = self._partition.end_transaction(header.producer_id, header.last_offset)
            if (
                first_offset is not None
                and batch.intact
                and _is_abort(batch)
                and not self._has_entry(header.last_offset)
            ):
                yield fault(path, f"nothing says that the transaction up to offset {header.last_offset} was aborted")
        while self._aborted and self._aborted[0].last_offset <= header.last_offset:
            entry = self._aborted.pop(0)
            name = f"entry of producer {entry.producer_id} and offset {entry.last_offset}"
            is_there = stable_offset >= 0 and entry.last_offset == header.last_offset and _is_abort(batch)
            if not is_there or header.producer_id != entry.producer_id:
                yield fault(path, f"{name}: there is no such abort marker")
            elif first_offset is not None and entry.first_offset != first_offset:
                yield fault(path, f"{name}: begins at {entry.first_offset}, the log has {first_offset}")
            elif first_offset is not None and entry.last_stable_offset != stable_offset:
                yield fault(path, f"{name}: stable up to {entry.last_stable_offset}, the log has {stable_offset}")

    def _has_entry(self, marker_offset: int) -> bool:
        return bool(self._aborted) and self._aborted[0].last_offset <= marker_offset

    def close(self, file: File, size: int) -> Iterator[Finding]:
        """The segment's end has passed. size: what was looked at."""
        if self._end < size:
            left = size - self._end
            text = f"{left} bytes at the end are no batch: {why_not(file, self._end, size)}"
            yield fault(self._path, text, f"position {self._end}")
        for check, part in ((self._offsets, "index"), (self._times, "timeindex")):
            for entry, text in check.rest() if check is not None else ():
                yield fault(self._part(part), text, f"entry {entry}")  # type: ignore[arg-type]
        for aborted in self._aborted:
            name = f"entry of producer {aborted.producer_id} and offset {aborted.last_offset}"
            yield fault(self._part("txnindex"), f"{name}: there is no such abort marker")


def _is_abort(batch: Batch) -> bool:
    try:
        records = batch.records()
        return bool(records) and parse_key(records[0].key) is ControlType.ABORT
    except RecordError:
        return False
