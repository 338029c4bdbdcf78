"""All logs of a broker, over all of log.dirs: where each is, what becomes of it, and what has to be done by and by.

Called by the replica manager (get, create, delete, truncate), by whoever owns time (`due`), and by the composition root
(`open_logs`, `close`). One thread owns it. It never waits for a disk but where it says so: fsyncs, removals and
checkpoints come out of `take_jobs`, run elsewhere, and come back through `finished`. A failing directory goes offline
alone, with its partitions, and stays so until a restart.

    manager = open_logs(disk, random, ["/data/a", "/data/b"], config_of=..., cluster_id=..., node_id=1, ...)
    next_ms = manager.due(now_ms, wall_ms)          # background work whose time has come turns into jobs
    for job in manager.take_jobs(now_ms):           # on the pool: job.run()
        manager.finished(job, error, now_ms)        # back on the owning thread; may make more jobs

Differences from Kafka: a foreign folder in a log directory is reported and left alone (Kafka refuses to start); a
checkpoint that has not changed is not written again; partition folders marked for deletion are not opened first.

Source: KIP-112, KIP-113 (several directories); Kafka documentation, implementation, "Log".
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.config.limits import DESCRIPTOR_RETRY_MS, FOLDER_RETRY_MS
from kbroker.log.background import (
    FLUSH,
    PRODUCER_EXPIRY,
    Delete,
    Flush,
    Job,
    Later,
    ManagerConfig,
    Paused,
    RunAll,
    Timers,
    Truncate,
    Work,
    Write,
    one_after_another,
)
from kbroker.log.checkpoints import format_partition_metadata, read_topic_id
from kbroker.log.cleaner.cleaner import BeginCompaction, Cleaner, CleanPiece, Keeper
from kbroker.log.config import LogConfig
from kbroker.log.directory import (
    OFFSETS_OF,
    DirectoryRefusedError,
    LoadProgress,
    LogDirectory,
    check_is_nowhere,
)
from kbroker.log.errors import (
    OutOfDescriptorsError,
    UnforeseenError,
    fault_of,
    lacks_descriptors,
    reason_of,
    storage_error,
)
from kbroker.log.facts import LogDirectoryFailed, LogFlushed, LogTruncated, Notice
from kbroker.log.folder import OpenFiles
from kbroker.log.jobs import DeleteJob
from kbroker.log.known_producers import KnownProducers
from kbroker.log.lifetime import Lifetime
from kbroker.log.log import Log
from kbroker.log.names import (
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    MAX_NAME_LENGTH,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    FolderState,
    TopicPartition,
    folder_name,
    folder_name_in_state,
    name_too_long,
)
from kbroker.log.producers import Producers
from kbroker.log.recovery import open_log
from kbroker.ports import Disk, Random
from kbroker.tables import shrink
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.log.moves import Moves

PARTITIONS_A_MS = 10  # of a directory: how long checkpoints that were outdated, or looked at in vain, are left alone
_SWEEP = 256  # logs looked at in one turn of the loop: some 100 us
_SET_ASIDE = 8  # files given another name in one turn: from here on it ends. Some 30 us each, on a busy disk 300


def open_logs(
    disk: Disk,
    random: Random,
    paths: Sequence[str],
    *,
    config_of: Callable[[str], LogConfig],
    cluster_id: str | None,
    node_id: int,
    config: ManagerConfig,
    now_ms: int,
    wall_ms: int,
    tell: Callable[[object], None],
    run_all: RunAll = one_after_another,
    progress: Callable[[LoadProgress], None] | None = None,
    begin_compaction: BeginCompaction | None = None,
) -> LogManager:
    """Take the log directories and load all partitions; waits for the disk, long after an unclean stop.

    paths: log.dirs, absolute. config_of: a topic's settings. cluster_id: None if not known yet. now_ms: monotonic.
    tell: takes facts. progress: told from run_all's threads. begin_compaction: None for one in this process. A
    directory with an OSError starts offline, unless it is the last.
    Raises DirectoryRefusedError, having changed nothing: no directory is usable, one belongs to another broker or
    cluster or a newer version, is in use, is named twice, or a partition is in two of them.
    """
    manager = LogManager(disk, random, paths, config, tell, begin_compaction)
    manager._lifetime.claim(cluster_id, node_id)
    manager._lifetime.load(config_of, now_ms, wall_ms, run_all, progress)
    for producers in manager._producers():
        producers.known = manager._known_producers
    manager._known_producers.make_room()
    return manager


class LogManager:
    """The logs of one broker by partition, made by `open_logs`. It tells facts. due_moved: told when to call `due`."""

    def __init__(
        self,
        disk: Disk,
        random: Random,
        paths: Sequence[str],
        config: ManagerConfig,
        tell: Callable[[object], None],
        begin_compaction: BeginCompaction | None = None,
    ) -> None:
        paths = [path.rstrip("/") or "/" for path in paths]
        assert paths, "log.dirs is empty"
        assert all(path.startswith("/") for path in paths), paths
        for at, path in enumerate(paths):
            if path in paths[:at]:
                raise DirectoryRefusedError(f"{path}: is named twice in log.dirs")
        limit = max(2, config.open_files // len(paths))
        self.directories = [LogDirectory(disk, path, OpenFiles(limit)) for path in paths]
        self._disk = disk
        self._random = random
        self._config = config
        self._tell = tell
        self._logs: dict[TopicPartition, Log] = {}
        self._futures: dict[TopicPartition, Log] = {}
        self._known_producers = KnownProducers(self._producers)
        self._moves: Moves | None = None
        self._lifetime = Lifetime(self)
        self._offline: set[TopicPartition] = set()
        self._reasons: list[str] = []  # why directories are offline
        self._jobs: list[Work] = []
        self._later: Later[Work] = Later()
        self._unbegun: list[tuple[TopicPartition, Log]] = []  # to be flushed, once there are descriptors again
        self.due_moved: Callable[[int], object] = lambda due_ms: None  # is put in by who calls `due`
        self._due_ms = 0
        self._outdated: dict[LogDirectory, None] = {}  # partitions came or went: their checkpoints are to say so
        self._paused: Later[Paused] = Later()
        self._timers = Timers(config, 0)
        ways = (self._run_later, self._delete_later, self._checkpoint, self._fail)
        keeper = Keeper(self._logs, self.directory_of, *ways)
        self.cleaner = Cleaner(keeper, disk, random, config.cleaner, tell, begin_compaction)

    # ---- looking up

    def __len__(self) -> int:
        return len(self._logs)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._logs)

    def get(self, topic: str, index: int) -> Log | None:
        """The log of a partition, None if there is none.

        Raises KafkaError KAFKA_STORAGE_ERROR if there was one, in a directory that is offline now.
        """
        log = self._logs.get(TopicPartition(topic, index))
        if log is None and (topic, index) in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {topic}-{index} is offline")
        return log

    def logs(self) -> Iterable[tuple[TopicPartition, Log]]:
        """Every partition's log that is online."""
        return self._logs.items()

    @property
    def moves(self) -> Moves:
        """Copies on their way between directories; loaded with the first of them."""
        if self._moves is None:
            from kbroker.log.moves import Moves

            self._moves = Moves(self)
        return self._moves

    @property
    def has_futures(self) -> bool:
        """Whether a copy is on its way into another directory."""
        return bool(self._futures)

    def directory_of(self, path: str) -> LogDirectory:
        """The log directory that the path of a partition or of one of its files lies in."""
        directory = self._directory_around(path)
        assert directory is not None, f"{path} is in no log directory"
        return directory

    def _directory_around(self, path: str) -> LogDirectory | None:
        for directory in self.directories:
            if path == directory.path or path.startswith(directory.path.rstrip("/") + "/"):
                return directory
        return None

    def _candidates(self, partition: TopicPartition) -> list[LogDirectory]:
        """Where to make a partition's log: the preferred one, else the directories by how many they hold."""
        if self._moves is not None and (preferred := self._moves.preferred(partition)) is not None:
            return [each for each in self._online() if each.path == preferred]
        return sorted(self._online(), key=lambda each: each.partitions)

    def topic_id(self, topic: str, index: int) -> bytes | None:
        """The topic id in a partition's folder, None if there is none or it cannot be read; waits for the disk."""
        return read_topic_id(self._disk, self._logs[TopicPartition(topic, index)].folder.path, self._notice)

    def by_directory(self) -> list[tuple[LogDirectory, dict[TopicPartition, Log]]]:
        """Every directory with the logs in it; an offline one has none."""
        return [(directory, self._logs_in(directory) if directory.online else {}) for directory in self.directories]

    # ---- making and unmaking

    def get_or_create(
        self, topic: str, index: int, topic_id: bytes | None, config: LogConfig, *, is_new: bool, wall_ms: int
    ) -> Log:
        """The log of a partition, made in its preferred directory, or in that with the fewest, if there is none.

        is_new: whether the controller just made the partition. If not, and a directory is offline, the log may be
        there: then none is made. topic_id: written beside it; None or zeros if there is none.
        Raises KafkaError KAFKA_STORAGE_ERROR; INVALID_TOPIC_EXCEPTION if the name is too long for a folder;
        OutOfDescriptorsError: then another call takes the folder over.
        """
        partition = TopicPartition(topic, index)
        log = self.get(topic, index) if not is_new else self._logs.get(partition)
        if log is not None:
            return log
        if not is_new:
            check_is_nowhere(partition, self.directories)
        name = folder_name(partition)
        if len(name) > MAX_NAME_LENGTH:
            raise name_too_long(name)
        for directory in self._candidates(partition):
            try:
                log = self._create(directory, name, config, wall_ms)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    raise name_too_long(f"{directory.path}/{name}") from None
                self._fail(directory, error)
                if lacks_descriptors(error):  # so do the other directories
                    raise storage_error(error, fault_of(error, directory.path)) from error
                continue
            if not is_new:
                self._notice(f"{log.folder.path}: was not there, though its topic was: made anew, empty")
            self._logs[partition] = log
            directory.partitions += 1
            self._offline.discard(partition)
            self._outdated[directory] = None
            if topic_id is not None and any(topic_id):
                self._jobs.append(Write(directory, log, PARTITION_METADATA, format_partition_metadata(topic_id)))
            return log
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory is online for {partition}")

    def _create(self, directory: LogDirectory, name: str, config: LogConfig, wall_ms: int) -> Log:
        path = f"{directory.path}/{name}"
        if directory.may_have_had(name):
            self._forget_earlier(directory)
        for notice in directory.make_folder(name):
            self._notice(notice)
        files, random = directory.open_files, self._random
        log = open_log(self._disk, path, config, open_files=files, random=random, wall_ms=wall_ms, clean=False)
        log.producers.known = self._known_producers
        return log

    def _producers(self) -> Iterator[Producers]:
        """Of all logs; a copy on its way between directories has its own."""
        for logs in (self._logs, self._futures):
            yield from (log.producers for log in logs.values())

    def _forget_earlier(self, directory: LogDirectory) -> None:
        """Before a folder takes a name that another had: nothing of that one must come back at a crash.

        Neither its folder, at a power cut, nor what checkpoints say of it, which know it by its name: the new one would
        begin at the old one's start, and be trusted up to its recovery point. Waits for the disk. Raises OSError.
        """
        for name in OFFSET_CHECKPOINTS:
            self._write_checkpoint(directory, name)
        directory.sync_names()

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.online]

    def delete(self, topic: str, index: int, *, now_ms: int) -> bool:
        """Take a partition away: its folder is renamed now and removed by and by; whether there was one.

        Raises KafkaError KAFKA_STORAGE_ERROR if its directory is offline, or may be, or fails at it. Otherwise a
        deleted topic's partition would come back with its directory, perhaps beside another of that name.
        """
        return self._move_away(topic, index, "delete", now_ms)

    def set_aside(self, topic: str, index: int) -> bool:
        """Rename the folder of a partition that nobody claims to a stray's, and keep it; whether there was one.

        Raises as `delete`.
        """
        return self._move_away(topic, index, "stray", 0)

    def _move_away(self, topic: str, index: int, state: FolderState, now_ms: int) -> bool:
        partition = TopicPartition(topic, index)
        if self.get(topic, index) is None:
            check_is_nowhere(partition, self.directories)
            return False
        for logs in (self._logs, self._futures):  # an Apache broker may have been moving a copy between directories
            log = logs.get(partition)
            if log is not None:
                directory = self.directory_of(log.folder.path)
                old = log.folder.path
                removal = self._rename_away(partition, log, state)
                if state == "stray":
                    self._notice(f"{old}: belongs to no topic that there is: now {log.folder.path}")
                del logs[partition]
                shrink(logs)
                if state == "delete":
                    self._delete_later(directory, removal, now_ms)
        return True

    def _rename_away(self, partition: TopicPartition, log: Log, state: FolderState) -> DeleteJob:
        """Rename a log's folder for good; how to remove it. Raises KafkaError KAFKA_STORAGE_ERROR."""
        directory = self.directory_of(log.folder.path)
        _, _, old = log.folder.path.rpartition("/")
        name = folder_name_in_state(partition, state, self._random.token(16).hex())
        with self._storage(directory):
            log.move_to(f"{directory.path}/{name}")
        directory.moved_away(old)
        directory.partitions -= 1
        self._outdated[directory] = None
        return log.delete()

    def reconfigure(self, topic: str, index: int, config: LogConfig) -> None:
        """A topic's settings are known, or changed: its log takes them from now on."""
        partition = TopicPartition(topic, index)
        log = self._logs.get(partition)
        if log is not None and log.reconfigure(config):
            self._flush_if_wanted(partition, log)
            if config.compact and log.recovery_point < log.active.base_offset:
                self._flush(partition, log)  # recovered after a kill: the cleaner waits for that, a roll may not come

    def truncate(
        self,
        topic: str,
        index: int,
        offset: int,
        *,
        now_ms: int,
        wall_ms: int,
        anew: bool = False,
        log_start_offset: int | None = None,
    ) -> None:
        """Cut a log back to `offset`, for a follower; anew: empty it, and start again there. LogTruncated follows.

        It holds at once, and nothing is appended before the fact is told. Only if recovery would trust what is cut does
        this wait for the disk: it writes the checkpoints that say so. A copy that has what is cut is cut first.
        Raises KafkaError KAFKA_STORAGE_ERROR; OutOfDescriptorsError: nothing is cut, and it may be called again.
        """
        log, partition = self.get(topic, index), TopicPartition(topic, index)
        assert log is not None, partition
        future = self._futures.get(partition)
        if future is not None:
            future.cleaned_to = min(future.cleaned_to, offset)
            if anew or future.log_end_offset > offset:
                try:
                    self._truncate(partition, future, offset, now_ms, wall_ms, anew, log_start_offset)
                except OutOfDescriptorsError:
                    raise
                except KafkaError as error:  # its directory is offline, and the move over
                    self._notice(f"{future.folder.path}: cannot be cut: {error}")
        self._truncate(partition, log, offset, now_ms, wall_ms, anew, log_start_offset)
        self._tell_if_truncated(partition)

    def _truncate(
        self,
        partition: TopicPartition,
        log: Log,
        offset: int,
        now_ms: int,
        wall_ms: int,
        anew: bool,
        log_start_offset: int | None,
    ) -> None:
        directory = self.directory_of(log.folder.path)
        with self._storage(directory):
            was_trusted = log.distrust(offset)
            if was_trusted:
                self._write_checkpoint(directory, RECOVERY_POINTS)
                self._write_checkpoint(directory, CLEANER_OFFSETS)  # what comes in its place is not clean
            if anew:
                truncated = log.truncate_fully(offset, wall_ms, log_start_offset)
            else:
                truncated = log.truncate_to(offset, wall_ms)
        if truncated.removed is not None:
            self._delete_later(directory, truncated.removed, now_ms)
        if truncated.sync is not None:
            log.cuts_under_way += 1
            starts_anew = was_trusted or log_start_offset is not None
            self._jobs.append(Truncate(directory, partition, log, truncated.sync, directory.names, starts_anew))

    def _tell_if_truncated(self, partition: TopicPartition) -> None:
        """All that was cut of a partition is durable."""
        log, future = self._logs.get(partition), self._futures.get(partition)
        if log is not None and not log.cuts_under_way and (future is None or not future.cuts_under_way):
            self._tell(LogTruncated(partition, log))

    def _write_checkpoint(self, directory: LogDirectory, name: str) -> None:
        """Waits for the disk, unless it says that already. Raises OSError."""
        directory.write_checkpoint(name, OFFSETS_OF[name](self._logs_in(directory)))
        if name in directory.writing:
            directory.writing[name] = True  # what is being written is older

    # ---- failure

    def disk_failed(self, path: str, error: OSError) -> None:
        """Take the directory that `path` lies in offline, if there is one; LogDirectoryFailed is told.

        Not if there was no descriptor left: that is no fault of the directory's, and clients can bring it about.
        """
        directory = self._directory_around(path)
        if directory is None or not directory.online:
            return
        if lacks_descriptors(error):
            if not isinstance(error, UnforeseenError):  # which whoever reports bugs has said
                self._notice(f"for want of a descriptor: {fault_of(error, path)}")
            return
        directory.online = False
        directory.open_files.is_offline = True
        reason = f"{directory.path}: goes offline: {fault_of(error, path) if error.filename else reason_of(error)}"
        self._reasons.append(reason)
        self._notice(reason)
        gone = list(self._logs_in(directory))
        for partition in gone:
            self._logs.pop(partition).close_files()
        for partition in self._logs_in(directory, self._futures):
            self._futures.pop(partition).close_files()
        self._offline.update(gone)
        self._jobs = [job for job in self._jobs if job.directory is not directory]
        self._later.drop(directory)
        self._paused.drop(directory)
        self._outdated.pop(directory, None)
        directory.release()
        if not self.has_online_directory:
            self._notice("no log directory is left: this broker cannot go on")
        self._tell(LogDirectoryFailed(directory.path, gone, is_last=not self.has_online_directory))

    def _fail(self, directory: LogDirectory, error: OSError) -> None:
        self.disk_failed(directory.path, error)

    @contextmanager
    def _storage(self, directory: LogDirectory) -> Iterator[None]:
        """A block in which an OSError takes a directory offline and becomes KAFKA_STORAGE_ERROR."""
        try:
            yield
        except OSError as error:
            self._fail(directory, error)
            raise storage_error(error, fault_of(error, directory.path)) from error

    def _notice(self, text: str) -> None:
        self._tell(Notice(text))

    @property
    def has_online_directory(self) -> bool:
        """Whether the broker can go on."""
        return any(directory.online for directory in self.directories)

    def _logs_in(
        self, directory: LogDirectory, logs: Mapping[TopicPartition, Log] | None = None
    ) -> dict[TopicPartition, Log]:
        logs = self._logs if logs is None else logs
        if len(self.directories) == 1:
            return dict(logs)
        prefix = directory.path.rstrip("/") + "/"
        return {partition: log for partition, log in logs.items() if log.folder.path.startswith(prefix)}

    # ---- work for the pool

    def flush(self, topic: str, index: int) -> None:
        """Have a log made durable, after an append that asks for it.

        Raises KafkaError KAFKA_STORAGE_ERROR if its directory fails at the beginning of that.
        """
        partition = TopicPartition(topic, index)
        log = self._logs.get(partition)
        if log is not None:
            self._flush(partition, log)
            if partition not in self._logs:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be flushed")

    def _flush(self, partition: TopicPartition, log: Log) -> None:
        if self._moves is not None and partition in self._moves.held:
            return
        directory = self.directory_of(log.folder.path)
        try:
            job = log.start_flush()
        except OSError as error:  # it writes the newest entries of indices
            self._fail(directory, error)
            if directory.online:
                self._unbegun.append((partition, log))
                self.due_ms = 0
            return
        if job is not None:
            self._jobs.append(Flush(directory, partition, log, job, directory.names))

    def _flush_if_wanted(self, partition: TopicPartition, log: Log) -> None:
        """An earlier life, or other settings, have left more than flush.messages unflushed."""
        if log.want_flush():
            self._flush(partition, log)

    @property
    def due_ms(self) -> int:
        """When to call `due`."""
        return self._due_ms

    @due_ms.setter
    def due_ms(self, due_ms: int) -> None:
        self._due_ms = due_ms
        self.due_moved(due_ms)

    @property
    def has_jobs(self) -> bool:
        """Whether `take_jobs` has any."""
        return bool(self._jobs or self._outdated)

    def take_jobs(self, now_ms: int) -> list[Job]:
        """What is to be run on the pool, in any order; each comes back through `finished`. `due_ms` may move."""
        outdated, self._outdated = self._outdated, {}
        for directory in outdated:
            for name in OFFSET_CHECKPOINTS:
                self._look_at_checkpoint(directory, name, now_ms)
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            if isinstance(job, CleanPiece):
                job.cleaning.is_waiting = False  # it comes back, whatever becomes of its directory
        return list(jobs)

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A job ended."""
        assert isinstance(job, Work), job
        if error is not None and lacks_descriptors(error):
            self._fail(job.directory, error)
            if isinstance(job, CleanPiece):  # half done: it cannot be done again
                self.cleaner.finished(job, error, now_ms)
            else:
                self._run_later(job, now_ms + DESCRIPTOR_RETRY_MS)
            return
        if isinstance(job, CleanPiece):
            self.cleaner.finished(job, error, now_ms)
        elif error is None:
            try:
                self._conclude(job, now_ms)
            except OSError as late:
                if lacks_descriptors(late):
                    self._fail(job.directory, late)
                    self._run_later(job, now_ms + DESCRIPTOR_RETRY_MS)
                    return
                error = late
        elif isinstance(job, Flush):
            job.log.flush_failed(job.job)
        elif isinstance(job, Delete) and error.errno == errno.ENOTEMPTY:
            self._run_later(job, now_ms + FOLDER_RETRY_MS)  # a job that began before has left a file in it
            return
        elif isinstance(job, Delete) and error.errno not in (errno.EIO, errno.EROFS):
            self._notice(f"{job.job.folder or job.job.paths[0]}: cannot be removed: {reason_of(error)}")
            return  # the next start finds what stayed behind
        self.due_ms = min(self.due_ms, self.cleaner.due_ms)
        if isinstance(job, CleanPiece) and job.unforeseen is not None:
            raise job.unforeseen  # for whoever reports bugs: the cleaner is done with it
        if error is not None:
            self._fail(job.directory, error)

    def _conclude(self, job: Flush | Truncate | Delete | Write, now_ms: int) -> None:
        directory = job.directory
        if not isinstance(job, Write):
            directory.durable_names = max(directory.durable_names, job.names)  # not those that have changed since
        if isinstance(job, Flush):
            self._flushed(job, now_ms)
        elif isinstance(job, Truncate):
            if job.starts_anew and directory.online:
                self._write_checkpoint(directory, LOG_START_OFFSETS)
            job.log.cuts_under_way -= 1
            self._tell_if_truncated(job.partition)
        elif isinstance(job, Write) and directory.online:
            is_old = job.log is None and directory.writing.pop(job.name)
            if is_old:
                self._write_again(directory, job.name, now_ms)
                return
            job.put_in_place()
            if job.log is None:
                directory.saved_checkpoint(job.name, job.text)
                self.cleaner.checkpoint_saved(job.name, now_ms)

    def _flushed(self, job: Flush, now_ms: int) -> None:
        log = job.log
        is_awaited = log.awaits_flush
        log.flushed(job.job, now_ms)
        if is_awaited and self._logs.get(job.partition) is log:
            self._tell(LogFlushed(job.partition))
            if log.awaits_flush:  # for what was written meanwhile
                self._flush(job.partition, log)

    def _delete_later(self, directory: LogDirectory, job: DeleteJob, now_ms: int) -> None:
        names = directory.names if job.folder is not None else 0
        self._run_later(Delete(directory, job, names), now_ms + job.delay_ms)

    def _run_later(self, job: Work, due_ms: int) -> None:
        self._later.put(due_ms, job)
        self.due_ms = min(self.due_ms, due_ms)

    def _checkpoint(self, directory: LogDirectory, name: str) -> None:
        """Have a checkpoint written, if it is to say something new; after the one that is being written."""
        if name in directory.writing:
            directory.writing[name] = True
            return
        text = directory.changed_checkpoint(name, OFFSETS_OF[name](self._logs_in(directory)))
        if text is not None:
            directory.writing[name] = False
            self._jobs.append(Write(directory, None, name, text))

    def _look_at_checkpoint(self, directory: LogDirectory, name: str, now_ms: int) -> None:
        """The same, where partitions come or go; if there is nothing new to say, the next look is after a pause."""
        self._checkpoint(directory, name)
        if name not in directory.writing:
            self._pause(directory, name, now_ms, is_outdated=False)

    def _write_again(self, directory: LogDirectory, name: str, now_ms: int) -> None:
        """Write a checkpoint that was outdated before it was in place."""
        if not self._pause(directory, name, now_ms, is_outdated=True):
            self._checkpoint(directory, name)

    def _pause(self, directory: LogDirectory, name: str, now_ms: int, *, is_outdated: bool) -> bool:
        """Look no more at what a checkpoint is to say for a while, which is longer the more partitions it tells of.

        Each look is at all of them: while thousands are made, or deleted, nothing else would be done. Returns: whether
        there is a pause.
        """
        pause_ms = directory.partitions // PARTITIONS_A_MS
        if pause_ms:
            directory.writing[name] = is_outdated
            self._paused.put(now_ms + pause_ms, Paused(directory, name))
            self.due_ms = min(self.due_ms, now_ms + pause_ms)
        return pause_ms > 0

    # ---- by and by

    def due(self, now_ms: int, wall_ms: int) -> int:
        """Do, or turn into jobs, what is due; returns when to call again at the latest. now_ms: monotonic.

        A look at all logs is spread over several calls, so that none takes long: then the answer is now_ms.
        """
        self._jobs += self._later.take(now_ms)
        for name in self._timers.checkpoints_due(now_ms):
            for directory in self._online():
                self._checkpoint(directory, name)
        set_aside = 0
        for reason, partition in self._timers.sweep(self._logs, now_ms, _SWEEP):
            log = self._logs.get(partition)
            if log is not None:
                set_aside += self._look_after(reason, partition, log, now_ms, wall_ms)
            if set_aside >= _SET_ASIDE:
                break
        unbegun, self._unbegun = self._unbegun, []
        for partition, log in unbegun:
            if self._logs.get(partition) is log:
                self._flush(partition, log)
        for directory, name in self._paused.take(now_ms):
            if directory.writing.pop(name):
                self._look_at_checkpoint(directory, name, now_ms)
        cleaner_ms = self.cleaner.due(now_ms, wall_ms)  # first: the piece that it begins with is one of those for later
        first_ms = min(self._later.next_ms, self._paused.next_ms)
        self.due_ms = min(cleaner_ms, self._timers.next_ms(now_ms), first_ms)
        if self._unbegun:
            self.due_ms = min(self.due_ms, now_ms + DESCRIPTOR_RETRY_MS)
        return self.due_ms

    def _look_after(self, reason: str, partition: TopicPartition, log: Log, now_ms: int, wall_ms: int) -> int:
        """Do what a sweep has come for; how many files have been set aside to be removed."""
        set_aside = 0
        if reason == FLUSH:
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                self._flush(partition, log)
        elif reason == PRODUCER_EXPIRY:
            log.expire_producers(wall_ms)
        elif log.is_configured and not log.cuts_under_way:
            directory = self.directory_of(log.folder.path)
            try:
                for job in log.delete_old_segments(wall_ms, self._tell):
                    set_aside += len(job.paths)
                    self._delete_later(directory, job, now_ms)
            except OSError as error:
                self._fail(directory, error)
        return set_aside

    # ---- going down

    def abandon(self) -> None:
        """Let go of everything as it lies, without fsync, checkpoint or marker: the start failed, or a kill."""
        self._lifetime.abandon()

    def close(self, *, broker_epoch: int = -1, run_all: RunAll = one_after_another) -> None:
        """A clean stop: everything durable, checkpoints, markers, locks released; waits for the disk.

        Every job taken before has come back. A directory that fails at it gets no marker, and is recovered next time.
        """
        self._lifetime.close(broker_epoch, run_all)
