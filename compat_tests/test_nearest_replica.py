"""Stock consumers that say where they are (`client.rack`) read from the replica of their own rack (KIP-392)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from compat_tests.apache import NEWEST, java_command
from compat_tests.clients import LIBRDKAFKA
from compat_tests.test_apache_tools import CONSOLE_CONSUMER
from kbroker.testing import Cluster, cluster

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]
RACKS = ("here", "there", "elsewhere")
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
VALUES = [f"value {at}" for at in range(300)]
NAME = "near"
BY_KAFKA_PYTHON = """
import sys, kafka
address, rack, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = kafka.KafkaConsumer(
    bootstrap_servers=address, client_rack=rack, client_id="near", auto_offset_reset="earliest", max_poll_records=50
)
consumer.assign([kafka.TopicPartition("orders", 0)])
print(*(record.value.decode() for _, record in zip(range(count), consumer)), sep="\\n")
"""
BY_LIBRDKAFKA = """
import sys, confluent_kafka
address, rack, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
consumer = confluent_kafka.Consumer(
    {"bootstrap.servers": address, "client.rack": rack, "client.id": "near", "group.id": "g"}
)
consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
left = count
while left:
    for message in consumer.consume(left, 0.5):
        assert not message.error(), message.error()
        print(message.value().decode())
        left -= 1
consumer.close()
"""


def by_kafka_python(*arguments: str) -> list[str]:
    return [sys.executable, "-c", BY_KAFKA_PYTHON, *arguments]


def by_librdkafka(*arguments: str) -> list[str]:
    python, _driver, *_ = LIBRDKAFKA.command()
    return [python, "-c", BY_LIBRDKAFKA, *arguments]


def by_java(release: str) -> Callable[..., list[str]]:
    def command(address: str, rack: str, count: str) -> list[str]:
        where = ["--bootstrap-server", address, "--topic", "orders", "--partition", "0", "--offset", "earliest"]
        given = "--consumer-property" if release < "4" else "--command-property"
        which = [given, f"client.rack={rack}", given, f"client.id={NAME}"]
        return java_command(release, CONSOLE_CONSUMER, [*where, *which, "--max-messages", count])

    return command


@pytest.fixture(scope="module")
def racks() -> Iterator[Cluster]:
    """Partition 0 of orders is led in the first rack and has a replica in each."""
    with cluster(3, racks=RACKS, replica_selector_class=SELECTOR) as c:
        c.create_topic("orders", replication_factor=3)
        c.move_leader("orders", to=c.brokers[0])
        for value in VALUES:
            c.produce("orders", value.encode(), partition=0)
        yield c


@pytest.mark.parametrize(
    "consumer",
    [by_kafka_python, by_librdkafka, by_java("3.9.1"), by_java(NEWEST)],
    ids=["kafka-python", "librdkafka", "Java 3.9.1", f"Java {NEWEST}"],
)
@pytest.mark.parametrize(("rack", "asked"), [("there", [1, 1, 0]), ("nowhere", [1, 0, 0])])
def test_a_consumer_reads_from_the_replica_of_its_rack(
    racks: Cluster, consumer: Callable[..., list[str]], rack: str, asked: list[int]
) -> None:
    """client.rack: read from a follower there, from the leader where no replica is"""
    before = [len(fetches(racks, at)) for at in range(3)]
    done = subprocess.run(consumer(racks.bootstrap, rack, str(len(VALUES))), capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == VALUES
    since = [fetches(racks, at)[so_far:] for at, so_far in enumerate(before)]
    assert [min(len(each), 1) for each in since] == asked
    if rack == "there":
        assert len(since[0]) == 1, "the leader was asked on after it had named a nearer replica"


def fetches(c: Cluster, at: int) -> list[object]:
    return [each for each in c.brokers[at].requests("Fetch", topic="orders") if NAME in each.client_id]
