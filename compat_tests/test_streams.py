"""Kafka Streams with processing.guarantee=exactly_once_v2: a word count, while the broker is killed (-9).

The count goes by way of a repartition topic and the changelog of a table, all in transactions. Every update of a count
is written, so in the end the committed output of a word that came n times is 1 to n, each once and in order.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from compat_tests import apache, environments
from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import REFERENCE, Client, Driver, running
from compat_tests.test_group_transactions_killed import SETTINGS, committed
from compat_tests.waiting import eventually

SECTION, COLUMN = "9 Transactions", "Kafka Streams 3.9.1"
NAME, SOURCE, TOPIC = "wordcount", "lines", "totals"
PARTITIONS, LINES, WORDS_IN_LINE = 2, 200, 3
WORDS = ["ash", "birch", "cedar", "elm", "fir", "larch", "maple", "oak", "pine", "yew"]


def streams(folder: Path, release: str = "3.9.1") -> Client:
    """Kafka Streams, with its state in a folder."""

    def command() -> list[str]:
        version = {"kafka.version": release}
        jars = environments.jars_of(Path(__file__).parent / "streams.pom.xml", f"streams-jars-{release}", version)
        classpath = ":".join([environments.java_classpath(release), *map(str, jars)])
        program = ["java", *apache.SMALL_JVM, "-Xmx512m", "-cp", classpath, environments.driver("StreamsDriver.java")]
        return ["sh", "-c", 'exec "$@" "$0"', str(folder), *program]  # the folder is the argument after the address

    return Client("Kafka Streams", release, command)


@pytest.mark.quick
@pytest.mark.timeout(1800)
def test_every_word_is_counted_once_while_the_broker_is_killed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Count words with processing.guarantee=exactly_once_v2 while the broker is killed"""
    random = Random(3)
    counts: Counter[str] = Counter()
    with (
        KbrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker,
        running(broker.address, tmp_path, streams(tmp_path / "state"), REFERENCE) as (driver, reference),
    ):
        reference.create_topic(SOURCE, partitions=PARTITIONS)
        reference.create_topic(TOPIC)
        driver.ask("start", name=NAME, source=SOURCE, topic=TOPIC)
        lines = 0
        for _ in range(request.config.getoption("--kills")):
            written = [random.choices(WORDS, k=WORDS_IN_LINE) for _ in range(LINES)]
            counts.update(word for line in written for word in line)
            records = [{"value": " ".join(line), "partition": at % PARTITIONS} for at, line in enumerate(written)]
            reference.produce(SOURCE, records, idempotent=True)
            lines += LINES
            enough = lines - random.randrange(1, LINES)
            eventually(lambda enough=enough: read(reference) >= enough, within_s=60)
            broker.kill()
            broker.start()
        eventually(lambda: read(reference) == lines, within_s=60)
        seen = reference.read_committed(TOPIC, counts.total() + 1, wait_ms=10_000)
    found: dict[str, list[int]] = {word: [] for word in WORDS}
    for word, _, count in (value.partition(" ") for value in seen):
        found[word].append(int(count))
    assert found == {word: list(range(1, counts[word] + 1)) for word in WORDS}


def read(reference: Driver) -> int:
    """How many lines the word count has read and committed."""
    return sum(committed(reference, NAME, SOURCE, partition) for partition in range(PARTITIONS))
