"""What happens to a controller, as values; the queue in `controller.py` takes them one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from kbroker.controller.context import TopicPartition
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from protocol.namedtuple import NamedTuple


class ElectionType(Enum):
    """The values are those of ElectLeaders."""

    PREFERRED = 0
    UNCLEAN = 1


class Registered(NamedTuple):
    """This broker is in the cluster, in a new session: it may stand for election."""

    session: int


class ControllerNodeChanged(NamedTuple):
    """`/controller` was made, set or deleted."""


class BrokersChanged(NamedTuple):
    """`/brokers/ids` has other children."""


class BrokerModified(NamedTuple):
    """A broker has rewritten its registration."""

    broker_id: int


class TopicsChanged(NamedTuple):
    """`/brokers/topics` has other children."""


class PartitionsChanged(NamedTuple):
    """A topic's replicas were written."""

    topic: str


class NewPartitionsDue(NamedTuple):
    """Some of the new partitions of topics that have many of them have their turn."""


class DeletionsChanged(NamedTuple):
    """`/admin/delete_topics` has other children."""


class IsrsChanged(NamedTuple):
    """`/isr_change_notification` has other children."""


class LogDirsFailed(NamedTuple):
    """`/log_dir_event_notification` has other children."""


class ControlAnswer(NamedTuple):
    """A broker has answered the head of its line in the channel manager."""

    broker_id: int
    request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
    response: LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse


class ElectLeaders(NamedTuple):
    """A client wants leaders elected. done: gets what became of each partition, and who leads those that changed."""

    partitions: tuple[TopicPartition, ...]
    type: ElectionType
    done: Callable[[Mapping[TopicPartition, ErrorCode], Mapping[TopicPartition, int]], None]


class ShutDown(NamedTuple):
    """A broker wants to stop. done: gets a code, and the partitions that only it can lead."""

    broker_id: int
    broker_epoch: int
    done: Callable[[ErrorCode, list[TopicPartition]], None]


class AlterPartition(NamedTuple):
    """A leader wants in-sync sets changed. done: gets the answer."""

    request: AlterPartitionRequest
    version: int
    done: Callable[[AlterPartitionResponse], None]


class InSyncChanged(NamedTuple):
    """The in-sync sets of these have changed: perhaps a reassignment has all it needs."""

    partitions: Sequence[TopicPartition]


class ReassignmentsChanged(NamedTuple):
    """`/admin/reassign_partitions` was made, set or deleted."""


class PreferredElectionsChanged(NamedTuple):
    """`/admin/preferred_replica_election` was made, set or deleted."""


class Reassign(NamedTuple):
    """Asked-for reassignments. targets: to which replicas, None: called off. done: gets why not, by partition.

    may_resize: whether a partition may have more or fewer replicas than before.
    """

    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    done: Callable[[Mapping[TopicPartition, KafkaError | None]], None]
    may_resize: bool = True


class UncleanElectionsDue(NamedTuple):
    """Settings have changed: partitions without a leader may have one by them."""


class Rebalance(NamedTuple):
    """It is time to see whether leaders should go back to the preferred replicas."""


Event: TypeAlias = (
    Registered
    | ControllerNodeChanged
    | BrokersChanged
    | BrokerModified
    | TopicsChanged
    | PartitionsChanged
    | NewPartitionsDue
    | DeletionsChanged
    | IsrsChanged
    | LogDirsFailed
    | ControlAnswer
    | ElectLeaders
    | ShutDown
    | AlterPartition
    | InSyncChanged
    | ReassignmentsChanged
    | PreferredElectionsChanged
    | Reassign
    | UncleanElectionsDue
    | Rebalance
)
