"""Share groups (KIP-932) with librdkafka's share consumer, which is a preview there, by confluent-kafka.

Records that it does not accept come again, also to Java's members; what it accepts does not, also when the broker was
killed by -9 meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import LIBRDKAFKA, LIBRDKAFKA_SHARES, Driver, running
from compat_tests.raw import Connection
from compat_tests.waiting import eventually
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

SECTION, COLUMN = "10 Groups of Kafka 4", "librdkafka share consumer"
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.session.timeout.ms": "3000",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
}
pytestmark = pytest.mark.timeout(300)
Here = tuple[KbrokerProcess, Driver, Driver]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    """A broker with three records for the group "work", the share consumer, and another process of it."""
    with (
        KbrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker,
        running(broker.address, tmp_path, LIBRDKAFKA_SHARES, LIBRDKAFKA_SHARES, LIBRDKAFKA) as (one, other, producer),
    ):
        config = IncrementalAlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
        wanted = IncrementalAlterConfigsResource(resource_type=32, resource_name="work", configs=[config])
        with Connection(broker.port) as connection:
            answer = connection.ask(IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False), 1)
        assert [each.error_code for each in answer.responses] == [0]
        producer.create_topic("jobs")
        producer.produce("jobs", [{"value": f"{number}"} for number in range(3)])
        yield broker, one, other


def poll(driver: Driver, member: str, at_least: int = 1) -> list[tuple[int, int]]:
    """(offset, delivery count) of what a member is given, once that is so much."""
    found: list[tuple[int, int]] = []

    def enough() -> bool:
        nonlocal found
        found += [(each["offset"], each["count"]) for each in driver.ask("poll", member=member, wait_ms=1_000)]
        return len(found) >= at_least

    eventually(enough, within_s=60)
    return sorted(found)


def test_records_are_accepted_released_and_rejected(here: Here) -> None:
    """Accept, release and reject records"""
    _, one, _ = here
    one.ask("join", member="m", group="work", topic="jobs")
    assert poll(one, "m", 3) == [(0, 1), (1, 1), (2, 1)]
    one.ask("acknowledge", member="m", offsets=[0], type="ACCEPT")
    one.ask("acknowledge", member="m", offsets=[1], type="RELEASE")
    one.ask("acknowledge", member="m", offsets=[2], type="REJECT")
    assert one.ask("commit", member="m") == []
    assert poll(one, "m") == [(1, 2)]
    one.ask("acknowledge", member="m", offsets=[1], type="ACCEPT")
    assert one.ask("commit", member="m") == []
    one.ask("leave", member="m")


def test_what_a_killed_member_had_is_given_to_another(here: Here) -> None:
    """Give a killed member's records to another"""
    _, one, other = here
    one.ask("join", member="m", group="work", topic="jobs")
    assert len(poll(one, "m", 3)) == 3
    other.ask("join", member="n", group="work", topic="jobs")
    one.kill()
    assert poll(other, "n", 3) == [(0, 2), (1, 2), (2, 2)]


def test_what_is_accepted_does_not_come_again_when_the_broker_was_killed(here: Here) -> None:
    """Go on where the group was when the broker was killed"""
    broker, one, other = here
    one.ask("join", member="m", group="work", topic="jobs")
    assert len(poll(one, "m", 3)) == 3
    one.ask("acknowledge", member="m", offsets=[0, 2], type="ACCEPT")
    one.ask("acknowledge", member="m", offsets=[1], type="RELEASE")
    assert one.ask("commit", member="m") == []
    broker.kill()
    one.kill()
    broker.start()
    other.ask("join", member="n", group="work", topic="jobs")
    assert [offset for offset, _ in poll(other, "n")] == [1]
