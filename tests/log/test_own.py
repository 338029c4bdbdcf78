"""Batches that the broker builds itself: written without a second look, to the same end as with one."""

from __future__ import annotations

import pytest

from kbroker.log.config import LogConfig
from kbroker.log.log import Log
from kbroker.log.producer_state import Marker, Origin
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL
from protocol.records.content import build_plain, parse_set
from protocol.records.control_records import ControlType, EndTransactionMarker, build_marker_batch
from tests.log.worlds import NOW, all_offsets, fetch, new_disk, open_at, refused

SETTINGS = {
    "as shipped": LogConfig(),
    "compacted": LogConfig(cleanup_policy=frozenset({"compact"})),
    "LogAppendTime": LogConfig(message_timestamp_type="LogAppendTime"),
    "compressed": LogConfig(compression_type="gzip"),
    "small segments": LogConfig(segment_bytes=320, index_interval_bytes=100),
    "flushed": LogConfig(flush_messages=3),
}
CONTENTS = (b"key", b"value" * 10), (b"other", None)


def records(producer_id: int = -1, epoch: int = -1) -> bytearray:
    attributes = 0 if producer_id < 0 else TRANSACTIONAL
    return build_plain(CONTENTS, NOW, attributes=attributes, producer_id=producer_id, producer_epoch=epoch)


def marker(epoch: int, *, commit: bool, coordinator_epoch: int = 3) -> tuple[bytearray, Marker]:
    end = EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch)
    batch = build_marker_batch(end, producer_id=9, producer_epoch=epoch, timestamp=NOW)
    return batch, Marker(commit, coordinator_epoch, NOW)


def workload() -> list[tuple[bytearray, Marker | None, int]]:
    """Batches, what they say if they are markers, and the leader epochs they are written in."""
    written: list[tuple[bytearray, Marker | None, int]] = []
    for epoch in range(8):
        written += [(records(), None, epoch // 4), (records(9, epoch), None, epoch // 4)]
        written.append((*marker(epoch, commit=epoch % 3 > 0), epoch // 4))
    return written


def state(log: Log) -> object:
    entries = {
        producer_id: (each.epoch, each.coordinator_epoch, each.last_timestamp, each.txn_first_offset, each.batches)
        for producer_id, each in log.producers.items()
    }
    aborted = log.read(0, 10_000, log.log_end_offset, with_aborted=True).aborted
    ends = log.log_end_offset, log.last_stable_offset, log.flush_wanted, log.producers.end_offset
    segments = [(each.base_offset, each.size) for each in log.segments]
    return ends, entries, aborted, segments, [fetch(log, offset) for offset in all_offsets(log)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_is_as_if_the_batch_had_been_looked_at(setting: str) -> None:
    own, log = (open_at(new_disk(), SETTINGS[setting]) for _ in range(2))
    for batch, says, epoch in workload():
        log.append_as_leader(memoryview(bytearray(batch)), epoch, NOW, Origin.COORDINATOR)
        own.append_own(batch, epoch, NOW, says)
        own.set_high_watermark(own.log_end_offset)
        log.set_high_watermark(log.log_end_offset)
        assert state(own) == state(log)


def test_nothing_is_written_over_an_older_epoch() -> None:
    log = open_at(new_disk())
    log.append_own(records(9, 5), 0, NOW)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append_own(records(9, 4), 0, NOW)
    batch, says = marker(4, commit=True)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append_own(batch, 0, NOW, says)
    assert log.log_end_offset == len(CONTENTS)


def test_a_marker_of_an_older_coordinator_is_refused() -> None:
    log = open_at(new_disk())
    newer, older = (marker(5, commit=True, coordinator_epoch=each) for each in (3, 2))
    log.append_own(newer[0], 0, NOW, newer[1])
    with refused(ErrorCode.TRANSACTION_COORDINATOR_FENCED):
        log.append_own(older[0], 0, NOW, older[1])


def test_a_plain_batch_is_one_that_can_be_read() -> None:
    ((header, found),) = parse_set(records(9, 2))
    assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == [
        (at, NOW, key, value) for at, (key, value) in enumerate(CONTENTS)
    ]
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
    assert (header.is_transactional, header.is_control, header.max_timestamp) == (True, False, NOW)
