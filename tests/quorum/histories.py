"""Random histories of a metadata log: records that fit what those before them say, as controllers write them."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from kbroker.quorum.image import MetadataImage, Topic
from kbroker.quorum.metadata_version import HIGHEST, METADATA_VERSION, record_version
from protocol.message import Message
from protocol.messages.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    EntityData,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    encode_record,
)

BROKERS = (1, 2, 3, 4)
CIDR_ACLS = 32  # 4.4-IV1: from then on hosts of access rules may be networks


class History:
    """A log that grows. image: what its records say so far. level: of metadata.version, in force from the first on."""

    def __init__(self, seed: int, level: int = HIGHEST, *, elr: bool = True) -> None:
        self.image = MetadataImage()
        self.level = level
        self._random = Random(seed)
        self._made = 0
        self.first: list[Message] = [FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)]
        if elr and level >= 23:
            self.first.append(FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1))
        self._apply(self.first)

    def batch(self) -> list[Message]:
        """The records of a step, already applied to the image; now and then a whole transaction."""
        random = self._random
        if random.random() < 0.1:
            before = deepcopy(self.image)
            records = [each for _ in range(random.randrange(4)) for each in self.step(alone=False)]
            if random.random() < 0.5:
                return [BeginTransactionRecord(name="all"), *records, EndTransactionRecord()]
            self.image = before
            return [BeginTransactionRecord(), *records, AbortTransactionRecord(reason="none")]
        return self.step()

    def encoded(self, records: list[Message]) -> list[bytes]:
        """These records as values of the log."""
        return [encode_record(record, record_version(type(record), self.level)) for record in records]

    def step(self, *, alone: bool = True) -> list[Message]:
        """What some one thing that happened is written as, already applied to the image.

        alone: False leaves out what Apache's classes do otherwise where it is applied together with others. Of users
        of one mechanism, a new one may get lost with the last that goes; settings outlive a topic if both are new.
        """
        kinds = (
            [self._new_topic] * 2
            + [self._change] * 8
            + [self._of_broker] * 3
            + [self._of_controller, self._config, self._config, self._quota, self._rule, self._token]
            + [self._feature, self._clear_elr, self._producer_ids, self._no_op]
            + ([self._user, self._remove_topic] if alone else [])
        )
        records = self._random.choice(kinds)()
        self._apply(records)
        return records

    def _apply(self, records: list[Message]) -> None:
        for record in records:
            self.image.apply(record)

    def _uuid(self) -> bytes:
        self._made += 1
        return self._random.randbytes(12) + self._made.to_bytes(4, "big")

    def _some_of(self, values: tuple[int, ...] | list[int], least: int = 0) -> list[int]:
        return self._random.sample(values, self._random.randint(least, len(values)))

    def _topic(self) -> Topic | None:
        topics = list(self.image.topics.values())
        return self._random.choice(topics) if topics else None

    def _new_topic(self) -> list[Message]:
        topic_id = self._uuid()
        name = f"topic-{self._random.randrange(30)}"
        if name in self.image.topic_ids:
            return []
        return [TopicRecord(name=name, topic_id=topic_id)] + [
            self._partition(topic_id, index) for index in range(self._random.randint(1, 3))
        ]

    def _partition(self, topic_id: bytes, index: int) -> Message:
        random, replicas = self._random, self._some_of(BROKERS, 1)
        return PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=self._some_of(replicas, 1),
            removing_replicas=[],
            adding_replicas=self._some_of(replicas) if random.random() < 0.1 else [],
            leader=random.choice((-1, replicas[0])),
            leader_recovery_state=random.choice((0, 0, 1)),
            leader_epoch=random.randrange(5),
            partition_epoch=random.randrange(5),
            directories=[self._uuid() for _ in replicas] if random.random() < 0.8 else [],
            eligible_leader_replicas=self._elr(replicas),
            last_known_elr=self._elr(replicas),
        )

    def _elr(self, replicas: list[int]) -> list[int] | None:
        return self._some_of(replicas) if self.level >= 23 and self._random.random() < 0.3 else None

    def _change(self) -> list[Message]:
        topic, random = self._topic(), self._random
        if topic is None:
            return self._new_topic()
        index = random.choice(list(topic.partitions))
        partition = topic.partitions[index]
        changes: dict[str, Any] = {}
        if random.random() < 0.3:
            changes["replicas"] = self._some_of(BROKERS, 1)
            changes["directories"] = [self._uuid() for _ in changes["replicas"]]
            changes["adding_replicas"] = self._some_of(changes["replicas"])
            changes["removing_replicas"] = self._some_of(changes["replicas"])
        replicas = changes.get("replicas", partition.replicas)
        if random.random() < 0.5:
            changes["isr"] = self._some_of(replicas)
        if random.random() < 0.5:
            changes["leader"] = random.choice((-1, *replicas))
        if random.random() < 0.2:
            changes["leader_recovery_state"] = random.randrange(2)
        changes["eligible_leader_replicas"] = self._elr(replicas)
        changes["last_known_elr"] = self._elr(replicas)
        return [PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, **changes)]

    def _of_broker(self) -> list[Message]:
        random = self._random
        broker_id = random.choice(BROKERS)
        known = self.image.brokers.get(broker_id)
        if known is None or random.random() < 0.2:
            return [self._registration(broker_id)]
        epoch = known.broker_epoch
        if random.random() < 0.1:
            return [UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=epoch)]
        if random.random() < 0.1:
            old = random.choice((FenceBrokerRecord, UnfenceBrokerRecord))
            return [old(id=broker_id, epoch=epoch)]
        change = BrokerRegistrationChangeRecord(
            broker_id=broker_id,
            broker_epoch=epoch,
            fenced=random.choice((-1, 0, 1)),
            in_controlled_shutdown=random.randrange(2),
            log_dirs=random.choice(([], [self._uuid()])),
            cordoned_log_dirs=random.choice((None, [], [self._uuid()])) if self.level >= 30 else None,
        )
        return [change]

    def _registration(self, broker_id: int) -> Message:
        self._made += 1
        return RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=self._uuid(),
            broker_epoch=self._made,
            end_points=[BrokerEndpoint(name="PLAINTEXT", host="here", port=9092, security_protocol=0)],
            features=[BrokerFeature(name=METADATA_VERSION, min_supported_version=7, max_supported_version=33)],
            rack=self._random.choice((None, "cellar")),
            fenced=self._random.random() < 0.5,
            log_dirs=[self._uuid()],
        )

    def _of_controller(self) -> list[Message]:
        controller_id = 3000 + self._random.randrange(3)
        if self.level >= 33 and controller_id in self.image.controllers and self._random.random() < 0.5:
            return [UnregisterControllerRecord(controller_id=controller_id)]
        record = RegisterControllerRecord(
            controller_id=controller_id,
            incarnation_id=self._uuid(),
            zk_migration_ready=False,
            end_points=[BrokerEndpoint(name="CONTROLLER", host="there", port=9093, security_protocol=0)],
            features=[],
        )
        return [record]

    def _config(self) -> list[Message]:
        topic, random = self._topic(), self._random
        of_type, name = random.choice(((4, ""), (4, "1"), (32, "a group"), (2, topic.name if topic else "gone")))
        key = random.choice(("cleanup.policy", "retention.ms", "segment.bytes"))
        return [ConfigRecord(resource_type=of_type, resource_name=name, name=key, value=random.choice((None, "", "7")))]

    def _quota(self) -> list[Message]:
        random = self._random
        types = random.sample(("user", "client-id"), random.randint(1, 2))
        entity = [EntityData(entity_type=each, entity_name=random.choice((None, "a", "b"))) for each in types]
        key = random.choice(("producer_byte_rate", "request_percentage"))
        return [ClientQuotaRecord(entity=entity, key=key, value=random.randrange(9) / 2, remove=random.random() < 0.4)]

    def _user(self) -> list[Message]:
        random = self._random
        name, mechanism = random.choice("ab"), random.randint(1, 2)
        if random.random() < 0.4:
            return [RemoveUserScramCredentialRecord(name=name, mechanism=mechanism)]
        salt, key = random.randbytes(4), random.randbytes(32)
        record = UserScramCredentialRecord(
            name=name, mechanism=mechanism, salt=salt, stored_key=key, server_key=key, iterations=4096
        )
        return [record]

    def _rule(self) -> list[Message]:
        random = self._random
        if self.image.acls and random.random() < 0.4:
            return [RemoveAccessControlEntryRecord(id=random.choice(list(self.image.acls)))]
        hosts = ("*", "10.0.0.1", "10.0.0.0/8") if self.level >= CIDR_ACLS else ("*", "10.0.0.1")
        record = AccessControlEntryRecord(
            id=self._uuid(),
            resource_type=2,
            resource_name=random.choice(("a", "*")),
            pattern_type=3,
            principal=f"User:{random.choice('ab')}",
            host=random.choice(hosts),
            operation=3,
            permission_type=random.choice((2, 3)),
        )
        return [record]

    def _token(self) -> list[Message]:
        token_id = self._random.choice("xyz")
        if self._random.random() < 0.4:
            return [RemoveDelegationTokenRecord(token_id=token_id)]
        record = DelegationTokenRecord(
            owner="User:a",
            requester="User:b",
            renewers=["User:c"],
            issue_timestamp=1,
            max_timestamp=9,
            expiration_timestamp=self._random.randrange(9),
            token_id=token_id,
        )
        return [record]

    def _feature(self) -> list[Message]:
        name = self._random.choice(("group.version", "share.version", "kraft.version"))
        return [FeatureLevelRecord(name=name, feature_level=self._random.randrange(2))]

    def _clear_elr(self) -> list[Message]:
        topic = self._topic()
        return [ClearElrRecord(topic_name=self._random.choice((topic.name, "")))] if topic and self.level >= 23 else []

    def _remove_topic(self) -> list[Message]:
        topic = self._topic()
        return [RemoveTopicRecord(topic_id=topic.topic_id)] if topic else []

    def _producer_ids(self) -> list[Message]:
        self._made += 1
        return [ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000 * self._made)]

    def _no_op(self) -> list[Message]:
        return [NoOpRecord()]


def image_of(records: list[Message]) -> MetadataImage:
    """The image that these records make."""
    image = MetadataImage()
    for record in records:
        image.apply(record)
    image.take_delta()
    return image
