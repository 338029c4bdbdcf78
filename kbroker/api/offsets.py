"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where a log begins, ends, and what is in between.

Served: ListOffsets 0-11, OffsetForLeaderEpoch 0-4, DeleteRecords 0-2. ListOffsets 0, of clients before 0.10.1, asks for
so many starts of segments that were written before a time, newest first, -1 for all with the log's end and -2 for the
first. A timestamp asks for the first record at or after it; -1 is the end (of what the isolation level
shows), -2 the log start, -3 the record with the largest timestamp, -4 the first record on local disk; older versions
know fewer of these.

Who names a replica is shown the whole log, but not by ListOffsets 0. A consumer that asks for the end, or a
time that is not found below it, is told to ask again while a new leader's high watermark lies before its epoch
(KIP-207): with OFFSET_NOT_AVAILABLE, which clients know since version 5, before with LEADER_NOT_AVAILABLE.

Unlike Kafka: there is no tiered storage, so -4 is the log start, and -5 and -6 (last offset in, or waiting for, the
remote tier) are answered with -1. A record's timestamp is found to the batch, then to the record by reading it. What
lies before the log start is not looked at: Kafka does while its segment is not deleted yet, and then names a record
that is gone (-3), or says -1 for a time that a later segment has. An isolation level that does not exist is read
uncommitted, at which Kafka fails. DeleteRecords answers a partition as often as it is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.authorization import for_each, topic_name
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.facts import Touched
from kbroker.config.limits import ELEMENTS_PER_REQUEST
from kbroker.log.isolation import HIGH_WATERMARK, LOG_END, FetchIsolation
from kbroker.log.times import TimeScan, TimeSearch, segment_starts
from protocol.errors import ErrorCode, KafkaError
from protocol.flat import place
from protocol.messages.offsets import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Hashable, Sequence

    from kbroker.api.call import Call, InSlices
    from kbroker.broker.jobs import Job
    from kbroker.log.log import Log
    from kbroker.log.times import Found
    from kbroker.replica import Partition
    from protocol.flat import Flat
    from protocol.messages.offsets import OffsetForLeaderPartition

PARTITIONS, INDEX = place(ListOffsetsTopic, "partitions"), place(ListOffsetsPartition, "partition_index")
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}  # the version in which each got its meaning
NEVER = 1 << 15  # no version is as high
UNKNOWN = -1
NO_STARTS: list[int] = []  # of segments: version 0 asks for them
CONSUMER = -1  # as replica_id
SEARCH_PATIENCE_MS = 30_000  # how long records may take to be read: a disk that needs longer is as good as gone
NAMES_AT_ONCE = 256  # looked at in one step
EPOCHS_SINCE = 4  # of ListOffsets; before, the answer has no place for one
OFFSET_NOT_AVAILABLE_SINCE = 5  # KIP-207


def list_offsets(request: Flat, call: Call) -> InSlices:
    """One offset, with its timestamp, for each partition asked about; those asked for by time once they are read.

    request: the fields of ListOffsetsRequest.
    """
    replica_id, isolation_level, named_topics, _timeout_ms = request
    twice = () if call.version == 0 else (yield from _named_twice(named_topics))  # who asks by 0 may want both ends
    isolation = FetchIsolation.of(isolation_level) if replica_id == CONSUMER else LOG_END
    topics = []
    searches: list[_Search] = []
    for name, partitions in named_topics:
        answers: list[Flat] = []
        for asked in partitions:
            yield
            index, _epoch, timestamp, _most = asked
            try:
                if (name, index) in twice:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}-{index} is named twice")
                if timestamp < 0 and call.version < SINCE.get(timestamp, NEVER):
                    raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} means nothing here")
                partition = call.broker.replicas.find(name, index)
                if call.version == 0:
                    answers.append(_segment_starts(partition, asked, call))
                else:
                    answers.append(_offset(partition, asked, isolation, call, searches, answers))
            except KafkaError as error:
                call.has_errors = True
                answers.append(_failed(index, error.code))
        topics.append((name, answers))
    if not searches:
        return 0, topics
    delayed = DelayedListOffsets((0, topics), searches, call)
    return delayed.answer(call.now_ms) or delayed


