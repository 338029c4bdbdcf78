"""Produce: append batches; answer when acks says so.

Served: Produce 0-13. Up to v2 it may bring message sets of formats 0 and 1, which become a v2 batch. Each partition
succeeds or fails by itself. acks=1 is answered at once; acks=all when the high watermark has passed the batch, or
with REQUEST_TIMED_OUT at the request's timeout, the batch staying in the log; acks=0 never, but the connection is
closed if an append failed, for that is all the client can be told. A batch that flush.messages wants on the disk is
answered, and shown to consumers, once it is durable: the fsync runs beside the loop, and covers all that was appended
until it began, so no producer waits for more than two of them.

What is not in the topic's format or codec is rebuilt before it is appended (`log/prepare.py`), beside the loop unless
it is small; the connection's next requests wait for that, so that the order of its records stays. So are batches looked
at that decompress to more than 4 MB together. A request of many partitions or bytes is handled in slices.

A batch that is refused for some of its records names them (KIP-467): 10,000 a request, and the first of each batch.
From version 10 on, a partition that is led elsewhere names its leader (`leaders.py`).

A transactional batch that begins a transaction here is verified with the transaction's coordinator first (KIP-890),
unless transaction.partition.verification.enable is off; from version 12 on it is added to the transaction by that.
Where the coordinator is another broker, the request and those behind it on the connection wait for its answer.

Unlike Kafka: a transactional batch without a transactional id costs its own partition's part of the request and not all
of it; a compressed batch has at most a million records and becomes at most 128 MB, and so do all of a request together
beyond 16 times their size, else it is MESSAGE_TOO_LARGE; a request over 128 KB names at most 20,000 topics and
partitions, else the connection is closed (`produce_bounds.py`). A partition named twice gets both batches; Kafka keeps
one of them. No records at all (null) are INVALID_RECORD, an unknown codec is UNSUPPORTED_COMPRESSION_TYPE,
and what cannot be decompressed CORRUPT_MESSAGE; Kafka says nothing to the first and UNKNOWN_SERVER_ERROR to the others.
A batch sent again is told its append time only where the log gives such times. An error's text says why, unless it is
NOT_LEADER_OR_FOLLOWER's; Kafka has one for refused records and for what a transaction's coordinator says alone.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from kbroker.api.authorization import NAMES_AT_ONCE, Known, Whole, for_each
from kbroker.api.call import FIRST, HANGUP, SILENCE
from kbroker.api.leaders import current_leader
from kbroker.api.routes import Route
from kbroker.api.transaction_verification import ASK_AGAIN, ask, asks_elsewhere, verify
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.facts import Reply
from kbroker.config.limits import LONGEST_FSYNC_MS, NAMED_RECORDS, PARTITIONS_PER_PRODUCE
from kbroker.log.append import LOW_ATTRIBUTES_AT, UnpreparedError
from kbroker.log.errors import RefusedRecordsError
from kbroker.log.prepare import COPIED_BYTES, Opened, is_small, prepare
from kbroker.log.producer_state import Origin
from kbroker.replica.partition import ALL_REPLICAS, Partition
from kbroker.txn import Producer
from protocol.errors import ErrorCode, KafkaError
from protocol.flat import default_tuple, place
from protocol.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.records import RecordError
from protocol.records.batch import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    CODEC_MASK,
    HEADER_SIZE,
    MAGIC,
    MAGIC_AT,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
    unpack_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kbroker.api.call import Answer, Call, InSlices, Result, Signal, Waiting
    from kbroker.broker.jobs import Job
    from kbroker.log.append import AppendPlan, Opener
    from kbroker.log.log import Log
    from protocol.flat import Flat

TOPIC_IDS_SINCE = 13
KNOWS_ABORTABLE_SINCE = 11
ADDS_PARTITIONS_SINCE = 12  # to the transaction (KIP-890)
NAMES_LEADERS_SINCE = 10  # KIP-951
ZSTD_SINCE, ZSTD = 7, 4  # KIP-110
BATCHES_SINCE = 3
_SPECIAL = TRANSACTIONAL | ZSTD  # bits that `_check_special` looks into
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
NO_LEADER = default_tuple(LeaderIdAndEpoch)
RECORD_ERRORS = place(PartitionProduceResponse, "record_errors")
# A batch that was written, where it ends, and the place of its part of the answer: a list, and an index into it.
Appended: TypeAlias = "list[tuple[Partition, int, list[Flat], int]]"
Put: TypeAlias = "Callable[[Partition, memoryview, int, int, Opener], int | AppendPlan]"
ADMIN_CLIENT = "__admin_client"  # the client id by which Kafka, too, lets a client write to internal topics


class UnverifiedError(KafkaError):
    """A batch that its transaction's coordinator does not know of; no log has seen it."""


