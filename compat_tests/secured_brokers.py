"""Brokers of either kind that want a login by SCRAM over TLS, and what clients and Apache's tools ask of them.

Shared by the tests of secured clusters, which make the brokers: on a ZooKeeper, or in the cluster of a quorum. The
admin and the brokers have a password from the beginning; other users are made by who tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaConnectionError, KafkaError, SaslAuthenticationFailedError, TopicAuthorizationFailedError

from compat_tests import waiting
from compat_tests.apache import Server, free_port, run_tool
from kbroker.properties import format_properties
from kbroker.security.client import SCRAM
from kbroker.security.recipes import Recipe

eventually = partial(waiting.eventually, within_s=60)  # three JVMs share the machine

MECHANISM = SCRAM[1]
ADMIN, BROKER, PASSWORD = "admin", "broker", "of, 'this' cluster"


class SecuredBrokers:
    """Some brokers. ports: of SASL_SSL, by broker. brokers: to be put in. release: of Apache's tools."""

    def __init__(self, folder: Path, authority: Path, numbers: Iterable[int], release: str) -> None:
        """authority: the certificate that vouches for all."""
        self.folder, self.authority, self.release = folder, authority, release
        self.ports = {number: free_port() for number in numbers}
        self.brokers: dict[int, Server] = {}

    def address(self, at: int) -> str:
        return f"127.0.0.1:{self.ports[at]}"

    def recipe(self, at: int, user: str, password: str) -> Recipe:
        return Recipe(self.address(at), "SASL_SSL", str(self.authority), "", user, password, MECHANISM)

    def python(self, at: int, user: str = ADMIN, password: str = PASSWORD) -> dict[str, Any]:
        """Settings of kafka-python for who knows one broker."""
        return self.recipe(at, user, password).kafka_python()

    def admin(self, at: int) -> KafkaAdminClient:
        return KafkaAdminClient(**self.python(at))

    def tool(self, name: str, *arguments: str, at: int) -> str:
        """What one of Apache's tools said to the admin."""
        config = self.folder / f"admin{at}.properties"
        config.write_text(format_properties(self.recipe(at, ADMIN, PASSWORD).java()))
        place = ("--bootstrap-server", self.address(at), "--command-config", str(config))
        done = run_tool(self.release, name, *place, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def configs(self, *arguments: str, at: int) -> str:
        """What kafka-configs said."""
        name = "kafka.admin.ConfigCommand" if self.release < "4" else "org.apache.kafka.tools.ConfigCommand"
        return self.tool(name, *arguments, at=at)

    def make_user(self, user: str, at: int) -> None:
        """By kafka-configs, which asks the controller; kafka-python any broker, and passes over what that says."""
        entity = ("--entity-type", "users", "--entity-name", user)
        self.configs("--alter", *entity, "--add-config", f"{MECHANISM}=[password={PASSWORD}]", at=at)

    def make(self, topic: str, *replicas: int) -> None:
        """A topic of one partition; its first replica leads. Each broker that runs knows it in the end."""
        admin = self.admin(replicas[0])
        admin.create_topics([NewTopic(topic, -1, -1, replica_assignments={0: list(replicas)})])
        admin.close()
        for number, broker in self.brokers.items():
            if broker.alive:
                eventually(lambda number=number: self.leader(topic, number) == replicas[0])  # type: ignore[misc]

    def topic(self, topic: str, at: int) -> dict[str, Any]:
        """Partition 0 as a broker tells it; {} if it is not known there."""
        found = self.asked(at, lambda admin: admin.describe_topics([topic])[0]["partitions"])
        return dict(found[0]) if found else {}

    def asked(self, at: int, ask: Callable[[KafkaAdminClient], Any]) -> Any:
        """What an admin is told; None where the client has asked a broker that is not there, by old metadata."""
        try:
            admin = self.admin(at)
            try:
                return ask(admin)
            finally:
                admin.close()
        except KafkaConnectionError:
            return None

    def leader(self, topic: str, at: int) -> int:
        found = self.topic(topic, at)
        return int(found.get("leader_id", found.get("leader", -1)))

    def in_sync(self, topic: str, at: int) -> set[int]:
        found = self.topic(topic, at)
        return set(found.get("isr_nodes", found.get("isr", ())))

    def log(self, topic: str, at: int) -> bytes:
        found = sorted((self.folder / f"broker{at}").glob(f"data*/{topic}-0/*.log"))
        return b"".join(each.read_bytes() for each in found)

    def write(self, at: int, topic: str, *values: bytes, user: str = ADMIN, password: str = PASSWORD) -> None:
        """Records that all in sync have. Raises: KafkaError."""
        producer = KafkaProducer(
            **self.python(at, user, password), acks="all", max_block_ms=20_000, enable_idempotence=False
        )
        try:
            for each in [producer.send(topic, value, partition=0) for value in values]:
                each.get(30)
        finally:
            producer.close(5)

    def read(self, at: int, topic: str, count: int, user: str = ADMIN, password: str = PASSWORD) -> list[bytes]:
        place = TopicPartition(topic, 0)
        consumer = KafkaConsumer(
            **self.python(at, user, password), auto_offset_reset="earliest", consumer_timeout_ms=20_000, group_id=None
        )
        consumer.assign([place])
        found: list[bytes] = []
        try:
            for record in consumer:
                found.append(record.value)
                if len(found) == count:
                    break
        finally:
            consumer.close()
        return found

    def may_write(self, at: int, topic: str, user: str) -> bool:
        try:
            self.write(at, topic, b"may I?", user=user)
        except TopicAuthorizationFailedError:
            return False
        return True

    def is_let_in(self, at: int, user: str, password: str = PASSWORD) -> bool:
        try:
            admin = KafkaAdminClient(**self.python(at, user, password), bootstrap_timeout_ms=5_000)
        except (SaslAuthenticationFailedError, KafkaError):
            return False
        admin.close()
        return True
