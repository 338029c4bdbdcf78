"""Produce: append batches; answer when acks says so.

Served: Produce 0-13. Up to v2 it may bring message sets of formats 0 and 1, which become a v2 batch. Each partition
succeeds or fails by itself. acks=1 is answered at once; acks=all when the high watermark has passed the batch, or
with REQUEST_TIMED_OUT at the request's timeout, the batch staying in the log; acks=0 never, but the connection is
closed if an append failed, for that is all the client can be told. A batch that flush.messages wants on the disk is
answered, and shown to consumers, once it is durable: the fsync runs beside the loop, and covers all that was appended
until it began, so nobody waits for more than two of them.

What is not in the topic's format or codec is made anew before it is appended (`log/prepare.py`), beside the loop unless
it is small; the connection's next requests wait for that, so that the order of its records stays.

A batch that is refused for some of its records names them (KIP-467): 10,000 a request, and the first of each batch.

A transactional batch that begins a transaction here is verified with the transaction's coordinator first (KIP-890),
unless transaction.partition.verification.enable is off.

Unlike Kafka: a transactional batch without a transactional id costs its own partition's part of the request and not all
of it; a compressed batch has at most a million records and becomes at most 128 MB, else it is MESSAGE_TOO_LARGE; a
request over 1 MB names at most 100,000 partitions, else the connection is closed (`produce_bounds.py`). A partition
named twice gets both batches; Kafka keeps one of them. No records at all (null) are INVALID_RECORD, compression that
nobody knows is UNSUPPORTED_COMPRESSION_TYPE, and what cannot be decompressed CORRUPT_MESSAGE; Kafka says nothing to the
first and UNKNOWN_SERVER_ERROR to the others. A batch sent again is told its append time only where the log gives such
times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.call import FIRST, HANGUP, SILENCE
from kbroker.api.routes import Route
from kbroker.api.verification import verify
from kbroker.broker.facts import Reply
from kbroker.config.limits import LONGEST_FSYNC_MS, NAMED_RECORDS
from kbroker.log.append import LOW_ATTRIBUTES_AT, UnpreparedError
from kbroker.log.errors import RefusedRecordsError
from kbroker.log.prepare import is_small, prepare
from kbroker.log.producers import Origin
from kbroker.replica.partition import ALL_REPLICAS
from kbroker.txn import Producer
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from protocol.records import RecordError
from protocol.records.batch import CODEC_MASK, HEADER_SIZE, MAGIC, MAGIC_AT, TRANSACTIONAL, unpack_header

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from kbroker.api.call import Call, Result
    from kbroker.broker.jobs import Job
    from kbroker.replica import Partition
    from protocol.messages.produce import PartitionProduceData, TopicProduceData

TOPIC_IDS_SINCE = 13
KNOWS_ABORTABLE_SINCE = 11
ZSTD_SINCE, ZSTD = 7, 4  # KIP-110
BATCHES_SINCE = 3
_SPECIAL = TRANSACTIONAL | ZSTD  # bits that `_check_special` looks into
_CLIENT, _PREPARED = Origin.CLIENT, Origin.PREPARED  # looked up once
_ASK_AGAIN = frozenset(  # of a coordinator; old clients only repeat a produce for what they know from produces
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_SAY_NO_LOG_START = frozenset(  # in Kafka, too: nothing here, or nothing that any log would take
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
# by position: index, error_code, base_offset, log_append_time_ms, log_start_offset, in two thirds of the time
_answered: Callable[[int, int, int, int, int], PartitionProduceResponse] = PartitionProduceResponse  # type: ignore[assignment]
ADMIN_CLIENT = "__admin_client"  # the client id by which Kafka, too, lets a client write to internal topics


def produce(request: ProduceRequest, call: Call) -> Result:
    """Append every partition's batch; answer when acks says so."""
    if request.acks not in (0, 1, -1):
        return _refuse(request, ErrorCode.INVALID_REQUIRED_ACKS, "")
    wall_ms = call.broker.clock.wall_ms()
    appended: list[tuple[Partition, int, PartitionProduceResponse]] = []
    topics: list[TopicProduceResponse] = []
    failed = False
    unprepared: list[Unprepared]
    nameable, unprepared = NAMED_RECORDS, []
    for topic in request.topic_data:
        name = topic.name if call.version < TOPIC_IDS_SINCE else _name_of(topic, call)
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            try:
                answers.append(_append(call, name, data, request, appended, wall_ms))
            except KafkaError as error:
                if isinstance(error, UnpreparedError) and (call.version < BATCHES_SINCE or not error.is_old):
                    unprepared.append(Unprepared(name, data, answers, call))
                else:
                    failed = call.has_errors = True
                answers.append(_failure(data.index, error, _log_start(call, name, data.index), nameable))
                nameable -= len(answers[-1].record_errors)
        topics.append(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
    if unprepared:
        return Preparing(call, request, topics, appended, unprepared, failed=failed).start()
    if request.acks == 0:
        return HANGUP if failed else SILENCE
    response = ProduceResponse(responses=topics)
    if request.acks == 1 and not appended:
        return response
    waiting = DelayedProduce(response, appended, request, call)
    return waiting.answer(call.now_ms) or waiting.also_for_fsync()


def _name_of(topic: TopicProduceData, call: Call) -> str | None:
    """The name of the topic with this id; None if there is none, or if its name is by now another topic's."""
    name = call.broker.plane.cache.topic_name(topic.topic_id)
    if name is not None:
        for data in topic.partition_data:
            partition = call.broker.replicas.partitions.get((name, data.index))
            if partition is not None and partition.is_of_another(topic.topic_id):
                return None
    return name


def _append(
    call: Call,
    topic: str | None,
    data: PartitionProduceData,
    request: ProduceRequest,
    appended: list[tuple[Partition, int, PartitionProduceResponse]],
    wall_ms: int,
    origin: Origin = _CLIENT,
) -> PartitionProduceResponse:
    """One partition's batch into its log. Raises: KafkaError."""
    replicas = call.broker.replicas
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = replicas.partitions.get((topic, data.index)) or replicas.find(topic, data.index)  # which says why not
    if partition.is_internal and call.client_id != ADMIN_CLIENT:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal: only coordinators write to it")
    records: memoryview | None = data.records  # type: ignore[assignment]  # decoding yields views
    if records is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no records")
    acks = request.acks
    if len(records) > LOW_ATTRIBUTES_AT and records[LOW_ATTRIBUTES_AT] & _SPECIAL and records[MAGIC_AT] == MAGIC:
        _check_special(call, partition, records, request.transactional_id)
    plan = replicas.append(partition, records, acks, origin, wall_ms)
    log = partition.log
    assert log is not None, partition
    answer = _answered(data.index, 0, plan.first_offset, plan.append_time_ms, log.log_start_offset)
    if acks == ALL_REPLICAS or (log.flush_wanted > log.recovery_point and plan.last_offset < log.flush_wanted):
        appended.append((partition, plan.last_offset + 1, answer))
    return answer


def _check_special(call: Call, partition: Partition, records: memoryview, transactional_id: str | None) -> None:
    """What a batch may be depends on the request that brings it. Raises: KafkaError."""
    attributes = records[LOW_ATTRIBUTES_AT]
    if call.version < ZSTD_SINCE and attributes & CODEC_MASK == ZSTD:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {ZSTD_SINCE} or newer")
    if attributes & TRANSACTIONAL and len(records) >= HEADER_SIZE:  # a shorter one is refused by the log
        _check_transaction(call, partition, records, transactional_id)


def _check_transaction(call: Call, partition: Partition, records: memoryview, transactional_id: str | None) -> None:
    """Whether a batch goes on with its producer's transaction, or begins it here with its coordinator's knowledge.

    A transaction that only the partition knew of would never end (KIP-890).
    """
    if transactional_id is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch, and no id of it")
    header = unpack_header(records, 0)
    producer, log = Producer(header[9], header[10]), partition.log
    if log is not None and log.producers.is_in_transaction(*producer):
        return
    knows_abortable = call.version >= KNOWS_ABORTABLE_SINCE
    where = partition.topic, partition.index
    code = verify(call, transactional_id, producer, where, knows_abortable=knows_abortable)
    if code is not ErrorCode.NONE:
        code = ErrorCode.NOT_ENOUGH_REPLICAS if code in _ASK_AGAIN else code
        raise KafkaError(code, f"{transactional_id} of {producer} may not write to {where[0]}-{where[1]} now")


class Unprepared:
    """Records of one partition that have to be made anew, and the place of their answer."""

    __slots__ = ("_answers", "_at", "_config", "_error", "_partition", "_wall_ms", "data", "is_small", "topic")

    def __init__(
        self, topic: str | None, data: PartitionProduceData, answers: list[PartitionProduceResponse], call: Call
    ) -> None:
        """answers: of the topic, this one's comes next."""
        partition = call.broker.replicas.partitions[topic or "", data.index]
        assert partition.log is not None, partition
        self.topic = topic
        self.data = data
        self.is_small = is_small(data.records)  # type: ignore[arg-type]  # decoding yields views
        self._answers = answers
        self._at = len(answers)
        self._partition = partition
        self._config = partition.log.config
        self._wall_ms = call.broker.clock.wall_ms()
        self._error: KafkaError | None = None

    def own(self) -> None:
        """Take the records out of the receive buffer, which others use now."""
        self.data.records = memoryview(bytearray(self.data.records))  # type: ignore[arg-type]

    def prepare(self) -> None:
        """Make them anew, on any thread."""
        try:
            records = prepare(self.data.records, self._config, self._wall_ms)  # type: ignore[arg-type]
            self.data.records = records
        except KafkaError as error:
            self._error = error

    def append(
        self, call: Call, request: ProduceRequest, appended: list[tuple[Partition, int, PartitionProduceResponse]]
    ) -> bool:
        """Into the log with what came out; whether that went well."""
        try:
            self._answers[self._at] = self._append(call, request, appended)
        except KafkaError as error:
            call.has_errors = True
            self._answers[self._at] = _failure(self.data.index, error, _log_start(call, self.topic, self.data.index))
            return False
        return True

    def _append(
        self, call: Call, request: ProduceRequest, appended: list[tuple[Partition, int, PartitionProduceResponse]]
    ) -> PartitionProduceResponse:
        if self._error is not None:
            raise self._error
        log, index = self._partition.log, self.data.index
        if call.broker.replicas.partitions.get((self.topic or "", index)) is not self._partition or log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the replica has gone while its records were prepared")
        if log.config is not self._config:  # the topic's settings have changed meanwhile
            self._config = log.config
            self.prepare()
            return self._append(call, request, appended)
        if not self.data.records:  # no whole message in them
            return _answered(index, 0, -1, -1, log.log_start_offset)
        return _append(call, self.topic, self.data, request, appended, call.broker.clock.wall_ms(), _PREPARED)


class Preparing:
    """A Produce some of whose records are made anew first: a job for the pool, and what goes on after it."""

    __slots__ = ("_appended", "_call", "_failed", "_request", "_topics", "_unprepared")

    def __init__(
        self,
        call: Call,
        request: ProduceRequest,
        topics: list[TopicProduceResponse],
        appended: list[tuple[Partition, int, PartitionProduceResponse]],
        unprepared: list[Unprepared],
        *,
        failed: bool,
    ) -> None:
        self._call = call
        self._request = request
        self._topics = topics
        self._appended = appended
        self._unprepared = unprepared
        self._failed = failed

    def start(self) -> Result:
        """Prepare here what is small; else give the job."""
        if all(each.is_small for each in self._unprepared):
            self.run()
            return self._go_on(self._call.now_ms)
        for each in self._unprepared:
            each.own()
        self._call.broker.give(self, self)
        return FIRST

    def run(self) -> None:
        """On any thread."""
        for each in self._unprepared:
            each.prepare()

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """The job has ended."""
        assert error is None, error
        self._call.broker.tell(Reply(self._call.ticket, self._go_on(now_ms)))

    def _go_on(self, now_ms: int) -> Result:
        acks, appended = self._request.acks, self._appended
        for each in self._unprepared:
            self._failed |= not each.append(self._call, self._request, appended)
        if acks == 0:
            return HANGUP if self._failed else SILENCE
        response = ProduceResponse(responses=self._topics)
        if acks == 1 and not appended:
            return response
        waiting = DelayedProduce(response, appended, self._request, self._call)
        return waiting.answer(now_ms) or waiting.also_for_fsync()


class DelayedProduce:
    """A Produce whose batches are written here, and not yet durable, or, with acks=all, not yet by all in sync."""

    __slots__ = ("_acks", "_appended", "_call", "_response", "deadline_ms")

    def __init__(
        self,
        response: ProduceResponse,
        appended: list[tuple[Partition, int, PartitionProduceResponse]],
        request: ProduceRequest,
        call: Call,
    ) -> None:
        """appended: partition, where its batch ends, and its part of the response."""
        self._response = response
        self._appended = appended
        self._acks, self._call = request.acks, call
        self.deadline_ms = call.now_ms + request.timeout_ms

    def also_for_fsync(self) -> DelayedProduce:
        """Allow for the fsync that it waits for, if it does."""
        if any(partition.log and partition.log.awaits_flush for partition, _, _ in self._appended):
            self.deadline_ms += LONGEST_FSYNC_MS
        return self

    @property
    def keys(self) -> Sequence[Hashable]:
        """The partitions that still wait."""
        return [partition for partition, _, _ in self._appended]

    def answer(self, now_ms: int) -> ProduceResponse | None:
        """The response once no partition waits any more: its batch is safe, or we stopped being its leader."""
        self._appended = [
            (partition, end_offset, answer)
            for partition, end_offset, answer in self._appended
            if not self._is_certain(partition, end_offset, answer)
        ]
        return None if self._appended else self._response

    def expired(self, now_ms: int) -> ProduceResponse:
        """The response at the deadline: what still waits has timed out."""
        for _, _, answer in self._appended:
            self._fail(answer, ErrorCode.REQUEST_TIMED_OUT)
        return self._response

    def _is_certain(self, partition: Partition, end_offset: int, answer: PartitionProduceResponse) -> bool:
        """Whether a batch's outcome is known; if it is a bad one, `answer` says so from now on."""
        log = partition.log
        if log is None:
            self._fail(answer, ErrorCode.KAFKA_STORAGE_ERROR)
        elif not partition.is_leader:
            self._fail(answer, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._acks != ALL_REPLICAS:
            return log.recovery_point >= end_offset
        elif log.high_watermark < end_offset:
            return False
        elif partition.is_under_min_isr:
            self._fail(answer, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return True

    def _fail(self, answer: PartitionProduceResponse, code: ErrorCode) -> None:
        self._call.has_errors = True
        answer.error_code = code
        answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1


def _log_start(call: Call, topic: str | None, index: int) -> int:
    """Where the log begins that a batch was meant for, -1 if there is none."""
    partition = call.broker.replicas.partitions.get((topic or "", index))
    return partition.log.log_start_offset if partition is not None and partition.log is not None else -1


def _failure(index: int, error: KafkaError, log_start_offset: int = -1, nameable: int = 1) -> PartitionProduceResponse:
    """nameable: how many of its records are named at most; the first always is."""
    code = error.code
    if code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:  # so the log says, which may know older requests
        code = ErrorCode.INVALID_RECORD
    answer = PartitionProduceResponse(index=index, error_code=code, base_offset=-1, error_message=error.message)
    if code not in _SAY_NO_LOG_START:
        answer.log_start_offset = log_start_offset
    if isinstance(error, RefusedRecordsError):
        answer.record_errors = [_named(at, why) for at, why in error.records[: max(nameable, 1)]]
    elif isinstance(error, RecordError) and error.index is not None:
        answer.record_errors = [_named(error.index, error.reason)]
    return answer


def _named(batch_index: int, why: str) -> BatchIndexAndErrorMessage:
    return BatchIndexAndErrorMessage(batch_index=batch_index, batch_index_error_message=why)


def _refuse(request: ProduceRequest, code: ErrorCode, text: str) -> Result:
    if request.acks == 0:
        return HANGUP
    error = KafkaError(code, text or None)
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[_failure(data.index, error) for data in topic.partition_data],
            )
            for topic in request.topic_data
        ]
    )


ROUTES = (Route(0, ProduceRequest, 0, 13, produce, _refuse),)
