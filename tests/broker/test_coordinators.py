"""How many partitions a coordinator's topic has: by the store, not by an image that may lack some."""

from __future__ import annotations

from typing import Any

from kbroker.broker.coordinators import CoordinatorPart, count_partitions
from kbroker.broker.facts import TopicsUpdated
from kbroker.metadata.store import Assignment, TopicInfo, encode_topic
from kbroker.ports import Get, Outcome, Stat, StoreFault

TOPIC = "__consumer_offsets"


class Counted:
    """A runtime that is told how many partitions there are."""

    topic = TOPIC

    def __init__(self) -> None:
        self.partitions = 50  # as configured

    def resize(self, partitions: int) -> None:
        self.partitions = partitions


class Image:
    def __init__(self, partitions: int) -> None:
        self.partitions = dict.fromkeys(range(partitions))


class Asked:
    """A part of a broker whose store answers when told to."""

    def __init__(self) -> None:
        self.topics: dict[str, Image] = {}
        self.counted = Counted()
        self.questions: list[Any] = []
        runtime: Any = self.counted
        cache: Any = self
        self.part = CoordinatorPart(runtime, cache, lambda *question: self.questions.append(question))

    def sees(self, partitions: int) -> int:
        """Update the image; how many partitions keys are spread over then."""
        self.topics[TOPIC] = Image(partitions)
        self.part.handlers[TopicsUpdated](TopicsUpdated([TOPIC]), 0)
        return self.counted.partitions

    def answers(self, partitions: int) -> int:
        _, done, _ = self.questions.pop(0)
        done(partitions)
        return self.counted.partitions


def test_an_image_that_lacks_a_partition_does_not_spread_keys_otherwise() -> None:
    asked = Asked()
    assert (asked.sees(2), asked.answers(3), asked.sees(3)) == (0, 3, 3)
    assert not asked.questions


def test_partitions_that_are_added_count_once_the_store_has_them() -> None:
    asked = Asked()
    assert (asked.sees(3), asked.answers(3)) == (0, 3)
    assert (asked.sees(4), asked.answers(4)) == (3, 4)


def test_an_image_that_changes_while_the_store_is_asked_is_compared_with_the_answer() -> None:
    asked = Asked()
    assert (asked.sees(2), asked.sees(4)) == (0, 0)
    assert (asked.answers(3), asked.answers(4), asked.questions) == (3, 4, [])


def test_a_store_that_could_not_answer_is_asked_at_the_next_image() -> None:
    asked = Asked()
    asked.sees(2)
    _, _, failed = asked.questions.pop()
    failed(Exception())
    assert (asked.sees(2), asked.answers(3)) == (0, 3)


def test_the_store_is_asked_for_the_node_of_the_topic() -> None:
    path = f"/brokers/topics/{TOPIC}"
    node = encode_topic(TopicInfo(None, {index: Assignment((1,)) for index in range(3)}))
    assert counted(Outcome(None, path, Stat(1, 1, 0, 0, 0), node)) == ([Get(path)], 3)
    assert counted(Outcome(StoreFault.NO_NODE, path)) == ([Get(path)], 0)


def counted(outcome: Outcome) -> tuple[object, int]:
    """What the procedure asks of the store, and what it makes of this answer."""
    procedure = count_partitions(TOPIC)
    asked = next(procedure)
    try:
        procedure.send([outcome])
    except StopIteration as end:
        return asked, end.value
    raise AssertionError("asks again")
