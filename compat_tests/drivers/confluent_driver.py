"""Driver of confluent-kafka (librdkafka). Arguments: the broker's host:port."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from driver import data, security, serve, text
from writer import Done, Writer

SERVERS = {"bootstrap.servers": sys.argv[1], **security()}
if bearer := SERVERS.pop("bearer", None):
    SERVERS["oauth_cb"] = lambda _: (bearer, time.time() + 300)
STRATEGIES = {"cooperative": "cooperative-sticky"}
WAIT_S = 30


def done(futures: dict[Any, Any]) -> Any:
    """The result of the only future."""
    (future,) = futures.values()
    return future.result(WAIT_S)


def shown(message: Any) -> dict[str, Any]:
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": text(message.key()),
        "value": text(message.value()),
        "headers": [[name, text(value)] for name, value in message.headers() or []],
    }


class Operations:
    def __init__(self) -> None:
        self.admin = AdminClient(SERVERS)
        self.producers: dict[str, Producer] = {}
        self.members: dict[str, Consumer] = {}
        self.writer: Writer

    def version(self) -> str:
        return str(confluent_kafka.__version__)

    # brokers and topics

    def brokers(self) -> list[Any]:
        return [[b.id, b.host, b.port] for b in self.admin.list_topics(timeout=WAIT_S).brokers.values()]

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        done(self.admin.create_topics([NewTopic(topic, partitions, 1, config=configs)]))

    def topics(self) -> list[str]:
        return list(self.admin.list_topics(timeout=WAIT_S).topics)

    def partitions(self, topic: str) -> list[int]:
        described = done(self.admin.describe_topics(confluent_kafka.TopicCollection([topic])))
        return [partition.id for partition in described.partitions]

    def add_partitions(self, topic: str, total: int) -> None:
        done(self.admin.create_partitions([NewPartitions(topic, total)]))

    def delete_topic(self, topic: str) -> None:
        done(self.admin.delete_topics([topic]))

    # records

    def produce(
        self, topic: str, records: list[dict[str, Any]], acks: int, codec: str, idempotent: bool, limit: int | None
    ) -> list[Any]:
        settings = {"acks": acks, "compression.type": codec, "enable.idempotence": idempotent}
        settings["message.max.bytes"] = limit or 1_000_000
        key = json.dumps(settings)
        if key not in self.producers:
            self.producers[key] = Producer(SERVERS | settings)
        producer, places, errors = self.producers[key], {}, []
        for number, record in enumerate(records):

            def delivered(error: Any, message: Any, number: int = number) -> None:
                places[number] = [message.partition(), -1 if acks == 0 else message.offset()]
                errors.extend([error] if error else [])

            producer.produce(
                topic,
                value=data(record["value"]),
                key=data(record.get("key")),
                headers=[(name, data(value)) for name, value in record.get("headers", [])],
                on_delivery=delivered,
                **{name: record[name] for name in ("partition", "timestamp") if name in record},
            )
        producer.flush(WAIT_S)
        if errors:
            raise KafkaException(errors[0])
        return [places[number] for number in range(len(records))]

    def start_writing(self, topic: str, partitions: int, pause_ms: float, size: int) -> None:
        patient = {"enable.idempotence": True, "linger.ms": 2, "delivery.timeout.ms": 120_000}
        patient["max.in.flight"] = 1  # else it writes twice what is in doubt: confluentinc/librdkafka#4953
        soon = {"socket.timeout.ms": 3_000, "request.timeout.ms": 2_000, "topic.metadata.refresh.interval.ms": 1_000}
        producer = Producer(SERVERS | patient | soon | {"acks": "all", "reconnect.backoff.max.ms": 500})

        def send(value: bytes, partition: int, done: Done) -> None:
            def delivered(error: Any, message: Any) -> None:
                done(error, message.offset())

            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            producer.poll(0)

        self.writer = Writer("librdkafka", partitions, pause_ms, size, send, producer.flush)
        self.writer.start()

    def written(self) -> list[int]:
        return self.writer.written()

    def stop_writing(self) -> dict[str, Any]:
        return self.writer.stop()

    def read(self, topic: str, partition: int, offset: int, count: int, wait_ms: int) -> list[Any]:
        consumer = self._consumer("reader")
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            return self._poll(consumer, count, wait_ms)
        finally:
            consumer.close()

    def transact(
        self,
        producer: str,
        name: str,
        topic: str,
        values: list[str],
        group: str,
        source: str,
        offset: int,
        commit: bool,
        outcome: bool,
    ) -> None:
        if producer not in self.producers:
            self.producers[producer] = Producer(SERVERS | {"transactional.id": name})
            self.producers[producer].init_transactions(WAIT_S)
        sender = self.producers[producer]
        sender.begin_transaction()
        for value in values:
            sender.produce(topic, value=data(value), partition=0)
        sender.flush(WAIT_S)
        member = self._consumer(group)
        sender.send_offsets_to_transaction(
            [TopicPartition(source, 0, offset)], member.consumer_group_metadata(), WAIT_S
        )
        member.close()
        if outcome and commit:
            sender.commit_transaction(WAIT_S)
        elif outcome:
            sender.abort_transaction(WAIT_S)

    def copy(self, name: str, group: str, source: str, topic: str, last: str) -> int:
        """Copy records as a member of a group, until the last is committed; the number of commits."""
        copier = Copier(topic, last)
        no_rebootstrap = {"metadata.recovery.strategy": "none"}  # else it may hang: confluentinc/librdkafka#5511
        while True:
            producer = Producer(SERVERS | {"transactional.id": name} | no_rebootstrap)
            consumer = self._consumer(group, **{"isolation.level": "read_committed"})
            try:
                producer.init_transactions(WAIT_S)
                consumer.subscribe([source])
                return copier.run(consumer, producer)
            except KafkaException as lost:
                print("a new producer, for", lost, file=sys.stderr)
            finally:
                consumer.close()

    def end_transaction(self, producer: str, commit: bool) -> None:
        """Of a producer whose `transact` left one open."""
        sender = self.producers[producer]
        (sender.commit_transaction if commit else sender.abort_transaction)(WAIT_S)

    def read_committed(self, topic: str, count: int, wait_ms: int) -> list[Any]:
        consumer = self._consumer("reader", **{"isolation.level": "read_committed"})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            return [record["value"] for record in self._poll(consumer, count, wait_ms)]
        finally:
            consumer.close()

    def bounds(self, topic: str, partition: int) -> list[int]:
        consumer = self._consumer("reader")
        try:
            return list(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_S))
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        consumer = self._consumer("reader")
        try:
            found = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], timeout=WAIT_S)[0].offset
            return found if found >= 0 else None
        finally:
            consumer.close()

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        low: int = done(self.admin.delete_records([TopicPartition(topic, partition, before)])).low_watermark
        return low

    # groups

    def join(self, member: str, group: str, topics: list[str], strategy: str, instance: str | None) -> None:
        settings = {"partition.assignment.strategy": STRATEGIES.get(strategy, strategy)}
        if strategy == "consumer":
            settings = {"group.protocol": "consumer"}  # the coordinator assigns
        if instance:
            settings["group.instance.id"] = instance
        self.members[member] = self._consumer(group, **settings)
        self.members[member].subscribe(topics)

    def _consumer(self, group: str, **settings: str) -> Consumer:
        ours = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return Consumer(SERVERS | ours | settings)

    def poll(self, member: str, count: int, wait_ms: int) -> list[Any]:
        return self._poll(self.members[member], count, wait_ms)

    def _poll(self, consumer: Consumer, count: int, wait_ms: int) -> list[Any]:
        records: list[Any] = []
        deadline = time.monotonic() + wait_ms / 1000
        while (len(records) < count or not count) and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            records.append(shown(message))
        return records

    def assignment(self, member: str) -> list[Any]:
        return [[at.topic, at.partition] for at in self.members[member].assignment()]

    def commit(self, member: str) -> None:
        self.members[member].commit(asynchronous=False)

    def leave(self, member: str) -> None:
        self.members.pop(member).close()

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
        found = done(self.admin.list_consumer_group_offsets([asked])).topic_partitions[0]
        return found.offset if found.offset >= 0 else None

    def groups(self) -> list[str]:
        return [group.group_id for group in self.admin.list_consumer_groups().result(WAIT_S).valid]

    def group(self, group: str) -> dict[str, Any]:
        described = done(self.admin.describe_consumer_groups([group]))
        return {"state": described.state.name, "members": len(described.members)}

    def delete_group(self, group: str) -> None:
        done(self.admin.delete_consumer_groups([group]))

    # settings

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        return self._configs(ResourceType.TOPIC, topic)

    def broker_configs(self, broker: int) -> dict[str, str | None]:
        return self._configs(ResourceType.BROKER, str(broker))

    def _configs(self, kind: ResourceType, name: str) -> dict[str, str | None]:
        described = done(self.admin.describe_configs([ConfigResource(kind, name)]))
        return {entry.name: entry.value for entry in described.values()}

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        done(self.admin.incremental_alter_configs([resource]))


class Copier:
    """Transactions of a group member: some records, each copied, and how far it has got."""

    def __init__(self, topic: str, last: str) -> None:
        self.topic, self.last = topic, last
        self.begun = self.committed = 0
        self.done = False

    def run(self, consumer: Consumer, producer: Producer) -> int:
        """Until the last record is committed. Raises: KafkaException, where it takes another producer to go on."""
        while not self.done:
            records = [message for message in consumer.consume(10, 0.2) if not message.error()]
            if not records:
                continue
            self.begun += 1
            producer.begin_transaction()
            try:
                self._copy(records, consumer, producer, commit=self.begun % 5 != 0)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                print("aborts, for", error, file=sys.stderr)
                self._until_settled(lambda: producer.abort_transaction(WAIT_S))
                self._rewind(consumer)
        return self.committed

    def _copy(self, records: list[Any], consumer: Consumer, producer: Producer, *, commit: bool) -> None:
        for record in records:
            value = record.value() if commit else b"aborted " + record.value()
            producer.produce(self.topic, value=value, partition=0)
        after = [TopicPartition(record.topic(), record.partition(), record.offset() + 1) for record in records[-1:]]
        member = consumer.consumer_group_metadata()
        self._until_settled(lambda: producer.send_offsets_to_transaction(after, member, WAIT_S))
        if not commit:
            self._until_settled(lambda: producer.abort_transaction(WAIT_S))
            self._rewind(consumer)
            return
        self._until_settled(lambda: producer.commit_transaction(WAIT_S))
        self.committed += 1
        self.done = text(records[-1].value()) == self.last

    @staticmethod
    def _until_settled(call: Any) -> None:
        """Call again what may be called again."""
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    @staticmethod
    def _rewind(consumer: Consumer) -> None:
        for place in consumer.committed(consumer.assignment(), timeout=WAIT_S):
            offset = place.offset if place.offset >= 0 else confluent_kafka.OFFSET_BEGINNING
            consumer.seek(TopicPartition(place.topic, place.partition, offset))


if __name__ == "__main__":
    serve(Operations())
