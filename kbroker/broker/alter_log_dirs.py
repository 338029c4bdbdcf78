"""Replicas that move between this broker's log directories: what AlterReplicaLogDirs asks for, step by step.

A copy is filled as a follower's log is: a job reads some records of the present log, the loop appends them; as many at
once as there are log directories, and no faster than `replica.alter.log.dirs.io.max.bytes.per.second`. With the last
record there, `log/future_logs.py` changes the copies over. A move that a stop or a crash has interrupted goes on when
the broker knows again that it has the partition. Where the present log is cut, the copy begins anew.

Source: ReplicaManager.alterReplicaLogDirs and ReplicaAlterLogDirsThread of Apache Kafka 3.9, by behaviour.
Unlike Kafka, the last records of a copy, less than a step, are not held back by a throttle.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.config.limits import DESCRIPTOR_RETRY_MS, MOVE_RETRY_MS, MOVED_BYTES_PER_STEP
from kbroker.log.append import UnexpectedOffsetError
from kbroker.log.errors import lacks_descriptors, naming
from kbroker.log.future_logs import CloseJob, EndJob, behind, skip_to
from kbroker.log.names import TopicPartition
from kbroker.replica.facts import RoleChanged
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kbroker.broker.facts import Handler
    from kbroker.broker.jobs import Job, Owner
    from kbroker.log.log import Log
    from kbroker.log.manager import LogManager
    from kbroker.ports import Clock, Region
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler

log = logging.getLogger("kbroker.logs")


class Move:
    """One replica on its way. truncations: of the present log, when the copy was begun. job: under way, if any."""

    __slots__ = ("future", "job", "partition", "truncations", "wake_ms")

    def __init__(self, partition: TopicPartition, future: Log) -> None:
        self.partition = partition
        self.future = future
        self.truncations = -1
        self.job: Job | None = None
        self.wake_ms = 0  # when to look again, without a job


class ReadJob:
    """Read records of the present log. path: its folder. data: once it has run."""

    __slots__ = ("data", "path", "region")

    def __init__(self, region: Region, path: str) -> None:
        self.region = region
        self.path = path
        self.data = b""

    def run(self) -> None:
        """Raises OSError, which names a path: it is not the copy's disk that fails."""
        with naming(self.path):
            self.data = self.region.read()


