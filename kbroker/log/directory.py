"""A log directory, one entry of log.dirs: its lock, its checkpoints, its logs, and the work for the disk.

Called by the manager, which has all of them. It decides nothing about where a partition goes. What waits for the disk
comes out of `take_jobs`, runs elsewhere, and comes back through `finished`. With the first OSError it goes offline,
with all its logs and jobs, and stays so until a restart: LogDirectoryFailed is told. `log_loader.py` loads its logs.

Source: Kafka documentation, implementation, "Log"; KIP-112 (several directories), KAFKA-10471 (the marker goes first).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from kbroker.config.limits import DESCRIPTOR_RETRY_MS, FOLDER_RETRY_MS, VACATED_NAMES
from kbroker.log.checkpoints import Sealed, checksums, format_clean_shutdown, format_offsets, replace_file, write_file
from kbroker.log.config import NEVER, LogConfig
from kbroker.log.errors import (
    UnforeseenError,
    fault_of,
    lacks_descriptors,
    reason_of,
    storage_error,
)
from kbroker.log.facts import LogDirectoryFailed, LogFlushed, Notice
from kbroker.log.folder import OpenFiles, make_dirs, put_aside
from kbroker.log.jobs import DeleteJob, FlushJob, SyncJob
from kbroker.log.log import Log
from kbroker.log.log_jobs import Job, Later
from kbroker.log.metaproperties import MetaProperties, format_meta_properties
from kbroker.log.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    PENDING_SUFFIX,
    RECOVERY_POINTS,
    FolderState,
    TopicPartition,
    folder_name_in_state,
    same_but_for_case,
)
from kbroker.log.producer_limits import ProducerLimits
from kbroker.log.recovery import open_log
from kbroker.log.sealed import seal
from kbroker.ports import Disk, Lock, Random
from kbroker.timing import Alarm
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

PARTITIONS_A_MS = 10  # of a directory: how long checkpoints that were outdated, or looked at in vain, are left alone


class DirectoryRefusedError(Exception):
    """A log directory that this broker must not use: another broker's, a newer broker's, or contradicting another.

    One line for the operator, which names the place. Nothing has been changed in any directory.
    """


class DirectoryUnusableError(DirectoryRefusedError):
    """A log directory that no broker could use just now: it cannot be made or written, or another broker has it."""


class Flush(NamedTuple):
    """A log's records are to become durable; before that its directory's names, as they were at `names`."""

    directory: LogDirectory
    partition: TopicPartition
    log: Log
    job: FlushJob
    names: int

    def run(self) -> None:
        """Raises OSError."""
        self.directory.sync_names_of(self.names)
        self.job.run()


class Truncate(NamedTuple):
    """A log was cut back: that is to become durable, and its directory's names as they were at `names`.

    starts_over: then the checkpoint of log starts is to say so.
    """

    directory: LogDirectory
    partition: TopicPartition
    log: Log
    job: SyncJob
    names: int
    starts_over: bool

    def run(self) -> None:
        """Raises OSError."""
        self.directory.sync_names_of(self.names)
        self.job.run()


class Delete(NamedTuple):
    """Files, or a partition's folder, are to be removed.

    names: what its directory's names were when the folder got the name of one that goes, else 0. That is made durable
    first: else a power cut might bring the folder back under the partition's name, with some of its files.
    """

    directory: LogDirectory
    job: DeleteJob
    names: int

    def run(self) -> None:
        """Raises OSError."""
        self.directory.sync_names_of(self.names)
        self.job.run()


class Write(NamedTuple):
    """A small file is to be replaced: a checkpoint of the directory, or, with `log`, one in a partition's folder."""

    directory: LogDirectory
    log: Log | None
    name: str
    text: str

    @property
    def folder(self) -> str:
        """Where the file is; a log's folder may have been renamed since."""
        return self.directory.path if self.log is None else self.log.folder.path

    def run(self) -> None:
        """Make the new content durable beside the old. Raises OSError."""
        disk, folder = self.directory.disk, self.folder
        try:
            write_file(disk, f"{folder}/{self.name}{PENDING_SUFFIX}", self.text.encode())
        except FileNotFoundError:
            if self.log is None or disk.stat(folder) is not None:  # otherwise the partition was deleted meanwhile
                raise

    def put_in_place(self) -> None:
        """The new content takes the old one's name: on the owning thread, waiting for nothing. Raises OSError."""
        path = f"{self.folder}/{self.name}"
        try:
            self.directory.disk.rename(path + PENDING_SUFFIX, path)
        except FileNotFoundError:
            if self.log is None:
                raise


