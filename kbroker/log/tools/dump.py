"""What is in one file of a log directory, as lines of named values, in the order and with the names of Apache's tool.

Called by `kbroker dump-log`, which prints them as text or JSON. Reads only; needs no broker and takes no lock. A file
that is not what it should be ends in a `Fault` or a CorruptFileError, never in anything else.

Source: Kafka documentation, "Operations", kafka-dump-log; the names are those that Apache's tool prints.
"""

from __future__ import annotations

import errno
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct

from kbroker.log.aborted import parse_aborted
from kbroker.log.checkpoints import (
    format_uuid,
    parse_clean_shutdown,
    parse_leader_epochs,
    parse_offsets,
    parse_partition_metadata,
    read_text,
)
from kbroker.log.errors import CorruptFileError
from kbroker.log.metaproperties import parse_meta_properties
from kbroker.log.names import CLEAN_SHUTDOWN, LEADER_EPOCHS, META_PROPERTIES, OFFSET_CHECKPOINTS, PARTITION_METADATA
from kbroker.log.producer_state import NONE, parse_snapshot
from kbroker.log.scan import headers
from kbroker.log.tools.message_json import as_json, json_line
from kbroker.log.tools.walk import Batch, batches, why_not
from kbroker.ports import Disk, File
from protocol.message import DecodeError
from protocol.namedtuple import NamedTuple
from protocol.records import Record, RecordError, legacy
from protocol.records.batch import LARGEST_SEQUENCE, MAGIC, NO_SEQUENCE, HeaderTuple, last_offset_of, size_of
from protocol.records.compression import codec_of
from protocol.records.control_records import ControlType, parse_key, parse_marker, parse_quorum_record

Value = int | str | bool | None | list[str]

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")
_SEGMENT_FILE = re.compile(
    r"([0-9]{1,20})\.(log|index|timeindex|txnindex|snapshot)(\.deleted|\.swap|\.cleaned)?", re.ASCII
)
_KRAFT_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint", re.ASCII)
MAX_BYTES = 2**31 - 1


class Line(NamedTuple):
    """One thing found. kind: what it is; fields: its values in the order they are shown."""

    kind: str
    fields: dict[str, Value]


class Said(NamedTuple):
    """A sentence of the tool's."""

    text: str


class Fault(NamedTuple):
    """Something in a file that is wrong. title: shown once above all faults of the kind and file."""

    title: str
    text: str


Shown = Line | Said | Fault
Decoder = Callable[[Record], tuple[str | None, str | None]]
"""From a record to what is shown of its key and its value; None for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What of a file is wanted; the flags of Apache's tool by the same names."""

    deep_iteration: bool = False
    print_data: bool = False
    skip_record_metadata: bool = False
    index_sanity_only: bool = False
    verify_only: bool = False
    max_message_bytes: int = 5 << 20
    max_bytes: int = MAX_BYTES
    decoder: Decoder | None = None
    shown_path: str = ""  # as the user wrote it


def is_known(name: str) -> bool:
    """Whether a file of this name can be dumped."""
    return (
        _SEGMENT_FILE.fullmatch(name) is not None
        or _KRAFT_SNAPSHOT.fullmatch(name) is not None
        or name in _TEXT_FILES
        or name == "bootstrap.checkpoint"
    )


def dump(disk: Disk, path: str, options: DumpOptions) -> Iterator[Shown]:
    """What is in a file. Raises OSError; CorruptFileError, with its path, where the rest makes no sense."""
    folder, _, name = path.rpartition("/")
    found = _SEGMENT_FILE.fullmatch(name)
    try:
        if found is not None:
            yield from _dump_segment_file(disk, path, int(found[1]), found[2], found[3] or "", options)
        elif name in _TEXT_FILES:
            text = read_text(disk, folder, name)
            if text is None:  # which is not what an empty one says
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            yield from _TEXT_FILES[name](text)
        else:
            yield from _dump_kraft_snapshot(disk, path, name, options)
    except CorruptFileError as error:
        raise error.at(path) from None


def _dump_segment_file(
    disk: Disk, path: str, base_offset: int, part: str, state: str, options: DumpOptions
) -> Iterator[Shown]:
    if part == "log":
        yield Said(f"Log starting offset: {base_offset}")
        yield from _dump_log(disk, path, options)
    elif part == "index":
        yield from _dump_index(disk, path, base_offset, state, options)
    elif part == "timeindex":
        yield from _dump_time_index(disk, path, base_offset, state, options)
    elif part == "txnindex":
        yield from _dump_aborted(_content(disk, path))
    else:
        yield from _dump_producers(_content(disk, path))


