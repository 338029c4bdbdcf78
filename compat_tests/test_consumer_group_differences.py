"""Apache Kafka 4.4.0 and kbroker are asked the same about consumer groups (KIP-848), and must say the same, in words.

Stories, request by request: members come, let go, take over, speak in wrong epochs, leave for a while and for good,
commit and read offsets; classic members join, and the group becomes a classic one again. What differs on purpose is in
docs/groups.md, and in no story.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache import NEWEST, KraftBroker
from compat_tests.brokers import place_of
from compat_tests.raw import Connection
from compat_tests.test_differences import MADE_UP, NOT_COMPARED, Told
from compat_tests.waiting import eventually
from protocol.message import Message
from protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "group.consumer.assignment.interval.ms": "0",
}
SUBSCRIPTION = struct.pack(">hih1sii", 0, 1, 1, b"t", -1, 0)


class Story:
    """Members of a group on one broker. group: its id."""

    def __init__(self, connection: Connection, group: str = "g") -> None:
        self.group = group
        self.told = Told(connection, frozenset(NOT_COMPARED - {"error_message"} | {"client_host"}))
        self.topic_ids: dict[str, bytes] = {}

    def topic(self, name: str, partitions: int) -> None:
        """Make a topic; it and the coordinator are there when this returns."""
        made = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        self.told.ask_aside(CreateTopicsRequest(topics=[made], timeout_ms=10_000), 5)

        def is_there() -> bool:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            found = self.told.ask_aside(asked, 12).topics[0]
            self.topic_ids[name] = found.topic_id
            return len(found.partitions) == partitions and all(each.leader_id >= 0 for each in found.partitions)

        eventually(is_there)
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
        eventually(lambda: self.told.ask_aside(find, 6).coordinators[0].error_code == 0)
        eventually(lambda: self.told.ask_aside(DescribeGroupsRequest(groups=[self.group]), 5).groups[0].error_code == 0)

    def beat(self, member: str, epoch: int, version: int = 1, **said: Any) -> Any:
        """A heartbeat. owns: partitions by topic."""
        owns = said.pop("owns", None)
        if owns is not None:
            said["topic_partitions"] = [
                TopicPartitions(topic_id=self.topic_ids[name], partitions=parts) for name, parts in owns.items()
            ]
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=member, member_epoch=epoch, **said)
        return self.told.ask(request, version)

    def join(self, member: str, topics: Sequence[str] = ("t",), **said: Any) -> Any:
        """A first heartbeat."""
        given: dict[str, Any] = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": list(topics),
            "owns": {},
        } | said
        return self.beat(member, 0, **given)

    def commit(self, member: str, epoch: int, version: int = 9) -> None:
        """A commit of partition 0."""
        parts = [OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")]
        topics = [OffsetCommitRequestTopic(name="t", topic_id=self.topic_ids["t"], partitions=parts)]
        request = OffsetCommitRequest(
            group_id=self.group, generation_id_or_member_epoch=epoch, member_id=member, topics=topics
        )
        self.told.ask(request, version)

    def fetch(self, member: str | None, epoch: int) -> None:
        """All offsets."""
        group = OffsetFetchRequestGroup(group_id=self.group, member_id=member, member_epoch=epoch, topics=None)
        self.told.ask(OffsetFetchRequest(groups=[group]), 9)

    def look(self) -> None:
        """What administrators see."""
        described = self.told.ask_aside(
            ConsumerGroupDescribeRequest(group_ids=[self.group], include_authorized_operations=False), 1
        )
        for group in described.groups:
            group.members.sort(key=lambda member: member.member_id)
        self.told.answers.append(f"describe: {self.told._plain('', described)}")
        self.told.ask(ListGroupsRequest(), 5)

    def ask(self, request: Message, version: int) -> Any:
        """Anything else."""
        return self.told.ask(request, version)


def requests_that_make_no_sense(story: Story) -> None:
    """Refused before a group is looked for."""
    for said in (
        {"rebalance_timeout_ms": -1},
        {"owns": None},
        {"owns": {"t": [0]}},
        {"subscribed_topic_names": None},
        {"instance_id": ""},
        {"rack_id": " "},
        {"server_assignor": "none"},
        {"subscribed_topic_names": None, "subscribed_topic_regex": "("},
    ):
        story.join("m", **said)
    for epoch in (-3, -2, -1, 1):
        story.beat("m", epoch)
        story.beat("", epoch, version=0)
    story.beat("", 1)


def members_come_and_go(story: Story) -> None:
    """Two members, epochs right and wrong, commits, a third one, leaving."""
    story.join("a")
    story.look()
    story.join("b")
    story.beat("a", 2)
    story.look()
    story.beat("a", 2, owns={"t": [0, 1, 2, 3]})
    story.beat("a", 2, owns={"t": [0, 1]})
    story.beat("b", 3)
    for epoch in (0, 1, 2, 3, 4):
        story.beat("b", epoch)
    story.beat("b", 2, owns={"t": []})
    for epoch in (-1, 0, 1, 2, 3, 4):
        story.commit("a", epoch)
        story.fetch("a", epoch)
    story.commit("a", 3, version=8)
    story.commit("", -1)
    story.commit("x", 3)
    story.fetch(None, -1)
    story.fetch("x", 3)
    story.join("c", topics=("t", "u"))
    for member, epoch in (("a", 3), ("b", 3), ("c", 4), ("a", 3), ("b", 3), ("a", 4), ("b", 4), ("c", 4)):
        story.beat(member, epoch, owns={"t": [0], "u": []})
    story.look()
    story.beat("c", -1)
    story.beat("c", -1)
    story.beat("x", -1)
    story.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    gone = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    story.ask(OffsetDeleteRequest(group_id="g", topics=[gone]), 0)
    story.ask(DescribeGroupsRequest(groups=["g"]), 6)
    story.ask(DescribeGroupsRequest(groups=["g"]), 5)
    story.beat("a", -1)
    story.beat("b", -1)
    story.look()
    story.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    story.look()


def static_members(story: Story) -> None:
    """Leave for a while, return under another id, are fenced."""
    story.join("a", instance_id="i")
    story.join("b", instance_id="i")
    story.beat("b", 2, instance_id="i")
    story.beat("a", -2, instance_id="i")
    story.look()
    story.join("b", instance_id="i")
    story.look()
    story.beat("a", 2, instance_id="i")
    story.beat("b", 2, instance_id="j")
    story.beat("b", -2)
    story.beat("b", -1, instance_id="i")
    story.beat("b", -1, instance_id="i")


def classic_members(story: Story) -> None:
    """A classic group becomes a consumer group; a classic member joins that; it is a classic group again."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)]
    said: dict[str, Any] = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocols": protocols}

    def join(member: str, kind: str = "consumer") -> Any:
        return story.ask(JoinGroupRequest(group_id="g", member_id=member, protocol_type=kind, **said), 9)

    def sync(member: str, generation: int, protocol: str = "range") -> None:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member,
            protocol_type="consumer",
            protocol_name=protocol,
            assignments=[],
        )
        story.ask(request, 5)

    def live(member: str, generation: int) -> None:
        story.ask(HeartbeatRequest(group_id="g", generation_id=generation, member_id=member), 4)

    story.join("c")
    member = join("").member_id
    join(member, "connect")
    joined = join(member)
    sync(member, joined.generation_id)
    sync(member, joined.generation_id, "sticky")
    sync(member, 99)
    live(member, joined.generation_id)
    live(member, 99)
    live("c", 2)
    story.beat("c", 2, owns={"t": [0, 1, 2, 3]})
    story.beat("c", 2, owns={"t": [0, 1]})
    live(member, joined.generation_id)
    join(member)
    sync(member, joined.generation_id)
    live(member, joined.generation_id)
    story.commit(member, joined.generation_id)
    story.commit(member, 99)
    story.beat("c", -1)
    story.ask(ListGroupsRequest(), 5)
    live(member, joined.generation_id)
    story.ask(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member)]), 5)