def produce(request: Flat, call: Call) -> Result:
    """Append every partition's batch; answer when acks says so. request: the fields of ProduceRequest."""
    transactional_id, acks, _timeout_ms, topic_data = request
    if acks not in (0, 1, -1):
        return _refuse(request, ErrorCode.INVALID_REQUIRED_ACKS, "", call.version)
    if transactional_id is not None and call.verified is None and _waits_for_coordinator(request, call):
        return FIRST
    writing = Writing(request, call)
    if call.is_large:
        return _in_slices(topic_data, writing)
    topics = writing.topics
    for topic, topic_id, partition_data in topic_data:
        name = topic if call.version < TOPIC_IDS_SINCE else _name_of(topic_id, partition_data, call)
        answers: list[Flat] = []
        writing.append(name, partition_data, answers)
        topics.append((topic, topic_id, answers))
    if acks and not writing.appended and not writing.unprepared:  # as nearly always with acks=1: all is written
        return topics, 0, writing.nodes
    return writing.conclude(call.now_ms)


def _in_slices(topic_data: list[Flat], writing: Writing) -> InSlices:
    """`produce` of many partitions or bytes: one partition after the other."""
    call = writing.call
    for topic, topic_id, partition_data in topic_data:
        answers: list[Flat] = []
        writing.topics.append((topic, topic_id, answers))
        for each in partition_data:
            name = topic if call.version < TOPIC_IDS_SINCE else _name_of(topic_id, [each], call)
            writing.append(name, (each,), answers)
            yield
    return writing.conclude(call.now_ms)


class Writing:
    """A request on its way into the logs: what it asks for, and what has come of it so far.

    topics: the answer. appended: what was written, and has to be waited for. unprepared: batches that have to be
    rebuilt first. failures: for each batch that failed, how many records had been named as refused by then. nodes: the
    addresses of leaders that are named.
    """

    __slots__ = (
        *("acks", "timeout_ms", "transactional_id"),
        *("appended", "call", "failures", "nodes", "topics", "unprepared"),
    )

    topics: list[Flat]
    appended: Appended
    unprepared: list[Unprepared]
    failures: list[int]
    nodes: list[Flat]

    def __init__(self, request: Flat, call: Call) -> None:
        self.transactional_id, self.acks, self.timeout_ms, _topic_data = request
        self.call, self.topics, self.appended = call, [], []
        self.unprepared, self.failures, self.nodes = [], [], []

    def append(
        self,
        name: str | None,
        partition_data: Sequence[Flat],
        answers: list[Flat],
        put: Put = Partition.append_from_client,
    ) -> None:
        """Append batches of one topic: the only way into a log from a client. answers: what is added to."""
        call, acks = self.call, self.acks
        replicas, wall_ms = call.broker.replicas, call.broker.clock.wall_ms()
        here, touched = replicas.by_topic.get(name or "", {}), replicas.touched
        for index, records in partition_data:
            try:
                partition = here.get(index) or _find(call, name, index)
                if (
                    partition.is_internal
                    or records is None
                    or len(records) < HEADER_SIZE
                    or records[LOW_ATTRIBUTES_AT] & _SPECIAL
                ):
                    _check_special(call, partition, records, self.transactional_id, is_prepared=put is _put_prepared)
                written = put(partition, records, acks, wall_ms, call)
                touched.append(partition)
                log = partition.log
                assert log is not None, partition
                if isinstance(written, int):
                    if acks == ALL_REPLICAS:
                        self.appended.append((partition, log.log_end_offset, answers, len(answers)))
                    answers.append((index, 0, written, -1, log.log_start_offset, (), None, NO_LEADER))
                    continue
                replicas.flush_if_wanted(partition, written)
                first_offset, end_offset = written.first_offset, written.last_offset + 1
                if acks == ALL_REPLICAS or log.recovery_point < log.flush_wanted >= end_offset:
                    self.appended.append((partition, end_offset, answers, len(answers)))
                at_ms = written.append_time_ms
                answers.append((index, 0, first_offset, at_ms, log.log_start_offset, (), None, NO_LEADER))
            except (KafkaError, OSError) as reason:
                error = reason if isinstance(reason, KafkaError) else replicas.storage_error(partition, reason)
                if isinstance(error, UnpreparedError) and (call.version < BATCHES_SINCE or not error.is_old):
                    self.unprepared.append(Unprepared(partition, records, answers, call))
                    answers.append(_failure(index, error))  # until then
                else:
                    self.fail(name, index, error, answers)
                del error  # it knows this frame, and so would stay with it

    def fail(self, name: str | None, index: int, error: KafkaError, answers: list[Flat]) -> None:
        """Answer that one partition's batch is refused."""
        self.call.has_errors = True
        named = self.failures[-1] if self.failures else 0
        leader, log_start = _leader(self.call, error.code, name, index, self.nodes), _log_start(self.call, name, index)
        answer = _failure(index, error, log_start, NAMED_RECORDS - named, leader)
        answers.append(answer)
        self.failures.append(named + len(answer[RECORD_ERRORS]))

    def conclude(self, now_ms: int) -> Answer | Waiting | Signal:
        """What follows once all is appended that could be at once."""
        if self.unprepared:
            return Preparing(self).start()
        if self.acks == 0:
            return HANGUP if self.failures else SILENCE
        response: Flat = (self.topics, 0, self.nodes)
        if not self.appended:
            return response
        waiting = DelayedProduce(response, self.appended, self.acks, self.timeout_ms, self.call)
        return waiting.answer(now_ms) or waiting.also_for_fsync()


