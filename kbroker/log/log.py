"""The log of one partition: appends, reads, segment rolls, truncation, and deletion by retention.

Owns the segments in order, the offsets that bound them, leader epochs and producers. Called by `replica/partition.py`
for data and by the manager for housekeeping; opened by `recovery.open_log`. One thread owns it. Never waits until
something is durable but where it says so: what must be fsynced comes out as a `FlushJob`, what must be removed as a
`DeleteJob`. The order of offsets, always:

    log_start_offset <= high_watermark <= log_end_offset,  recovery_point <= log_end_offset

Errors: KafkaError for what a request asks wrongly, OSError from the disk, which takes the directory offline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter

from kbroker.log.append import (
    AppendPlan,
    Opener,
    marker_of,
    may_abort,
    plan_as_follower,
    plan_as_leader,
    plan_of_duplicate,
)
from kbroker.log.checkpoints import UNKNOWN, format_leader_epochs
from kbroker.log.config import LogConfig
from kbroker.log.epochs import EpochEnd, LeaderEpochs
from kbroker.log.errors import lacks_descriptors
from kbroker.log.facts import SegmentsDeleted
from kbroker.log.folder import Folder
from kbroker.log.index import MAX_RELATIVE_OFFSET
from kbroker.log.isolation import HIGH_WATERMARK, LOG_END, FetchIsolation
from kbroker.log.jobs import DeleteJob, FlushJob, Truncated
from kbroker.log.producer_state import Marker, Origin, Producers
from kbroker.log.reads import LogReads
from kbroker.log.replay import replay_producers
from kbroker.log.segment import ASK_FIRST, Segment, draw_jitter, parts_of
from kbroker.log.snapshots import Snapshots
from kbroker.ports import Random
from protocol.errors import ErrorCode, KafkaError
from protocol.records import crc32c
from protocol.records.batch import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    CONTROL,
    COUNT,
    CRC,
    LAST_DELTA,
    LEADER_EPOCH,
    LENGTH,
    LENGTH_OVERHEAD,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    HeaderTuple,
    assign,
    unpack_header,
)
from protocol.records.content import accept

_CLIENT = Origin.CLIENT  # looked up once
_OF_FILES = (
    "_opened_end",
    "_saved_epochs",
    "_truncations",
    "cleaned_to",
    "epochs",
    "folder",
    "lowest_cut",
    "names_changed",
    "recovery_point",
    "segments",
    "snapshots",
)
"""What of a log is of its files."""

_base_offset = attrgetter("base_offset")


class Log(LogReads):
    """One partition's log. Made by `recovery.open_log`.

    log_end_offset: of the next record. high_watermark: set by the partition. recovery_point: everything below is
    durable. last_flush_ms: monotonic, when the recovery point last reached the end. flush_wanted: behind the last
    record that flush.messages asks to be durable first: no client is told of it while the recovery point is below.
    cleaned_to: it is compacted below this. lowest_cut: nothing below was cut since its last compaction began.
    names_changed: its folder has names that may not be durable. is_configured: its settings are its topic's; while they
    may be mere defaults nothing is deleted or compacted away.
    """

    __slots__ = (
        "_flushing",
        "_opened_end",
        "_random",
        "_saved_epochs",
        "_truncations",
        "cleaned_to",
        "config",
        "cuts_under_way",
        "epochs",
        "flush_wanted",
        "folder",
        "high_watermark",
        "id_checksum",
        "is_configured",
        "last_flush_ms",
        "log_end_offset",
        "log_start_offset",
        "lowest_cut",
        "names_changed",
        "producers",
        "recovery_point",
        "segments",
        "snapshots",
    )

    def __init__(
        self,
        folder: Folder,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochs,
        producers: Producers,
        snapshots: Snapshots,
        random: Random,
        names_changed: bool,
    ) -> None:
        assert segments, folder.path
        self.folder = folder
        self.config = config
        self.is_configured = True
        self.id_checksum = UNKNOWN  # of the topic id in its folder, as the last clean stop left it with these segments
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_start_offset
        self.recovery_point = recovery_point
        self.epochs = epochs
        self.producers = producers
        self.snapshots = snapshots
        self.last_flush_ms = 0
        self.flush_wanted = 0
        self.cleaned_to = 0
        self.lowest_cut = 0
        self._random = random
        self.names_changed = names_changed
        self._saved_epochs = 0  # as loaded
        self._truncations = 0
        self.cuts_under_way = 0  # that are not durable yet: nothing is to be appended
        self._opened_end = -1 if names_changed else log_end_offset  # -1: there is something to save
        self._flushing: FlushJob | None = None
        self._tail_offset = -1  # where the last append starts, in the active segment
        self._tail_position = 0
        self._marks = None

    def __repr__(self) -> str:
        return f"Log({self.folder.path!r}, {self.log_start_offset} to {self.log_end_offset})"

    @property
    def active(self) -> Segment:
        """The segment that appends go to."""
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of batches in all segments."""
        return sum(segment.size for segment in self.segments)

    # ---- append

    def append_as_leader(
        self,
        records: memoryview,
        leader_epoch: int,
        wall_ms: int,
        origin: Origin = Origin.CLIENT,
        opener: Opener | None = None,
    ) -> AppendPlan:
        """Append one batch, giving it the next offsets and this leader epoch; a duplicate is answered, not appended.

        records: a writable view of one batch, v2; it is stamped in place. wall_ms: for LogAppendTime and limits.
        Raises KafkaError as `append.plan_as_leader`; OSError.
        """
        end_offset, config, producers = self.log_end_offset, self.config, self.producers
        plan = plan_as_leader(records, end_offset, leader_epoch, config, producers, wall_ms, origin, opener)
        return self._carry_out(plan, leader_epoch, wall_ms)

    def append_from_client(
        self, records: memoryview, leader_epoch: int, wall_ms: int, opener: Opener | None = None
    ) -> int | AppendPlan:
        """Append a client's batch as the leader. Returns: its first offset, where there is no more to tell.

        That is so for nearly all batches, and they are written without a plan. Else the plan, as `append_as_leader`
        makes it. Raises as there.
        """
        first, segment, config, producers = self.log_end_offset, self.segments[-1], self.config, self.producers
        header = accept(records, config.plain_bytes, first, leader_epoch)
        if header is None or crc32c(records[ATTRIBUTES_AT:]) != header[CRC]:
            return self.append_as_leader(records, leader_epoch, wall_ms, _CLIENT, opener)
        if header[PRODUCER_ID] >= 0:
            repeated = producers.check(header, _CLIENT)
            if repeated is not None:
                return plan_of_duplicate(repeated, config)
        size, last_offset, max_timestamp = len(records), first + header[LAST_DELTA], header[MAX_TIMESTAMP]
        if last_offset - self.recovery_point < config.flush_messages - 1 and leader_epoch == self.epochs.latest:
            position = segment.append((records,), size, last_offset, max_timestamp, last_offset)
            if position >= 0:
                self._tail_position, self._tail_offset = position, first
                self.log_end_offset = producers.end_offset = last_offset + 1
                if header[PRODUCER_ID] >= 0:
                    producers.update(header, first, max_timestamp)
                return first
        batches = [(header, first, max_timestamp)]
        plan = AppendPlan(batches, [records], size, first, last_offset, max_timestamp, last_offset)
        return self._carry_out(plan, leader_epoch, wall_ms)

    def append_own(
        self, batch: bytearray, leader_epoch: int, wall_ms: int, marker: Marker | None = None
    ) -> int | AppendPlan:
        """Append, as the leader, a batch that this broker has just built: a coordinator's records, or a marker.

        What is known of it is not found out again: only its producer's epoch is checked. batch: uncompressed, its
        timestamps are wall_ms. marker: what it says if it is a control batch. Returns: as `append_from_client`; it is
        by a plan that segments roll and transactions abort. Raises as `append_as_leader` for a coordinator.
        """
        first, segment, config, producers = self.log_end_offset, self.segments[-1], self.config, self.producers
        header: HeaderTuple = unpack_header(batch, 0)
        size, last_offset, max_timestamp = len(batch), first + header[LAST_DELTA], header[MAX_TIMESTAMP]
        if (
            size > config.own_bytes
            or last_offset - self.recovery_point >= config.flush_messages - 1
            or leader_epoch != self.epochs.latest
            or (marker is not None and not marker.is_commit)
        ):
            return self.append_as_leader(memoryview(batch), leader_epoch, wall_ms, Origin.COORDINATOR)
        if marker is not None:
            producers.check_marker(header, marker)
        elif header[PRODUCER_ID] >= 0:
            producers.check(header, Origin.COORDINATOR)
        assign(batch, 0, first, header[LENGTH], leader_epoch)
        position = segment.append((batch,), size, last_offset, max_timestamp, last_offset)
        if position < 0:
            return self.append_as_leader(memoryview(batch), leader_epoch, wall_ms, Origin.COORDINATOR)
        self._tail_position, self._tail_offset = position, first
        self.log_end_offset = producers.end_offset = last_offset + 1
        if marker is not None:
            self._end_transaction(marker, header, first)
        elif header[PRODUCER_ID] >= 0:
            producers.update(header, first, max_timestamp)
        return first

    def _carry_out(self, plan: AppendPlan, leader_epoch: int, wall_ms: int) -> AppendPlan:
        """Write a leader's plan; a duplicate is not written."""
        if plan.duplicate is None:
            if leader_epoch != self.epochs.latest and leader_epoch >= 0 and self.config.has_epochs:
                self.epochs.assign(leader_epoch, plan.first_offset)
            self._append(plan, wall_ms)
        return plan

    def append_as_follower(self, records: memoryview, wall_ms: int) -> AppendPlan | None:
        """Append what a leader sent, with its offsets and epochs; None if there was no whole batch in it.

        As much at a time as fits into a segment: the leader's may be longer than ours. Returns: the last plan.
        Raises KafkaError as `append.plan_as_follower`; OSError.
        """
        position, whole = 0, None
        while position < len(records):
            rest = records[position:] if position else records
            plan = plan_as_follower(rest, next_offset=self.log_end_offset, config=self.config)
            if plan is None:
                break
            for header, base_offset, _ in plan.batches:
                if header[LEADER_EPOCH] != self.epochs.latest and header[LEADER_EPOCH] >= 0 and self.config.has_epochs:
                    self.epochs.assign(header[LEADER_EPOCH], base_offset)
            self._append(plan, wall_ms)
            plan.needs_flush |= whole is not None and whole.needs_flush
            whole = plan
            position += plan.size
        return whole

    def _append(self, plan: AppendPlan, wall_ms: int) -> None:
        """Write a plan, and take note of what it wrote."""
        segment, aborted, position = self.segments[-1], None, ASK_FIRST
        size, last_offset, max_timestamp, batches = plan.size, plan.last_offset, plan.max_timestamp, plan.batches
        if (batches[0][0][ATTRIBUTES] & CONTROL or len(batches) > 1) and may_abort(plan, self.producers):
            segment = self._segment_for(plan, wall_ms)
            aborted = segment.expect_aborted()  # before it is written: after that there is no way back
        else:
            position = segment.append(
                plan.buffers, size, last_offset, max_timestamp, plan.max_timestamp_offset, batches
            )
        if position < 0:
            segment = segment if aborted is not None else self._segment_for(plan, wall_ms)
            position = segment.append(
                plan.buffers, size, last_offset, max_timestamp, plan.max_timestamp_offset, batches, is_asked=True
            )
        self._tail_position, self._tail_offset = position, plan.first_offset
        self.log_end_offset = end_offset = last_offset + 1
        if len(batches) > 1 or batches[0][0][PRODUCER_ID] >= 0:
            self._note_producers(plan)
            if aborted is not None:
                aborted.close()
        self.producers.end_offset = end_offset
        if end_offset - self.recovery_point >= self.config.flush_messages:
            plan.needs_flush = True
            self.want_flush()

    def _segment_for(self, plan: AppendPlan, wall_ms: int) -> Segment:
        """The active segment, which is another one now if the plan has no place in it."""
        last_offset = plan.last_offset
        if not self.segments[-1].must_roll(plan.size, last_offset, plan.max_timestamp, wall_ms):
            return self.segments[-1]
        # At a gap that a leader's compaction has left, at the end of the log all the same: a segment that begins
        # behind it would stand behind a hole, for a recovery that knows nothing of compaction here.
        is_near = last_offset - self.log_end_offset <= MAX_RELATIVE_OFFSET
        plan.needs_flush = True
        return self.roll(wall_ms, 0 if is_near else plan.first_offset)

    def _note_producers(self, plan: AppendPlan) -> None:
        """Who wrote the batches of a plan, and which transactions ended with it."""
        at = 0
        for header, base_offset, max_timestamp in plan.batches:
            if header[PRODUCER_ID] >= 0:
                if not header[ATTRIBUTES] & CONTROL:
                    self.producers.update(header, base_offset, max_timestamp)
                elif header[COUNT] > 0:  # else a leader's cleaner has emptied it: nothing is left of the transaction
                    self._end_transaction(marker_of(memoryview(plan.buffers[0])[at:], header), header, base_offset)
            at += header[LENGTH] + LENGTH_OVERHEAD

    def _end_transaction(self, marker: Marker, header: HeaderTuple, base_offset: int) -> None:
        completed = self.producers.end_transaction(header, base_offset, marker)
        if completed is None:
            return
        if completed.is_aborted:
            self.names_changed = True
            self.active.note_aborted(completed, self.producers.last_stable_offset_after(completed))
        self.producers.forget_completed(completed)

    def roll(self, wall_ms: int, next_offset: int = 0) -> Segment:
        """Close the active segment and start another at the end of the log, or at next_offset if that is greater."""
        base_offset = max(next_offset, self.log_end_offset)
        active = self.segments[-1]
        if active.base_offset == base_offset:
            assert not active.size, active
            return active  # its indices have no room at all: another one would have none either
        active.finish()
        self.producers.end_offset = base_offset
        self.names_changed = True  # also where it goes wrong: what was made is to be gone durably
        self.snapshots.take_snapshot(self.producers)
        segment = Segment.create(
            self.folder, base_offset, self.config, now_ms=wall_ms, jitter_ms=draw_jitter(self.config, self._random)
        )
        self.segments.append(segment)
        self._opened_end = -1
        self.forget_places()  # the end of the log is elsewhere now
        return segment

    def reconfigure(self, config: LogConfig) -> bool:
        """Go by other settings from now on: the topic's. Whether they were not known before, or others."""
        was_configured, self.is_configured = self.is_configured, True
        if config == self.config:
            return not was_configured
        self.config = config
        for segment in self.segments:
            segment.reconfigure(config)
        if not config.has_epochs:
            self.epochs.clear()  # a leader that has none knows nothing of ours
        return True

    # ---- epochs

    def begin_epoch(self, leader_epoch: int) -> None:
        """Lead from the end of the log on; an epoch that has begun already stays where it is."""
        if self.config.has_epochs:
            self.epochs.assign(leader_epoch, self.log_end_offset)

    def last_offset_of_epoch(self, epoch: int) -> EpochEnd:
        """Where a leader epoch, or the largest known one below it, ends; (-1, -1) if unknown."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # ---- bounds

    def readable_end(self, isolation: FetchIsolation) -> int:
        """The offset below which a reader with this isolation reads."""
        if isolation is HIGH_WATERMARK:
            return self.high_watermark
        return self.log_end_offset if isolation is LOG_END else self.last_stable_offset

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided and replicated."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None:
            return self.high_watermark
        return min(self.high_watermark, max(first_unstable, self.log_start_offset))

    def set_high_watermark(self, offset: int) -> int:
        """Move the high watermark, held within the log and below what is to be durable first; returns where it is."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if self.flush_wanted > self.recovery_point:  # awaits_flush
            offset = min(offset, max(self.high_watermark, self.recovery_point))
        if offset < self.log_start_offset:
            offset = self.log_start_offset
        self.high_watermark = offset
        if self.producers.ended:
            self.producers.high_watermark_moved(offset)
        return offset

    def commit_all(self) -> None:
        """`set_high_watermark` to the end of the log: no other replica is in sync."""
        if self.flush_wanted > self.recovery_point or self.producers.ended:
            self.set_high_watermark(self.log_end_offset)
        else:
            self.high_watermark = self.log_end_offset

    def advance_log_start(self, offset: int) -> bool:
        """Forget what lies below `offset` (DeleteRecords, or a leader's log start); whether that changed anything.

        Files go at the next `delete_old_segments`. Raises KafkaError OFFSET_OUT_OF_RANGE above the high watermark.
        """
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is above the high watermark {self.high_watermark}"
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    # ---- cut

    def distrust(self, offset: int) -> bool:
        """What lies from `offset` on is about to be cut: recovery is not to trust it; whether it would have.

        Then the caller makes the checkpoints of recovery points and of the cleaner durable before it cuts.
        """
        trusted = offset < self.recovery_point
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaned_to = min(self.cleaned_to, offset)
        return trusted

    def truncate_to(self, offset: int, wall_ms: int) -> Truncated:
        """Cut all records from `offset` on (and the batch that holds it), for a follower whose log went astray.

        It holds at once, and is durable when the job that comes back has run: nothing may be appended before. Raises
        OSError: where it was for want of a descriptor, nothing is cut, and the caller may try again.
        """
        assert offset >= 0, offset
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)
            return Truncated(None, None)
        if offset < self.segments[0].base_offset:
            return self.truncate_fully(offset, wall_ms)
        kept = bisect_right(self.segments, offset, key=_base_offset)
        log_start_offset = min(self.log_start_offset, offset)
        producers = self._producers_up_to(offset, log_start_offset, wall_ms)
        truncation = self.segments[kept - 1].prepare_truncation(offset)  # from here on no file is opened
        removed: list[str] = []
        self.names_changed |= kept < len(self.segments)  # a clean stop may come before the job that syncs them
        while len(self.segments) > kept:  # the last one first
            removed += self.set_aside(self.segments.pop())
        self.active.truncate(truncation, wall_ms)
        self._cut(offset, producers)
        self.log_start_offset = log_start_offset
        self.high_watermark = min(self.high_watermark, offset)
        producers.high_watermark_moved(self.high_watermark)
        return Truncated.of(self.folder, self.config.file_delete_delay_ms, truncation.paths, removed)

    def _cut(self, offset: int, producers: Producers) -> None:
        """Everything from `offset` on is gone, and the next record gets it. producers: of what is left."""
        self._truncations += 1
        self.forget_places()
        self.log_end_offset = offset
        self.flush_wanted = min(self.flush_wanted, offset)
        self.lowest_cut = min(self.lowest_cut, offset)
        self.epochs.truncate_from_end(offset)
        self.producers = producers
        self.distrust(offset)

    def truncate_fully(self, offset: int, wall_ms: int, log_start_offset: int | None = None) -> Truncated:
        """Drop everything and start again, empty, at `offset`. log_start_offset: if it is not `offset`.

        As `truncate_to`; the caller makes a log start of its own durable by its checkpoint.
        """
        assert offset >= 0, offset
        removed: list[str] = []
        while self.segments:
            removed += self.set_aside(self.segments.pop())
        for snapshot in self.snapshots.offsets[:]:
            self.snapshots.remove(snapshot)
        jitter_ms = draw_jitter(self.config, self._random)
        segment = Segment(self.folder, offset, self.config, created_ms=wall_ms, jitter_ms=jitter_ms)
        self.segments.append(segment)
        self.names_changed = True
        self._cut(offset, self.producers.of_the_same_log(offset))
        self.epochs.clear()
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.high_watermark = max(self.log_start_offset, min(self.high_watermark, offset))
        try:
            segment.make()
        except OSError as error:
            if not lacks_descriptors(error):  # else its files come with the first append
                raise
        return Truncated.of(self.folder, self.config.file_delete_delay_ms, self.active.paths_to_sync(), removed)

    def _producers_up_to(self, offset: int, log_start_offset: int, wall_ms: int) -> Producers:
        """The producers as they were when the log ended at `offset`. Raises OSError."""
        producers, snapshots = self.producers.of_the_same_log(offset), self.snapshots
        snapshots.keep_within(log_start_offset, offset)
        if len(self.producers):
            snapshots.load_latest(producers, log_start_offset, wall_ms, self.config.producer_id_expiration_ms)
            replay_producers(self.segments, producers, offset)
        return producers

    # ---- forget

    def delete_old_segments(
        self, wall_ms: int, tell: Callable[[SegmentsDeleted], None] | None = None
    ) -> list[DeleteJob]:
        """Drop segments below the log start, and, with policy delete, those too many or too old. Raises OSError.

        Never one that reaches the high watermark or beyond. The caller checkpoints the log start offsets by and by.
        """
        config = self.config
        surplus = self.size - config.retention_bytes if config.delete and config.retention_bytes >= 0 else -1
        keeps_old = not config.delete or config.retention_ms < 0

        why: list[str] = []  # of each that goes

        def is_due(segment: Segment, following: int | None) -> bool:
            nonlocal surplus
            surplus -= segment.size
            if following is not None and following <= self.log_start_offset:
                why.append(f"log start offset {self.log_start_offset}")
            elif surplus >= 0:
                why.append(f"retention size {config.retention_bytes} bytes")
            elif not keeps_old and wall_ms - segment.largest_timestamp > config.retention_ms:
                why.append(f"retention time {config.retention_ms} ms")
            else:
                return False
            return True

        size, first_offset = self.size, self.segments[0].base_offset
        job = self._delete_while(is_due, wall_ms)
        if job is None:
            return []
        if tell is not None:
            name, start, reasons = self.folder.path.rpartition("/")[2], self.segments[0].base_offset, dict.fromkeys(why)
            tell(SegmentsDeleted(name, len(why), first_offset, start, size - self.size, ", ".join(reasons)))
        return [job]

    def _delete_while(self, is_due: Callable[[Segment, int | None], bool], wall_ms: int) -> DeleteJob | None:
        """Drop segments from the oldest on, as long as `is_due(segment, base offset of the next)` and all is committed.

        Raises OSError; if it was for want of a descriptor, nothing is dropped.
        """
        count = 0
        for at, segment in enumerate(self.segments):
            following = self.segments[at + 1].base_offset if at + 1 < len(self.segments) else None
            if following is None and not segment.size:
                break
            end = self.log_end_offset if following is None else following
            if self.high_watermark < end or not is_due(segment, following):
                break
            count += 1
        if not count:
            return None
        if count == len(self.segments):
            self.roll(wall_ms)
        removed, self.segments[:count] = self.segments[:count], []
        self.forget_places()
        self.advance_log_start(self.segments[0].base_offset)
        self.names_changed = True
        paths = [path for segment in removed for path in self.set_aside(segment)]
        return DeleteJob(self.folder.disk, paths, self.config.file_delete_delay_ms)

    def set_aside(self, segment: Segment, *, snapshot: bool = True) -> list[str]:
        """Rename a segment's files to .deleted, its snapshot's too if `snapshot`; their new paths."""
        segment.close()
        segment.is_gone = True
        disk, folder, base_offset = self.folder.disk, self.folder, segment.base_offset
        paths = []
        parts = parts_of(segment)
        if snapshot and base_offset in self.snapshots.offsets:
            self.snapshots.offsets.remove(base_offset)
            parts = (*parts, "snapshot")
        for part in parts:
            aside = folder.file_path(base_offset, part, ".deleted")
            try:
                disk.rename(folder.file_path(base_offset, part), aside)
            except FileNotFoundError:
                continue  # an index that was removed by hand: the segment goes all the same
            paths.append(aside)
        return paths

    def expire_producers(self, wall_ms: int) -> int:
        """Forget producers that have been silent for producer.id.expiration.ms; tells how many."""
        return self.producers.expire(wall_ms, self.config.producer_id_expiration_ms)

    def move_to(self, path: str) -> None:
        """Rename the folder: the first step of deleting a partition, or of putting a future copy in its place.

        The caller syncs the parent folder. Open files stay good.
        """
        self.folder.disk.rename(self.folder.path, path)
        self.folder.path = path

    def exchange_files(self, copy: Log) -> None:
        """Go on in the files of a copy that ends at the same offset, and it in ours; neither is flushed or cut now.

        What a log knows beside its files stays: producers, bounds, settings, and what is to be flushed.
        """
        for name in _OF_FILES:
            mine = getattr(self, name)
            setattr(self, name, getattr(copy, name))
            setattr(copy, name, mine)
        self.forget_places()
        if copy.config != self.config:
            for segment in self.segments:
                segment.reconfigure(self.config)

    def delete(self) -> DeleteJob:
        """Give up all files; the job removes the folder with everything in it. Only after `move_to`."""
        self.close_files()
        return DeleteJob(self.folder.disk, [], self.config.file_delete_delay_ms, self.folder.path)

    # ---- flush

    @property
    def awaits_flush(self) -> bool:
        """Whether a request may wait for a flush that flush.messages asked for."""
        return self.flush_wanted > self.recovery_point

    def want_flush(self) -> bool:
        """Whether flush.messages asks for a flush that was not requested yet: then all there is waits for it."""
        if self.log_end_offset - max(self.recovery_point, self.flush_wanted) < self.config.flush_messages:
            return False
        self.flush_wanted = self.log_end_offset
        return True

    def start_flush(self, *, rolled_only: bool = False) -> FlushJob | None:
        """The job that makes the log durable; None if it is, or if a job is under way.

        Its end is told by `flushed` or `flush_failed`.
        rolled_only: leave the active segment out, as after a roll.
        """
        offset = self.active.base_offset if rolled_only else self.log_end_offset
        changed = self.names_changed or self.epochs.version != self._saved_epochs
        if self._flushing is not None or (offset <= self.recovery_point and not changed):
            return None
        self._flushing = self._flush_job(max(offset, self.recovery_point), rolled_only)
        return self._flushing

    def _flush_job(self, offset: int, rolled_only: bool) -> FlushJob:
        paths: list[str] = []
        first = bisect_right(self.segments, self.recovery_point, key=_base_offset) - 1
        if first > 0 and self.names_changed and self.segments[first].base_offset == self.recovery_point:
            first -= 1  # its batches are durable, what the roll did to its indices is not
        for segment in self.segments[max(first, 0) :]:
            if segment.base_offset < offset or (segment.base_offset == offset and not rolled_only):
                paths += segment.paths_to_sync()
        paths += self.snapshots.to_sync(self.recovery_point - 1, offset)
        changed = self.epochs.version != self._saved_epochs
        epochs = (self.epochs.version, format_leader_epochs(self.epochs.entries())) if changed else None
        job = FlushJob(
            self.folder.disk,
            self.folder.path,
            offset,
            paths=paths,
            epochs=epochs,
            names_changed=self.names_changed,
            truncations=self._truncations,
        )
        self.names_changed = False
        return job

    def flushed(self, job: FlushJob, now_ms: int) -> int:
        """A flush came back: move the recovery point; returns it. now_ms: monotonic."""
        assert job is self._flushing, (job, self._flushing)
        self._flushing = None
        if job.truncations == self._truncations:
            self.recovery_point = max(self.recovery_point, job.offset)
        if job.epochs_version is not None and job.epochs_checksum is not None:
            self._saved_epochs, self.epochs.stored = job.epochs_version, job.epochs_checksum
        if self.recovery_point >= self.log_end_offset:
            self.last_flush_ms = now_ms
        assert self.recovery_point <= self.log_end_offset, (self.recovery_point, self.log_end_offset)
        return self.recovery_point

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is under way."""
        return self._flushing is not None

    @property
    def truncations(self) -> int:
        """How often records have been cut from its end."""
        return self._truncations

    def flush_failed(self, job: FlushJob) -> None:
        """A flush came back with an error: the directory goes offline, nothing here may be trusted to be durable."""
        assert job is self._flushing, (job, self._flushing)
        self._flushing = None
        self.names_changed = True

    def give_flush_up(self) -> None:
        """A flush whose job was never begun is none."""
        if self._flushing is not None:
            self.flush_failed(self._flushing)

    # ---- end

    def close(self) -> None:
        """Make everything durable and exact, for a clean stop; waits for the disk. Not while a flush is under way.

        A log that nothing happened to since it was opened costs nothing.
        """
        assert self._flushing is None, self._flushing
        if self._truncations or self.names_changed or self._opened_end != self.log_end_offset:
            self.producers.end_offset = self.log_end_offset
            if self.log_end_offset > (self.snapshots.latest or 0):
                self.snapshots.take_snapshot(self.producers)
                self.names_changed = True
            self.active.finish()
            job = self._flush_job(self.log_end_offset, rolled_only=False)
            job.run()
            self._flushing = job
            self.flushed(job, 0)
        self.close_files()

    def close_files(self) -> None:
        """Give all descriptors back without writing anything: after a failure, or after `close`."""
        for segment in self.segments:
            segment.close()
