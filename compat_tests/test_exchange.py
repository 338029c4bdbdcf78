"""One log directory and one ZooKeeper, used in turns by kbroker and by Apache Kafka 3.9.1, whoever begins.

Whoever begins leaves one of everything: each codec, in each message format that it can have, several segments, a
compacted topic, transactions, one of them left open, groups. The other one starts on it: what a consumer reads is the
same, record by record; groups go on where they were; transactional producers take over; more is written in all of it.
Then the first one has it back. The inter-broker protocol is 2.8: from 3.0 on neither keeps old message formats.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests import waiting
from compat_tests.apache import Server, ZooKeeper, ZooKeeperBroker, dump_log
from compat_tests.brokers import KbrokerProcess

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
eventually = partial(waiting.eventually, within_s=60)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FORMATS = {"v0": "0.9.0", "v1": "0.10.2", "v2": "3.0-IV1"}
PLAIN = [
    f"{form}-{codec}" for form in FORMATS for codec in CODECS if (form, codec) not in {("v0", "zstd"), ("v1", "zstd")}
]
COMPACTED, TRANSACTIONS, SEGMENTS = "compacted", "transactions", "segments"
TOPICS = [*PLAIN, COMPACTED, TRANSACTIONS, SEGMENTS]
UNREADABLE = "v0-lz4"  # kafka-python reads lz4 of v0 wrongly, from whichever broker: its bytes are compared
SETTINGS = {
    "inter.broker.protocol.version": "2.8",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.retention.ms": "-1",
}
Seen = dict[str, str]


class Turn:
    """One broker's time with the directory. number: of the turn; what is written in it says so."""

    def __init__(self, number: int, broker: Server) -> None:
        self.number = number
        self.address = broker.address

    # ---- writing

    def create(self) -> None:
        """All topics, on a new cluster."""
        topics = [
            NewTopic(f"{form}-{codec}", 1, 1, topic_configs={"message.format.version": version})
            for form, version in FORMATS.items()
            for codec in CODECS
            if f"{form}-{codec}" in PLAIN
        ]
        small = {"segment.bytes": str(100_000), "index.interval.bytes": "1024"}
        dirty = {"min.cleanable.dirty.ratio": "0.001", "segment.ms": "1000", "max.compaction.lag.ms": "1000"}
        topics += [
            NewTopic(COMPACTED, 1, 1, topic_configs={"cleanup.policy": "compact", **dirty, **small}),
            NewTopic(SEGMENTS, 1, 1, topic_configs=small),
            NewTopic(TRANSACTIONS, 1, 1),
        ]
        with closing(KafkaAdminClient(bootstrap_servers=self.address)) as admin:
            admin.create_topics(topics)

    def write(self) -> None:
        """Some of everything."""
        for codec in CODECS:
            with closing(self._producer(compression_type=None if codec == "none" else codec)) as producer:
                for topic in PLAIN:
                    if topic.endswith(codec):
                        self._send(producer, topic, headers=topic.startswith("v2"))
        with closing(self._producer(enable_idempotence=True)) as producer:
            for at in range(300):
                producer.send(SEGMENTS, b"%d:%d " % (self.number, at) * 200, partition=0)
            for at in range(1500):
                value = None if at % 50 == 0 else b"%d:%d" % (self.number, at)
                producer.send(COMPACTED, value, b"key-%d" % (at % 300), partition=0)

    def _producer(self, **settings: object) -> KafkaProducer:
        ours: dict[str, object] = {"acks": "all", "linger_ms": 20, "enable_idempotence": False}
        return KafkaProducer(bootstrap_servers=self.address, **{**ours, **settings})

    def _send(self, producer: KafkaProducer, topic: str, *, headers: bool) -> None:
        for at in range(40):
            key = None if at % 7 == 0 else b"key-%d" % at
            value = None if at % 11 == 1 and key else b"%d:%d " % (self.number, at) * (1 + at % 9)
            more = [("h", b"x" * at)] if headers and at % 3 == 0 else []
            producer.send(topic, value, key, headers=more, partition=0, timestamp_ms=1_700_000_000_000 + at)
        producer.flush()

    def transact(self) -> KafkaProducer:
        """A transaction committed, one aborted, and one that stays open when the broker stops, with its producer."""
        with closing(self._producer(transactional_id="regular", enable_idempotence=True)) as producer:
            producer.init_transactions()
            for commits in (True, False):
                producer.begin_transaction()
                for at in range(5):
                    producer.send(TRANSACTIONS, b"%d:%s:%d" % (self.number, b"ny"[commits:][:1], at), partition=0)
                producer.flush()
                producer.commit_transaction() if commits else producer.abort_transaction()
        left = self._producer(transactional_id="left open", enable_idempotence=True)
        left.init_transactions()
        left.begin_transaction()
        left.send(TRANSACTIONS, b"%d:never" % self.number, partition=0)
        left.flush()
        return left

    # ---- reading

    def consumer(self, **settings: object) -> KafkaConsumer:
        """Of everything from the beginning."""
        ours: dict[str, object] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        return KafkaConsumer(bootstrap_servers=self.address, **{**ours, **settings})

    def read(self, topic: str, **settings: object) -> list[tuple[object, ...]]:
        """All records of a topic, up to its end as this consumer sees it."""
        partition = TopicPartition(topic, 0)
        found: list[tuple[object, ...]] = []
        with closing(self.consumer(**settings)) as consumer:
            consumer.assign([partition])
            end = consumer.end_offsets([partition])[partition]

            def is_done() -> bool:
                found.extend(
                    (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
                    for record in consumer.poll(timeout_ms=500).get(partition, [])
                )
                return bool(consumer.position(partition) >= end)

            eventually(is_done)
        return found

    def seen(self) -> Seen:
        """A checksum of every topic as consumers read it; of the compacted one, of what each key's last value is."""
        read = {topic: self.read(topic) for topic in TOPICS if topic != UNREADABLE}
        last = {key: value for _, _, key, value, _ in read[COMPACTED]}
        read[COMPACTED] = sorted((key, value) for key, value in last.items() if value is not None)
        committed = self.read(TRANSACTIONS, isolation_level="read_committed")
        return {topic: _sum(records) for topic, records in read.items()} | {"committed": _sum(committed)}

    def go_on(self, group: str, topics: list[str], from_turn: int) -> int:
        """What a group reads from where it was: everything of these turns, and nothing twice; commits it."""
        found: list[bytes] = []
        with closing(self.consumer(group_id=group)) as consumer:
            consumer.subscribe(topics)
            wanted = len(topics) * 40 * (self.number + 1 - from_turn)

            def is_done() -> bool:
                for records in consumer.poll(timeout_ms=500).values():
                    found.extend(record.value for record in records)
                return len(found) >= wanted

            eventually(is_done)
            consumer.commit()
        turns = {int(value.partition(b":")[0]) for value in found if value is not None}
        assert (len(found), turns) == (wanted, set(range(from_turn, self.number + 1)))
        return len(found)


def _sum(records: list[tuple[object, ...]]) -> str:
    return f"{len(records)} records, {hashlib.sha256(repr(records).encode()).hexdigest()}"


class Hands:
    """The two of them, and what is theirs in turn."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self.logs = folder / "apache" / "data0"
        own = {**SETTINGS, "broker.id": "1", "zookeeper.connect": zookeeper, "log.dirs": str(self.logs)}
        self.brokers: dict[str, Server] = {
            "apache": ZooKeeperBroker(folder / "apache", zookeeper=zookeeper, settings=SETTINGS),
            "kbroker": KbrokerProcess(folder / "kbroker", settings=own),
        }

    def content(self, topic: str) -> bytes:
        """The bytes of a topic's log."""
        return b"".join(each.read_bytes() for each in sorted((self.logs / f"{topic}-0").glob("*.log")))

    def formats(self) -> dict[str, int]:
        """The magic of what each plain topic's log begins with."""
        return {topic: self.content(topic)[16] for topic in PLAIN}


@pytest.fixture
def hands(tmp_path: Path) -> Iterator[Hands]:
    with ExitStack() as running:
        zookeeper = running.enter_context(ZooKeeper(tmp_path / "zookeeper"))
        made = Hands(tmp_path, zookeeper.address)
        yield made
        for broker in made.brokers.values():
            broker.stop()


@pytest.mark.parametrize("first", [pytest.param("apache", marks=pytest.mark.quick), "kbroker"])
def test_a_directory_goes_from_hand_to_hand_and_back(hands: Hands, first: str) -> None:
    second = "kbroker" if first == "apache" else "apache"
    seen: Seen = {}
    before: dict[str, bytes] = {}
    for number, who in enumerate((first, second, first)):
        with hands.brokers[who] as broker:
            turn = Turn(number, broker)
            if number:
                assert turn.seen() == seen, who
            else:
                turn.create()
            turn.write()
            left = turn.transact()
            assert turn.go_on("each turn", ["v1-gzip", "v2-none"], number)
            if number != 1:
                assert turn.go_on("not in the second", ["v0-none", "v2-zstd"], number and 1)
            seen = turn.seen()
        left.close(timeout=0)
        assert "Recovering" not in broker.output, who
        assert hands.formats() == {topic: int(topic[1]) for topic in PLAIN}
        for topic in (*PLAIN, SEGMENTS):
            content = hands.content(topic)
            assert content.startswith(before.get(topic, b"")), topic
            before[topic] = content
        _check_files(hands.logs)


def _check_files(logs: Path) -> None:
    """Apache's tool and ours have no complaint."""
    found = [
        path for suffix in ("log", "index", "timeindex", "txnindex") for path in sorted(logs.glob(f"*/*.{suffix}"))
    ]
    cleaned = ("__", COMPACTED)  # whose logs have gaps, which the tool takes for faults
    files = [path for path in found if path.suffix != ".log" or not path.parent.name.startswith(cleaned)]
    done = dump_log("3.9.1", "--files", ",".join(map(str, files)), "--index-sanity-check")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    script = [sys.executable, "-c", "from kbroker.cli import main; main()", "verify-log", "--quiet", str(logs)]
    ours = subprocess.run(script, capture_output=True, text=True, errors="replace")
    assert ours.stdout.endswith("nothing wrong\n"), ours.stdout
