"""Fetch: records from given offsets on, as file regions; wait for min_bytes, but not longer than max_wait_ms.

Served: Fetch 4-18, with incremental sessions (`fetch_sessions.py`), topic ids from 13 on, and both isolation levels.
An answer holds at most max_bytes, the request's or the broker's `fetch.max.bytes`, except that the first batch of the
first partition with data always comes whole, so that a consumer gets on; and records of at most 1,000 partitions, since
each may hold a file open. An error of any partition, or a divergence of epochs, is answered at once.

Unlike Kafka: v0-v3 (down-conversion to formats 0 and 1) are not served yet, nor are followers; consumers are never
sent to a nearer replica (KIP-392), whatever their rack. A min_bytes that a segment's end cuts in two is waited for all
the same. A partition that is not there is answered at once; Kafka waits for the others first, if there are any. A size
below 0 is taken for 0, and an isolation level that does not exist for read uncommitted; Kafka fails at both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.routes import Route
from kbroker.broker.fetch_sessions import Wanted
from kbroker.config.limits import LONG_POLL_STEP_MS
from kbroker.replica.partition import READ_COMMITTED
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from kbroker.api.call import Call, Result
    from kbroker.broker.broker import Broker
    from kbroker.broker.fetch_sessions import FetchSession
    from kbroker.log.log import Fetched
    from kbroker.replica import Partition

TOPIC_IDS_SINCE = 13
ZSTD_SINCE = 10  # KIP-110


def fetch(request: FetchRequest, call: Call) -> Result:
    """Answer with what is there if that is enough, else wait for more."""
    broker = call.broker
    try:
        session, wanted = broker.fetch_sessions.begin(request, call.version, call.now_ms, broker.plane.cache.topic_name)
    except KafkaError as error:
        return FetchResponse(error_code=error.code, responses=[])
    knows_zstd = call.version >= ZSTD_SINCE
    reader = Reader(request, broker, session, wanted, knows_zstd=knows_zstd)
    if request.max_wait_ms <= 0 or not wanted:
        return reader.response()
    response = reader.response_if_enough()
    return response or AwaitBytes(reader, _deadline_ms(call.now_ms, request.max_wait_ms))


def _deadline_ms(now_ms: int, max_wait_ms: int) -> int:
    """Until when a fetch waits: no less than max_wait_ms, and a little more, so that many of them end together.

    What a quiet broker does is wake up: once for each of its consumers' waits that ends, once for each that begins. So
    waits end on multiples of a step, at most a twentieth of the wait late, and consumers that were answered together
    come back together. A client that asked to wait is not answered before: some measure it.
    """
    at_least_ms = now_ms + 1 + max_wait_ms  # a part of this millisecond is over
    return at_least_ms + -at_least_ms % max(min(max_wait_ms // 20, LONG_POLL_STEP_MS), 1)


class AwaitBytes:
    """A fetch for which there is too little yet."""

    __slots__ = ("_reader", "deadline_ms", "keys")

    def __init__(self, reader: Reader, deadline_ms: int) -> None:
        self._reader = reader
        self.deadline_ms = deadline_ms
        self.keys: Sequence[Hashable] = reader.partitions()

    def answer(self, now_ms: int) -> FetchResponse | None:
        """The response once there is enough, or something to report."""
        return self._reader.response() if self._reader.may_answer() else None

    def expired(self, now_ms: int) -> FetchResponse:
        """The response at the deadline: whatever there is."""
        return self._reader.response()


class Reader:
    """One fetch: what it wants, and how much."""

    __slots__ = (
        "_isolation",
        "_knows_zstd",
        "_max_bytes",
        "_min_bytes",
        "_most_regions",
        "_replicas",
        "_session",
        "_wanted",
    )

    def __init__(
        self,
        request: FetchRequest,
        broker: Broker,
        session: FetchSession | None,
        wanted: Sequence[Wanted],
        *,
        knows_zstd: bool,
    ) -> None:
        self._replicas = broker.replicas
        self._session = session
        self._wanted = wanted
        self._knows_zstd = knows_zstd
        self._isolation = request.isolation_level
        self._most_regions = broker.fetch_regions
        self._max_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)  # more than may be sent cannot come together

    def partitions(self) -> list[Partition]:
        """The replicas it reads from, as far as they are here."""
        here = self._replicas.partitions
        found = (here.get((wanted.topic, wanted.index)) for wanted in self._wanted if wanted.topic is not None)
        return [partition for partition in found if partition is not None]

    def may_answer(self) -> bool:
        """Whether there is enough, or an error, by a look that reads no records."""
        available = 0
        for wanted in self._wanted:
            try:
                partition = self._find(wanted)
                end = partition.readable_end(self._isolation)
                if wanted.last_fetched_epoch >= 0 and _divergence(partition, wanted) is not None:
                    return True
            except KafkaError:
                return True
            assert partition.log is not None
            if (
                wanted.fetch_offset > partition.log.log_end_offset
                or wanted.fetch_offset < partition.log.log_start_offset
            ):
                return True
            if end > wanted.fetch_offset:
                if self._min_bytes <= 1:  # as most ask: there is a batch, and nothing to count
                    return True
                try:
                    size = partition.log.available_bytes(wanted.fetch_offset, end)
                except OSError as error:  # raised here, it would hit whoever's append makes us look
                    self._replicas.storage_error(partition, error)
                    return True
                available += min(size, wanted.max_bytes)
                if available >= self._min_bytes:
                    return True
        return available >= self._min_bytes

    def response_if_enough(self) -> FetchResponse | None:
        """The response, if it has min_bytes of records or something else to say."""
        return self.response() if self.may_answer() else None

    def response(self) -> FetchResponse:
        """Read now. Partitions share the bytes in the order they stand in."""
        left = self._max_bytes
        regions_left = self._most_regions
        whole_first = True
        answers: list[tuple[Wanted, PartitionData, int]] = []
        for wanted in self._wanted:
            data, size = self._read(wanted, min(left, wanted.max_bytes), whole_first)
            if size:
                whole_first = False
                regions_left -= 1
                left = max(left - size, 0) if regions_left else 0
            answers.append((wanted, data, size))
        session = self._session
        if session is None:
            return FetchResponse(responses=_by_topic(answers))
        return FetchResponse(session_id=session.id, responses=_by_topic(session.news(answers)))

    def _read(self, wanted: Wanted, max_bytes: int, whole_first: bool) -> tuple[PartitionData, int]:
        """One partition's part of the response, and the bytes of records in it."""
        try:
            partition = self._find(wanted)
            diverging = _divergence(partition, wanted)
            if diverging is not None:
                return self._data(partition, wanted, diverging=diverging), 0
            fetched = partition.read(wanted.fetch_offset, max_bytes, self._isolation, whole_first_batch=whole_first)
        except KafkaError as error:
            return PartitionData(partition_index=wanted.index, error_code=error.code, high_watermark=-1, records=b""), 0
        except OSError as error:
            code = self._replicas.storage_error(partition, error).code
            return PartitionData(partition_index=wanted.index, error_code=code, high_watermark=-1, records=b""), 0
        return self._data(partition, wanted, fetched), 0 if fetched.region is None else len(fetched.region)

    def _data(
        self,
        partition: Partition,
        wanted: Wanted,
        fetched: Fetched | None = None,
        diverging: EpochEndOffset | None = None,
    ) -> PartitionData:
        log = partition.log
        assert log is not None
        data = PartitionData(
            partition_index=wanted.index,
            error_code=0,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._isolation == READ_COMMITTED else None,
            records=b"" if fetched is None or fetched.region is None else [fetched.region],
        )
        if diverging is not None:
            data.diverging_epoch = diverging
        if fetched is not None and fetched.aborted:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in fetched.aborted
            ]
        return data

    def _find(self, wanted: Wanted) -> Partition:
        """The replica to read from. Raises: KafkaError."""
        if wanted.topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition = self._replicas.find(wanted.topic, wanted.index)
        if partition.is_of_another(wanted.topic_id):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        if wanted.current_leader_epoch >= 0:  # Kafka takes any below 0 for none in Fetch, but only -1 elsewhere
            partition.check_epoch(wanted.current_leader_epoch)
        if not self._knows_zstd and partition.log is not None and partition.log.config.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return partition


