"""Replicas on their way from one log directory into another: the copies that are to replace them, and the change over.

Made by the manager, whose map it keeps right; driven by `broker/alter_log_dirs.py`, which has the records copied. The
copy, in Kafka the future log, is a log of its own, in `topic-N.UUID-future`. Once it has all that the present one has:

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
from typing import TYPE_CHECKING

from kbroker.config.limits import REMEMBERED_DIRECTORIES
from kbroker.log.checkpoints import format_partition_metadata, read_topic_id, replace_file
from kbroker.log.directory import DirectoryRefusedError, Write, check_is_nowhere
from kbroker.log.errors import naming
from kbroker.log.facts import LogFlushed, LogMoved
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
    from collections.abc import Callable, Iterator, Sequence

    from kbroker.log.directory import LogDirectory
    from kbroker.log.jobs import DeleteJob, FlushJob
    from kbroker.log.log import Log
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


class FutureLogs:
    """Which copies are on their way, and which of two copies of a partition counts."""

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        directory_of: dict[TopicPartition, LogDirectory],
        random: Random,
        tell: Callable[[object], None],
    ) -> None:
        """directories: all. directory_of: where each partition is; a copy that takes over is entered."""
        self._directories = directories
        self._directory_of = directory_of
        self._random = random
        self._tell = tell
        self._preferred: dict[TopicPartition, str] = {}

    # ---- where a replica is to be

    def target(self, topic: str, index: int, path: str) -> LogDirectory:
        """The directory of this path, fit for a copy of the partition.

        Raises KafkaError: INVALID_TOPIC_EXCEPTION if the folder's name would be too long, LOG_DIR_NOT_FOUND,
        KAFKA_STORAGE_ERROR if it is offline.
        """
        if len(folder_name_in_state((topic, index), "future", "0" * 32)) > MAX_NAME_LENGTH:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        found = next((each for each in self._directories if each.path == path), None)
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
        """Where the partition's log is to be made, if a client has said it; said once."""
        return self._preferred.pop(partition, None)

    # ---- copies

    def directory(self, partition: TopicPartition) -> LogDirectory | None:
        """Where a copy of a partition is on its way to."""
        return next((each for each in self._directories if partition in each.futures), None)

    def get(self, partition: TopicPartition) -> Log | None:
        """The copy of a partition that is on its way into another directory."""
        target = self.directory(partition)
        return target.futures[partition] if target is not None else None

    def create(self, partition: TopicPartition, target: LogDirectory, wall_ms: int) -> Log:
        """An empty copy of a partition. Raises KafkaError KAFKA_STORAGE_ERROR, also while any directory is offline."""
        check_is_nowhere(partition, self._directories)  # else a copy that is in an offline directory would get a twin
        origin = self._directory_of[partition]
        source = origin.logs[partition]
        name = folder_name_in_state(partition, "future", self._random.token(16).hex())
        with target.guarded():
            if target.may_have_had(folder_name(partition)):
                target.forget_earlier()
        with origin.guarded():
            _forget_mark(source)
            topic_id = read_topic_id(target.disk, source.folder.path, target.notice)
        with target.guarded():
            log = target.create(name, source.config, wall_ms)
        log.cleaned_to = source.cleaned_to  # what is copied is as clean; of a compaction meanwhile it may miss a part
        if topic_id is not None:
            target.submit(Write(target, log, PARTITION_METADATA, format_partition_metadata(topic_id)))
            log.id_checksum = source.id_checksum
        target.futures[partition] = log
        return log

    def delete(self, partition: TopicPartition, now_ms: int) -> None:
        """Call a move off: the copy goes. Raises KafkaError KAFKA_STORAGE_ERROR."""
        origin, target = self._directory_of.get(partition), self.directory(partition)
        if origin is not None:
            origin.held.discard(partition)
        if target is not None:
            future = target.futures.pop(partition)
            target.delete_later(target.rename_away(partition, future, "delete"), now_ms)

    # ---- the change over

    def close_job(self, partition: TopicPartition) -> CloseJob:
        """Make the copy durable; the present log is flushed no more until `replace` or `reopen`."""
        origin, future = self._directory_of[partition], self.get(partition)
        assert future is not None, partition
        origin.held.add(partition)
        _take_epochs(future, origin.logs[partition])
        return CloseJob(future.folder.disk, future.folder.path, future.start_flush())

    def reopen(self, partition: TopicPartition) -> None:
        """The change over cannot be yet: flushes of the present log go on."""
        origin = self._directory_of.get(partition)
        if origin is None:
            return
        origin.held.discard(partition)
        log = origin.logs.get(partition)
        if log is not None and log.awaits_flush:
            origin.flush(partition, log)

    def may_replace(self, partition: TopicPartition) -> bool:
        """Whether all that is durable in the present log is in the copy, and no flush or cut is under way.

        Who waits for a cut to be durable waits for it in this log.
        """
        future, source = self.get(partition), self._directory_of[partition].logs[partition]
        assert future is not None, partition
        under_way = source.is_flushing or future.is_flushing or source.cuts_under_way or future.cuts_under_way
        return not under_way and future.recovery_point >= source.recovery_point

    def replace(self, partition: TopicPartition, now_ms: int) -> EndJob:
        """Put the copy's files in the place of the log's; both end at the same offset. Raises KafkaError.

        The log stays the same object: who refers to it need not be told. If this raises, the copy's directory has
        failed, and the present log is as it was.
        """
        target, origin = self.directory(partition), self._directory_of[partition]
        assert target is not None, partition
        future, source = target.futures[partition], origin.logs[partition]
        assert future.log_end_offset == source.log_end_offset, (future, source)
        is_awaited = source.awaits_flush
        _, _, old_name = future.folder.path.rpartition("/")
        with target.guarded():
            future.move_to(f"{target.path}/{folder_name(partition)}")
        target.moved_away(old_name)
        del target.futures[partition]
        origin.held.discard(partition)
        target.logs[partition] = origin.logs.pop(partition)
        self._directory_of[partition] = target
        target.outdated()
        _take_epochs(future, source)
        source.exchange_files(future)
        try:
            removal = origin.rename_away(partition, future, "delete")
        except KafkaError:  # that directory is offline now; what is in it counts no more, as the file says
            future.close_files()
            removal = future.delete()
        if source.awaits_flush:
            target.flush(partition, source)
        elif is_awaited:  # the flush of the copy was the one
            self._tell(LogFlushed(partition))
        self._tell(LogMoved(partition))
        return EndJob(origin, target, source.folder.path, removal)

    def ended(self, job: EndJob, now_ms: int) -> None:
        """Both names are durable: the old files go by and by."""
        if job.source.online:
            job.source.delete_later(job.removal, now_ms)

    # ---- at a start

    def settle(self, now_ms: int) -> None:
        """After loading: which of several copies of a partition counts.

        A directory that fails at it is offline, and what was not done is done at the next start.
        Raises DirectoryRefusedError where the operator has to choose.
        """
        for partition, first, second in list(self._twice()):
            with suppress(KafkaError):
                self._settle_two(partition, first, second, now_ms)
        for directory in self._directories:
            for partition, future in list(directory.futures.items()):
                with suppress(KafkaError):
                    self._settle_future(partition, directory, future, now_ms)

    def _twice(self) -> Iterator[tuple[TopicPartition, LogDirectory, LogDirectory]]:
        """Partitions that are in use in two directories."""
        for directory in self._directories:
            for partition in directory.logs:
                first = self._directory_of[partition]
                if first is not directory:
                    yield partition, first, directory

    def _settle_two(self, partition: TopicPartition, first: LogDirectory, second: LogDirectory, now_ms: int) -> None:
        """A partition is in two directories: an empty copy is set aside, a replaced one goes; or the operator chooses.

        A directory that fails while a partition is made in it keeps an empty one.
        """
        if not first.online or not second.online:
            if second.online:
                second.logs.pop(partition).close_files()  # it comes back with the next start
            return
        one, other = first.logs[partition], second.logs[partition]
        try:
            moved = [each for each, log in ((first, one), (second, other)) if _says_moved(each, log)]
        except KafkaError:
            if second.online:
                second.logs.pop(partition).close_files()
            raise
        if len(moved) == 1:
            kept, gone = moved[0], second if moved[0] is first else first
        else:
            kept, gone = (first, second) if other.log_end_offset == 0 else (second, first)
            if gone.logs[partition].log_end_offset:
                there = f"there is another copy at {one.folder.path}; remove the stale one"
                raise DirectoryRefusedError(f"{other.folder.path}: {there}")
        log, kept_log = gone.logs.pop(partition), kept.logs[partition]
        path, why = log.folder.path, "was replaced by the copy" if moved else "is empty, and there is another copy"
        self._directory_of[partition] = kept
        try:
            removal = gone.rename_away(partition, log, "delete" if moved else "stray")
        except KafkaError:
            log.close_files()
        else:
            if moved:
                with gone.guarded():
                    gone.sync_names()
                with kept.guarded():
                    _forget_mark(kept_log)
                gone.delete_later(removal, now_ms)
        kept.notice(f"{path}: {why} at {kept_log.folder.path}: {'goes' if moved else 'set aside'}")

    def _settle_future(self, partition: TopicPartition, directory: LogDirectory, future: Log, now_ms: int) -> None:
        """A copy on its way that the last life has left; of two, one was called off, and its name came back."""
        if directory.futures.get(partition) is not future:
            return  # the directory has failed meanwhile
        other = next((each for each in self._directories if each is not directory and partition in each.futures), None)
        if other is not None:
            gone = other if _says_moved(directory, future) else directory
            log = gone.futures.pop(partition)
            gone.delete_later(gone.rename_away(partition, log, "delete"), now_ms)
            if gone is directory:
                return
        present = self._directory_of.get(partition)
        if present is directory:  # two were put together by hand: it could not get that one's name
            _set_aside(partition, directory, "a copy in the log directory that has its partition")
        elif present is None and all(each.online for each in self._directories):
            self._settle_alone(partition, directory, future)

    def _settle_alone(self, partition: TopicPartition, directory: LogDirectory, future: Log) -> None:
        """A copy without the log that it was to replace: the crash came when that one was moved away already."""
        old = future.folder.path
        if not _says_moved(directory, future):
            _set_aside(partition, directory, "a copy of no partition that there is")
            return
        with directory.guarded():
            future.move_to(f"{directory.path}/{folder_name(partition)}")
            directory.sync_names()
            _forget_mark(future)
        del directory.futures[partition]
        directory.logs[partition] = future
        self._directory_of[partition] = directory
        directory.notice(f"{old}: was about to replace another copy when the broker stopped: takes its place")


