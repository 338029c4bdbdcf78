"""What an operator does to a cluster of both kinds while an idempotent producer writes with acks=all all the time.

Apache Kafka 4.4.0, one controller and two brokers, and a kbroker with two log directories; the cluster begins as one of
Kafka 3.9. The controller takes snapshots all the time, and forgets the log before. By Apache's tools a topic grows, its
settings change and the level of the cluster is raised; a member misses so much that it is given a snapshot; a log
directory fails. Nothing acknowledged is lost, twice or out of order, and replicas have the same bytes.
"""

from __future__ import annotations

import os
import re
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from compat_tests.apache import NEWEST, Quorum
from compat_tests.brokers import KbrokerMember
from compat_tests.checker import Acknowledged, complaints, everything
from compat_tests.clients import LIBRDKAFKA, REFERENCE, Driver, running
from compat_tests.test_quorum_directories import OFTEN, metadata_log, snapshots
from compat_tests.test_quorum_member import OURS, SETTINGS, TOOLS, Cluster, eventually
from compat_tests.waiting import eventually as within

WRITTEN = 4  # partitions
PLACES = ([OURS, 1, 2], [1, OURS, 2], [OURS, 2, 1], [2, 1, OURS])
CONFIGS = f"{TOOLS}.ConfigCommand"
LZ4 = 3  # in the attributes of a batch
pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


class Load(NamedTuple):
    """What is written to a topic by one client."""

    cluster: Cluster
    driver: Driver
    topic: str

    def goes_on(self) -> None:
        """Wait until more is acknowledged in every partition."""
        before = self.driver.written()
        eventually(lambda: all(now > then + 20 for now, then in zip(self.driver.written(), before, strict=True)))

    def check(self, partitions: int) -> None:
        """Replicas agree below the high watermark, while they are written."""
        for index in range(partitions):
            _, high_watermark = self.driver.bounds(self.topic, index)
            logs = {at: below(self.cluster.log(self.topic, index, at), high_watermark) for at in self.cluster.brokers}
            assert logs[OURS] == logs[1] == logs[2], f"{self.topic}-{index} differs below {high_watermark}"


@contextmanager
def load(cluster: Cluster, driver: Driver, topic: str) -> Iterator[Load]:
    """Written from the beginning to the end of the block, and judged then."""
    cluster.make(topic, *PLACES, min_insync_replicas="2")
    driver.start_writing(topic, WRITTEN, 2, 200)
    made = Load(cluster, driver, topic)
    made.goes_on()
    yield made
    made.goes_on()
    cluster.all_in_sync(topic)
    places, failed = driver.stop_writing()
    assert failed == []
    acknowledged = [Acknowledged("librdkafka", *each) for each in places]
    found = complaints(acknowledged, everything(driver, topic, WRITTEN))
    assert found == [], [breaks(cluster.log(topic, index, at)) for at in cluster.brokers for index in range(WRITTEN)]
    for index in range(WRITTEN):
        logs = {at: cluster.log(topic, index, at) for at in cluster.brokers}
        assert logs[OURS] == logs[1] == logs[2]


def below(log: bytes, offset: int) -> bytes:
    """The batches of a log that end below an offset."""
    return log[: next((at for at, _, last in batches(log) if last >= offset), len(log))]


def batches(log: bytes) -> Iterator[tuple[int, int, int]]:
    """Position, codec and last offset of each whole batch."""
    at = 0
    while at + 61 <= len(log):
        base, size = struct.unpack_from(">qi", log, at)
        attributes, last_delta = struct.unpack_from(">hi", log, at + 21)
        yield at, attributes & 7, base + last_delta
        at += 12 + size


