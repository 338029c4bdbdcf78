"""Share groups (KIP-932) with Apache's share consumers and tools, and while the broker is killed by -9.

The newest release's clients, unchanged: KafkaShareConsumer by a driver, the console's share consumer, and
kafka-share-groups.sh. What was acknowledged is never delivered again, and none is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from compat_tests import apache, environments
from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import REFERENCE, Client, Driver, running
from compat_tests.waiting import eventually

SECTION, COLUMN = "10 Groups of Kafka 4", "Java share consumer"
SETTINGS = {"offsets.topic.num.partitions": "1", "share.coordinator.state.topic.num.partitions": "2"}
GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
SHARES = Client(
    "Java share consumer",
    apache.NEWEST,
    lambda: [
        "java",
        *apache.SMALL_JVM,
        "-Xmx256m",
        "-cp",
        environments.java_classpath(apache.NEWEST),
        environments.driver("ShareDriver.java"),
    ],
)
pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]
Here = tuple[KbrokerProcess, Driver, Driver]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    """A broker, the share consumer, and who produces."""
    with (
        KbrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker,
        running(broker.address, tmp_path, SHARES, REFERENCE) as (shares, reference),
    ):
        yield broker, shares, reference


def fill(here: Here, topic: str, count: int, group: str = "work") -> None:
    """A topic of one partition with so many records, which a new group reads from the first one on."""
    _, shares, reference = here
    reference.create_topic(topic)
    reference.produce(topic, [{"value": f"{number}"} for number in range(count)])
    shares.ask("start_at", group=group, topic=topic, partitions=1, offset=0)


def poll(shares: Driver, member: str, at_least: int = 1) -> list[tuple[int, int]]:
    """(offset, delivery count) of what a member is given, once that is so much."""
    found: list[tuple[int, int]] = []

    def enough() -> bool:
        nonlocal found
        found = [(each["offset"], each["count"]) for each in shares.ask("poll", member=member, wait_ms=1_000)]
        return len(found) >= at_least

    eventually(enough, within_s=60)
    return found


def test_records_are_accepted_released_rejected_and_renewed(here: Here) -> None:
    """Accept, release, reject and renew records"""
    _, shares, _ = here
    fill(here, "jobs", 4)
    shares.ask("join", member="m", group="work", topic="jobs")
    assert poll(shares, "m") == [(0, 1), (1, 1), (2, 1), (3, 1)]
    shares.ask("acknowledge", member="m", offsets=[0], type="ACCEPT")
    shares.ask("acknowledge", member="m", offsets=[1], type="RELEASE")
    shares.ask("acknowledge", member="m", offsets=[2], type="REJECT")
    shares.ask("acknowledge", member="m", offsets=[3], type="RENEW")
    assert shares.ask("commit", member="m") == []
    assert poll(shares, "m") == [(3, 1)]  # the client gives what it has renewed once more
    shares.ask("acknowledge", member="m", offsets=[3], type="ACCEPT")
    assert shares.ask("commit", member="m") == []
    assert poll(shares, "m") == [(1, 2)]


def test_what_a_member_does_not_acknowledge_is_given_to_another_when_it_leaves(here: Here) -> None:
    """Give a member's records to another when it leaves"""
    _, shares, _ = here
    fill(here, "jobs", 3)
    shares.ask("join", member="first", group="work", topic="jobs")
    assert len(poll(shares, "first")) == 3
    shares.ask("join", member="second", group="work", topic="jobs")
    shares.ask("poll", member="second", wait_ms=500)
    shares.ask("leave", member="first")
    assert poll(shares, "second", 3) == [(0, 2), (1, 2), (2, 2)]


