"""The log cleaner: which log is compacted when, the cleaner of a broker's logs, on the thread that owns them.

Owned by the log manager. Now and then, and after each compaction at once, it looks at all logs, some in each turn, and
takes the dirtiest. Its pieces of work are jobs like all others; when one comes back it is seen whether the log is still
as it was, else the compaction is given up: nothing of it is in place yet. A group of segments that is written and
durable takes the place of what it was made of by renames, which recovery finishes or undoes at any step:

    .cleaned -> .swap, all parts; the old segments -> .deleted; .swap -> live. A .cleaned file goes at the next start, a
    .swap takes the place of all segments whose offsets it covers.

The checkpoint of how far a log is clean follows, once the names are durable. Bytes a second are bounded by waiting
between pieces. A log that cannot be compacted is said once, and left alone until the next start.

Source: Kafka documentation, "Log Compaction".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from kbroker.log.cleaner import in_this_process
from kbroker.log.cleaner.choice import DirtyRange, dirt_of, groups_of
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.cleaner.errors import GoneError, UncleanableError
from kbroker.log.cleaner.figures import CleanerFigures
from kbroker.log.cleaner.swap import put_in_place
from kbroker.log.config import NEVER
from kbroker.log.errors import lacks_descriptors
from kbroker.log.facts import LogCleaned, Notice
from kbroker.log.jobs import DeleteJob, remove_if_there
from kbroker.log.names import CLEANER_OFFSETS, RECOVERY_POINTS, TopicPartition
from kbroker.log.segment import Segment
from kbroker.ports import Disk, Random

if TYPE_CHECKING:
    from kbroker.log.cleaner.compaction import Compacting, LastOfProducer, Plan
    from kbroker.log.directory import LogDirectory
    from kbroker.log.log import Log
    from kbroker.timing import Alarm

_SWEEP = 256  # logs looked at in one turn of the loop


BeginCompaction = Callable[[Disk, "Plan"], "Compacting"]
"""Makes the compaction of one log; nothing is read yet."""


class CleanPiece:
    """One piece of a compaction, as a job. fault: why the log cannot be compacted; is_gone: it went away meanwhile.

    unforeseen: what no compaction should raise, to be raised once this one has been given up.
    """

    __slots__ = ("_work", "cleaning", "directory", "fault", "is_gone", "is_last", "unforeseen")

    def __init__(self, cleaning: _Cleaning, work: Callable[[], bool]) -> None:
        """work: does a piece and says whether that was the last."""
        self.cleaning = cleaning
        self.directory = cleaning.directory
        self.is_last = False
        self.is_gone = False
        self.fault: str | None = None
        self.unforeseen: Exception | None = None
        self._work = work

    def run(self) -> None:
        """Raises OSError."""
        try:
            self.is_last = self._work()
        except UncleanableError as error:
            self.fault = str(error)
        except GoneError:
            self.is_gone = True
        except OSError:
            raise
        except Exception as error:  # a piece that did not come back would hold up the compaction of all logs for ever
            self.unforeseen, self.fault = error, f"{type(error).__name__} {error}".rstrip()

    def __repr__(self) -> str:
        return f"CleanPiece({self.cleaning.partition})"


class _Cleaning:
    """One log being compacted, below end_offset. groups: still to be written, the one under way first; sizes: of all
    segments.
    """

    __slots__ = (
        "began_ms",
        "bytes_before",
        "compaction",
        "directory",
        "end_offset",
        "groups",
        "is_over",
        "is_waiting",
        "log",
        "moved_bytes",
        "partition",
        "sizes",
        "step",
    )

    def __init__(
        self,
        partition: TopicPartition,
        log: Log,
        directory: LogDirectory,
        compaction: Compacting,
        segments: list[Segment],
        end_offset: int,
        now_ms: int,
    ) -> None:
        self.partition = partition
        self.log = log
        self.end_offset = end_offset
        self.directory = directory
        self.compaction = compaction
        self.sizes = {id(segment): segment.size for segment in segments}
        self.bytes_before = sum(self.sizes.values())
        self.groups: list[list[Segment]] = [segments]  # until it is known how far the keys go
        self.began_ms = now_ms
        self.moved_bytes = 0  # as of the last piece
        self.is_waiting = False  # for its turn: no job of it is under way
        self.is_over = False  # but for the removal of what is not in place
        self.step: Callable[[CleanPiece, int], None]

    @property
    def is_cut(self) -> bool:
        """Whether the log was cut below `end_offset`: what it has there now need not be what was read."""
        return self.log.lowest_cut < self.end_offset

    def is_intact(self, segments: list[Segment]) -> bool:
        """Whether these are still the log's, one behind the other, untouched, and none takes appends."""
        present = self.log.segments
        at = next((at for at, each in enumerate(present) if each is segments[0]), len(present))
        found = present[at : at + len(segments)]
        return (
            at + len(segments) < len(present)
            and all(mine is theirs for mine, theirs in zip(segments, found, strict=True))
            and all(segment.size == self.sizes[id(segment)] for segment in segments)
        )

    @property
    def newly_moved_bytes(self) -> int:
        """Bytes read and written since this was last asked."""
        moved = self.compaction.moved_bytes
        newly, self.moved_bytes = moved - self.moved_bytes, max(moved, self.moved_bytes)
        return max(0, newly)


