"""A streams group as StreamsGroupDescribe shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.groups.streams.group import Progress, StreamsGroup, StreamsMember
from kbroker.groups.streams.tasks import Task, Tasks, to_ids
from protocol.errors import ErrorCode, shortened
from protocol.messages import stored_streams_groups as stored
from protocol.messages import streams_groups as wire

ASSIGNOR = "sticky"
NOT_ASKED_FOR, NOT_STORED = 0, 1
"""Of a topology's description (KIP-1331): this broker has no plugin that keeps it."""


def describe(group: StreamsGroup, *, with_description: bool) -> wire.DescribedGroup:
    """A group. with_description: whether the description of its topology was asked for."""
    return wire.DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        topology=_topology(group),
        members=[_member(group, group.members[member_id]) for member_id in sorted(group.members)],
        topology_description_status=NOT_STORED if with_description else NOT_ASKED_FOR,
        assignor_name=ASSIGNOR,
    )


def refused(group_id: str, code: ErrorCode, why: str | None = None) -> wire.DescribedGroup:
    """A group that cannot be described."""
    why = why if why is None else shortened(why)
    return wire.DescribedGroup(error_code=code, error_message=why, group_id=group_id)


def described_topics(group: wire.DescribedGroup) -> set[str]:
    """The topics that a description names."""
    parts = () if group.topology is None else group.topology.subtopologies or ()
    found: set[str] = set()
    for part in parts:
        found.update(part.source_topics, part.repartition_sink_topics)
        found.update(topic.name for topic in (*part.repartition_source_topics, *part.state_changelog_topics))
    return found


def _topology(group: StreamsGroup) -> wire.DescribedTopology | None:
    topology, configured = group.topology, group.configured
    if topology is None:
        return None
    decided = configured.partitions if configured is not None and configured.is_ready else {}
    return wire.DescribedTopology(
        epoch=topology.epoch,
        subtopologies=[
            wire.DescribedSubtopology(
                subtopology_id=part.subtopology_id,
                source_topics=sorted(part.source_topics),
                repartition_sink_topics=sorted(part.repartition_sink_topics),
                state_changelog_topics=_topics(part.state_changelog_topics, decided),
                repartition_source_topics=_topics(part.repartition_source_topics, decided),
            )
            for part in topology.subtopologies
        ],
    )


def _topics(topics: Iterable[stored.TopicInfo], decided: Mapping[str, int]) -> list[wire.TopicInfo]:
    return [
        wire.TopicInfo(
            name=topic.name,
            partitions=topic.partitions or decided.get(topic.name, 0),
            replication_factor=topic.replication_factor,
            topic_configs=[wire.KeyValue(key=each.key, value=each.value) for each in topic.topic_configs],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _member(group: StreamsGroup, member: StreamsMember) -> wire.DescribedMember:
    about = member.about
    said = group.progress.get(member.member_id, Progress())
    endpoint = about.user_endpoint
    return wire.DescribedMember(
        member_id=member.member_id,
        member_epoch=member.current.epoch,
        instance_id=about.instance_id,
        rack_id=about.rack_id,
        client_id=about.client_id,
        client_host=about.client_host,
        topology_epoch=about.topology_epoch,
        process_id=about.process_id,
        user_endpoint=None if endpoint is None else wire.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[wire.KeyValue(key=each.key, value=each.value) for each in about.client_tags],
        task_offsets=_offsets(said.offsets),
        task_end_offsets=_offsets(said.end_offsets),
        assignment=_tasks(member.current.tasks),
        target_assignment=_tasks(group.target_of(member.member_id)),
    )


def _offsets(said: Mapping[Task, int]) -> list[wire.TaskOffset]:
    return [
        wire.TaskOffset(subtopology_id=subtopology_id, partition=partition, offset=said[subtopology_id, partition])
        for subtopology_id, partition in sorted(said)
    ]


def _tasks(tasks: Tasks) -> wire.DescribedTasks:
    return wire.DescribedTasks(
        active_tasks=to_ids(tasks.active, wire.TaskIds),
        standby_tasks=to_ids(tasks.standby, wire.TaskIds),
        warmup_tasks=to_ids(tasks.warmup, wire.TaskIds),
    )
