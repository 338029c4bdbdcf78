"""Replicas on their way from one log directory into another: the copies that are to replace them, and the change over.

Part of the manager, whose maps it keeps right; driven by `broker/replica_moves.py`, which has the records copied. The
copy is a log of its own, in `topic-N.UUID-future`. Once it has all that the present one has:

1. `close_job`: no flush of the present log begins any more; the copy is made durable, and gets a file that says so.
2. `swap`, in one turn of the loop: the last records, the copy is renamed to `topic-N`, the present log to
   `topic-N.UUID-delete`. Appends go to the copy from here on.
3. `ended_job`: both names are made durable, the file is removed. Then the old files go as those of any deletion.

A crash between finds, at the next start (`settle`), whatever names it left: of two logs in use the one with the file
counts, and a copy with the file takes an empty place. A copy without it is behind, and is gone on with.

Source: KIP-113 (ReplicaAlterLogDirsThread, LogManager.replaceCurrentWithFutureLog of Apache Kafka 3.9, by behaviour).
The file, and what follows from it, are ours: Apache's broker refuses to start if a crash left two logs in use.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from kbroker.config.limits import REMEMBERED_DIRECTORIES
from kbroker.log.background import Write
from kbroker.log.checkpoints import format_partition_metadata, read_topic_id, replace_file
from kbroker.log.directory import DirectoryRefusedError, check_is_nowhere
from kbroker.log.errors import naming
from kbroker.log.facts import LogFlushed
from kbroker.log.jobs import remove_if_there
from kbroker.log.names import (
    MAX_NAME_LENGTH,
    MOVED,
    PARTITION_METADATA,
    TopicPartition,
    folder_name,
    folder_name_in_state,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from kbroker.log.background import Work
    from kbroker.log.config import LogConfig
    from kbroker.log.directory import LogDirectory
    from kbroker.log.jobs import DeleteJob, FlushJob
    from kbroker.log.log import Log
    from kbroker.log.names import FolderState
    from kbroker.ports import Disk, Random

_MOVED_TEXT = b"This copy has all records of the one that it replaces.\n"


class CloseJob(NamedTuple):
    """Make a copy durable as far as it goes, and have it say so. flush: None if it is durable."""

    disk: Disk
    folder: str
    flush: FlushJob | None

    def run(self) -> None:
        """Raises OSError."""
        if self.flush is not None:
            self.flush.run()
        replace_file(self.disk, self.folder, MOVED, _MOVED_TEXT)


class EndJob(NamedTuple):
    """Make durable that one log has taken another's place. removal: of the other, to be begun when this has ended."""

    source: LogDirectory
    target: LogDirectory
    folder: str
    removal: DeleteJob

    def run(self) -> None:
        """Raises OSError."""
        disk = self.target.disk
        disk.sync_dir(self.target.path)
        with naming(self.source.path):
            self.source.disk.sync_dir(self.source.path)
        remove_if_there(disk, f"{self.folder}/{MOVED}")


class Keeper(Protocol):
    """The manager, as far as it keeps what moves change; see there."""

    directories: list[LogDirectory]
    _logs: dict[TopicPartition, Log]
    _futures: dict[TopicPartition, Log]
    _jobs: list[Work]
    _outdated: dict[LogDirectory, None]
    _random: Random
    _tell: Callable[[object], None]

    def directory_of(self, path: str) -> LogDirectory:
        """Around a path."""

    def reconfigure(self, topic: str, index: int, config: LogConfig) -> None:
        """Other settings."""

    def _online(self) -> list[LogDirectory]: ...

    def _logs_in(
        self, directory: LogDirectory, logs: Mapping[TopicPartition, Log] | None = None
    ) -> dict[TopicPartition, Log]: ...

    def _storage(self, directory: LogDirectory) -> AbstractContextManager[None]: ...

    def _forget_earlier(self, directory: LogDirectory) -> None: ...

    def _create(self, directory: LogDirectory, name: str, config: LogConfig, wall_ms: int) -> Log: ...

    def _notice(self, text: str) -> None: ...

    def _rename_away(self, partition: TopicPartition, log: Log, state: FolderState) -> DeleteJob: ...

    def _delete_later(self, directory: LogDirectory, job: DeleteJob, now_ms: int) -> None: ...

    def _flush(self, partition: TopicPartition, log: Log) -> None: ...

    def abandon(self) -> None:
        """The start failed: let go of everything as it lies."""


