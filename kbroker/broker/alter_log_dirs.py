"""Replicas that move between this broker's log directories: what AlterReplicaLogDirs asks for, step by step.

A copy is filled as a follower's log is: a job reads some records of the present log, the loop appends them; as many at
once as there are log directories, and no faster than `replica.alter.log.dirs.io.max.bytes.per.second`. With the last
record there, `log/future_logs.py` changes the copies over. A move that a stop or a crash has interrupted goes on when
the broker knows again that it has the partition. A copy that has what the present log has not, or another epoch's
records, is cut as a follower's log is (`where_to_cut` in replica/fetcher.py).

Source: ReplicaManager.alterReplicaLogDirs and ReplicaAlterLogDirsThread of Apache Kafka 3.9, by behaviour.
Unlike Kafka, the last records of a copy, less than a step, are not held back by a throttle.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.config.limits import DESCRIPTOR_RETRY_MS, MOVE_RETRY_MS, MOVED_BYTES_PER_STEP
from kbroker.log.append import UnexpectedOffsetError
from kbroker.log.errors import OutOfDescriptorsError, lacks_descriptors, naming
from kbroker.log.facts import LogTruncated
from kbroker.log.future_logs import CloseJob, EndJob, skip_to
from kbroker.log.names import TopicPartition
from kbroker.replica.facts import RoleChanged
from kbroker.replica.fetcher import where_to_cut
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kbroker.broker.facts import Handler
    from kbroker.broker.jobs import Job, Owner
    from kbroker.log.directory import LogDirectory
    from kbroker.log.log import Log
    from kbroker.log.manager import LogManager
    from kbroker.ports import Clock, Region
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler

log = logging.getLogger("kbroker.logs")


class Move:
    """One replica on its way. present: its log; future: the copy, in the directory `target`. job: under way, if any."""

    __slots__ = ("future", "job", "partition", "present", "target", "wake_ms")

    def __init__(self, partition: TopicPartition, present: Log, target: LogDirectory) -> None:
        self.partition = partition
        self.present = present
        self.target = target
        self.future = target.futures[partition]
        self.job: Job | None = None
        self.wake_ms = 0  # when to look again, without a job


class ReadJob:
    """Read records of the present log. data: once it has run. truncations: of the log, when this was made."""

    __slots__ = ("_path", "data", "region", "truncations")

    def __init__(self, region: Region, present: Log) -> None:
        self.region = region
        self._path = present.folder.path
        self.truncations = present.truncations
        self.data = b""

    def run(self) -> None:
        """Raises OSError, which names a path: it is not the copy's disk that fails."""
        with naming(self._path):
            self.data = self.region.read()


