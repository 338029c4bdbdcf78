"""Input that an Apache broker makes: old formats, transactions, compaction; mirrored, archived, replayed, audited."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from compat_tests.apache import ZooKeeperBroker, zookeeper_cluster
from compat_tests.waiting import eventually
from kbroker.pipeline import archive, audit, convert, mirror, replay
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import KEEP, fill, records

pytestmark = pytest.mark.slow

TOPICS = ("v0", "v1", "transactions", "compacted")


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperBroker]:
    """Kafka 3.9.1, speaking as 2.8 did, for the old formats."""
    settings = {"inter_broker_protocol_version": "2.8", "log_cleaner_backoff_ms": "200"}
    with zookeeper_cluster(tmp_path_factory.mktemp("apache"), 1, **settings) as brokers:
        _fill(brokers[0].address)
        yield brokers[0]


def _fill(address: str) -> None:
    with Cluster(Source(address).settings) as cluster:
        cluster.create("v0", 2, {**KEEP, "message.format.version": "0.9.0"})
        cluster.create("v1", 2, {**KEEP, "message.format.version": "0.10.2"})
        cluster.create("transactions", 2, KEEP)
        soon = {"min.cleanable.dirty.ratio": "0.001", "segment.ms": "1000", "segment.bytes": "1048576"}
        cluster.create("compacted", 1, {"cleanup.policy": "compact", **soon})
    for codec in (None, "gzip", "snappy", "lz4"):
        producer = KafkaProducer(bootstrap_servers=address, compression_type=codec, enable_idempotence=False)
        for number in range(300):
            for topic in ("v0", "v1"):
                key = None if number % 7 == 0 else b"key-%d" % (number % 20)
                producer.send(topic, b"value %d" % number * (number % 5), key, partition=number % 2)
        producer.close()
    _transactions(address)
    _compacted(address)


def _transactions(address: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="tx", acks="all")
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for item in range(20):
            producer.send("transactions", b"%d:%d" % (number, item), b"k", partition=item % 2)
        if number % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()


def _compacted(address: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    for generation in range(3):
        for number in range(500):
            value = None if number % 50 == 0 else b"%d-%d" % (generation, number)
            producer.send("compacted", value, b"key-%d" % (number * number % 100))
        producer.flush()
        threading.Event().wait(1.1)  # past segment.ms: the next record opens a segment, and this one can be compacted
    producer.close()


def _is_cleaned(apache: ZooKeeperBroker) -> bool:
    """Whether the cleaner has been through a part of the topic."""
    checkpoint = apache.log_dirs[0] / "cleaner-offset-checkpoint"
    return checkpoint.exists() and "compacted 0 1000" in checkpoint.read_text()


def _gaps(spark: Any, source: Source, topic: str) -> int:
    facts = audit.facts(audit.digest(audit.records_of_side(spark, source, [topic], False)))
    return sum(row.missing for row in facts.collect())


def test_all_of_it_is_mirrored_archived_and_replayed_without_a_difference(
    spark: Any, source: Source, apache: ZooKeeperBroker, tmp_path: Path
) -> None:
    there = Source(apache.address)
    names = {topic: topic for topic in TOPICS}
    eventually(lambda: _is_cleaned(apache), within_s=60)
    assert _gaps(spark, there, "compacted") > 0
    with Cluster(there.settings) as cluster:
        frozen = cluster.ends(TOPICS)
    assert sum(end.end - end.start for end in frozen.values()) > 2000
    assert _gaps(spark, there, "transactions") > 0
    archive.archive(spark, there, list(TOPICS), str(tmp_path / "archive"), until_now=True)
    copies = {topic: f"{topic}-replayed" for topic in TOPICS}
    replay.replay(spark, source, str(tmp_path / "archive"), topics=copies)
    assert audit.audit(spark, str(tmp_path / "archive"), source, copies)["differences"] == []
    mirror.mirror(spark, there, source, {**names, "compacted": "compacted-mirrored"}, str(tmp_path / "state"))
    plain = {topic: topic for topic in TOPICS if topic != "compacted"}
    found = audit.audit(spark, there, source, plain)
    assert (found["equal"], found["differences"]) == (True, [])


def test_apaches_log_directory_is_read_from_disk(spark: Any, apache: ZooKeeperBroker) -> None:
    names = {topic: topic for topic in ("v0", "v1", "transactions")}
    folder = str(apache.log_dirs[0])
    assert audit.audit(spark, folder, Source(apache.address), names)["differences"] == []


def test_apaches_old_segments_are_converted(spark: Any, apache: ZooKeeperBroker, tmp_path: Path) -> None:
    done = convert.convert(spark, str(apache.log_dirs[0]), str(tmp_path / "new"))
    assert done["messages"] > 0
    assert audit.audit(spark, str(tmp_path / "new"), Source(apache.address), {"v0": "v0", "v1": "v1"})["equal"]


def test_records_go_to_an_apache_broker_too(spark: Any, apache: ZooKeeperBroker, tmp_path: Path) -> None:
    there = Source(apache.address)
    archive.archive(spark, there, ["v1"], str(tmp_path / "archive"), until_now=True)
    replay.replay(spark, there, str(tmp_path / "archive"), topics={"v1": "v1-back"}, codec="lz4")
    assert audit.audit(spark, there, there, {"v1": "v1-back"})["equal"]


def test_a_mirror_goes_to_an_apache_broker_and_back_with_its_groups(
    spark: Any, source: Source, cluster: Cluster, apache: ZooKeeperBroker, topic: str, tmp_path: Path
) -> None:
    there, names = Source(apache.address), {topic: f"{topic}-back"}
    fill(cluster, topic, [records(300), records(200, 2)])
    cluster.commit(f"g-{topic}", {(topic, 0): 120})
    mirror.mirror(spark, source, there, {topic: topic}, str(tmp_path / "there"), groups=[f"g-{topic}"])
    mirror.mirror(spark, there, source, names, str(tmp_path / "back"), groups=[f"g-{topic}"])
    assert [audit.audit(spark, side, source, names)["equal"] for side in (source, there)] == [True, True]
    assert cluster.committed(f"g-{topic}") == {(topic, 0): 120, (names[topic], 0): 120}
