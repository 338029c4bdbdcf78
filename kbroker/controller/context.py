"""What the controller knows of the cluster, between two events: brokers, topics, leaders, states of replicas.

Filled from the metadata store when a broker is elected, changed by the procedures of `machine.py`, `topics.py` and
`controller.py` after the store has taken each change. Reading it never needs the store. Partitions are (topic, index).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TypeAlias

from kbroker.metadata.store import NO_LEADER, Assignment, BrokerInfo, LeaderIsr
from kbroker.tables import shrink
from protocol.message import ZERO_UUID

TopicPartition: TypeAlias = tuple[str, int]

NO_REPLICAS = Assignment(())


class PartitionState(Enum):
    """Where a partition is in its life."""

    NON_EXISTENT = "never made, or deleted"
    NEW = "has replicas and no leader yet"
    ONLINE = "has a leader"
    OFFLINE = "its leader is dead"


class ReplicaState(Enum):
    """Where a replica is in its life."""

    NON_EXISTENT = "never made, or deleted"
    NEW = "assigned to a broker that has not heard of it"
    ONLINE = "its broker is alive and knows it"
    OFFLINE = "its broker or its disk is gone, or it has been stopped"
    DELETION_STARTED = "its broker was told to delete it"
    DELETION_DONE = "its broker has deleted it"
    DELETION_IMPOSSIBLE = "its broker cannot delete it now"


class Context:
    """One controller's knowledge, from its election to its end.

    epoch, epoch_version: the controller epoch, and the version of the node that fences it. to_delete: topics whose
    deletion was asked for; deleting: those of which replicas were told so; undeletable: those that have to wait for a
    broker. unmade: by topic, new partitions whose turn is still to come: nothing else here knows of them. untold: by
    topic, partitions that were made, and of which clients hear once none of their topic is unmade.
    """

    def __init__(self, epoch: int = 0, epoch_version: int = 0) -> None:
        self.epoch = epoch
        self.epoch_version = epoch_version
        self.brokers: dict[int, BrokerInfo] = {}
        self.shutting_down: set[int] = set()
        self.assignments: dict[str, dict[int, Assignment]] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.names: dict[bytes, str] = {}
        self.leaders: dict[TopicPartition, LeaderIsr] = {}
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[TopicPartition, dict[int, ReplicaState]] = {}
        self.failed_disks: dict[int, set[TopicPartition]] = {}  # by broker: replicas in a failed log directory
        self.to_delete: set[str] = set()
        self.deleting: set[str] = set()
        self.undeletable: set[str] = set()
        self.unmade: dict[str, dict[int, Assignment]] = {}  # the next topic first
        self.untold: dict[str, set[int]] = {}

    # -- brokers

    def is_live(self, broker_id: int) -> bool:
        """Whether a broker is registered and not about to stop."""
        return broker_id in self.brokers and broker_id not in self.shutting_down

    def is_replica_live(self, broker_id: int, partition: TopicPartition, *, stopping: bool = False) -> bool:
        """Whether a replica's broker is alive and its disk good. stopping: brokers about to stop count, too."""
        live = broker_id in self.brokers if stopping else self.is_live(broker_id)
        return live and partition not in self.failed_disks.get(broker_id, ())

    # -- topics

    def add_topic(self, topic: str, topic_id: bytes | None, partitions: dict[int, Assignment]) -> None:
        """A topic is there, with these partitions."""
        self.assignments[topic] = partitions
        if topic_id is not None:
            self.topic_ids[topic] = topic_id
            self.names[topic_id] = topic

    def remove_topic(self, topic: str) -> None:
        """A topic is gone, with all that was known of it."""
        for partition in self.partitions_of(topic):
            self.leaders.pop(partition, None)
            self.partition_states.pop(partition, None)
            self.replica_states.pop(partition, None)
            for replicas in self.failed_disks.values():
                replicas.discard(partition)
        self.assignments.pop(topic, None)
        self.names.pop(self.topic_ids.pop(topic, ZERO_UUID), None)
        self.to_delete.discard(topic)
        self.deleting.discard(topic)
        self.undeletable.discard(topic)
        self.unmade.pop(topic, None)
        self.untold.pop(topic, None)
        shrink(self.assignments, self.topic_ids, self.names, self.leaders, self.partition_states, self.replica_states)
        shrink(self.to_delete, self.deleting)

    def topic_id(self, topic: str) -> bytes:
        """A topic's id, zero if it has none."""
        return self.topic_ids.get(topic, ZERO_UUID)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """A topic's partitions."""
        return [(topic, index) for index in self.assignments.get(topic, ())]

    def all_partitions(self) -> Iterator[TopicPartition]:
        """Every partition of the cluster."""
        return ((topic, index) for topic, partitions in self.assignments.items() for index in partitions)

    def assignment(self, partition: TopicPartition) -> Assignment:
        """The replicas of a partition, and those that come and go; none if there is no such partition."""
        return self.assignments.get(partition[0], {}).get(partition[1], NO_REPLICAS)

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        """The brokers a partition is assigned to, the preferred leader first; () if there is no such partition."""
        return self.assignment(partition).replicas

    def replicas_of_topic(self, topic: str) -> list[tuple[TopicPartition, int]]:
        """Every (partition, broker) of a topic."""
        return [(partition, broker) for partition in self.partitions_of(topic) for broker in self.replicas(partition)]

    def partitions_on(self, broker_id: int) -> list[TopicPartition]:
        """The partitions that a broker has a replica of."""
        return [partition for partition in self.all_partitions() if broker_id in self.replicas(partition)]

    def offline_replicas(self, partition: TopicPartition) -> list[int]:
        """Replicas whose broker is dead or whose disk has failed."""
        return [each for each in self.replicas(partition) if not self.is_replica_live(each, partition, stopping=True)]

    def is_moving(self, topic: str) -> bool:
        """Whether any of a topic's partitions is being reassigned."""
        return any(each.is_moving for each in self.assignments[topic].values())

    def is_to_be_deleted(self, partition: TopicPartition) -> bool:
        """Whether a partition's topic is to be deleted."""
        return partition[0] in self.to_delete

    # -- states

    def partition_state(self, partition: TopicPartition) -> PartitionState:
        """Where a partition is in its life."""
        return self.partition_states.get(partition, PartitionState.NON_EXISTENT)

    def replica_state(self, partition: TopicPartition, broker_id: int) -> ReplicaState:
        """Where a replica is in its life."""
        return self.replica_states.get(partition, {}).get(broker_id, ReplicaState.NON_EXISTENT)

    def set_replica_state(self, partition: TopicPartition, broker_id: int, state: ReplicaState) -> None:
        """Note a replica's state; that of one that does not exist is forgotten."""
        if state is ReplicaState.NON_EXISTENT:
            self.replica_states.get(partition, {}).pop(broker_id, None)
        else:
            self.replica_states.setdefault(partition, {})[broker_id] = state

    def partitions_in(self, states: Iterable[PartitionState]) -> list[TopicPartition]:
        """The partitions in one of these states."""
        wanted = set(states)
        return [partition for partition in self.all_partitions() if self.partition_state(partition) in wanted]

    def leader_counts(self) -> dict[int, list[TopicPartition]]:
        """By broker, the partitions that would rather be led by it; those to be deleted, or being moved, left out."""
        preferred: dict[int, list[TopicPartition]] = {}
        for partition in self.all_partitions():
            assignment = self.assignment(partition)
            if assignment.replicas and not assignment.is_moving and not self.is_to_be_deleted(partition):
                preferred.setdefault(assignment.replicas[0], []).append(partition)
        return preferred

    def has_leaders(self, topic: str) -> bool:
        """Whether a state of any of a topic's partitions is known."""
        return any(partition in self.leaders for partition in self.partitions_of(topic))

    def leader(self, partition: TopicPartition) -> int:
        """The leader of a partition as far as is known; -1 none."""
        state = self.leaders.get(partition)
        return state.leader if state else NO_LEADER