def _content(disk: Disk, path: str) -> bytes:
    file = disk.open(path, "read")
    try:
        return file.read(0, file.size())
    finally:
        file.close()


# ---- batches and records


def _dump_kraft_snapshot(disk: Disk, path: str, name: str, options: DumpOptions) -> Iterator[Shown]:
    found = _KRAFT_SNAPSHOT.fullmatch(name)
    yield Said(f"Snapshot end offset: {int(found[1])}, epoch: {int(found[2])}" if found else "KRaft bootstrap snapshot")
    yield from _dump_log(disk, path, options)


def _dump_log(disk: Disk, path: str, options: DumpOptions) -> Iterator[Shown]:
    file = disk.open(path, "read")
    try:
        size = file.size()
        limit = min(size, options.max_bytes)
        position, last_offset = 0, -1
        for batch in batches(file, 0, limit):
            yield Line("batch", _batch_fields(batch))
            position = batch.end
            if not options.deep_iteration:
                continue
            try:
                records, checksums = batch.records(), _legacy_checksums(batch)
            except RecordError as error:
                yield Fault(f"Broken records in {path}", f"batch at position {batch.position}: {error.message}")
                continue
            for at, record in enumerate(records):
                if last_offset >= 0 and record.offset != last_offset + 1:
                    text = f"{last_offset} is followed by {record.offset}"
                    yield Fault(f"Non-consecutive offsets in {path}", text)
                last_offset = record.offset
                yield Line("record", _record_fields(batch, record, checksums[at] if checksums else 0, options))
        if limit > position and options.max_bytes == MAX_BYTES:
            yield Said(f"Found {limit - position} invalid bytes at the end of {path.rpartition('/')[2]}")
            yield Fault(f"Invalid bytes in {path}", f"position {position}: {why_not(file, position, size)}")
    finally:
        file.close()


def _batch_fields(batch: Batch) -> dict[str, Value]:
    header = batch.header
    if header.magic == MAGIC:
        fields: dict[str, Value] = {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.records_count,
            "baseSequence": header.base_sequence,
            "lastSequence": header.last_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.partition_leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.delete_horizon_ms,
        }
    else:
        fields = {"offset": header.base_offset}
    return fields | {
        "position": batch.position,
        batch.time_type: header.max_timestamp,
        "size": len(batch.data),
        "magic": header.magic,
        "compresscodec": _codec_name(header.codec_id),
        "crc": header.crc,
        "isvalid": batch.intact,
    }


def _codec_name(codec_id: int) -> str:
    try:
        return codec_of(codec_id).name
    except RecordError:
        return f"unknown({codec_id})"


def _record_fields(batch: Batch, record: Record, checksum: int, options: DumpOptions) -> dict[str, Value]:
    header = batch.header
    fields: dict[str, Value] = {}
    if not options.skip_record_metadata:
        fields["offset"] = record.offset
        fields[batch.time_type] = record.timestamp
        fields["keySize"] = -1 if record.key is None else len(record.key)
        fields["valueSize"] = -1 if record.value is None else len(record.value)
        if header.magic == MAGIC:
            fields["sequence"] = _sequence(batch, record)
            fields["headerKeys"] = [key.decode(errors="replace") for key, _ in record.headers]
        else:
            fields |= {"isValid": batch.intact, "crc": checksum}
        if header.is_control:
            fields |= _control_fields(record)
    if options.print_data and not header.is_control:
        assert options.decoder is not None
        key, payload = options.decoder(record)
        if key is not None:
            fields["key"] = key
        if payload is not None:
            fields["payload"] = payload
    return fields


def _sequence(batch: Batch, record: Record) -> int:
    header = batch.header
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + record.offset - header.base_offset) & LARGEST_SEQUENCE


def _legacy_checksums(batch: Batch) -> list[int]:
    """The checksum of each message of v0 or v1: within a wrapper they have their own."""
    if batch.header.magic == MAGIC:
        return []
    (message,) = legacy.scan(batch.data)
    return [each.crc for each in legacy.inner_messages(batch.data, message)] if message.codec_id else [message.crc]


_QUORUM_TITLES = {
    ControlType.LEADER_CHANGE: "LeaderChange",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlType.KRAFT_VERSION: "KRaftVersion",
    ControlType.KRAFT_VOTERS: "KRaftVoters",
}
"""Control records of a quorum, as Apache's tool calls them."""