def _waits_for_coordinator(request: Flat, call: Call) -> bool:
    """Have partitions added or verified where this broker cannot by itself; whether the request waits for that."""
    transactional_id, acks, timeout_ms, topic_data = request
    adds = call.version >= ADDS_PARTITIONS_SINCE
    if not asks_elsewhere(call, transactional_id, adds=adds):
        return False
    wanted: list[tuple[Producer, tuple[str, int], Log | None, int]] = []
    for topic, topic_id, partition_data in topic_data:
        name = topic if call.version < TOPIC_IDS_SINCE else _name_of(topic_id, partition_data, call)
        for index, records in partition_data:
            partition = call.broker.replicas.partitions.get((name or "", index))
            begins = _begins(records, partition)
            if partition is not None and begins is not None:
                producer, sequence = begins
                wanted.append((producer, (partition.topic, index), partition.log, sequence))
    kept: list[Flat] = []

    def produce_verified() -> None:
        again: Flat = (transactional_id, acks, timeout_ms, kept)
        call.broker.tell(Reply(call.ticket, produce(again, call)))

    if not wanted or ask(call, transactional_id, wanted, produce_verified, adds=adds):
        return False
    for topic, topic_id, partition_data in topic_data:
        own = [(index, records and _owned(call, records)) for index, records in partition_data]
        kept.append((topic, topic_id, own))
    return True


def _owned(call: Call, records: memoryview) -> memoryview:
    """Records out of the receive buffer, which others use now; a large request has its own memory."""
    return records if call.is_large else memoryview(bytearray(records))


def _begins(records: memoryview | None, partition: Partition | None) -> tuple[Producer, int] | None:
    """The producer whose transaction these records would begin in a partition led here, and their first sequence."""
    log = None if partition is None or not partition.is_leader else partition.log
    if log is None or records is None or len(records) < HEADER_SIZE or records[MAGIC_AT] != MAGIC:
        return None
    header = unpack_header(records, 0)
    producer = Producer(header[PRODUCER_ID], header[PRODUCER_EPOCH])
    is_first = header[ATTRIBUTES] & TRANSACTIONAL and not log.producers.is_in_transaction(*producer)
    return (producer, header[BASE_SEQUENCE]) if is_first else None


def _name_of(topic_id: bytes, partition_data: list[Flat], call: Call) -> str | None:
    """The name of the topic with this id; None if there is none, or if its name is by now another topic's."""
    name = call.broker.plane.cache.topic_name(topic_id)
    if name is not None:
        for index, _ in partition_data:
            partition = call.broker.replicas.partitions.get((name, index))
            if partition is not None and partition.is_of_another(topic_id):
                return None
    return name


def _find(call: Call, topic: str | None, index: int) -> Partition:
    """The replica of a partition that is not in the map, looked up for the reason. Raises: KafkaError."""
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    return call.broker.replicas.find(topic, index)


