"""Share groups (KIP-932) in a cluster of three brokers whose leaders are killed by -9, with Apache's share consumer.

Members accept most records, reject some and release others as often as they come. Meanwhile a broker is killed that
leads the shared topic, or the topic in which share coordinators keep their state; another one leads, and the dead one
comes back. In the end every record is over, as the share coordinator counts them; none was confirmed as accepted twice,
each was delivered, none comes again, and the dead letter queue has what was rejected or given up, and no other. (Once
more, and in vain, a member may be given what its client had fetched before its leader died.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import REFERENCE, Driver, running
from compat_tests.raw import Connection
from compat_tests.test_share_groups import SHARES
from compat_tests.waiting import eventually
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.share_group_state import ReadShareGroupStateSummaryRequest, ReadStateData, ReadStatePartition
from tests.runtime.metadata_servers import RunningServer

SECTION, COLUMN = "10 Groups of Kafka 4", "Java share consumer"
GROUP, TOPIC, LETTERS, STATE = "work", "jobs", "dlq.jobs", "__share_group_state"
BROKERS, PARTITIONS, AT_ONCE, PATIENCE_S = (1, 2, 3), 2, 300, 90
REJECTED, RELEASED, LIMIT = 7, 4, 3  # last digits, of different partitions; how often a record is delivered
WITH_TOPIC_IDS = 10
MEMBERS = ("first", "second")
SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
FEATURES = {"group.version": 1, "share.version": 2}
pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]


class Cluster:
    """Three brokers that keep three replicas of everything."""

    def __init__(self, folder: Path, store: str) -> None:
        own = {number: {"broker.id": str(number), "zookeeper.connect": store} for number in BROKERS}
        self.brokers = {
            number: KbrokerProcess(folder / f"broker{number}", settings={**SETTINGS, **own[number]})
            for number in BROKERS
        }

    @property
    def addresses(self) -> str:
        """bootstrap.servers."""
        return ",".join(broker.address for broker in self.brokers.values())

    def seen(self, at: int, *topics: str) -> MetadataResponse:
        """Topics as a broker tells them."""
        with Connection(self.brokers[at].port) as connection:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in topics])
            answer: MetadataResponse = connection.ask(asked, WITH_TOPIC_IDS)
            return answer

    def leader(self, topic: str) -> int:
        """Who leads partition 0."""
        (known,) = self.seen(BROKERS[0], topic).topics
        return next(each.leader_id for each in known.partitions if each.partition_index == 0)

    def is_whole(self, *topics: str) -> bool:
        """Whether every broker knows all to be alive, and all replicas to be in sync."""
        return all(
            len(answer.brokers) == len(BROKERS)
            and all(len(each.isr_nodes) == len(BROKERS) for known in answer.topics for each in known.partitions)
            for answer in (self.seen(at, *topics) for at in BROKERS)
        )

    def passed(self, group: str, topic: str) -> int:
        """How many records of a topic are over, accepted or archived, as the share coordinator has it stored."""
        (known,) = self.seen(BROKERS[0], topic).topics
        places = [ReadStatePartition(partition=each.partition_index, leader_epoch=-1) for each in known.partitions]
        asked = [ReadStateData(topic_id=known.topic_id, partitions=places)]
        with Connection(self.brokers[self.leader(STATE)].port) as connection:
            answer = connection.ask(ReadShareGroupStateSummaryRequest(group_id=group, topics=asked), 1)
        found = [each for result in answer.results for each in result.partitions]
        assert len(found) == len(places)
        if any(each.error_code for each in found):
            return -1  # the coordinator has just changed
        return sum(max(each.start_offset, 0) + each.delivery_complete_count for each in found)

    def lose_leader_of(self, topic: str) -> None:
        """Kill who leads it (-9); once another broker leads, start it again, until all is as before."""
        lost = self.leader(topic)
        self.brokers[lost].kill()
        others = [number for number in BROKERS if number != lost]

        def is_replaced() -> bool:
            (known,) = self.seen(others[0], topic).topics
            return all(each.leader_id in others for each in known.partitions)

        eventually(is_replaced, within_s=PATIENCE_S)
        self.brokers[lost].start()
        eventually(lambda: self.is_whole(TOPIC, STATE, LETTERS), within_s=PATIENCE_S)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as ended:
        made = Cluster(tmp_path, ended.enter_context(RunningServer(tmp_path)).address)
        for broker in made.brokers.values():
            ended.enter_context(broker)
        eventually(lambda: made.is_whole(), within_s=PATIENCE_S)
        yield made


class Group:
    """Two members of a share group, and what they say. written: how many records were produced."""

    def __init__(self, cluster: Cluster, shares: Driver, reference: Driver) -> None:
        self.written = 0
        self._cluster = cluster
        self._shares, self._reference = shares, reference
        shares.ask("enable", features=FEATURES)
        shares.ask("create_topic", topic=TOPIC, partitions=PARTITIONS)
        letters = {"errors.deadletterqueue.group.enable": "true"}
        shares.ask("create_topic", topic=LETTERS, partitions=1, configs=letters)
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(LIMIT),
            "errors.deadletterqueue.topic.name": LETTERS,
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        shares.ask("set_group", group=GROUP, configs=settings)
        for member in MEMBERS:
            shares.ask("work", member=member, group=GROUP, topic=TOPIC, most=20, reject=REJECTED, release=RELEASED)

    def write(self) -> None:
        """Produce some more, each acknowledged by all in sync."""
        numbers = range(self.written, self.written + AT_ONCE)
        records = [{"value": f"{number}", "partition": number % PARTITIONS} for number in numbers]
        self._reference.produce(TOPIC, records, idempotent=True)
        self.written += AT_ONCE

    def accepted(self) -> list[int]:
        """What the brokers have confirmed."""
        return [int(value) for member in MEMBERS for value in self._shares.ask("accepted", member=member)]

    def deliveries(self) -> dict[int, int]:
        """The highest delivery count that was told of each record."""
        told: dict[int, int] = {}
        for member in MEMBERS:
            for value, count in self._shares.ask("deliveries", member=member).items():
                told[int(value)] = max(count, told.get(int(value), 0))
        return told

    def is_done(self) -> bool:
        """Whether every record is over."""
        return self._cluster.passed(GROUP, TOPIC) == self.written

    def leave(self) -> None:
        """Both members close."""
        for member in MEMBERS:
            self._shares.ask("stop", member=member)

    def what_is_left(self) -> list[int]:
        """What a member is given that comes late."""
        self._shares.ask("join", member="late", group=GROUP, topic=TOPIC)
        given = [self._shares.ask("poll", member="late", wait_ms=1_000) for _ in range(3)]
        return [int(each["value"]) for some in given for each in some]

    def letters(self) -> set[int]:
        """The records of which the dead letter queue tells, once or more often."""
        first, after = self._reference.bounds(LETTERS, 0)
        found = set()
        for letter in self._reference.read(LETTERS, 0, first, after - first):
            said = dict(letter["headers"])
            offset, partition = (int(said[f"__dlq.errors.{name}"]) for name in ("offset", "partition"))
            found.add(PARTITIONS * offset + partition)
        return found

    def to_be_given_up(self) -> set[int]:
        """What members reject, or release each time."""
        return {number for number in range(self.written) if number % 10 in (REJECTED, RELEASED)}


def test_records_are_accepted_once_while_leaders_are_killed(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Accept each record once while the leaders of a cluster are killed"""
    kills = request.config.getoption("--kills")
    with running(cluster.addresses, tmp_path, SHARES, REFERENCE) as (shares, reference):
        group = Group(cluster, shares, reference)
        for number in range(kills):
            topic = (STATE, TOPIC)[number % 2]
            before = len(group.accepted())
            group.write()
            eventually(lambda before=before: len(group.accepted()) > before + 20, within_s=PATIENCE_S)  # type: ignore[misc]
            cluster.lose_leader_of(topic)
            shares.ask("elect_preferred")
        eventually(group.is_done, within_s=2 * PATIENCE_S)
        group.leave()
        accepted, deliveries, given_up = group.accepted(), group.deliveries(), group.to_be_given_up()
        assert len(accepted) == len(set(accepted)), "a record was accepted twice"
        assert given_up.isdisjoint(accepted)
        assert sorted(deliveries) == list(range(group.written)), "a record was never delivered"
        assert max(deliveries.values()) <= LIMIT
        assert group.what_is_left() == []
        assert group.letters() == given_up
