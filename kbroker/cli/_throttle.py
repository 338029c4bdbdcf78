"""How fast replicas are copied while partitions move: the settings that kafka-reassign-partitions.sh --throttle makes.

A rate holds on a broker for the replicas that a topic names in its lists of throttled replicas: those that are copied
from, and those that are copied to. Called by `kbroker reassign`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli._cluster import said_in_text
from kbroker.cli._described import described_configs
from kbroker.cli._plans import Place

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
Changes = dict[str, tuple[str, str | None]]


class Throttle:
    """The limits of a cluster, as they are set and taken back."""

    def __init__(self, admin: KafkaAdminClient) -> None:
        self._admin = admin

    def set(self, bytes_a_second: int, before: Mapping[Place, list[int]], after: Mapping[Place, list[int]]) -> None:
        """Limit what is copied from the replicas there were to those that are new. Raises: ClickException."""
        lists: dict[str, tuple[list[str], list[str]]] = {}
        for (topic, partition), replicas in sorted(after.items()):
            sources = before[topic, partition]
            of_topic = lists.setdefault(topic, ([], []))
            of_topic[0].extend(f"{partition}:{broker}" for broker in sources)
            of_topic[1].extend(f"{partition}:{broker}" for broker in replicas if broker not in sources)
        for topic, of_topic in lists.items():
            changes: Changes = {key: ("SET", ",".join(each)) for key, each in zip(LISTS, of_topic, strict=True) if each}
            self._alter("TOPIC", topic, changes)
        brokers = {broker for replicas in (*before.values(), *after.values()) for broker in replicas}
        for broker in sorted(brokers):
            self._alter("BROKER", str(broker), {key: ("SET", str(bytes_a_second)) for key in RATES})

    def clear(self, partitions: Iterable[Place]) -> list[str]:
        """Take the limits of these partitions' topics and of all brokers back; which there were, in words."""
        brokers = sorted(str(each["broker_id"]) for each in self._admin.describe_cluster()["brokers"])
        topics = sorted({topic for topic, _ in partitions})
        of_brokers, of_topics = self._with_any("BROKER", brokers, RATES), self._with_any("TOPIC", topics, LISTS)
        for kind, names, keys in (("BROKER", of_brokers, RATES), ("TOPIC", of_topics, LISTS)):
            for name in names:
                self._alter(kind, name, dict.fromkeys(keys, ("DELETE", None)))
        said = [f"Cleared the throttle of brokers {', '.join(of_brokers)}."] if of_brokers else []
        return [*said, f"Cleared the throttled replicas of topics {', '.join(of_topics)}."] if of_topics else said

    def _with_any(self, kind: str, names: list[str], keys: tuple[str, ...]) -> list[str]:
        from kafka.admin import ConfigResource

        if not names:
            return []
        found = described_configs(self._admin, [ConfigResource(kind, name) for name in names])
        settings: dict[str, Any] = found.get(kind.lower(), {})
        return [name for name in names if any(self._is_set(settings.get(name, {}), key) for key in keys)]

    @staticmethod
    def _is_set(settings: Mapping[str, Any], key: str) -> bool:
        return key in settings and str(settings[key]["config_source"]).startswith("DYNAMIC")

    def _alter(self, kind: str, name: str, changes: Changes) -> None:
        from kafka.admin import ConfigResource

        answers = self._admin.alter_configs([ConfigResource(kind, name, changes)], raise_on_unknown=False)
        result = answers[kind.lower()][name]
        if result != "OK":
            raise click.ClickException(f"the throttle of {kind.lower()} {name} cannot be set: {said_in_text(result)}")
