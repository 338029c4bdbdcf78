"""A group's coordinator dies, again and again: another goes on with what the group has, and soon.

Of transactions `plays/transaction_coordinator_dies.play` tells the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.coordinator.routing import partition_for
from kbroker.metadata.store import LeaderIsr, decode_state, state_path
from kbroker.sim.members import Member
from kbroker.sim.producers import Producer
from kbroker.sim.topics import Topic
from tests.sim.test_replication_stories import Story

if TYPE_CHECKING:
    from kbroker.sim.machine import Machine

LOADED_WITHIN_MS = 1_000  # from the moment in which another leads the coordinator's partition
HEARD_WITHIN_MS = 10_000  # until the member has found it: it reads for 5 s, and pauses between its tries


class Coordinated(Story):
    """A story of three brokers, a producer to t-0, and one member of a group that reads and commits."""

    def __init__(self) -> None:
        settings = {"offsets_topic_num_partitions": "3", "offsets_topic_replication_factor": "3"}
        super().__init__(3, topic={"min.insync.replicas": "2"}, **settings)
        self.index = partition_for(Member.group, 3)
        self.producer = Producer("producer", self.world, self.net, self.machines, self.checks)
        self.producer.acks, self.producer.pace_ms, self.producer.tries = -1, 1_000, 200
        self.member = Member("member", self.world, self.net, self.machines, self.checks)
        self.member.commit_ms, self.member.max_wait_ms = 500, 5_000
        for client in (self.producer, self.member):
            client.topics = [Topic("t", 1, replicas=3)]
            client.start()
        self.until(lambda: self.checks.groups.committed)

    def coordinator(self) -> Machine | None:
        """Who serves the group."""
        for machine in self.machines:
            if machine.up and self.index in machine.broker.groups.runtime.shards:
                return machine
        return None

    def place(self) -> LeaderIsr:
        """Who leads the group's partition, and who is in sync."""
        node = self.ensemble.tree.nodes[state_path("__consumer_offsets", self.index)]
        return decode_state(node.data, node.stat())

    def took_ms(self, begin_ms: int) -> int:
        """Since then."""
        return self.world.now_ms - begin_ms


def test_a_group_goes_on_in_its_generation_whenever_its_coordinator_dies() -> None:
    story = Coordinated()
    member, groups = story.member, story.checks.groups
    generation, member_id = member.generation, member.member_id
    for _ in range(2):
        dies = story.coordinator()
        assert dies is not None
        dies.kill()
        story.until(lambda gone=dies.broker_id: story.place().leader not in (-1, gone))  # type: ignore[misc]
        elected_ms = story.world.now_ms
        story.until(story.coordinator)
        assert story.took_ms(elected_ms) < LOADED_WITHIN_MS
        before = groups.committed
        story.until(lambda many=before: groups.committed > many)  # type: ignore[misc]
        assert story.took_ms(elected_ms) < HEARD_WITHIN_MS
        dies.start()
        story.until(lambda: len(story.place().isr) == 3 and len(story.state().isr) == 3)
    assert (member.generation, member.member_id) == (generation, member_id)


def test_the_last_coordinator_in_sync_takes_its_group_along_until_it_is_back() -> None:
    """As in Kafka: nobody else has all that was committed; offsets.topic.replication.factor brokers died at once."""
    story = Coordinated()
    dies = story.coordinator()
    assert dies is not None
    others = [each for each in story.machines if each is not dies]
    for each in others:
        each.kill()
    story.until(lambda: story.place().isr == (dies.broker_id,))
    dies.kill()
    for each in others:
        each.start()
    story.wait(40_000)
    assert (story.coordinator(), story.place().isr) == (None, (dies.broker_id,))
    dies.start()
    before = story.checks.groups.committed
    story.until(lambda: story.coordinator() is dies and story.checks.groups.committed > before)