STORIES: tuple[Callable[[Story], None], ...] = (
    requests_that_make_no_sense,
    members_come_and_go,
    static_members,
    classic_members,
)


@pytest.fixture(params=STORIES, ids=lambda story: story.__name__)
def story(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    tale: Callable[[Story], None] = request.param
    return tale


@pytest.fixture(scope="module")
def apaches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with KraftBroker(NEWEST, tmp_path_factory.mktemp("apache"), settings=SETTINGS) as broker:
        yield broker


def told(port: int, tale: Callable[[Story], None]) -> list[str]:
    with Connection(port) as connection:
        story = Story(connection)
        story.topic("t", 4)
        story.topic("u", 2)
        tale(story)
        left = story.told.ask_aside(ListGroupsRequest(), 5).groups
        for _ in range(3):  # what a story leaves behind is no part of the next one
            story.told.ask_aside(DeleteGroupsRequest(groups_names=[each.group_id for each in left]), 2)
        return story.told.answers


def test_the_same_is_answered(story: Callable[[Story], None], apaches: KraftBroker, tmp_path: Path) -> None:
    assert "topic_id" in MADE_UP
    theirs = told(apaches.port, story)
    with place_of("kbroker", tmp_path / "ours", SETTINGS) as place:
        ours = told(place.port, story)
    differing = [
        f"{at}\n  theirs: {a}\n  ours:   {b}" for at, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b
    ]
    assert not differing, "\n".join(differing[:8])
