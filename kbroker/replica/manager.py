"""The replica manager: all replicas on this broker, by topic and index, and what the controller wants of them.

Called by API handlers to find a partition, and by `broker/controller_requests.py` with the controller's LeaderAndIsr
and StopReplica requests, which create, lead, follow and delete replicas. Owns the map, not a partition's state.
Partitions that moved are in `touched` until the core takes them: parked requests under them are looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from kbroker.log.config import LogConfig
from kbroker.log.errors import storage_error
from kbroker.metadata.cache import INTERNAL_TOPICS
from kbroker.replica.facts import InSyncProposed, RoleChanged
from kbroker.replica.followers import InSyncRules
from kbroker.replica.partition import LeaderState, Partition
from kbroker.replica.throttle import Throttled, Throttles
from kbroker.tables import shrink
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig, TopicConfig
    from kbroker.log.append import AppendPlan
    from kbroker.log.manager import LogManager
    from kbroker.log.producer_state import Marker, Origin
    from kbroker.metadata.configs import Configs
    from kbroker.ports import Clock
    from kbroker.replica.partition import Proposal

log = logging.getLogger("kbroker.replicas")


class ReplicaManager:
    """The replicas of one broker.

    partitions: by topic and index; by_topic: the same, a topic without any here is not in it.
    touched: partitions with new records, another high watermark, leader or log start. is_known: whether the cluster has
    a partition, here or elsewhere, as this broker was told last. rules: who is in sync. throttles: how fast replicas
    may be copied.
    """

    def __init__(
        self, broker_id: int, logs: LogManager, clock: Clock, configs: Configs, tell: Callable[[object], None]
    ) -> None:
        self.broker_id = broker_id
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.by_topic: dict[str, dict[int, Partition]] = {}
        self.touched: list[Partition] = []
        self.is_known: Callable[[str, int], object] = lambda topic, index: False
        self.rules = InSyncRules(clock.now_ms, configs.broker.replica_lag_time_max_ms)
        self.throttles = Throttles(configs)
        self._logs = logs
        self._clock = clock
        self._configs = configs
        self._tell = tell
        self._last_config: tuple[TopicConfig, BrokerConfig, LogConfig] | None = None
        self._last_throttled: tuple[TopicConfig, Throttled, Throttled] | None = None

    # -- looking up

    def find(self, topic: str, index: int) -> Partition:
        """The replica of a partition. Raises: KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER."""
        partition = self.partitions.get((topic, index))
        if partition is None:
            if self.is_known(topic, index):
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the replicas of {topic}-{index} are elsewhere")
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no replica of {topic}-{index} here")
        return partition

    def of_topic(self, topic: str) -> Collection[Partition]:
        """The replicas of one topic."""
        return self.by_topic.get(topic, {}).values()

    # -- appends

    def append(self, partition: Partition, records: memoryview, acks: int, origin: Origin, wall_ms: int) -> AppendPlan:
        """Append one batch as the leader; who waits for the partition is looked at again.

        Raises: KafkaError, KAFKA_STORAGE_ERROR too, and then the log directory is offline.
        """
        try:
            plan = partition.append(records, acks, wall_ms, origin)
        except OSError as error:
            raise self.storage_error(partition, error) from error
        self.touched.append(partition)
        self.flush_if_wanted(partition, plan)
        return plan

    def append_own(self, partition: Partition, batch: bytearray, wall_ms: int, marker: Marker | None = None) -> int:
        """The same, with acks=all, of a batch that this broker has just built; see `Log.append_own`.

        Returns: its first offset; its last is the last of the log.
        """
        try:
            written = partition.append_own(batch, wall_ms, marker)
        except OSError as error:
            raise self.storage_error(partition, error) from error
        self.touched.append(partition)
        if isinstance(written, int):
            return written
        self.flush_if_wanted(partition, written)
        return written.first_offset

    def flush_if_wanted(self, partition: Partition, plan: AppendPlan) -> None:
        """Begin the fsync that an append has asked for. Raises: KafkaError KAFKA_STORAGE_ERROR."""
        if plan.needs_flush:
            self._logs.flush(partition.topic, partition.index)

    def storage_error(self, partition: Partition, error: OSError) -> KafkaError:
        """The disk failed under a partition: its directory goes offline with all that is in it.

        Not for want of a descriptor: then the client's next try may succeed.
        """
        if partition.log is not None:
            self._logs.disk_failed(partition.log.folder.path, error)
        return _storage_error(partition, error)

    def went_offline(self, lost: Iterable[tuple[str, int]]) -> None:
        """These partitions' directory is offline: their replicas have no log any more."""
        for topic, index in lost:
            partition = self.partitions.get((topic, index))
            if partition is not None and partition.log is not None:
                partition.log = None
                self.touched.append(partition)
                self._tell(RoleChanged(partition, partition.leader_epoch, is_leader=False))

    def became_durable(self, durable: tuple[str, int]) -> None:
        """An fsync that flush.messages asked for has ended: who waits for it is looked at again."""
        partition = self.partitions.get(durable)
        if partition is not None and partition.log is not None:
            if partition.is_leader:
                partition.advance_high_watermark()
            else:  # its leader says nothing again that it has said
                self.follow_bounds(partition, partition.told_high_watermark, partition.told_log_start)
            self.touched.append(partition)

    # -- followers

    def follower_fetched(
        self, partition: Partition, broker_id: int, offset: int, log_start_offset: int, broker_epoch: int, now_ms: int
    ) -> None:
        """A follower of a partition led here has everything below `offset`."""
        before, start = partition.proposal, partition.followers[broker_id].log_start_offset
        is_moved = partition.follower_fetched(broker_id, offset, log_start_offset, broker_epoch, now_ms)
        if is_moved or log_start_offset != start:  # for which DeleteRecords waits
            self.touched.append(partition)
        if partition.proposal is not before:
            self._tell(InSyncProposed(partition))

    def shrink_isrs(self, now_ms: int) -> None:
        """Propose in-sync sets without those who have lagged for too long.

        One that is not in sync, and was caught up, holds the high watermark no longer once it lags, or is dead.
        """
        for partition in self.partitions.values():
            if partition.has_replication_lag and partition.advance_high_watermark():
                self.touched.append(partition)
            if partition.followers and partition.maybe_shrink_isr(now_ms):
                log.info("%s-%d: in sync are %s of %s", *_shrunk(partition))
                self._tell(InSyncProposed(partition))

    def in_sync_granted(
        self, partition: Partition, proposal: Proposal, isr: tuple[int, ...], leader_epoch: int, partition_epoch: int
    ) -> None:
        """The controller has written an in-sync set that was proposed."""
        if partition.granted(proposal, isr, leader_epoch, partition_epoch):
            self.touched.append(partition)

    # -- following

    def append_as_follower(self, partition: Partition, records: memoryview, wall_ms: int) -> None:
        """Append what the leader sent, as it came.

        Raises: KafkaError, KAFKA_STORAGE_ERROR too, and then the log directory is offline; UnexpectedOffsetError.
        """
        assert partition.log is not None, partition
        try:
            plan = partition.log.append_as_follower(records, wall_ms)
        except OSError as error:
            raise self.storage_error(partition, error) from error
        if plan is not None:
            self.touched.append(partition)
            if plan.needs_flush:
                self._logs.flush(partition.topic, partition.index)

    def follow_bounds(self, partition: Partition, high_watermark: int, log_start_offset: int) -> None:
        """The leader's bounds, as far as they are within the own log. What was committed once stays so."""
        own = partition.log
        if own is None:
            return
        partition.told_high_watermark, partition.told_log_start = high_watermark, log_start_offset
        before = own.high_watermark
        if high_watermark > before and own.set_high_watermark(high_watermark) != before:
            self.touched.append(partition)
        if own.log_start_offset < log_start_offset <= own.high_watermark:
            own.advance_log_start(log_start_offset)

    def truncate(
        self, partition: Partition, offset: int, *, start_over: bool = False, log_start_offset: int | None = None
    ) -> bool:
        """Cut a follower's log back; LogTruncated follows. False: its directory has failed, or it is to be tried again.

        So it is where there is no descriptor left: then nothing is cut.
        """
        try:
            self._logs.truncate(
                partition.topic,
                partition.index,
                offset,
                now_ms=self._clock.now_ms(),
                wall_ms=self._clock.wall_ms(),
                start_over=start_over,
                log_start_offset=log_start_offset,
            )
        except KafkaError as error:
            log.error("%s-%d cannot be cut: %s", partition.topic, partition.index, error)
            return False
        return True

    def is_being_cut(self, topic: str, index: int) -> bool:
        """Whether a partition's log is being cut, and that is not durable yet: no append is allowed."""
        try:
            own = self._logs.get(topic, index)
        except KafkaError:  # its directory is offline
            return False
        return own is not None and own.cuts_under_way > 0

    # -- what the controller wants

    def become(self, topic: str, index: int, topic_id: bytes, state: LeaderState, *, is_new: bool) -> None:
        """Lead or follow a partition as of a newer epoch, making its log if there is none; not lead while it is cut.

        Raises: KafkaError STALE_CONTROLLER_EPOCH for an older leader epoch, INCONSISTENT_TOPIC_ID,
        KAFKA_STORAGE_ERROR.
        """
        partition = self.partitions.get((topic, index))
        if partition is None:
            is_internal = topic in INTERNAL_TOPICS
            partition = Partition(topic, index, topic_id, self.broker_id, self.rules, is_internal=is_internal)
            self.partitions[topic, index] = self.by_topic.setdefault(topic, {})[index] = partition
        if partition.is_of_another(topic_id):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic}-{index} has the id {partition.topic_id.hex()}")
        if state.leader_epoch < partition.leader_epoch:
            raise KafkaError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"{topic}-{index}: leader epoch {state.leader_epoch}, we have {partition.leader_epoch}",
            )
        self._open(partition, topic_id, is_new)
        assert partition.log is not None
        if state.leader == self.broker_id:
            assert not partition.log.cuts_under_way, partition
            partition.lead(state, partition.log)
        else:
            partition.follow(state, partition.log)
        self.touched.append(partition)
        self._tell(RoleChanged(partition, state.leader_epoch, partition.is_leader))

    def amend(self, partition: Partition, state: LeaderState) -> ErrorCode:
        """Take over what has changed of a partition within its leader epoch: its replicas, and who is in sync.

        Returns: STALE_CONTROLLER_EPOCH for an older partition epoch than is known, else NONE.
        """
        if state.partition_epoch < partition.partition_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if partition.amend(state):
            self.touched.append(partition)
        return ErrorCode.NONE

    def _open(self, partition: Partition, topic_id: bytes, is_new: bool) -> None:
        config = self._configs.topic_config(partition.topic)
        self._set(partition, config)
        if topic_id != ZERO_UUID:
            partition.topic_id = topic_id
        log_config = self._of_logs(config)
        if partition.log is None:
            self._move_stray_aside(partition, is_new=is_new)
            partition.log = self._logs.get_or_create(
                partition.topic,
                partition.index,
                partition.topic_id,
                log_config,
                is_new=is_new,
                wall_ms=self._clock.wall_ms(),
            )
        self._logs.reconfigure(partition.topic, partition.index, log_config)  # it may be older than what is known now

    def _move_stray_aside(self, partition: Partition, *, is_new: bool) -> None:
        """After a power cut, the folder of a deleted topic can stand where another of its name is to be.

        The renaming that took it away was not durable yet. Its records are not this topic's: as a stray it is kept, and
        not read. A folder without an id is one, too, if it has records and the partition was only just made.
        """
        stranger = self._logs.get(partition.topic, partition.index)
        if stranger is None or partition.topic_id == ZERO_UUID:
            return
        try:
            found = self._logs.mended_topic_id(partition.topic, partition.index, partition.topic_id)
        except OSError as error:
            self._logs.disk_failed(stranger.folder.path, error)
            raise storage_error(error, str(error)) from error
        has_id = found is not None and found != ZERO_UUID
        if found != partition.topic_id if has_id else is_new and stranger.log_end_offset > 0:
            self._logs.set_aside(partition.topic, partition.index)

    def stop(self, topic: str, index: int, *, delete: bool) -> None:
        """Give a replica up; with delete, its log goes too."""
        partition = self.partitions.pop((topic, index), None)
        if partition is not None:
            del self.by_topic[topic][index]
            if not self.by_topic[topic]:
                del self.by_topic[topic]
            shrink(self.partitions, self.by_topic)
            partition.resign()
            self.touched.append(partition)
            self._tell(RoleChanged(partition, partition.leader_epoch, is_leader=False))
        if delete:
            self._logs.delete(topic, index, now_ms=self._clock.now_ms())

    def reconfigure(self, topic: str) -> None:
        """A topic's settings changed: its logs and partitions take them from now on."""
        config = self._configs.topic_config(topic)
        log_config = self._of_logs(config)
        for partition in self.of_topic(topic):
            self._set(partition, config)
            self._logs.reconfigure(topic, partition.index, log_config)
            if partition.has_replication_lag and partition.advance_high_watermark():
                self.touched.append(partition)

    def _of_logs(self, config: TopicConfig) -> LogConfig:
        """What a topic's settings are to its logs: one object for all that come one after the other."""
        known = self._last_config
        if known is None or known[0] is not config or known[1] is not self._configs.broker:
            broker = self._configs.broker
            known = self._last_config = config, broker, LogConfig.of(config, broker)
        return known[2]

    def _set(self, partition: Partition, config: TopicConfig) -> None:
        partition.min_insync_replicas = config.min_insync_replicas
        leaders, followers = self._throttled_of(config)
        partition.is_throttled_leader = partition.index in leaders
        partition.is_throttled_follower = partition.index in followers

    def _throttled_of(self, config: TopicConfig) -> tuple[Throttled, Throttled]:
        """As leaders, and as followers; of all of a topic's partitions, which come one after the other."""
        known = self._last_throttled
        if known is None or known[0] is not config:
            leaders = Throttled(config.leader_replication_throttled_replicas, self.broker_id)
            followers = Throttled(config.follower_replication_throttled_replicas, self.broker_id)
            known = self._last_throttled = config, leaders, followers
        return known[1], known[2]


def _shrunk(partition: Partition) -> tuple[str, int, tuple[int, ...], tuple[int, ...]]:
    assert partition.proposal is not None, partition
    return partition.topic, partition.index, partition.proposal.isr, partition.isr


def _storage_error(partition: Partition, error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic}-{partition.index}: {error.strerror or error}")