def _named_twice(topics: Sequence[Flat]) -> Generator[None, None, Container[tuple[str, int]]]:
    """The partitions that are named more than once. Consumers mostly ask about one."""
    if len(topics) == 1 and len(topics[0][PARTITIONS]) == 1:
        return ()
    named: dict[str, set[int]] = {}  # a set of pairs would take 50 ms to go
    twice: set[tuple[str, int]] = set()
    count = 0
    for name, partitions in topics:
        of_topic = named.setdefault(name, set())
        for index, _epoch, _timestamp, _most in partitions:
            if index in of_topic:
                twice.add((name, index))
            of_topic.add(index)
            count += 1
            if not count % NAMES_AT_ONCE:
                yield
    return twice


def _failed(index: int, code: ErrorCode) -> Flat:
    """The part of the answer about a partition of which nothing can be said."""
    return index, code, NO_STARTS, UNKNOWN, UNKNOWN, UNKNOWN


def _segment_starts(partition: Partition, asked: Flat, call: Call) -> Flat:
    """What version 0 wants to know; what consumers may not see yet is not there."""
    index, epoch, timestamp, most = asked
    partition.check_epoch(epoch)
    log = partition.led()
    end_offset = log.readable_end(HIGH_WATERMARK)
    try:
        starts = segment_starts(log, timestamp if timestamp >= 0 else None, call.broker.clock.wall_ms())
    except OSError as error:
        raise call.broker.replicas.storage_error(partition, error) from error
    if timestamp == EARLIEST:
        starts = starts[-1:]
    if starts and starts[0] > end_offset:
        starts = [end_offset, *(start for start in starts if start <= end_offset)]
    return index, 0, starts[: max(most, 0)], UNKNOWN, UNKNOWN, UNKNOWN


def _offset(
    partition: Partition,
    asked: Flat,
    isolation: FetchIsolation,
    call: Call,
    searches: list[_Search],
    answers: list[Flat],
) -> Flat:
    """The next of `answers`, or what stands there until the search that is added to `searches` has ended."""
    index, epoch, timestamp, _ = asked
    partition.check_epoch(epoch)
    log = partition.led()
    end_offset = log.readable_end(isolation)
    offset = leader_epoch = UNKNOWN
    if timestamp == LATEST:
        _check_end_is_known(partition, isolation, call.version)
        offset, leader_epoch = end_offset, partition.leader_epoch  # of the leader that says so, not of a record
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        offset = log.log_start_offset
        leader_epoch = _epoch_at(partition, log, offset)
    elif timestamp == MAX_TIMESTAMP or timestamp >= 0:
        if not log.config.message_format:
            raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"{partition} has messages without timestamps")
        search = TimeSearch(log, timestamp if timestamp >= 0 else None)
        searches.append(_Search(partition, search, isolation, answers, len(answers), call))
    return index, 0, NO_STARTS, UNKNOWN, offset, leader_epoch if call.version >= EPOCHS_SINCE else UNKNOWN


def _check_end_is_known(partition: Partition, isolation: FetchIsolation, version: int) -> None:
    if isolation is LOG_END:
        return
    try:
        partition.check_end_is_known()
    except KafkaError as error:
        if error.code == ErrorCode.OFFSET_NOT_AVAILABLE and version < OFFSET_NOT_AVAILABLE_SINCE:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, error.message) from None
        raise


def _epoch_at(partition: Partition, log: Log, offset: int) -> int:
    return partition.leader_epoch if offset == log.log_end_offset else log.epochs.epoch_at(offset)


class _Search(NamedTuple):
    """A partition whose answer, at a place of `answers`, depends on records that have to be read."""

    partition: Partition
    search: TimeSearch
    isolation: FetchIsolation
    answers: list[Flat]
    place: int
    call: Call

    def conclude(self, found: Found | None) -> None:
        """What was read is the answer, if a consumer may see it. Raises: KafkaError."""
        log = self.partition.led()
        end_offset = log.readable_end(self.isolation)
        if found is not None and found.offset < end_offset:
            knows_epochs = self.call.version >= EPOCHS_SINCE
            epoch = _epoch_at(self.partition, log, found.offset) if knows_epochs else UNKNOWN
            self.answers[self.place] = (self.partition.index, 0, NO_STARTS, found.timestamp, found.offset, epoch)
        else:
            _check_end_is_known(self.partition, self.isolation, self.call.version)

    def refuse(self, code: ErrorCode) -> None:
        """It cannot be known."""
        self.call.has_errors = True
        self.answers[self.place] = _failed(self.partition.index, code)


