"""Control records: the ends of transactions, and what quorums write into their log; never handed to consumers.

Written by the transaction coordinator's markers (WriteTxnMarkers) and read on append, in recovery and by the cleaner.
A control batch holds one such record, with attribute bit 5 set. Its key tells what it is:

    key    int16 version (0), int16 type
    value  abort, commit: int16 version (0), int32 coordinator_epoch
           leader change: a LeaderChangeMessage

Later versions only add fields at the end, so a newer version is read as the newest known. Source: KIP-98, KIP-595.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING

from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple
from protocol.records._errors import RecordError
from protocol.records._record import Readable, Record
from protocol.records.batch import CONTROL, LENGTH_OVERHEAD, NO_LEADER_EPOCH, TRANSACTIONAL, assign
from protocol.records.content import build_batch, build_plain

if TYPE_CHECKING:
    from protocol.messages.stored import LeaderChangeMessage

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


def parse_leader_change(record: Record) -> LeaderChangeMessage:
    """Who leads the quorum now. Raises: RecordError if the record is of another type; DecodeError for its value."""
    from protocol.messages.stored import LeaderChangeMessage

    if parse_key(record.key) is not ControlType.LEADER_CHANGE or record.value is None:
        raise _invalid("not a leader change")
    return LeaderChangeMessage.decode(record.value, min(max(int.from_bytes(record.value[:2], "big"), 0), 1))


def build_leader_change_batch(
    message: LeaderChangeMessage, *, timestamp: int, offset: int, leader_epoch: int
) -> bytearray:
    """The control batch by which a quorum's new leader opens its epoch. timestamp: ms."""
    record = Record(offset, timestamp, pack_key(ControlType.LEADER_CHANGE), message.encode(message.version))
    return build_batch([record], leader_epoch=leader_epoch, control=True)


def _invalid(reason: str) -> RecordError:
    return RecordError(ErrorCode.INVALID_RECORD, 0, reason)


_NUMBERS = frozenset(ControlType) - {ControlType.UNKNOWN}