def _check_special(
    call: Call, partition: Partition, records: memoryview | None, transactional_id: str | None, *, is_prepared: bool
) -> None:
    """Who may write to an internal topic, and what a batch may be in the request that brings it. Raises: KafkaError.

    is_prepared: of one that was rebuilt, only its transaction is asked about again, for that may have ended meanwhile.
    """
    if partition.is_internal and call.client_id != ADMIN_CLIENT:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.topic} is internal: only coordinators write to it"
        )
    if records is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no records")
    if len(records) <= LOW_ATTRIBUTES_AT and call.version < BATCHES_SINCE and not is_prepared:
        partition.led()
        raise UnpreparedError(is_old=True)  # no whole message, which is no fault in a set
    if len(records) <= LOW_ATTRIBUTES_AT or records[MAGIC_AT] != MAGIC:
        return
    attributes = records[LOW_ATTRIBUTES_AT]
    if call.version < ZSTD_SINCE and attributes & CODEC_MASK == ZSTD and not is_prepared:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {ZSTD_SINCE} or newer")
    if attributes & TRANSACTIONAL and len(records) >= HEADER_SIZE:  # a shorter one is refused by the log
        _check_transaction(call, partition, records, transactional_id)


def _check_transaction(call: Call, partition: Partition, records: memoryview, transactional_id: str | None) -> None:
    """Whether a batch goes on with its producer's transaction, or begins it here with its coordinator's knowledge.

    A transaction that only the partition knew of would never end (KIP-890). Who leads the partition is asked first: of
    one that is led elsewhere nothing is added to the transaction, and its coordinator knows nothing.
    """
    if transactional_id is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch, and no id of it")
    header = unpack_header(records, 0)
    producer, log = Producer(header[PRODUCER_ID], header[PRODUCER_EPOCH]), partition.led()
    if log.producers.is_in_transaction(*producer):
        return
    knows_abortable = call.version >= KNOWS_ABORTABLE_SINCE
    where = partition.topic, partition.index
    adds = call.version >= ADDS_PARTITIONS_SINCE
    if adds or call.broker.config.transaction_partition_verification_enable:
        log.producers.expect(*producer, header[BASE_SEQUENCE], call.broker.clock.wall_ms(), second_protocol=adds)
    code = verify(call, transactional_id, producer, where, log, knows_abortable=knows_abortable)
    if code is not ErrorCode.NONE:
        code = ErrorCode.NOT_ENOUGH_REPLICAS if code in ASK_AGAIN else code
        raise UnverifiedError(
            code, f"{transactional_id} of {producer} may not write to {partition.topic}-{partition.index} now"
        )


def _put_prepared(partition: Partition, records: memoryview, acks: int, wall_ms: int, opener: Opener) -> AppendPlan:
    """Append what has been rebuilt."""
    return partition.append(records, acks, wall_ms, Origin.PREPARED)


class Unprepared:
    """Records of one partition that have to be rebuilt, and the place of their answer."""

    __slots__ = ("_answers", "_at", "_config", "_error", "_partition", "_records", "_wall_ms", "small_bytes")

    def __init__(self, partition: Partition, records: memoryview, answers: list[Flat], call: Call) -> None:
        """answers: of the topic, this one's comes next. small_bytes: beyond any limit if they are not small."""
        assert partition.log is not None, partition
        self._records = records
        self._answers = answers
        self._at = len(answers)
        self._partition = partition
        self._config = partition.log.config
        self.small_bytes = len(records) if is_small(records, self._config) else COPIED_BYTES + 1
        self._wall_ms = call.broker.clock.wall_ms()
        self._error: KafkaError | None = None

    def own(self, call: Call) -> None:
        """Take the records out of the receive buffer."""
        self._records = _owned(call, self._records)

    def prepare(self, opened: Opened) -> None:
        """Rebuild them, on any thread. opened: by others of the request."""
        try:
            self._records = prepare(self._records, self._config, self._wall_ms, opened)
        except KafkaError as error:
            error.__context__ = None  # nor its own traceback: what was decompressed would stay with them, in a cycle
            self._error = error.with_traceback(None)

    def fail(self, error: OSError) -> None:
        """They could not be rebuilt, and that is not their fault."""
        self._error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))

    def append(self, writing: Writing) -> None:
        """Into the log with what came out; its outcome takes its place in the answer."""
        answer: list[Flat] = []
        partition, start = self._partition, len(writing.appended)
        topic, index, log = partition.topic, partition.index, partition.log
        if log is not None and log.config is not self._config and self._error is None:  # it has changed meanwhile
            self._config = log.config
            self.prepare(Opened())
        if writing.call.broker.replicas.partitions.get((topic, index)) is not partition or log is None:
            text = "the replica has gone while its records were prepared"
            self._error = self._error or KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        if self._error is not None:
            writing.fail(topic, index, self._error, answer)
        elif log is not None and not self._records:  # no whole message in them
            answer.append((index, 0, -1, -1, log.log_start_offset, (), None, NO_LEADER))
        else:
            writing.append(topic, ((index, self._records),), answer, _put_prepared)
        self._error, self._records = None, memoryview(b"")  # they are in the log, and may be many megabytes
        (self._answers[self._at],) = answer
        for at in range(start, len(writing.appended)):
            _partition, end_offset, _answers, _at = writing.appended[at]
            writing.appended[at] = (partition, end_offset, self._answers, self._at)


