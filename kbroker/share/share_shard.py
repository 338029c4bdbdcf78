"""The state of share-partitions in one partition of `__share_group_state`: what the share coordinator keeps (KIP-932).

The coordinator (`share_coordinator.py`) has already found this shard for the share-partition. A leader begins by
reading the state, in its leader epoch; from then on leaders of older epochs are fenced, and it writes what becomes of
records. The coordinator of the group initializes and deletes the state; each time it begins again, in a higher state
epoch. A write is one record: an update, and after so many of them (`share.coordinator.snapshot.update.records.per.
snapshot`) a snapshot, which says all. What lies before the oldest of the newest snapshots is of no use to anyone, and
the log's start moves on to there by and by; a share-partition that is quiet has its snapshot written again, so that it
holds nothing back.

Each answer leaves when all that this leader has written, and it may speak of, is committed. Source:
ShareCoordinatorShard of Apache Kafka 4.4, by behaviour. Unlike it: a leader epoch that is still to come is not
believed; Kafka's fences all leaders before it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias, cast

from kbroker.coordinator import Operation, Shard, Store, TimerKey
from kbroker.share import share_records
from kbroker.share.share_partition import StateBatch
from kbroker.share.share_records import Place, ShareRecord, ShareState
from kbroker.share.state_batches import combine
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.share_group_state import (
    ReadStatePartitionResult,
    StatePartitionResult,
    StateSummaryPartitionResult,
    WriteStatePartition,
)
from protocol.messages.share_group_state import StateBatch as SentStateBatch
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kbroker.config import BrokerConfig
    from kbroker.coordinator.effects import Call
    from kbroker.metadata.cache import MetadataCache, MetadataDelta
    from protocol.message import Message

    Result: TypeAlias = ReadStatePartitionResult | StatePartitionResult | StateSummaryPartitionResult

PER_BATCH = 500  # records at most in one batch of snapshots or tombstones


class Told(NamedTuple):
    """An answer that waits for the log. refusal: what is said instead if the outcome is not known in time."""

    call: Call
    result: Result
    refusal: Callable[[ErrorCode], Result]


class ShareShard(Shard[ShareRecord]):
    """Share-partitions by place. image: of the cluster."""

    IF_MISPLACED = "What these share groups have read is not known any more: they begin again."
    encode = staticmethod(share_records.encode)
    decode = staticmethod(share_records.decode)

    def __init__(
        self,
        partition: int,
        epoch: int,
        store: Store,
        config: Callable[[], BrokerConfig],
        image: MetadataCache,
        forget_below: Callable[[int, int], None],
    ) -> None:
        """forget_below: moves the start of a partition's log up to an offset."""
        super().__init__(partition, epoch, store)
        self.states: dict[Place, ShareState] = {}
        self._leader_epochs: dict[Place, int] = {}  # the highest ever heard of; initializing again lowers the stored
        self._updates: dict[Place, int] = {}  # since the last snapshot
        self._snapshots: dict[Place, int] = {}  # offset of the batch with the last one
        self._config = config
        self._image = image
        self._forget_below = forget_below
        self._forgotten_below = 0
        self._last_end = 0  # of the log, behind all that was replayed
        self._patience: deque[tuple[int, int]] = deque()  # (until when, end offset) of what is not committed

    @property
    def keys(self) -> Iterable[str]:
        """See Shard.keys."""
        return [place.coordinator_key for place in self.states]

    # --- operations

    def initialize(self, operation: Operation, place: Place, state_epoch: int, start_offset: int, call: Call) -> None:
        """InitializeShareGroupState, of one share-partition."""
        answer = _outcome(place)
        try:
            self._check(place, state_epoch=state_epoch)
            known = self.states.get(place)
            if known is not None and known.state_epoch > state_epoch:
                raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
            self._check_exists(place)
        except KafkaError as error:
            operation.reply(call, _sent(answer(error.code, error.message)))
            return
        if known is not None and (known.state_epoch, known.start_offset) == (state_epoch, start_offset):
            self.tell_in_order(operation, Told(call, answer(ErrorCode.NONE), answer))
            return
        epoch, now_ms = 0 if known is None else known.snapshot_epoch + 1, operation.wall_ms
        begun = ShareState(epoch, state_epoch, 0, start_offset, -1, (), now_ms, now_ms)
        self._write(operation, ShareRecord(place, begun), Told(call, answer(ErrorCode.NONE), answer))

    def read(self, operation: Operation, place: Place, leader_epoch: int, call: Call) -> None:
        """ReadShareGroupState, of one share-partition; leaders of older epochs are fenced from now on."""

        def refusal(code: ErrorCode, message: str = "") -> ReadStatePartitionResult:
            return ReadStatePartitionResult(
                partition=place.partition,
                error_code=code,
                error_message=message or code.message,
                state_epoch=0,
                start_offset=0,
                state_batches=[],
            )

        try:
            known = self._known(place, leader_epoch, "Read")
            self._check_exists(place)
        except KafkaError as error:
            operation.reply(call, _sent(refusal(error.code, error.message)))
            return
        result = ReadStatePartitionResult(
            partition=place.partition,
            error_code=ErrorCode.NONE,
            state_epoch=known.state_epoch,
            start_offset=known.start_offset,
            state_batches=[
                SentStateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
                for first, last, state, count in known.batches
            ],
        )
        told = Told(call, result, refusal)
        if self._leader_epochs.get(place) == leader_epoch:
            self.tell_in_order(operation, told)
        else:
            self._write(operation, self._next(place, known._replace(leader_epoch=leader_epoch, batches=())), told)

    def write_state(self, operation: Operation, place: Place, said: WriteStatePartition, call: Call) -> None:
        """WriteShareGroupState, of one share-partition."""
        answer = _outcome(place)
        try:
            self._check(place, state_epoch=said.state_epoch)
            known = self._known(place, said.leader_epoch, "Write")
            if known.state_epoch > said.state_epoch:
                raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
            self._check_exists(place)
        except KafkaError as error:
            operation.reply(call, _sent(answer(error.code, error.message)))
            return
        start_offset, complete = max(said.start_offset, known.start_offset), said.delivery_complete_count
        if said.start_offset < known.start_offset:
            complete = known.complete
        elif said.start_offset == known.start_offset:
            complete = max(complete, known.complete)
        batches = tuple(
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in said.state_batches
        )
        after = known._replace(start_offset=start_offset, complete=complete, batches=batches)
        self._write(operation, self._next(place, after), Told(call, answer(ErrorCode.NONE), answer))

    def summarize(self, operation: Operation, place: Place, call: Call) -> None:
        """ReadShareGroupStateSummary, of one share-partition."""

        def answer(code: ErrorCode, message: str = "", known: ShareState | None = None) -> StateSummaryPartitionResult:
            state = known or ShareState(start_offset=-1 if code is ErrorCode.NONE else 0)
            return StateSummaryPartitionResult(
                partition=place.partition,
                error_code=code,
                error_message=None if code is ErrorCode.NONE else message or code.message,
                state_epoch=state.state_epoch,
                leader_epoch=state.leader_epoch,
                start_offset=state.start_offset,
                delivery_complete_count=state.complete,
            )

        try:
            self._check(place)
            self._check_exists(place)
        except KafkaError as error:
            operation.reply(call, _sent(answer(error.code, error.message)))
            return
        self.tell_in_order(operation, Told(call, answer(ErrorCode.NONE, known=self.states.get(place)), answer))

    def delete(self, operation: Operation, place: Place, call: Call) -> None:
        """DeleteShareGroupState, of one share-partition; of one that is not known, too."""
        answer = _outcome(place)
        try:
            self._check(place)
            self._check_exists(place)
        except KafkaError as error:
            operation.reply(call, _sent(answer(error.code, error.message)))
            return
        if place not in self.states:
            self.tell_in_order(operation, Told(call, answer(ErrorCode.NONE), answer))
            return
        self._write(operation, ShareRecord(place, None), Told(call, answer(ErrorCode.NONE), answer))

    # --- what they check

    def _check(self, place: Place, *, leader_epoch: int = 0, state_epoch: int = 0) -> None:
        """Raises: KafkaError INVALID_REQUEST for what no broker asks."""
        if place.partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")
        if leader_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The leader epoch cannot be a negative number.")
        if state_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The state epoch cannot be a negative number.")

    def _known(self, place: Place, leader_epoch: int, what: str) -> ShareState:
        """What is known, for the leader of an epoch.

        Raises: KafkaError INVALID_REQUEST, FENCED_LEADER_EPOCH; COORDINATOR_NOT_AVAILABLE for an epoch in which no
        leader is yet, as far as this broker has heard: it would fence all those that are. One just elected asks again.
        """
        self._check(place, leader_epoch=leader_epoch)
        known = self.states.get(place)
        if known is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{what} operation on uninitialized share partition not allowed."
            )
        if self._leader_epochs.get(place, 0) > leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        state = self._image.partition(self._image.topic_name(place.topic_id) or "", place.partition)
        if state is not None and leader_epoch > state.leader_epoch:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the leader epoch is {state.leader_epoch}")
        return known

    def _check_exists(self, place: Place) -> None:
        """Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        name = self._image.topic_name(place.topic_id)
        if name is None or self._image.partition(name, place.partition) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # --- writing

    def _next(self, place: Place, after: ShareState) -> ShareRecord:
        """The record that says what has changed, or all. after: its batches are those that have changed."""
        known = self.states[place]
        if self._updates.get(place, 0) < self._config().share_coordinator_snapshot_update_records_per_snapshot:
            batches = combine((), after.batches, after.start_offset)
            return ShareRecord(place, after._replace(batches=batches), is_update=True)
        now_ms = self.wall_ms()
        return ShareRecord(
            place,
            after._replace(
                snapshot_epoch=known.snapshot_epoch + 1,
                batches=combine(known.batches, after.batches, after.start_offset),
                created_ms=now_ms,
                written_ms=now_ms,
            ),
        )

    def _write(self, operation: Operation, record: ShareRecord, told: Told) -> None:
        code = operation.write([record], told)
        if code is not ErrorCode.NONE:
            operation.reply(told.call, _sent(told.refusal(_write_error(code))))

    def committed(self, operation: Operation, note: object) -> None:
        """See Shard.committed."""
        if isinstance(note, Told):
            operation.reply(note.call, _sent(note.result))

    def abandoned(self, operation: Operation, note: object, code: ErrorCode) -> None:
        """See Shard.abandoned."""
        if isinstance(note, Told):
            operation.reply(note.call, _sent(note.refusal(_write_error(code))))

    def uncommitted(self, operation: Operation) -> None:
        """See Shard.uncommitted: none waits longer than share.coordinator.write.timeout.ms, about."""
        end, patience_ms = self.waiting[-1][0], self._config().share_coordinator_write_timeout_ms
        if self._patience and self._patience[-1][1] >= end:
            return
        if not self._patience:
            operation.set_timer("write", "", patience_ms)
        self._patience.append((operation.now_ms + patience_ms, end))

    def passed(self) -> None:
        """See Shard.passed."""
        while self._patience and self._patience[0][1] <= self.high_watermark:
            self._patience.popleft()

    # --- replay

    def replay(self, record: ShareRecord, *, record_offset: int, producer_id: int = -1) -> None:
        """See Shard.replay."""
        place, said, is_update = record
        self._last_end = record_offset + 1
        known = self.states.get(place)
        if said is None:
            if not is_update:
                for forget in (self.states, self._leader_epochs, self._updates, self._snapshots):
                    forget.pop(place, None)
            return
        self._leader_epochs[place] = max(self._leader_epochs.get(place, 0), said.leader_epoch)
        if not is_update:
            self._updates[place] = 0
            self._snapshots[place] = record_offset
            self.states[place] = said
            return
        if known is None:
            known = ShareState(snapshot_epoch=said.snapshot_epoch)
            self._snapshots[place] = record_offset
        start_offset = known.start_offset if said.start_offset == -1 else said.start_offset
        self._updates[place] = self._updates.get(place, 0) + 1
        self.states[place] = known._replace(
            leader_epoch=max(known.leader_epoch, said.leader_epoch),
            start_offset=start_offset,
            complete=said.complete,
            batches=combine(known.batches, said.batches, start_offset),
        )

    def replay_marker(self, producer_id: int, *, commit: bool, record_offset: int) -> None:
        """See Shard.replay_marker: there are no transactions here."""

    def loaded(self, operation: Operation) -> None:
        """See Shard.loaded."""
        config = self._config()
        operation.set_timer("prune", "", config.share_coordinator_state_topic_prune_interval_ms)
        operation.set_timer("cold", "", config.share_coordinator_cold_partition_snapshot_interval_ms)

    def unload(self, operation: Operation) -> None:
        """See Shard.unload."""
        operation.cancel_timer("prune", "")
        operation.cancel_timer("cold", "")
        operation.cancel_timer("write", "")
        self.states.clear()

    def new_metadata_image(self, operation: Operation, delta: MetadataDelta) -> None:
        """See Shard.new_metadata_image: what is kept of topics that are deleted goes."""
        if delta.deleted:
            gone = [place for place in self.states if self._image.topic_name(place.topic_id) is None]
            self._write_all(operation, [ShareRecord(place, None) for place in gone])

    # --- time

    def timer(self, operation: Operation, key: TimerKey) -> None:
        """See Shard.timer."""
        if key.kind == "write":
            while self._patience and self._patience[0][0] <= operation.now_ms:
                self.fail_pending_below(operation, self._patience.popleft()[1], ErrorCode.REQUEST_TIMED_OUT)
            if self._patience:
                operation.set_timer("write", "", self._patience[0][0] - operation.now_ms)
        elif key.kind == "cold":
            interval_ms = self._config().share_coordinator_cold_partition_snapshot_interval_ms
            operation.set_timer("cold", "", interval_ms)
            self._snapshot_cold(operation, interval_ms)
        else:
            assert key.kind == "prune", key
            operation.set_timer("prune", "", self._config().share_coordinator_state_topic_prune_interval_ms)
            self._prune()

    def _snapshot_cold(self, operation: Operation, interval_ms: int) -> None:
        """Write snapshots of quiet share-partitions again; not if all are quiet, and have them."""
        now_ms, states = operation.wall_ms, self.states
        if all(each.created_ms != each.written_ms for each in states.values()):
            return
        self._write_all(
            operation,
            [
                ShareRecord(place, state._replace(snapshot_epoch=state.snapshot_epoch + 1, written_ms=now_ms))
                for place, state in states.items()
                if now_ms - state.written_ms >= interval_ms
            ],
        )

    def _write_all(self, operation: Operation, records: list[ShareRecord]) -> None:
        for start in range(0, len(records), PER_BATCH):
            if operation.write(records[start : start + PER_BATCH], None) is not ErrorCode.NONE:
                return

    def _prune(self) -> None:
        """Move the log's start up to the oldest snapshot that counts."""
        oldest = min(self._snapshots.values(), default=self._last_end)
        if oldest > self._forgotten_below and oldest <= self.high_watermark:
            self._forgotten_below = oldest
            self._forget_below(self.partition, oldest)


def _outcome(place: Place) -> Callable[..., StatePartitionResult]:
    """Makes what is said of one that was initialized, written or deleted."""

    def answer(code: ErrorCode, message: str = "") -> StatePartitionResult:
        text = None if code is ErrorCode.NONE else message or code.message
        return StatePartitionResult(partition=place.partition, error_code=code, error_message=text)

    return answer


def _sent(result: Result) -> Message:
    """As the runtime carries it: to who asked for one share-partition, which is a part of a response."""
    return cast("Message", result)


def _write_error(code: ErrorCode) -> ErrorCode:
    """What is told where a record could not be written, or is not known to be."""
    return _WRITE_ERRORS.get(code, code)


_WRITE_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
