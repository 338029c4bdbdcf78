"""A leader moved to another broker, as an administrator moves it: the replicas in another order, then an election.

Called by `_cluster.py`. A partition whose only replica is elsewhere is copied first; who leads it in the end is the
first of its replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.testing._client import Connection, Connections
from kbroker.testing._helpers import WAIT_S, controller_of, looks
from kbroker.usage import UsageError
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)

if TYPE_CHECKING:
    from protocol.message import Message

TIMEOUT_MS = 10_000


def move_leader(bootstrap: str, topic: str, index: int, to: int) -> None:
    """Have broker `to` lead a partition. Raises: UsageError if there is no such partition, or it does not happen."""
    with Connections(bootstrap) as all_of_them:
        connection = controller_of(all_of_them)
        before = _partition(connection, topic, index)
        if before.leader_id == to:
            return
        replicas = (
            [to, *(each for each in before.replica_nodes if each != to)] if len(before.replica_nodes) > 1 else [to]
        )
        reassigned = ReassignablePartition(partition_index=index, replicas=replicas)
        topics = [ReassignableTopic(name=topic, partitions=[reassigned])]
        _check(connection.ask(AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=TIMEOUT_MS), 0))
        for _ in looks(WAIT_S):
            now = _partition(connection, topic, index)
            if now.leader_id == to and now.replica_nodes == replicas:
                return
            if to in now.isr_nodes:
                _elect(connection, topic, index)
        raise UsageError(f"{topic}-{index} is not led by broker {to} after {WAIT_S:.0f} s: does that broker run?")


def _partition(connection: Connection, topic: str, index: int) -> Any:
    found = connection.ask(
        MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False), 8
    )
    for each in found.topics[0].partitions:
        if each.partition_index == index:
            return each
    raise UsageError(f"there is no partition {topic}-{index}: create_topic({topic!r}) makes one")


def _elect(connection: Connection, topic: str, index: int) -> Message:
    """Its first replica, if another one leads."""
    wanted = [TopicPartitions(topic=topic, partitions=[index])]
    return connection.ask(  # type: ignore[no-any-return]
        ElectLeadersRequest(election_type=0, topic_partitions=wanted, timeout_ms=TIMEOUT_MS), 1
    )


def _check(answer: Any) -> None:
    codes = [answer.error_code, *(part.error_code for each in answer.responses for part in each.partitions)]
    wrong = next((code for code in codes if code), 0)
    if wrong:
        raise UsageError(f"the leader cannot be moved: {ErrorCode.of(wrong).name}")
