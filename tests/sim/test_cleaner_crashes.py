"""The power fails at every call that compaction makes to the disk, and within the recovery from that as well."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from kbroker.log.config import LogConfig
from kbroker.sim.disk import PowerLoss, SimDisk
from protocol.errors import KafkaError
from tests.log.cleaning import COMPACTED, DAY, Compacted, check_against

UNKNOWN = LogConfig(
    segment_bytes=COMPACTED.segment_bytes,
    segment_index_bytes=COMPACTED.segment_index_bytes,
    index_interval_bytes=COMPACTED.index_interval_bytes,
)
"""As long as nobody has said that the topic is compacted: a broker loads its logs before it hears of topics."""


def story(world: Compacted) -> list[range]:
    """Write, compact, write over it, let tombstones go; the calls to the disk that its two compactions were."""
    for at in range(9):
        world.append((f"k{at % 4}", f"{at}" * 12), (f"p{at}", None if at % 3 else "v"), producer=at % 2)
    world.append(("k0", "aborted"), producer=7, transactional=True)
    world.end(7, commit=False)
    world.roll()
    began = world.disk.calls
    world.compact(14)
    first = range(began + 1, world.disk.calls + 1)
    for at in range(6):
        world.append((f"k{at % 2}", f"new {at}" * 5), (f"p{at}", "again" if at % 2 else None), codec_id=at % 5)
    world.roll()
    world.wall_ms += 2 * DAY
    world.append(("z", "1"))
    world.roll()
    began = world.disk.calls
    world.compact(14)
    return [first, range(began + 1, world.disk.calls + 1)]


def crash_points() -> list[int]:
    return [call for calls in story(Compacted(SimDisk(0))) for call in calls]


class Lived:
    """A world up to its crash."""

    def __init__(self, seed: int) -> None:
        self.world: Compacted | None = None
        self.disk = SimDisk(seed)

    def live(self) -> None:
        world = self.world = Compacted(self.disk)
        story(world)
        if self.disk.is_down:
            raise PowerLoss


def recovered(lived: Lived, durable_to: int, *, crash_again: int | None, known: LogConfig = COMPACTED) -> Compacted:
    """Start again after the crash, failing once more on the way if told so. known: settings, while logs are loaded."""
    before = lived.world
    assert before is not None
    lived.disk.restart()
    if crash_again is not None:
        lived.disk.crash_at = lived.disk.calls + crash_again
    try:
        world = Compacted(lived.disk, config_at_start=known)
        if lived.disk.is_down:
            raise PowerLoss
    except PowerLoss:
        lived.disk.restart()
        world = Compacted(lived.disk, config_at_start=known)
    lived.disk.crash_at = None
    world.written = [record for record in before.written if record.offset < world.log.log_end_offset]
    world.sequences = {
        producer: entry.batches[-1].last_sequence + 1
        for producer, entry in world.log.producers.items()
        if entry.batches
    }
    assert world.log.log_end_offset >= durable_to, (world.log, durable_to)
    check(world)
    return world


def check(world: Compacted) -> None:
    """Of each key the last committed record is there, unless it is a tombstone; and nothing else has come back."""
    aborted = {record.offset for record in world.written if record.value == b"aborted"}
    committed = [record for record in world.written if record.offset not in aborted]
    found = [record for record in world.records() if record.offset not in aborted]
    check_against(found, committed, world.log.log_end_offset)
    for offset in aborted & {record.offset for record in world.records()}:
        known = world.log.read(offset, 1 << 20, world.log.log_end_offset, with_aborted=True).aborted or []
        is_told = any(entry.first_offset <= offset <= entry.last_offset for entry in known)
        assert is_told or world.log.log_end_offset <= offset + 1, "an aborted record that no index tells of"


@pytest.mark.parametrize("known", [COMPACTED, UNKNOWN], ids=["settings known", "settings not known yet"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_power_fails_at_every_call(seed: int, known: LogConfig) -> None:
    points = crash_points()
    for call in points:
        lived = Lived(seed)
        lived.disk.crash_at = call
        with pytest.raises(PowerLoss):
            lived.live()
        assert lived.world is not None
        again = 1 + call * 7 % 23 if call % 2 else None
        world = recovered(lived, lived.world.log.recovery_point, crash_again=again, known=known)
        world.append(("k0", "after"))
        world.roll()
        world.compact(8)
        check(world)
        assert not [name for name in world.names() if name.endswith((".cleaned", ".swap"))]
    assert len(points) > 60, points


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.slow)])
def test_every_call_may_fail(code: int) -> None:
    """The directory goes offline; nothing else does; and after a start all is there."""
    disk, calls, failures = SimDisk(0), 0, 0
    for at in crash_points():
        disk, calls = SimDisk(0), 0

        def fault(call: str, path: str, at: int = at) -> OSError | None:
            nonlocal calls
            calls += call not in ("read", "open_read", "stat", "list")
            return OSError(code, "injected", path) if calls == at else None

        world = Compacted(disk)
        calls = disk.calls
        disk.fault = fault
        with suppress(OSError, KafkaError):  # of the disk; or because the directory is offline by then
            story(world)
        failures += calls >= at
        disk.fault = None
        written = world.written
        disk.restart(power_loss=False)
        world = Compacted(disk)
        world.written = [record for record in written if record.offset < world.log.log_end_offset]
        check(world)
    assert failures > 60, failures


def test_the_story_compacts_twice() -> None:
    world = Compacted(SimDisk(0))
    story(world)
    check(world)
    assert world.cleaned_to() == world.log.log_end_offset
    assert len(world.records()) < len(world.written) / 2
