"""Records of coordinators as `kbroker dump-log` shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.cli import run
from protocol.messages.stored import (
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    encode_versioned,
)
from protocol.records import Record
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


def test_states_of_transactions_are_shown_as_what_they_are(tmp_path: Path, capsys: Captured) -> None:
    key = encode_versioned(TransactionLogKey(transactional_id="pay"), 0)
    partitions = [PartitionsSchema(topic="orders", partition_ids=[0, 2])]
    state = TransactionLogValue(
        producer_id=7,
        producer_epoch=1,
        transaction_timeout_ms=60_000,
        transaction_status=1,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=9,
        transaction_start_timestamp_ms=8,
    )
    shown = dumped(tmp_path, "--transaction-log-decoder", key, encode_versioned(state, 0), capsys)
    assert (
        '| key: {"type":"0","data":{"transactionalId":"pay"}} payload: {"version":"0","data":{"producerId":7,' in shown
    )
    assert '"transactionPartitions":[{"topic":"orders","partitionIds":[0,2]}]' in shown
