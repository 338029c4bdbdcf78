"""Driver of kafka-python, 2.3.3 and 3.0.12. Arguments: the broker's host:port."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from functools import cached_property
from typing import Any

import kafka
from driver import check, data, security, serve, text
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaTimeoutError
from kafka.structs import OffsetAndMetadata
from writer import Done, Writer

BROKER = {"bootstrap_servers": sys.argv[1], **security()}
if bearer := BROKER.pop("bearer", None):
    try:
        from kafka.net.sasl.oauth import AbstractTokenProvider
    except ImportError:  # before 3
        from kafka.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return str(bearer)

    BROKER["sasl_oauth_token_provider"] = Provider()
HANGS_S = 5  # a transaction takes a tenth of that, the start of a killed broker within it
NEWER = int(kafka.__version__.split(".")[0]) >= 3
STRATEGIES = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
STRATEGIES["sticky"] = StickyPartitionAssignor
if NEWER:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

    STRATEGIES["cooperative"] = CooperativeStickyAssignor


def shown(record: Any) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": text(record.key),
        "value": text(record.value),
        "headers": [[name, text(value)] for name, value in record.headers],
    }


class Operations:
    def __init__(self) -> None:
        self.producers: dict[str, KafkaProducer] = {}
        self.members: dict[str, KafkaConsumer] = {}
        self.writer: Writer

    @cached_property
    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(**BROKER)

    def version(self) -> str:
        return str(kafka.__version__)

    # brokers and topics

    def brokers(self) -> list[Any]:
        return [
            [b["broker_id" if NEWER else "node_id"], b["host"], b["port"]]
            for b in self.admin.describe_cluster()["brokers"]
        ]

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])

    def topics(self) -> list[str]:
        return list(self.admin.list_topics())

    def partitions(self, topic: str) -> list[int]:
        described = self.admin.describe_topics([topic])[0]
        check(described["error_code"])
        return [p["partition_index"] if NEWER else p["partition"] for p in described["partitions"]]

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions({topic: NewPartitions(total)})

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])

    # records

    def produce(
        self, topic: str, records: list[dict[str, Any]], acks: int, codec: str, idempotent: bool, limit: int | None
    ) -> list[Any]:
        settings: dict[str, Any] = {"acks": "all" if acks == -1 else acks}
        settings["compression_type"] = None if codec == "none" else codec
        settings["enable_idempotence"] = idempotent
        if limit:
            settings["max_request_size"] = limit
        if acks:  # not kept: one that has had records of a topic that is gone may keep a core busy for good
            producer = KafkaProducer(**BROKER, **settings)
            try:
                return self._produce(producer, topic, records)
            finally:
                producer.close(timeout=HANGS_S)
        key = json.dumps(settings)
        if key not in self.producers:  # kept: closing at once would cut off what is on its way
            self.producers[key] = KafkaProducer(**BROKER, **settings)
        return self._produce(self.producers[key], topic, records)

    def _produce(self, producer: KafkaProducer, topic: str, records: list[dict[str, Any]]) -> list[Any]:
        sent = [
            producer.send(
                topic,
                value=data(record["value"]),
                key=data(record.get("key")),
                headers=[(name, data(value)) for name, value in record.get("headers", [])],
                partition=record.get("partition"),
                timestamp_ms=record.get("timestamp"),
            )
            for record in records
        ]
        producer.flush()
        return [[done.partition, done.offset] for done in (future.get(timeout=30) for future in sent)]

    def start_writing(self, topic: str, partitions: int, pause_ms: float, size: int) -> None:
        producer = KafkaProducer(
            **BROKER,
            acks="all",
            enable_idempotence=True,
            linger_ms=2,
            delivery_timeout_ms=120_000,
            request_timeout_ms=3_000,
            metadata_max_age_ms=1_000,
            max_block_ms=120_000,
        )

        def send(value: bytes, partition: int, done: Done) -> None:
            sent = producer.send(topic, value, partition=partition)
            sent.add_callback(lambda place: done(None, place.offset))
            sent.add_errback(lambda error: done(error, -1))

        self.writer = Writer("kafka-python", partitions, pause_ms, size, send, producer.flush)
        self.writer.start()

    def written(self) -> list[int]:
        return self.writer.written()

    def stop_writing(self) -> dict[str, Any]:
        return self.writer.stop()

    def read(self, topic: str, partition: int, offset: int, count: int, wait_ms: int) -> list[Any]:
        consumer = KafkaConsumer(**BROKER, enable_auto_commit=False)
        try:
            at = TopicPartition(topic, partition)
            consumer.assign([at])
            consumer.seek(at, offset)
            return self._poll(consumer, count, wait_ms)
        finally:
            consumer.close()

    def transact(self, **transaction: Any) -> None:
        """Give up after a while, as an application's own watchdog would, and close a producer that failed.

        A connection lost between choosing the coordinator's node and having it ready makes its sender drop the request
        it has taken from its queue (kafka/producer/sender.py, _maybe_send_pending_request, 2.3.3 and 3.0.12): nothing
        is sent any more, and the call does not return. And what failed is not left to itself: some 25 senders of 2.3.3
        that another producer has taken the place of keep a core busy among them.
        """
        raised: list[BaseException] = []

        def run() -> None:
            try:
                self._transact(**transaction)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(HANGS_S)
        if thread.is_alive():
            raised = [KafkaTimeoutError(f"the transaction has not come to an end in {HANGS_S} s")]
        if raised:
            failed = self.producers.pop(transaction["producer"], None)
            if failed is not None:
                failed.close(timeout=0)
            raise raised[0]

    def _transact(
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
            self.producers[producer] = KafkaProducer(**BROKER, transactional_id=name)
            self.producers[producer].init_transactions()
        sender = self.producers[producer]
        sender.begin_transaction()
        for value in values:
            sender.send(topic, value=data(value), partition=0)
        sender.flush()
        at = {TopicPartition(source, 0): OffsetAndMetadata(offset, "", -1)}
        sender.send_offsets_to_transaction(at, group)
        if outcome and commit:
            sender.commit_transaction()
        elif outcome:
            sender.abort_transaction()

    def end_transaction(self, producer: str, commit: bool) -> None:
        """Of a producer whose `transact` left one open."""
        sender = self.producers[producer]
        (sender.commit_transaction if commit else sender.abort_transaction)()

    def read_committed(self, topic: str, count: int, wait_ms: int) -> list[Any]:
        consumer = KafkaConsumer(**BROKER, enable_auto_commit=False, isolation_level="read_committed")
        try:
            at = TopicPartition(topic, 0)
            consumer.assign([at])
            consumer.seek(at, 0)
            return [record["value"] for record in self._poll(consumer, count, wait_ms)]
        finally:
            consumer.close()

    def bounds(self, topic: str, partition: int) -> list[int]:
        consumer = KafkaConsumer(**BROKER)
        at = TopicPartition(topic, partition)
        try:
            return [consumer.beginning_offsets([at])[at], consumer.end_offsets([at])[at]]
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        consumer = KafkaConsumer(**BROKER)
        at = TopicPartition(topic, partition)
        try:
            found = consumer.offsets_for_times({at: timestamp})[at]
            return found.offset if found else None
        finally:
            consumer.close()

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        at = TopicPartition(topic, partition)
        low: int = self.admin.delete_records({at: before})[at]["low_watermark"]
        return low

    # groups

    def join(self, member: str, group: str, topics: list[str], strategy: str, instance: str | None) -> None:
        self.members[member] = KafkaConsumer(
            *topics,
            **BROKER,
            group_id=group,
            group_instance_id=instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[STRATEGIES[strategy]],
        )

    def poll(self, member: str, count: int, wait_ms: int) -> list[Any]:
        return self._poll(self.members[member], count, wait_ms)

    def _poll(self, consumer: KafkaConsumer, count: int, wait_ms: int) -> list[Any]:
        records: list[Any] = []
        deadline = time.monotonic() + wait_ms / 1000
        while len(records) < count or not count:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                break
            got = consumer.poll(timeout_ms=min(left_ms, 500), max_records=count - len(records) if count else None)
            records += [shown(record) for batch in got.values() for record in batch]
        return records

    def assignment(self, member: str) -> list[Any]:
        return sorted([at.topic, at.partition] for at in self.members[member].assignment())

    def commit(self, member: str) -> None:
        self.members[member].commit()

    def leave(self, member: str) -> None:
        self.members.pop(member).close()

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        at = TopicPartition(topic, partition)
        if NEWER:
            found = self.admin.list_group_offsets({group: [at]})[group].get(at)
        else:
            found = self.admin.list_consumer_group_offsets(group).get(at)
        return None if found is None or found.offset < 0 else found.offset

    def groups(self) -> list[str]:
        if NEWER:
            return [group["group_id"] for group in self.admin.list_groups()]
        return [group[0] for group in self.admin.list_consumer_groups()]

    def group(self, group: str) -> dict[str, Any]:
        if NEWER:
            described = self.admin.describe_groups([group])[group]
            state, members = described["group_state"], described["members"]
        else:
            described = self.admin.describe_consumer_groups([group])[0]
            check(described.error_code)
            state, members = described.state, described.members
        return {"state": getattr(state, "value", state), "members": len(members)}

    def delete_group(self, group: str) -> None:
        if NEWER:
            result = self.admin.delete_groups([group])[group]
            if result != "OK":
                raise getattr(kafka.errors, result)
        else:
            check(self.admin.delete_consumer_groups([group])[0][1].errno)

    # settings and disk

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        return self._configs(ConfigResourceType.TOPIC, topic)

    def broker_configs(self, broker: int) -> dict[str, str | None]:
        return self._configs(ConfigResourceType.BROKER, str(broker))

    def _configs(self, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
        resource = ConfigResource(kind, name)
        if NEWER:
            described = self.admin.describe_configs([resource], config_filter="all")
            return {key: entry["value"] for key, entry in described[kind.name.lower()][name].items()}
        described = self.admin.describe_configs([resource])[0].resources[0]
        check(described[0], described[1])
        return {entry[0]: entry[1] for entry in described[4]}

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        answer = self.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})])
        if not NEWER:
            code, message = answer.resources[0][:2]
            check(code, message)
        elif refused := re.match(r"\[Error (\d+)\]", answer["topic"][topic]):
            check(int(refused[1]), answer["topic"][topic])

    def log_dirs(self) -> dict[str, int]:
        if NEWER:
            dirs = [one for broker in self.admin.describe_log_dirs() for one in broker["log_dirs"]]
            return {
                f"{topic['name']}-{p['partition_index']}": p["partition_size"]
                for one in dirs
                for topic in one["topics"]
                for p in topic["partitions"]
            }
        found = {}
        for code, _, topics in self.admin.describe_log_dirs().log_dirs:
            check(code)
            for topic, partitions in topics:
                found |= {f"{topic}-{p[0]}": p[1] for p in partitions}
        return found


if __name__ == "__main__":
    serve(Operations())
