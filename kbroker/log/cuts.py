"""Logs of followers that are cut back: at once where that can be, later where no descriptor is left; then made durable.

Part of the manager, whose maps it uses. A cut holds in memory at once, whatever becomes of the files: the log's end,
epochs and bounds are what they are to be. If a file cannot be opened because too many are, the cut goes on from where
it stopped, every DESCRIPTOR_RETRY_MS, and `Log.cuts_under_way` says meanwhile that nothing may be appended. Any other
error takes the directory offline.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from kbroker.config.limits import DESCRIPTOR_RETRY_MS
from kbroker.log.background import Truncate
from kbroker.log.errors import fault_of, lacks_descriptors
from kbroker.log.facts import LogTruncated
from kbroker.log.names import CLEANER_OFFSETS, LOG_START_OFFSETS, RECOVERY_POINTS
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.log.background import Work
    from kbroker.log.directory import LogDirectory
    from kbroker.log.jobs import DeleteJob, Truncated
    from kbroker.log.log import Log
    from kbroker.log.moves import Moves
    from kbroker.log.names import TopicPartition


class Cut:
    """One cut, as far as it has come. begins_anew: the log is emptied. log_start_offset: None if it is not set.

    wall_ms: when it was asked for. was_trusted: recovery would trust what is cut. truncated: what is left to be done,
    once the files are cut. empties_copy: a copy on its way into another directory has what is cut.
    """

    __slots__ = (
        "begins_anew",
        "empties_copy",
        "log",
        "log_start_offset",
        "offset",
        "partition",
        "truncated",
        "wall_ms",
        "was_trusted",
    )

    def __init__(
        self,
        partition: TopicPartition,
        log: Log,
        offset: int,
        log_start_offset: int | None,
        wall_ms: int,
        *,
        begins_anew: bool,
    ) -> None:
        self.partition = partition
        self.log = log
        self.offset = offset
        self.begins_anew = begins_anew
        self.log_start_offset = log_start_offset
        self.wall_ms = wall_ms
        self.was_trusted = offset < log.recovery_point or log_start_offset is not None
        self.truncated: Truncated | None = None
        self.empties_copy = False


class Keeper(Protocol):
    """The manager, as far as it keeps what cuts change; see there."""

    due_ms: int
    _logs: dict[TopicPartition, Log]
    _futures: dict[TopicPartition, Log]
    _jobs: list[Work]
    _tell: Callable[[object], None]

    @property
    def moves(self) -> Moves:
        """Copies on their way between directories."""

    def directory_of(self, path: str) -> LogDirectory:
        """Around a path."""

    def _fail(self, directory: LogDirectory, error: OSError) -> None: ...

    def _delete_later(self, directory: LogDirectory, job: DeleteJob, now_ms: int) -> None: ...

    def _write_checkpoint(self, directory: LogDirectory, name: str) -> None: ...


class Cuts:
    """The cuts of a manager's logs. put_off: by partition, those that wait for descriptors."""

    def __init__(self, manager: Keeper) -> None:
        self.put_off: dict[TopicPartition, Cut] = {}
        self._manager = manager

    def begin(self, cut: Cut, now_ms: int) -> None:
        """Cut a log; LogTruncated follows. Raises KafkaError KAFKA_STORAGE_ERROR."""
        self._forget(cut.partition)  # an older one has no more to do than this
        future = self._manager._futures.get(cut.partition)
        cut.empties_copy = future is not None and (cut.begins_anew or future.log_end_offset > cut.offset)
        if future is not None:
            future.cleaned_to = min(future.cleaned_to, cut.offset)
        self._go_on(cut, now_ms)

    def go_on(self, now_ms: int) -> None:
        """Try those again that were put off."""
        for partition, cut in list(self.put_off.items()):
            self._forget(partition)
            if self._manager._logs.get(partition) is cut.log:
                with suppress(KafkaError):  # its directory is offline, which has been told
                    self._go_on(cut, now_ms)

    def finish(self, errors: dict[str, OSError]) -> None:
        """At a clean stop: those that cannot be finished go into `errors`, by directory: it is not closed cleanly."""
        for partition, cut in list(self.put_off.items()):
            if self._manager._logs.get(partition) is cut.log:
                directory = self._manager.directory_of(cut.log.folder.path)
                try:
                    self._cut_files(cut, directory, 0)
                except OSError as error:
                    errors[directory.path] = error

    def _forget(self, partition: TopicPartition) -> None:
        cut = self.put_off.pop(partition, None)
        if cut is not None:
            cut.log.cuts_under_way -= 1

    def _go_on(self, cut: Cut, now_ms: int) -> None:
        manager = self._manager
        directory = manager.directory_of(cut.log.folder.path)
        try:
            truncated = self._cut_files(cut, directory, now_ms)
        except OSError as error:
            manager._fail(directory, error)
            if not lacks_descriptors(error):
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, fault_of(error, directory.path)) from error
            self.put_off[cut.partition] = cut
            cut.log.cuts_under_way += 1
            manager.due_ms = min(manager.due_ms, now_ms + DESCRIPTOR_RETRY_MS)
            return
        if truncated.removed is not None:
            manager._delete_later(directory, truncated.removed, now_ms)
        if truncated.sync is not None:
            cut.log.cuts_under_way += 1
            manager._jobs.append(Truncate(directory, cut.partition, cut.log, truncated.sync, directory.names))
        elif not cut.log.cuts_under_way:
            manager._tell(LogTruncated(cut.partition, cut.log))

    def _cut_files(self, cut: Cut, directory: LogDirectory, now_ms: int) -> Truncated:
        """What is left of a cut but for its fsync. Raises OSError; it may be called again."""
        log = cut.log
        if cut.truncated is None:
            if cut.begins_anew:
                cut.truncated = log.truncate_fully(cut.offset, cut.wall_ms, cut.log_start_offset)
            else:
                cut.truncated = log.truncate_to(cut.offset, cut.wall_ms)
        truncated = cut.truncated
        if truncated.sync is not None:
            if cut.was_trusted:
                truncated.sync.run()
                self._manager._write_checkpoint(directory, RECOVERY_POINTS)
                self._manager._write_checkpoint(directory, LOG_START_OFFSETS)
                self._manager._write_checkpoint(directory, CLEANER_OFFSETS)  # what comes in its place is not clean
            if cut.empties_copy:
                self._manager.moves.source_was_cut(cut.partition, now_ms, cut.wall_ms)
        return truncated
