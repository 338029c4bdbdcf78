"""Apache Kafka 4.4.0 and kbroker are asked the same about streams groups (KIP-1071), and must say the same, in words.

Stories, request by request: members with a topology come, let go, take over, speak in wrong epochs, leave for a while
and for good; topologies that do not fit the topics. What differs on purpose is in docs/groups.md, and in no story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from compat_tests.apache import NEWEST, KraftBroker
from compat_tests.brokers import place_of
from compat_tests.raw import Connection
from compat_tests.test_consumer_group_differences import Story
from protocol.messages import streams_groups as wire
from protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.min.assignment.interval.ms": "0",
}
JOINS = 0


def part(
    name: str,
    sources: Sequence[str],
    *,
    changelogs: Sequence[str] = (),
    copartitioned: Sequence[Sequence[int]] = (),
) -> wire.Subtopology:
    """A subtopology without repartition topics."""
    return wire.Subtopology(
        subtopology_id=name,
        source_topics=list(sources),
        source_topic_regex=[],
        state_changelog_topics=[
            wire.TopicInfo(name=each, partitions=0, replication_factor=0, topic_configs=[]) for each in changelogs
        ],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[
            wire.CopartitionGroup(source_topics=list(each), source_topic_regex=[], repartition_source_topics=[])
            for each in copartitioned
        ],
    )


class StreamsStory(Story):
    """Members of a streams group on one broker."""

    def stream(
        self, member: str, epoch: int, *, has: Sequence[tuple[str, list[int]]] | None = None, **said: Any
    ) -> Any:
        """A heartbeat. has: active tasks, by subtopology; None: nothing is said."""
        tasks = None if has is None else [wire.TaskIds(subtopology_id=name, partitions=parts) for name, parts in has]
        given: dict[str, Any] = {
            "active_tasks": tasks,
            "standby_tasks": None if has is None else [],
            "warmup_tasks": None if has is None else [],
            "endpoint_information_epoch": 0,
        } | said
        request = wire.StreamsGroupHeartbeatRequest(
            group_id=given.pop("group_id", self.group), member_id=member, member_epoch=epoch, **given
        )
        return self.told.ask(request, 1)

    def come(self, member: str, parts: Sequence[wire.Subtopology] | None = None, **said: Any) -> Any:
        """A first heartbeat; the topology reads t, unless another is given."""
        subtopologies = [part("0", ["t"])] if parts is None else list(parts)
        given: dict[str, Any] = {
            "rebalance_timeout_ms": 60_000,
            "topology": wire.Topology(epoch=1, subtopologies=subtopologies),
            "process_id": f"process-{member}",
            "client_tags": [],
            "has": [],
        } | said
        return self.stream(member, JOINS, **given)

    def look_at_it(self) -> None:
        """What administrators see."""
        asked = wire.StreamsGroupDescribeRequest(group_ids=[self.group, "none"], include_authorized_operations=False)
        described = self.told.ask_aside(asked, 1)
        described.groups.sort(key=lambda group: group.group_id)  # Kafka tells those first that it cannot describe
        for group in described.groups:
            group.members.sort(key=lambda member: member.member_id)
        self.told.answers.append(f"describe: {self.told._plain('', described)}")
        listed = self.told.ask_aside(ListGroupsRequest(types_filter=["streams"]), 5).groups
        self.told.answers += [f"listed: {each}" for each in listed if each.group_id == self.group]


def heartbeats_that_make_no_sense(story: StreamsStory) -> None:
    """Refused before a group is looked for, or for want of one."""
    story.come("")
    story.come("a", group_id="")
    story.come("a", rebalance_timeout_ms=-1)
    story.come("a", topology=None)
    story.come("a", has=None)
    story.come("a", has=[("0", [0])])
    story.come("a", process_id=None)
    story.come("a", instance_id="")
    story.come("a", rack_id=" ")
    for epoch in (-3, -2, -1, 1):
        story.stream("a", epoch)
    story.look_at_it()


def members_come_and_go(story: StreamsStory) -> None:
    """Two members, epochs right and wrong, tasks that change hands, leaving."""
    story.come("a")
    story.look_at_it()
    story.come("b")
    story.stream("a", 2)
    story.look_at_it()
    story.stream("a", 2, has=[("0", [0, 1, 2, 3])])
    story.stream("a", 2, has=[("0", [0, 1])])
    story.stream("b", 3)
    for epoch in (1, 2, 3, 4):
        story.stream("b", epoch)
    story.stream("b", 3, has=[("0", [2, 3])])
    for epoch in (-1, 2, 3, 4):
        story.commit("a", epoch)
    story.fetch("a", 3)
    story.fetch("a", 2)
    story.fetch("x", 3)
    story.stream("x", 3)
    story.stream("x", -1)
    story.ask(DescribeGroupsRequest(groups=[story.group]), 6)
    story.ask(DeleteGroupsRequest(groups_names=[story.group]), 2)
    story.stream("b", -1)
    story.stream("b", -1)
    story.stream("a", 3)
    story.look_at_it()
    story.stream("a", -1)
    story.look_at_it()
    story.ask(DeleteGroupsRequest(groups_names=[story.group]), 2)
    story.look_at_it()


def static_members(story: StreamsStory) -> None:
    """Leave for a while, return under another id, are fenced."""
    story.come("a", instance_id="i")
    story.come("b", instance_id="i")
    story.stream("a", -2, instance_id="i")
    story.come("b", instance_id="i")
    story.look_at_it()
    story.stream("a", 2, instance_id="i")
    story.stream("b", 2, instance_id="j")
    story.stream("b", -1, instance_id="i")


def topologies_that_do_not_fit(story: StreamsStory) -> None:
    """Topics that are missing, or differ in number; a topology of another epoch."""
    story.come("a", [part("0", ["nowhere"])])
    story.look_at_it()
    story.stream("a", -1)
    story.come("b", [part("0", ["t", "u"], copartitioned=[[0, 1]])])
    story.look_at_it()
    story.come("c", topology=wire.Topology(epoch=3, subtopologies=[part("0", ["t"])]))
    story.come("d", topology=wire.Topology(epoch=0, subtopologies=[part("0", ["t"])]))
    story.look_at_it()


STORIES: tuple[Callable[[StreamsStory], None], ...] = (
    heartbeats_that_make_no_sense,
    members_come_and_go,
    static_members,
    topologies_that_do_not_fit,
)


@pytest.fixture(params=STORIES, ids=lambda story: story.__name__)
def story(request: pytest.FixtureRequest) -> Callable[[StreamsStory], None]:
    tale: Callable[[StreamsStory], None] = request.param
    return tale


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Of Apache's broker, and of ours."""
    folder = tmp_path_factory.mktemp("brokers")
    with (
        KraftBroker(NEWEST, folder / "apache", settings=SETTINGS) as theirs,
        place_of("kbroker", folder / "ours", SETTINGS) as ours,
    ):
        yield theirs.port, ours.port


def told(port: int, tale: Callable[[StreamsStory], None]) -> list[str]:
    with Connection(port) as connection:
        story = StreamsStory(connection, tale.__name__)
        story.topic("t", 4)
        story.topic("u", 2)
        tale(story)
        return story.told.answers


def test_the_same_is_answered(story: Callable[[StreamsStory], None], ports: tuple[int, int]) -> None:
    theirs, ours = (told(port, story) for port in ports)
    differing = [
        f"{at}\n  theirs: {a}\n  ours:   {b}" for at, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b
    ]
    assert not differing, "\n".join(differing[:8])
