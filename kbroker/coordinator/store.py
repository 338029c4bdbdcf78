"""A coordinator's topic, as its shards see it: append as the leader, read from the start, ask how far it is committed.

`TopicStore` is the one over this broker's replicas; tests have one in memory. It knows batches and no record's meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kbroker.log.index_warmup import NotReadyError
from kbroker.log.isolation import LOG_END
from kbroker.log.producer_state import Origin
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records import Record
from protocol.records.batch import TRANSACTIONAL
from protocol.records.content import build_batch, build_plain

if TYPE_CHECKING:
    from kbroker.ports import Clock, Region
    from kbroker.replica import Partition, ReplicaManager

KeyValue: TypeAlias = tuple[bytes, bytes | None]
ALL_REPLICAS = -1
SLICE_BYTES = 256 << 10  # read at a time, and replayed between two other requests: some 3 ms


class Appended(NamedTuple):
    """Where a batch has gone. high_watermark: of the partition, right after."""

    first_offset: int
    end_offset: int
    high_watermark: int


class Slice(Protocol):
    """Some batches of a partition, to be read: a job for the disk."""

    @property
    def offset(self) -> int:
        """Of the first record wanted of them."""

    def run(self) -> None:
        """On any thread. Raises: OSError."""

    def batches(self) -> memoryview | None:
        """What was read; None: the partition is ready for reading now, ask it again. Raises: OSError."""
        ...


class Store(Protocol):
    """The partitions of one topic."""

    def append(self, partition: int, records: Sequence[KeyValue], producer_id: int, producer_epoch: int) -> Appended:
        """Append one batch as the partition's leader; transactional if producer_id >= 0.

        Raises: KafkaError, and then nothing has been appended.
        """
        ...

    def append_error(self, partition: int) -> ErrorCode:
        """Why an append would be refused now, as while too few replicas are in sync; NONE if it would not."""
        ...

    def read(self, partition: int, offset: int) -> Slice | None:
        """Some batches from `offset` on, or from the log start if that is later; None at the end of the log.

        Raises: KafkaError if the storage fails, RecordError if there is no batch where there should be one.
        """
        ...

    def failed(self, partition: int, error: OSError) -> KafkaError:
        """A slice could not be read: what to say of it, once what follows for the partition has been done."""
        ...

    def high_watermark(self, partition: int) -> int:
        """How far a partition is committed; 0 if it is not there."""
        ...

    def wall_ms(self) -> int:
        """The wall clock's time, by which the loader of what is stored says how old it is."""
        ...


class _Region:
    """A slice of a segment's file."""

    __slots__ = ("_data", "_region", "offset")

    def __init__(self, offset: int, region: Region) -> None:
        self.offset = offset
        self._region = region
        self._data: memoryview | None = None

    def run(self) -> None:
        """Read it."""
        self._data = memoryview(self._region.read())

    def batches(self) -> memoryview | None:
        """See Slice."""
        return self._data


class _ColdSegment:
    """What has to be done first for a segment that was not read lately."""

    __slots__ = ("_wanted", "offset")

    def __init__(self, offset: int, wanted: NotReadyError) -> None:
        self.offset = offset
        self._wanted = wanted

    def run(self) -> None:
        """Do it."""
        self._wanted.job.run()

    def batches(self) -> memoryview | None:
        """See Slice."""
        self._wanted.segment.finish_job(self._wanted.job)
        return None


class TopicStore:
    """A coordinator's topic in this broker's replicas."""

    def __init__(self, topic: str, replicas: ReplicaManager, clock: Clock, codec_id: int = 0) -> None:
        self.topic = topic
        self._replicas = replicas
        self._clock = clock
        self._codec_id = codec_id

    def append(self, partition: int, records: Sequence[KeyValue], producer_id: int, producer_epoch: int) -> Appended:
        """See Store."""
        found = self._replicas.find(self.topic, partition)
        wall_ms = self._clock.wall_ms()
        if self._codec_id:
            return self._append_compressed(found, records, producer_id, producer_epoch, wall_ms)
        attributes = TRANSACTIONAL if producer_id >= 0 else 0
        batch = build_plain(
            records, wall_ms, attributes=attributes, producer_id=producer_id, producer_epoch=producer_epoch
        )
        first = self._replicas.append_own(found, batch, wall_ms)
        return Appended(first, first + len(records), 0 if found.log is None else found.log.high_watermark)

    def _append_compressed(
        self,
        found: Partition,
        records: Sequence[KeyValue],
        producer_id: int,
        producer_epoch: int,
        wall_ms: int,
    ) -> Appended:
        batch = build_batch(
            [Record(at, wall_ms, key, value) for at, (key, value) in enumerate(records)],
            codec_id=self._codec_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )
        plan = self._replicas.append(found, memoryview(batch), ALL_REPLICAS, Origin.COORDINATOR, wall_ms)
        high_watermark = 0 if found.log is None else found.log.high_watermark
        return Appended(plan.first_offset, plan.last_offset + 1, high_watermark)

    def append_error(self, partition: int) -> ErrorCode:
        """See Store."""
        try:
            self._replicas.find(self.topic, partition).check_appendable()
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def read(self, partition: int, offset: int) -> Slice | None:
        """See Store."""
        found = self._replicas.find(self.topic, partition)
        log = found.log
        if log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic}-{partition} is offline")
        offset = max(offset, log.log_start_offset)  # it moves where the topic is not compacted
        try:
            region = log.read(offset, SLICE_BYTES, log.readable_end(LOG_END), wait=False).region
        except NotReadyError as error:
            return _ColdSegment(offset, error)
        except OSError as error:
            raise self._replicas.storage_error(found, error) from error
        return None if region is None else _Region(offset, region)

    def failed(self, partition: int, error: OSError) -> KafkaError:
        """See Store."""
        return self._replicas.storage_error(self._replicas.find(self.topic, partition), error)

    def delete_records_before(self, partition: int, offset: int) -> None:
        """Move the start of a partition's log up, as its leader; what cannot be done is done another time."""
        try:
            self._replicas.find(self.topic, partition).delete_records(offset)
        except KafkaError:
            return

    def high_watermark(self, partition: int) -> int:
        """See Store."""
        try:
            log = self._replicas.find(self.topic, partition).log
        except KafkaError:
            return 0
        return 0 if log is None else log.high_watermark

    def wall_ms(self) -> int:
        """See Store."""
        return self._clock.wall_ms()