def _set_aside(partition: TopicPartition, directory: LogDirectory, what: str) -> None:
    """Rename a copy to a stray's."""
    future = directory.futures[partition]
    old = future.folder.path
    directory.rename_away(partition, future, "stray")
    del directory.futures[partition]
    future.close_files()
    directory.notice(f"{old}: {what}: set aside")


def _says_moved(directory: LogDirectory, log: Log) -> bool:
    """Whether a copy says that it replaces another. Raises KafkaError KAFKA_STORAGE_ERROR; waits for the disk."""
    with directory.guarded():
        return _is_marked(log)


def _is_marked(log: Log) -> bool:
    return log.folder.disk.stat(f"{log.folder.path}/{MOVED}") is not None


def _forget_mark(log: Log) -> None:
    """A log that says it was moved here is not to say so for ever; waits for the disk. Raises OSError."""
    if _is_marked(log):
        remove_if_there(log.folder.disk, f"{log.folder.path}/{MOVED}")
        log.folder.disk.sync_dir(log.folder.path)


def skip_to(log: Log, offset: int, wall_ms: int) -> None:
    """Let a copy end where its source does, which has nothing there any more: what stood there was compacted away."""
    log.roll(wall_ms, offset)
    log.log_end_offset = offset


def _take_epochs(future: Log, source: Log) -> None:
    """Where epochs start: an epoch whose first records were compacted away seems to start later in the copy.

    A follower that has other records there would be told that it agrees with this log, and keep them.
    """
    entries = [(epoch, start) for epoch, start in source.epochs.entries() if start <= future.log_end_offset]
    if entries != future.epochs.entries():
        future.epochs.clear()
        for epoch, start in entries:
            future.epochs.assign(epoch, start)
