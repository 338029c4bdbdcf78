"""How many partitions a coordinator's topic has: by the store when it is first seen, and no longer by an image."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.api.figures import OF_COORDINATORS
from kbroker.broker.control_plane import Counted
from kbroker.broker.coordinator_types import COORDINATOR_TYPES, SHARE, CoordinatorType, topic_on_demand
from kbroker.broker.coordinators import CoordinatorPart
from kbroker.broker.store_plane import count_partitions
from kbroker.metadata.cache import INTERNAL_TOPICS, MetadataDelta
from kbroker.metadata.store import Assignment, TopicInfo, encode_topic
from kbroker.ports import Get, Outcome, Stat, StoreFault
from protocol.message import ZERO_UUID
from tests.world import World

TOPIC = "__consumer_offsets"
SOME_ID, OTHER_ID = b"a" * 16, b"b" * 16


class CountingRuntime:
    """A runtime that is told how many partitions there are."""

    topic = TOPIC

    def __init__(self) -> None:
        self.partitions = 0

    def resize(self, partitions: int) -> None:
        self.partitions = partitions

    def new_metadata_image(self, delta: MetadataDelta, now_ms: int) -> None:
        pass


class Image:
    def __init__(self, partitions: int, topic_id: bytes) -> None:
        self.partitions = dict.fromkeys(range(partitions))
        self.topic_id = topic_id


class Asked:
    """A part of a broker whose store answers when told to."""

    def __init__(self) -> None:
        self.topics: dict[str, Image] = {}
        self.counted = CountingRuntime()
        self.questions: list[Any] = []
        runtime: Any = self.counted
        cache: Any = self
        self.part = CoordinatorPart(runtime, cache, lambda *question: self.questions.append(question))

    def sees(self, partitions: int, topic_id: bytes = SOME_ID) -> int:
        """Update the image; how many partitions keys are spread over then."""
        self.topics[TOPIC] = Image(partitions, topic_id)
        self.part.handlers[MetadataDelta](MetadataDelta([TOPIC]), 0)
        return self.counted.partitions

    def answers(self, partitions: int, topic_id: bytes = SOME_ID) -> int:
        _, done, _ = self.questions.pop(0)
        done(Counted(topic_id, partitions))
        return self.counted.partitions


def test_an_image_that_lacks_a_partition_does_not_spread_keys_otherwise() -> None:
    asked = Asked()
    assert (asked.sees(2), asked.answers(3), asked.sees(3)) == (0, 3, 3)
    assert not asked.questions


def test_partitions_that_are_added_move_no_key_and_are_told_once_a_number(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    assert (asked.sees(3), asked.answers(3)) == (0, 3)
    assert (asked.sees(4), asked.sees(4), asked.sees(5), asked.questions) == (3, 3, 3, [])
    told = [each.message for each in caplog.records if "of the first 3" in each.message]
    assert [each.split(":")[0] for each in told] == [f"{TOPIC} has {count} partitions now" for count in (4, 5)]


def test_partitions_that_come_while_the_store_is_asked_are_those_that_it_has() -> None:
    asked = Asked()
    assert (asked.sees(2), asked.sees(4)) == (0, 0)
    assert (asked.answers(3), asked.questions, asked.sees(4)) == (3, [], 3)


def test_a_topic_that_was_deleted_and_created_again_is_counted_again() -> None:
    asked = Asked()
    asked.sees(3)
    asked.answers(3)
    assert (asked.sees(1, OTHER_ID), asked.answers(5, OTHER_ID)) == (0, 5)


def test_an_image_without_topic_ids_is_of_the_same_topic() -> None:
    asked = Asked()
    asked.sees(3, ZERO_UUID)
    asked.answers(3)
    assert (asked.sees(4, ZERO_UUID), asked.questions) == (3, [])


def test_a_store_that_could_not_answer_is_asked_at_the_next_image() -> None:
    asked = Asked()
    asked.sees(2)
    _, _, failed = asked.questions.pop()
    failed(Exception())
    assert (asked.sees(2), asked.answers(3)) == (0, 3)


def test_the_store_is_asked_for_the_node_of_the_topic() -> None:
    path = f"/brokers/topics/{TOPIC}"
    for topic_id, told in ((SOME_ID, SOME_ID), (None, ZERO_UUID)):
        node = encode_topic(TopicInfo(topic_id, {index: Assignment((1,)) for index in range(3)}))
        assert counted(Outcome(None, path, Stat(1, 1, 0, 0, 0), node)) == ([Get(path)], (told, 3))
    assert counted(Outcome(StoreFault.NO_NODE, path)) == ([Get(path)], (ZERO_UUID, 0))


def counted(outcome: Outcome) -> tuple[object, Counted]:
    """What the procedure asks of the store, and what it makes of this answer."""
    procedure = count_partitions(TOPIC)
    asked = next(procedure)
    try:
        procedure.send([outcome])
    except StopIteration as end:
        return asked, end.value
    raise AssertionError("asks again")


@pytest.mark.parametrize("kind", COORDINATOR_TYPES.values(), ids=lambda kind: kind.word)
def test_each_type_of_coordinator_is_a_part_with_metrics_and_an_internal_topic(kind: CoordinatorType) -> None:
    world = World()
    part = world.broker.coordinators[kind.key_type]
    assert (part.topic, kind.topic in INTERNAL_TOPICS, kind.key_type in OF_COORDINATORS) == (kind.topic, True, True)
    made = topic_on_demand(kind.topic, world.broker.config)
    policy = "delete" if kind is SHARE else "compact"  # KIP-932: its updates are no last word on their key
    assert (made.partitions, made.configs["cleanup.policy"]) == (kind.partitions(world.broker.config), policy)
    assert kind.records()
