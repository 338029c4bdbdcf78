"""Settings, quotas and credentials as a metadata quorum has them, applied to this broker when they change.

Called by `quorum_plane.py` with the image of the cluster and what has changed of it. Values are kept here as those of a
cluster on ZooKeeper are (`AppliedConfigs`): what a user is entitled to, and logs in by, are texts by the user's path.

| in the log | here |
|---|---|
| ConfigRecord of a topic | the topic's settings, if it has a replica here |
| of a broker, by number; of the broker "" | this broker's dynamic settings; those of all brokers |
| of a group | the group's settings |
| of client metrics | nothing: there are no subscriptions |
| ClientQuotaRecord, UserScramCredentialRecord | of users, clients and addresses (`metadata/entities.py`) |

Passwords among settings are clear in the log, as Apache's controllers write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.broker.config_changes import AppliedConfigs
from kbroker.metadata.entities import DEFAULT_ENTITY, GROUPS, desanitized, sanitized
from kbroker.quorum.image import BROKER, TOPIC

if TYPE_CHECKING:
    from kbroker.broker.facts import Tell
    from kbroker.metadata.configs import Configs
    from kbroker.quorum.image import MetadataDelta, MetadataImage, QuotaEntity, Resource
    from kbroker.replica import ReplicaManager

GROUP = 32
ALL = ""
MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
USER, CLIENT_ID, IP = "user", "client-id", "ip"


class PublishedSettings(AppliedConfigs):
    """What is set, as far as it concerns this broker."""

    def __init__(self, broker_id: int, configs: Configs, replicas: ReplicaManager, tell: Tell) -> None:
        super().__init__(configs, replicas, tell)
        self._own = str(broker_id)
        configs.passwords_are_clear = True

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply what has changed."""
        for resource in delta.configs:
            self._set(resource, image)
        entities = dict.fromkeys(delta.client_quotas) | dict.fromkeys(((USER, user),) for _, user in delta.scram)
        for entity in entities:
            if path := path_of(entity):
                values = {key: str(value) for key, value in image.client_quotas.get(entity, {}).items()}
                self.set_entity(path, values | _credentials(image, entity))

    def _set(self, resource: Resource, image: MetadataImage) -> None:
        of_type, name = resource
        settings = dict(image.configs.get(resource, {}))
        if of_type == TOPIC:
            self.set_topic(name, settings)
        elif of_type == GROUP:
            self.set_group(name, settings)
        elif of_type == BROKER and name == ALL:
            self.set_broker(default=settings)
        elif of_type == BROKER and name == self._own:
            self.set_broker(own=settings)

    def of_entity(self, image: MetadataImage, kind: str, name: str) -> dict[str, str]:
        """What is set for a topic or a group, named as in `ControlPlane.read_configs`."""
        resource = (GROUP, desanitized(name)) if kind == GROUPS else (TOPIC, name)
        return dict(image.configs.get(resource, {}))


def path_of(entity: QuotaEntity) -> str:
    """What a quota is for, as a path of `metadata/entities.py`; empty if there is no such kind."""
    nodes = {of_type: DEFAULT_ENTITY if name is None else sanitized(name) for of_type, name in entity}
    if nodes.keys() == {USER, CLIENT_ID}:
        return f"users/{nodes[USER]}/clients/{nodes[CLIENT_ID]}"
    if len(nodes) == 1:
        for of_type, kind in ((USER, "users"), (CLIENT_ID, "clients"), (IP, "ips")):
            if of_type in nodes:
                return f"{kind}/{nodes[of_type] if of_type != IP else entity[0][1] or DEFAULT_ENTITY}"
    return ""


def _credentials(image: MetadataImage, entity: QuotaEntity) -> dict[str, str]:
    """What an entity logs in by, if it is one user, as settings by mechanism."""
    (of_type, user), *others = entity
    if of_type != USER or user is None or others:
        return {}
    kept = {text: image.scram[number, user] for number, text in MECHANISMS.items() if (number, user) in image.scram}
    if not kept:
        return {}
    from kbroker.security.scram import Credential, write_credential  # only a cluster with such users loads it

    return {
        mechanism: write_credential(
            Credential(bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations)
        )
        for mechanism, record in kept.items()
    }
