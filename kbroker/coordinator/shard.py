"""One partition's share of a coordinator's state: written to the log first, and changed by replay alone.

A coordinator's own shard (groups/shard.py, txn/shard.py) is a subclass. It lives as long as this broker leads the
partition in one leader epoch. What has to survive it goes one way:

    an operation -> records -> `write`: appended as the leader -> `replay` -> `committed`, below the high watermark
    the next leader ->          loading: read from the log     -> `replay`

so that what another broker finds in the log is what this one served. An append that fails has changed nothing, and
there is nothing to undo: `write` says so to the operation, which answers. What has been applied and may still be lost
with the leadership (it is above `high_watermark`) is known as such, and no answer speaks of it before `committed`.
What need not survive (parked calls, timers, who has joined a rebalance) is the subclass's own, and is changed at will.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

from kbroker.coordinator.effects import Operation, TimerKey, Written
from kbroker.coordinator.store import KeyValue, Store
from kbroker.metadata.cache import MetadataDelta
from protocol.errors import ErrorCode, KafkaError

R = TypeVar("R")  # the kind of records: values that `encode` and `decode` turn into bytes and back

log = logging.getLogger("kbroker.coordinator")


class Shard(ABC, Generic[R]):
    """The generic half of a shard. loading: until `loaded`, nothing but replay touches it.

    high_watermark: what is below it is committed. written_end: of the log, after what this shard has written. waiting:
    (end offset, note) of what has been written and is to be told to `committed`, in the order of the log. unheard: of
    the cluster's image, what it is told once it is loaded. set_timer: what the effect SetTimer does, for what is no
    operation (`Again`); the runtime's. IF_MISPLACED: for the log, what is lost of ids whose partition has become
    another one.
    """

    IF_MISPLACED: ClassVar[str]

    def __init__(self, partition: int, epoch: int, store: Store) -> None:
        self.partition = partition
        self.epoch = epoch
        self.loading = True
        self.high_watermark = 0
        self.written_end = 0
        self.waiting: deque[tuple[int, object]] = deque()
        self.unheard: list[MetadataDelta] = []
        self.set_timer: Callable[[TimerKey, int], None]
        self._store = store
        self._refusal = ErrorCode.NONE  # why an append was refused last; of too few replicas, until one succeeds

    def operation(self, now_ms: int) -> Operation:
        """Begin an operation."""
        return Operation(now_ms, self)

    def wall_ms(self) -> int:
        """See Operation.wall_ms."""
        return self._store.wall_ms()

    def write(
        self, records: Sequence[R], note: object | None, producer_id: int = -1, producer_epoch: int = -1
    ) -> ErrorCode:
        """Append records in one batch and apply them. Returns: NONE, or why nothing was written and nothing changed.

        note: given to `committed` when the high watermark has passed the batch, or to `abandoned` when this shard is
        dropped before; None if no call waits. producer_id, producer_epoch: of the transaction that the batch is in.
        """
        assert records, note
        assert not self.loading, self.partition
        encoded = [self.encode(record) for record in records]
        try:
            first, end, high_watermark = self._store.append(self.partition, encoded, producer_id, producer_epoch)
        except KafkaError as error:
            self._report_refusal(error)
            return error.code
        if self._refusal is ErrorCode.NOT_ENOUGH_REPLICAS:
            self._refusal = ErrorCode.NONE
            log.info("a coordinator can write to its partition %d again", self.partition)
        self.written_end = end
        self.advance(high_watermark)
        for record in records:
            self.replay(record, record_offset=first, producer_id=producer_id)
        if note is not None:
            self.waiting.append((end, note))
        return ErrorCode.NONE

    def tell_in_order(self, operation: Operation, note: object) -> None:
        """Have `committed` told of a note once all that this shard has written is committed; now, if it is already.

        For an answer that changes nothing, and may speak of what was written before.
        """
        if self.has_uncommitted:
            self.waiting.append((self.written_end, note))
            operation.effects.append(Written(self.partition))
        else:
            self.committed(operation, note)

    @property
    def has_uncommitted(self) -> bool:
        """Whether something that this shard has written is not committed, or a note waits for `committed`."""
        return bool(self.waiting) or self.written_end > self.high_watermark

    def _report_refusal(self, error: KafkaError) -> None:
        """Log that an append was refused: once, for each client asks again, and may cause some refusals at will."""
        if error.code is not self._refusal:
            self._refusal = error.code
            log.warning("a coordinator cannot write to its partition %d: %s", self.partition, error)

    def advance(self, high_watermark: int) -> None:
        """What is below `high_watermark` is committed. The calls that waited for it are found by `take_committed`."""
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.passed()

    def take_committed(self) -> object | None:
        """The next note whose records are committed; None if there is no more."""
        if self.waiting and self.waiting[0][0] <= self.high_watermark:
            return self.waiting.popleft()[1]
        return None

    def fail_pending_below(self, operation: Operation, end: int, code: ErrorCode) -> None:
        """Calls that wait for records below `end` hear that the outcome is unknown; they may be committed yet."""
        while self.waiting and self.waiting[0][0] <= end:
            self.abandoned(operation, self.waiting.popleft()[1], code)

    def drop(self, operation: Operation, code: ErrorCode) -> None:
        """This broker leads the partition no longer: answer all waiting calls, forget everything."""
        self.unload(operation)
        while self.waiting:
            self.abandoned(operation, self.waiting.popleft()[1], code)

    # --- what the subclass knows

    @property
    @abstractmethod
    def keys(self) -> Iterable[str]:
        """The ids that decide which partition something belongs to, of all that is kept here."""

    @abstractmethod
    def encode(self, record: R) -> KeyValue:
        """A record as it is stored; a value of None is a tombstone."""

    @abstractmethod
    def decode(self, key: bytes, value: bytes | None) -> R | None:
        """The record in these bytes; None for one of a newer Kafka, to be passed by. Raises: DecodeError."""

    @abstractmethod
    def replay(self, record: R, *, record_offset: int, producer_id: int = -1) -> None:
        """Apply one record: the only way into the state that is stored.

        record_offset: the offset of its batch's first record; committed already if that is below `high_watermark`.
        producer_id: of a transactional batch, else -1.
        """

    @abstractmethod
    def replay_marker(self, producer_id: int, *, commit: bool, record_offset: int) -> None:
        """Apply the marker that ends a producer's transaction in this partition."""

    @abstractmethod
    def passed(self) -> None:
        """`high_watermark` has moved: what is below it is committed."""

    @abstractmethod
    def committed(self, operation: Operation, note: object) -> None:
        """What was written with `note` is committed."""

    @abstractmethod
    def abandoned(self, operation: Operation, note: object, code: ErrorCode) -> None:
        """What was written with `note` may or may not be there for the next leader: answer the waiting call."""

    def uncommitted(self, operation: Operation) -> None:
        """What was just written waits for its replicas."""

    @abstractmethod
    def loaded(self, operation: Operation) -> None:
        """All records have been replayed: begin to serve. `loading` is over already."""

    def new_metadata_image(self, operation: Operation, delta: MetadataDelta) -> None:
        """This broker's image of the cluster is another one. Not called before `loaded`."""

    @abstractmethod
    def unload(self, operation: Operation) -> None:
        """Another broker leads the partition: send parked calls there, cancel timers, forget the state."""

    @abstractmethod
    def timer(self, operation: Operation, key: TimerKey) -> None:
        """A deadline that was set has passed."""
