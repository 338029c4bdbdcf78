"""What is in a snapshot of the metadata log."""

from __future__ import annotations

from kbroker.quorum import snapshots
from kbroker.quorum.snapshots import SnapshotHead, image_values, snapshot_batches
from protocol.messages.metadata_records import FeatureLevelRecord, TopicRecord, decode_record
from protocol.messages.quorum import KRaftVersionRecord, SnapshotFooterRecord, SnapshotHeaderRecord, VotersRecord
from protocol.records.content import parse_set
from protocol.records.control_records import parse_quorum_record
from tests.quorum.histories import image_of

NOW = 1_700_000_000_000
VOTERS = VotersRecord(version=0, voters=[])


def test_a_snapshot_is_header_records_and_footer_at_consecutive_offsets() -> None:
    values = [b"%d" % number for number in range(2500)]
    batches = list(snapshot_batches(SnapshotHead(7, 99), values, NOW))
    ((head, (first,)), *data, (_, (last,))) = parse_set(b"".join(batches))
    assert parse_quorum_record(first) == SnapshotHeaderRecord(version=0, last_contained_log_timestamp=99)
    assert parse_quorum_record(last) == SnapshotFooterRecord(version=0)
    records = [record for _, records in data for record in records]
    assert [record.value for record in records] == values
    assert [record.offset for record in (first, *records, last)] == list(range(2502))
    assert {record.timestamp for record in (first, *records, last)} == {NOW}
    assert [len(records) for _, records in data] == [1024, 1024, 452]
    assert (head.partition_leader_epoch, data[0][0].partition_leader_epoch) == (7, 7)


def test_large_records_have_batches_of_their_own() -> None:
    values = [bytes(snapshots.BATCH_BYTES), b"small", bytes(snapshots.BATCH_BYTES - 5), b"s"]
    batches = list(snapshot_batches(SnapshotHead(7, 99), values, NOW))
    assert [len(records) for _, records in parse_set(b"".join(batches))] == [1, 1, 2, 1, 1]


def test_voters_stand_at_the_beginning_where_they_are_records() -> None:
    first, *_ = snapshot_batches(SnapshotHead(7, 99, 1, VOTERS), [], NOW)
    ((_, records),) = parse_set(first)
    assert list(map(parse_quorum_record, records)) == [
        SnapshotHeaderRecord(version=0, last_contained_log_timestamp=99),
        KRaftVersionRecord(version=0, k_raft_version=1),
        VOTERS,
    ]


def test_an_image_may_change_while_it_is_written() -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=33)
    image = image_of([level, TopicRecord(name="orders", topic_id=b"o" * 16)])
    values = image_values(image)
    first = next(values)
    image.apply(TopicRecord(name="payments", topic_id=b"p" * 16))
    assert [decode_record(value)[0] for value in (first, *values)] == [
        level,
        TopicRecord(name="orders", topic_id=b"o" * 16),
    ]
