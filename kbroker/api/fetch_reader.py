"""What one Fetch reads: is there enough, and if so, regions of files, partition by partition.

Made by `fetch.py` for each request, and by `fetch_old.py`; a parked fetch keeps its own. It decides nothing about
waiting. Errors are a partition's own, with the codes of `replica/partition.py` and the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.broker.fetch_sessions import Wanted
from kbroker.log.cold import NotReadyError
from kbroker.log.isolation import TXN_COMMITTED, FetchIsolation
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
    from collections.abc import Sequence

    from kbroker.api.call import Call, InSlices, Signal
    from kbroker.broker.fetch_sessions import FetchSession
    from kbroker.log.reads import Fetched
    from kbroker.replica import Partition


ZSTD_SINCE = 10  # KIP-110
FOLLOWERS_SINCE = 11  # KIP-392


class Reader:
    """One fetch: what it wants, and how much."""

    __slots__ = (
        "_call",
        "_cold",
        "_isolation",
        "_left",
        "_max_bytes",
        "_min_bytes",
        "_most_regions",
        "_regions_left",
        "_replicas",
        "_session",
        "_wanted",
        "_whole_first",
    )

    def __init__(
        self,
        request: FetchRequest,
        call: Call,
        session: FetchSession | None,
        wanted: Sequence[Wanted],
    ) -> None:
        self._call, broker = call, call.broker
        self._replicas = broker.replicas
        self._session, self._wanted, self._cold = session, wanted, False
        self._isolation = FetchIsolation.of(request.isolation_level)
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
                if wanted.last_fetched_epoch >= 0 and divergence(partition, wanted) is not None:
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
                except NotReadyError as error:
                    self._call.broker.cold_reads.warm(partition, error)
                    continue
                except OSError as error:  # raised here, it would hit whoever's append makes us look
                    self._replicas.storage_error(partition, error)
                    return True
                available += min(size, wanted.max_bytes)
                if available >= self._min_bytes:
                    return True
        return available >= self._min_bytes

    def response_if_enough(self) -> FetchResponse | Signal | None:
        """The response, if it has min_bytes of records or something else to say, and need not wait for the disk."""
        return self.response(may_wait=True) if self.may_answer() else None

    def response(self, *, may_wait: bool = False) -> Any:
        """Read now: FetchResponse or Signal. Partitions share the bytes in the order they stand in.

        may_wait: for the disk, which is to bring something first: then None.
        """
        answers = self._begin()
        for wanted in self._wanted:
            self._read(wanted, answers)
        if self._cold and self._waits(answers, may_wait=may_wait):
            return None
        return self._answer(answers)

    def response_in_slices(self) -> InSlices:
        """As `response`, for many partitions."""
        answers = self._begin()
        for wanted in self._wanted:
            yield
            self._read(wanted, answers)
        return self._answer(answers)

    def _begin(self) -> list[tuple[Wanted, PartitionData, int]]:
        self._left, self._regions_left, self._whole_first = self._max_bytes, self._most_regions, True
        return []

    def _answer(self, answers: list[tuple[Wanted, PartitionData, int]]) -> FetchResponse:
        session = self._session
        if session is None:
            return FetchResponse(responses=by_topic(answers))
        return FetchResponse(session_id=session.id, responses=by_topic(session.news(answers)))

    def _read(self, wanted: Wanted, answers: list[tuple[Wanted, PartitionData, int]]) -> None:
        """Add one partition's part of the response, and the bytes of records in it; they count off what is left."""
        size = 0
        try:
            partition = self._find(wanted)
            diverging = divergence(partition, wanted)
            if diverging is not None:
                data = self._data(partition, wanted, diverging=diverging)
            else:
                most = min(self._left, wanted.max_bytes)
                fetched = partition.read(wanted.fetch_offset, most, self._isolation, self._whole_first, may_wait=False)
                data = self._data(partition, wanted, fetched)
                if fetched.region is not None:
                    size = len(fetched.region)
                    self._whole_first = False
                    self._regions_left -= 1
                    self._left = max(self._left - size, 0) if self._regions_left else 0
        except NotReadyError as error:
            self._cold = True
            self._call.broker.cold_reads.warm(partition, error)
            data = self._data(partition, wanted)
        except (KafkaError, OSError) as error:
            self._call.has_errors = True
            code = error.code if isinstance(error, KafkaError) else self._replicas.storage_error(partition, error).code
            data = PartitionData(partition_index=wanted.index, error_code=code, high_watermark=-1, records=b"")
        answers.append((wanted, data, size))

    def _waits(self, answers: Sequence[tuple[Wanted, PartitionData, int]], *, may_wait: bool) -> bool:
        """Whether to wait for the disk rather than to say nothing; the partitions are touched when it is ready."""
        self._cold = False
        return may_wait and not any(size or data.error_code for _, data, size in answers)

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
            aborted_transactions=[] if self._isolation is TXN_COMMITTED else None,
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
        if self._call.version < FOLLOWERS_SINCE:
            self._check_for_old(partition)
        return partition

    def _check_for_old(self, partition: Partition) -> None:
        """Older clients read from leaders only, and the oldest nothing that may be zstd."""
        log = partition.led()
        if self._call.version < ZSTD_SINCE and log.config.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def divergence(partition: Partition, wanted: Wanted) -> EpochEndOffset | None:
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


def by_topic(answers: Sequence[tuple[Wanted, PartitionData, int]]) -> list[FetchableTopicResponse]:
    """The parts of an answer as it has them. Neighbours of one topic together; the order of the partitions stays."""
    topics: list[FetchableTopicResponse] = []
    last: Wanted | None = None
    for wanted, data, _ in answers:
        if last is None or last.topic != wanted.topic or last.topic_id != wanted.topic_id:
            topics.append(FetchableTopicResponse(topic=wanted.topic or "", topic_id=wanted.topic_id, partitions=[]))
            last = wanted
        topics[-1].partitions.append(data)
    return topics
