"""Log directories read straight from disk: which segment files a read needs, and each of them as Arrow.

Called by the data source on the driver (`plan`) and by its tasks (`rows`), one a segment. Reads beside a running
broker: whatever is whole is taken, nothing is written, no lock is asked for. Offsets and times that a query asks for
lead through the index files to the first position worth reading.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from kbroker.log.aborted import parse_aborted
from kbroker.log.checkpoints import parse_offsets
from kbroker.log.errors import CorruptFileError
from kbroker.log.names import parse_folder_name, parse_segment_file_name
from kbroker.log.producer_state import parse_snapshot
from kbroker.pipeline.columns import Span, decoded, end_of_batches, note_transactions, size_of_batch
from kbroker.pipeline.errors import PipelineError
from kbroker.runtime.platform import preadv
from protocol.namedtuple import NamedTuple
from protocol.records import RecordError

LAST_OFFSET = 2**63 - 1
PAGE = mmap.PAGESIZE
READ_BYTES = 1 << 20
"""Read at a time: from a quarter of it on there was no difference."""
_OFFSET_ENTRY = np.dtype([("relative", ">u4"), ("position", ">u4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative", ">u4")])


class Wanted(NamedTuple):
    """Which records a query asks for; all of them if nothing else is said. end: not with it. since: ms. keys: a reader
    looks at them, `plan` does not."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start: int = 0
    end: int = LAST_OFFSET
    since: int | None = None
    keys: frozenset[bytes] | None = None

    def has(self, place: tuple[str, int]) -> bool:
        """Whether a partition is one of those that are asked for."""
        topic, partition = place
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )


class Segment(NamedTuple):
    """One task: a .log file from a position on, and the records of it that are wanted."""

    path: str
    span: Span
    position: int
    aborted: tuple[tuple[int, int], ...] | None


def plan(folder: str, wanted: Wanted, *, committed: bool) -> list[Segment]:
    """The segments that hold what is wanted, of a log directory or of one partition's folder.

    committed: leave out the records of aborted transactions, and all from the first that is open on. Raises
    PipelineError if the folder is none.
    """
    root = Path(folder)
    if not root.is_dir():
        raise PipelineError(f"{folder}: there is no such folder")
    own = parse_folder_name(root.name)
    places = [root] if own is not None and any(root.glob("*.log")) else sorted(root.iterdir())
    base = root.parent if places == [root] else root
    starts = _log_starts(base)
    segments = []
    for place in places:
        found = parse_folder_name(place.name) if place.is_dir() else None
        if found is None or found.state != "live":
            continue
        topic, partition = found.topic_partition
        if wanted.topics is not None and topic not in wanted.topics:
            continue
        if wanted.partitions is not None and partition not in wanted.partitions:
            continue
        from_start = wanted._replace(start=max(wanted.start, starts.get((topic, partition), 0)))
        segments += _of_partition(place, topic, partition, from_start, committed)
    return segments


def topics(folder: str) -> set[str]:
    """The topics that have a partition in a log directory."""
    found = (parse_folder_name(place.name) for place in Path(folder).iterdir() if place.is_dir())
    return {each.topic_partition.topic for each in found if each is not None and each.state == "live"}


def _log_starts(root: Path) -> dict[tuple[str, int], int]:
    """Where logs begin although their first segment holds more: after DeleteRecords."""
    path = root / "log-start-offset-checkpoint"
    if not path.exists():
        return {}
    return {(place.topic, place.partition): offset for place, offset in parse_offsets(path.read_text()).items()}


def _of_partition(place: Path, topic: str, partition: int, wanted: Wanted, committed: bool) -> list[Segment]:
    bases = sorted(
        found.base_offset
        for path in place.glob("*.log")
        if (found := parse_segment_file_name(path.name)) is not None and found.state == "live"
    )
    if committed:  # before the aborted ones are read: what is ended by now is in their files
        wanted = wanted._replace(end=min(wanted.end, _last_stable(place, bases)))
    gone = _aborted(place, bases) if committed else ()
    segments = []
    for base, after in zip(bases, [*bases[1:], LAST_OFFSET], strict=True):
        if after <= wanted.start or base >= wanted.end:
            continue
        span = Span(topic, partition, max(base, wanted.start), min(after, wanted.end))
        start = span.start
        if wanted.since is not None:
            later = _offset_at(place, base, wanted.since)
            if later is None and after != LAST_OFFSET:
                continue  # nothing in this segment is so young
            start = max(start, later or 0)
        position = _position_of(place, base, start) if start > base else 0
        if os.path.getsize(place / f"{base:020}.log") <= position:
            continue
        mine = tuple((producer, first) for producer, first, last in gone if first < span.end and last >= start)
        path = str(place / f"{base:020}.log")
        segments.append(Segment(path, span._replace(start=start), position, mine if committed else None))
    return segments


def _aborted(place: Path, bases: Sequence[int]) -> list[tuple[int, int, int]]:
    """(producer_id, first_offset, last_offset) of every aborted transaction of the partition."""
    found = []
    for base in bases:
        path = place / f"{base:020}.txnindex"
        if path.exists():
            found += [
                (each.producer_id, each.first_offset, each.last_offset) for each in parse_aborted(path.read_bytes())
            ]
    return found


