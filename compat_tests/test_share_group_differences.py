"""Apache Kafka 4.4.0 and kbroker are asked the same about share groups (KIP-932), and must say the same.

Stories, request by request: members come, speak in wrong epochs and leave; records are fetched in sessions, and
acknowledged rightly and wrongly; offsets of a group are described, changed and deleted. What differs on purpose is in
docs/groups.md, and in no story.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from compat_tests.apache import NEWEST, KraftBroker
from compat_tests.brokers import place_of
from compat_tests.raw import Connection
from compat_tests.test_consumer_group_differences import Story
from compat_tests.test_differences import NOT_COMPARED, Told, batch, producing
from compat_tests.waiting import eventually
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from protocol.messages.share_groups import (
    AcknowledgementBatch,
    ForgottenShareTopic,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
APACHES_OWN = {"group.share.assignment.interval.ms": "0", "group.share.min.assignment.interval.ms": "0"}
"""Assignments are made with each change here."""
M, N = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBA"  # members, as Kafka writes a Uuid
ACCEPT, RELEASE_IT, REJECT, RENEW = 1, 2, 3, 4
NOT_SAID = {"client_host", "group_epoch", "assignment_epoch", "member_epoch"}
"""Besides words, of which Kafka has none for most errors: epochs count how often it looked for what has begun."""
Batches = Sequence[tuple[int, int, Sequence[int]]]


class ShareStory(Story):
    """Members of a share group on one broker, which reads a topic of the same name."""

    def __init__(self, connection: Connection, group: str) -> None:
        super().__init__(connection, group)
        self.told = Told(connection, frozenset(NOT_COMPARED | NOT_SAID))

    def live(self, member: str, epoch: int, group: str | None = None, **said: Any) -> Any:
        """A heartbeat."""
        group = self.group if group is None else group
        return self.told.ask(
            ShareGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **said), 1
        )

    def begin(self, member: str) -> None:
        """Join, and have the partitions of t, from the first record on. Not kept: how many heartbeats that takes."""
        config = IncrementalAlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
        wanted = IncrementalAlterConfigsResource(resource_type=32, resource_name=self.group, configs=[config])
        self.told.ask_aside(IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False), 1)
        joins = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=member, member_epoch=0, subscribed_topic_names=[self.group]
        )

        def has_all() -> bool:
            told = self.told.ask_aside(joins, 1).assignment
            return told is not None and [len(each.partitions) for each in told.topic_partitions] == [4]

        eventually(has_all)

    def fetch_shared(self, member: str, epoch: int, batches: Batches = (), **said: Any) -> Any:
        """ShareFetch of t-0, with acknowledgements."""
        part = ShareFetchPartition(partition_index=0, acknowledgement_batches=_batches(batches))
        topic = ShareFetchTopic(topic_id=said.pop("topic_id", self.topic_ids[self.group]), partitions=[part])
        given: dict[str, Any] = {
            "group_id": self.group,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 100,
            "batch_size": 100,
            "topics": [topic] if epoch == 0 or batches else [],
            "forgotten_topics_data": list[ForgottenShareTopic](),
        } | said
        return self.told.ask(ShareFetchRequest(member_id=member, share_session_epoch=epoch, **given), 2)

    def say(self, member: str, epoch: int, *batches: tuple[int, int, Sequence[int]], **said: Any) -> Any:
        """ShareAcknowledge of t-0."""
        part = ShareAcknowledgePartition(
            partition_index=said.pop("index", 0), acknowledgement_batches=_batches(batches)
        )
        topic = ShareAcknowledgeTopic(topic_id=said.pop("topic_id", self.topic_ids[self.group]), partitions=[part])
        given: dict[str, Any] = {"group_id": self.group, "topics": [topic] if batches else []} | said
        return self.told.ask(ShareAcknowledgeRequest(member_id=member, share_session_epoch=epoch, **given), 2)

    def produce(self, *values: bytes) -> None:
        """A batch to t-0."""
        request = producing(self.group, batch(*values))
        eventually(lambda: not self.told.ask_aside(request, 9).responses[0].partition_responses[0].error_code)

    def look_at_it(self) -> None:
        """What administrators see."""
        asked = ShareGroupDescribeRequest(group_ids=[self.group, ""], include_authorized_operations=False)
        described = self.told.ask_aside(asked, 1)
        described.groups.sort(key=lambda group: group.group_id)  # Kafka tells those first that it cannot describe
        for group in described.groups:
            group.members.sort(key=lambda member: member.member_id)
        self.told.answers.append(f"describe: {self.told._plain('', described)}")
        listed = self.told.ask_aside(ListGroupsRequest(types_filter=["share"]), 5).groups
        self.told.answers += [f"listed: {each}" for each in listed if each.group_id == self.group]

    def offsets(self, group: str, *names: str) -> None:
        """DescribeShareGroupOffsets; without names, of all topics."""
        topics = [DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[0]) for name in names]
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics or None)
        self.told.ask(DescribeShareGroupOffsetsRequest(groups=[asked]), 1)

    def alter(self, name: str, *starts: tuple[int, int]) -> None:
        """AlterShareGroupOffsets. starts: (partition, offset)."""
        self.told.ask(self._altering(name, *starts), 0)

    def _altering(self, name: str, *starts: tuple[int, int]) -> AlterShareGroupOffsetsRequest:
        parts = [AlterShareGroupOffsetsRequestPartition(partition_index=at, start_offset=to) for at, to in starts]
        topics = [AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=parts)]
        return AlterShareGroupOffsetsRequest(group_id=self.group, topics=topics)

    def coordinator_knows_the_topic(self) -> None:
        """A new topic reaches its image later than it reaches the broker's."""
        request = self._altering(self.group, (0, 0))
        eventually(lambda: not self.told.ask_aside(request, 0).responses[0].partitions[0].error_code)

    def drop(self, *names: str) -> None:
        """DeleteShareGroupOffsets."""
        topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
        self.told.ask(DeleteShareGroupOffsetsRequest(group_id=self.group, topics=topics), 0)