def breaks(log: bytes) -> list[tuple[int, ...]]:
    """Where a producer does not go on as it was: offset, leader epoch, producer id, its epoch, and the sequence.

    Of a log that one producer writes. A second epoch of the producer is its client's doing, a sequence that comes twice
    a broker's.
    """
    found, wanted = [], (-1, -1, -1)
    for at, _, last in batches(log):
        base, _, leader_epoch = struct.unpack_from(">qii", log, at)
        producer_id, epoch, sequence = struct.unpack_from(">qhi", log, at + 43)
        if (producer_id, epoch, sequence) != wanted:
            found.append((base, leader_epoch, producer_id, epoch, sequence))
        wanted = producer_id, epoch, sequence + last - base + 1
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("load")
    roomy = {"internal.metadata.log.segment.bytes": "16000"}  # a batch that is larger than a segment ends a controller
    made = Cluster(folder, Quorum(NEWEST, folder, release_version="3.9", settings=OFTEN | roomy))
    disks = ",".join(str(folder / f"broker{OURS}" / name) for name in ("data0", "data1"))
    frequent = {"replica.high.watermark.checkpoint.interval.ms": "500", "broker.heartbeat.interval.ms": "500"}
    made.brokers[OURS] = KbrokerMember(
        made.quorum, folder / f"broker{OURS}", OURS, settings=SETTINGS | frequent | {"log.dirs": disks}
    )
    with made:
        yield made


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Iterator[Driver]:
    with running(cluster.addresses, tmp_path, LIBRDKAFKA) as (found,):
        yield found


def test_the_level_of_the_cluster_is_raised(cluster: Cluster, driver: Driver) -> None:
    features = f"{TOOLS}.FeatureCommand"
    with load(cluster, driver, "raised") as written:
        assert "FinalizedVersionLevel: 3.9-IV0" in cluster.tool(features, "describe")
        for release in ("4.0", "4.2", "4.4"):
            cluster.tool(features, "upgrade", "--release-version", release)
            for at in cluster.brokers:
                eventually(
                    lambda at=at, release=release: (
                        f"FinalizedVersionLevel: {release}-IV" in cluster.tool(features, "describe", at=at)  # type: ignore[misc]
                    )
                )
            written.goes_on()
            cluster.make(f"of-{release}", [OURS, 1, 2])
        written.check(WRITTEN)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_each_broker_in_turn_is_started_again(cluster: Cluster, driver: Driver, how: str) -> None:
    with load(cluster, driver, how) as written:
        for number, broker in cluster.brokers.items():
            other = next(at for at in cluster.brokers if at != number)
            if how == "stopped":
                broker.stop()
            else:
                broker.kill()
            eventually(
                lambda number=number, other=other: (
                    number not in {leader for leader, _, _ in cluster.partitions(written.topic, other)}  # type: ignore[misc]
                )
            )
            written.goes_on()
            broker.start()
            cluster.all_in_sync(written.topic)
            written.check(WRITTEN)


def test_partitions_are_added_and_settings_changed(cluster: Cluster, driver: Driver, tmp_path: Path) -> None:
    topic, more = "grown", WRITTEN + 3

    def change(*changes: str, of_type: str = "topics", name: str = topic) -> None:
        cluster.tool(CONFIGS, "--alter", "--entity-type", of_type, "--entity-name", name, *changes)

    with running(cluster.addresses, tmp_path, REFERENCE) as (other,), load(cluster, driver, topic) as written:
        cluster.tool(f"{TOOLS}.TopicCommand", "--alter", "--topic", topic, "--partitions", str(more))
        for at in cluster.brokers:
            eventually(lambda at=at: len(cluster.partitions(topic, at)) == more)  # type: ignore[misc]
        other.start_writing(topic, more, 2, 200)
        change("--add-config", "compression.type=lz4,segment.bytes=1048576")
        eventually(lambda: LZ4 in {codec for _, codec, _ in batches(cluster.log(topic, 0, OURS))})
        written.goes_on()
        change(
            "--add-config", "compression.type=producer,max.message.bytes=2000000", "--delete-config", "segment.bytes"
        )
        change("--add-config", "num.io.threads=5", of_type="brokers", name=str(OURS))
        written.goes_on()
        written.check(more)
        for at in cluster.brokers:
            eventually(
                lambda at=at: (
                    "max.message.bytes=2000000"  # type: ignore[misc]
                    in cluster.tool(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic, at=at)
                )
            )
        places, failed = other.stop_writing()
    assert failed == []
    acknowledged = [Acknowledged("kafka-python", *each) for each in places]
    assert complaints(acknowledged, everything(driver, topic, more)) == []
    cluster.all_in_sync(topic)
    for index in range(WRITTEN, more):
        logs = {at: cluster.log(topic, index, at) for at in cluster.brokers}
        assert logs[OURS] == logs[1] == logs[2] != b""


