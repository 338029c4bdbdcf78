"""Control records: markers of transactions' ends, and what a quorum writes of itself."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.quorum import (
    KRaftVersionFeature,
    KRaftVersionRecord,
    QuorumListener,
    QuorumVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from protocol.messages.stored import LeaderChangeMessage, Voter
from protocol.records import Record, RecordError
from protocol.records.content import parse_set
from protocol.records.control_records import (
    ControlType,
    EndTransactionMarker,
    build_marker_batch,
    build_quorum_batch,
    pack_key,
    parse_key,
    parse_marker,
    parse_quorum_record,
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


VOTERS = [Voter(voter_id=1), Voter(voter_id=3)]
LISTENER = QuorumListener(name="CONTROLLER", host="here", port=9093)
OF_A_QUORUM: list[Message] = [
    LeaderChangeMessage(version=0, leader_id=3, voters=VOTERS, granting_voters=VOTERS[1:]),
    LeaderChangeMessage(
        version=1, leader_id=3, voters=[Voter(voter_id=3, voter_directory_id=b"d" * 16)], granting_voters=[]
    ),
    SnapshotHeaderRecord(version=0, last_contained_log_timestamp=99),
    SnapshotFooterRecord(version=0),
    KRaftVersionRecord(version=0, k_raft_version=1),
    VotersRecord(
        version=0,
        voters=[
            QuorumVoter(
                voter_id=3,
                voter_directory_id=b"d" * 16,
                endpoints=[LISTENER],
                k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
            )
        ],
    ),
]


def test_records_of_a_quorum_read_back() -> None:
    data = build_quorum_batch(OF_A_QUORUM, timestamp=5, offset=41, leader_epoch=8)
    ((header, records),) = parse_set(data)
    assert [parse_quorum_record(record) for record in records] == OF_A_QUORUM
    assert [record.offset for record in records] == list(range(41, 47))
    assert (header.is_control, header.is_transactional, header.producer_id) == (True, False, -1)
    assert header.partition_leader_epoch == 8


def test_records_of_later_quorums_are_read_as_far_as_they_are_known() -> None:
    later = b"\0\5" + KRaftVersionRecord(version=0, k_raft_version=1).encode(0)[2:] + b"more"
    read = parse_quorum_record(Record(0, 0, pack_key(ControlType.KRAFT_VERSION), later))
    assert read == KRaftVersionRecord(version=5, k_raft_version=1)
    assert parse_quorum_record(Record(0, 0, b"\0\0\0\7", b"\0\0")) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(COMMIT_KEY, VALUE), (pack_key(ControlType.SNAPSHOT_FOOTER), None), (b"\0\0\0\4", b"\0"), (None, b"\0\0")],
)
def test_what_is_no_record_of_a_quorum_is_an_invalid_record(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(RecordError) as caught:
        parse_quorum_record(Record(0, 0, key, value))
    assert caught.value.code is ErrorCode.INVALID_RECORD