class Cleaner:
    """Compacts the logs of a broker. figures: what there is to tell of it."""

    def __init__(
        self,
        directories: Mapping[TopicPartition, LogDirectory],
        disk: Disk,
        random: Random,
        config: CleanerConfig,
        tell: Callable[[object], None],
        alarm: Alarm,
        begin: BeginCompaction | None = None,
    ) -> None:
        """directories: where each partition's log is. alarm: rings when `due` is to be called. begin: makes
        compactions; None: in this process.
        """
        self._directories = directories
        self._disk = disk
        self._random = random
        self._config = config
        self._tell = tell
        self._begin = begin or in_this_process
        self._running: dict[TopicPartition, _Cleaning] = {}
        self._uncleanable: dict[TopicPartition, Log] = {}
        self._sweep: Iterator[TopicPartition] | None = None
        self._best: tuple[float, TopicPartition, DirtyRange] | None = None
        self._is_held_up = False  # by a recovery point that is not on the disk yet
        self._busy_until_ms = 0
        self._wall_ms = 0
        self._seen = (0.0, 0)  # by the sweep under way: the highest ratio, and by how much a log is overdue
        self.figures = CleanerFigures()
        self._alarm = alarm
        self._due_ms = 0  # when to look for work again

    def reconfigure(self, config: CleanerConfig) -> None:
        """Take other settings, for what begins from now on."""
        if config != self._config:
            self._config = config
            self._due_ms = 0
            self._alarm.soon()

    @property
    def uncleanable(self) -> list[TopicPartition]:
        """The partitions that are left alone, because of what is in them."""
        return [partition for partition, log in self._uncleanable.items() if self._log(partition) is log]

    def _log(self, partition: TopicPartition) -> Log | None:
        directory = self._directories.get(partition)
        return directory.logs.get(partition) if directory is not None else None

    def uncleanable_bytes(self) -> dict[str, list[int]]:
        """By log directory: for each partition that is left alone, the dirty bytes before its active segment."""
        found: dict[str, list[int]] = {}
        for partition in self.uncleanable:
            log = self._uncleanable[partition]
            dirty = sum(
                each.size for each, following in pairwise(log.segments) if following.base_offset > log.cleaned_to
            )
            found.setdefault(self._directories[partition].path, []).append(dirty)
        return found

    # ---- choosing

    def due(self, now_ms: int, wall_ms: int) -> None:
        """Look for work, at some logs."""
        self._wall_ms = wall_ms
        for cleaning in list(self._running.values()):
            if not cleaning.directory.online and cleaning.is_waiting:
                self._end(cleaning, now_ms)
        if now_ms >= self._due_ms:
            self._due_ms = self._start_dirtiest(now_ms, wall_ms)
        self._alarm.by(self._due_ms, now_ms)

    def _start_dirtiest(self, now_ms: int, wall_ms: int) -> int:
        """Clean the log with the greatest part that is not cleaned yet. Returns when to look again."""
        if not self._config.enable or len(self._running) >= self._config.threads:
            return now_ms + max(1, self._config.backoff_ms) if self._config.enable else NEVER
        if self._sweep is None:
            self._sweep, self._best, self._is_held_up = iter(list(self._directories)), None, False
            self._seen = (0.0, 0)
        for _ in range(_SWEEP):
            found = next(self._sweep, None)
            if found is None:
                self._sweep = None
                break
            log = self._log(found)
            if log is not None and log.is_configured and log.config.compact and len(log.segments) > 1:
                self._look_at(found, log, wall_ms)
        if self._sweep is not None:
            return now_ms
        self.figures.swept_ms = wall_ms
        self.figures.dirtiest_ratio, self.figures.overdue_ms = self._seen
        self._due_ms = now_ms + max(1, self._config.backoff_ms)
        if self._best is not None:
            self._start(self._best[1], now_ms, wall_ms)
            if len(self._running) < self._config.threads:
                return now_ms
        return self._due_ms

    def _look_by(self, due_ms: int, now_ms: int) -> None:
        self._due_ms = min(self._due_ms, due_ms)
        self._alarm.by(self._due_ms, now_ms)

    def _look_at(self, partition: TopicPartition, log: Log, wall_ms: int) -> None:
        if partition in self._running or self._uncleanable.get(partition) is log:
            return
        directory = self._directories[partition]
        durable_to = directory.durable_points.get(partition, 0)
        try:
            dirt = dirt_of(log, log.recovery_point, wall_ms)
            if dirt is not None and dirt.end_offset > durable_to and dirt.is_due(log.config.min_cleanable_dirty_ratio):
                self._is_held_up = True
                if RECOVERY_POINTS not in directory.writing:  # else that one would count as old, over and over
                    directory.checkpoint(RECOVERY_POINTS)
                dirt = dirt_of(log, durable_to, wall_ms)
        except OSError as error:
            directory.fail(error)
            return
        if dirt is not None:
            self._seen = (max(self._seen[0], dirt.ratio), max(self._seen[1], dirt.overdue_ms))
        if dirt is None or not dirt.is_due(log.config.min_cleanable_dirty_ratio):
            return
        if self._best is None or dirt.ratio > self._best[0]:
            self._best = (dirt.ratio, partition, dirt)

    def checkpoint_saved(self, name: str, now_ms: int) -> None:
        """A checkpoint is on the disk: a log may have waited for it."""
        if name == RECOVERY_POINTS and self._is_held_up:
            self._is_held_up = False
            self._look_by(now_ms, now_ms)

    # ---- one log

    def _start(self, partition: TopicPartition, now_ms: int, wall_ms: int) -> None:
        log = self._log(partition)
        if log is None or not log.config.compact:
            return
        directory = self._directories[partition]
        try:
            dirt = dirt_of(log, directory.durable_points.get(partition, 0), wall_ms)
        except OSError as error:
            directory.fail(error)
            return
        if dirt is None:
            return
        segments = [each for each in log.segments if each.base_offset < dirt.end_offset]
        compaction = self._compaction(log, dirt, segments, wall_ms)
        cleaning = _Cleaning(partition, log, directory, compaction, segments, dirt.end_offset, now_ms)
        self._running[partition] = cleaning
        log.lowest_cut = log.log_end_offset

        def prepare() -> bool:
            # The recovery point that allows this is in place, and its name may not be durable. Were it an older one
            # after a power cut, recovery would take the gaps that compaction leaves for lost batches.
            self._disk.sync_dir(directory.path)
            return compaction.note_some()

        self._next(cleaning, prepare, self._noted, now_ms)

    def _compaction(self, log: Log, dirt: DirtyRange, segments: list[Segment], wall_ms: int) -> Compacting:
        from kbroker.log.cleaner.compaction import Plan, Source  # its loops are loaded when first needed

        ends = [*(each.base_offset for each in segments[1:]), dirt.end_offset]
        plan = Plan(
            folder=log.folder.path,
            config=log.config,
            sources=[Source(each.base_offset, each.size, end) for each, end in zip(segments, ends, strict=True)],
            first_dirty=dirt.first_dirty,
            end_offset=dirt.end_offset,
            aborted_in=[each.base_offset for each in log.segments if each.aborted is not None],
            now_ms=wall_ms,
            map_bytes=self._config.map_bytes,
            load_factor=self._config.load_factor,
            chunk_bytes=self._config.chunk_bytes,
            secret=self._random.token(16),
        )
        return self._begin(self._disk, plan)

    def _next(
        self, cleaning: _Cleaning, work: Callable[[], bool], step: Callable[[CleanPiece, int], None], now_ms: int
    ) -> None:
        """Have a piece of work done, when the bytes a second allow it; then go on with `step`."""
        cleaning.step = step
        rate = self._config.max_bytes_per_second
        if rate > 0:
            self._busy_until_ms = max(now_ms, self._busy_until_ms) + int(cleaning.newly_moved_bytes * 1000 / rate)
        cleaning.is_waiting = True
        cleaning.directory.submit_later(CleanPiece(cleaning, work), self._busy_until_ms, now_ms)

    def finished(self, piece: CleanPiece, error: OSError | None, now_ms: int) -> None:
        """A piece has come back. error: what the disk said; the caller takes the directory offline.

        Where only a descriptor was lacking, the caller does not; then the log's turn comes again.
        """
        cleaning = piece.cleaning
        if cleaning.is_over:
            self._running.pop(cleaning.partition, None)
            return
        log = cleaning.log
        is_wanted = self._log(cleaning.partition) is log and log.config.compact and not cleaning.is_cut
        intact = error is None and is_wanted and all(cleaning.is_intact(group) for group in cleaning.groups)
        if piece.fault is not None and intact:  # else it may be of what has changed while it was read
            self._uncleanable[cleaning.partition] = log
            self._tell(Notice(f"{cleaning.partition}: is not compacted any more, until the next start: {piece.fault}"))
        if piece.fault is not None or piece.is_gone or not intact or not cleaning.directory.online:
            self._end(cleaning, now_ms)
            self._look_by(now_ms + max(1, self._config.backoff_ms), now_ms)
            return
        try:
            cleaning.step(piece, now_ms)
        except OSError as late:
            self._end(cleaning, now_ms)
            cleaning.directory.fail(late)

    def _noted(self, piece: CleanPiece, now_ms: int) -> None:
        """Some keys are known, or all: then the segments are put into groups."""
        cleaning, compaction = piece.cleaning, piece.cleaning.compaction
        if not piece.is_last:
            self._next(cleaning, compaction.note_some, self._noted, now_ms)
            return
        log, end_offset = cleaning.log, compaction.end_offset
        segments = [each for each in cleaning.groups[0] if each.base_offset < end_offset]
        cleaning.bytes_before = sum(cleaning.sizes[id(each)] for each in segments)  # less if the keys did not fit
        if not segments:
            cleaning.groups = []
            self._conclude(cleaning, now_ms)
            return
        at = log.segments.index(segments[-1])
        cleaning.groups = groups_of(
            segments,
            log.segments[at + 1].base_offset,
            most_bytes=log.config.segment_bytes,
            most_index=log.config.segment_index_bytes,
        )
        self._begin_group(cleaning, now_ms)

    def _begin_group(self, cleaning: _Cleaning, now_ms: int) -> None:
        from kbroker.log.cleaner.compaction import LastOfProducer

        log, compaction, group = cleaning.log, cleaning.compaction, cleaning.groups[0]
        at = next(at for at, each in enumerate(log.segments) if each is group[-1])
        end_offset = log.segments[at + 1].base_offset
        producers: dict[int, LastOfProducer] = {
            producer_id: LastOfProducer(entry.batches[-1].last_offset if entry.batches else -1, entry.epoch)
            for producer_id, entry in log.producers.items()
        }
        base_offset, begun = group[0].base_offset, False
        path = log.folder.path

        def work() -> bool:
            nonlocal begun
            try:
                if not begun:
                    begun = True
                    compaction.begin_group(base_offset)
                return compaction.rewrite_some(end_offset, producers)
            except FileNotFoundError:  # of what it writes: the folder was renamed, since the log is deleted or moved
                raise GoneError(path) from None

        def written(piece: CleanPiece, then_ms: int) -> None:
            if piece.is_last:
                self._put_in_place(cleaning, then_ms)
            else:
                self._next(cleaning, work, written, then_ms)

        self._next(cleaning, work, written, now_ms)

    def _put_in_place(self, cleaning: _Cleaning, now_ms: int) -> None:
        """The group is written and durable: it takes the place of its segments."""
        log, written, group = cleaning.log, cleaning.compaction.take_written(), cleaning.groups.pop(0)
        segment = Segment(
            log.folder,
            written.base_offset,
            log.config,
            created_ms=group[0].created_ms,
            size=written.size,
            index_bytes=written.index_bytes,
            has_aborted=written.has_aborted,
        )
        cleaning.directory.delete_later(put_in_place(log, group, segment), now_ms)
        if cleaning.groups:
            self._begin_group(cleaning, now_ms)
            return
        path = log.folder.path

        def sync_names() -> bool:
            try:
                self._disk.sync_dir(path)
            except FileNotFoundError:
                raise GoneError(path) from None
            return True

        self._next(cleaning, sync_names, lambda _, then_ms: self._conclude(cleaning, then_ms), now_ms)

    def _conclude(self, cleaning: _Cleaning, now_ms: int) -> None:
        """All groups are in place, durably: the log is clean so far."""
        log, compaction = cleaning.log, cleaning.compaction
        log.cleaned_to = min(compaction.end_offset, log.log_end_offset)
        cleaning.directory.checkpoint(CLEANER_OFFSETS)
        took_ms, after = now_ms - cleaning.began_ms, compaction.written_bytes
        figures = self.figures
        figures.took_ms, figures.map_share = took_ms, compaction.map_share
        figures.read_bytes, figures.written_bytes = cleaning.bytes_before, after
        self._end(cleaning, now_ms)
        self._look_by(now_ms, now_ms)  # there may be more
        before = cleaning.bytes_before
        self._tell(LogCleaned(cleaning.partition, log.cleaned_to, before, after, compaction.kept_records, took_ms))

    def _end(self, cleaning: _Cleaning, now_ms: int) -> None:
        """Give a compaction up, or end it: nothing that is not in place stays behind."""
        paths = cleaning.compaction.close()
        if not paths or not cleaning.directory.online:
            self._running.pop(cleaning.partition, None)
            return

        def remove() -> bool:
            DeleteJob(self._disk, paths, 0).run()
            return True

        # A piece like the others: as long as it waits for a disk, the next compaction of the log must not begin, which
        # would give its files the same names.
        cleaning.is_over = True
        self._next(cleaning, remove, cleaning.step, now_ms)

    def stop(self) -> None:
        """Give up what is under way, at a clean stop; waits for the disk."""
        running, self._running = self._running, {}
        for cleaning in running.values():
            for path in cleaning.compaction.close():
                try:
                    remove_if_there(self._disk, path)
                except OSError as error:
                    if not lacks_descriptors(error):
                        break  # the next start finds it
