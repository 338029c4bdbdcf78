"""One replica of a partition: am I its leader, in which epoch, with whom in sync; then the log may do its work.

Owns what LeaderAndIsr decides (leader, epochs, in-sync set) and the high watermark that follows from it. Called by
the API handlers through `manager.py`, for one partition at a time. It never waits, never answers a client and knows
no request: what it cannot do it raises as KafkaError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID

if TYPE_CHECKING:
    from kbroker.log.append import AppendPlan
    from kbroker.log.epochs import EpochEnd
    from kbroker.log.log import Fetched, Log
    from kbroker.log.producers import Origin

ALL_REPLICAS = -1  # acks: as many as are in sync
NO_EPOCH = -1
READ_COMMITTED = 1


class LeaderState(NamedTuple):
    """What the controller decided about a partition (LeaderAndIsr)."""

    controller_epoch: int
    leader: int  # node id; -1 none
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int  # version of the partition's state in the metadata store
    replicas: tuple[int, ...]


class Partition:
    """A partition of which this broker holds a replica. It is its own key in the purgatory.

    log: None while its directory is offline. leader_id: -1 if there is none. isr, replicas, leader_epoch,
    partition_epoch: as the controller last said.
    """

    __slots__ = (
        "_alone",
        "broker_id",
        "index",
        "is_internal",
        "is_leader",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "min_insync_replicas",
        "partition_epoch",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, index: int, topic_id: bytes, broker_id: int, *, is_internal: bool) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.broker_id = broker_id
        self._alone = (broker_id,)
        self.is_internal = is_internal
        self.log: Log | None = None
        self.min_insync_replicas = 1
        self.leader_id = -1
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        self.is_leader = False

    def __repr__(self) -> str:
        role = "leads" if self.is_leader else "follows"
        return f"<{self.topic}-{self.index}: {self.broker_id} {role} in epoch {self.leader_epoch}>"

    def is_of_another(self, topic_id: bytes) -> bool:
        """Whether this is of another topic of the name; not if either id is unknown."""
        return topic_id != self.topic_id and ZERO_UUID not in (topic_id, self.topic_id)

    # -- roles

    def lead(self, state: LeaderState, log: Log) -> None:
        """Become, or stay, the leader. The epoch starts at the end of the log."""
        self._adopt(state, log)
        self.is_leader = True
        log.epochs.assign(state.leader_epoch, log.log_end_offset)  # an epoch that has begun already stays where it is
        self.advance_high_watermark()

    def follow(self, state: LeaderState, log: Log) -> None:
        """Become, or stay, a follower."""
        self._adopt(state, log)
        self.is_leader = False

    def _adopt(self, state: LeaderState, log: Log) -> None:
        assert state.leader_epoch >= self.leader_epoch, (self, state)
        self.log = log
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.isr = state.isr
        self.replicas = state.replicas

    def advance_high_watermark(self) -> bool:
        """Move the high watermark to what every in-sync replica has; whether it moved.

        Alone in sync, that is the end of the own log, or what of it is durable if flush.messages says so. Followers'
        offsets join in with replication.
        """
        log = self._require_log()
        if not self.is_leader or self.isr != self._alone:
            return False
        before = log.high_watermark
        return log.set_high_watermark(log.log_end_offset) != before

    # -- what clients ask of a leader

    def append(self, records: memoryview, acks: int, wall_ms: int, origin: Origin) -> AppendPlan:
        """Append one batch as the leader. Raises: KafkaError (also all those of the log), OSError."""
        log = self.log
        if not self.is_leader or log is None:
            raise self._not_leader()
        if acks == ALL_REPLICAS and self.is_under_min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic}-{self.index}: {len(self.isr)} replicas are in sync, "
                f"min.insync.replicas is {self.min_insync_replicas}",
            )
        plan = log.append_as_leader(records, self.leader_epoch, wall_ms, origin)
        if self.isr == self._alone:
            log.set_high_watermark(log.log_end_offset)
        return plan

    @property
    def is_under_min_isr(self) -> bool:
        """Whether too few are in sync for acks=all: min.insync.replicas asks for no more replicas than there are."""
        in_sync = len(self.isr)
        return in_sync < self.min_insync_replicas and in_sync < len(self.replicas)

    def read(self, offset: int, max_bytes: int, isolation: int, *, whole_first_batch: bool) -> Fetched:
        """What a consumer sees from `offset` on. Raises: KafkaError OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER."""
        log = self.led()
        if isolation == READ_COMMITTED:
            bound = log.last_stable_offset
            return log.read(offset, max_bytes, bound, whole_first_batch=whole_first_batch, with_aborted=True)
        return log.read(offset, max_bytes, log.high_watermark, whole_first_batch=whole_first_batch)

    def readable_end(self, isolation: int) -> int:
        """The offset below which a consumer reads."""
        log = self.led()
        return log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """Where a leader epoch, or the largest one below it, ends in this log."""
        return self.led().last_offset_of_epoch(epoch)

    def delete_records(self, before: int) -> int:
        """Move the log start offset up; -1 means the high watermark. Returns: the log start offset."""
        log = self.led()
        offset = log.high_watermark if before == -1 else before
        if offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {before} is negative")
        log.advance_log_start(offset)
        return log.log_start_offset

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose idea of the leader epoch is not ours; -1 has none (KIP-320)."""
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
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