class Moves:
    """The manager's other half: its `_futures`, and which of two copies counts.

    held: partitions whose present log must not be flushed now, for their copies are about to replace them.
    """

    def __init__(self, manager: Keeper) -> None:
        self.held: set[TopicPartition] = set()
        self._manager = manager
        self._preferred: dict[TopicPartition, str] = {}

    # ---- where a replica is to be

    def target(self, topic: str, index: int, path: str) -> LogDirectory:
        """The directory of this path, fit for a copy of the partition.

        Raises KafkaError: INVALID_TOPIC_EXCEPTION if the folder's name would be too long, LOG_DIR_NOT_FOUND,
        KAFKA_STORAGE_ERROR if it is offline.
        """
        if len(folder_name_in_state((topic, index), "future", "0" * 32)) > MAX_NAME_LENGTH:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        found = next((each for each in self._manager.directories if each.path == path), None)
        if found is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
        if not found.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
        return found

    def prefer(self, partition: TopicPartition, path: str) -> None:
        """Make the partition's log in this directory, should it be made; of too many, the oldest is forgotten."""
        self._preferred.pop(partition, None)
        self._preferred[partition] = path
        if len(self._preferred) > REMEMBERED_DIRECTORIES:
            del self._preferred[next(iter(self._preferred))]

    def preferred(self, partition: TopicPartition) -> str | None:
        """Where the partition's log is to be made, if somebody has said it; said once."""
        return self._preferred.pop(partition, None)

    # ---- copies

    def future(self, topic: str, index: int) -> Log | None:
        """The copy of a partition that is on its way into another directory."""
        return self._manager._futures.get(TopicPartition(topic, index))

    def futures_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """All copies that are on their way into a directory."""
        return self._manager._logs_in(directory, self._manager._futures) if directory.online else {}

    def begin(self, partition: TopicPartition, target: LogDirectory, wall_ms: int) -> Log:
        """An empty copy of a partition. Raises KafkaError KAFKA_STORAGE_ERROR, also while any directory is offline."""
        manager = self._manager
        check_is_nowhere(partition, manager.directories)  # else a copy that is in an offline directory would get a twin
        source = manager._logs[partition]
        name = folder_name_in_state(partition, "future", manager._random.token(16).hex())
        with manager._storage(target):
            if target.may_have_had(folder_name(partition)):
                manager._forget_earlier(target)
        with manager._storage(manager.directory_of(source.folder.path)):
            _forget_mark(source)
            topic_id = read_topic_id(target.disk, source.folder.path, manager._notice)
        with manager._storage(target):
            log = manager._create(target, name, source.config, wall_ms)
        log.cleaned_to = source.cleaned_to  # what is copied is as clean; of a compaction meanwhile it may miss a part
        if topic_id is not None:
            manager._jobs.append(Write(target, log, PARTITION_METADATA, format_partition_metadata(topic_id)))
        manager._futures[partition] = log
        target.partitions += 1
        return log

    def begin_again(
        self, partition: TopicPartition, now_ms: int, wall_ms: int, *, first_offset: int | None = None
    ) -> None:
        """Empty a copy, to begin where the present log begins. Raises KafkaError KAFKA_STORAGE_ERROR.

        first_offset: of the first batch, if that begins before the log does.
        """
        manager = self._manager
        future, source = manager._futures[partition], manager._logs[partition]
        target = manager.directory_of(future.folder.path)
        with manager._storage(target):
            start = source.log_start_offset
            sync, removed = future.truncate_fully(start if first_offset is None else first_offset, wall_ms, start)
            assert sync is not None, future
            future.cleaned_to = source.cleaned_to
            sync.run()
        if removed is not None:
            manager._delete_later(target, removed, now_ms)

    def drop(self, partition: TopicPartition, now_ms: int) -> None:
        """Call a move off: the copy goes. Raises KafkaError KAFKA_STORAGE_ERROR."""
        manager = self._manager
        self.held.discard(partition)
        future = manager._futures.pop(partition, None)
        if future is not None:
            target = manager.directory_of(future.folder.path)
            manager._delete_later(target, manager._rename_away(partition, future, "delete"), now_ms)

    # ---- the change over

    def close_job(self, partition: TopicPartition) -> CloseJob:
        """Make the copy durable; the present log is flushed no more until `swap` or `reopen`."""
        self.held.add(partition)
        future = self._manager._futures[partition]
        _take_epochs(future, self._manager._logs[partition])
        return CloseJob(future.folder.disk, future.folder.path, future.start_flush())

    def reopen(self, partition: TopicPartition) -> None:
        """The change over cannot be yet: flushes of the present log go on."""
        self.held.discard(partition)
        log = self._manager._logs.get(partition)
        if log is not None and log.awaits_flush:
            self._manager._flush(partition, log)

    def may_swap(self, partition: TopicPartition) -> bool:
        """Whether all that is durable in the present log is in the copy, and no flush or cut is under way.

        Who waits for a cut to be durable waits for it in this log.
        """
        future, source = self._manager._futures[partition], self._manager._logs[partition]
        flushing = source._flushing is not None or future._flushing is not None
        cuts_under_way = source.cuts_under_way or future.cuts_under_way
        return not flushing and not cuts_under_way and future.recovery_point >= source.recovery_point

    def swap(self, partition: TopicPartition, now_ms: int) -> EndJob:
        """Put the copy in the present log's place; both end at the same offset. Raises KafkaError KAFKA_STORAGE_ERROR.

        If it raises, the copy's directory has failed, and the present log is as it was.
        """
        manager = self._manager
        future, source = manager._futures[partition], manager._logs[partition]
        assert future.log_end_offset == source.log_end_offset, (future, source)
        target = manager.directory_of(future.folder.path)
        origin = manager.directory_of(source.folder.path)
        is_awaited = source.awaits_flush
        _, _, old_name = future.folder.path.rpartition("/")
        with manager._storage(target):
            future.move_to(f"{target.path}/{folder_name(partition)}")
        target.moved_away(old_name)
        del manager._futures[partition]
        manager._logs[partition] = future
        manager._outdated[target] = None
        self.held.discard(partition)
        _take_over(future, source)
        manager.reconfigure(partition.topic, partition.partition, source.config)
        try:
            removal = manager._rename_away(partition, source, "delete")
        except KafkaError:  # that directory is offline now; what is in it counts no more, as the file says
            source.close_files()
            removal = source.delete()
        if future.awaits_flush:
            manager._flush(partition, future)
        elif is_awaited:  # the flush of the copy was the one
            manager._tell(LogFlushed(partition))
        return EndJob(origin, target, future.folder.path, removal)

    def ended(self, job: EndJob, now_ms: int) -> None:
        """Both names are durable: the old files go by and by."""
        if job.source.online:
            self._manager._delete_later(job.source, job.removal, now_ms)

    # ---- at a start

    def settle(self, copies: Iterable[tuple[TopicPartition, Log]], now_ms: int) -> None:
        """After loading: which of several copies of a partition counts. copies: in use, beside another one in use.

        A directory that fails at it is offline, and what was not done is done at the next start.
        Raises DirectoryRefusedError where somebody has to choose.
        """
        manager = self._manager
        for partition, log in copies:
            settle = self._settle_futures if log.folder.path.endswith("-future") else self._settle_two
            with suppress(KafkaError):
                settle(partition, log, now_ms)
        for partition, future in list(manager._futures.items()):
            with suppress(KafkaError):
                if partition in manager._logs:
                    self._settle_beside(partition, future)
                elif all(each.online for each in manager.directories):
                    self._settle_alone(partition, future)

    def _settle_futures(self, partition: TopicPartition, log: Log, now_ms: int) -> None:
        """Of two copies on their way, one was called off, and a power cut has brought its name back."""
        manager = self._manager
        first = manager._futures.get(partition)
        if first is None or not manager.directory_of(log.folder.path).online:
            log.close_files()  # a directory went offline meanwhile, and this comes back with the next start
            return
        kept, other = (log, first) if self._moved_of([log], log) else (first, log)
        manager._futures[partition] = kept
        directory = manager.directory_of(other.folder.path)
        manager._delete_later(directory, manager._rename_away(partition, other, "delete"), now_ms)

    def _settle_beside(self, partition: TopicPartition, future: Log) -> None:
        """A copy beside the log that it was to replace, if in the same directory: two were put together by somebody.

        It could not get that one's name, at which the directory would go offline, now and after each start.
        """
        manager = self._manager
        if manager.directory_of(manager._logs[partition].folder.path) is manager.directory_of(future.folder.path):
            self._set_aside(partition, future, "a copy in the log directory that has its partition")

    def _set_aside(self, partition: TopicPartition, future: Log, what: str) -> None:
        """Rename a copy to a stray's."""
        manager, old = self._manager, future.folder.path
        manager._rename_away(partition, future, "stray")
        del manager._futures[partition]
        future.close_files()
        manager._notice(f"{old}: {what}: set aside")

    def _settle_alone(self, partition: TopicPartition, future: Log) -> None:
        """A copy without the log that it was to replace: the crash came when that one was moved away already."""
        manager = self._manager
        directory, old = manager.directory_of(future.folder.path), future.folder.path
        if not self._says_moved(future):
            self._set_aside(partition, future, "a copy of no partition that there is")
            return
        with manager._storage(directory):
            future.move_to(f"{directory.path}/{folder_name(partition)}")
            directory.sync_names()
            _forget_mark(future)
        del manager._futures[partition]
        manager._logs[partition] = future
        manager._notice(f"{old}: was about to replace another copy when the broker stopped: takes its place")

    def _settle_two(self, partition: TopicPartition, copy: Log, now_ms: int) -> None:
        """A partition is in two directories: an empty copy is set aside, a replaced one goes; else somebody chooses.

        A directory that fails while a partition is made in it keeps an empty one.
        """
        manager = self._manager
        first = manager._logs.get(partition)
        if first is None or not manager.directory_of(copy.folder.path).online:
            copy.close_files()  # a directory went offline meanwhile, and this comes back with the next start
            return
        moved = self._moved_of([first, copy], copy)
        if len(moved) == 1:
            kept, other = (first, copy) if moved[0] is first else (copy, first)
        else:
            kept, other = (first, copy) if copy.log_end_offset == 0 else (copy, first)
            if other.log_end_offset:
                manager.abandon()
                copy.close_files()
                there = f"there is another copy at {first.folder.path}; remove the stale one"
                raise DirectoryRefusedError(f"{copy.folder.path}: {there}")
        path, why = other.folder.path, "was replaced by the copy" if moved else "is empty, and there is another copy"
        manager._logs[partition] = kept
        directory = manager.directory_of(path)
        try:
            removal = manager._rename_away(partition, other, "delete" if moved else "stray")
        except KafkaError:
            other.close_files()
        else:
            if moved:
                with manager._storage(directory):
                    directory.sync_names()
                with manager._storage(manager.directory_of(kept.folder.path)):
                    _forget_mark(kept)
                manager._delete_later(directory, removal, now_ms)
        manager._notice(f"{path}: {why} at {kept.folder.path}: {'goes' if moved else 'set aside'}")

    def _moved_of(self, logs: Sequence[Log], copy: Log) -> list[Log]:
        """Those that say so. copy: not in use yet, and not to be where a directory fails at the question."""
        try:
            return [log for log in logs if self._says_moved(log)]
        except KafkaError:
            copy.close_files()
            raise

    def _says_moved(self, log: Log) -> bool:
        """Whether a copy says that it replaces another. Raises KafkaError KAFKA_STORAGE_ERROR; waits for the disk."""
        with self._manager._storage(self._manager.directory_of(log.folder.path)):
            return _is_marked(log)