def _control_fields(record: Record) -> dict[str, Value]:
    try:
        kind = parse_key(record.key)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            marker = parse_marker(record)
            return {"endTxnMarker": marker.control_type.name, "coordinatorEpoch": marker.coordinator_epoch}
        message = parse_quorum_record(record)
        if message is not None:
            version = min(int.from_bytes((record.value or b"")[:2], "big"), type(message).versions[1])
            return {_QUORUM_TITLES[kind]: json_line(as_json(message, version))}
    except RecordError as error:
        return {"broken": error.message}
    except DecodeError as error:
        return {"broken": str(error)}
    number = int.from_bytes((record.key or b"")[2:4], "big", signed=True)
    return {"controlType": f"{kind.name}({number})"}


# ---- indices


class _Entries:
    """The entries of an index, as the file has them."""

    def __init__(self, content: bytes, base_offset: int, entry: Struct) -> None:
        whole = len(content) - len(content) % entry.size
        self.rows = list(entry.iter_unpack(content[:whole]))
        self.base_offset = base_offset
        self.surplus = len(content) - whole

    def sanity_fault(self, entry_size: int) -> str | None:
        """What keeps a broker from using the index as it is, None if nothing does."""
        if self.surplus:
            return f"holds {self.surplus} bytes more than entries of {entry_size} bytes"
        return None


class _Positions:
    """From offsets to positions, by an offset index."""

    def __init__(self, index: _Entries) -> None:
        rows = index.rows
        used = next((at for at, (relative, _) in enumerate(rows) if at and not relative), len(rows))
        self._offsets = [index.base_offset + relative for relative, _ in rows[:used]]
        self._positions = [position for _, position in rows[:used]]

    def before(self, offset: int) -> int:
        """Where the last entry at or before an offset points, 0 if there is none."""
        at = bisect_right(self._offsets, offset)
        return self._positions[at - 1] if at else 0


def _last_offset(header: HeaderTuple) -> int:
    return last_offset_of(header)


def _dump_index(disk: Disk, path: str, base_offset: int, state: str, options: DumpOptions) -> Iterator[Shown]:
    entries = _Entries(_content(disk, path), base_offset, _OFFSET_ENTRY)
    if not entries.rows:
        yield Said(f"{options.shown_path or path} is empty.")
        return
    if options.index_sanity_only:
        yield _sanity(
            options.shown_path or path, entries.sanity_fault(8) or _last_entry_fault([row[0] for row in entries.rows])
        )
        return
    file = _log_of(disk, path, base_offset, state)
    try:
        size = file.size()
        for at, (relative, position) in enumerate(entries.rows):
            if relative == 0 and at > 0:
                return  # laid out and not used
            offset = base_offset + relative
            batch = next(headers(file, position, min(size, position + options.max_message_bytes)), None)
            if batch is None or _last_offset(batch[1]) != offset:
                found = "none" if batch is None else str(_last_offset(batch[1]))
                yield Fault(f"Mismatches in :{path}", f"Index offset: {offset}, log offset: {found}")
            if not options.verify_only:
                yield Line("indexEntry", {"offset": offset, "position": position})
    finally:
        file.close()


def _dump_time_index(disk: Disk, path: str, base_offset: int, state: str, options: DumpOptions) -> Iterator[Shown]:
    entries = _Entries(_content(disk, path), base_offset, _TIME_ENTRY)
    if options.index_sanity_only:
        fault = entries.sanity_fault(12)
        if entries.rows and fault is None:
            fault = _last_entry_fault([row[0] for row in entries.rows])
        yield _sanity(options.shown_path or path, fault)
        return
    index = _Entries(_content(disk, _sibling(path, base_offset, "index", state)), base_offset, _OFFSET_ENTRY)
    positions = _Positions(index)
    file = _log_of(disk, path, base_offset, state)
    try:
        previous = -1
        for at, (timestamp, relative) in enumerate(entries.rows):
            if relative == 0 and at > 0:
                return
            yield from _check_time_entry(file, path, positions, (timestamp, base_offset + relative), previous)
            if not options.verify_only:
                yield Line("timeIndexEntry", {"timestamp": timestamp, "offset": base_offset + relative})
            previous = timestamp
    finally:
        file.close()