class DelayedListOffsets:
    """A ListOffsets that waits until records have been read, by jobs that it owns."""

    __slots__ = ("_address", "_broker", "_open", "_response", "deadline_ms")

    def __init__(self, response: Flat, searches: Sequence[_Search], call: Call) -> None:
        self.deadline_ms = call.now_ms + SEARCH_PATIENCE_MS
        self._broker = call.broker
        self._address = call.session.peer_host
        self._response = response
        self._open: dict[Job, _Search] = {}
        for search in searches:
            first = search.search.first_job()
            if first is None:
                self._scan_next(search)
            else:
                self._give(first, search)

    @property
    def keys(self) -> Sequence[Hashable]:
        """Itself: touched when the last job has ended."""
        return [self]

    def answer(self, now_ms: int) -> Flat | None:
        """Once everything is read."""
        return None if self._open else self._response

    def expired(self, now_ms: int) -> Flat:
        """With REQUEST_TIMED_OUT for what is not read yet."""
        for search in self._open.values():
            search.refuse(ErrorCode.REQUEST_TIMED_OUT)
        self._open.clear()
        return self._response

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A stretch has been read."""
        search = self._open.pop(job, None)
        if search is None:  # too late
            return
        if error is not None:
            search.refuse(self._broker.replicas.storage_error(search.partition, error).code)
        elif not isinstance(job, TimeScan):
            self._scan_next(search)
        elif job.error is not None:
            search.refuse(job.error.code)
        elif job.found is None:
            self._scan_next(search)
        else:
            self._conclude(search, job.found)
        if not self._open:
            self._broker.tell(Touched([self]))

    def _scan_next(self, search: _Search) -> None:
        try:
            scan = search.search.next_scan()
        except OSError as error:
            search.refuse(self._broker.replicas.storage_error(search.partition, error).code)
            return
        if scan is None:
            self._conclude(search, None)
        else:
            self._give(scan, search)

    def _give(self, job: Job, search: _Search) -> None:
        self._open[job] = search
        if isinstance(job, TimeScan):  # of which the last batch is opened
            self._broker.decompression.add(self._address, job, self)
        else:
            self._broker.give(job, self)

    def _conclude(self, search: _Search, found: Found | None) -> None:
        try:
            if found is not None and found.offset < search.partition.led().log_start_offset:
                self._scan_next(search._replace(search=search.search.again()))  # it was deleted meanwhile
            else:
                search.conclude(found)
        except KafkaError as error:  # it is led by another broker now
            search.refuse(error.code)


def offset_for_leader_epoch(request: OffsetForLeaderEpochRequest, call: Call) -> InSlices:
    """Where a leader epoch ended, so that a client or follower finds where its log and ours part (KIP-101, KIP-320)."""
    topics = []
    for topic in request.topics:
        ends = []
        for asked in topic.partitions:
            ends.append(_end_of_epoch(call, topic.topic, asked))
            yield
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends))
    return OffsetForLeaderEpochResponse(topics=topics)


def _end_of_epoch(call: Call, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = call.broker.replicas.find(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
        end = partition.led().last_offset_of_epoch(asked.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    return EpochEndOffset(error_code=0, partition=asked.partition, leader_epoch=end.epoch, end_offset=end.end_offset)


def delete_records(request: DeleteRecordsRequest, call: Call) -> InSlices:
    """Move log start offsets up; answered once the followers have done so, as far as they live, or when time is up."""
    topics, waiting = [], []
    for topic in request.topics:
        results = []
        for asked in topic.partitions:
            yield
            result = DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=UNKNOWN, error_code=ErrorCode.NONE
            )
            results.append(result)
            try:
                partition, before = _delete_before(call, topic.name, asked.partition_index, asked.offset)
            except KafkaError as error:
                result.error_code = error.code
            else:
                waiting.append(_Deletion(result, partition, before))
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    deadline_ms = call.now_ms + max(request.timeout_ms, 0)
    delayed = DelayedDelete(DeleteRecordsResponse(topics=topics), waiting, deadline_ms)
    return delayed.answer(call.now_ms) or delayed


def _delete_before(call: Call, topic: str, index: int, offset: int) -> tuple[Partition, int]:
    """Do so on this replica, the leader. Returns: where all have to start. Raises: KafkaError."""
    partition = call.broker.replicas.find(topic, index)
    if partition.is_internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal")
    log = partition.led()
    if not log.config.delete:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{topic} is only compacted: its records are not deleted by offset"
        )
    before = log.high_watermark if offset == -1 else offset
    partition.delete_records(offset)
    call.broker.replicas.touched.append(partition)
    return partition, before


class _Deletion(NamedTuple):
    """Of one partition, which is to start at `before` everywhere."""

    result: DeleteRecordsPartitionResult
    partition: Partition
    before: int

    def is_over(self) -> bool:
        """Whether it does, or it is led elsewhere now; the result says what is known."""
        try:
            self.result.low_watermark = self.partition.low_watermark()
        except KafkaError as error:
            self.result.low_watermark, self.result.error_code = UNKNOWN, error.code
            return True
        return self.result.low_watermark >= self.before


class DelayedDelete:
    """A DeleteRecords whose partitions do not all start where they are to."""

    __slots__ = ("_response", "_waiting", "deadline_ms", "keys")

    def __init__(self, response: DeleteRecordsResponse, waiting: list[_Deletion], deadline_ms: int) -> None:
        self._response = response
        self._waiting = waiting
        self.deadline_ms = deadline_ms
        self.keys: Sequence[Hashable] = [each.partition for each in waiting]

    def answer(self, now_ms: int) -> DeleteRecordsResponse | None:
        """The response once they do."""
        self._waiting = [each for each in self._waiting if not each.is_over()]
        return None if self._waiting else self._response

    def expired(self, now_ms: int) -> DeleteRecordsResponse:
        """The response at the deadline."""
        self.answer(now_ms)
        for each in self._waiting:
            each.result.error_code = ErrorCode.REQUEST_TIMED_OUT
        return self._response


def _refuse_list(request: Flat, code: ErrorCode, text: str, version: int) -> Flat:
    _replica_id, _isolation_level, topics, _timeout_ms = request
    failed = [(name, [_failed(asked[INDEX], code) for asked in partitions]) for name, partitions in topics]
    return 0, failed


def _refuse_epochs(
    request: OffsetForLeaderEpochRequest, code: ErrorCode, text: str, version: int
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[EpochEndOffset(error_code=code, partition=asked.partition) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _refuse_delete(request: DeleteRecordsRequest, code: ErrorCode, text: str, version: int) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=asked.partition_index, low_watermark=UNKNOWN, error_code=code
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


TOPIC = ResourceType.TOPIC
ASKED, ANSWERED = place(ListOffsetsRequest, "topics"), place(ListOffsetsResponse, "topics")
NAME = place(ListOffsetsTopic, "name")
NEEDS_TO_LIST = (for_each(Operation.DESCRIBE, TOPIC, ASKED, ANSWERED, lambda topic, call: str(topic[NAME])),)
NEEDS_TO_DELETE = (for_each(Operation.DELETE, TOPIC, "topics", "topics", topic_name),)
NEEDS_FOR_EPOCHS = (
    for_each(
        Operation.DESCRIBE,
        TOPIC,
        "topics",
        "topics",
        lambda topic, call: topic.topic,
        unless=(Operation.CLUSTER_ACTION,),
    ),
)
MANY = ELEMENTS_PER_REQUEST
ROUTES = (
    Route(
        2,
        ListOffsetsRequest,
        0,
        11,
        list_offsets,
        _refuse_list,
        NEEDS_TO_LIST,
        flat=ListOffsetsResponse,
        elements=MANY,
    ),
    Route(21, DeleteRecordsRequest, 0, 2, delete_records, _refuse_delete, NEEDS_TO_DELETE, elements=MANY),
    Route(
        23,
        OffsetForLeaderEpochRequest,
        0,
        4,
        offset_for_leader_epoch,
        _refuse_epochs,
        NEEDS_FOR_EPOCHS,
        elements=MANY,
    ),
)
