"""A partition of which this broker has a replica: its leader, leader epoch, in-sync set (ISR) and high watermark.

Owns what LeaderAndIsr decides (leader, epochs, in-sync set), a value for each follower while it leads
(`followers.py`), and what follows from both: the high watermark, and who should join or leave the in-sync set. Called
by the API handlers through `manager.py`, for one partition at a time. It never waits, never answers a client and knows
no request: what it cannot do it raises as KafkaError.

The high watermark is the smallest log end of all in sync, of the one that is about to join them, and of those that
have caught up and will ask to: else they would fall behind it at the moment they join. While fewer are in sync than
min.insync.replicas asks for, it stays. The set changes through the controller: a proposal is made, the larger of the
two sets counts until it is answered, and after that there may be another one (KIP-497).

Source: Partition of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.log.isolation import HIGH_WATERMARK, LOG_END, TXN_COMMITTED, FetchIsolation
from kbroker.replica.followers import Follower
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.log.append import AppendPlan, Opener
    from kbroker.log.epochs import EpochEnd
    from kbroker.log.log import Log
    from kbroker.log.producer_state import Marker, Origin
    from kbroker.log.reads import Fetched
    from kbroker.replica.followers import InSyncRules

ALL_REPLICAS = -1  # acks: as many as are in sync
NO_EPOCH = -1
NO_BROKER = -1


class LeaderState(NamedTuple):
    """What the controller decided about a partition (LeaderAndIsr).

    adding, removing: replicas that a reassignment under way brings, and takes away at its end.
    """

    controller_epoch: int
    leader: int  # node id; -1 none
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int  # version of the partition's state in the metadata store
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class Proposal(NamedTuple):
    """Another in-sync set, on its way to the controller. joining: who is new in it, -1 if it only gets smaller."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int  # of the state that it is to replace
    joining: int


