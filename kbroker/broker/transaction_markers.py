"""Transaction markers: control batches with a transaction's outcome, appended by each partition's leader.

Two callers. WriteTxnMarkers of another broker's coordinator (`api/transactions.py`) calls `append`, and waits for the
high watermark like a produce. The own coordinator's `WriteMarkers` comes here as an effect: partitions led here get
their marker at once, the leaders of the others are sent WriteTxnMarkers, on a connection of their own (`Peers`): one
request at a time to each broker, with the markers of all transactions that were decided meanwhile. What fails for now
(no leader, too few in sync, no answer) is tried again every 100 ms until it is done, for a decided outcome has no other
end. A partition that is gone needs no marker: one that the image of the cluster does not have for ten seconds, for
after a start or a failover the image comes in pieces. When all have theirs, the coordinator is told; until then the
transactional id takes no other transaction, so those of many partitions may be marked in slices.

Source: TransactionMarkerChannelManager and its completion handler of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from kbroker.config.limits import DELETED_IF_UNKNOWN_MS, MARKER_RETRY_MS, MARKERS_AT_ONCE
from kbroker.log.producer_state import Marker
from kbroker.metadata.cache import CONSUMER_OFFSETS
from kbroker.ports import MARKERS, PeerAnswer
from kbroker.txn import Producer
from protocol.errors import ErrorCode, KafkaError
from protocol.records.control_records import ControlType, EndTransactionMarker, build_marker_batch

if TYPE_CHECKING:
    from kbroker.coordinator import Runtime
    from kbroker.groups.shard import GroupShard
    from kbroker.metadata.cache import MetadataCache
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import Clock, PeerEvent
    from kbroker.replica import Partition, ReplicaManager
    from kbroker.timing import Scheduler, Steps
    from kbroker.txn.shard import WriteMarkers
    from kbroker.txn.state import TopicPartition
    from protocol.messages.transactions import WritableTxnMarker, WritableTxnMarkerResult

log = logging.getLogger("kbroker.transactions")

FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""A newer coordinator has ended the transaction, or coordinates it: this one's markers are not wanted any more."""

MOST_MARKERS = 5_000  # in one request: a fraction of the elements and bytes that its receiver takes


class _Sending:
    """A decided transaction whose markers are on their way.

    left: the partitions without a committed marker; under_way: those that have one which is not committed, or whose
    leaders are to be asked. is_in_slices: it is being gone through, and whatever happens meanwhile is looked at then.
    """

    __slots__ = ("_refusals", "_unknown_since", "is_given_up", "is_in_slices", "left", "markers", "under_way")

    def __init__(self, markers: WriteMarkers) -> None:
        self._unknown_since: dict[TopicPartition, int] = {}
        self._refusals: dict[TopicPartition, ErrorCode] = {}
        self.markers = markers
        self.left = set(markers.transaction.partitions)
        self.under_way: set[TopicPartition] = set()
        self.is_given_up = self.is_in_slices = False

    @property
    def producer_id(self) -> int:
        """Of the transaction."""
        return self.markers.transaction.producer_id

    @property
    def is_waited_for(self) -> bool:
        """Whether there is nothing to do but to hear of what is under way."""
        return 0 < len(self.left) <= len(self.under_way)

    def is_news(self, where: TopicPartition, code: ErrorCode) -> bool:
        """Whether a partition refuses its marker for another reason than before: it is tried again at once."""
        before, self._refusals[where] = self._refusals.get(where), code
        return before is not code

    def is_unknown_since(self, where: TopicPartition, now_ms: int) -> int:
        """When it was first found that the image of the cluster does not have a partition."""
        return self._unknown_since.setdefault(where, now_ms)


Wanted: TypeAlias = "dict[_Sending, list[TopicPartition]]"
"""Markers for these partitions of each transaction: what a leader is to be asked, and the token of a request."""


def _not_told(markers: WriteMarkers, now_ms: int) -> None:
    raise AssertionError(f"{markers.transaction.name} has all its markers, and there is no coordinator yet")