Work = Flush | Truncate | Delete | Write
"""Every job of a log directory but for the cleaner's."""


class LogDirectory:
    """A log directory in use.

    online: whether it may still be used; reason: why not. logs: by partition; futures: copies on their way into it.
    partitions: how many it holds, of all kinds. busy: the directories with jobs to be taken, this one if it has any.
    names: how often partition folders were made or renamed in it; durable_names: the same when its names were last made
    durable. vacated: names of folders that were moved away and may come back at a crash, or what checkpoints say of
    them; None where it may be any name: after an unclean start, where an earlier life may have moved some, or once
    there are too many to remember. durable_points: what its recovery-point checkpoint says. writing: checkpoints that
    are being written, or not to be looked at for a while, and whether they are outdated already. held: partitions whose
    log must not be flushed now, for their copies are about to replace them.
    """

    __slots__ = (
        "_alarm",
        "_busy",
        "_directories",
        "_jobs",
        "_known_producers",
        "_later",
        "_lock",
        "_paused",
        "_points_written",
        "_random",
        "_saved",
        "_sealed",
        "_start_is_clean",
        "_tell",
        "_unbegun",
        "disk",
        "durable_names",
        "durable_points",
        "futures",
        "held",
        "ignores_case",
        "is_outdated",
        "logs",
        "meta",
        "names",
        "online",
        "open_files",
        "partitions",
        "path",
        "reason",
        "vacated",
        "writing",
    )

    def __init__(
        self,
        disk: Disk,
        random: Random,
        path: str,
        open_files: OpenFiles,
        producer_limits: ProducerLimits,
        directories: Sequence[LogDirectory],
        busy: dict[LogDirectory, None],
        tell: Callable[[object], None],
        alarm: Alarm,
    ) -> None:
        """directories: all of the broker's. busy: of these, those with jobs to be taken. alarm: rings when `due` is to
        be called.
        """
        self.disk = disk
        self.path = path
        self.open_files = open_files
        self.meta = MetaProperties()
        self.online = True
        self.reason = ""
        self.logs: dict[TopicPartition, Log] = {}
        self.futures: dict[TopicPartition, Log] = {}
        self.held: set[TopicPartition] = set()
        self.partitions = 0
        self.names = 0
        self.durable_names = 0
        self.vacated: set[str] | None = set()
        self.writing: dict[str, bool] = {}
        self.is_outdated = False  # partitions came or went: the checkpoints are to say so
        self.durable_points: Mapping[tuple[str, int], int] = {}
        self._random = random
        self._known_producers = producer_limits
        self._directories = directories
        self._busy = busy
        self._tell = tell
        self._alarm = alarm
        self._jobs: list[Job] = []
        self._later = Later()
        self._paused: dict[str, int] = {}  # checkpoints that are not looked at again before a time
        self._unbegun: list[tuple[TopicPartition, Log]] = []  # to be flushed, once there are descriptors again
        self._points_written: Mapping[tuple[str, int], int] = {}
        self._start_is_clean = False
        self.ignores_case = False  # whether its file system takes `a` and `A` for one name
        self._lock: Lock | None = None
        self._sealed: dict[str, Sealed] = {}  # what closed logs leave, by the names of their folders
        self._saved: dict[str, int] = {}  # hash of what each checkpoint says on the disk

    def __repr__(self) -> str:
        return f"LogDirectory({self.path!r}, {'online' if self.online else 'offline'})"

    def notice(self, text: str) -> None:
        """Have something said to the operator."""
        self._tell(Notice(text))

    # ---- coming up

    def lock(self) -> None:
        """Make the directory if it is missing, and lock it. Raises OSError; DirectoryRefusedError if it is taken."""
        make_dirs(self.disk, self.path)
        try:
            self._lock = self.disk.lock(f"{self.path}/{LOCK}")
        except BlockingIOError:
            raise DirectoryUnusableError(f"{self.path}: is in use by another broker, which holds {LOCK}") from None
        self.ignores_case = self.disk.stat(f"{self.path}/{LOCK.upper()}") is not None

    def release(self) -> None:
        """Unlock; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def identify(self, meta: MetaProperties) -> None:
        """Write down whose directory this is, unless it says so already. Raises: OSError, also if it maps no files."""
        if meta != self.meta:
            replace_file(self.disk, self.path, META_PROPERTIES, format_meta_properties(meta).encode())
            self.meta = meta
        file = self.disk.open(f"{self.path}/{META_PROPERTIES}", "read")
        try:
            file.map()  # as indices are: a file system that cannot is told now, not at the first topic
        finally:
            file.close()

    def loaded(self, points: Mapping[tuple[str, int], int], *, was_clean: bool) -> None:
        """All its logs are there. points: what its recovery-point checkpoint says. was_clean: the last stop."""
        self.durable_points = points
        self.names += not was_clean  # an earlier life may have made folders and not synced their names
        self.vacated = set() if was_clean else None
        self._start_is_clean = True

    # ---- failure

    def fail(self, error: OSError, path: str = "") -> None:
        """Go offline with all logs; LogDirectoryFailed is told. path: what failed, where the error does not say.

        Not if there was no descriptor left: that is no fault of the directory's, and clients can bring it about.
        """
        if not self.online:
            return
        if lacks_descriptors(error):
            if not isinstance(error, UnforeseenError):  # which the report of bugs has said
                self.notice(f"for want of a descriptor: {fault_of(error, path or self.path)}")
            return
        self.online = False
        self.open_files.is_offline = True
        why = fault_of(error, path or self.path) if error.filename else reason_of(error)
        self.reason = f"{self.path}: goes offline: {why}"
        self.notice(self.reason)
        gone = list(self.logs)
        self.close_files()
        self.logs, self.futures = {}, {}
        self.held.clear()
        self._jobs, self._later, self._paused, self._unbegun = [], Later(), {}, []
        self.is_outdated = False
        self._busy.pop(self, None)
        self.release()
        is_last = not any(each.online for each in self._directories)
        if is_last:
            self.notice("no log directory is left: this broker cannot go on")
        self._tell(LogDirectoryFailed(self.path, gone, is_last))

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A block in which an OSError takes the directory offline and becomes KAFKA_STORAGE_ERROR."""
        try:
            yield
        except OSError as error:
            self.fail(error)
            raise storage_error(error, fault_of(error, self.path)) from error

    # ---- partition folders

    def create(self, name: str, config: LogConfig, wall_ms: int) -> Log:
        """An empty log in a folder of this name. Raises OSError."""
        if self.may_have_had(name):
            self.forget_earlier()
        for notice in self.make_folder(name):
            self.notice(notice)
        files, random = self.open_files, self._random
        path = f"{self.path}/{name}"
        log = open_log(self.disk, path, config, open_files=files, random=random, wall_ms=wall_ms, clean=False)
        log.producers.known = self._known_producers
        self.partitions += 1
        return log

    def rename_away(self, partition: TopicPartition, log: Log, state: FolderState) -> DeleteJob:
        """Rename a log's folder for good; how to remove it. Raises KafkaError KAFKA_STORAGE_ERROR."""
        _, _, old = log.folder.path.rpartition("/")
        name = folder_name_in_state(partition, state, self._random.token(16).hex())
        with self.guarded():
            log.move_to(f"{self.path}/{name}")
        self.moved_away(old)
        self.partitions -= 1
        self.outdated()
        return log.delete()

    def forget_earlier(self) -> None:
        """Before a folder takes a name that another had: nothing of that one must come back at a crash.

        Neither its folder, at a power cut, nor what checkpoints say of it, which know it by its name: the new one would
        begin at the old one's start, and be trusted up to its recovery point. Waits for the disk. Raises OSError.
        """
        for name in OFFSET_CHECKPOINTS:
            self.write_checkpoint(name)
        self.sync_names()

    def make_folder(self, name: str) -> list[str]:
        """Make a partition's folder; lines about what was in its place.

        Raises OSError; KafkaError INVALID_TOPIC_EXCEPTION if the file system takes another topic's folder for it.
        """
        path, lines = f"{self.path}/{name}", []
        try:
            self.disk.make_dir(path)
        except FileExistsError:
            found = self.disk.stat(path)
            if all(each.name != name for each in self.disk.list(self.path)):
                raise same_but_for_case(path) from None
            if found is None or found.is_dir:
                lines.append(f"{path}: was there already; the new partition takes it over")
            else:
                lines.append(put_aside(self.disk, self.path, name))
                self.disk.make_dir(path)
        self.names += 1
        return lines

    def moved_away(self, name: str) -> None:
        """The folder of this name was renamed."""
        self.names += 1
        if self.vacated is not None:
            self.vacated.add(name)
            if len(self.vacated) > VACATED_NAMES:
                self.vacated = None

    def may_have_had(self, name: str) -> bool:
        """Whether a folder of this name was moved away, and may come back at a crash, or its offsets may."""
        return self.vacated is None or name in self.vacated

    def sync_names(self) -> None:
        """Make the names of partition folders durable; waits for the disk. Raises OSError."""
        self.disk.sync_dir(self.path)
        self.durable_names = self.names
        self.vacated = set()

    def sync_names_of(self, names: int) -> None:
        """Make the names durable that it had at `names`, unless they are. On any thread. Raises OSError."""
        if self.durable_names < names:
            self.disk.sync_dir(self.path)

    # ---- checkpoints

    def outdated(self) -> None:
        """Partitions came or went: have the checkpoints say so."""
        self.is_outdated = True
        self._busy[self] = None

    def changed_checkpoint(self, name: str, offsets: Mapping[tuple[str, int], int]) -> str | None:
        """The text that an offset checkpoint must have, or None if the file has it already."""
        text = format_offsets(offsets)
        if name == RECOVERY_POINTS:
            self._points_written = offsets
        return None if self._saved.get(name) == hash(text) else text

    def saved_checkpoint(self, name: str, text: str) -> None:
        """A checkpoint was written."""
        self._saved[name] = hash(text)
        if name == RECOVERY_POINTS:
            self.durable_points = self._points_written

    def write_checkpoint(self, name: str) -> None:
        """Write an offset checkpoint if it changed; waits for the disk. Raises OSError."""
        text = self.changed_checkpoint(name, OFFSETS_OF[name](self.logs))
        if text is not None:
            replace_file(self.disk, self.path, name, text.encode())
            self.durable_names = self.names
            self.saved_checkpoint(name, text)
        if name in self.writing:
            self.writing[name] = True  # what is being written is older

    def checkpoint(self, name: str) -> None:
        """Have a checkpoint written, if it is to say something new; after the one that is being written."""
        if name in self.writing:
            self.writing[name] = True
            return
        text = self.changed_checkpoint(name, OFFSETS_OF[name](self.logs))
        if text is not None:
            self.writing[name] = False
            self.submit(Write(self, None, name, text))

    def _look_at_checkpoint(self, name: str, now_ms: int) -> None:
        """The same, where partitions come or go; if there is nothing new to say, the next look is after a pause."""
        self.checkpoint(name)
        if name not in self.writing:
            self._pause(name, now_ms, is_outdated=False)

    def _write_again(self, name: str, now_ms: int) -> None:
        """Write a checkpoint that was outdated before it was in place."""
        if not self._pause(name, now_ms, is_outdated=True):
            self.checkpoint(name)

    def _pause(self, name: str, now_ms: int, *, is_outdated: bool) -> bool:
        """Look no more at what a checkpoint is to say for a while, which is longer the more partitions it tells of.

        Each look is at all of them: while thousands are made, or deleted, nothing else would be done. Returns: whether
        there is a pause.
        """
        pause_ms = self.partitions // PARTITIONS_A_MS
        if pause_ms:
            self.writing[name] = is_outdated
            self._paused[name] = now_ms + pause_ms
            self._alarm.by(now_ms + pause_ms, now_ms)
        return pause_ms > 0

    # ---- work for the pool

    def flush(self, partition: TopicPartition, log: Log) -> None:
        """Have a log made durable."""
        if partition in self.held:
            return
        try:
            job = log.start_flush()
        except OSError as error:  # it writes the newest entries of indices
            self.fail(error)
            if self.online:
                self._unbegun.append((partition, log))
                self._alarm.soon()
            return
        if job is not None:
            self.submit(Flush(self, partition, log, job, self.names))

    def flush_if_wanted(self, partition: TopicPartition, log: Log) -> None:
        """An earlier life, or other settings, have left more than flush.messages unflushed."""
        if log.want_flush():
            self.flush(partition, log)

    def reconfigure(self, partition: TopicPartition, config: LogConfig) -> None:
        """A log takes other settings from now on."""
        log = self.logs[partition]
        if log.reconfigure(config):
            self.flush_if_wanted(partition, log)
            if config.compact and log.recovery_point < log.active.base_offset and self.online:
                self.flush(partition, log)  # recovered after a kill: the cleaner waits for that, a roll may not come

    def delete_old_segments(self, log: Log, now_ms: int, wall_ms: int) -> int:
        """Have go what retention does not keep; how many files."""
        set_aside = 0
        try:
            for job in log.delete_old_segments(wall_ms, self._tell):
                set_aside += len(job.paths)
                self.delete_later(job, now_ms)
        except OSError as error:
            self.fail(error)
        return set_aside

    def truncate(
        self,
        partition: TopicPartition,
        log: Log,
        offset: int,
        now_ms: int,
        wall_ms: int,
        *,
        start_over: bool = False,
        log_start_offset: int | None = None,
    ) -> None:
        """Cut a log, or a copy on its way, as of `LogManager.truncate`. Raises as that."""
        with self.guarded():
            was_trusted = log.distrust(offset)
            if was_trusted:
                self.write_checkpoint(RECOVERY_POINTS)
                self.write_checkpoint(CLEANER_OFFSETS)  # what comes in its place is not clean
            if start_over:
                truncated = log.truncate_fully(offset, wall_ms, log_start_offset)
            else:
                truncated = log.truncate_to(offset, wall_ms)
        if truncated.removed is not None:
            self.delete_later(truncated.removed, now_ms)
        if truncated.sync is not None:
            log.cuts_under_way += 1
            starts_over = was_trusted or log_start_offset is not None
            self.submit(Truncate(self, partition, log, truncated.sync, self.names, starts_over))

    def submit(self, job: Job) -> None:
        """Have a job taken, with the next ones."""
        self._jobs.append(job)
        self._busy[self] = None

    def submit_later(self, job: Job, due_ms: int, now_ms: int) -> None:
        """Have a job taken when its time has come."""
        self._later.put(due_ms, job)
        self._alarm.by(due_ms, now_ms)

    def delete_later(self, job: DeleteJob, now_ms: int) -> None:
        """Have files removed when their time has come."""
        names = self.names if job.folder is not None else 0
        self.submit_later(Delete(self, job, names), now_ms + job.delay_ms, now_ms)

    def take_jobs(self, now_ms: int) -> list[Job]:
        """What is to be run on the pool, in any order."""
        if self.is_outdated:
            self.is_outdated = False
            for name in OFFSET_CHECKPOINTS:
                self._look_at_checkpoint(name, now_ms)
        jobs, self._jobs = self._jobs, []
        return jobs

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A job ended, which was not the cleaner's."""
        assert isinstance(job, Work), job
        if error is None:
            try:
                self._conclude(job, now_ms)
            except OSError as late:
                error = late
        elif isinstance(job, Flush) and not lacks_descriptors(error):
            job.log.flush_failed(job.job)
        if error is None:
            return
        if lacks_descriptors(error):
            self.fail(error)
            self.submit_later(job, now_ms + DESCRIPTOR_RETRY_MS, now_ms)
        elif isinstance(job, Delete) and error.errno == errno.ENOTEMPTY:
            self.submit_later(job, now_ms + FOLDER_RETRY_MS, now_ms)  # a job that began before has left a file in it
        elif isinstance(job, Delete) and error.errno not in (errno.EIO, errno.EROFS):
            self.notice(f"{job.job.folder or job.job.paths[0]}: cannot be removed: {reason_of(error)}")
        else:  # of what could not be removed, the next start finds what stayed behind
            self.fail(error)

    def _conclude(self, job: Work, now_ms: int) -> None:
        if not isinstance(job, Write):
            self.durable_names = max(self.durable_names, job.names)  # not those that have changed since
        if isinstance(job, Flush):
            self._flushed(job, now_ms)
        elif isinstance(job, Truncate):
            if job.starts_over and self.online:
                self.write_checkpoint(LOG_START_OFFSETS)
            job.log.cuts_under_way -= 1
        elif isinstance(job, Write) and self.online:
            if job.log is None and self.writing[job.name]:
                del self.writing[job.name]
                self._write_again(job.name, now_ms)
                return
            job.put_in_place()  # without a descriptor the job runs again, and is still the one that is being written
            if job.log is None:
                del self.writing[job.name]
                self.saved_checkpoint(job.name, job.text)

    def _flushed(self, job: Flush, now_ms: int) -> None:
        log = job.log
        is_awaited = log.awaits_flush
        log.flushed(job.job, now_ms)
        if is_awaited and self.logs.get(job.partition) is log:
            self._tell(LogFlushed(job.partition))
            if log.awaits_flush:  # for what was written meanwhile
                self.flush(job.partition, log)

    # ---- time

    def wake(self, now_ms: int) -> None:
        """Jobs whose time has come are to be taken."""
        for job in self._later.take(now_ms):
            self.submit(job)

    def due(self, now_ms: int) -> None:
        """Try again what lacked descriptors; look at checkpoints whose pause is over."""
        unbegun, self._unbegun = self._unbegun, []
        for partition, log in unbegun:
            if self.logs.get(partition) is log:
                self.flush(partition, log)
        for name in [name for name, until_ms in self._paused.items() if until_ms <= now_ms]:
            del self._paused[name]
            if self.writing.pop(name):
                self._look_at_checkpoint(name, now_ms)
        self._alarm.by(min(self._later.next_ms, min(self._paused.values(), default=NEVER)), now_ms)
        if self._unbegun:
            self._alarm.by(now_ms + DESCRIPTOR_RETRY_MS, now_ms)

    # ---- going down

    def close_files(self) -> None:
        """Give the descriptors of all logs back."""
        for log in (*self.logs.values(), *self.futures.values()):
            log.close_files()

    def abandon(self) -> None:
        """Let go of everything as it lies."""
        self.close_files()
        self.release()

    def closing(self, several: int, errors: dict[LogDirectory, OSError]) -> list[Callable[[], None]]:
        """Tasks that close the logs, so many at a time; each gives up at the first error, which goes into `errors`.

        Waits for the disk. No job is under way.
        """
        logs = [*self.logs.values(), *self.futures.values()]
        for log in logs:
            log.give_flush_up()  # closing does it
        try:
            self.sync_names()  # a log that is called durable is in a folder that is
        except OSError as error:
            errors[self] = error
            return []

        def task(share: Sequence[Log]) -> Callable[[], None]:
            def close() -> None:
                try:
                    for log in share:
                        log.close()
                        self._sealed[log.folder.path.rpartition("/")[2]] = seal(log)
                except OSError as error:
                    errors[self] = error

            return close

        return [task(logs[first::several]) for first in range(min(several, len(logs)))]

    def seal(self, broker_epoch: int) -> None:
        """End a clean stop, all logs being closed: exact checkpoints, then the marker. Raises OSError: no marker."""
        for name in (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS):
            self.write_checkpoint(name)
        if self._start_is_clean:
            marker = format_clean_shutdown(broker_epoch, checksums(self.disk, self.path), self._sealed)
            replace_file(self.disk, self.path, CLEAN_SHUTDOWN, marker.encode())
        self.release()


def check_is_nowhere(partition: TopicPartition, directories: Iterable[LogDirectory]) -> None:
    """A partition without a log is known not to be there only if every directory can be looked at.

    Raises KafkaError KAFKA_STORAGE_ERROR if one is offline.
    """
    offline = [directory.path for directory in directories if not directory.online]
    if offline:
        reason = f"{partition} may be in a directory that is offline: {', '.join(offline)}"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)


Offsets = dict[tuple[str, int], int]
OFFSETS_OF: dict[str, Callable[[Mapping[TopicPartition, Log]], Offsets]] = {
    RECOVERY_POINTS: lambda logs: {partition: log.recovery_point for partition, log in logs.items()},
    LOG_START_OFFSETS: lambda logs: {  # only of logs that begin behind their first file's beginning
        partition: log.log_start_offset
        for partition, log in logs.items()
        if log.log_start_offset > log.segments[0].base_offset
    },
    HIGH_WATERMARKS: lambda logs: {partition: log.high_watermark for partition, log in logs.items()},
    CLEANER_OFFSETS: lambda logs: {partition: log.cleaned_to for partition, log in logs.items() if log.cleaned_to > 0},
}
"""What each checkpoint says of a directory's logs."""