class AlterLogDirs:
    """A part of the broker. give: has a job run for an owner."""

    def __init__(
        self,
        logs: LogManager,
        replicas: ReplicaManager,
        clock: Clock,
        scheduler: Scheduler,
        give: Callable[[Job, Owner], None],
    ) -> None:
        self._logs = logs
        self._replicas = replicas
        self._clock = clock
        self._give = give
        self._go_on_at = scheduler.alarm(self._wake)
        self._moves: dict[TopicPartition, Move] = {}  # in the order in which they were asked for

    # -- what is asked for

    def alter(self, topic: str, index: int, path: str, now_ms: int) -> None:
        """Have a replica move into a log directory, or, where there is none yet, be made in it.

        Raises: KafkaError INVALID_TOPIC_EXCEPTION, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, REPLICA_NOT_AVAILABLE if
        its replicas are elsewhere, UNKNOWN_TOPIC_OR_PARTITION if it has none.
        """
        futures, partition = self._logs.futures, TopicPartition(topic, index)
        target = futures.target(topic, index, path)
        present = self._logs.get(topic, index)
        future = futures.get(partition)
        if future is not None and futures.directory(partition) is not target:
            self._forget(partition)
            futures.delete(partition, now_ms)
            future = None
            log.info("%s: its move into another log directory is called off", partition)
        if (topic, index) not in self._replicas.partitions or present is None:
            futures.prefer(partition, path)
            is_known = self._replicas.is_known(topic, index)
            code = ErrorCode.REPLICA_NOT_AVAILABLE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"there is no replica of {partition} here")
        if future is None and partition not in target.logs:
            future = futures.create(partition, target, self._clock.wall_ms())
            log.info("%s: moves to %s", partition, path)
        if future is not None:
            self._begin(partition, present, target, now_ms)

    def _begin(self, partition: TopicPartition, present: Log, target: LogDirectory, now_ms: int) -> Move:
        move = self._moves.get(partition)
        if move is None or (move.present, move.future) != (present, target.futures[partition]):
            self._moves[partition] = move = Move(partition, present, target)
            move.wake_ms = now_ms
            self._sleep()
        return move

    def _forget(self, partition: TopicPartition) -> None:
        self._moves.pop(partition, None)
        self._sleep()  # perhaps it is another one's turn
        self._logs.futures.reopen(partition)  # a request may wait for a flush that was held up

    # -- facts and time

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """A replica that is here again: its move goes on. A cut that is durable."""
        return {RoleChanged: self._role_changed, LogTruncated: self._truncated}

    def _truncated(self, fact: LogTruncated, now_ms: int) -> None:
        move = self._moves.get(fact.partition)
        if move is not None and move.job is None:
            move.wake_ms = now_ms
            self._sleep()

    def _role_changed(self, fact: RoleChanged, now_ms: int) -> None:
        partition, present = TopicPartition(fact.partition.topic, fact.partition.index), fact.partition.log
        target = self._logs.futures.directory(partition)
        if target is not None and present is not None:
            move = self._begin(partition, present, target, now_ms)
            if move.job is None:
                self._copy_next(
                    move, now_ms
                )  # now: what a crash took from the present log is to be missed before it grows
                self._sleep()

    def _wake(self, now_ms: int) -> None:
        """Go on with the moves that have nothing under way, the first ones first."""
        for move in self._first():
            if move.job is None and move.wake_ms <= now_ms:
                self._copy_next(move, now_ms)
        self._sleep()

    def _first(self) -> list[Move]:
        """As many moves at once as there are log directories."""
        return list(self._moves.values())[: len(self._logs.directories)]

    def _sleep(self) -> None:
        """Until the next move may go on."""
        wake_ms = min((move.wake_ms for move in self._first() if move.job is None), default=None)
        if wake_ms is None:
            self._go_on_at.cancel()
        elif wake_ms > self._clock.now_ms():
            self._go_on_at.set(wake_ms)
        else:
            self._go_on_at.soon()

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A job of a move has ended; the move may be over."""
        if isinstance(job, EndJob):
            self._ended(job, error, now_ms)
            return
        move = next((each for each in self._moves.values() if each.job is job), None)
        if isinstance(job, CloseJob) and job.flush is not None and move is not None:
            if error is None:
                move.future.flushed(job.flush, now_ms)
            else:
                move.future.flush_failed(job.flush)
        if move is None:
            return
        move.job = None
        move.wake_ms = now_ms
        if self._is_over(move):
            self._forget(move.partition)
        elif error is not None:
            self._failed(move, error, now_ms)
        elif isinstance(job, ReadJob):
            self._append(move, job, now_ms)
        else:
            self._change_over(move, now_ms)
        self._sleep()

    # -- one move

    def _is_over(self, move: Move) -> bool:
        """Deleted, called off, or a disk has failed: there is nothing to go on with."""
        replica = self._replicas.partitions.get(move.partition)
        is_on_its_way = move.target.futures.get(move.partition) is move.future
        return not is_on_its_way or replica is None or replica.log is not move.present

    def _copy_next(self, move: Move, now_ms: int) -> None:
        """Read what the copy lacks next; if that is nothing, change over."""
        if self._is_over(move):
            self._forget(move.partition)
            return
        with self._failing(move, now_ms):
            if not self._agrees(move, now_ms):
                return
            region = self._next_region(move)
            free_ms = self._replicas.throttles.moves.free_ms()
            if region is not None and free_ms > now_ms:
                move.wake_ms = free_ms
            elif region is not None:
                self._run(move, ReadJob(region, move.present))
            else:
                self._run(move, self._logs.futures.close_job(move.partition))

    @contextmanager
    def _failing(self, move: Move, now_ms: int) -> Iterator[None]:
        """A block in which an error ends the move, or, for want of a descriptor, has it wait."""
        try:
            yield
        except OSError as error:
            self._failed(move, error, now_ms)
        except OutOfDescriptorsError as error:
            self._failed(move, error.fault, now_ms)
        except KafkaError as error:
            self._give_up(move, error, now_ms)

    def _agrees(self, move: Move, now_ms: int) -> bool:
        """Whether the copy may be appended to: as a follower, it is cut first where it is not what the local log is.

        The end of the cut wakes the move. Raises KafkaError.
        """
        future, present = move.future, move.present
        if future.cuts_under_way:
            move.wake_ms = now_ms + MOVE_RETRY_MS
            return False
        start, end = present.log_start_offset, present.log_end_offset
        if future.log_end_offset < start != future.log_start_offset:  # not if it begins within a batch, as the other
            self._truncate(move, start, now_ms, start_over=True)
            future.cleaned_to = present.cleaned_to
            return False
        offset, epoch = min(future.log_end_offset, end), future.epochs.latest
        if epoch >= 0 and present.epochs.latest >= 0:
            theirs = present.last_offset_of_epoch(epoch)
            if theirs.is_before(epoch, future.log_end_offset):
                offset = min(offset, where_to_cut(future, theirs.epoch, theirs.end_offset))
        if offset < future.log_end_offset:
            self._truncate(move, offset, now_ms)
            return False
        return True

    def _truncate(
        self, move: Move, offset: int, now_ms: int, *, start_over: bool = False, log_start_offset: int | None = None
    ) -> None:
        wall_ms = self._clock.wall_ms()
        move.target.truncate(
            move.partition,
            move.future,
            offset,
            now_ms,
            wall_ms,
            start_over=start_over,
            log_start_offset=log_start_offset,
        )
        move.wake_ms = now_ms + (MOVE_RETRY_MS if move.future.cuts_under_way else 0)

    def _next_region(self, move: Move) -> Region | None:
        """The records that the copy lacks next; None if it has them all."""
        future, present, end = move.future, move.present, move.present.log_end_offset
        if future.log_end_offset < end:
            offset = max(future.log_end_offset, present.log_start_offset)  # where both begin within a batch
            with naming(present.folder.path):
                region = present.read(offset, MOVED_BYTES_PER_STEP, end).region
            if region is not None:
                return region
            skip_to(future, end, self._clock.wall_ms())
        return None

    def _run(self, move: Move, job: Job) -> None:
        move.job = job
        self._give(job, self)

    def _append(self, move: Move, job: ReadJob, now_ms: int) -> None:
        """Append what was read, unless what would be read is other records by now."""
        is_same = move.present.truncations == job.truncations and not move.future.cuts_under_way
        with self._failing(move, now_ms):
            if is_same:
                self._fill(move, job.data, now_ms)
                self._replicas.throttles.moves.record(len(job.data), now_ms)
            self._copy_next(move, now_ms)

    def _fill(self, move: Move, data: bytes, now_ms: int) -> None:
        """Append to a copy. Raises KafkaError, OSError."""
        future = move.future
        try:
            future.append_as_follower(memoryview(bytearray(data)), self._clock.wall_ms())
        except UnexpectedOffsetError as error:
            if future.log_end_offset > future.log_start_offset:
                raise
            # The present log starts within a batch (DeleteRecords): so may an empty copy.
            start = move.present.log_start_offset
            self._truncate(move, error.first_offset, now_ms, start_over=True, log_start_offset=start)

    def _change_over(self, move: Move, now_ms: int) -> None:
        """The copy is durable: bring the last records, and put it in place; or go on, if there were too many."""
        futures = self._logs.futures
        move.wake_ms = now_ms + MOVE_RETRY_MS
        with self._failing(move, now_ms):
            if self._agrees(move, now_ms):
                region = self._next_region(move)
                while region is not None and region.size < MOVED_BYTES_PER_STEP and not move.future.cuts_under_way:
                    job = ReadJob(region, move.present)
                    job.run()
                    self._fill(move, job.data, now_ms)
                    region = self._next_region(move)
                if region is None and futures.may_replace(move.partition):
                    end = futures.replace(move.partition, now_ms)
                    self._forget(move.partition)
                    self._give(end, self)
                    return
            futures.reopen(move.partition)

    def _ended(self, job: EndJob, error: OSError | None, now_ms: int) -> None:
        """A move is over, and durable: only its traces were not."""
        if error is None:
            self._logs.futures.ended(job, now_ms)
            log.info("%s: has moved here from %s", job.folder, job.source.path)
        elif lacks_descriptors(error):
            self._give(job, self)
        else:
            self._logs.disk_failed(error.filename or job.target.path, error)

    # -- failure

    def _failed(self, move: Move, error: OSError, now_ms: int) -> None:
        """A disk: it goes offline with all that is in it, the move too. Not for want of a descriptor."""
        self._logs.futures.reopen(move.partition)
        if lacks_descriptors(error):
            move.wake_ms = now_ms + DESCRIPTOR_RETRY_MS
            return
        path = error.filename if isinstance(error.filename, str) else move.future.folder.path
        self._logs.disk_failed(path, error)
        self._forget(move.partition)

    def _give_up(self, move: Move, error: KafkaError, now_ms: int) -> None:
        """The present log has something that cannot be copied."""
        self._forget(move.partition)
        self._logs.futures.reopen(move.partition)
        log.error("%s: cannot be moved: %s", move.partition, error)
        if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            self._logs.futures.delete(move.partition, now_ms)