class _Ending(NamedTuple):
    """The owner of an EndJob: the move is over, only its traces are not durable yet."""

    moves: AlterLogDirs

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        assert isinstance(job, EndJob), job
        self.moves.ended(job, error, now_ms)


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
            self._begin(partition, future, now_ms)

    def _begin(self, partition: TopicPartition, future: Log, now_ms: int) -> Move:
        move = self._moves.get(partition)
        if move is None or move.future is not future:
            self._moves[partition] = move = Move(partition, future)
            move.wake_ms = now_ms
            self._sleep()
        return move

    def _forget(self, partition: TopicPartition) -> None:
        self._moves.pop(partition, None)
        self._sleep()  # perhaps it is another one's turn
        self._logs.futures.reopen(partition)  # somebody may wait for a flush that was held up

    # -- facts and time

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """A replica that is here again: its move goes on."""
        return {RoleChanged: self._role_changed}

    def _role_changed(self, fact: RoleChanged, now_ms: int) -> None:
        partition = fact.partition
        future = self._logs.futures.get(TopicPartition(partition.topic, partition.index))
        if future is not None and partition.log is not None:
            move = self._begin(TopicPartition(partition.topic, partition.index), future, now_ms)
            if move.job is None:
                self._go_on(move, now_ms)  # now: what a crash took from the present log is to be missed before it grows
                self._sleep()

    def _wake(self, now_ms: int) -> None:
        """Go on with the moves that have nothing under way, the first ones first."""
        for move in self._first():
            if move.job is None and move.wake_ms <= now_ms:
                self._go_on(move, now_ms)
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
        return self._logs.futures.get(move.partition) is not move.future or replica is None or replica.log is None

    def _go_on(self, move: Move, now_ms: int) -> None:
        """Read what the copy lacks next; if that is nothing, change over."""
        if self._is_over(move):
            self._forget(move.partition)
            return
        present = self._present(move)
        try:
            if present.truncations != move.truncations or behind(move.future, present):
                self._begin_again(move, present, now_ms)
            region = self._next_region(move, present)
            free_ms = self._replicas.throttles.moves.free_ms()
            if region is not None and free_ms > now_ms:
                move.wake_ms = free_ms
            elif region is not None:
                self._run(move, ReadJob(region, present.folder.path))
            else:
                self._run(move, self._logs.futures.close_job(move.partition))
        except OSError as error:
            self._failed(move, error, now_ms)
        except KafkaError as error:
            self._give_up(move, error, now_ms)

    def _present(self, move: Move) -> Log:
        present = self._logs.get(*move.partition)
        assert present is not None, move.partition
        return present

    def _begin_again(self, move: Move, present: Log, now_ms: int) -> None:
        """From the present log's beginning, unless the copy of an earlier life, or an empty one, is good as it is."""
        is_new = move.truncations < 0
        move.truncations = present.truncations
        if behind(move.future, present) or not is_new:
            self._logs.futures.begin_again(move.partition, now_ms, self._clock.wall_ms())

    def _next_region(self, move: Move, present: Log) -> Region | None:
        """The records that the copy lacks next; None if it has them all."""
        future, end = move.future, present.log_end_offset
        if future.log_end_offset < end:
            with naming(present.folder.path):
                region = present.read(future.log_end_offset, MOVED_BYTES_PER_STEP, end).region
            if region is not None:
                return region
            skip_to(future, end, self._clock.wall_ms())
        return None

    def _run(self, move: Move, job: Job) -> None:
        move.job = job
        self._give(job, self)

    def _append(self, move: Move, job: ReadJob, now_ms: int) -> None:
        present = self._present(move)
        if present.truncations == move.truncations and not behind(move.future, present):
            try:
                self._fill(move, job.data, now_ms)
                self._replicas.throttles.moves.note(len(job.data), now_ms)
            except OSError as error:
                self._failed(move, error, now_ms)
                return
            except KafkaError as error:
                self._give_up(move, error, now_ms)
                return
        self._go_on(move, now_ms)

    def _fill(self, move: Move, data: bytes, now_ms: int) -> None:
        """Append to a copy. Raises KafkaError, OSError."""
        future, records, wall_ms = move.future, memoryview(bytearray(data)), self._clock.wall_ms()
        try:
            future.append_as_follower(records, wall_ms)
        except UnexpectedOffsetError as error:
            if future.log_end_offset > future.log_start_offset:
                raise
            # The present log starts within a batch (DeleteRecords): so may an empty copy.
            self._logs.futures.begin_again(move.partition, now_ms, wall_ms, first_offset=error.first_offset)
            future.append_as_follower(records, wall_ms)

    def _change_over(self, move: Move, now_ms: int) -> None:
        """The copy is durable: bring the last records, and put it in place; or go on, if there were too many."""
        futures, present, future = self._logs.futures, self._present(move), move.future
        try:
            if present.truncations == move.truncations and not behind(future, present):
                region = self._next_region(move, present)
                while region is not None and region.size < MOVED_BYTES_PER_STEP:
                    with naming(present.folder.path):
                        data = region.read()
                    self._fill(move, data, now_ms)
                    region = self._next_region(move, present)
                if region is None and futures.may_replace(move.partition):
                    self._replace(move, now_ms)
                    return
        except OSError as error:
            self._failed(move, error, now_ms)
            return
        except KafkaError as error:
            self._give_up(move, error, now_ms)
            return
        futures.reopen(move.partition)
        move.wake_ms = now_ms + MOVE_RETRY_MS

    def _replace(self, move: Move, now_ms: int) -> None:
        job = self._logs.futures.replace(move.partition, now_ms)
        self._replicas.log_moved(move.partition, move.future)
        self._forget(move.partition)
        self._give(job, _Ending(self))

    def ended(self, job: EndJob, error: OSError | None, now_ms: int) -> None:
        """A move is over, and durable."""
        if error is None:
            self._logs.futures.ended(job, now_ms)
            log.info("%s: has moved here from %s", job.folder, job.source.path)
        elif lacks_descriptors(error):
            self._give(job, _Ending(self))
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
