"""One log on a simulated disk, what a broker does with it, and a list in memory that says what must be left.

`Host` plays the part of the manager: it keeps the checkpoints and the clean-shutdown marker, runs jobs at once, and
opens the log again after a crash. `check` compares the log with the list: everything flushed is there, what is there
was appended in this order, offsets ascend, epochs and producers agree with the batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker.log.checkpoints import Sealed, format_offsets, parse_offsets, read_text, replace_file
from kbroker.log.config import LogConfig
from kbroker.log.folder import OpenFiles
from kbroker.log.jobs import DeleteJob, Truncated
from kbroker.log.log import Log
from kbroker.log.recovery import open_log
from kbroker.log.sealed import seal
from kbroker.sim.clock import SimRandom
from kbroker.sim.disk import PowerLoss, SimDisk
from protocol.records.batch import MAX_TIMESTAMP
from tests.log.worlds import NOW, batch

FOLDER = "/logs/t-0"
PARTITION = ("t", 0)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=120, segment_index_bytes=240, file_delete_delay_ms=0)


class Written(NamedTuple):
    """A batch as it must be read back."""

    base_offset: int
    last_offset: int
    epoch: int
    producer_id: int
    sequence: int
    content: bytes


class Host:
    """A broker with one partition.

    lines: what the log may hold after a crash: the present one last, before it the one that a cut under way may leave
    standing. Each is all batches in order, forgotten ones too. flushed: everything of the present line below this
    offset is durable. start: nothing below it may be read, once that is durable.
    """

    def __init__(self, seed: int, config: LogConfig = CONFIG) -> None:
        self.disk = SimDisk(seed)
        self.config = config
        self.disk.make_dir("/logs")
        self.disk.make_dir(FOLDER)
        self.disk.sync_dir("/")
        self.disk.sync_dir("/logs")
        self.lines: list[list[Written]] = [[]]
        self.flushed = 0
        self.start = 0
        self.highest_start = 0
        self.epoch = 0
        self.clock = NOW
        self.sequences: dict[int, int] = {}
        self.fill = 0
        self.deletions: list[DeleteJob] = []
        self.log: Log
        self.open(clean=True)

    @property
    def line(self) -> list[Written]:
        """The present line."""
        return self.lines[-1]

    # ---- what a broker does

    def append(self, count: int = 1, size: int = 20, producer_id: int = -1) -> None:
        """One batch as leader."""
        self.clock += 1
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        self.fill = (self.fill + 1) % 251
        producer = (producer_id, 0, sequence) if producer_id >= 0 else (-1, -1, -1)
        options = {"size": size, "producer": producer, "timestamp": self.clock, "fill": bytes([self.fill])}
        base_offset = self.log.log_end_offset
        content = bytes(batch(count, base_offset=base_offset, epoch=self.epoch, **options))  # type: ignore[arg-type]
        self.line.append(Written(base_offset, base_offset + count - 1, self.epoch, producer_id, sequence, content))
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + count
        plan = self.log.append_as_leader(batch(count, **options), self.epoch, self.clock)  # type: ignore[arg-type]
        assert plan.first_offset == base_offset, plan
        if plan.needs_flush:
            self.flush(rolled_only=True)

    def append_as_follower(self, counts: list[int]) -> None:
        """Several batches in one answer."""
        self.clock += 1
        offset, sent = self.log.log_end_offset, []
        for count in counts:
            self.fill = (self.fill + 1) % 251
            data = bytes(
                batch(count, base_offset=offset, epoch=self.epoch, timestamp=self.clock, fill=bytes([self.fill]))
            )
            sent.append(Written(offset, offset + count - 1, self.epoch, -1, -1, data))
            offset += count
        self.line.extend(sent)
        plan = self.log.append_as_follower(memoryview(bytearray(b"".join(w.content for w in sent))), self.clock)
        assert plan is not None
        if plan.needs_flush:
            self.flush(rolled_only=True)

    def flush(self, *, rolled_only: bool = False) -> None:
        """Make durable what there is, then its recovery point."""
        job = self.log.start_flush(rolled_only=rolled_only)
        if job is None:
            return
        job.run()
        self.flushed = max(self.flushed, job.offset)
        assert self.log.flushed(job, 0) == self.flushed
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write the recovery point and the log start."""
        for name, offset in (
            ("recovery-point-offset-checkpoint", self.log.recovery_point),
            ("log-start-offset-checkpoint", self.log.log_start_offset),
        ):
            replace_file(self.disk, "/logs", name, format_offsets({PARTITION: offset}).encode())

    def truncate(self, offset: int) -> None:
        """Cut as a follower does that learns of a new leader; that leader then writes in a new epoch."""
        if offset >= self.log.log_end_offset:
            self.log.truncate_to(offset, self.clock)
            return
        kept = [written for written in self.line if written.last_offset < offset]
        self.lines.append(kept)
        self.flushed = min(self.flushed, offset)
        self.epoch += 1
        if self.log.distrust(offset):
            self.checkpoint()
        self._durably(self.log.truncate_to(offset, self.clock))
        self.lines = [kept]
        self.start = min(self.start, self.log.log_start_offset)
        self.checkpoint()
        self.forget_sequences()

    def _durably(self, truncated: Truncated) -> None:
        """Nothing is appended before."""
        if truncated.sync is not None:
            truncated.sync.run()
        self.note(truncated.removed)

    def start_again(self, offset: int) -> None:
        """Drop everything and begin at an offset."""
        self.lines.append([])
        self.flushed = 0
        self.epoch += 1
        if self.log.distrust(offset):
            self.checkpoint()
        self._durably(self.log.truncate_fully(offset, self.clock))
        self.start = self.highest_start = offset
        self.lines = [self.line]
        self.checkpoint()
        self.sequences.clear()

    def delete_records(self, offset: int) -> None:
        """Move the log start offset."""
        self.log.set_high_watermark(self.log.log_end_offset)
        self.log.advance_log_start(min(offset, self.log.log_end_offset))
        self.start = max(self.start, self.log.log_start_offset)

    def retain(self, wall_ms: int | None = None) -> None:
        """Drop old segments."""
        self.log.set_high_watermark(self.log.log_end_offset)
        self.start = max(self.start, self.log.log_start_offset)
        before = self.start
        self.start = self.log.log_end_offset  # any of it may go
        for job in self.log.delete_old_segments(self.clock if wall_ms is None else wall_ms):
            self.note(job)
        self.start = max(before, self.log.log_start_offset)
        self.checkpoint()

    def roll(self) -> None:
        """Start a new segment."""
        self.log.roll(self.clock)
        self.flush(rolled_only=True)

    def note(self, job: DeleteJob | None) -> None:
        """Files to be removed by and by."""
        if job is not None:
            self.deletions.append(job)

    def remove_files(self) -> None:
        """The delay has passed."""
        while self.deletions:
            self.deletions.pop().run()

    # ---- stops and starts

    def stop_cleanly(self) -> None:
        """Close, then say so; open again, which takes the word back."""
        self.log.close()
        self.flushed = self.log.log_end_offset
        self.checkpoint()
        replace_file(self.disk, "/logs", ".kafka_cleanshutdown", b"{}")
        sealed, notices = seal(self.log), list[str]()
        self.open(clean=True, sealed=sealed, notices=notices)
        assert (seal(self.log), notices) == (sealed, []), "something was made anew after a clean stop"

    def open(self, *, clean: bool, sealed: Sealed | None = None, notices: list[str] | None = None) -> None:
        """Open the log as the manager would."""
        if clean and self.disk.stat("/logs/.kafka_cleanshutdown") is not None:
            self.disk.remove("/logs/.kafka_cleanshutdown")
            self.disk.sync_dir("/logs")
        self.log = open_log(
            self.disk,
            FOLDER,
            self.config,
            open_files=OpenFiles(20),
            random=SimRandom(0),
            wall_ms=self.clock,
            clean=clean,
            recovery_point=self._saved("recovery-point-offset-checkpoint"),
            log_start_offset=self._saved("log-start-offset-checkpoint"),
            sealed=sealed,
            notices=notices,
        )

    def recover(self, *, power_loss: bool = True, crash_in_recovery: int | None = None) -> None:
        """Bring the machine up after a crash, crashing once more on the way if told so; then the log must be right."""
        self.disk.restart(power_loss=power_loss)
        if crash_in_recovery is not None:
            self.disk.crash_at = self.disk.calls + crash_in_recovery
        try:
            self._open_after_crash()
            if self.disk.is_down:
                raise PowerLoss
        except PowerLoss:
            self.disk.restart()
            self._open_after_crash()
        self.disk.crash_at = None
        self.settle()

    def _open_after_crash(self) -> None:
        self.deletions.clear()
        self.open(clean=self.disk.stat("/logs/.kafka_cleanshutdown") is not None)
        if self.log.recovery_point < self._saved("recovery-point-offset-checkpoint"):
            self.checkpoint()

    def _saved(self, name: str) -> int:
        return parse_offsets(read_text(self.disk, "/logs", name) or "").get(PARTITION, 0)  # type: ignore[call-overload,no-any-return]

    # ---- what must be

    def settle(self) -> None:
        """After a crash: find the line that the log is a part of, and make that the present one."""
        found = self.contents()
        log = self.log
        durable = max((w.last_offset + 1 for w in self.line if w.last_offset < self.flushed), default=0)
        assert log.log_end_offset >= durable, f"ends at {log.log_end_offset}, flushed to {durable}"
        for line in reversed(self.lines):
            kept = [w for w in line if log.log_start_offset <= w.last_offset < log.log_end_offset]
            if [w.content for w in kept] == found:
                self.lines = [[w for w in line if w.last_offset < log.log_end_offset]]
                break
        else:
            raise AssertionError(
                f"{log} holds {[_named(content) for content in found]}, which is part of no line: "
                f"{[[_named(w.content) for w in line] for line in self.lines]}, start {self.start}"
            )
        assert log.log_start_offset <= max(self.start, log.log_end_offset), (log, self.start)
        self.start = log.log_start_offset
        self.flushed = min(self.flushed, log.log_end_offset)
        self.epoch = max(self.epoch, log.epochs.latest) + 1
        self.forget_sequences()
        self.check()

    def forget_sequences(self) -> None:
        """Producers go on behind what the log remembers, be it of records that nobody may read any more."""
        self.sequences = {
            producer_id: entry.batches[-1].last_sequence + 1
            for producer_id, entry in self.log.producers.items()
            if entry.batches
        }

    def contents(self) -> list[bytes]:
        """Every batch, as a consumer that starts at the log start reads them."""
        found: list[bytes] = []
        log, offset = self.log, self.log.log_start_offset
        while offset < log.log_end_offset:
            region = log.read(offset, 1 << 20, log.log_end_offset).region
            if region is None:
                break
            data, at = region.read(), 0
            while at < len(data):
                size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
                found.append(data[at : at + size])
                offset = int.from_bytes(data[at : at + 8], "big") + int.from_bytes(data[at + 23 : at + 27], "big") + 1
                at += size
        return found

    def check(self) -> None:
        """The log is the present line from its start on, in all its parts."""
        log = self.log
        self.highest_start = max(self.highest_start, self.start)
        kept = [w for w in self.line if w.last_offset >= log.log_start_offset]
        assert self.contents() == [w.content for w in kept], log
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        assert log.recovery_point <= log.log_end_offset
        for written in kept:
            epoch = log.epochs.epoch_at(max(written.base_offset, log.log_start_offset))
            forgotten = written.base_offset < self.highest_start  # and then a crash brought the records back
            assert epoch == written.epoch or (forgotten and epoch == -1), (epoch, written)
            where = log.read(max(written.base_offset, log.log_start_offset), 1, log.log_end_offset).region
            assert where is not None
            assert where.read() == written.content, written
        for segment in log.segments:
            held = [header for _, header in segment.batches_from(0)]
            assert segment.max_timestamp == max((header[MAX_TIMESTAMP] for header in held), default=-1), segment
        last = {w.producer_id: w for w in kept if w.producer_id >= 0}
        for producer_id, written in last.items():
            entry = log.producers.get(producer_id)
            assert entry is not None, (producer_id, written)
            sequence = written.sequence + written.last_offset - written.base_offset
            assert entry.batches[-1][:2] == (sequence, written.last_offset), (entry.batches, written)


