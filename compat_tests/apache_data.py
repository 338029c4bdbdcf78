"""Fills a running Apache broker with one of everything that leaves a trace in its files.

Used by tests that read Apache's directories. Written against kafka-python, a client we did not write. What is there
afterwards: every codec, records without key or value and with headers, several segments, an idempotent and a
transactional producer (committed and aborted), a compacted topic, LogAppendTime, deleted records, a deleted topic, a
group with offsets.
"""

from __future__ import annotations

import random
import time

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_MEGABYTE = 1 << 20  # the smallest segment that Kafka 4 takes


def fill(address: str) -> None:
    """Write everything to the broker at `address`; returns once it is all there."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        _create_topics(admin)
        _write_codecs(address)
        _write_segments(address)
        _write_transactions(address)
        _write_compacted(address)
        _commit_offsets(address)
        admin.delete_records({TopicPartition("segments", 0): 700})
        admin.delete_topics(["deleted"])
    finally:
        admin.close()


def _create_topics(admin: KafkaAdminClient) -> None:
    small = {"segment.bytes": str(_MEGABYTE), "index.interval.bytes": "1024"}
    topics = {f"codec-{name}": {} for name in CODECS}
    topics |= {
        "segments": small,
        "append-time": {"message.timestamp.type": "LogAppendTime", **small},
        "transactions": {},
        "compacted": {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.001",
            "segment.ms": "1000",
            "max.compaction.lag.ms": "1000",
            **small,
        },
        "deleted": {},
    }
    admin.create_topics([NewTopic(name, 2, 1, topic_configs=configs) for name, configs in topics.items()])


def _producer(address: str, **settings: object) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=address, acks="all", linger_ms=5, **settings)


def _write_codecs(address: str) -> None:
    for codec in CODECS:
        producer = _producer(address, compression_type=None if codec == "none" else codec, enable_idempotence=False)
        for number in range(200):
            key = None if number % 7 == 0 else f"key-{number % 10}".encode()
            value = None if number % 11 == 1 and key else f"värde {number} ".encode() * (number % 30)
            headers = [(f"h{i}", b"x" * i) for i in range(number % 4)]
            producer.send(f"codec-{codec}", value, key, headers=headers, partition=number % 2)
            if number % 40 == 39:
                producer.flush()
        producer.send("deleted", b"gone")
        producer.close()


def _write_segments(address: str) -> None:
    rng = random.Random(1)
    producer = _producer(address, enable_idempotence=True, batch_size=20_000)
    for topic in ("segments", "append-time"):
        for number in range(3000):
            producer.send(topic, rng.randbytes(1000), str(number).encode(), partition=0)
        producer.flush()
    producer.close()


def _write_transactions(address: str) -> None:
    producer = _producer(address, transactional_id="tx-1")
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        for item in range(10):
            producer.send("transactions", f"{number}:{item}".encode(), b"k", partition=item % 2)
        if number % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()


def _write_compacted(address: str) -> None:
    producer = _producer(address, enable_idempotence=True)
    for generation in range(3):
        for number in range(2000):
            value = None if number % 50 == 0 else f"{generation}-{number}".encode() * 20
            producer.send("compacted", value, f"key-{number % 300}".encode(), partition=0)
        producer.flush()
        time.sleep(1.1)  # past segment.ms, so that the next generation opens a segment and this one can be compacted
    producer.close()


def _commit_offsets(address: str) -> None:
    consumer = KafkaConsumer(
        "codec-gzip", "codec-none", bootstrap_servers=address, group_id="readers", auto_offset_reset="earliest"
    )
    try:
        deadline = time.monotonic() + 30
        while sum(map(len, consumer.poll(timeout_ms=500).values())) == 0:
            assert time.monotonic() < deadline, "the group read nothing"
        consumer.commit()
    finally:
        consumer.close()