class TransactionMarkers:
    """Markers on their way. done: told when every partition of a transaction has its marker, with the time."""

    def __init__(
        self,
        broker_id: int,
        replicas: ReplicaManager,
        cache: MetadataCache,
        groups: Runtime[GroupShard],
        clock: Clock,
        requester: Requester,
        scheduler: Scheduler,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._cache = cache
        self._groups = groups
        self._clock = clock
        self._requester = requester
        self._scheduler = scheduler
        self.done: Callable[[WriteMarkers, int], None] = _not_told
        self._wanted: defaultdict[int, Wanted] = defaultdict(dict)  # by leader
        self._retrying: dict[_Sending, None] = {}  # in this order
        self._retry_at = scheduler.alarm(self._retry)
        self.uncommitted: dict[Partition, deque[tuple[int, _Sending, TopicPartition]]] = {}

    # --- of the own coordinator

    def send(self, markers: WriteMarkers, now_ms: int) -> None:
        """Have every partition of a decided transaction get its marker."""
        self._write_or_send(_Sending(markers), now_ms)
        self._ask_leaders(now_ms)

    def _write_or_send(self, sending: _Sending, now_ms: int) -> None:
        """Mark what can be marked now, gather what leaders elsewhere are to be asked; the rest is tried again later."""
        if sending.is_in_slices:
            return
        todo = sorted(sending.left - sending.under_way)
        if len(todo) > MARKERS_AT_ONCE:
            sending.is_in_slices = True
            self._scheduler.start_task(self, self._in_slices(sending, todo))
            return
        for where in todo:
            self._see_to(sending, where, now_ms)
        self._gone_through(sending, now_ms)

    def _in_slices(self, sending: _Sending, todo: list[TopicPartition]) -> Steps:
        for where in todo:
            if sending.is_given_up:
                break
            self._see_to(sending, where, self._clock.now_ms())
            yield
        sending.is_in_slices = False
        now_ms = self._clock.now_ms()
        self._gone_through(sending, now_ms)
        self._ask_leaders(now_ms)

    def _see_to(self, sending: _Sending, where: TopicPartition, now_ms: int) -> None:
        """One partition that has no marker on its way."""
        state = self._cache.partition(*where)
        if state is None:
            if sending.is_unknown_since(where, now_ms) <= now_ms - DELETED_IF_UNKNOWN_MS:
                sending.left.discard(where)  # the partition has been deleted
        elif state.leader == self._broker_id:
            self._mark(sending, where, now_ms)
        elif state.leader >= 0:
            sending.under_way.add(where)
            self._wanted[state.leader].setdefault(sending, []).append(where)

    def _gone_through(self, sending: _Sending, now_ms: int) -> None:
        """Every partition has been seen to; those without a leader, or not known yet, are when time has passed."""
        if sending.is_given_up:
            return
        if not sending.left:
            self._retrying.pop(sending, None)
            self.done(sending.markers, now_ms)
        elif not sending.left <= sending.under_way:
            self._try_later(sending, now_ms)

    def _try_later(self, sending: _Sending, now_ms: int) -> None:
        self._retrying[sending] = None
        if not self._retry_at.pending:
            self._retry_at.set(now_ms + MARKER_RETRY_MS)

    def _mark(self, sending: _Sending, where: TopicPartition, now_ms: int) -> None:
        """Give one partition its marker."""
        transaction, epoch = sending.markers.transaction, sending.markers.coordinator_epoch
        producer = Producer(transaction.producer_id, transaction.producer_epoch)
        try:
            partition, end_offset = self.append(where, producer, epoch, now_ms, commit=transaction.is_commit)
        except KafkaError as error:
            self._refused(sending, where, error)
            return
        assert partition.log is not None, partition
        if partition.log.high_watermark >= end_offset:
            sending.left.discard(where)
        else:
            sending.under_way.add(where)
            self.uncommitted.setdefault(partition, deque()).append((end_offset, sending, where))

    def _refused(self, sending: _Sending, where: TopicPartition, error: KafkaError) -> None:
        name = sending.markers.transaction.name
        if error.code in FENCED:
            log.warning("transaction %s: its markers are not wanted any more: %s", name, error)
            sending.is_given_up = True
        elif error.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            sending.left.discard(where)
        elif sending.is_news(where, error.code):
            log.info("transaction %s: no marker for %s-%d yet: %s", name, *where, error)

    # --- of partitions led elsewhere

    def _ask_leaders(self, now_ms: int) -> None:
        """Send every leader that is not being asked already what is wanted of it."""
        for leader in [each for each in self._wanted if not self._requester.is_asking(each, MARKERS)]:
            wanted = self._wanted.pop(leader)
            now: dict[int, _Sending] = {}  # one of each producer, by whose id the answer tells them apart
            sendings: Wanted = {}
            later: Wanted = {}
            room = MOST_MARKERS
            for sending, partitions in wanted.items():
                if sending.is_given_up:
                    continue
                if not room or now.setdefault(sending.producer_id, sending) is not sending:
                    later[sending] = partitions
                    continue
                sendings[sending] = partitions[:room]
                if len(partitions) > room:
                    later[sending] = partitions[room:]
                room -= len(sendings[sending])
            if not now or self._ask(leader, sendings):
                if later:
                    self._wanted[leader] = later
            else:
                self._not_answered(wanted, now_ms)

    def _ask(self, leader: int, sendings: Wanted) -> bool:
        """Send a leader the markers of its partitions; whether that was possible."""
        from protocol.messages.transactions import WriteTxnMarkersRequest  # most brokers never send it

        request = WriteTxnMarkersRequest(markers=[_marker(*each) for each in sendings.items()])
        return self._requester.ask(self, leader, MARKERS, request, sendings)

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """What a leader says of the markers that it was sent."""
        from protocol.messages.transactions import WriteTxnMarkersResponse

        sendings = cast("Wanted", asked.token)
        if isinstance(event, PeerAnswer):
            assert isinstance(event.response, WriteTxnMarkersResponse), event
            by_producer = {sending.producer_id: sending for sending in sendings}
            for result in event.response.markers:
                if result.producer_id in by_producer:
                    self._told(by_producer[result.producer_id], result)
        else:  # whatever waits for this broker may have another leader by now
            self._not_answered(self._wanted.pop(asked.broker_id, {}), now_ms)
        self._not_answered(sendings, now_ms)
        self._ask_leaders(now_ms)

    def _not_answered(self, sendings: Wanted, now_ms: int) -> None:
        """These partitions are not under way to their leaders any more; what has no marker yet is tried again later."""
        for sending, partitions in sendings.items():
            sending.under_way.difference_update(partitions)
            if not sending.left:
                self._write_or_send(sending, now_ms)
            elif not sending.is_given_up and not sending.left <= sending.under_way:
                self._try_later(sending, now_ms)

    def _told(self, sending: _Sending, result: WritableTxnMarkerResult) -> None:
        for topic in result.topics:
            for part in topic.partitions:
                where, code = (topic.name, part.partition_index), ErrorCode.of(part.error_code)
                if code is ErrorCode.NONE:
                    sending.left.discard(where)
                    sending.under_way.discard(where)
                else:
                    self._refused(sending, where, KafkaError(code, "says its leader"))

    # --- one marker

    def append(
        self,
        where: TopicPartition,
        producer: Producer,
        coordinator_epoch: int,
        now_ms: int,
        *,
        commit: bool,
        transaction_version: int = 0,
    ) -> tuple[Partition, int]:
        """Append a marker as the partition's leader. Returns: the partition, and where the marker ends.

        It counts when the high watermark has passed it; offsets that were committed in the transaction count then, too.
        Raises: KafkaError.
        """
        partition = self._replicas.find(*where)
        if producer.producer_id < 0:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"a marker of producer {producer.producer_id}")
        wall_ms = self._clock.wall_ms()
        marker = EndTransactionMarker(ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch)
        batch = build_marker_batch(
            marker, producer_id=producer.producer_id, producer_epoch=producer.epoch, timestamp=wall_ms
        )
        content = Marker(commit, coordinator_epoch, wall_ms, transaction_version)
        first_offset = self._replicas.append_own(partition, batch, wall_ms, content)
        log = partition.log
        assert log is not None, partition
        if partition.topic == CONSUMER_OFFSETS:
            self._groups.marked(
                partition.index, producer.producer_id, first_offset, log.high_watermark, now_ms, commit=commit
            )
        return partition, first_offset + 1

    # --- what happens meanwhile

    def moved(self, partition: Partition, now_ms: int) -> None:
        """A partition has another high watermark, or another leader: to be told while there are `uncommitted` ones."""
        waiting = self.uncommitted.pop(partition, None)
        if waiting is None:
            return
        log = partition.log if partition.is_leader else None
        while waiting and (log is None or waiting[0][0] <= log.high_watermark):
            _, sending, where = waiting.popleft()
            sending.under_way.discard(where)
            if log is not None:
                sending.left.discard(where)
            if sending.is_waited_for or sending.is_given_up or sending in self._retrying:
                continue
            self._write_or_send(sending, now_ms)
        if waiting:
            self.uncommitted[partition] = waiting
        self._ask_leaders(now_ms)

    def _retry(self, now_ms: int) -> None:
        """Try again what could not be done before."""
        retrying, self._retrying = self._retrying, {}
        for sending in retrying:
            self._write_or_send(sending, now_ms)
        self._ask_leaders(now_ms)


def _marker(sending: _Sending, partitions: list[TopicPartition]) -> WritableTxnMarker:
    from protocol.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic

    transaction = sending.markers.transaction
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=transaction.is_commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=each) for name, each in topics.items()],
        coordinator_epoch=sending.markers.coordinator_epoch,
    )