def test_a_member_that_missed_more_than_there_is_of_the_log_goes_on_from_a_snapshot(
    cluster: Cluster, driver: Driver
) -> None:
    (controller,) = cluster.quorum.controllers.values()

    def starts_at() -> int:
        return min(int(each.stem) for each in metadata_log(controller.folder).glob("*.log"))

    with load(cluster, driver, "missed") as written:
        cluster.brokers[OURS].kill()
        status = cluster.tool(f"{TOOLS}.MetadataQuorumCommand", "describe", "--status", at=1)
        found = re.search(r"HighWatermark:\s+(\d+)", status)
        assert found is not None, status
        reached = int(found[1])
        written.goes_on()
        within(lambda: starts_at() > reached, 240)
        cluster.brokers[OURS].start()
        fetched = snapshots(cluster.brokers[OURS].folder)
        assert int(fetched[-1].stem.partition("-")[0]) > reached
        assert min(int(each.stem) for each in metadata_log(cluster.brokers[OURS].folder).glob("*.log")) > reached
        cluster.all_in_sync(written.topic)
        written.check(WRITTEN)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["does not answer", "has ended"])
def test_records_are_written_while_the_quorum_is_away(cluster: Cluster, driver: Driver, how: signal.Signals) -> None:
    (controller,) = cluster.quorum.controllers.values()
    member = cluster.brokers[OURS]
    with load(cluster, driver, f"written-{how.name.lower()}") as written:
        before = len(member.output)
        if how == signal.SIGSTOP:
            os.kill(controller.pid, how)
        else:
            controller.kill()
        eventually(lambda: f"{controller.address} failed: " in member.output[before:])
        written.goes_on()
        if how == signal.SIGSTOP:
            os.kill(controller.pid, signal.SIGCONT)
        else:
            controller.start()
        cluster.make(f"after-{how.name.lower()}", [OURS, 1, 2], at=OURS)
        written.check(WRITTEN)
    assert "Traceback" not in member.output


def test_a_log_directory_fails_and_its_partitions_are_led_elsewhere_until_there_is_another_disk(
    cluster: Cluster, driver: Driver
) -> None:
    topic, member = "on-two-disks", cluster.brokers[OURS]
    assert isinstance(member, KbrokerMember)
    disk, gone = (member.folder / name for name in ("data1", "gone"))
    with load(cluster, driver, topic) as written:
        lost = {int(each.name.rpartition("-")[2]) for each in disk.glob(f"{topic}-?")}
        kept = set(range(WRITTEN)) - lost
        assert lost
        assert kept
        cluster.tool(f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
        disk.rename(gone)
        disk.write_text("no directory")
        eventually(lambda: all(OURS not in cluster.partitions(topic, 1)[index][2] for index in lost))
        assert all(cluster.partitions(topic, 1)[index][0] != OURS for index in lost)
        assert all(OURS in cluster.partitions(topic, 1)[index][2] for index in kept)
        assert member.alive
        written.goes_on()
        cluster.make(f"{topic}-more", [OURS, 1, 2])
        member.stop()
        disk.unlink()
        member.format(cluster.quorum.cluster_id)
        member.start()
        cluster.all_in_sync(topic)
        cluster.tool(f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
        eventually(lambda: [leader for leader, _, _ in cluster.partitions(topic)] == [some[0] for some in PLACES])
        written.goes_on()
        written.check(WRITTEN)
    assert "Traceback" not in member.output