def test_the_tool_describes_resets_and_deletes(here: Here) -> None:
    """Describe, reset and delete by kafka-share-groups.sh"""
    broker, shares, _ = here
    fill(here, "jobs", 5)
    shares.ask("join", member="m", group="work", topic="jobs")
    assert len(poll(shares, "m")) == 5
    shares.ask("acknowledge", member="m", offsets=[0, 1], type="ACCEPT")
    assert shares.ask("commit", member="m") == []

    def tool(*arguments: str) -> str:
        done = apache.run_tool(apache.NEWEST, GROUPS, "--bootstrap-server", broker.address, *arguments)
        return done.stdout + done.stderr

    assert "work" in tool("--list")
    assert "jobs" in tool("--describe", "--group", "work", "--members")
    assert "Stable" in tool("--describe", "--group", "work", "--state")
    assert "not empty" in tool("--delete", "--group", "work").lower().replace("non-empty", "not empty")
    shares.ask("leave", member="m")
    row = next(
        line.split() for line in tool("--describe", "--group", "work", "--offsets").splitlines() if "jobs" in line
    )
    assert row[:5] == ["work", "jobs", "0", "2", "3"]  # start offset, lag
    reset = tool("--reset-offsets", "--group", "work", "--topic", "jobs", "--to-earliest", "--execute")
    assert "jobs" in reset, reset
    shares.ask("join", member="again", group="work", topic="jobs")
    assert len(poll(shares, "again")) == 5
    shares.ask("leave", member="again")
    gone = tool("--delete-offsets", "--group", "work", "--topic", "jobs")
    assert "jobs" in gone, gone
    assert "jobs" not in tool("--describe", "--group", "work", "--offsets")
    deleted = tool("--delete", "--group", "work")
    assert "successful" in deleted, deleted
    assert "work" not in tool("--list").split()


def test_a_group_s_settings_are_set_by_the_tool(here: Here) -> None:
    """Set a group's settings by kafka-configs.sh; send a poison record to a dead letter queue"""
    broker, shares, reference = here

    def configs(*arguments: str) -> str:
        done = apache.run_tool(apache.NEWEST, CONFIGS, "--bootstrap-server", broker.address, *arguments)
        return done.stdout + done.stderr

    reference.create_topic("jobs")
    reference.create_topic("dlq.jobs", configs={"errors.deadletterqueue.group.enable": "true"})
    reference.produce("jobs", [{"value": f"{number}"} for number in range(3)])
    settings = "share.auto.offset.reset=earliest,errors.deadletterqueue.topic.name=dlq.jobs"
    more = ",errors.deadletterqueue.copy.record.enable=true"
    group = ["--entity-type", "groups", "--entity-name", "work"]
    assert "Completed" in configs("--alter", *group, "--add-config", settings + more)
    assert "share.auto.offset.reset=earliest" in configs("--describe", *group)
    assert "must be in the range" in configs("--alter", *group, "--add-config", "share.record.lock.duration.ms=1000")
    shares.ask("join", member="m", group="work", topic="jobs")
    assert poll(shares, "m", 3) == [(0, 1), (1, 1), (2, 1)]
    shares.ask("acknowledge", member="m", offsets=[0, 2], type="ACCEPT")
    shares.ask("acknowledge", member="m", offsets=[1], type="REJECT")
    assert shares.ask("commit", member="m") == []
    (letter,) = reference.read("dlq.jobs", 0, 0, 1)
    assert letter["value"] == "1", letter


def test_the_console_reads(here: Here) -> None:
    """Read by kafka-console-share-consumer.sh"""
    broker, _, _ = here
    fill(here, "jobs", 3)
    arguments = ["--bootstrap-server", broker.address, "--topic", "jobs", "--group", "work", "--max-messages", "3"]
    assert apache.run_tool(apache.NEWEST, CONSOLE, *arguments).stdout.split() == ["0", "1", "2"]


def test_no_accepted_record_comes_again_and_none_is_lost_while_the_broker_is_killed(
    here: Here, request: pytest.FixtureRequest
) -> None:
    """Accept each record once while the broker is killed"""
    broker, shares, reference = here
    random = Random(5)
    reference.create_topic("jobs", partitions=2)
    shares.ask("start_at", group="work", topic="jobs", partitions=2, offset=0)
    for member in ("first", "second"):
        shares.ask("work", member=member, group="work", topic="jobs", most=20)
    written = 0
    for _ in range(request.config.getoption("--kills")):
        records = [{"value": f"{written + at}", "partition": at % 2} for at in range(300)]
        reference.produce("jobs", records, idempotent=True)
        written += len(records)
        enough = written - random.randrange(50, 250)
        eventually(lambda enough=enough: len(accepted(shares)) >= enough, within_s=90)
        broker.kill()
        broker.start()
    eventually(lambda: len(set(accepted(shares))) == written, within_s=120)
    found = accepted(shares)
    assert sorted(map(int, found)) == list(range(written)), "a record was accepted twice, or never"
    for member in ("first", "second"):
        shares.ask("stop", member=member)


def accepted(shares: Driver) -> list[str]:
    """What the broker has confirmed, of both members."""
    return [value for member in ("first", "second") for value in shares.ask("accepted", member=member)]
