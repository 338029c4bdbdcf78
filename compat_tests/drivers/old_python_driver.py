"""Driver of Python clients that speak as to an old broker. Arguments: host:port, the library, the broker's version.

The lines on standard input and the answers are those of OldJavaDriver.java: commands with tabs between their fields.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

ADDRESS, LIBRARY, VERSION = sys.argv[1:4]
Record = tuple[int, int, str, str]


def kafka_python() -> tuple[Callable[..., list[int]], Callable[..., list[Record]]]:
    """Its calls to produce and to read."""
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    settings = {"bootstrap_servers": ADDRESS, "api_version": tuple(map(int, VERSION.split(".")))}

    def produce(topic: str, codec: str, records: list[tuple[str, str]]) -> list[int]:
        producer = KafkaProducer(compression_type=None if codec == "none" else codec, linger_ms=20, **settings)
        sent = [producer.send(topic, key=k.encode(), value=v.encode(), partition=0) for k, v in records]
        offsets = [one.get(timeout=30).offset for one in sent]
        producer.close()
        return offsets

    def read(topic: str, offset: int, count: int) -> list[Record]:
        consumer = KafkaConsumer(consumer_timeout_ms=20_000, group_id=None, **settings)
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, offset)
        found: list[Record] = []
        for record in consumer:
            time_ms = -1 if record.timestamp is None else record.timestamp
            found.append((record.offset, time_ms, record.key.decode(), record.value.decode()))
            if len(found) == count:
                break
        consumer.close()
        return found

    return produce, read


def librdkafka() -> tuple[Callable[..., list[int]], Callable[..., list[Record]]]:
    """Its calls to produce and to read."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    settings = {"bootstrap.servers": ADDRESS, "api.version.request": "false", "broker.version.fallback": VERSION}
    settings["log_level"] = "2"

    def produce(topic: str, codec: str, records: list[tuple[str, str]]) -> list[int]:
        producer = Producer({**settings, "compression.codec": codec, "linger.ms": 20, "message.timeout.ms": 30_000})
        offsets: list[int] = []
        errors: list[object] = []

        def told(error: object, message: object) -> None:
            errors.append(error) if error else offsets.append(message.offset())  # type: ignore[attr-defined]

        for key, value in records:
            producer.produce(topic, key=key, value=value, partition=0, on_delivery=told)
        producer.flush(30)
        if errors:
            raise RuntimeError(str(errors[0]))
        return offsets

    def read(topic: str, offset: int, count: int) -> list[Record]:
        consumer = Consumer({**settings, "group.id": "reader", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, offset)])
        found: list[Record] = []
        end = time.monotonic() + 20
        while len(found) < count and time.monotonic() < end:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                kind, time_ms = message.timestamp()
                time_ms = time_ms if kind else -1
                found.append((message.offset(), time_ms, message.key().decode(), message.value().decode()))
        consumer.close()
        return found

    return produce, read


produce, read = kafka_python() if LIBRARY == "kafka-python" else librdkafka()
for line in sys.stdin:
    words = line.rstrip("\n").split("\t")
    try:
        if words[0] == "produce":
            records = [(f"k{at}", f"{words[4]}{at}") for at in range(int(words[3]))]
            answer = ",".join(map(str, produce(words[1], words[2], records)))
        else:
            answer = "\t".join(":".join(map(str, record)) for record in read(words[1], int(words[2]), int(words[3])))
    except Exception as error:
        answer = f"error\t{error!r}".replace("\n", " ")
    print(answer, flush=True)