def _is_marked(log: Log) -> bool:
    return log.folder.disk.stat(f"{log.folder.path}/{MOVED}") is not None


def _forget_mark(log: Log) -> None:
    """A log that says it was moved here is not to say so for ever; waits for the disk. Raises OSError."""
    if _is_marked(log):
        remove_if_there(log.folder.disk, f"{log.folder.path}/{MOVED}")
        log.folder.disk.sync_dir(log.folder.path)


def behind(future: Log, source: Log) -> bool:
    """Whether a copy has to begin anew: what it needs is gone, or it has what its source has not, or no more."""
    return future.log_end_offset > source.log_end_offset or future.log_end_offset < source.log_start_offset


def truncations_of(log: Log) -> int:
    """How often records have been cut from its end."""
    return log._truncations


def skip_to(log: Log, offset: int, wall_ms: int) -> None:
    """Let a copy end where its source does, which has nothing there any more: what stood there was compacted away."""
    log.roll(wall_ms, offset)
    log.log_end_offset = offset


def _take_over(future: Log, source: Log) -> None:
    """What a log knows beside its records."""
    future.producers = source.producers
    _take_epochs(future, source)
    future.flush_wanted = source.flush_wanted
    future.set_high_watermark(source.high_watermark)
    future.advance_log_start(source.log_start_offset)


def _take_epochs(future: Log, source: Log) -> None:
    """Where epochs start: an epoch whose first records were compacted away seems to start later in the copy.

    A follower that has other records there would be told that it agrees with this log, and keep them.
    """
    entries = [(epoch, start) for epoch, start in source.epochs.entries() if start <= future.log_end_offset]
    if entries != future.epochs.entries():
        future.epochs.clear()
        for epoch, start in entries:
            future.epochs.assign(epoch, start)
