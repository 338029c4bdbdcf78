"""A follower's fetch: a consumer's that reads to the end of the log, and whose offsets are acknowledgements.

Made by `fetch.py` for a fetch that names a replica. When it arrives, it is noted partition by partition: what lies
below a fetch offset is on the follower, and may move the high watermark. A fetch offset counts only where the
follower's log agrees with this one: if epochs diverge, or the offset is out of range, it says nothing.

A follower that this leader does not know to be a replica is told UNKNOWN_LEADER_EPOCH if it named the epoch: the
controller may have told it first.

A follower that is throttled and not in sync gets no records while its leader has sent more than it may
(`replica/throttle.py`); errors, bounds and divergence it is told all the same. Source: Partition.fetchRecords,
ReplicaManager.shouldLeaderThrottle of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.fetch_reader import NO_DIVERGENCE, Reader, divergence
from kbroker.broker.permission import Operation
from kbroker.log.isolation import LOG_END
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.api.call import Call, Signal
    from kbroker.broker.fetch_sessions import FetchSession, Part, Wanted
    from kbroker.replica import Partition
    from protocol.flat import Flat


class FollowerReader(Reader):
    """One fetch of a follower, who may take part in the cluster. Raises: KafkaError if it may not.

    replica_id: a broker's. broker_epoch: of its life, -1 unknown.
    """

    __slots__ = ("_broker_epoch", "_comes_with_all", "_holds_back", "_replica_id")

    def __init__(
        self,
        request: Flat,
        call: Call,
        session: FetchSession | None,
        wanted: Sequence[Wanted],
        *,
        replica_id: int,
        broker_epoch: int,
    ) -> None:
        call.broker.permission.require(call.session, Operation.CLUSTER_ACTION)
        super().__init__(request, call, session, wanted)
        self._isolation = LOG_END
        self._replica_id = replica_id
        self._broker_epoch = broker_epoch

    def arrive(self) -> None:
        """Note how far the follower has come."""
        fetched = self._replicas.follower_fetched
        self._comes_with_all = True
        replica_id, broker_epoch, now_ms = self._replica_id, self._broker_epoch, self._call.now_ms
        for wanted in self._wanted:
            try:
                partition = self._find(wanted)
                log, offset, last_epoch = partition.log, wanted.fetch_offset, wanted.last_fetched_epoch
                assert log is not None, partition  # it leads
                if offset != log.log_end_offset or last_epoch != log.epochs.latest or wanted.current_leader_epoch < 0:
                    self._comes_with_all = False
                    if not log.log_start_offset <= offset <= log.log_end_offset:
                        continue
                    if last_epoch >= 0 and divergence(partition, wanted) is not NO_DIVERGENCE:
                        continue
            except KafkaError:
                self._comes_with_all = False
                continue  # the answer says so
            fetched(partition, replica_id, offset, wanted.log_start_offset, broker_epoch, now_ms)

    def first_response(self) -> Flat | Signal | None:
        """As for a consumer, right after `arrive`."""
        return None if self._comes_with_all and self._min_bytes > 0 else super().response_if_enough()

    def response_if_enough(self) -> Flat | Signal | None:
        """As for a consumer; who has all there is needs no look at what there is to read.

        A parked fetch is looked at whenever the high watermark moves, which is no news to it.
        """
        return None if self._has_all() and self._min_bytes > 0 else super().response_if_enough()

    def _has_all(self) -> bool:
        """Whether every partition is led here, in the epoch that the follower knows, and ends where it reads on."""
        here, replica_id = self._replicas.partitions, self._replica_id
        for wanted in self._wanted:
            partition = here.get((wanted.topic, wanted.index))  # type: ignore[arg-type]  # of no name there is none
            if partition is None or not partition.is_leader or partition.leader_epoch != wanted.current_leader_epoch:
                return False
            log = partition.log
            if log is None or log.log_end_offset != wanted.fetch_offset or replica_id not in partition.followers:
                return False
            if log.epochs.latest != wanted.last_fetched_epoch or partition.is_of_another(wanted.topic_id):
                return False
        return True

    # -- throttled

    def may_answer(self) -> bool:
        """As for a consumer; records that are held back are not counted."""
        wanted = self._wanted
        if self._is_held_up:
            self._wanted = [each for each in wanted if not self._is_held_back(each)]
        try:
            return super().may_answer()
        finally:
            self._wanted = wanted

    def _begin(self) -> list[Part]:
        self._holds_back = self._is_held_up  # what is sent counts at the end of the answer: so it stays
        return super()._begin()

    def _read(self, wanted: Wanted, answers: list[Part]) -> None:
        if not self._holds_back or not self._is_held_back(wanted):
            super()._read(wanted, answers)
            return
        before = self._left, self._whole_first
        self._left, self._whole_first = 0, False
        super()._read(wanted, answers)
        self._left, self._whole_first = before

    def _answer(self, answers: Sequence[Part]) -> Flat:
        throttle = self._replicas.throttles.leaders
        if throttle.is_on:
            here = self._replicas.partitions
            for wanted, _, size in answers:
                if size and here[wanted.topic, wanted.index].is_throttled_leader:  # type: ignore[index]  # it was read
                    throttle.note(size, self._call.broker.clock.now_ms())
        return super()._answer(answers)

    @property
    def _is_held_up(self) -> bool:
        """Whether leaders have sent more than they may."""
        throttle = self._replicas.throttles.leaders
        return throttle.is_on and throttle.free_ms() > self._call.broker.clock.now_ms()

    def _is_held_back(self, wanted: Wanted) -> bool:
        """Whether this partition has records that have to wait, and nothing else to say."""
        try:
            partition = self._find(wanted)
            log = partition.led()
            if not partition.is_throttled_leader or self._replica_id in partition.isr:
                return False
            is_in_range = log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset
            return is_in_range and divergence(partition, wanted) is NO_DIVERGENCE
        except KafkaError:
            return False

    def _find(self, wanted: Wanted) -> Partition:
        """As for a consumer; the follower must be one of the partition's."""
        partition = super()._find(wanted)
        partition.led()
        if self._replica_id not in partition.followers:
            knows_epoch = wanted.current_leader_epoch >= 0
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise KafkaError(code, f"broker {self._replica_id} has no replica of {partition.topic}-{partition.index}")
        return partition