def play_with_fault(story: Story, seed: int, fault_at: int, code: int) -> bool:
    """Run a story in which the n-th call fails; then start again as after the death of the process. Whether it failed.

    What was acknowledged before must be there: the page cache is whole.
    """
    host = Host(seed)
    calls = 0

    def fault(call: str, path: str) -> OSError | None:
        nonlocal calls
        calls += 1
        return OSError(code, "injected", path) if calls == fault_at else None

    host.disk.fault = fault
    acknowledged = 0
    try:
        for step in story:
            step(host)
            acknowledged = host.log.log_end_offset
    except OSError:
        host.disk.fault = None
        lines = host.lines
        acknowledged = min(acknowledged, host.line[-1].last_offset + 1 if host.line else 0)
        host.recover(power_loss=False)
        assert len(lines) > 1 or host.log.log_end_offset >= acknowledged, (host.log, acknowledged)
        host.append()
        host.check()
        return True
    host.disk.fault = None
    host.check()
    return calls >= fault_at


def _named(content: bytes) -> str:
    """A batch by base offset, epoch and fill."""
    return f"{int.from_bytes(content[:8], 'big')}/{int.from_bytes(content[12:16], 'big')}/{content[-2]}"


Story = list[Callable[[Host], None]]


def play(story: Story, seed: int, crash_at: int, crash_in_recovery: int | None) -> bool:
    """Run a story up to the crash at its n-th call, recover, and go on a little; whether it crashed at all."""
    host = Host(seed)
    host.disk.crash_at = host.disk.calls + crash_at
    try:
        for step in story:
            step(host)
        if host.disk.is_down:
            raise PowerLoss
    except PowerLoss:
        host.recover(crash_in_recovery=crash_in_recovery)
        for i in range(6):
            host.append(producer_id=i % 2)
        host.flush()
        host.check()
        host.disk.crash_at = None
        host.disk.restart()
        host._open_after_crash()
        host.settle()
        return True
    host.disk.crash_at = None
    host.check()
    return False
