"""Records of coordinators as `kbroker dump-log` shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli import run
from kbroker.quorum.snapshots import SnapshotHead, snapshot_batches
from protocol.message import Message
from protocol.messages.metadata_records import BrokerEndpoint, RegisterBrokerRecord, TopicRecord, encode_record
from protocol.messages.quorum import VotersRecord
from protocol.messages.stored import (
    GroupMetadataKey,
    GroupMetadataValue,
    LeaderChangeMessage,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    Voter,
    encode_versioned,
)
from protocol.records import Record, legacy
from protocol.records.content import build_batch
from protocol.records.control_records import build_quorum_batch

Captured = pytest.CaptureFixture[str]
FIRST = "00000000000000000000.log"


def dumped(tmp_path: Path, flag: str, key: bytes, value: bytes, capsys: Captured) -> str:
    """The line of one record."""
    (tmp_path / FIRST).write_bytes(build_batch([Record(0, 0, key, value), Record(1, 0, key, None)]))
    assert run(["dump-log", flag, "--skip-record-metadata", str(tmp_path / FIRST)]) == 0
    shown, deleted = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert deleted.endswith("payload: <DELETE>")
    return shown


def test_committed_offsets_are_shown_as_what_they_are(tmp_path: Path, capsys: Captured) -> None:
    key = encode_versioned(OffsetCommitKey(group="billing", topic="orders", partition=3), 1)
    value = encode_versioned(OffsetCommitValue(offset=42, leader_epoch=5, metadata="m", commit_timestamp=7), 3)
    assert dumped(tmp_path, "--offsets-decoder", key, value, capsys) == (
        '| key: {"type":"1","data":{"group":"billing","topic":"orders","partition":3}} '
        'payload: {"version":"3","data":{"offset":42,"leaderEpoch":5,"metadata":"m","commitTimestamp":7}}'
    )


def transaction(status: int, partitions: list[PartitionsSchema] | None) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=7,
        producer_epoch=1,
        transaction_timeout_ms=60_000,
        transaction_status=status,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=9,
        transaction_start_timestamp_ms=8,
    )


def test_states_of_transactions_are_shown_as_what_they_are(tmp_path: Path, capsys: Captured) -> None:
    key = encode_versioned(TransactionLogKey(transactional_id="pay"), 0)
    state = transaction(1, [PartitionsSchema(topic="orders", partition_ids=[0, 2])])
    shown = dumped(tmp_path, "--transaction-log-decoder", key, encode_versioned(state, 0), capsys)
    assert (
        '| key: {"type":"0","data":{"transactionalId":"pay"}} payload: {"version":"0","data":{"producerId":7,' in shown
    )
    assert '"transactionStatus":"Ongoing","transactionPartitions":[{"topic":"orders","partitionIds":[0,2]}]' in shown


COMMIT_KEY = encode_versioned(OffsetCommitKey(group="billing", topic="orders", partition=3), 1)
TRANSACTION_KEY = encode_versioned(TransactionLogKey(transactional_id="pay"), 0)
GROUP_KEY = encode_versioned(GroupMetadataKey(group="billing"), 2)
COMMIT = OffsetCommitValue(offset=42, metadata="m", commit_timestamp=7)
GROUP = GroupMetadataValue(protocol_type="consumer", generation=6, protocol=None, leader=None, members=[])
TRANSACTION = transaction(0, None)
STORED = [
    *[("--offsets-decoder", COMMIT_KEY, COMMIT, version, '"offset":42,') for version in range(5)],
    *[("--offsets-decoder", GROUP_KEY, GROUP, version, '"generation":6,') for version in range(5)],
    *[("--transaction-log-decoder", TRANSACTION_KEY, TRANSACTION, version, '"producerId":7,') for version in range(2)],
]


@pytest.mark.parametrize(("flag", "key", "value", "version", "part"), STORED)
def test_every_version_of_what_is_stored_is_shown(
    tmp_path: Path, capsys: Captured, flag: str, key: bytes, value: Message, version: int, part: str
) -> None:
    shown = dumped(tmp_path, flag, key, encode_versioned(value, version), capsys)
    assert f'payload: {{"version":"{version}","data":{{' in shown
    assert part in shown


@pytest.mark.parametrize(("magic", "codec_id"), [(0, 0), (0, 1), (1, 0), (1, 3)])
def test_what_is_stored_in_old_messages_is_shown(tmp_path: Path, capsys: Captured, magic: int, codec_id: int) -> None:
    value = encode_versioned(COMMIT, 1)
    (tmp_path / FIRST).write_bytes(
        legacy.build_set([Record(0, 0, COMMIT_KEY, value), Record(1, 0, COMMIT_KEY, None)], magic, codec_id=codec_id)
    )
    assert run(["dump-log", "--offsets-decoder", str(tmp_path / FIRST)]) == 0
    shown, deleted = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert '"group":"billing"' in shown
    assert '"offset":42,' in shown
    assert deleted.endswith("payload: <DELETE>")


def test_a_metadata_log_is_shown_as_what_it_says(tmp_path: Path, capsys: Captured) -> None:
    topic = encode_record(TopicRecord(name="orders", topic_id=bytes(15) + b"\1"), 0)
    registration = RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=bytes(16),
        broker_epoch=5,
        end_points=[BrokerEndpoint(name="PLAINTEXT", host="here", port=9092, security_protocol=0)],
        features=[],
        rack=None,
        log_dirs=[bytes(15) + b"\2"],
    )
    values = [topic, encode_record(registration, 3), b"\1\x7f\0"]
    records = [Record(1 + at, 0, None, value) for at, value in enumerate(values)]
    change = LeaderChangeMessage(version=0, leader_id=3000, voters=[Voter(voter_id=3000)], granting_voters=[])
    leader = build_quorum_batch([change], timestamp=0, offset=0, leader_epoch=1)
    (tmp_path / FIRST).write_bytes(leader + build_batch(records))
    assert run(["dump-log", "--cluster-metadata-decoder", "--skip-record-metadata", str(tmp_path / FIRST)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")] == [
        '| payload: {"type":"TOPIC_RECORD","version":0,"data":{"name":"orders","topicId":"AAAAAAAAAAAAAAAAAAAAAQ"}}',
        '| payload: {"type":"REGISTER_BROKER_RECORD","version":3,"data":{"brokerId":1,"isMigratingZkBroker":false,'
        '"incarnationId":"AAAAAAAAAAAAAAAAAAAAAA","brokerEpoch":5,"endPoints":[{"name":"PLAINTEXT","host":"here",'
        '"port":9092,"securityProtocol":0}],"features":[],"rack":null,"fenced":true,"inControlledShutdown":false,'
        '"logDirs":["AAAAAAAAAAAAAAAAAAAAAg"]}}',
        "| payload: Error at 3, skipping. type: 127 of a metadata record, in version 0, is not known",
    ]


def test_the_records_that_a_quorum_writes_of_itself_are_shown(tmp_path: Path, capsys: Captured) -> None:
    head = SnapshotHead(epoch=3, last_timestamp=99, kraft_version=1, voters=VotersRecord(version=0, voters=[]))
    name = "00000000000000000042-0000000003.checkpoint"
    (tmp_path / name).write_bytes(b"".join(snapshot_batches(head, [], 5)))
    assert run(["dump-log", "--cluster-metadata-decoder", str(tmp_path / name)]) == 0
    shown = capsys.readouterr().out
    assert "Snapshot end offset: 42, epoch: 3\n" in shown
    assert [line.partition("headerKeys: [] ")[2] for line in shown.splitlines() if line.startswith("|")] == [
        'SnapshotHeader {"version":0,"lastContainedLogTimestamp":99}',
        'KRaftVersion {"version":0,"kRaftVersion":1}',
        'KRaftVoters {"version":0,"voters":[]}',
        'SnapshotFooter {"version":0}',
    ]
