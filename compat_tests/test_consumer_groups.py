"""Consumer groups whose coordinator assigns (KIP-848), with stock clients: librdkafka and Java 4.4.

Sessions are short here, so that what a killed member had is another's soon. Members and the broker are killed by -9; a
running group changes from the classic protocol to this one and back, member by member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import LIBRDKAFKA, SPEAK_KIP_848, Client, Driver, start
from compat_tests.waiting import eventually

SECTION = "4 Consumer groups"
SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
}
PARTITIONS, EACH = 6, 20
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[KbrokerProcess]:
    """A broker of this test's own, which may be killed."""
    broker = KbrokerProcess(tmp_path / "broker", settings=SETTINGS)
    with broker:
        yield broker


@pytest.fixture
def begin(place: KbrokerProcess, tmp_path: Path) -> Iterator[Callable[[Client], Driver]]:
    """Start a driver: each is a process, so that a member can be killed."""
    started: list[Driver] = []

    def make(client: Client) -> Driver:
        started.append(start(client, place.address, tmp_path))
        return started[-1]

    yield make
    for driver in started:
        driver.close()


@pytest.fixture(params=SPEAK_KIP_848, ids=str)
def member(request: pytest.FixtureRequest) -> Client:
    """The client in the test; those of Java are for scripts/compat."""
    client: Client = request.param
    return client


def fill(driver: Driver, topic: str) -> None:
    driver.create_topic(topic, partitions=PARTITIONS)
    driver.produce(topic, [{"value": f"{p}-{n}", "partition": p} for p in range(PARTITIONS) for n in range(EACH)])


def share(members: list[tuple[Driver, str]], at_least: int = 1, within_s: float = 60) -> None:
    """Poll until each has some, and together they have all partitions, each once."""

    def shared() -> bool:
        polls = [driver.start_poll(name, 0, 300) for driver, name in members]
        for poll in polls:
            poll()
        owned = [driver.assignment(name) for driver, name in members]
        return min(map(len, owned)) >= at_least and sum(map(len, owned)) == len(set().union(*owned)) == PARTITIONS

    eventually(shared, within_s=within_s)


def test_members_share_leave_and_commit(member: Client, begin: Callable[[Client], Driver], topic: str) -> None:
    """Members of a consumer group (KIP-848) share partitions and commit"""
    first, second = begin(member), begin(LIBRDKAFKA)
    fill(second, topic)
    first.join("a", "g", [topic], "consumer")
    assert len(first.poll("a", PARTITIONS * EACH)) == PARTITIONS * EACH
    first.commit("a")
    second.join("b", "g", [topic], "consumer")
    share([(first, "a"), (second, "b")], at_least=PARTITIONS // 2)
    first.leave("a")
    share([(second, "b")])
    assert [second.committed("g", topic, partition) for partition in range(PARTITIONS)] == [EACH] * PARTITIONS
    second.leave("b")


def test_a_killed_member_is_replaced(member: Client, begin: Callable[[Client], Driver], topic: str) -> None:
    """What a killed member of a consumer group had is another's after its session"""
    first, second = begin(member), begin(LIBRDKAFKA)
    fill(second, topic)
    first.join("a", "g", [topic], "consumer")
    second.join("b", "g", [topic], "consumer")
    share([(first, "a"), (second, "b")])
    first.kill()
    share([(second, "b")])


def test_a_killed_broker_finds_the_group_again(
    member: Client, place: KbrokerProcess, begin: Callable[[Client], Driver], topic: str
) -> None:
    """A consumer group goes on where it was when the broker was killed"""
    driver = begin(member)
    fill(begin(LIBRDKAFKA), topic)
    driver.join("a", "g", [topic], "consumer")
    driver.join("b", "g", [topic], "consumer")
    share([(driver, "a"), (driver, "b")])
    driver.commit("a")
    owned = driver.assignment("a")
    place.kill()
    place.start()
    share([(driver, "a"), (driver, "b")])
    assert driver.assignment("a") == owned, "it did not rebalance"


def test_a_running_group_migrates_and_comes_back(member: Client, begin: Callable[[Client], Driver], topic: str) -> None:
    """A running group changes to the consumer protocol and back, member by member"""
    old, new = begin(LIBRDKAFKA), begin(member)
    fill(old, topic)
    old.join("a", "g", [topic], "range")
    assert len(old.poll("a", PARTITIONS * EACH)) == PARTITIONS * EACH
    old.commit("a")
    old.join("b", "g", [topic], "range")
    share([(old, "a"), (old, "b")])
    new.join("c", "g", [topic], "consumer")
    share([(old, "a"), (old, "b"), (new, "c")])
    old.leave("a")
    share([(old, "b"), (new, "c")])
    old.leave("b")
    share([(new, "c")])
    old.join("d", "g", [topic], "range")
    share([(new, "c"), (old, "d")])
    new.leave("c")
    share([(old, "d")])
    assert sum(old.committed("g", topic, partition) or 0 for partition in range(PARTITIONS)) == PARTITIONS * EACH
