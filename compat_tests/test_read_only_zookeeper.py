"""kbroker and an ensemble without a quorum, whose only member serves what it knows and takes no writes.

Two ZooKeepers with `readonlymode.enabled`; one of them is down, at the start and again while the broker runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from compat_tests.apache import SMALL_JVM, ZooKeeper, free_port
from compat_tests.brokers import KbrokerProcess
from compat_tests.waiting import eventually

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

IMPATIENT = {"zookeeper.connection.timeout.ms": "500", "zookeeper.session.timeout.ms": "5000"}
LITTLE_S = 0.5  # of the processor, in which a broker that tries too often would not get by


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ZooKeeper]]:
    """Both members of an ensemble; the first runs, alone."""
    members = {f"server.{number}": f"127.0.0.1:{free_port()}:{free_port()}" for number in (1, 2)}
    made = []
    for number in (1, 2):
        folder = tmp_path / f"zookeeper{number}"
        settings = {**members, "initLimit": "20", "syncLimit": "10"}
        made.append(ZooKeeper(folder, settings=settings, jvm=(*SMALL_JVM, "-Dreadonlymode.enabled=true")))
        (folder / "data").mkdir()
        (folder / "data" / "myid").write_text(str(number))
    made[0].start()
    yield made
    for server in made:
        server.kill()


def cpu_s(broker: KbrokerProcess) -> float:
    """Processor time that a broker has had."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def await_lines(broker: KbrokerProcess, line: str, count: int) -> None:
    """Wait until the broker has said it so many times more, without work in between."""
    before, spent_s = broker.output.count(line), cpu_s(broker)
    eventually(lambda: broker.output.count(line) >= before + count, within_s=60)
    assert cpu_s(broker) - spent_s < LITTLE_S


def test_a_read_only_ensemble_is_waited_for_at_the_start_and_later(servers: list[ZooKeeper], tmp_path: Path) -> None:
    first, second = servers
    settings = {**IMPATIENT, "zookeeper.connect": f"{first.address},{second.address}", "broker.id": "1"}
    broker = KbrokerProcess(tmp_path / "broker", settings=settings)
    line = f"no ZooKeeper answers at {first.address},{second.address}; trying on"
    with ThreadPoolExecutor(1) as aside:
        start = aside.submit(broker.start)
        try:
            eventually(lambda: broker.output.count(line) >= 1, within_s=60)
            await_lines(broker, line, 3)
            assert not (tmp_path / "broker" / "data").exists()
            second.start()
            start.result()
            producer = KafkaProducer(bootstrap_servers=broker.address, acks="all")
            producer.send("t", b"before").get(30)
            second.kill()
            await_lines(broker, line, 3)
            producer.send("t", b"meanwhile").get(30)
            second.start()
            eventually(lambda: "connected to ZooKeeper" in broker.output.rpartition(line)[2], within_s=60)
            producer.send("t", b"after").get(30)
            producer.close()
            consumer = KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest")
            consumer.assign([TopicPartition("t", 0)])
            assert [next(consumer).value for _ in range(3)] == [b"before", b"meanwhile", b"after"]
            consumer.close()
        finally:
            broker.kill()
