"""What a StreamsGroupHeartbeat must be like, whatever the group; and its topology as it is stored.

Source: Apache Kafka 4.4, by behaviour.
"""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_streams_groups as stored
from protocol.messages.streams_groups import StreamsGroupHeartbeatRequest, TopicInfo, Topology

LEAVE_FOR_A_WHILE = -2


def check_request(request: StreamsGroupHeartbeatRequest) -> None:
    """Refuse what no member would say. Raises: KafkaError."""
    topology = request.topology
    if topology is not None and any(part.source_topic_regex for part in topology.subtopologies):
        raise _invalid("Regular expressions for source topics are not supported yet.")
    for text, name in (
        (request.member_id, "MemberId"),
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        if text is not None and not text.strip():
            raise _invalid(f"{name} can't be empty.")
    roles = (request.active_tasks, "Active"), (request.standby_tasks, "Standby"), (request.warmup_tasks, "Warmup")
    if request.member_epoch == 0:
        _check_join(request, roles)
    elif request.member_epoch == LEAVE_FOR_A_WHILE:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_FOR_A_WHILE:
        raise _invalid(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.")
    given = [ids is not None for ids, _ in roles]
    if any(given) and not all(given):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != 0 and topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")


def _check_join(request: StreamsGroupHeartbeatRequest, roles: tuple[tuple[object, str], ...]) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    for ids, name in roles:
        if ids is None or ids:
            raise _invalid(f"{name}Tasks must be empty when (re-)joining.")
    if request.topology is None:
        raise _invalid("Topology must be non-null when (re-)joining.")
    _check_topology(request.topology)


def _check_topology(topology: Topology) -> None:
    if topology.epoch < 0:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH,
            f"The topology's epoch is {topology.epoch}, it must not be negative.",
        )
    names = [part.subtopology_id for part in topology.subtopologies]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"Subtopology {twice} is there twice.")
    if not names:
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, "The topology has no subtopologies.")
    for part in topology.subtopologies:
        for topic in part.state_changelog_topics:
            if topic.partitions != 0:
                raise KafkaError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Changelog topic {topic.name} must have an undefined partition count, "
                    f"but it is set to {topic.partitions}.",
                )
        for topic in (*part.state_changelog_topics, *part.repartition_source_topics):
            if topic.partitions < 0:
                raise KafkaError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"Topic {topic.name} cannot have {topic.partitions} partitions.",
                )


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)


def to_stored(topology: Topology) -> stored.StreamsGroupTopologyValue:
    """A topology, in order of its subtopologies' ids, so that equal ones are equal."""
    return stored.StreamsGroupTopologyValue(
        epoch=topology.epoch,
        subtopologies=[
            stored.Subtopology(
                subtopology_id=part.subtopology_id,
                source_topics=part.source_topics,
                source_topic_regex=part.source_topic_regex,
                state_changelog_topics=_topics(part.state_changelog_topics),
                repartition_sink_topics=part.repartition_sink_topics,
                repartition_source_topics=_topics(part.repartition_source_topics),
                copartition_groups=[
                    stored.CopartitionGroup(
                        source_topics=group.source_topics,
                        source_topic_regex=group.source_topic_regex,
                        repartition_source_topics=group.repartition_source_topics,
                    )
                    for group in part.copartition_groups
                ],
            )
            for part in sorted(topology.subtopologies, key=lambda part: part.subtopology_id)
        ],
    )


def _topics(topics: list[TopicInfo]) -> list[stored.TopicInfo]:
    return [
        stored.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[stored.TopicConfig(key=each.key, value=each.value) for each in topic.topic_configs],
        )
        for topic in topics
    ]
