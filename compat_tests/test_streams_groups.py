"""Kafka Streams with group.protocol=streams (KIP-1071): the coordinator gives out the tasks.

The word count of test_streams.py, in transactions, by two instances: while an instance is killed (-9) and replaced,
and while the broker is. The tool of such groups, kafka-streams-groups.sh, is asked about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from compat_tests import apache
from compat_tests.apache import NEWEST
from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import REFERENCE, Driver, running, start
from compat_tests.test_group_transactions_killed import SETTINGS as TRANSACTION_SETTINGS
from compat_tests.test_streams import LINES, NAME, PARTITIONS, SOURCE, TOPIC, WORDS, WORDS_IN_LINE, read, streams
from compat_tests.waiting import eventually

SECTION, COLUMN = "9 Transactions", f"Kafka Streams {NEWEST}"
TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"
SETTINGS = {
    **TRANSACTION_SETTINGS,
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.min.session.timeout.ms": "3000",
    "group.streams.session.timeout.ms": "3000",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
OWN = {
    "group.protocol": "streams",
    "producer.transaction.timeout.ms": "5000",  # what a killed instance has left open is aborted then
    "commit.interval.ms": "100",
}


class Instances:
    """Instances of the word count, by number; each has a folder for its state."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.drivers: dict[int, Driver] = {}

    def start(self, number: int) -> None:
        """Start an instance; it finds what one of its number left."""
        driver = start(streams(self.folder / f"state-{number}", NEWEST), self.address, self.folder)
        driver.ask("start", name=NAME, source=SOURCE, topic=TOPIC, settings=OWN)
        self.drivers[number] = driver

    def kill(self, number: int) -> None:
        """End it by -9."""
        self.drivers.pop(number).close()

    def all_run(self) -> bool:
        """Whether all instances have their tasks, and do them."""
        return all(driver.ask("state") == "RUNNING" for driver in self.drivers.values())


@contextmanager
def instances(address: str, folder: Path, count: int) -> Iterator[Instances]:
    """So many instances, killed in the end."""
    made = Instances(address, folder)
    try:
        for number in range(count):
            made.start(number)
        yield made
    finally:
        for number in list(made.drivers):
            made.kill(number)


def write(reference: Driver, random: Random, counts: Counter[str]) -> None:
    """Write lines, and count their words."""
    written = [random.choices(WORDS, k=WORDS_IN_LINE) for _ in range(LINES)]
    counts.update(word for line in written for word in line)
    records = [{"value": " ".join(line), "partition": at % PARTITIONS} for at, line in enumerate(written)]
    reference.produce(SOURCE, records, idempotent=True)


def has_read(reference: Driver, lines: int) -> bool:
    """Whether the application has read, and committed, so many lines."""
    return read(reference) >= lines


def check_counts(reference: Driver, counts: Counter[str]) -> None:
    """The committed output of a word that came n times is 1 to n, each once and in order. Waits for the last."""
    eventually(lambda: len(reference.read_committed(TOPIC, counts.total(), wait_ms=10_000)) >= counts.total(), 120)
    seen = reference.read_committed(TOPIC, counts.total() + 1, wait_ms=5_000)
    found: dict[str, list[int]] = {word: [] for word in WORDS}
    for word, _, count in (value.partition(" ") for value in seen):
        found[word].append(int(count))
    assert found == {word: list(range(1, counts[word] + 1)) for word in WORDS}


def tool(broker: KbrokerProcess, *arguments: str) -> str:
    """What kafka-streams-groups.sh says."""
    done = apache.run_tool(NEWEST, TOOL, "--bootstrap-server", broker.address, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def rows(text: str) -> list[dict[str, str]]:
    """A table that the tool has printed, by its columns."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    at = next(number for number, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[at], line, strict=False)) for line in lines[at + 1 :]]


@pytest.mark.timeout(1800)
def test_every_word_is_counted_once_while_instances_and_the_broker_are_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Count words with group.protocol=streams while instances and the broker are killed"""
    random = Random(5)
    counts: Counter[str] = Counter()
    with (
        KbrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker,
        running(broker.address, tmp_path, REFERENCE) as (reference,),
    ):
        reference.create_topic(SOURCE, partitions=PARTITIONS)
        reference.create_topic(TOPIC)
        with instances(broker.address, tmp_path, 2) as both:
            eventually(both.all_run, within_s=60)
            lines = 0
            for turn in range(request.config.getoption("--kills")):
                write(reference, random, counts)
                lines += LINES
                enough = lines - random.randrange(1, LINES)
                eventually(partial(has_read, reference, enough), within_s=90)
                if turn % 2:
                    broker.kill()
                    broker.start()
                else:
                    number = random.randrange(2)
                    both.kill(number)
                    both.start(number)
            eventually(lambda: read(reference) == lines, within_s=90)
            check_counts(reference, counts)


@pytest.mark.quick
@pytest.mark.timeout(600)
def test_the_coordinator_gives_out_the_tasks_of_an_application(tmp_path: Path) -> None:
    """Share the tasks of an application by group.protocol=streams, and ask kafka-streams-groups about it"""
    random = Random(7)
    counts: Counter[str] = Counter()
    with (
        KbrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker,
        running(broker.address, tmp_path, REFERENCE) as (reference,),
    ):
        reference.create_topic(SOURCE, partitions=PARTITIONS)
        reference.create_topic(TOPIC)
        with instances(broker.address, tmp_path, 1) as app:
            write(reference, random, counts)
            eventually(lambda: read(reference) == LINES, within_s=60)
            check_counts(reference, counts)
            internal = {f"{NAME}-words-repartition", f"{NAME}-counts-changelog"}
            assert internal <= set(reference.topics())

            assert NAME in tool(broker, "--list").split()
            (state,) = rows(tool(broker, "--describe", "--group", NAME, "--state"))
            assert state["STATE"] == "Stable", state
            members = tool(broker, "--describe", "--group", NAME, "--members", "--verbose")
            assert members.count(NAME) >= 2, members  # one for each thread
            offsets = rows(tool(broker, "--describe", "--group", NAME, "--offsets"))
            lags: dict[str, Any] = {f"{row['TOPIC']}-{row['PARTITION']}": row for row in offsets}
            assert {f"{SOURCE}-{partition}" for partition in range(PARTITIONS)} <= lags.keys()
            app.drivers[0].ask("close", within_s=30)
        eventually(lambda: "Empty" in tool(broker, "--describe", "--group", NAME, "--state"), within_s=30)
        tool(broker, "--delete", "--group", NAME)
        assert NAME not in tool(broker, "--list").split()