def _divergence(partition: Partition, wanted: Wanted) -> EpochEndOffset | None:
    """Where the reader's log and ours part, if its last record is of an epoch that ended earlier here (KIP-595)."""
    if wanted.last_fetched_epoch < 0:
        return None
    end = partition.end_of_epoch(wanted.last_fetched_epoch)
    if end.epoch < 0 or end.end_offset < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"epoch {wanted.last_fetched_epoch} is not in the log")
    log = partition.log
    if log is not None and wanted.fetch_offset < log.log_start_offset:
        return None  # wherever they part: reading says that it is out of range
    if end.epoch < wanted.last_fetched_epoch or end.end_offset < wanted.fetch_offset:
        return EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
    return None


def _by_topic(answers: Sequence[tuple[Wanted, PartitionData, int]]) -> list[FetchableTopicResponse]:
    """Neighbours of one topic together; the order of the partitions stays."""
    topics: list[FetchableTopicResponse] = []
    last: Wanted | None = None
    for wanted, data, _ in answers:
        if last is None or last.topic != wanted.topic or last.topic_id != wanted.topic_id:
            topics.append(FetchableTopicResponse(topic=wanted.topic or "", topic_id=wanted.topic_id, partitions=[]))
            last = wanted
        topics[-1].partitions.append(data)
    return topics


def _refuse(request: FetchRequest, code: ErrorCode, text: str) -> FetchResponse:
    """An error of the exchange as a whole; before sessions (v7), of each partition."""
    return FetchResponse(
        error_code=code,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=each.partition, error_code=code, high_watermark=-1, records=b"")
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


ROUTES = (Route(1, FetchRequest, 4, 18, fetch, _refuse),)