def _batches(batches: Batches) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in batches
    ]


def heartbeats_that_make_no_sense(story: ShareStory) -> None:
    """Refused before a group is looked for, or for want of one."""
    story.live("", 0, subscribed_topic_names=[story.group])
    story.live(" ", 0, subscribed_topic_names=[story.group])
    story.live(M, 0, group="", subscribed_topic_names=[story.group])
    story.live(M, 0, rack_id=" ", subscribed_topic_names=[story.group])
    story.live(M, 0)
    story.live(M, 0, subscribed_topic_names=[])
    for epoch in (-3, -2, -1, 1):
        story.live(M, epoch)
    story.look_at_it()


def members_come_and_go(story: ShareStory) -> None:
    """Two members, epochs right and wrong, leaving."""
    story.begin(M)
    story.look_at_it()
    story.live(M, 99)
    story.live(M, -2)
    story.live("nobody", 3)
    story.live("nobody", -1)
    story.ask(DescribeGroupsRequest(groups=[story.group]), 6)
    story.ask(DeleteGroupsRequest(groups_names=[story.group]), 2)
    story.live(M, -1)
    story.live(M, -1)
    story.live(M, 2)
    story.look_at_it()


def fetches_in_sessions(story: ShareStory) -> None:
    """Sessions that are begun, go on, go wrong and end; what is acquired in them."""
    story.produce(b"a", b"b", b"c")
    story.begin(M)
    story.fetch_shared(M, 1)
    story.fetch_shared(M, -1)
    story.fetch_shared("", 0)
    story.fetch_shared("not a uuid", 0)
    story.fetch_shared(M, 0, group_id="")
    story.fetch_shared(M, 0, batches=[(0, 0, [ACCEPT])])
    story.fetch_shared(M, 0, topic_id=bytes(15) + b"x")
    story.fetch_shared(M, 0)
    for epoch in (1, 1, 3, 2, 9):
        story.fetch_shared(M, epoch)
    story.say(M, 3, (0, 1, [ACCEPT]))
    story.say(M, 3, (2, 2, [ACCEPT]))
    story.say(M, 0, (2, 2, [ACCEPT]))
    story.say("", 4, (2, 2, [ACCEPT]))
    story.say(N, 1, (2, 2, [ACCEPT]))
    story.say(M, 4, (2, 2, [ACCEPT]), index=9)
    story.say(M, 5, (2, 2, [ACCEPT]), topic_id=bytes(15) + b"x")
    story.say(M, -1)
    story.say(M, -1)
    story.fetch_shared(M, 0)


