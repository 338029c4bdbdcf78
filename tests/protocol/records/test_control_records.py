"""Control records: markers of transactions' ends and leader changes."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.messages.stored import LeaderChangeMessage, Voter
from protocol.records import Record, RecordError
from protocol.records.content import parse_set
from protocol.records.control_records import (
    ControlType,
    EndTransactionMarker,
    build_leader_change_batch,
    build_marker_batch,
    pack_key,
    parse_key,
    parse_leader_change,
    parse_marker,
)

COMMIT_KEY = bytes([0, 0, 0, 1])
VALUE = bytes([0, 0, 0, 0, 0, 7])


@pytest.mark.parametrize("control_type", [ControlType.ABORT, ControlType.COMMIT])
def test_a_marker_batch_reads_back(control_type: ControlType) -> None:
    marker = EndTransactionMarker(control_type, 7)
    data = build_marker_batch(marker, producer_id=5, producer_epoch=2, timestamp=99, offset=41, leader_epoch=3)
    ((header, (record,)),) = parse_set(data)
    assert parse_marker(record) == marker
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert (record.offset, record.timestamp, header.partition_leader_epoch) == (41, 99, 3)


def test_a_marker_is_laid_out_as_documented() -> None:
    data = build_marker_batch(
        EndTransactionMarker(ControlType.COMMIT, 7), producer_id=5, producer_epoch=2, timestamp=99
    )
    ((_, (record,)),) = parse_set(data)
    assert (record.key, record.value) == (COMMIT_KEY, VALUE)


def test_markers_of_later_versions_are_read_as_today() -> None:
    record = Record(0, 0, bytes([0, 3, 0, 1, 9]), bytes([0, 4, 0, 0, 0, 7, 1, 2]))
    assert parse_marker(record) == EndTransactionMarker(ControlType.COMMIT, 7)


@pytest.mark.parametrize("number", [7, 100, -1, -5])
def test_types_of_later_kafkas_are_unknown(number: int) -> None:
    assert parse_key(b"\0\0" + number.to_bytes(2, "big", signed=True)) is ControlType.UNKNOWN


def test_every_known_type_reads_back() -> None:
    known = [control_type for control_type in ControlType if control_type is not ControlType.UNKNOWN]
    assert [parse_key(pack_key(control_type)) for control_type in known] == known


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUE),
        (COMMIT_KEY[:3], VALUE),
        (b"\xff\xff\0\1", VALUE),
        (COMMIT_KEY, None),
        (COMMIT_KEY, VALUE[:5]),
        (COMMIT_KEY, b"\xff\xff\0\0\0\7"),
        (b"\0\0\0\2", VALUE),
    ],
)
def test_what_is_no_marker_is_an_invalid_record(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(RecordError) as caught:
        parse_marker(Record(0, 0, key, value))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_leader_change_reads_back() -> None:
    message = LeaderChangeMessage(
        version=0, leader_id=3, voters=[Voter(voter_id=1), Voter(voter_id=3)], granting_voters=[Voter(voter_id=3)]
    )
    data = build_leader_change_batch(message, timestamp=5, offset=0, leader_epoch=8)
    ((header, (record,)),) = parse_set(data)
    assert parse_leader_change(record) == message
    assert (header.is_control, header.is_transactional, header.producer_id) == (True, False, -1)


def test_a_marker_is_no_leader_change() -> None:
    with pytest.raises(RecordError):
        parse_leader_change(Record(0, 0, COMMIT_KEY, VALUE))
