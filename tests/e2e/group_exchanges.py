"""One exchange for each API of consumer and streams groups, good for every version served: a member of its own."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupTopologyDescriptionUpdateRequest,
    Subtopology,
    Topology,
    TopologyDescription,
)
from tests.e2e.exchanges import exchange
from tests.e2e.world import NONE, PATIENCE_S, Topic, World
from tests.processes import within

MEMBER = "3f1c9d5e-0000-4000-8000-000000000000"


def consuming(here: World, topic: Topic, version: int = 1) -> str:
    """A consumer group whose one member has its assignment."""
    group, member_id, epoch, answer = here.group(), "" if version < 1 else MEMBER, 0, None
    for _ in within(PATIENCE_S):
        request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch)
        if epoch == 0:
            request.rebalance_timeout_ms, request.subscribed_topic_names = 60_000, [topic.name]
            request.topic_partitions = []
        answer = here.ask(request, version)
        assert answer.error_code == NONE, answer
        member_id, epoch = answer.member_id, answer.member_epoch
        if answer.assignment and answer.assignment.topic_partitions:
            return group
    raise AssertionError(answer)


@exchange(68)
def consumer_group_heartbeat(here: World, version: int) -> None:
    consuming(here, here.topic(), version)


@exchange(69)
def consumer_group_describe(here: World, version: int) -> None:
    topic = here.topic()
    request = ConsumerGroupDescribeRequest(group_ids=[consuming(here, topic)], include_authorized_operations=False)
    (group,) = here.ask(request, version).groups
    (member,) = group.members
    assert (group.error_code, member.subscribed_topic_names) == (NONE, [topic.name])


def streaming(here: World, topic: Topic, version: int = 0) -> str:
    """A streams group whose one member has its task."""
    group, epoch, answer = here.group(), 0, None
    part = Subtopology(
        subtopology_id="0",
        source_topics=[topic.name],
        source_topic_regex=[],
        state_changelog_topics=[],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )
    for _ in within(PATIENCE_S):
        request = StreamsGroupHeartbeatRequest(
            group_id=group, member_id=MEMBER, member_epoch=epoch, endpoint_information_epoch=0
        )
        if epoch == 0:
            request.rebalance_timeout_ms, request.process_id = 60_000, "p"
            request.topology = Topology(epoch=0, subtopologies=[part])
            request.active_tasks, request.standby_tasks, request.warmup_tasks = [], [], []
        answer = here.ask(request, version)
        assert answer.error_code == NONE, answer
        epoch = answer.member_epoch
        if answer.active_tasks:
            return group
    raise AssertionError(answer)


@exchange(88)
def streams_group_heartbeat(here: World, version: int) -> None:
    streaming(here, here.topic(), version)


@exchange(89)
def streams_group_describe(here: World, version: int) -> None:
    group_id = streaming(here, here.topic())
    request = StreamsGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)
    (group,) = here.ask(request, version).groups
    assert (group.error_code, [each.member_id for each in group.members]) == (NONE, [MEMBER])


@exchange(93)
def streams_group_topology_description_update(here: World, version: int) -> None:
    request = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id=streaming(here, here.topic()),
        member_id=MEMBER,
        topology_epoch=0,
        topology_description=TopologyDescription(subtopologies=[], global_stores=[]),
    )
    answer = here.ask(request, version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION  # there is nothing to keep it in
