"""A topic is ready when CreateTopics has answered: clients use it at once, and no broker tells them to try again.

Brokers are processes, alone or three on a metadata server. What they have answered is read from their own counters of
error codes; no topic is deleted, for a client that still knows it would then be told so. `--new-topics N` sets how many
each client makes: a dozen in scripts/test; 10,000 for each of five clients at one and at three brokers are 100,000.
"""

from __future__ import annotations

import re
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import CLIENTS, Client, Driver, running
from tests.runtime.metadata_servers import RunningServer

SECTION = "1 Brokers and topics"
pytestmark = pytest.mark.timeout(3600)

QUICK = 12  # topics, where no option says it
PER_DRIVER = 500  # clients ask for all topics that they know at once: a program that knows few stays quick
TRY_AGAIN = {
    "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", "LEADER_NOT_AVAILABLE", "NOT_LEADER_OR_FOLLOWER",
    "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS",
    "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT",
}  # fmt: skip
KINDS = [
    pytest.param(each, id=str(each), marks=[pytest.mark.quick] * each.quick)
    for each in CLIENTS
    if "create_topic" not in each.lacks
]


class Brokers:
    """Processes of one cluster. bootstrap: of the last one, which is not the controller if there are others."""

    def __init__(self, processes: list[KbrokerProcess], metrics: list[int]) -> None:
        self.bootstrap = processes[-1].address
        self._metrics = metrics

    def told_to_try_again(self) -> Counter[str]:
        """How often an answer had one of those errors, by request and error."""
        found: Counter[str] = Counter()
        for port in self._metrics:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
                text = page.read().decode()
            for request, error, count in re.findall(
                r'^kafka_network_requestmetrics_errors_total\{request="(\w+)",error="(\w+)"\} (\d+)', text, re.MULTILINE
            ):
                if error in TRY_AGAIN:
                    found[f"{request} {error}"] += int(count)
        return found


@contextmanager
def brokers_of(count: int, folder: Path, *, replicas: int) -> Iterator[Brokers]:
    """A cluster of so many brokers; one is alone, as `kbroker start` makes it. replicas: of coordinators' topics.

    Where these have several, their followers may come to a new leader before it has heard that it is one.
    """
    with ExitStack() as running:
        common = {"num.partitions": "2"}
        if count > 1:
            server = running.enter_context(RunningServer(folder))
            common |= {
                "zookeeper.connect": server.address,
                "offsets.topic.replication.factor": str(replicas),
                "transaction.state.log.replication.factor": str(replicas),
                "transaction.state.log.min.isr": "1",
                "group.initial.rebalance.delay.ms": "0",
            }
        metrics = free_ports(count)
        processes = []
        for at, port in enumerate(metrics):
            own = {"broker.id": str(at + 1), "kbroker.metrics.listener": f"127.0.0.1:{port}"}
            process = KbrokerProcess(folder / f"broker-{at + 1}", settings=common | own)
            processes.append(running.enter_context(process))
        yield Brokers(processes, metrics)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in probes]
    for each in probes:
        each.close()
    return ports


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_new_topics_are_written_to_and_read_at_once(
    kind: Client, brokers: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Topics are ready when they are made, on {brokers} broker(s): no broker says to try again"""
    total = pytestconfig.getoption("--new-topics") or QUICK
    with brokers_of(brokers, tmp_path, replicas=1) as cluster:
        for start in range(0, total, PER_DRIVER):
            with running(cluster.bootstrap, tmp_path, kind) as (client,):
                for number in range(start, min(start + PER_DRIVER, total)):
                    use_a_new_topic(client, f"new-{number}", number % 2)
            assert cluster.told_to_try_again() == {}, f"after {min(start + PER_DRIVER, total)} topics"


def use_a_new_topic(client: Driver, topic: str, partition: int) -> None:
    """Make it, write to it, and read what was written."""
    client.create_topic(topic, partitions=2)
    client.produce(topic, [{"value": topic, "partition": partition}])
    assert [record["value"] for record in client.read(topic, partition, 0, 1)] == [topic]


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("kind", [each for each in KINDS if "transactions" not in each.values[0].lacks])  # type: ignore[union-attr]
def test_the_first_group_and_the_first_transaction_begin_at_once(kind: Client, brokers: int, tmp_path: Path) -> None:
    """The first group and transaction begin at once, on {brokers} broker(s): no coordinator says to try again"""
    with (
        brokers_of(brokers, tmp_path, replicas=brokers) as cluster,
        running(cluster.bootstrap, tmp_path, kind) as (client,),
    ):
        client.create_topic("first", partitions=1)
        client.produce("first", [{"value": "1"}])
        client.join("member", "the-first-group", ["first"])
        assert [record["value"] for record in client.poll("member", 1)] == ["1"]
        client.transact("producer", "first", ["2"], group="the-first-group", source="first", offset=1)
        assert client.read_committed("first", 2) == ["1", "2"]
        told = cluster.told_to_try_again()
        del told["Fetch UNKNOWN_TOPIC_ID"]  # of followers, not of clients: topics of these have one replica
        assert told == {}
