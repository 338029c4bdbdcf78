"""The power fails, or a call does, at every call to the disk while records of one format are kept in another."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.config import LogConfig
from kbroker.log.down_convert import DownConvertJob, Piece
from kbroker.log.log import Log
from kbroker.log.prepare import prepare
from kbroker.log.producer_state import Origin
from kbroker.sim.disk import PowerLoss, SimDisk
from protocol.errors import KafkaError
from protocol.records import Record, legacy
from protocol.records.content import build_batch
from tests.log.worlds import NOW, flush, new_disk, open_at

KINDS = {
    "v0": LogConfig(message_format=0, segment_bytes=500, segment_index_bytes=240, index_interval_bytes=60),
    "v1": LogConfig(message_format=1, segment_bytes=500, segment_index_bytes=240, index_interval_bytes=60),
    "v2": LogConfig(segment_bytes=500, segment_index_bytes=240, index_interval_bytes=60),
    "lz4": LogConfig(compression_type="lz4", segment_bytes=500, segment_index_bytes=240, index_interval_bytes=60),
}
SETS = 12


class Story:
    """Sets of every format and codec into one log, each flushed before the next. told: values that were durable."""

    def __init__(self, disk: SimDisk, config: LogConfig) -> None:
        self.disk = disk
        self.config = config
        self.sent: list[bytes] = []
        self.told = 0
        self.written = 0

    def live(self) -> None:
        """Raises: PowerLoss, OSError, KafkaError."""
        log = open_at(self.disk, self.config)
        for number in range(SETS):
            made = prepare(memoryview(self._set(number)), self.config, NOW)
            log.append_as_leader(made, 0, NOW, Origin.PREPARED)
            self.written = log.log_end_offset
            flush(log)
            self.told = log.recovery_point
        if self.disk.is_down:
            raise PowerLoss

    def _set(self, number: int) -> bytearray:
        values = [b"%d-%d" % (number, at) * 3 for at in range(1 + number % 3)]
        self.sent += values
        records = [Record(at, NOW + number, b"k", value) for at, value in enumerate(values)]
        magic, codec_id = number % 3, number % 4
        return (
            build_batch(records, codec_id=codec_id)
            if magic == 2
            else legacy.build_set(records, magic, codec_id=codec_id)
        )


def as_old_clients_read(log: Log) -> list[bytes | None]:
    """All values, as a client of 0.8 is sent them."""
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset).region
        assert region is not None
        piece = Piece(region, offset)
        DownConvertJob(0, [piece]).run()
        assert piece.error is None, piece.error
        records = [each for each in legacy.parse_set(b"".join(map(bytes, piece.records))) if each.offset >= offset]
        assert [each.offset for each in records] == list(range(offset, offset + len(records)))
        found += [each.value for each in records]
        offset += len(records)
    return found


def check(disk: SimDisk, story: Story, told: int) -> None:
    """What was durable is there, nothing else than what was sent, in its order; and the log goes on."""
    log = open_at(disk, story.config, clean=False, recovery_point=0)
    found = as_old_clients_read(log)
    assert len(found) >= told, (len(found), told)
    assert found == story.sent[: len(found)]
    more = prepare(memoryview(build_batch([Record(0, NOW, b"k", b"more")])), story.config, NOW)
    log.append_as_leader(more, 1, NOW, Origin.PREPARED)
    assert as_old_clients_read(log) == [*found, b"more"]


@pytest.mark.parametrize("kind", KINDS)
def test_power_fails_at_every_call(kind: str) -> None:
    call = 0
    while True:
        call += 1
        disk = new_disk(call)
        story = Story(disk, KINDS[kind])
        disk.crash_at = disk.calls + call
        try:
            story.live()
        except PowerLoss:
            disk.crash_at = None
            disk.restart()
            check(disk, story, story.told)
        else:
            break
    assert call > 40, call


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_may_fail(kind: str, code: int) -> None:
    call, failed = 0, True
    while failed:
        call += 1
        disk = new_disk()
        story, calls, failed = Story(disk, KINDS[kind]), 0, False

        def fault(_: str, path: str, at: int = call) -> OSError | None:
            nonlocal calls, failed
            calls += 1
            failed = failed or calls == at
            return OSError(code, "injected", path) if calls == at else None

        disk.fault = fault
        try:
            story.live()
        except (OSError, KafkaError):
            disk.fault = None
            disk.restart(power_loss=False)
            check(disk, story, story.written)
    assert call > 40, call