class Preparing:
    """A Produce some of whose records are rebuilt first: a job for the pool, and what goes on after it."""

    __slots__ = ("_unprepared", "_writing")

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._unprepared, writing.unprepared = writing.unprepared, []

    def start(self) -> Answer | Waiting | Signal:
        """Prepare here what is small; else give the job."""
        call = self._writing.call
        if sum(each.small_bytes for each in self._unprepared) <= COPIED_BYTES:
            self.run()
            return self._append_prepared(call.now_ms)
        for each in self._unprepared:
            each.own(call)
        call.broker.decompression.add(call.session.peer_host, self, self)
        return FIRST

    def run(self) -> None:
        """On any thread."""
        opened = Opened()
        for each in self._unprepared:
            each.prepare(opened)

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """The job has ended. error: an unexpected one; nothing of these records is in a log."""
        if error is not None:
            for each in self._unprepared:
                each.fail(error)
        call = self._writing.call
        call.broker.tell(Reply(call.ticket, self._append_prepared(now_ms)))

    def _append_prepared(self, now_ms: int) -> Answer | Waiting | Signal:
        for each in self._unprepared:
            each.append(self._writing)
        return self._writing.conclude(now_ms)


class DelayedProduce:
    """A Produce whose batches are written here, and not yet durable, or, with acks=all, not yet by all in sync."""

    __slots__ = ("_acks", "_appended", "_call", "_response", "deadline_ms")

    def __init__(self, response: Flat, appended: Appended, acks: int, timeout_ms: int, call: Call) -> None:
        """appended: partition, where its batch ends, and the place of its part of the response."""
        self._response = response
        self._appended = appended
        self._acks, self._call = acks, call
        self.deadline_ms = call.now_ms + timeout_ms

    def also_for_fsync(self) -> DelayedProduce:
        """Allow for the fsync that it waits for, if it does."""
        if any(
            partition.log and partition.log.awaits_flush for partition, _end_offset, _answers, _at in self._appended
        ):
            self.deadline_ms += LONGEST_FSYNC_MS
        return self

    @property
    def keys(self) -> Sequence[Partition]:
        """The partitions that still wait."""
        return [partition for partition, _end_offset, _answers, _at in self._appended]

    def answer(self, now_ms: int) -> Flat | None:
        """The response once no partition waits any more: its batch is safe, or we stopped being its leader."""
        if len(self._appended) == 1:  # as most have
            return self._response if self._is_certain(*self._appended[0]) else None
        self._appended = [
            (partition, end_offset, answers, at)
            for partition, end_offset, answers, at in self._appended
            if not self._is_certain(partition, end_offset, answers, at)
        ]
        return None if self._appended else self._response

    def expired(self, now_ms: int) -> Flat:
        """The response at the deadline: what still waits has timed out."""
        for partition, _, answers, at in self._appended:
            self._fail(partition, answers, at, ErrorCode.REQUEST_TIMED_OUT)
        return self._response

    def _is_certain(self, partition: Partition, end_offset: int, answers: list[Flat], at: int) -> bool:
        """Whether a batch's outcome is known; if it is a bad one, its answer says so from now on."""
        log = partition.log
        if log is None:
            self._fail(partition, answers, at, ErrorCode.KAFKA_STORAGE_ERROR)
        elif not partition.is_leader:
            self._fail(partition, answers, at, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._acks != ALL_REPLICAS:
            return log.recovery_point >= end_offset
        elif log.high_watermark < end_offset:
            return False
        elif partition.is_under_min_isr:
            self._fail(partition, answers, at, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return True

    def _fail(self, partition: Partition, answers: list[Flat], at: int, code: ErrorCode) -> None:
        self._call.has_errors = True
        _responses, _throttle_time_ms, nodes = self._response
        leader = _leader(self._call, code, partition.topic, partition.index, nodes)
        answers[at] = (partition.index, code, -1, -1, -1, (), None, leader)


def _log_start(call: Call, topic: str | None, index: int) -> int:
    """Where the log begins that a batch was meant for, -1 if there is none."""
    partition = call.broker.replicas.partitions.get((topic or "", index))
    return partition.log.log_start_offset if partition is not None and partition.log is not None else -1


def _leader(call: Call, code: ErrorCode, topic: str | None, index: int, nodes: list[Flat]) -> Flat:
    """What is said of the leader of a partition that failed with `code`. nodes: where its address goes."""
    if code is not ErrorCode.NOT_LEADER_OR_FOLLOWER or call.version < NAMES_LEADERS_SINCE:
        return NO_LEADER
    return current_leader(call, topic, index, nodes)


def _failure(
    index: int, error: KafkaError, log_start_offset: int = -1, nameable: int = 1, leader: Flat = NO_LEADER
) -> Flat:
    """nameable: how many of its records are named at most; the first always is."""
    code = error.code
    if code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT and isinstance(error, RecordError):
        # so the parser says, which may know older requests; else it is about the topic's format
        code = ErrorCode.INVALID_RECORD
    if code in _SAY_NO_LOG_START or isinstance(error, UnverifiedError):
        log_start_offset = -1
    named: Sequence[tuple[int, str]] = ()  # batch_index, batch_index_error_message
    if isinstance(error, RefusedRecordsError):
        named = error.records[: max(nameable, 1)]
    elif isinstance(error, RecordError) and error.index is not None:
        named = ((error.index, error.reason),)
    text = None if code is ErrorCode.NOT_LEADER_OR_FOLLOWER else error.message  # clients ask again and do not read it
    return index, code, -1, -1, log_start_offset, named, text, leader


def _refuse(request: Flat, code: ErrorCode, text: str, version: int) -> Result:
    _transactional_id, acks, _timeout_ms, topic_data = request
    if acks == 0:
        return HANGUP
    error = KafkaError(code, text or None)
    return (
        [
            (name, topic_id, [_failure(index, error) for index, _ in partition_data])
            for name, topic_id, partition_data in topic_data
        ],
        0,
        [],
    )


def _is_transactional(request: Flat, call: Call) -> bool:
    """Whether any of its batches is in a transaction: an id alone needs no right to it."""
    return any(
        records is not None
        and len(records) >= HEADER_SIZE
        and records[MAGIC_AT] == MAGIC
        and records[LOW_ATTRIBUTES_AT] & TRANSACTIONAL
        for topic in request[TOPIC_DATA]
        for _, records in topic[PARTITION_DATA]
    )


def _topic(topic_data: Flat, call: Call) -> str | None:
    topic, topic_id, partition_data = topic_data
    return topic if call.version < TOPIC_IDS_SINCE else _name_of(topic_id, partition_data, call)


def _may_write_all(request: Flat, call: Call) -> bool:
    writable = call.session.grants.writable
    return request[TRANSACTIONAL_ID] is None and writable.issuperset(map(NAME_AND_ID, request[TOPIC_DATA]))


def _note_writable(request: Flat, call: Call) -> None:
    topics = request[TOPIC_DATA]
    if len(topics) < NAMES_AT_ONCE:  # else a rule may have changed while it was asked for
        call.session.grants.write(map(NAME_AND_ID, topics))


NAME_AND_ID = itemgetter(place(TopicProduceData, "name"), place(TopicProduceData, "topic_id"))
PARTITION_DATA = place(TopicProduceData, "partition_data")
TRANSACTIONAL_ID, TOPIC_DATA = place(ProduceRequest, "transactional_id"), place(ProduceRequest, "topic_data")
NEEDS = (
    Whole((Operation.WRITE,), ResourceType.TRANSACTIONAL_ID, itemgetter(TRANSACTIONAL_ID), _is_transactional),
    for_each(Operation.WRITE, ResourceType.TOPIC, TOPIC_DATA, place(ProduceResponse, "responses"), _topic),
)
ROUTES = (
    Route(
        0,
        ProduceRequest,
        0,
        13,
        produce,
        _refuse,
        NEEDS,
        flat=ProduceResponse,
        elements=PARTITIONS_PER_PRODUCE,
        known=Known(_may_write_all, _note_writable),
    ),
)
