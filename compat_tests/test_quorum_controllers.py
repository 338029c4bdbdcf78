"""A member of a cluster whose controllers die and come back, and whose metadata.version is raised while it runs.

Three controllers and a broker of Apache's, and a kbroker; the cluster begins as one of Kafka 3.9. An idempotent
producer writes with acks=all to both brokers all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from compat_tests import waiting
from compat_tests.apache import NEWEST, Quorum, QuorumBroker, run_tool
from compat_tests.brokers import KbrokerMember
from compat_tests.checker import Acknowledged, complaints, everything
from compat_tests.clients import LIBRDKAFKA, Driver, running
from compat_tests.test_quorum_member import OURS, SETTINGS, TOOLS, Cluster

eventually = partial(waiting.eventually, within_s=90)
FEW = SETTINGS | {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
}
pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    quorum = Quorum(NEWEST, tmp_path, 3, release_version="3.9")
    made = Cluster(tmp_path, quorum)
    del made.brokers[2]
    made.brokers[1] = QuorumBroker(quorum, tmp_path / "broker1", 1, settings=FEW, heap="320m")
    made.brokers[OURS] = KbrokerMember(quorum, tmp_path / f"broker{OURS}", OURS, settings=FEW)  # without rules
    with made:
        yield made


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Iterator[Driver]:
    with running(cluster.addresses, tmp_path, LIBRDKAFKA) as (found,):
        yield found


def test_controllers_are_killed_in_turn_and_the_metadata_version_is_raised_and_no_record_is_lost(
    cluster: Cluster, driver: Driver
) -> None:
    topic = "busy"
    cluster.make(topic, [OURS, 1], [1, OURS], min_insync_replicas="2")
    driver.start_writing(topic, 2, 2, 200)

    def written_on() -> None:
        before = driver.written()
        eventually(lambda: all(now > then + 20 for now, then in zip(driver.written(), before, strict=True)))

    written_on()
    for number, controller in cluster.quorum.controllers.items():
        controller.kill()
        written_on()
        cluster.make(f"while-{number}-is-away", [1, OURS], at=OURS)
        cluster.brokers[OURS].kill()  # a start finds a leader among those that are left
        cluster.brokers[OURS].start()
        cluster.all_in_sync(topic)
        controller.start()
    described = cluster.tool(f"{TOOLS}.FeatureCommand", "describe")
    assert "FinalizedVersionLevel: 3.9-IV0" in described
    cluster.tool(f"{TOOLS}.FeatureCommand", "upgrade", "--release-version", NEWEST.removesuffix(".0"))
    eventually(_is_at(cluster, "4.4-IV"))
    cluster.make("after", [OURS, 1], [1, OURS])
    cluster.brokers[OURS].kill()
    cluster.brokers[OURS].start()
    cluster.all_in_sync(topic)
    written_on()
    places, failed = driver.stop_writing()
    cluster.all_in_sync(topic)
    assert failed == []
    acknowledged = [Acknowledged("librdkafka", *each) for each in places]
    assert complaints(acknowledged, everything(driver, topic, 2)) == []
    logs = [[cluster.log(topic, index, at) for index in range(2)] for at in cluster.brokers]
    assert logs[0] == logs[1]


def _is_at(cluster: Cluster, level: str) -> Callable[[], bool]:
    describe = ("--bootstrap-server", cluster.brokers[OURS].address, "describe")
    return lambda: f"FinalizedVersionLevel: {level}" in run_tool(NEWEST, f"{TOOLS}.FeatureCommand", *describe).stdout
