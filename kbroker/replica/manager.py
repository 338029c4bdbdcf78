"""All replicas on this broker, by topic and index, and what the controller wants of them.

Called by API handlers to find a partition, and by `api/control.py` with the controller's LeaderAndIsr and StopReplica
requests, which create, lead, follow and delete replicas. Owns the map and nothing of a single partition's state.
Partitions that moved are in `touched` until the core takes them: parked requests under them are looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from kbroker.replica.partition import LeaderState, Partition
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID

if TYPE_CHECKING:
    from kbroker.config import TopicConfig
    from kbroker.log import Log
    from kbroker.log.append import AppendPlan

log = logging.getLogger("kbroker.replica")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


class Logs(Protocol):
    """What replicas ask of the log manager."""

    def get_or_create(self, topic: str, index: int, topic_id: bytes, config: TopicConfig, *, is_new: bool) -> Log:
        """The log of a partition, made if missing. Raises: OSError, KafkaError KAFKA_STORAGE_ERROR."""

    def delete(self, topic: str, index: int) -> None:
        """Take a log away, if there is one."""

    def reconfigure(self, topic: str, index: int, config: TopicConfig) -> None:
        """New settings for a log, if there is one."""

    def disk_failed(self, folder: str, error: OSError) -> Sequence[tuple[str, int]]:
        """A log directory goes offline; which partitions are lost with it."""


class ReplicaManager:
    """The replicas of one broker.

    touched: partitions with new records, another high watermark, leader or log start. flushes: partitions whose log
    asks for an fsync. topic_config: the settings of a topic, by name.
    """

    def __init__(self, broker_id: int, logs: Logs, topic_config: Callable[[str], TopicConfig]) -> None:
        self.broker_id = broker_id
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.controller_epoch = 0
        self.touched: list[Partition] = []
        self.flushes: list[Partition] = []
        self._logs = logs
        self._topic_config = topic_config
        self._names: dict[bytes, str] = {}

    # -- looking up

    def find(self, topic: str, index: int) -> Partition:
        """The replica of a partition. Raises: KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        partition = self.partitions.get((topic, index))
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no replica of {topic}-{index} here")
        return partition

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a topic that has a replica here; None if there is none of this id."""
        return self._names.get(topic_id)

    def of_topic(self, topic: str) -> Iterator[Partition]:
        """The replicas of one topic."""
        return (partition for (name, _), partition in self.partitions.items() if name == topic)

    # -- after an append

    def appended(self, partition: Partition, plan: AppendPlan) -> None:
        """Records are in the log: who waits for them is looked at again."""
        self.touched.append(partition)
        if plan.needs_flush:
            self.flushes.append(partition)

    def storage_error(self, partition: Partition, error: OSError) -> KafkaError:
        """The disk failed under a partition: its directory goes offline with all that is in it."""
        folder = partition.log.folder.path if partition.log else f"{partition.topic}-{partition.index}"
        log.error("%s failed: %s", folder, error)
        for topic, index in self._logs.disk_failed(folder, error):
            offline = self.partitions.get((topic, index))
            if offline is not None:
                offline.log = None
                self.touched.append(offline)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {partition!r} failed")

    # -- what the controller wants

    def become(self, topic: str, index: int, topic_id: bytes, state: LeaderState, *, is_new: bool) -> None:
        """Lead or follow a partition as of a newer epoch, making its log if there is none.

        Raises: KafkaError STALE_CONTROLLER_EPOCH for an older leader epoch, INCONSISTENT_TOPIC_ID,
        KAFKA_STORAGE_ERROR.
        """
        partition = self.partitions.get((topic, index))
        if partition is None:
            partition = Partition(topic, index, topic_id, self.broker_id, is_internal=topic in INTERNAL_TOPICS)
            self.partitions[topic, index] = partition
        if ZERO_UUID not in (topic_id, partition.topic_id) and topic_id != partition.topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic}-{index} has the id {partition.topic_id.hex()}")
        if state.leader_epoch < partition.leader_epoch:
            raise KafkaError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"{topic}-{index}: leader epoch {state.leader_epoch}, we have {partition.leader_epoch}",
            )
        self._open(partition, topic_id, is_new)
        assert partition.log is not None
        if state.leader == self.broker_id:
            partition.lead(state, partition.log)
        else:
            partition.follow(state, partition.log)
        self.touched.append(partition)

    def _open(self, partition: Partition, topic_id: bytes, is_new: bool) -> None:
        config = self._topic_config(partition.topic)
        partition.min_insync_replicas = config.min_insync_replicas
        if topic_id != ZERO_UUID:
            partition.topic_id = topic_id
            self._names[topic_id] = partition.topic
        if partition.log is None:
            try:
                partition.log = self._logs.get_or_create(
                    partition.topic, partition.index, topic_id, config, is_new=is_new
                )
            except OSError as error:
                raise self.storage_error(partition, error) from error

    def stop(self, topic: str, index: int, *, delete: bool) -> None:
        """Give a replica up; with delete, its log goes too."""
        partition = self.partitions.pop((topic, index), None)
        if partition is not None:
            partition.is_leader = False
            partition.leader_id = -1
            self.touched.append(partition)
            if not any(True for _ in self.of_topic(topic)):
                self._names.pop(partition.topic_id, None)
        if delete:
            self._logs.delete(topic, index)

    def reconfigure(self, topic: str) -> None:
        """A topic's settings changed: its logs and partitions take them from now on."""
        config = self._topic_config(topic)
        for partition in self.of_topic(topic):
            partition.min_insync_replicas = config.min_insync_replicas
            self._logs.reconfigure(topic, partition.index, config)
