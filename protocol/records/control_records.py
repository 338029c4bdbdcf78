"""Control records: the ends of transactions, and what quorums write into their log; never handed to consumers.

Written by the transaction coordinator's markers (WriteTxnMarkers) and read on append, in recovery and by the cleaner;
those of a metadata quorum are read by its observers and written into snapshots. A control batch has attribute bit 5
set; one of a marker holds that marker alone. The key of a record tells what it is:

    key    int16 version (0), int16 type
    value  abort, commit: int16 version (0), int32 coordinator_epoch
           types 2 to 6: a message of a quorum (`_QUORUM`), whose first field is its version, an int16

Later versions only add fields at the end, so a newer version is read as the newest known. Source: KIP-98, KIP-595,
KIP-630, KIP-853.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from importlib import import_module
from struct import Struct
from typing import TYPE_CHECKING

from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple
from protocol.records._errors import RecordError
from protocol.records._record import Readable, Record
from protocol.records.batch import CONTROL, LENGTH_OVERHEAD, NO_LEADER_EPOCH, TRANSACTIONAL, assign
from protocol.records.content import build_batch, build_plain

if TYPE_CHECKING:
    from protocol.message import Message

_KEY = Struct(">hh")
_MARKER = Struct(">hi")
_VERSION = 0
_MARKS = CONTROL | TRANSACTIONAL


class ControlType(IntEnum):
    """What a control record says; UNKNOWN stands for whatever later Kafkas may invent."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class EndTransactionMarker(NamedTuple):
    """The end of a transaction in one partition.

    control_type: COMMIT or ABORT. coordinator_epoch: of the coordinator that wrote it, which fences older ones.
    """

    control_type: ControlType
    coordinator_epoch: int


def pack_key(control_type: ControlType) -> bytes:
    """The key of a control record of this type."""
    assert control_type is not ControlType.UNKNOWN
    return _KEY.pack(_VERSION, control_type)


def parse_key(key: Readable | None) -> ControlType:
    """Which type of control record has this key.

    Raises: RecordError, INVALID_RECORD for a null or short key or a negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise _invalid(f"a control record's key has 4 bytes, this one {'none' if key is None else len(key)}")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise _invalid(f"a control record's key of version {version}")
    return ControlType(number) if number in _NUMBERS else ControlType.UNKNOWN


def pack_marker(coordinator_epoch: int) -> bytes:
    """The value of an end-of-transaction marker."""
    return _MARKER.pack(_VERSION, coordinator_epoch)


def parse_marker(record: Record) -> EndTransactionMarker:
    """The marker that this control record is.

    Raises: RecordError, INVALID_RECORD if it is of another type or its value is null, short or of a negative version.
    """
    control_type = parse_key(record.key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise _invalid(f"a control record of type {control_type.name} ends no transaction")
    value = record.value
    if value is None or len(value) < _MARKER.size:
        raise _invalid(f"a marker's value has 6 bytes, this one {'none' if value is None else len(value)}")
    version, coordinator_epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise _invalid(f"a marker of version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)


def build_marker_batch(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """The control batch that ends a producer's transaction in one partition. timestamp: ms."""
    assert marker.control_type in (ControlType.ABORT, ControlType.COMMIT), marker
    content = pack_key(marker.control_type), pack_marker(marker.coordinator_epoch)
    batch = build_plain([content], timestamp, attributes=_MARKS, producer_id=producer_id, producer_epoch=producer_epoch)
    if offset or leader_epoch != NO_LEADER_EPOCH:
        assign(batch, 0, offset, len(batch) - LENGTH_OVERHEAD, leader_epoch)
    return batch


def parse_quorum_record(record: Record) -> Message | None:
    """What a quorum wrote: a message of `_QUORUM`, None if its type is that of a later Kafka.

    Raises: RecordError, INVALID_RECORD for the marker of a transaction, or a null or short key or value; DecodeError.
    """
    control_type = parse_key(record.key)
    if control_type is ControlType.UNKNOWN:
        return None
    named = _QUORUM.get(control_type)
    if named is None or record.value is None or len(record.value) < 2:
        value = "no value" if record.value is None else f"a value of {len(record.value)} bytes"
        raise _invalid(f"a control record of type {control_type.name} with {value} is none of a quorum")
    cls = _message(named)
    version = min(max(int.from_bytes(record.value[:2], "big", signed=True), 0), cls.versions[1])
    return cls.decode(record.value, version)


def build_quorum_batch(messages: Sequence[Message], *, timestamp: int, offset: int, leader_epoch: int) -> bytearray:
    """The control batch of these messages of a quorum, each in the version that it has as its field.

    timestamp: ms, of all. offset: of the first.
    """
    records = [
        Record(offset + at, timestamp, pack_key(_TYPE_OF[type(message).__name__]), message.encode(_version_of(message)))
        for at, message in enumerate(messages)
    ]
    return build_batch(records, leader_epoch=leader_epoch, control=True)


def _version_of(message: Message) -> int:
    version: int = message.version  # type: ignore[attr-defined]  # all of _QUORUM have it
    return version


def _message(named: tuple[str, str]) -> type[Message]:
    module, name = named
    found: type[Message] = getattr(import_module(f"protocol.messages.{module}"), name)
    return found


def _invalid(reason: str) -> RecordError:
    return RecordError(ErrorCode.INVALID_RECORD, 0, reason)


_NUMBERS = frozenset(ControlType) - {ControlType.UNKNOWN}
_QUORUM = {  # the file under protocol/messages and the class, which most brokers never import
    ControlType.LEADER_CHANGE: ("stored", "LeaderChangeMessage"),
    ControlType.SNAPSHOT_HEADER: ("quorum", "SnapshotHeaderRecord"),
    ControlType.SNAPSHOT_FOOTER: ("quorum", "SnapshotFooterRecord"),
    ControlType.KRAFT_VERSION: ("quorum", "KRaftVersionRecord"),
    ControlType.KRAFT_VOTERS: ("quorum", "VotersRecord"),
}
_TYPE_OF = {name: control_type for control_type, (_, name) in _QUORUM.items()}
