"""The log manager: all logs over all of log.dirs, which directory has which, and when background work falls due.

Called by the replica manager (get, create, delete, truncate), by its alarm (`due`), and by the composition root
(`open_logs`, `close`). One thread owns it. It never waits for a disk but where it says so: fsyncs, removals and
checkpoints come out of `take_jobs`, run elsewhere, and come back through `finished`. A log directory owns its logs and
their jobs (`directory.py`); here are the list of directories and the map from partition to directory. A failing
directory goes offline alone, with its partitions, and stays so until a restart.

    manager = open_logs(disk, random, ["/data/a", "/data/b"], config_of=..., cluster_id=..., node_id=1, ...)
    manager.due(now_ms, wall_ms)                    # background work whose time has come turns into jobs: an alarm rang
    for job in manager.take_jobs(now_ms):           # on the pool: job.run()
        manager.finished(job, error, now_ms)        # back on the owning thread; may make more jobs

Differences from Kafka: a foreign folder in a log directory is reported and left alone (Kafka refuses to start); a
checkpoint that has not changed is not written again; partition folders marked for deletion are not opened first.

Source: KIP-112, KIP-113 (several directories); Kafka documentation, implementation, "Log".
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kbroker.config.limits import LOGS_CLOSED_AT_ONCE
from kbroker.log import log_loader
from kbroker.log.checkpoints import format_partition_metadata, read_topic_id
from kbroker.log.cleaner.cleaner import BeginCompaction, Cleaner, CleanPiece
from kbroker.log.config import LogConfig
from kbroker.log.directory import DirectoryRefusedError, LogDirectory, Truncate, Work, Write, check_is_nowhere
from kbroker.log.errors import OutOfDescriptorsError, fault_of, lacks_descriptors, storage_error
from kbroker.log.facts import LogTruncated
from kbroker.log.folder import OpenFiles
from kbroker.log.log import Log
from kbroker.log.log_jobs import FLUSH, PRODUCER_EXPIRY, Job, ManagerConfig, RunAll, Timers, one_after_another
from kbroker.log.log_loader import LoadProgress
from kbroker.log.names import (
    MAX_NAME_LENGTH,
    PARTITION_METADATA,
    FolderState,
    TopicPartition,
    folder_name,
    name_too_long,
)
from kbroker.log.producer_limits import ProducerLimits
from kbroker.log.producer_state import Producers
from kbroker.ports import Disk, Random
from kbroker.tables import shrink
from protocol.errors import ErrorCode, KafkaError
from protocol.records import crc32c

if TYPE_CHECKING:
    from kbroker.log.future_logs import FutureLogs
    from kbroker.timing import Alarm

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
    alarm: Alarm,
    run_all: RunAll = one_after_another,
    progress: Callable[[LoadProgress], None] | None = None,
    begin_compaction: BeginCompaction | None = None,
) -> LogManager:
    """Take the log directories and load all partitions; waits for the disk, long after an unclean stop.

    paths: log.dirs, absolute. config_of: a topic's settings. cluster_id: None if not known yet. now_ms: monotonic.
    tell: takes facts. alarm: rings when `LogManager.due` is to be called. progress: told from run_all's threads.
    begin_compaction: None for one in this process. A directory with an OSError starts offline, unless it is the last.
    Raises DirectoryRefusedError, having changed nothing: no directory is usable, one belongs to another broker or
    cluster or a newer version, is in use, is named twice, or a partition is in two of them.
    """
    manager = LogManager(disk, random, paths, config, tell, alarm, begin_compaction)
    log_loader.claim(manager.directories, disk, random, cluster_id, node_id)
    manager.load(config_of, now_ms, wall_ms, run_all, progress)
    return manager


class LogManager:
    """The logs of one broker by partition, made by `open_logs`. It tells facts.

    busy: the directories that have jobs to be taken. alarm: set to when `due` is to be called next.
    """

    def __init__(
        self,
        disk: Disk,
        random: Random,
        paths: Sequence[str],
        config: ManagerConfig,
        tell: Callable[[object], None],
        alarm: Alarm,
        begin_compaction: BeginCompaction | None = None,
    ) -> None:
        paths = [path.rstrip("/") or "/" for path in paths]
        assert paths, "log.dirs is empty"
        assert all(path.startswith("/") for path in paths), paths
        for at, path in enumerate(paths):
            if path in paths[:at]:
                raise DirectoryRefusedError(f"{path}: is named twice in log.dirs")
        limit = max(2, config.open_files // len(paths))
        self.directories: list[LogDirectory] = []
        self.busy: dict[LogDirectory, None] = {}
        self._known_producers = known = ProducerLimits(self._producers)
        for path in paths:
            files = OpenFiles(limit)
            self.directories.append(
                LogDirectory(disk, random, path, files, known, self.directories, self.busy, tell, alarm)
            )
        self._random = random
        self._config = config
        self._tell = tell
        self.alarm = alarm
        self._directory_of: dict[TopicPartition, LogDirectory] = {}  # also of those that are offline
        self._future_logs: FutureLogs | None = None
        self._timers = Timers(config, 0)
        self.cleaner = Cleaner(self._directory_of, disk, random, config.cleaner, tell, alarm, begin_compaction)

    def load(
        self,
        config_of: Callable[[str], LogConfig],
        now_ms: int,
        wall_ms: int,
        run_all: RunAll,
        progress: Callable[[LoadProgress], None] | None,
    ) -> None:
        """Open all partitions in the directories that were claimed. Arguments and errors as of `open_logs`."""
        delay_ms, online = self._config.file_delete_delay_ms, self.directories
        log_loader.load(online, config_of, self._random, now_ms, wall_ms, delay_ms, run_all, progress)
        for directory in self.directories:
            for partition in directory.logs:
                self._directory_of.setdefault(partition, directory)
        several = len(self._directory_of) < sum(len(directory.logs) for directory in self.directories)
        if several or self.has_futures:
            try:
                self.futures.settle(now_ms)
            except DirectoryRefusedError:
                self.abandon()
                raise
        for partition, log in list(self.logs()):
            directory = self._directory_of[partition]
            if directory.online:  # one that fails takes its others along
                directory.flush_if_wanted(partition, log)
        log_loader.require_a_directory(self.directories)
        self._timers = Timers(self._config, now_ms)
        for producers in self._producers():
            producers.known = self._known_producers
        self._known_producers.make_room()
        self.alarm.soon()

    # ---- looking up

    def __len__(self) -> int:
        return sum(len(directory.logs) for directory in self.directories)

    @property
    def ignores_case(self) -> bool:
        """Whether a directory is on a file system that takes `a` and `A` for one name."""
        return any(directory.ignores_case for directory in self.directories)

    def __iter__(self) -> Iterator[TopicPartition]:
        return (partition for partition, directory in self._directory_of.items() if directory.online)

    def get(self, topic: str, index: int) -> Log | None:
        """The log of a partition, None if there is none.

        Raises KafkaError KAFKA_STORAGE_ERROR if there was one, in a directory that is offline now.
        """
        found = self.find(TopicPartition(topic, index))
        return found[1] if found is not None else None

    def find(self, partition: TopicPartition) -> tuple[LogDirectory, Log] | None:
        """The log of a partition, and its directory. Raises as `get`."""
        directory = self._directory_of.get(partition)
        if directory is None:
            return None
        if not directory.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {partition} is offline")
        return directory, directory.logs[partition]

    def directory_of(self, topic: str, index: int) -> LogDirectory | None:
        """Where the log of a partition is; None if there is none, or it is offline."""
        directory = self._directory_of.get(TopicPartition(topic, index))
        return directory if directory is not None and directory.online else None

    def logs(self) -> Iterable[tuple[TopicPartition, Log]]:
        """Every partition's log that is online."""
        return (
            (partition, directory.logs[partition])
            for partition, directory in self._directory_of.items()
            if directory.online
        )

    @property
    def futures(self) -> FutureLogs:
        """Copies on their way between directories; loaded with the first of them."""
        if self._future_logs is None:
            from kbroker.log.future_logs import FutureLogs

            self._future_logs = FutureLogs(self.directories, self._directory_of, self._random, self._tell)
        return self._future_logs

    @property
    def has_futures(self) -> bool:
        """Whether a copy is on its way into another directory."""
        return any(directory.futures for directory in self.directories)

    def _online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.online]

    def _candidates(self, partition: TopicPartition) -> list[LogDirectory]:
        """Where to make a partition's log: the preferred one, else the directories by how many they hold."""
        if self._future_logs is not None and (preferred := self._future_logs.preferred(partition)) is not None:
            return [each for each in self._online() if each.path == preferred]
        return sorted(self._online(), key=lambda each: each.partitions)

    def topic_id(self, topic: str, index: int) -> bytes | None:
        """The topic id in a partition's folder, None if there is none or it cannot be read; waits for the disk."""
        found = self.find(TopicPartition(topic, index))
        assert found is not None, (topic, index)
        directory, log = found
        return read_topic_id(directory.disk, log.folder.path, directory.notice)

    def mended_topic_id(self, topic: str, index: int, expected: bytes) -> bytes | None:
        """`topic_id`; one that is not `expected`, though the last clean stop left that, is written again."""
        found, checksum = self.topic_id(topic, index), crc32c(expected)
        directory = self._directory_of[TopicPartition(topic, index)]
        log = directory.logs[TopicPartition(topic, index)]
        if found != expected:
            if log.id_checksum != checksum:
                return found
            path = f"{log.folder.path}/{PARTITION_METADATA}"
            directory.notice(f"{path}: is not as the last clean stop left it: written again")
            directory.submit(Write(directory, log, PARTITION_METADATA, format_partition_metadata(expected)))
        log.id_checksum = checksum
        return expected

    def by_directory(self) -> list[tuple[LogDirectory, dict[TopicPartition, Log]]]:
        """Every directory with the logs in it; an offline one has none."""
        return [(directory, dict(directory.logs)) for directory in self.directories]

    def _producers(self) -> Iterator[Producers]:
        """Of all logs; a copy on its way between directories has its own."""
        for directory in self.directories:
            for log in (*directory.logs.values(), *directory.futures.values()):
                yield log.producers

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
        there = self._directory_of.get(partition)
        found = self.find(partition) if not is_new or (there is not None and there.online) else None
        if found is not None:
            return found[1]
        name = folder_name(partition)
        if not is_new:
            check_is_nowhere(partition, self.directories)
            self._check_leads_somewhere(name)
        if len(name) > MAX_NAME_LENGTH:
            raise name_too_long(name)
        for directory in self._candidates(partition):
            try:
                log = directory.create(name, config, wall_ms)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    raise name_too_long(f"{directory.path}/{name}") from None
                directory.fail(error)
                if lacks_descriptors(error):  # so do the other directories
                    raise storage_error(error, fault_of(error, directory.path)) from error
                continue
            if not is_new:
                directory.notice(f"{log.folder.path}: was missing, though its topic exists: created again, empty")
            directory.logs[partition] = log
            self._directory_of.pop(partition, None)
            self._directory_of[partition] = directory
            directory.outdated()
            if topic_id is not None and any(topic_id):
                directory.submit(Write(directory, log, PARTITION_METADATA, format_partition_metadata(topic_id)))
                log.id_checksum = crc32c(topic_id)
            return log
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory is online for {partition}")

    def _check_leads_somewhere(self, name: str) -> None:
        """A link to nowhere in a partition's place may have led to its records, which may come back.

        Raises: KafkaError KAFKA_STORAGE_ERROR.
        """
        for directory in self._online():
            with directory.guarded():
                found = directory.disk.stat(f"{directory.path}/{name}")
            if found is not None and found.is_odd:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path}/{name}: is no folder")

    def delete(self, topic: str, index: int, *, now_ms: int) -> bool:
        """Take a partition away: its folder is renamed now and removed by and by; whether there was one.

        Raises KafkaError KAFKA_STORAGE_ERROR if its directory is offline, or may be, or fails at it. Otherwise a
        deleted topic's partition would come back with its directory, perhaps beside another of that name.
        """
        return self._move_away(topic, index, "delete", now_ms)

    def set_aside(self, topic: str, index: int) -> bool:
        """Rename the folder of a partition without a topic to a stray's, and keep it; whether there was one.

        Raises as `delete`.
        """
        return self._move_away(topic, index, "stray", 0)

    def _move_away(self, topic: str, index: int, state: FolderState, now_ms: int) -> bool:
        partition = TopicPartition(topic, index)
        found = self.find(partition)
        if found is None:
            check_is_nowhere(partition, self.directories)
            return False
        _rename_away(partition, found[0], found[0].logs, state, now_ms)
        del self._directory_of[partition]
        shrink(self._directory_of)
        for directory in self._online():  # an Apache broker may have been moving a copy between directories
            if partition in directory.futures:
                _rename_away(partition, directory, directory.futures, state, now_ms)
        return True

    def reconfigure(self, topic: str, index: int, config: LogConfig) -> None:
        """A topic's settings are known, or changed: its log takes them from now on."""
        partition = TopicPartition(topic, index)
        directory = self._directory_of.get(partition)
        if directory is not None and directory.online:
            directory.reconfigure(partition, config)

    def truncate(
        self,
        topic: str,
        index: int,
        offset: int,
        *,
        now_ms: int,
        wall_ms: int,
        start_over: bool = False,
        log_start_offset: int | None = None,
    ) -> None:
        """Cut a log back to `offset`, for a follower; start_over: empty it, and start there. LogTruncated follows.

        It holds at once, and nothing is appended before the fact is told. Only if recovery would trust what is cut does
        this wait for the disk: it writes the checkpoints that say so. A copy that has what is cut is cut first.
        Raises KafkaError KAFKA_STORAGE_ERROR; OutOfDescriptorsError: nothing is cut, and it may be called again.
        """
        partition = TopicPartition(topic, index)
        found = self.find(partition)
        assert found is not None, partition
        directory, log = found
        target = self._directory_of_future(partition)
        if target is not None:
            future = target.futures[partition]
            future.cleaned_to = min(future.cleaned_to, offset)
            if start_over or future.log_end_offset > offset:
                try:
                    target.truncate(
                        partition,
                        future,
                        offset,
                        now_ms,
                        wall_ms,
                        start_over=start_over,
                        log_start_offset=log_start_offset,
                    )
                except OutOfDescriptorsError:
                    raise
                except KafkaError as error:  # that directory is offline, and the move over
                    directory.notice(f"{future.folder.path}: cannot be cut: {error}")
        directory.truncate(
            partition, log, offset, now_ms, wall_ms, start_over=start_over, log_start_offset=log_start_offset
        )
        self._tell_if_truncated(partition)

    def _directory_of_future(self, partition: TopicPartition) -> LogDirectory | None:
        return next((each for each in self.directories if partition in each.futures), None)

    def _tell_if_truncated(self, partition: TopicPartition) -> None:
        """All that was cut of a partition is durable."""
        directory, target = self._directory_of.get(partition), self._directory_of_future(partition)
        log = directory.logs.get(partition) if directory is not None else None
        is_future_cut = target is None or not target.futures[partition].cuts_under_way
        if log is not None and not log.cuts_under_way and is_future_cut:
            self._tell(LogTruncated(partition, log))

    # ---- failure

    def disk_failed(self, path: str, error: OSError) -> None:
        """Take the directory that `path` lies in offline, if there is one; LogDirectoryFailed is told.

        Not if there was no descriptor left.
        """
        for directory in self.directories:
            if path == directory.path or path.startswith(directory.path.rstrip("/") + "/"):
                directory.fail(error, path)
                return

    @property
    def has_online_directory(self) -> bool:
        """Whether the broker can go on."""
        return any(directory.online for directory in self.directories)

    # ---- work for the pool

    def flush(self, topic: str, index: int) -> None:
        """Have a log made durable, after an append that asks for it.

        Raises KafkaError KAFKA_STORAGE_ERROR if its directory fails at the beginning of that.
        """
        partition = TopicPartition(topic, index)
        directory = self._directory_of.get(partition)
        if directory is not None and directory.online:
            directory.flush(partition, directory.logs[partition])
            if not directory.online:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} cannot be flushed")

    def take_jobs(self, now_ms: int) -> list[Job]:
        """What is to be run on the pool, in any order; each comes back through `finished`."""
        jobs = [job for directory in list(self.busy) for job in directory.take_jobs(now_ms)]
        self.busy.clear()
        for job in jobs:
            if isinstance(job, CleanPiece):
                job.cleaning.is_waiting = False  # it comes back, whatever becomes of its directory
        return jobs

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A job ended."""
        if isinstance(job, CleanPiece):
            if error is not None and lacks_descriptors(error):
                job.directory.fail(error)  # half done: it cannot be done again
                self.cleaner.finished(job, error, now_ms)
                return
            self.cleaner.finished(job, error, now_ms)
            if job.unforeseen is not None:
                raise job.unforeseen  # for the report of bugs: the cleaner is done with it
            if error is not None:
                job.directory.fail(error)
            return
        assert isinstance(job, Work), job
        job.directory.finished(job, error, now_ms)
        if isinstance(job, Truncate):
            self._tell_if_truncated(job.partition)
        elif isinstance(job, Write) and job.log is None and error is None:
            self.cleaner.checkpoint_saved(job.name, now_ms)

    # ---- by and by

    def due(self, now_ms: int, wall_ms: int) -> None:
        """Do, or turn into jobs, what is due: the alarm has rung, and is set to what is due next. now_ms: monotonic.

        A look at all logs is spread over several calls, so that none takes long: then it is wanted again at once.
        """
        self.alarm.cancel()
        for directory in self._online():
            directory.wake(now_ms)
        for name in self._timers.checkpoints_due(now_ms):
            for directory in self._online():
                directory.checkpoint(name)
        set_aside = 0
        for reason, partition in self._timers.sweep(self._directory_of, now_ms, _SWEEP):
            directory_of = self._directory_of.get(partition)
            if directory_of is not None and directory_of.online:
                set_aside += _look_after(reason, partition, directory_of, now_ms, wall_ms)
            if set_aside >= _SET_ASIDE:
                break
        for directory in self._online():
            directory.due(now_ms)
        self.cleaner.due(now_ms, wall_ms)
        self.alarm.by(self._timers.next_ms(now_ms), now_ms)

    # ---- going down

    def abandon(self) -> None:
        """Let go of everything as it lies, without fsync, checkpoint or marker: the start failed, or a kill."""
        for directory in self.directories:
            directory.abandon()

    def close(self, *, broker_epoch: int = -1, run_all: RunAll = one_after_another) -> None:
        """A clean stop: everything durable, checkpoints, markers, locks released; waits for the disk.

        Every job taken before has come back. A directory that fails at it gets no marker, and is recovered next time.
        """
        self.cleaner.stop()
        errors: dict[LogDirectory, OSError] = {}
        several = max(self._config.threads, LOGS_CLOSED_AT_ONCE)
        run_all([task for directory in self._online() for task in directory.closing(several, errors)])
        for directory in self._online():
            if directory not in errors:
                try:
                    directory.seal(broker_epoch)
                except OSError as error:
                    errors[directory] = error
            if directory in errors:
                directory.fail(errors[directory])
                directory.release()


def _rename_away(
    partition: TopicPartition,
    directory: LogDirectory,
    logs: dict[TopicPartition, Log],
    state: FolderState,
    now_ms: int,
) -> None:
    """logs: the directory's logs, or its copies on their way. Raises KafkaError KAFKA_STORAGE_ERROR."""
    log = logs[partition]
    old = log.folder.path
    removal = directory.rename_away(partition, log, state)
    if state == "stray":
        directory.notice(f"{old}: belongs to no topic that there is: now {log.folder.path}")
    del logs[partition]
    shrink(logs)
    if state == "delete":
        directory.delete_later(removal, now_ms)


def _look_after(reason: str, partition: TopicPartition, directory: LogDirectory, now_ms: int, wall_ms: int) -> int:
    """Do what a sweep has come for; how many files have been set aside to be removed."""
    log = directory.logs[partition]
    if reason == FLUSH:
        if now_ms - log.last_flush_ms >= log.config.flush_ms:
            directory.flush(partition, log)
    elif reason == PRODUCER_EXPIRY:
        log.expire_producers(wall_ms)
    elif log.is_configured and not log.cuts_under_way:
        return directory.delete_old_segments(log, now_ms, wall_ms)
    return 0