def _check_time_entry(
    file: File, path: str, positions: _Positions, entry: tuple[int, int], previous: int
) -> Iterator[Fault]:
    """Whether the entry names the end of a batch, and the largest timestamp in it."""
    timestamp, offset = entry
    walk = headers(file, positions.before(offset), file.size())
    position, header = next((each for each in walk if _last_offset(each[1]) >= offset), (0, None))
    if header is None or _last_offset(header) != offset:
        found = -1 if header is None else _last_offset(header)
        title = "The following indexed offsets are not found in the log."
        yield Fault(title, f"Indexed offset: {offset}, found log offset: {found}")
        return
    batch = next(batches(file, position, position + size_of(header)), None)
    if batch is None:  # its broker has cut it off meanwhile
        return
    try:
        largest = max((record.timestamp for record in batch.records()), default=batch.header.max_timestamp)
    except RecordError:
        largest = batch.header.max_timestamp
    if largest != timestamp:
        title = f"Found timestamp mismatch in :{path}"
        yield Fault(title, f"  Index timestamp: {timestamp}, log timestamp: {largest}")
    if previous >= timestamp:
        title = f"Found out of order timestamp in :{path}"
        yield Fault(title, f"  Index timestamp: {timestamp}, Previously indexed timestamp: {previous}")


def _last_entry_fault(column: list[int]) -> str | None:
    """An index is usable if its last entry is not before its first."""
    if column[-1] < column[0]:
        return f"the last entry, {column[-1]}, lies before the first, {column[0]}"
    return None


def _sanity(path: str, fault: str | None) -> Shown:
    return Said(f"{path} passed sanity check.") if fault is None else Fault(f"Failed sanity check: {path}", fault)


def _sibling(path: str, base_offset: int, part: str, state: str) -> str:
    folder, _, name = path.rpartition("/")
    stem = name.partition(".")[0]
    return f"{folder}/{stem}.{part}{state}"


def _log_of(disk: Disk, path: str, base_offset: int, state: str) -> File:
    """The .log that an index belongs to."""
    return disk.open(_sibling(path, base_offset, "log", state), "read")


# ---- producers, transactions, text


def _dump_aborted(content: bytes) -> Iterator[Shown]:
    for entry in parse_aborted(content):
        yield Line(
            "abortedTransaction",
            {
                "version": 0,
                "producerId": entry.producer_id,
                "firstOffset": entry.first_offset,
                "lastOffset": entry.last_offset,
                "lastStableOffset": entry.last_stable_offset,
            },
        )


def _dump_producers(content: bytes) -> Iterator[Shown]:
    for producer_id, entry in parse_snapshot(content):
        fields: dict[str, Value] = {
            "producerId": producer_id,
            "producerEpoch": entry.epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": None if entry.txn_first_offset == NONE else entry.txn_first_offset,
            "lastTimestamp": entry.last_timestamp,
        }
        for last in entry.batches[-1:]:
            fields |= {
                "firstSequence": (last.last_sequence - last.offset_delta) & LARGEST_SEQUENCE,
                "lastSequence": last.last_sequence,
                "lastOffset": last.last_offset,
                "offsetDelta": last.offset_delta,
                "timestamp": last.timestamp,
            }
        yield Line("producer", fields)


def _dump_offsets(text: str) -> Iterator[Shown]:
    for (topic, partition), offset in parse_offsets(text).items():
        yield Line("checkpoint", {"topic": topic, "partition": partition, "offset": offset})


def _dump_epochs(text: str) -> Iterator[Shown]:
    for epoch, start_offset in parse_leader_epochs(text):
        yield Line("leaderEpoch", {"epoch": epoch, "startOffset": start_offset})


def _dump_partition_metadata(text: str) -> Iterator[Shown]:
    meta = parse_partition_metadata(text)
    yield Line("partitionMetadata", {"version": meta.version, "topicId": format_uuid(meta.topic_id)})


def _dump_meta_properties(text: str) -> Iterator[Shown]:
    meta = parse_meta_properties(text)
    directory_id = None if meta.directory_id is None else format_uuid(meta.directory_id)
    node_id = meta.node_id
    yield Line(
        "metaProperties",
        {"version": meta.version, "clusterId": meta.cluster_id, "nodeId": node_id, "directoryId": directory_id},
    )


def _dump_clean_shutdown(text: str) -> Iterator[Shown]:
    yield Line("cleanShutdown", {"brokerEpoch": parse_clean_shutdown(text).broker_epoch})


_TEXT_FILES: dict[str, Callable[[str], Iterator[Shown]]] = {
    **dict.fromkeys(OFFSET_CHECKPOINTS, _dump_offsets),
    LEADER_EPOCHS: _dump_epochs,
    PARTITION_METADATA: _dump_partition_metadata,
    META_PROPERTIES: _dump_meta_properties,
    CLEAN_SHUTDOWN: _dump_clean_shutdown,
}