def _last_stable(place: Path, bases: Sequence[int]) -> int:
    """The offset of the first transaction that is open, or the log's end: Kafka's last stable offset.

    The batches behind the newest producer snapshot that reads well are looked at, all of them if there is none.
    """
    start, begun = _snapshot(place)
    end = start
    for base, after in zip(bases, [*bases[1:], LAST_OFFSET], strict=True):
        if after <= start:
            continue
        with open(place / f"{base:020}.log", "rb", buffering=0) as file:
            pieces = Pieces(file.fileno(), _position_of(place, base, start) if start > base else 0)
            try:
                for piece in pieces.whole_batches():
                    end = max(end, note_transactions(piece, begun))
            except RecordError:
                return LAST_OFFSET  # who reads this segment tells what is wrong with it
    return min(begun.values(), default=end)


def _snapshot(place: Path) -> tuple[int, dict[int, int]]:
    """The offset of the newest producer snapshot, and where the transactions begin that are open there: by producer."""
    names = (parse_segment_file_name(path.name) for path in place.glob("*.snapshot"))
    for offset in sorted((each.base_offset for each in names if each and each.state == "live"), reverse=True):
        with suppress(FileNotFoundError, CorruptFileError):
            found = parse_snapshot((place / f"{offset:020}.snapshot").read_bytes())
            return offset, {producer: each.txn_first_offset for producer, each in found if each.txn_first_offset >= 0}
    return 0, {}


def _entries(path: Path, kind: np.dtype) -> np.ndarray:
    """The entries of an index file, without the zeros behind them that a writer has laid out; none if it is missing."""
    if not path.exists():
        return np.empty(0, kind)
    content = path.read_bytes()
    entries = np.frombuffer(content[: len(content) // kind.itemsize * kind.itemsize], kind)
    used = np.flatnonzero((entries["relative"] > 0) | (entries[kind.names[0]] > 0))
    return entries[: int(used[-1]) + 1] if len(used) else entries[:0]


def _position_of(place: Path, base: int, offset: int) -> int:
    """A position at or before the batch that holds the offset."""
    entries = _entries(place / f"{base:020}.index", _OFFSET_ENTRY)
    slot = int(np.searchsorted(entries["relative"].astype(np.int64), offset - base, side="right")) - 1
    return int(entries["position"][slot]) if slot >= 0 else 0


def _offset_at(place: Path, base: int, since: int) -> int | None:
    """An offset before which nothing is as young as `since`; None if nothing in the segment is, as the index has it."""
    entries = _entries(place / f"{base:020}.timeindex", _TIME_ENTRY)
    older = int(np.searchsorted(entries["timestamp"].astype(np.int64), since, side="left"))
    if len(entries) and older == len(entries):
        return None
    return base + int(entries["relative"][older - 1]) + 1 if older else base


def rows(segment: Segment, *, headers: bool) -> Iterator[pa.RecordBatch]:
    """The wanted records of a segment. Raises PipelineError, naming the file, where it is damaged."""
    aborted = None if segment.aborted is None else lambda: segment.aborted or ()
    with open(segment.path, "rb", buffering=0) as file:
        pieces = Pieces(file.fileno(), segment.position)
        try:
            yield from decoded(pieces.whole_batches(), segment.span, headers=headers, aborted=aborted)
        except RecordError as error:
            record = "" if error.index is None else f", record {error.index}"
            where = f"position {pieces.position + error.position}{record}"
            raise PipelineError(
                f"{segment.path}: {where}: {error.code.name}: {error.reason}: `kbroker verify-log` says more; a broker "
                "that starts after an unclean stop mends it"
            ) from None


class Pieces:
    """A file's whole batches from a position on, some at a time, in memory that is used again.

    position: in the file, of the piece handed out last. What the file has when this is made is read, not what is
    written to it later. It is not mapped: where a broker cuts a mapped file back, its reader's process is killed. Here
    the pieces end with the last batch that was whole when it was read. Where that broker has written again behind its
    cut, this is read if it begins where a batch of before ended; if not, it is told as damage or taken for the end.
    """

    def __init__(self, fd: int, position: int) -> None:
        self.position = position
        self._fd, self._size = fd, os.fstat(fd).st_size
        self._room = READ_BYTES + PAGE  # for what a read leaves: never more, as it has all of the batch begun before
        self._view = memoryview(b"")

    def whole_batches(self) -> Iterator[memoryview]:
        """Pieces of the file, without gaps; each is valid until the next one is asked for.

        Pages of the file are read to pages of the memory: copies to a few bytes behind that take several times as long
        on some processors.
        """
        self._next = self.position - self.position % PAGE  # in the file: what is read next
        size = self._have_memory(READ_BYTES)
        start = self._room + self.position % PAGE  # in the memory: what has not been handed out
        while read := self._read(size):
            piece = self._view[start : self._room + read]
            self.position = self._next - len(piece)
            whole = end_of_batches(piece)
            yield piece[:whole]
            rest = piece[whole:]
            missing = size_of_batch(rest) - len(rest)
            if missing > self._size - self._next:
                break
            size = self._have_memory(missing)
            start = self._room - len(rest)
            self._view[start : self._room] = rest

    def _have_memory(self, missing: int) -> int:
        """Have memory for the room, and behind it for so many bytes at least: for how many of them."""
        size = max(_pages(missing), READ_BYTES)
        if self._room + size > len(self._view):
            self._view = memoryview(mmap.mmap(-1, self._room + size))  # begins at a page
        return size

    def _read(self, size: int) -> int:
        """Read on, until there are so many bytes behind the room, or the file ends: how many there are."""
        size, got = min(size, self._size - self._next), 0
        while got < size:
            count = preadv(self._fd, [self._view[self._room + got : self._room + size]], self._next + got)
            if not count:
                self._size = self._next + got  # it has been cut back
                break
            got += count
        self._next += got
        return got


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
