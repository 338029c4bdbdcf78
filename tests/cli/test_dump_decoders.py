"""Records of coordinators as `kbroker dump-log` shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli import run
from protocol.message import Message
from protocol.messages.stored import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    encode_versioned,
)
from protocol.records import Record, legacy
from protocol.records.content import build_batch

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
    assert '"transactionPartitions":[{"topic":"orders","partitionIds":[0,2]}]' in shown


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