def acknowledgements_right_and_wrong(story: ShareStory) -> None:
    """Of what was never acquired, twice, backward, one over the other, of no type that there is."""
    story.produce(*(b"%d" % at for at in range(10)))
    story.begin(M)
    story.fetch_shared(M, 0)
    wrong: tuple[Batches, ...] = (
        [(20, 21, [ACCEPT])],
        [(3, 2, [ACCEPT])],
        [(0, 2, [ACCEPT]), (1, 3, [ACCEPT])],
        [(4, 5, [ACCEPT]), (0, 1, [ACCEPT])],
        [(0, 2, [ACCEPT, ACCEPT])],
        [(0, 0, [9])],
        [(0, 0, [-1])],
        [(0, 0, [])],
        [(0, 0, [RENEW])],
        [(8, 12, [ACCEPT])],
        [(-1, 0, [ACCEPT])],
    )
    epoch = 1
    for batches in wrong:
        story.say(M, epoch, *batches)
        epoch += 1
    story.say(M, epoch, (0, 0, [ACCEPT]), (1, 2, [RELEASE_IT]), (3, 3, [REJECT]), (4, 6, [ACCEPT, RELEASE_IT, 0]))
    story.say(M, epoch + 1, (0, 0, [ACCEPT]))
    story.say(M, epoch + 2, (1, 1, [RELEASE_IT]))
    story.fetch_shared(M, epoch + 3)
    story.fetch_shared(M, epoch + 4, batches=[(1, 2, [ACCEPT])])
    story.fetch_shared(M, epoch + 5, batches=[(1, 2, [ACCEPT])])
    story.say(M, epoch + 6, (7, 9, [RENEW]), is_renew_ack=True)
    story.say(M, epoch + 7, (7, 9, [ACCEPT]))
    story.fetch_shared(M, -1)


def offsets_of_a_group(story: ShareStory) -> None:
    """Described, changed and deleted, with members and without."""
    story.offsets(story.group)
    story.offsets("")
    story.coordinator_knows_the_topic()
    story.alter(story.group, (0, 0))
    story.drop(story.group)
    story.produce(b"a", b"b", b"c", b"d")
    story.begin(M)
    story.fetch_shared(M, 0)
    story.say(M, 1, (0, 1, [ACCEPT]))
    story.offsets(story.group, story.group, "nowhere")
    story.alter(story.group, (0, 0))
    story.drop(story.group)
    story.say(M, -1)
    story.live(M, -1)
    story.offsets(story.group, story.group)
    story.alter(story.group, (0, 3), (9, 0))
    story.alter("nowhere", (0, 0))
    story.offsets(story.group, story.group)
    story.drop(story.group, "nowhere")
    story.offsets(story.group, story.group)
    story.ask(DeleteGroupsRequest(groups_names=[story.group, "h"]), 2)
    story.look_at_it()


STORIES: tuple[Callable[[ShareStory], None], ...] = (
    heartbeats_that_make_no_sense,
    members_come_and_go,
    fetches_in_sessions,
    acknowledgements_right_and_wrong,
    offsets_of_a_group,
)


@pytest.fixture(params=STORIES, ids=lambda story: story.__name__)
def story(request: pytest.FixtureRequest) -> Callable[[ShareStory], None]:
    tale: Callable[[ShareStory], None] = request.param
    return tale


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Of Apache's broker, and of ours."""
    folder = tmp_path_factory.mktemp("brokers")
    with (
        KraftBroker(NEWEST, folder / "apache", settings=SETTINGS | APACHES_OWN) as theirs,
        place_of("kbroker", folder / "ours", SETTINGS) as ours,
    ):
        yield theirs.port, ours.port


def told(port: int, tale: Callable[[ShareStory], None]) -> list[str]:
    with Connection(port) as connection:
        story = ShareStory(connection, tale.__name__)
        story.topic(story.group, 4)
        tale(story)
        return story.told.answers


def test_the_same_is_answered(story: Callable[[ShareStory], None], ports: tuple[int, int]) -> None:
    theirs, ours = (told(port, story) for port in ports)
    differing = [
        f"{at}\n  theirs: {a}\n  ours:   {b}" for at, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b
    ]
    assert not differing, "\n".join(differing[:8])