class Partition:
    """A partition of which this broker holds a replica. It is its own key in the purgatory.

    log: None while its directory is offline. leader_id: -1 if there is none. isr, replicas, leader_epoch,
    partition_epoch: as the controller last said. followers: by broker id, while this is the leader.
    is_throttled_leader, is_throttled_follower: whether the topic names this replica, should it be either.
    told_high_watermark, told_log_start: the leader's, as it last told a follower. proposal: the in-sync set that the
    controller was asked for.
    """

    __slots__ = (
        "_alone",
        "_epoch_start",
        "_knows_all_in_sync",
        "_rules",
        "adding",
        "broker_id",
        "followers",
        "index",
        "is_internal",
        "is_leader",
        "is_throttled_follower",
        "is_throttled_leader",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "min_insync_replicas",
        "partition_epoch",
        "proposal",
        "removing",
        "replicas",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: str, index: int, topic_id: bytes, broker_id: int, rules: InSyncRules, *, is_internal: bool
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.broker_id = broker_id
        self._alone = (broker_id,)
        self._rules = rules
        self._knows_all_in_sync = True  # all of the set are replicas, so that it is known how far they are
        self._epoch_start = 0  # where the epoch begins that this broker leads
        self.is_internal = is_internal
        self.log: Log | None = None
        self.min_insync_replicas = 1
        self.is_throttled_leader = False
        self.is_throttled_follower = False
        self.leader_id = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.told_high_watermark = self.told_log_start = 0
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.removing: tuple[int, ...] = ()
        self.is_leader = False
        self.followers: dict[int, Follower] = {}
        self.proposal: Proposal | None = None

    def __repr__(self) -> str:
        role = "leads" if self.is_leader else "follows"
        return f"<{self.topic}-{self.index}: {self.broker_id} {role} in epoch {self.leader_epoch}>"

    def is_of_another(self, topic_id: bytes) -> bool:
        """Whether this is of another topic of the name; not if either id is unknown."""
        return topic_id != self.topic_id and ZERO_UUID not in (topic_id, self.topic_id)

    # -- roles

    def lead(self, state: LeaderState, log: Log) -> None:
        """Become, or stay, the leader. A new epoch starts at the end of the log."""
        is_new_epoch = state.leader_epoch > self.leader_epoch
        self._adopt(state, log)
        self.is_leader = True
        log.begin_epoch(state.leader_epoch)
        others = (each for each in state.replicas if each != self.broker_id)
        self.followers = {each: self.followers.get(each) or Follower(each) for each in others}
        self._check_followers_known()
        if is_new_epoch:
            self._epoch_start = log.log_end_offset
            now_ms = self._rules.now_ms() if self.followers else 0
            for follower in self.followers.values():
                follower.begin_epoch(now_ms, log.log_end_offset, in_sync=follower.broker_id in state.isr)
        self.advance_high_watermark()

    def follow(self, state: LeaderState, log: Log) -> None:
        """Become, or stay, a follower."""
        self._adopt(state, log)
        self.is_leader = False
        self.followers = {}

    def amend(self, state: LeaderState) -> bool:
        """Stay in this leader epoch, with other replicas, or others in sync; whether the high watermark moved.

        What a proposal has brought about comes once as its answer and once from here, in any order: in the partition
        epoch that is known already, the set and a proposal that is on its way stay.
        """
        assert (state.leader_epoch, state.leader) == (self.leader_epoch, self.leader_id), (self, state)
        assert state.partition_epoch >= self.partition_epoch, (self, state)
        self.replicas, self.adding, self.removing = state.replicas, state.adding, state.removing
        if state.partition_epoch > self.partition_epoch:
            self.isr, self.partition_epoch, self.proposal = state.isr, state.partition_epoch, None
        if not self.is_leader:
            return False
        others = (each for each in state.replicas if each != self.broker_id)
        self.followers = {each: self.followers.get(each) or Follower(each) for each in others}
        self._check_followers_known()
        return self.log is not None and self.advance_high_watermark()

    def resign(self) -> None:
        """Be neither: the replica is given up."""
        self.is_leader = False
        self.leader_id = -1
        self.followers = {}
        self.proposal = None

    def _adopt(self, state: LeaderState, log: Log) -> None:
        assert state.leader_epoch >= self.leader_epoch, (self, state)
        if state.leader_epoch > self.leader_epoch:
            self.told_high_watermark = self.told_log_start = 0
        if not log.config.has_epochs:
            log.epochs.clear()  # of an earlier format: what is fetched would seem to be of the last of them
        self.log = log
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.isr = state.isr
        self.replicas = state.replicas
        self.adding = state.adding
        self.removing = state.removing
        self.proposal = None

    def _check_followers_known(self) -> None:
        self._knows_all_in_sync = self.followers.keys() >= set(self.isr) - {self.broker_id}

    @property
    def has_replication_lag(self) -> bool:
        """Whether there are records that are not committed yet, and this is the leader."""
        return self.is_leader and self.log is not None and self.log.high_watermark < self.log.log_end_offset

    def advance_high_watermark(self) -> bool:
        """Move the high watermark to what every in-sync replica has; whether it moved.

        Of the own log, it is what is durable that counts if flush.messages says so.
        """
        log = self._require_log()
        if not self.is_leader or self.is_under_min_isr:
            return False
        before = log.high_watermark
        everywhere = self._min_isr_end_offset(log)
        return everywhere > before and log.set_high_watermark(everywhere) != before

    def _min_isr_end_offset(self, log: Log) -> int:
        """Up to where all have the log that are in sync, or about to be."""
        end_offset = log.log_end_offset
        if self.isr == self._alone and not self.followers:
            return end_offset
        joining = self.proposal.joining if self.proposal is not None else NO_BROKER
        now_ms = self._rules.now_ms()
        everywhere = end_offset if self._knows_all_in_sync else 0
        for broker_id, follower in self.followers.items():
            if follower.log_end_offset < everywhere and (
                broker_id in self.isr
                or broker_id == joining
                or (
                    follower.is_caught_up(end_offset, now_ms, self._rules.max_lag_ms)
                    and self._rules.is_alive(broker_id)
                )
            ):
                everywhere = follower.log_end_offset
        return everywhere

    # -- followers, and who of them is in sync

    def follower_fetched(
        self, broker_id: int, offset: int, log_start_offset: int, broker_epoch: int, now_ms: int
    ) -> bool:
        """A follower has everything below `offset`; whether the high watermark moved. There may be a `proposal` then.

        broker_id: one of `followers`.
        """
        log = self.log
        assert log is not None, self
        follower = self.followers[broker_id]
        before = follower.log_end_offset
        follower.fetched(offset, log_start_offset, broker_epoch, now_ms, log.log_end_offset)
        if broker_id not in self.isr and self.proposal is None:
            self._maybe_expand_isr(follower, log)
        return offset != before and self.advance_high_watermark()

    def _maybe_expand_isr(self, follower: Follower, log: Log) -> None:
        """Expand the ISR by a follower, once it has all that is committed, and has come into this epoch."""
        offset = follower.log_end_offset
        if offset >= log.high_watermark and offset >= self._epoch_start and self._rules.is_alive(follower.broker_id):
            self._propose((*self.isr, follower.broker_id), follower.broker_id)

    def maybe_shrink_isr(self, now_ms: int) -> bool:
        """Shrink the ISR: propose it without those who have not been caught up for too long; whether there are any."""
        log = self.log
        if not self.is_leader or log is None or self.proposal is not None or self.isr == self._alone:
            return False
        end_offset, max_lag_ms = log.log_end_offset, self._rules.max_lag_ms
        in_sync = tuple(
            each
            for each in self.isr
            if each == self.broker_id
            or (each in self.followers and self.followers[each].is_caught_up(end_offset, now_ms, max_lag_ms))
        )
        if in_sync == self.isr:
            return False
        self._propose(in_sync, NO_BROKER)
        return True

    def _propose(self, isr: tuple[int, ...], joining: int) -> None:
        self.proposal = Proposal(isr, self.leader_epoch, self.partition_epoch, joining)

    def granted(self, proposal: Proposal, isr: tuple[int, ...], leader_epoch: int, partition_epoch: int) -> bool:
        """The controller has written a set; whether the high watermark moved. Old news is none."""
        is_old = leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch
        if self.proposal is not proposal or is_old:
            return False
        self.isr = isr
        self._check_followers_known()
        self.partition_epoch = partition_epoch
        self.proposal = None
        return self.log is not None and self.advance_high_watermark()

    def withdraw(self, proposal: Proposal) -> None:
        """The controller has not done it, and will not: the set is what it was."""
        if self.proposal is proposal:
            self.proposal = None

    # -- what clients ask of a leader

    def append(self, records: memoryview, acks: int, wall_ms: int, origin: Origin) -> AppendPlan:
        """Append one batch as the leader. Raises: KafkaError (also all those of the log), OSError."""
        log = self._appendable(acks)
        plan = log.append_as_leader(records, self.leader_epoch, wall_ms, origin)
        if self.isr == self._alone:
            self._commit_alone(log)
        return plan

    def append_from_client(
        self, records: memoryview, acks: int, wall_ms: int, opener: Opener | None = None
    ) -> int | AppendPlan:
        """The same, of a client's batch. Returns: as `Log.append_from_client`."""
        log = self.log
        if log is None or not self.is_leader or acks == ALL_REPLICAS:  # else `_appendable` has nothing to ask
            log = self._appendable(acks)
        written = log.append_from_client(records, self.leader_epoch, wall_ms, opener)
        if self.isr == self._alone:
            self._commit_alone(log)
        return written

    def append_own(self, batch: bytearray, wall_ms: int, marker: Marker | None = None) -> int | AppendPlan:
        """The same, with acks=all, of a batch that this broker has just built; as `Log.append_own`."""
        log = self._appendable(ALL_REPLICAS)
        written = log.append_own(batch, self.leader_epoch, wall_ms, marker)
        if self.isr == self._alone:
            self._commit_alone(log)
        return written

    def check_appendable(self) -> None:
        """Raises: KafkaError, as `append_own` would now."""
        self._appendable(ALL_REPLICAS)

    def _appendable(self, acks: int) -> Log:
        """The log, if this is its leader, and enough are in sync. Raises: KafkaError."""
        log = self.log
        if not self.is_leader or log is None:
            raise self._not_leader()
        if acks == ALL_REPLICAS and self.is_under_min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic}-{self.index}: {len(self.isr)} replicas are in sync, "
                f"min.insync.replicas is {self.min_insync_replicas}",
            )
        return log

    def _commit_alone(self, log: Log) -> None:
        """Move the high watermark after an append, no other replica being in sync: only one about to join counts."""
        if self.followers:
            self.advance_high_watermark()
        else:
            log.commit_all()

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few are in sync for acks=all: min.insync.replicas asks for no more replicas than there are."""
        in_sync = len(self.isr)
        return in_sync < self.min_insync_replicas and in_sync < len(self.replicas)

    def read(
        self, offset: int, max_bytes: int, isolation: FetchIsolation, whole_first_batch: bool, may_wait: bool = True
    ) -> Fetched:
        """What a reader sees from `offset` on. may_wait: for the disk; else Raises NotReadyError where it would.

        Raises: KafkaError OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER; OSError.
        """
        log = self._readable(isolation)
        bound = log.high_watermark if isolation is HIGH_WATERMARK else log.readable_end(isolation)
        return log.read(offset, max_bytes, bound, whole_first_batch, isolation is TXN_COMMITTED, may_wait)

    def readable_end(self, isolation: FetchIsolation) -> int:
        """The offset below which a reader reads. Raises: KafkaError NOT_LEADER_OR_FOLLOWER."""
        log = self._readable(isolation)
        return log.high_watermark if isolation is HIGH_WATERMARK else log.readable_end(isolation)

    def _readable(self, isolation: FetchIsolation) -> Log:
        """The log, for consumers here as everywhere (KIP-392), for others if this is the leader. Raises: KafkaError."""
        if self.log is None or (isolation is LOG_END and not self.is_leader):
            raise self._not_leader()
        return self.log

    def check_end_is_known(self) -> None:
        """Refuse a client that asks for the end, while that may lie before one that was told already (KIP-207).

        A new leader's high watermark is what it heard as a follower, until those in sync have fetched from it.
        Raises: KafkaError OFFSET_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER.
        """
        high_watermark = self.led().high_watermark
        if high_watermark < self._epoch_start:
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{self.topic}-{self.index}: the high watermark, {high_watermark}, has yet to reach "
                f"{self._epoch_start}, where epoch {self.leader_epoch} begins",
            )

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Where a leader epoch, or the largest one below it, ends in this log, leader's or follower's."""
        return self._require_log().last_offset_of_epoch(epoch)

    def delete_records(self, before: int) -> int:
        """Move the log start offset up; -1 means the high watermark. Returns: the log start offset."""
        log = self.led()
        offset = log.high_watermark if before == -1 else before
        if offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {before} is negative")
        log.advance_log_start(offset)
        return log.log_start_offset

    def low_watermark(self) -> int:
        """Where the log starts on every replica whose broker lives, as far as they have said. Raises: KafkaError."""
        starts = [self.led().log_start_offset]
        starts += [each.log_start_offset for each in self.followers.values() if self._rules.is_alive(each.broker_id)]
        return min(starts)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose idea of the leader epoch is not ours; -1 has none (KIP-320). Raises: KafkaError."""
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        self._require_log()  # without one, epochs have gone on elsewhere since
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {current_leader_epoch} is over, it is {self.leader_epoch}"
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"leader epoch {current_leader_epoch} is new here, we have {self.leader_epoch}",
        )

    def led(self) -> Log:
        """The log, if this is the leader. Raises: KafkaError NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR."""
        if not self.is_leader or self.log is None:
            raise self._not_leader()
        return self.log

    def _require_log(self) -> Log:
        if self.log is None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {self.topic}-{self.index} is offline"
            )
        return self.log

    def _not_leader(self) -> KafkaError:
        if self.log is None:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {self.topic}-{self.index} is offline"
            )
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index} is led by {self.leader_id}")
