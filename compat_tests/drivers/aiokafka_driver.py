"""Driver of aiokafka. Arguments: the broker's host:port."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.helpers import create_ssl_context
from driver import check, data, security, serve, text

BROKER = {"bootstrap_servers": sys.argv[1], **security()}
if authority := BROKER.pop("ssl_cafile", None):
    BROKER["ssl_context"] = create_ssl_context(cafile=authority)
    BROKER.pop("ssl_keyfile", None)  # the same file
    if own := BROKER.pop("ssl_certfile", None):
        BROKER["ssl_context"].load_cert_chain(own)
if bearer := BROKER.pop("bearer", None):

    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return str(bearer)

    BROKER["sasl_oauth_token_provider"] = Provider()
STRATEGIES = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


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
        self._admin: AIOKafkaAdminClient | None = None
        self.producers: dict[str, AIOKafkaProducer] = {}
        self.members: dict[str, AIOKafkaConsumer] = {}

    async def admin(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            self._admin = AIOKafkaAdminClient(**BROKER)
            await self._admin.start()
        return self._admin

    def version(self) -> str:
        return str(aiokafka.__version__)

    # brokers and topics

    async def brokers(self) -> list[Any]:
        described = await (await self.admin()).describe_cluster()
        return [[b["node_id"], b["host"], b["port"]] for b in described["brokers"]]

    async def create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        answer = await (await self.admin()).create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)])
        check(answer.topic_errors[0][1])

    async def topics(self) -> list[str]:
        return list(await (await self.admin()).list_topics())

    async def partitions(self, topic: str) -> list[int]:
        described = (await (await self.admin()).describe_topics([topic]))[0]
        check(described["error_code"])
        return [partition["partition"] for partition in described["partitions"]]

    async def add_partitions(self, topic: str, total: int) -> None:
        answer = await (await self.admin()).create_partitions({topic: NewPartitions(total)})
        check(answer.topic_errors[0][1])

    async def delete_topic(self, topic: str) -> None:
        answer = await (await self.admin()).delete_topics([topic])
        check(answer.topic_error_codes[0][1])

    # records

    async def produce(
        self, topic: str, records: list[dict[str, Any]], acks: int, codec: str, idempotent: bool, limit: int | None
    ) -> list[Any]:
        settings: dict[str, Any] = {"acks": "all" if acks == -1 else acks, "enable_idempotence": idempotent}
        settings["compression_type"] = None if codec == "none" else codec
        if limit:
            settings |= {"max_request_size": limit}
        key = json.dumps(settings)
        if key not in self.producers:
            self.producers[key] = AIOKafkaProducer(**BROKER, **settings)
            await self.producers[key].start()
        producer = self.producers[key]
        sent = [
            await producer.send(
                topic,
                value=data(record["value"]),
                key=data(record.get("key")),
                headers=[(name, data(value)) for name, value in record.get("headers", [])],
                partition=record.get("partition"),
                timestamp_ms=record.get("timestamp"),
            )
            for record in records
        ]
        await producer.flush()
        places = [await asyncio.wait_for(future, 30) for future in sent]
        return [[place.partition, place.offset] if place else [-1, -1] for place in places]

    async def read(self, topic: str, partition: int, offset: int, count: int, wait_ms: int) -> list[Any]:
        at = TopicPartition(topic, partition)
        async with AIOKafkaConsumer(**BROKER, enable_auto_commit=False) as consumer:
            consumer.assign([at])
            consumer.seek(at, offset)
            return await self._poll(consumer, count, wait_ms)

    async def transact(
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
            self.producers[producer] = AIOKafkaProducer(**BROKER, transactional_id=name)
            await self.producers[producer].start()
        sender = self.producers[producer]
        await sender.begin_transaction()
        for value in values:
            await sender.send_and_wait(topic, value=data(value), partition=0)
        await sender.send_offsets_to_transaction({TopicPartition(source, 0): offset}, group)
        if outcome and commit:
            await sender.commit_transaction()
        elif outcome:
            await sender.abort_transaction()

    async def read_committed(self, topic: str, count: int, wait_ms: int) -> list[Any]:
        at = TopicPartition(topic, 0)
        settings = {"enable_auto_commit": False, "isolation_level": "read_committed"}
        async with AIOKafkaConsumer(**BROKER, **settings) as consumer:
            consumer.assign([at])
            consumer.seek(at, 0)
            return [record["value"] for record in await self._poll(consumer, count, wait_ms)]

    async def bounds(self, topic: str, partition: int) -> list[int]:
        at = TopicPartition(topic, partition)
        async with AIOKafkaConsumer(**BROKER) as consumer:
            return [(await consumer.beginning_offsets([at]))[at], (await consumer.end_offsets([at]))[at]]

    async def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        at = TopicPartition(topic, partition)
        async with AIOKafkaConsumer(**BROKER) as consumer:
            found = (await consumer.offsets_for_times({at: timestamp}))[at]
            return found.offset if found else None

    async def delete_records(self, topic: str, partition: int, before: int) -> int:
        at = TopicPartition(topic, partition)
        return (await (await self.admin()).delete_records({at: RecordsToDelete(before_offset=before)}))[at]

    # groups

    async def join(self, member: str, group: str, topics: list[str], strategy: str, instance: str | None) -> None:
        self.members[member] = AIOKafkaConsumer(
            *topics,
            **BROKER,
            group_id=group,
            group_instance_id=instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[STRATEGIES[strategy]],
            heartbeat_interval_ms=500,
        )
        await self.members[member].start()

    async def poll(self, member: str, count: int, wait_ms: int) -> list[Any]:
        return await self._poll(self.members[member], count, wait_ms)

    async def _poll(self, consumer: AIOKafkaConsumer, count: int, wait_ms: int) -> list[Any]:
        records: list[Any] = []
        deadline = time.monotonic() + wait_ms / 1000
        while (len(records) < count or not count) and time.monotonic() < deadline:
            got = await consumer.getmany(timeout_ms=100, max_records=count - len(records) if count else None)
            records += [shown(record) for batch in got.values() for record in batch]
        return records

    def assignment(self, member: str) -> list[Any]:
        return [[at.topic, at.partition] for at in self.members[member].assignment()]

    async def commit(self, member: str) -> None:
        await self.members[member].commit()

    async def leave(self, member: str) -> None:
        await self.members.pop(member).stop()

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        found = (await (await self.admin()).list_consumer_group_offsets(group)).get(TopicPartition(topic, partition))
        return None if found is None or found.offset < 0 else found.offset

    async def groups(self) -> list[str]:
        return [group[0] for group in await (await self.admin()).list_consumer_groups()]

    async def group(self, group: str) -> dict[str, Any]:
        answer = (await (await self.admin()).describe_consumer_groups([group]))[0]
        code, _, state, _, _, members = answer.groups[0][:6]
        check(code)
        return {"state": state, "members": len(members)}

    # settings

    async def topic_configs(self, topic: str) -> dict[str, str | None]:
        return await self._configs(ConfigResourceType.TOPIC, topic)

    async def broker_configs(self, broker: int) -> dict[str, str | None]:
        return await self._configs(ConfigResourceType.BROKER, str(broker))

    async def _configs(self, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
        answer = (await (await self.admin()).describe_configs([ConfigResource(kind, name)]))[0]
        code, message, _, _, entries = answer.resources[0]
        check(code, message)
        return {entry[0]: entry[1] for entry in entries}

    async def set_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        answer = (await (await self.admin()).alter_configs([resource]))[0]
        check(*answer.resources[0][:2])


if __name__ == "__main__":
    serve(Operations())
