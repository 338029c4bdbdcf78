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

from kbroker.api.fetch_reader import FOLLOWERS_SINCE, NO_DIVERGENCE, Reader, divergence
from kbroker.log.isolation import LOG_END
from kbroker.replica.partition import NO_EPOCH
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from kbroker.api.call import Call, Signal
    from kbroker.broker.fetch_sessions import FetchSession, Part, Wanted
    from kbroker.replica import Partition
    from protocol.flat import Flat


class FollowerReader(Reader):
    """One fetch of a follower, who may take part in the cluster (`fetch.py` has asked).

    replica_id: a broker's. broker_epoch: of its life, -1 unknown.
    """

    WAITS_FOR_EACH = False  # it comes again, and what others have is to stay in sync

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
            offset = wanted.fetch_offset
            partition = self._read_to_its_end(wanted)
            if partition is not None:
                follower = partition.followers[replica_id]
                is_as_it_was = (follower.log_end_offset, follower.log_start_offset) == (offset, wanted.log_start_offset)
                if is_as_it_was and replica_id in partition.isr:  # nothing moves
                    follower.fetched(offset, wanted.log_start_offset, broker_epoch, now_ms, offset)
                    continue
            else:
                self._comes_with_all = False
                try:
                    partition = self._find(wanted)
                    log = partition.log
                    assert log is not None, partition  # it leads
                    if not log.log_start_offset <= offset <= log.log_end_offset:
                        continue
                    if wanted.last_fetched_epoch >= 0 and divergence(partition, wanted) is not NO_DIVERGENCE:
                        continue
                except KafkaError:
                    continue  # the answer says so
            fetched(partition, replica_id, offset, wanted.log_start_offset, broker_epoch, now_ms)

    def first_response(self) -> Flat | Signal | None:
        """As for a consumer, right after `arrive`."""
        return None if self._comes_with_all and self._min_bytes > 0 else super().response_if_enough()

    def response_if_enough(self) -> Flat | Signal | None:
        """As for a consumer; who has all there is needs no look at what there is to read.

        A parked fetch is looked at whenever the high watermark moves, which is no news to it.
        """
        return None if self._min_bytes > 0 and self._has_all() else super().response_if_enough()

    def _has_all(self) -> bool:
        """Whether every partition ends where the follower reads on."""
        for wanted in self._wanted:  # noqa: SIM110  # a generator costs as much as the look
            if self._read_to_its_end(wanted) is None:
                return False
        return True

    def _read_to_its_end(self, wanted: Wanted) -> Partition | None:
        """The partition, if it is led here, in the epoch that the follower knows, and ends where it reads on."""
        here: dict[tuple[str | None, int], Partition] = self._replicas.partitions  # type: ignore[assignment]  # of no name there is none
        partition = here.get((wanted.topic, wanted.index))
        if partition is None or not partition.is_leader or partition.leader_epoch != wanted.current_leader_epoch:
            return None
        log = partition.log
        if log is None or log.log_end_offset != wanted.fetch_offset or self._replica_id not in partition.followers:
            return None
        if wanted.last_fetched_epoch not in (log.epochs.latest, NO_EPOCH) or partition.is_of_another(wanted.topic_id):
            return None
        return partition

    # -- throttled

    def may_answer(self) -> bool:
        """As for a consumer; records that are held back are not counted."""
        wanted = self._wanted
        left = [each for each in wanted if self._read_to_its_end(each) is None]  # the others have nothing to say
        if self._is_held_up:
            left = [each for each in left if not self._is_held_back(each)]
        self._wanted = left
        try:
            return super().may_answer()
        finally:
            self._wanted = wanted

    def _begin(self) -> list[Part]:
        self._holds_back = self._is_held_up  # what is sent counts at the end of the answer: so it stays
        return super()._begin()

    def _read(self, wanted: Wanted, answers: list[Part]) -> None:
        """As for a consumer; what the follower knows already is passed over: of most partitions there is no news."""
        partition = self._read_to_its_end(wanted)
        if partition is not None and self._session is not None and not self._session.is_full:
            log = partition.log
            assert log is not None, partition
            if log.high_watermark == wanted.told_high_watermark and log.log_start_offset == wanted.told_log_start:
                return
        if not self._holds_back or not self._is_held_back(wanted):
            super()._read(wanted, answers)
            return
        before = self._left, self._whole_first
        self._left, self._whole_first = 0, False
        super()._read(wanted, answers)
        self._left, self._whole_first = before

    def _answer(self, answers: Sequence[Part]) -> Flat:
        self._note_sent(answers)
        return super()._answer(answers)

    def _answer_in_slices(self, answers: Sequence[Part]) -> Generator[None, None, Flat]:
        self._note_sent(answers)
        return (yield from super()._answer_in_slices(answers))

    def _note_sent(self, answers: Sequence[Part]) -> None:
        throttle = self._replicas.throttles.leaders
        if throttle.is_on:
            here = self._replicas.partitions
            for wanted, _, size in answers:
                partition = here.get((wanted.topic or "", wanted.index))  # one read in an earlier slice may have gone
                if size and partition is not None and partition.is_throttled_leader:
                    throttle.record(size, self._call.broker.clock.now_ms())

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
        here: dict[tuple[str | None, int], Partition] = self._replicas.partitions  # type: ignore[assignment]  # of no name there is none
        found = here.get((wanted.topic, wanted.index))
        if (
            found is not None
            and found.is_leader
            and found.log is not None
            and found.leader_epoch == wanted.current_leader_epoch
            and self._replica_id in found.followers
            and self._call.version >= FOLLOWERS_SINCE
            and not found.is_of_another(wanted.topic_id)
        ):
            return found  # as nearly always; what is amiss is found below
        partition = super()._find(wanted)
        partition.led()
        if self._replica_id not in partition.followers:
            knows_epoch = wanted.current_leader_epoch >= 0
            code = ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise KafkaError(code, f"broker {self._replica_id} has no replica of {partition.topic}-{partition.index}")
        return partition
